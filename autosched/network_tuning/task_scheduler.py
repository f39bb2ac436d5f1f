"""Whose turn it is: which task of a network a round of measurements goes to, or that another round is not worth it.

Every task has a first round, those first that take most of the objective; but for those that cannot save anything to
speak of, and not more of them than half of the budget is enough for. Then the strategy decides, of tasks that had no
round as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.network_tuning.strategies import DEFAULT, STRATEGIES, Strategy, gains
from autosched.network_tuning.task_state import LEAST_COST, Standing, total

WORTH_IT = 0.005  # of the objective, that all next rounds together must promise
WORTH_A_LOOK = 0.0003  # ... that the first round of a task must
FIRST_SHARE = 0.5  # of a budget, for first rounds
FIRST_TRIALS, FIRST_S = 4.0, 0.5  # of a first round, before there was one


@dataclass(frozen=True)
class TurnRules:
    """By which turns are given. `strategy`: of STRATEGIES. What there is for the whole search: `budget` seconds, or
    measurements where it is `in_trials`; None: no end but that nothing is worth it."""

    strategy: Strategy = STRATEGIES[DEFAULT]
    budget: float | None = None
    in_trials: bool = False


def whose_turn(tasks: Sequence[Standing], rules: TurnRules) -> int | None:
    """The number of the task that the next round goes to; None where no further round is worth it."""
    if fresh := first_turns(tasks, rules):
        return max(fresh, key=lambda n: tasks[n].share)
    strategy = rules.strategy
    promises = strategy.promises(tasks)
    if _is_enough(tasks, promises, rules):
        return None
    if strategy.in_turn:
        open_tasks = [n for n, task in enumerate(tasks) if task.headroom_s > 0.0]
        return min(open_tasks, key=lambda n: (len(tasks[n].rounds), -tasks[n].share), default=None)
    first = _first_cost(tasks, rules)
    costs = [task.last_cost(rules.in_trials) or first for task in tasks]
    return max(range(len(tasks)), key=lambda n: promises[n] / costs[n])


def first_turns(tasks: Sequence[Standing], rules: TurnRules) -> list[int]:
    """The numbers of the tasks that have yet to have their first round before the strategy decides."""
    least = WORTH_A_LOOK * total(tasks)
    fresh = [n for n, task in enumerate(tasks) if not task.rounds and min(task.share, _first_gain(task)) > least]
    if rules.budget is None:
        return fresh
    had = sum(bool(task.rounds) for task in tasks)
    room = max(int(FIRST_SHARE * rules.budget / _first_cost(tasks, rules)), 1) - had
    return sorted(fresh, key=lambda n: -tasks[n].share)[: max(room, 0)]


def _first_gain(task: Standing) -> float:
    return gains([task])[0]


def _first_cost(tasks: Sequence[Standing], rules: TurnRules) -> float:
    """Of a first round, as those so far have been."""
    if rules.in_trials:
        return FIRST_TRIALS
    known = [task.rounds[0].seconds for task in tasks if task.rounds]
    return max(sum(known) / len(known) if known else FIRST_S, LEAST_COST)


def _is_enough(tasks: Sequence[Standing], promises: Sequence[float], rules: TurnRules) -> bool:
    """Whether all next rounds together promise next to nothing. Without an end it is what the last ones gained that
    counts, for what a round may gain there is no end of. Rounds in turn go on to the end that they have."""
    if rules.budget is None:
        promises = gains(tasks)
    elif rules.strategy.in_turn:
        return False
    return sum(promises) <= WORTH_IT * total(tasks)
