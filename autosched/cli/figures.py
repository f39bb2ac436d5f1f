"""Figures in PNG files; they need matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autosched.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, dpi: int) -> Figure:
    """Return an empty figure that needs no screen; width and height in inches. Raises UsageError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("a figure needs matplotlib: install it with `pip install 'autosched[plot]'`") from error
    figure = Figure(figsize=(width, height), dpi=dpi)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure. Raises UsageError for a path that cannot be written."""
    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"the plot cannot be written to {path}: {error}") from error
