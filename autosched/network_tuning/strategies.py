"""Strategies of the task scheduler: the gain that each expects of a task's next round.

    gradient      Ansor's task scheduler: a fifth of the recent gain and four fifths of the possible gain. The latter
                  is the larger of two: the distance to the roofline over the number of rounds so far, and the distance
                  to twice the time at the best rate of similar tasks
    gain          the mean gain of the task's last two rounds: a task that has stalled has no further round
    round-robin   the task with the fewest rounds

The first two choose the task with the largest expected gain for the cost of a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from autosched.errors import UsageError
from autosched.network_tuning.task_state import TaskState

INITIAL_GAIN = 0.1  # of a task's time: the expected gain of a round before there were two
GAIN_WINDOW = 2  # rounds whose mean gain `gain` expects of the next one
GRADIENT_WINDOW = 3  # rounds whose mean gain `gradient` uses
ALPHA = 0.2  # weight of the recent gain against the possible gain (Ansor's alpha)
BETA = 2.0  # a task can reach the best rate of similar tasks divided by this (Ansor's beta)
DISSIMILAR_AFTER = 5  # rounds more than similar tasks had: a task that is slower than BETA allows is not similar then
FLOP_STEP = (1 + math.sqrt(5)) / 2  # largest ratio of the operations of similar tasks, about

ExpectedGains: TypeAlias = Callable[[Sequence[TaskState]], list[float]]


@dataclass(frozen=True)
class Strategy:
    """`expected_gains`: by how much the next round of each task lowers the objective. `is_round_robin`: all tasks have
    equally many rounds, whatever their expected gains."""

    description: str
    expected_gains: ExpectedGains
    is_round_robin: bool = False


def gains(tasks: Sequence[TaskState]) -> list[float]:
    """Return each task's weighted mean gain of its last GAIN_WINDOW rounds."""
    return [task.weight * min(task.headroom_s, _recent_gain(task, GAIN_WINDOW)) for task in tasks]


def gradients(tasks: Sequence[TaskState]) -> list[float]:
    """Return each task's weighted recent and possible gains, combined by ALPHA."""
    return [
        task.weight
        * min(task.headroom_s, ALPHA * _recent_gain(task, GRADIENT_WINDOW) + (1 - ALPHA) * _possible_gain(task, rate))
        for task, rate in zip(tasks, similar_rates(tasks), strict=True)
    ]


def similar_rates(tasks: Sequence[TaskState]) -> list[float]:
    """Return the best rate of each task and the tasks similar to it, in operations a second; 0 without measurements."""
    groups: dict[tuple[str, int], list[TaskState]] = {}
    for task in tasks:
        if task.flops and task.best_s is not None:
            groups.setdefault(_similarity_group(task), []).append(task)
    return [_attainable_rate(task, groups.get(_similarity_group(task), [])) if task.flops else 0.0 for task in tasks]


def _similarity_group(task: TaskState) -> tuple[str, int]:
    return task.similarity_key, math.floor(math.log(max(task.flops, 1), FLOP_STEP))


def _attainable_rate(task: TaskState, group: Sequence[TaskState]) -> float:
    rates = [other.flops / other.now_s for other in group]
    best, fewest = max(rates, default=0.0), min((len(other.rounds) for other in group), default=0)
    own = task.flops / task.now_s
    is_dissimilar = own < best / BETA and len(task.rounds) > fewest + DISSIMILAR_AFTER
    return own if is_dissimilar else best


def _recent_gain(task: TaskState, window: int) -> float:
    """Return the mean gain of the last `window` rounds in seconds; INITIAL_GAIN counts as that of the first round."""
    times = task.times
    gained = [INITIAL_GAIN * times[0], *(before - after for before, after in pairwise(times))]
    last = gained[-window:]
    return sum(last) / len(last)


def _possible_gain(task: TaskState, rate: float) -> float:
    behind_s = task.now_s - BETA * task.flops / rate if rate else 0.0
    rounds = len(task.rounds)
    return max(task.headroom_s / rounds if rounds else INITIAL_GAIN * task.now_s, behind_s)


STRATEGIES: Mapping[str, Strategy] = {
    "gradient": Strategy("recent gains, and possible gains by the roofline and by similar tasks", gradients),
    "gain": Strategy("recent gains", gains),
    "round-robin": Strategy("equally many rounds for all tasks", gains, is_round_robin=True),
}
DEFAULT = "gradient"


def find_strategy(name: object) -> Strategy:
    """Return the strategy of this name. Raises UsageError for an unknown name."""
    strategy = STRATEGIES.get(name) if isinstance(name, str) else None
    if strategy is None:
        raise UsageError(f"strategy must be one of {', '.join(STRATEGIES)}, got {name!r}")
    return strategy
