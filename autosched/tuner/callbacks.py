"""Callbacks of a session, and the events that they are given.

Callbacks run in the tuner's thread between measurements, never while the device is timed. An exception of a callback
ends the session; everything measured before is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from autosched.tuner.task_info import TaskInfo

if TYPE_CHECKING:
    from autosched.tuner.progress import Progress, Stopwatch
    from autosched.tuner.protocols import Trial
    from autosched.tuner.result import Result
    from autosched.tuner.task import Task


@dataclass(frozen=True, kw_only=True)
class Event(TaskInfo):
    """The state of a session and its task. Times are in seconds, rates in GFLOP/s of the workload's operations.

    `trial` of `trials` are done, `failed` of them without a time. `seconds`, `gflops` and `failure` (a fault class,
    with `message`) are those of the last trial: None in `on_start` and `on_round`. `best_*` and `fraction_of_peak` are
    those of the best trial: None before the first verified one. `eta_s`: seconds left, None before the first trial.
    """

    phase: str  # start, draft, evolve, descend, final
    round: int
    trial: int
    trials: int
    failed: int
    seconds: float | None
    failure: str | None
    message: str
    gflops: float | None
    best_s: float | None
    best_gflops: float | None
    peak_gflops: float | None
    elapsed_s: float
    eta_s: float | None
    sketch: str | None = None
    n_sketches: int = 0
    resumed: int = 0  # trials resumed from records

    @property
    def fraction_of_peak(self) -> float | None:
        return self.best_gflops / self.peak_gflops if self.best_gflops and self.peak_gflops else None


class Callback(Protocol):
    """Observer of a session."""

    def on_start(self, event: Event) -> None:
        """Called before the first candidate."""

    def on_round(self, event: Event) -> None:
        """Called before each round is measured, and before the final comparison."""

    def on_result(self, event: Event) -> None:
        """Called after each trial."""

    def on_finish(self, result: Result) -> None:
        """Called at the end, also after an interrupt."""


@dataclass
class CallbackNotifier:
    """Calls the callbacks of a session of `n_trials`. Events are made only if there are callbacks."""

    callbacks: Sequence[Callback]
    task: Task
    n_trials: int
    progress: Progress
    watch: Stopwatch
    measuring_since: float | None = None  # seconds from the start of the session

    def notify_start(self, resumed: int) -> None:
        """Call `on_start`. `resumed`: number of trials that will be resumed from records."""
        if self.callbacks:
            self._notify("on_start", replace(self._event(), resumed=resumed))

    def notify_round(self) -> None:
        if self.measuring_since is None:
            self.measuring_since = self.watch.elapsed()
        if self.callbacks:
            self._notify("on_round", self._event())

    def notify_result(self, trial: Trial) -> None:
        if self.callbacks:
            self._notify("on_result", self._event(trial))

    def notify_finish(self, result: Result) -> None:
        for callback in self.callbacks:
            callback.on_finish(result)

    def _notify(self, method: Literal["on_start", "on_round", "on_result"], event: Event) -> None:
        for callback in self.callbacks:
            getattr(callback, method)(event)

    def _event(self, trial: Trial | None = None) -> Event:
        task, progress, elapsed = self.task, self.progress, self.watch.elapsed()
        seconds = trial.seconds if trial else None
        best_s = progress.best.seconds if progress.best else None
        return Event(
            **vars(task.info),
            phase=progress.phase,
            round=progress.round,
            trial=len(progress.trials),
            trials=self.n_trials,
            failed=progress.failures().total(),
            seconds=seconds,
            failure=trial.failure if trial else None,
            message=trial.message if trial else "",
            gflops=task.gflops(seconds) if seconds else None,
            best_s=best_s,
            best_gflops=task.gflops(best_s) if best_s else None,
            peak_gflops=progress.peak_gflops,
            elapsed_s=elapsed,
            eta_s=self._eta_s(elapsed),
            sketch=task.sketches[trial.candidate.sketch].name if trial else None,
            n_sketches=len(task.sketches),
            resumed=progress.resumed,
        )

    def _eta_s(self, elapsed: float) -> float | None:
        """Return the seconds left at the pace so far, at most those of the budget; None before the first trial."""
        done, budget = len(self.progress.trials), self.watch.budget_s
        fresh = done - self.progress.resumed
        if not fresh:
            return None
        left = max(self.n_trials - done, 0) * (elapsed - (self.measuring_since or 0.0)) / fresh
        return left if budget is None else min(left, max(budget - elapsed, 0.0))
