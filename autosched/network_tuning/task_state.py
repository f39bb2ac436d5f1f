"""How far the search for a task of a network is, and what it is worth to whoever waits for the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEAR_ROOF = 1.03  # of the bound: there is nothing more to find
HOPELESS = 2  # rounds without a verified candidate
IMPROVED = 0.99  # times as long or less: a round that has gained something
LEAST_COST = 1e-3  # of a round


@dataclass(frozen=True)
class Turn:
    """A turn that took `seconds` for `trials` measurements, and the best time of its task afterwards."""

    seconds: float
    best_s: float | None
    trials: int = 0


@dataclass(frozen=True)
class Standing:
    """How far a task is. `weight`: what of the objective a second of its kernel is; where that is the time of one
    network, how often it is called there. No schedule takes less than `bound_s`, the one that the networks began with
    took `start_s`. `is_over`: it has failed, or its space is used up. Tasks of one `kind` do the same work on other
    sizes, `flops` of it in a call."""

    weight: float
    bound_s: float
    start_s: float
    rounds: tuple[Turn, ...] = ()
    is_over: bool = False
    kind: str = ""
    flops: int = 0

    @property
    def best_s(self) -> float | None:
        return self.rounds[-1].best_s if self.rounds else None

    @property
    def now_s(self) -> float:
        """What its kernel takes; until one was measured, what it took in the network."""
        return self.start_s if self.best_s is None else self.best_s

    @property
    def share(self) -> float:
        """Its part of the objective, unlike that of others of the same search no fraction."""
        return self.weight * self.now_s

    @property
    def times(self) -> list[float]:
        """The best after each round; at least one number."""
        return [turn.best_s for turn in self.rounds if turn.best_s is not None] or [self.now_s]

    @property
    def headroom_s(self) -> float:
        """What another round may gain at most; 0 where there is no point in one."""
        is_hopeless = self.best_s is None and len(self.rounds) >= HOPELESS
        if self.is_over or is_hopeless or self.weight <= 0.0 or self.now_s <= NEAR_ROOF * self.bound_s:
            return 0.0
        return self.now_s - self.bound_s

    def has_stalled(self, patience: int) -> bool:
        """Whether its last `patience` rounds have gained nothing to speak of."""
        times = self.times
        return len(times) > patience and times[-1] > IMPROVED * times[-1 - patience]

    def last_cost(self, in_trials: bool) -> float | None:
        """Of its last round, in seconds or in measurements; None before the first."""
        if not self.rounds:
            return None
        last = self.rounds[-1]
        return max(float(last.trials) if in_trials else last.seconds, LEAST_COST)


def total(tasks: Sequence[Standing]) -> float:
    """What the parts of all tasks come to: the time of all calls, where that is the objective."""
    return sum(task.share for task in tasks)
