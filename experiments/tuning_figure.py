"""The figure of `experiments.tuning_curves` and the words about it, both made from the sessions and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autosched.errors import UsageError

Session: TypeAlias = Mapping[str, Any]
Floats: TypeAlias = npt.NDArray[np.float64]

TRIAL, SECONDS = 0, 1  # columns of a curve's points
POINTS = 400  # of the axis of seconds
NEAR = 0.95
SAME = 0.98  # of the full system's throughput: no loss that would be worth a word
COLOURS = ("tab:blue", "tab:gray", "tab:orange", "tab:red", "tab:green", "tab:purple", "tab:brown", "black")


def gflops_of(session: Session) -> float:
    """Floating-point operations of one call, in 1e9."""
    return float(session["gflops"] * session["best_s"])


def on_grid(curve: Sequence[Sequence[float]], column: int, grid: Floats) -> Floats:
    """[len(grid)] best seconds so far at each place of the axis `column`; inf before the first."""
    places = np.array([point[column] for point in curve])
    seconds = np.array([np.inf, *(point[2] for point in curve)])
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
    return next((p[column] for p in session["curve"] if p[2] <= limit_s), None)


def draw(path: Path, title: str, sessions: Sequence[Session], names: Mapping[str, str], trials: int) -> None:
    """Medians as lines, ranges over the seeds as bands, against trials and against seconds. Raises UsageError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("the figure needs matplotlib: install it with `pip install 'autosched[plot]'`") from error
    work = work_of(sessions)
    ours = [s["wall_s"] for s in sessions if s["variant"] != "metaschedule"]
    grids = (np.arange(1.0, trials + 1), np.linspace(0.0, 1.5 * max(ours, default=1.0), POINTS))
    figure = Figure(figsize=(12.0, 4.8), dpi=110)
    FigureCanvasAgg(figure)
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


def paragraph(title: str, sessions: Sequence[Session], names: Mapping[str, str]) -> str:
    """What the figure shows: the full system first, then each variant against it."""
    groups = by_variant(sessions)
    if not groups.get("full"):
        return f"{title}: no session of the full system yet."
    work, full = work_of(sessions), groups["full"]
    final = median(s["curve"][-1][2] for s in full)
    limit = final / NEAR
    trials, seconds = (_median_near(full, limit, column) for column in (TRIAL, SECONDS))
    sentences = [
        f"{title}. The full system ends at {work / final:.1f} GFLOP/s (median of {len(full)} seeds, range "
        f"{_range(full, work)}) after {median(s['wall_s'] for s in full):.1f} s; within 5 % of that it is after "
        f"{_said(trials, 'trials')} or {_said(seconds, 's')}."
    ]
    for variant, group in groups.items():
        if variant != "full":
            sentences.append(_against(names[variant], group, final, work, trials))
    return " ".join(sentences)


def _against(name: str, group: Sequence[Session], final: float, work: float, full_trials: float | None) -> str:
    """One sentence on a variant: what it ends at, how soon it is as good as the full system, and whether that loses."""
    own = median(s["curve"][-1][2] for s in group)
    share, limit = final / own, final / NEAR
    trials = _median_near(group, limit, TRIAL)
    reached = sum(near_at(s, limit, TRIAL) is not None for s in group)
    text = f"{name[0].upper()}{name[1:]}: {work / own:.1f} GFLOP/s ({share:.2f} of it, range {_range(group, work)}), "
    if reached < len(group):
        text += f"within 5 % of it with {reached} of {len(group)} seeds"
    else:
        text += f"within 5 % of it after {_said(trials, 'trials')}"
    later = trials is None or (full_trials is not None and trials > 1.5 * full_trials)
    lost = [word for word, is_lost in (("throughput", share < SAME), ("trials", later)) if is_lost]
    verdict = f"it costs {' and '.join(lost)}" if lost else "no loss is seen here"
    return f"{text}: {verdict}."


def _median_near(group: Sequence[Session], limit_s: float, column: int) -> float | None:
    """The median over the seeds; a session that never came there counts as infinitely late."""
    places = [near_at(s, limit_s, column) for s in group]
    found = median(float("inf") if p is None else p for p in places)
    return None if found == float("inf") else found


def _range(group: Sequence[Session], work: float) -> str:
    rates = [work / s["curve"][-1][2] for s in group]
    return f"{min(rates):.1f} to {max(rates):.1f}"


def _said(value: float | None, unit: str) -> str:
    return "never" if value is None else f"{value:.3g} {unit}"
