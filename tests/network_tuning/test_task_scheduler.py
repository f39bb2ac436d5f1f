"""Which task of a network is worth the next round."""

from __future__ import annotations

import pytest

from autosched.network_tuning.strategies import INITIAL_GAIN, STRATEGIES, gains, gradients
from autosched.network_tuning.task_scheduler import SchedulerOptions, next_task, warm_up_tasks
from autosched.network_tuning.task_state import TaskState, TuningRound, total_contribution

GAIN = SchedulerOptions(STRATEGIES["gain"])


def task_state(*times: float | None, count: int = 1, bound: float = 1.0, seconds: float = 1.0) -> TaskState:
    """A task that began with twice its bound, and whose best was `times` after its rounds."""
    return TaskState(count, bound, 2 * bound, tuple(TuningRound(seconds, t, 8) for t in times))


def gain_of(task: TaskState) -> float:
    (gain,) = gains([task])
    return gain


def test_each_has_a_first_round_the_largest_share_first() -> None:
    tasks = [task_state(bound=1.0, count=3), task_state(bound=2.0), task_state(5.0, bound=1.0), task_state(bound=4.0)]
    for strategy in STRATEGIES.values():
        assert warm_up_tasks(tasks, SchedulerOptions(strategy)) == [0, 1, 3]
        assert next_task(tasks, SchedulerOptions(strategy)) == 3
    tasks[3] = task_state(8.0, bound=4.0)
    assert next_task(tasks, GAIN) == 0
    tasks[0] = task_state(1.0, count=3)
    assert next_task(tasks, GAIN) == 1


def test_first_rounds_take_half_of_a_budget_at_most() -> None:
    tasks = [task_state(20.0, bound=8.0, seconds=2.0), *(task_state(bound=float(n)) for n in range(1, 8))]
    assert len(warm_up_tasks(tasks, SchedulerOptions(budget=100.0))) == 7
    assert warm_up_tasks(tasks, SchedulerOptions(budget=12.0)) == [
        7,
        6,
    ]  # a round takes 2 seconds: room for three, and one is done
    assert warm_up_tasks(tasks, SchedulerOptions(budget=1.0)) == []
    assert next_task(tasks, SchedulerOptions(STRATEGIES["gain"], budget=1.0)) == 0
    assert warm_up_tasks(tasks, SchedulerOptions(budget=32.0, counts_trials=True)) == [7, 6, 5]
    assert warm_up_tasks([task_state()], SchedulerOptions(budget=1.0, counts_trials=True)) == [0]
    gained_little = [task_state(20.0, 19.999), *tasks[1:]]
    assert (
        next_task(gained_little, SchedulerOptions(STRATEGIES["gain"], budget=1.0)) == 7
    )  # the strategy may choose one that had no round


def test_what_cannot_save_anything_to_speak_of_has_none() -> None:
    large = task_state(1000.0, 1000.0, 1000.0)
    tasks = [large, TaskState(1, 10.0, 10.2), task_state(bound=0.5), task_state(bound=2.0)]
    assert warm_up_tasks(tasks, SchedulerOptions()) == [3]
    assert total_contribution([large, task_state(bound=0.5, count=3)]) == 1003.0


def test_then_the_largest_gain_in_a_second() -> None:
    slow_rounds = task_state(20.0, 16.0, 12.0, seconds=10.0)
    quick_rounds = task_state(20.0, 18.0, 16.0, seconds=2.0)
    assert gain_of(slow_rounds) > gain_of(quick_rounds)
    for name in ("gain", "gradient"):
        assert next_task([slow_rounds, quick_rounds], SchedulerOptions(STRATEGIES[name])) == 1
        counts_trials = SchedulerOptions(STRATEGIES[name], budget=64.0, counts_trials=True)
        assert next_task([slow_rounds, quick_rounds], counts_trials) == (0 if name == "gain" else 1)
        assert (
            next_task([task_state(20.0, 18.0), task_state(20.0, 18.0, count=2)], SchedulerOptions(STRATEGIES[name]))
            == 1
        )


def test_no_more_is_expected_than_is_above_the_roof() -> None:
    assert gain_of(task_state(20.0, 15.0, 10.0, bound=9.5)) == pytest.approx(0.5)
    assert gain_of(task_state(20.0)) == pytest.approx(INITIAL_GAIN * 20.0)
    assert gain_of(task_state(20.0, 15.0, 11.0, count=3)) == pytest.approx(3 * 4.5)
    assert gradients([task_state(20.0, 15.0, 10.0, bound=9.5)])[0] <= 0.5


OVER = [
    task_state(1.02),
    task_state(0.9),
    task_state(None, None),
    TaskState(1, 1.0, 1.0, (TuningRound(1.0, 20.0, 8),), is_finished=True),
    TaskState(1, 1.0, 1.0, (), is_finished=True),
    TaskState(0.0, 1.0, 2.0, (TuningRound(1.0, 20.0, 8),)),
]


@pytest.mark.parametrize("task", OVER)
@pytest.mark.parametrize("budget", [None, 1000.0])
def test_what_is_near_its_roof_or_has_failed_is_left_alone(task: TaskState, budget: float | None) -> None:
    assert gain_of(task) == 0.0
    for strategy in STRATEGIES.values():
        assert strategy.expected_gains([task]) == [0.0]
        assert next_task([task], SchedulerOptions(strategy, budget)) is None


def test_what_gained_nothing_is_left_alone_where_there_is_no_end() -> None:
    task = task_state(20.0, 20.0, 20.0)
    assert gain_of(task) == 0.0
    assert [next_task([task], SchedulerOptions(strategy)) for strategy in STRATEGIES.values()] == [None] * len(
        STRATEGIES
    )
    bounded = {name: next_task([task], SchedulerOptions(strategy, 1000.0)) for name, strategy in STRATEGIES.items()}
    assert bounded == {"gradient": 0, "gain": None, "round-robin": 0}


def test_it_ends_when_all_together_promise_next_to_nothing() -> None:
    idle = task_state(1000.0, 1000.0, 1000.0, bound=990.0)
    assert next_task([idle, task_state(30.0, 20.0, 16.0)], GAIN) == 1
    assert next_task([idle, task_state(30.0, 20.5, 20.4)], GAIN) is None
    assert next_task([idle, task_state(30.0, 20.0, 16.0)], SchedulerOptions()) == 1
    assert next_task([idle, task_state(30.0, 20.5, 20.4)], SchedulerOptions()) is None


def test_a_task_without_a_verified_candidate_is_tried_again_once() -> None:
    assert next_task([task_state(None)], GAIN) == 0
    assert gain_of(task_state(None, 8.0)) == pytest.approx(INITIAL_GAIN * 8.0)


def test_a_network_without_kernels() -> None:
    assert [next_task([], SchedulerOptions(strategy)) for strategy in STRATEGIES.values()] == [None] * len(STRATEGIES)
