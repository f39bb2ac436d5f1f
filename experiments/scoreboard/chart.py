"""The bar chart of the papers: normalised throughput of each operator family, a panel for each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autosched.cli.figures import new_figure
from experiments.scoreboard.contest import PEERS
from experiments.scoreboard.contestant import OURS
from experiments.scoreboard.table import panels, ratio
from experiments.tuning import geomean

CONTESTANTS = (OURS, *PEERS)
COLOURS = dict(zip(CONTESTANTS, ("#1b6ca8", "#ee6c4d", "#f4a582", "#7fb069", "#8d6a9f"), strict=True))
ALL = "geomean"


def normalised(row: Mapping[str, Any]) -> dict[str, float]:
    """Throughput of each contestant of a case, in parts of the best one's; peers beside ours called in the same way."""
    speeds = {peer: 1.0 / r for peer in PEERS if (r := ratio(row, peer)) is not None}
    if speeds or row.get("entries", {}).get(OURS, {}).get("seconds"):
        speeds[OURS] = 1.0
    best = max(speeds.values(), default=1.0)
    return {name: speed / best for name, speed in speeds.items()}


def bars(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """{family: {contestant: height}}: geometric means over the cases of a family, and over all of them last."""
    found: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        if heights := normalised(row):
            found.setdefault(row["workload"], []).append(heights)
    found[ALL] = [heights for cases in found.values() for heights in cases]
    return {
        family: {
            name: mean
            for name in CONTESTANTS
            if (mean := geomean([heights[name] for heights in cases if name in heights])) is not None
        }
        for family, cases in found.items()
        if cases
    }


def draw(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Writes the chart as PNG. Raises UsageError without matplotlib."""
    parts = {key: bars(some) for key, some in panels(rows).items()}
    parts = {key: some for key, some in parts.items() if some}
    if not parts:
        return
    figure = new_figure(11.0, 0.4 + 2.6 * len(parts), 130)
    from matplotlib.patches import Patch  # there is matplotlib

    present = [name for name in CONTESTANTS if any(name in bar for some in parts.values() for bar in some.values())]
    width = 0.84 / len(present)
    for n, ((batch, threads), some) in enumerate(parts.items()):
        axes = figure.add_subplot(len(parts), 1, n + 1)
        for i, name in enumerate(present):
            places = [x for x, bar in enumerate(some.values()) if name in bar]
            heights = [bar[name] for bar in some.values() if name in bar]
            left = (i - (len(present) - 1) / 2) * width
            axes.bar([x + left for x in places], heights, width, color=COLOURS[name])
        axes.set_xticks(range(len(some)), list(some))
        axes.set_ylim(0.0, 1.05)
        axes.set_ylabel("normalised throughput")
        axes.set_title(f"N={batch}, {threads} thread{'s' * (threads > 1)}", fontsize="medium")
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        if n == len(parts) - 1:  # below the last panel, where it hides no bar
            names = [Patch(color=COLOURS[name], label=name) for name in present]
            axes.legend(
                handles=names, ncols=len(present), fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.1)
            )
    figure.suptitle(title, fontsize="medium")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
