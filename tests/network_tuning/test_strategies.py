"""What the strategies expect of a task's next round."""

from __future__ import annotations

import pytest

from autosched.errors import UsageError
from autosched.network_tuning.strategies import (
    ALPHA,
    DISSIMILAR_AFTER,
    INITIAL_GAIN,
    STRATEGIES,
    find_strategy,
    gradients,
    similar_rates,
)
from autosched.network_tuning.task_scheduler import SchedulerOptions, next_task
from autosched.network_tuning.task_state import TaskState, TuningRound


def task(
    *times: float, weight: float = 1.0, bound: float = 1.0, similarity_key: str = "product", flops: int = 0
) -> TaskState:
    return TaskState(
        weight,
        bound,
        times[0] if times else 2 * bound,
        tuple(TuningRound(1.0, t, 8) for t in times),
        False,
        similarity_key,
        flops,
    )


def test_a_gradient_is_what_was_gained_and_what_may_be() -> None:
    (found,) = gradients([task(20.0, 17.0, 15.0, 13.0, bound=5.0, weight=3.0)])
    assert found == pytest.approx(3.0 * (ALPHA * 7.0 / 3 + (1 - ALPHA) * 8.0 / 4))
    (found,) = gradients([task(20.0, 17.0, bound=5.0)])  # as many rounds as there are
    assert found == pytest.approx(ALPHA * (0.1 * 20.0 + 3.0) / 2 + (1 - ALPHA) * 12.0 / 2)
    (found,) = gradients([task()])
    assert found == pytest.approx(INITIAL_GAIN * 2.0)


def test_a_task_may_become_as_fast_as_similar_ones() -> None:
    fast, slow = task(*[10.0] * 5, flops=1000), task(*[90.0] * 5, flops=1000)
    alone = gradients([slow])[0]
    assert similar_rates([fast, slow]) == [100.0, 100.0]
    assert gradients([fast, slow])[1] == pytest.approx((1 - ALPHA) * (90.0 - 2.0 * 10.0))
    assert gradients([fast, slow])[1] > alone
    other_kind, much_less = task(*[90.0] * 5, similarity_key="sum", flops=1000), task(*[90.0] * 5, flops=100)
    assert similar_rates([fast, other_kind, much_less])[1:] == pytest.approx([1000 / 90.0, 100 / 90.0])
    assert similar_rates([fast, task(90.0)])[1] == 0.0  # it moves data


def test_what_stays_slow_has_no_similar_tasks() -> None:
    fast = task(10.0, flops=1000)
    tried = task(*[90.0] * (2 + DISSIMILAR_AFTER), flops=1000)
    assert similar_rates([fast, tried]) == pytest.approx([100.0, 1000 / 90.0])
    half_as_fast = task(*[19.0] * (2 + DISSIMILAR_AFTER), flops=1000)
    assert similar_rates([fast, half_as_fast])[1] == 100.0


def test_round_robin_takes_the_one_with_the_fewest_rounds() -> None:
    rules = SchedulerOptions(STRATEGIES["round-robin"], budget=1000.0)
    tasks = [task(20.0, 10.0), task(20.0, 20.0, 20.0, weight=9.0), task(20.0, 20.0, weight=3.0)]
    assert next_task(tasks, rules) == 2
    assert next_task([*tasks, task(1.0)], rules) == 2  # at its roof


def test_a_gradient_comes_back_to_what_gained_nothing() -> None:
    tasks = [task(20.0, 20.0, 20.0), task(20.0, 19.9, 19.8, 19.7, 19.6, bound=19.0)]
    assert next_task(tasks, SchedulerOptions(budget=1000.0)) == 0
    assert next_task(tasks, SchedulerOptions(STRATEGIES["gain"], 1000.0)) in (None, 1)


def test_what_is_no_strategy() -> None:
    with pytest.raises(UsageError, match="strategy must be one of gradient, gain, round-robin, got 'greedy'"):
        find_strategy("greedy")
    with pytest.raises(UsageError, match="got 3"):
        find_strategy(3)
