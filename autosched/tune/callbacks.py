"""What a session tells while it runs: one kind of event, four moments.

Callbacks run in the tuner's thread between measurements, never while the device is timing. What they raise ends the
session; everything measured before is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from autosched.tune.result import Result


@dataclass(frozen=True)
class Event:
    """The state of a session at one moment. Times in seconds, GFLOP/s in the workload's own operations.

    `trial` of `trials` are done, `failed` of them without a time. `seconds` and `failure` (a class, with `message`)
    are those of the trial just done: None in `on_start` and `on_round`. `best_*` are None before the first verified
    result; `fraction_of_peak` and `gflops` are the best's and this trial's. `eta_s` is None before the first trial.
    """

    workload: str
    target: str
    threads: int
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
    resumed: int = 0  # trials taken over from records

    @property
    def fraction_of_peak(self) -> float | None:
        return self.best_gflops / self.peak_gflops if self.best_gflops and self.peak_gflops else None


class Callback(Protocol):
    """Watches a session."""

    def on_start(self, event: Event) -> None:
        """Before the first candidate."""

    def on_round(self, event: Event) -> None:
        """Before each round is measured, and before the final comparison."""

    def on_result(self, event: Event) -> None:
        """After each trial."""

    def on_finish(self, result: Result) -> None:
        """At the end, also after an interrupt."""
