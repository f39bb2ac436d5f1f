"""State of a tuning task: its rounds so far, its lower bound and its contribution to the objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROOFLINE_MARGIN = 1.03  # a kernel within this factor of its lower bound is not tuned further
MAX_FAILED_ROUNDS = 2  # rounds without a verified candidate, after which a task is given up
STALL_RATIO = 0.99  # a round has improved a task if the new time is at most this fraction of the old one
MIN_COST = 1e-3  # of a round, in seconds or measurements: a divisor


@dataclass(frozen=True)
class TuningRound:
    """A round of `trials` measurements that took `seconds`, and the best time of its task afterwards."""

    seconds: float
    best_s: float | None
    trials: int = 0


@dataclass(frozen=True)
class TaskState:
    """What the task scheduler knows of a task.

    `weight`: derivative of the objective by the seconds of the kernel; for the latency of one network the number of
    calls. `bound_s`: lower bound of the kernel's time, by the roofline. `start_s`: its time when tuning began.
    `is_finished`: the search failed or its space is exhausted. Tasks of one `similarity_key` do the same computation on
    other sizes, `flops` operations in a call.
    """

    weight: float
    bound_s: float
    start_s: float
    rounds: tuple[TuningRound, ...] = ()
    is_finished: bool = False
    similarity_key: str = ""
    flops: int = 0

    @property
    def best_s(self) -> float | None:
        return self.rounds[-1].best_s if self.rounds else None

    @property
    def now_s(self) -> float:
        """Seconds of the fastest kernel measured, or of the kernel that the network began with."""
        return self.start_s if self.best_s is None else self.best_s

    @property
    def contribution(self) -> float:
        """Weight times seconds: what the task adds to the objective, not a fraction."""
        return self.weight * self.now_s

    @property
    def times(self) -> list[float]:
        """The best time after each round; at least one number."""
        return [round.best_s for round in self.rounds if round.best_s is not None] or [self.now_s]

    @property
    def headroom_s(self) -> float:
        """Upper bound of the seconds that further rounds save; 0 for tasks that have no further round."""
        is_hopeless = self.best_s is None and len(self.rounds) >= MAX_FAILED_ROUNDS
        if self.is_finished or is_hopeless or self.weight <= 0.0 or self.now_s <= ROOFLINE_MARGIN * self.bound_s:
            return 0.0
        return self.now_s - self.bound_s

    def has_stalled(self, patience: int) -> bool:
        """Return whether the last `patience` rounds together improved the task by less than a percent."""
        times = self.times
        return len(times) > patience and times[-1] > STALL_RATIO * times[-1 - patience]

    def last_cost(self, counts_trials: bool) -> float | None:
        """Return the cost of the last round, in measurements or in seconds; None before the first round."""
        if not self.rounds:
            return None
        last = self.rounds[-1]
        return max(float(last.trials) if counts_trials else last.seconds, MIN_COST)


def total_contribution(tasks: Sequence[TaskState]) -> float:
    """Return the sum of the contributions: seconds of all calls, where the objective is their sum."""
    return sum(task.contribution for task in tasks)
