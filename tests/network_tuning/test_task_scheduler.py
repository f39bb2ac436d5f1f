"""Which task of a network is worth the next round."""

from __future__ import annotations

import pytest

from autosched.network_tuning.strategies import FIRST_GAIN, STRATEGIES, gains, gradients
from autosched.network_tuning.task_scheduler import TurnRules, first_turns, whose_turn
from autosched.network_tuning.task_state import Standing, Turn, total

GAIN = TurnRules(STRATEGIES["gain"])


def standing(*times: float | None, count: int = 1, bound: float = 1.0, seconds: float = 1.0) -> Standing:
    """A task that began with twice its bound, and whose best was `times` after its rounds."""
    return Standing(count, bound, 2 * bound, tuple(Turn(seconds, t, 8) for t in times))


def gain_of(task: Standing) -> float:
    (gain,) = gains([task])
    return gain


def test_each_has_a_first_round_the_largest_share_first() -> None:
    tasks = [standing(bound=1.0, count=3), standing(bound=2.0), standing(5.0, bound=1.0), standing(bound=4.0)]
    for strategy in STRATEGIES.values():
        assert first_turns(tasks, TurnRules(strategy)) == [0, 1, 3]
        assert whose_turn(tasks, TurnRules(strategy)) == 3
    tasks[3] = standing(8.0, bound=4.0)
    assert whose_turn(tasks, GAIN) == 0
    tasks[0] = standing(1.0, count=3)
    assert whose_turn(tasks, GAIN) == 1


def test_first_rounds_take_half_of_a_budget_at_most() -> None:
    tasks = [standing(20.0, bound=8.0, seconds=2.0), *(standing(bound=float(n)) for n in range(1, 8))]
    assert len(first_turns(tasks, TurnRules(budget=100.0))) == 7
    assert first_turns(tasks, TurnRules(budget=12.0)) == [
        7,
        6,
    ]  # a round takes 2 seconds: room for three, and one is done
    assert first_turns(tasks, TurnRules(budget=1.0)) == []
    assert whose_turn(tasks, TurnRules(STRATEGIES["gain"], budget=1.0)) == 0
    assert first_turns(tasks, TurnRules(budget=32.0, in_trials=True)) == [7, 6, 5]
    assert first_turns([standing()], TurnRules(budget=1.0, in_trials=True)) == [0]
    gained_little = [standing(20.0, 19.999), *tasks[1:]]
    assert (
        whose_turn(gained_little, TurnRules(STRATEGIES["gain"], budget=1.0)) == 7
    )  # the strategy may choose one that had no round


def test_what_cannot_save_anything_to_speak_of_has_none() -> None:
    large = standing(1000.0, 1000.0, 1000.0)
    tasks = [large, Standing(1, 10.0, 10.2), standing(bound=0.5), standing(bound=2.0)]
    assert first_turns(tasks, TurnRules()) == [3]
    assert total([large, standing(bound=0.5, count=3)]) == 1003.0


def test_then_the_largest_gain_in_a_second() -> None:
    slow_rounds = standing(20.0, 16.0, 12.0, seconds=10.0)
    quick_rounds = standing(20.0, 18.0, 16.0, seconds=2.0)
    assert gain_of(slow_rounds) > gain_of(quick_rounds)
    for name in ("gain", "gradient"):
        assert whose_turn([slow_rounds, quick_rounds], TurnRules(STRATEGIES[name])) == 1
        in_trials = TurnRules(STRATEGIES[name], budget=64.0, in_trials=True)
        assert whose_turn([slow_rounds, quick_rounds], in_trials) == (0 if name == "gain" else 1)
        assert whose_turn([standing(20.0, 18.0), standing(20.0, 18.0, count=2)], TurnRules(STRATEGIES[name])) == 1


def test_no_more_is_expected_than_is_above_the_roof() -> None:
    assert gain_of(standing(20.0, 15.0, 10.0, bound=9.5)) == pytest.approx(0.5)
    assert gain_of(standing(20.0)) == pytest.approx(FIRST_GAIN * 20.0)
    assert gain_of(standing(20.0, 15.0, 11.0, count=3)) == pytest.approx(3 * 4.5)
    assert gradients([standing(20.0, 15.0, 10.0, bound=9.5)])[0] <= 0.5


OVER = [
    standing(1.02),
    standing(0.9),
    standing(None, None),
    Standing(1, 1.0, 1.0, (Turn(1.0, 20.0, 8),), is_over=True),
    Standing(1, 1.0, 1.0, (), is_over=True),
    Standing(0.0, 1.0, 2.0, (Turn(1.0, 20.0, 8),)),
]


@pytest.mark.parametrize("task", OVER)
@pytest.mark.parametrize("budget", [None, 1000.0])
def test_what_is_near_its_roof_or_has_failed_is_left_alone(task: Standing, budget: float | None) -> None:
    assert gain_of(task) == 0.0
    for strategy in STRATEGIES.values():
        assert strategy.promises([task]) == [0.0]
        assert whose_turn([task], TurnRules(strategy, budget)) is None


def test_what_gained_nothing_is_left_alone_where_there_is_no_end() -> None:
    task = standing(20.0, 20.0, 20.0)
    assert gain_of(task) == 0.0
    assert [whose_turn([task], TurnRules(strategy)) for strategy in STRATEGIES.values()] == [None] * len(STRATEGIES)
    bounded = {name: whose_turn([task], TurnRules(strategy, 1000.0)) for name, strategy in STRATEGIES.items()}
    assert bounded == {"gradient": 0, "gain": None, "round-robin": 0}


def test_it_ends_when_all_together_promise_next_to_nothing() -> None:
    idle = standing(1000.0, 1000.0, 1000.0, bound=990.0)
    assert whose_turn([idle, standing(30.0, 20.0, 16.0)], GAIN) == 1
    assert whose_turn([idle, standing(30.0, 20.5, 20.4)], GAIN) is None
    assert whose_turn([idle, standing(30.0, 20.0, 16.0)], TurnRules()) == 1
    assert whose_turn([idle, standing(30.0, 20.5, 20.4)], TurnRules()) is None


def test_a_task_without_a_verified_candidate_is_tried_again_once() -> None:
    assert whose_turn([standing(None)], GAIN) == 0
    assert gain_of(standing(None, 8.0)) == pytest.approx(FIRST_GAIN * 8.0)


def test_a_network_without_kernels() -> None:
    assert [whose_turn([], TurnRules(strategy)) for strategy in STRATEGIES.values()] == [None] * len(STRATEGIES)
