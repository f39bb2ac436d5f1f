"""The figure of `experiments.tuning_curves` and the table below it, both made from the sessions and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autosched.cli.figures import new_figure
from experiments.tuning import number, table

Session: TypeAlias = Mapping[str, Any]
Floats: TypeAlias = npt.NDArray[np.float64]

TRIAL, SECONDS, BEST = 0, 1, 2  # columns of a curve's points; the last: seconds of a call
POINTS = 400  # of the axis of seconds
NEAR = 0.95  # of the full system's last throughput
HEADER = ("variant", "seeds", "GFLOP/s", "range", "of full", "trials to 95%", "s to 95%", "wall s")
COLOURS = ("tab:blue", "tab:gray", "tab:orange", "tab:red", "tab:green", "tab:purple", "tab:brown", "black")


def gflops_of(session: Session) -> float:
    """Floating-point operations of one call, in 1e9."""
    return float(session["gflops"] * session["best_s"])


def on_grid(curve: Sequence[Sequence[float]], column: int, grid: Floats) -> Floats:
    """[len(grid)] best seconds so far at each place of the axis `column`; inf before the first."""
    places = np.array([point[column] for point in curve])
    seconds = np.array([np.inf, *(point[BEST] for point in curve)])
    return seconds[np.searchsorted(places, grid, side="right")]


def by_variant(sessions: Sequence[Session]) -> dict[str, list[Session]]:
    found: dict[str, list[Session]] = {}
    for session in sessions:
        found.setdefault(str(session["variant"]), []).append(session)
    return found


def work_of(sessions: Sequence[Session]) -> float:
    """1e9 operations of a call: the same for all, told by any session of ours."""
    return next((gflops_of(s) for s in sessions if "gflops" in s), 0.0)


def near_at(session: Session, limit_s: float, column: int) -> float | None:
    """Where a session's curve comes down to `limit_s`; None where it never does."""
    return next((p[column] for p in session["curve"] if p[BEST] <= limit_s), None)


def draw(path: Path, title: str, sessions: Sequence[Session], names: Mapping[str, str], trials: int) -> None:
    """Medians as lines, ranges over the seeds as bands, against trials and against seconds. Raises UsageError."""
    work = work_of(sessions)
    ours = [s["wall_s"] for s in sessions if s["variant"] != "metaschedule"]
    grids = (np.arange(1.0, trials + 1), np.linspace(0.0, 1.5 * max(ours, default=1.0), POINTS))
    figure = new_figure(12.0, 4.8, 110)
    groups = by_variant(sessions)
    for column, label in ((TRIAL, "trials"), (SECONDS, "seconds since the start of the command")):
        axes = figure.add_subplot(1, 2, column + 1)
        for colour, (variant, group) in zip(COLOURS, groups.items(), strict=False):
            rates = work / np.stack([on_grid(s["curve"], column, grids[column]) for s in group])
            axes.fill_between(
                grids[column], rates.min(axis=0), rates.max(axis=0), step="post", alpha=0.12, color=colour
            )
            line = np.median(rates, axis=0)
            axes.step(grids[column], line, where="post", color=colour, label=f"{names[variant]} ({len(group)})")
        axes.set_xlabel(label)
        axes.set_ylabel("best throughput so far, GFLOP/s")
        axes.set_ylim(bottom=0.0)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(loc="lower right", fontsize="small", title="median and range (seeds)")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path)


def summary_rows(sessions: Sequence[Session], names: Mapping[str, str]) -> list[tuple[str, ...]]:
    """What the figure shows, in the columns of HEADER: where each variant ends, and how soon it is near the full
    system's end. Medians over the seeds; a session that never comes there counts as infinitely late. Empty without a
    session of the full system."""
    groups = by_variant(sessions)
    if not groups.get("full"):
        return []
    work = work_of(sessions)
    ends = {variant: [work / s["curve"][-1][2] for s in group] for variant, group in groups.items()}
    full = median(ends["full"])
    rows: list[tuple[str, ...]] = []
    for variant, group in groups.items():
        rates = ends[variant]
        near = [[near_at(s, work / (NEAR * full), column) for s in group] for column in (TRIAL, SECONDS)]
        trials, seconds = (median(float("inf") if p is None else p for p in places) for places in near)
        rows.append(
            (
                names[variant], str(len(group)), number(median(rates), 1), f"{min(rates):.1f} to {max(rates):.1f}",
                number(median(rates) / full), f"{trials:.3g}", f"{seconds:.3g}",
                number(median(s["wall_s"] for s in group), 1),
            )
        )  # fmt: skip
    return rows


def summary(sessions: Sequence[Session], names: Mapping[str, str]) -> str:
    """The table below the figure."""
    rows = summary_rows(sessions, names)
    return table(HEADER, rows) if rows else "no session of the full system yet"
