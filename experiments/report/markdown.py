"""Tables and their cells as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.tuning import median, number

BAR = "\\|"  # a bar that ends no cell


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; a row has as many cells as the header."""
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row has {len(row)} cells, the header {len(header)}: {row}")
    head, *body = [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in (header, *rows)]
    return [head, "|---" * len(header) + "|", *body]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """'0.97 (0.90 to 1.05)': the median with the least and the greatest; of one value that value, of none '-'."""
    if len(values) < 2:
        return number(values[0] if values else None, digits)
    return f"{number(median(values), digits)} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def lowest(values: Mapping[str, float], n: int | None = None, digits: int = 2) -> str:
    """'`dep:0` 0.64, `sfm:1` 0.70': the `n` least, or all, in order."""
    found = sorted(values.items(), key=lambda item: item[1])[:n]
    return ", ".join(f"`{name}` {value:.{digits}f}" for name, value in found)


def threads_text(n: int) -> str:
    return f"{n} thread{'s' * (n != 1)}"
