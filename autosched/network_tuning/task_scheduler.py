"""Task scheduler: which task of the networks has the next round of measurements, or that tuning has converged.

After warm-up, one round for each task in the order of contributions, the strategy chooses among all tasks. Warm-up
leaves out tasks whose expected gain is negligible, and ends at half of the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.network_tuning.strategies import DEFAULT, STRATEGIES, Strategy, gains
from autosched.network_tuning.task_state import MIN_COST, TaskState, total_contribution

MIN_TOTAL_GAIN = 0.005  # of the objective: the search ends when all next rounds together are expected to gain less
MIN_PRIORITY = 0.0003  # of the objective: a task whose first round is expected to gain less has no warm-up round
WARM_UP_SHARE = 0.5  # of the budget
WARM_UP_TRIALS, WARM_UP_S = 4.0, 0.5  # cost of a warm-up round, before one was measured


@dataclass(frozen=True)
class SchedulerOptions:
    """`strategy`: one of STRATEGIES. `budget`: seconds of the whole search, or measurements if `counts_trials`; None:
    the search goes on until it has converged."""

    strategy: Strategy = STRATEGIES[DEFAULT]
    budget: float | None = None
    counts_trials: bool = False


def next_task(tasks: Sequence[TaskState], options: SchedulerOptions) -> int | None:
    """Return the index of the task that has the next round; None if tuning has converged."""
    if fresh := warm_up_tasks(tasks, options):
        return max(fresh, key=lambda n: tasks[n].contribution)
    strategy = options.strategy
    expected = strategy.expected_gains(tasks)
    if _is_converged(tasks, expected, options):
        return None
    if strategy.is_round_robin:
        unfinished = [n for n, task in enumerate(tasks) if task.headroom_s > 0.0]
        return min(unfinished, key=lambda n: (len(tasks[n].rounds), -tasks[n].contribution), default=None)
    first = _warm_up_cost(tasks, options)
    costs = [task.last_cost(options.counts_trials) or first for task in tasks]
    return max(range(len(tasks)), key=lambda n: expected[n] / costs[n])


def warm_up_tasks(tasks: Sequence[TaskState], options: SchedulerOptions) -> list[int]:
    """Return the indices of the tasks that still have a warm-up round."""
    least = MIN_PRIORITY * total_contribution(tasks)
    fresh = [n for n, task in enumerate(tasks) if not task.rounds and min(task.contribution, gains([task])[0]) > least]
    if options.budget is None:
        return fresh
    n_done = sum(bool(task.rounds) for task in tasks)
    n_left = max(int(WARM_UP_SHARE * options.budget / _warm_up_cost(tasks, options)), 1) - n_done
    return sorted(fresh, key=lambda n: -tasks[n].contribution)[: max(n_left, 0)]


def _warm_up_cost(tasks: Sequence[TaskState], options: SchedulerOptions) -> float:
    """Return the cost of a warm-up round: the mean of those so far."""
    if options.counts_trials:
        return WARM_UP_TRIALS
    seconds = [task.rounds[0].seconds for task in tasks if task.rounds]
    return max(sum(seconds) / len(seconds) if seconds else WARM_UP_S, MIN_COST)


def _is_converged(tasks: Sequence[TaskState], expected: Sequence[float], options: SchedulerOptions) -> bool:
    """Return whether all next rounds together are expected to gain a negligible part of the objective.

    Without a budget the gains of the last rounds count, because possible gains never end. TuningRound-robin uses up its
    budget.
    """
    if options.budget is None:
        expected = gains(tasks)
    elif options.strategy.is_round_robin:
        return False
    return sum(expected) <= MIN_TOTAL_GAIN * total_contribution(tasks)
