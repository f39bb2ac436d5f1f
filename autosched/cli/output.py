"""Output of the verbs: numbers with units, tables, and the JSON object of `--json`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence

SCHEMA_VERSION = 1
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def print_json(content: Mapping[str, object]) -> None:
    """Print one object on one line of stdout. NaN and infinities, which JSON lacks, become null."""
    sys.stdout.write(json.dumps(_finite(content), allow_nan=False) + "\n")
    sys.stdout.flush()


def _finite(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict() | Mapping():
            return {str(k): _finite(v) for k, v in value.items()}
        case list() | tuple():
            return [_finite(v) for v in value]
        case _:
            return value


def time_text(seconds: float | None) -> str:
    """Format seconds: '83.1 us' for 0.0000831."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds == 0:
        return "0 s"
    scale, unit = next((u for u in UNITS if abs(seconds) >= u[0]), UNITS[-1])
    return f"{_digits(seconds / scale)} {unit}"


def interval_text(seconds: float, ci: tuple[float, float] | None) -> str:
    """Format a time with its interval in the same unit: '83.1 us [82.7, 83.6]'."""
    if ci is None:
        return time_text(seconds)
    scale = next((u[0] for u in UNITS if seconds >= u[0]), UNITS[-1][0])
    return f"{time_text(seconds)} [{_digits(ci[0] / scale)}, {_digits(ci[1] / scale)}]"


def rate_text(gflops: float | None) -> str:
    return "-" if gflops is None else f"{_digits(gflops)} GFLOP/s"


def share_text(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100.0 * fraction:.0f} %"


def threads_text(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"


def device_text(target: str, threads: int) -> str:
    """Format a device: 'cpu, 2 threads'; 'cuda', as a GPU's threads are searched."""
    return target if is_gpu(target) else f"{target}, {threads_text(threads)}"


def is_gpu(target: str) -> bool:
    """Return whether the name or the fingerprint of a target is a GPU's."""
    from autosched.backends import gpu_kinds

    return target.startswith(gpu_kinds())


def clock_text(seconds: float | None) -> str:
    """Format seconds: '1:35' for 95."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def printable(text: str) -> str:
    """Return the text of an imported record without control sequences of terminals."""
    return "".join(c if c.isprintable() else "?" for c in text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format columns as wide as their longest cell, two spaces apart."""
    lines = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def _digits(value: float) -> str:
    """Format a number with at least three digits: 1234, 123, 12.3, 1.23."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
