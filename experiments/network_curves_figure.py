"""The figure of `experiments.network_curves`, made from the sessions and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autosched.cli.figures import new_figure
from experiments.tuning_figure import COLOURS, on_grid

POINTS = 400  # of an axis


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A row of plots for each network: against trials and against seconds. Raises UsageError without matplotlib."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure = new_figure(12.0, 4.4 * len(networks), 110)
    for line, network in enumerate(networks):
        mine = [row for row in rows if row["network"] == network and row["curve"]]
        strategies = list(dict.fromkeys(row["strategy"] for row in mine))
        for column, label in enumerate(("trials of all tasks", "seconds since the start of the command")):
            axes = figure.add_subplot(len(networks), 2, 2 * line + column + 1)
            end = max((row["curve"][-1][column] for row in mine), default=1.0)
            grid = np.linspace(0.0, end, POINTS)
            for colour, strategy in zip(COLOURS, strategies, strict=False):
                group = [row for row in mine if row["strategy"] == strategy]
                times = 1e3 * np.stack([on_grid(row["curve"], column, grid) for row in group])
                known = np.isfinite(times).all(axis=0)
                low, high = times[:, known].min(axis=0), times[:, known].max(axis=0)
                axes.fill_between(grid[known], low, high, step="post", alpha=0.12, color=colour)
                median = np.median(times[:, known], axis=0)
                axes.step(grid[known], median, where="post", color=colour, label=f"{strategy} ({len(group)})")
            axes.set_xlabel(label)
            axes.set_ylabel("all kernels of a call, ms")
            axes.set_title(network)
            axes.grid(alpha=0.3)
    figure.axes[0].legend(loc="upper right", fontsize="small", title="median and range (seeds)")
    figure.tight_layout()
    figure.savefig(path)
