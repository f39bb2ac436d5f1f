"""Which task of a network is worth the next round: the strategies, and what each expects of a round.

    gradient      Ansor's task scheduler: how fast a task has improved lately, and how fast it may yet. The latter is
                  the larger of what is above its roofline, spread over as many rounds as it has had, and what it is
                  behind the best rate of similar tasks. What it has gained counts a fifth
    gain          the mean of what a task's last two rounds have gained: one that gains nothing is left alone
    round-robin   the task that has had the fewest rounds

The first two take the task that promises most of the objective for what a round costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from autosched.errors import UsageError
from autosched.network_tuning.task_state import Standing

FIRST_GAIN = 0.1  # of a task's time, expected of a round before there were two
LAST_ROUNDS = 2  # whose mean is the next round's expected gain
ALPHA = 0.2  # how much what was gained counts against what may be
BETA = 2.0  # times as slow as the best of similar tasks a task need not be
WINDOW = 3  # rounds over which gains are averaged
ALONE_AFTER = 5  # rounds more than similar tasks have had: one that is as slow still is not similar
FLOP_STEP = (1 + math.sqrt(5)) / 2  # by which the operations of similar tasks differ at most, about

Promises: TypeAlias = Callable[[Sequence[Standing]], list[float]]


@dataclass(frozen=True)
class Strategy:
    """`promises`: what the next round of each task is expected to take off the objective. `in_turn`: whether all have
    as many rounds, whatever these promise."""

    says: str
    promises: Promises
    in_turn: bool = False


def gains(tasks: Sequence[Standing]) -> list[float]:
    """What the last rounds gained."""
    return [task.weight * min(task.headroom_s, _last_gain(task, LAST_ROUNDS)) for task in tasks]


def gradients(tasks: Sequence[Standing]) -> list[float]:
    """What the last rounds gained, and what may be gained."""
    return [
        task.weight * min(task.headroom_s, ALPHA * _last_gain(task, WINDOW) + (1 - ALPHA) * _possible_gain(task, rate))
        for task, rate in zip(tasks, similar_rates(tasks), strict=True)
    ]


def similar_rates(tasks: Sequence[Standing]) -> list[float]:
    """For each task the best rate that similar ones have, itself included, in operations a second; 0 where none is
    known."""
    groups: dict[tuple[str, int], list[Standing]] = {}
    for task in tasks:
        if task.flops and task.best_s is not None:
            groups.setdefault(_similar(task), []).append(task)
    return [_rate_of_group(task, groups.get(_similar(task), [])) if task.flops else 0.0 for task in tasks]


def _similar(task: Standing) -> tuple[str, int]:
    return task.kind, math.floor(math.log(max(task.flops, 1), FLOP_STEP))


def _rate_of_group(task: Standing, group: Sequence[Standing]) -> float:
    rates = [other.flops / other.now_s for other in group]
    best, fewest = max(rates, default=0.0), min((len(other.rounds) for other in group), default=0)
    own = task.flops / task.now_s
    is_alone = own < best / BETA and len(task.rounds) > fewest + ALONE_AFTER
    return own if is_alone else best


def _last_gain(task: Standing, window: int) -> float:
    """What a round of the last `window` gained on average; before there were two, what rounds gain in general."""
    times = task.times
    found = [FIRST_GAIN * times[0], *(before - after for before, after in pairwise(times))]
    last = found[-window:]
    return sum(last) / len(last)


def _possible_gain(task: Standing, rate: float) -> float:
    behind_s = task.now_s - BETA * task.flops / rate if rate else 0.0
    rounds = len(task.rounds)
    return max(task.headroom_s / rounds if rounds else FIRST_GAIN * task.now_s, behind_s)


STRATEGIES: Mapping[str, Strategy] = {
    "gradient": Strategy("what a task has gained and what it may, by its roofline and by similar tasks", gradients),
    "gain": Strategy("what a task's last rounds have gained", gains),
    "round-robin": Strategy("all tasks have as many rounds", gains, in_turn=True),
}
DEFAULT = "gradient"


def strategy_named(name: object) -> Strategy:
    """Raises UsageError where there is none of this name."""
    found = STRATEGIES.get(name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"strategy must be one of {', '.join(STRATEGIES)}, got {name!r}")
    return found
