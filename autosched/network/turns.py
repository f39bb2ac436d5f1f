"""Whose turn it is: which task of a network a round of measurements goes to, or that another round is not worth it.

Every task has a first round, those first that take most of the network's time; but for those that cannot save anything
to speak of. Then the task goes first whose next round is expected to save most of that time in a second: no more than
is above its roofline, and about as much as its last rounds did. Before a task has had a second round, that is what
rounds have gained in general.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FIRST_GAIN = 0.1  # of a task's time, expected of its second round
LAST_ROUNDS = 2  # whose mean is the next round's expected gain
NEAR_ROOF = 1.03  # of the bound: there is nothing more to find
WORTH_IT = 0.005  # of the network's time, that all next rounds together must promise
WORTH_A_LOOK = 0.0003  # ... that the first round of a task must
HOPELESS = 2  # rounds without a verified candidate
LEAST_S = 1e-3  # of a round


@dataclass(frozen=True)
class Turn:
    """A turn that took `seconds`, and the best time of its task afterwards."""

    seconds: float
    best_s: float | None


@dataclass(frozen=True)
class Standing:
    """How far a task is. Its kernel is called `count` times in the network; no schedule of it takes less than
    `bound_s`, the one that the network began with took `start_s`. `is_over`: it has failed, or its space is used up."""

    count: int
    bound_s: float
    start_s: float
    rounds: tuple[Turn, ...] = ()
    is_over: bool = False

    @property
    def best_s(self) -> float | None:
        return self.rounds[-1].best_s if self.rounds else None

    @property
    def network_s(self) -> float:
        """Of the network's time, what this task takes."""
        return self.count * (self.start_s if self.best_s is None else self.best_s)

    @property
    def gain_s(self) -> float:
        """What another round is expected to save of the network's time."""
        best = self.best_s
        now_s = self.start_s if best is None else best
        if self.is_over or now_s <= NEAR_ROOF * self.bound_s or (best is None and len(self.rounds) >= HOPELESS):
            return 0.0
        times = [r.best_s for r in self.rounds if r.best_s is not None] or [now_s]
        gains = [FIRST_GAIN * times[0], *(before - after for before, after in pairwise(times))]
        last = gains[-LAST_ROUNDS:]
        return self.count * min(now_s - self.bound_s, sum(last) / len(last))


def whose_turn(tasks: Sequence[Standing]) -> int | None:
    """The number of the task that the next round goes to; None where no further round is worth it."""
    fresh = first_turns(tasks)
    if fresh:
        return max(fresh, key=lambda n: tasks[n].network_s)
    gains = [task.gain_s for task in tasks]
    if sum(gains) <= WORTH_IT * network_s(tasks):
        return None
    return max(range(len(tasks)), key=lambda n: gains[n] / max(_last_s(tasks[n]), LEAST_S))


def first_turns(tasks: Sequence[Standing]) -> list[int]:
    """The numbers of the tasks that have yet to have their first round."""
    least = WORTH_A_LOOK * network_s(tasks)
    return [n for n, task in enumerate(tasks) if not task.rounds and task.gain_s > least]


def network_s(tasks: Sequence[Standing]) -> float:
    """What all kernels of a call take together."""
    return sum(task.network_s for task in tasks)


def _last_s(task: Standing) -> float:
    return task.rounds[-1].seconds if task.rounds else 0.0
