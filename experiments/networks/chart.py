"""The bar chart of the papers: throughput of each network in parts of the best contestant's, a panel for each number
of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosched.cli.figures import new_figure
from experiments.networks.contestants import OWN, PEERS
from experiments.report.markdown import threads_text
from experiments.scoreboard.table import panels

COLOURS = {
    **dict(zip(OWN, ("#1b6ca8", "#0b3c5d", "#62a8d8"), strict=True)),
    **dict(zip(PEERS, ("#9aa0a6", "#f4a582", "#ee6c4d", "#7fb069", "#8d6a9f"), strict=True)),
}


def heights(row: Mapping[str, Any]) -> dict[str, float]:
    """Throughput of each that has a time."""
    times = {name: entry["seconds"] for name, entry in row.get("entries", {}).items() if "seconds" in entry}
    best = min(times.values(), default=1.0)
    return {name: best / seconds for name, seconds in times.items()}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes the chart as PNG. Raises UsageError without matplotlib."""
    parts = {panel: [(row["case"], heights(row)) for row in some] for panel, some in panels(rows).items()}
    if not any(bars for some in parts.values() for _, bars in some):
        return
    figure = new_figure(13.0, 0.6 + 2.6 * len(parts), 130)
    from matplotlib.patches import Patch  # there is matplotlib

    present = [name for name in COLOURS if any(name in bars for some in parts.values() for _, bars in some)]
    width = 0.84 / len(present)
    for n, ((batch, threads), some) in enumerate(parts.items()):
        axes = figure.add_subplot(len(parts), 1, n + 1)
        for i, name in enumerate(present):
            left = (i - (len(present) - 1) / 2) * width
            found = [(x + left, bars[name]) for x, (_, bars) in enumerate(some) if name in bars]
            axes.bar([x for x, _ in found], [height for _, height in found], width, color=COLOURS[name])
        axes.set_xticks(range(len(some)), [case for case, _ in some], rotation=20, ha="right", fontsize="small")
        axes.set_ylim(0.0, 1.05)
        axes.set_ylabel("normalised throughput")
        axes.set_title(f"N={batch}, {threads_text(threads)}", fontsize="medium")
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    names = [Patch(color=COLOURS[name], label=name) for name in present]
    figure.legend(handles=names, ncols=len(present), fontsize="small", loc="lower center")
    figure.tight_layout(rect=(0.0, 0.05, 1.0, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
