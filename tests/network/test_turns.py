"""Which task of a network is worth the next round."""

from __future__ import annotations

import pytest

from autosched.network.turns import FIRST_GAIN, Standing, Turn, first_turns, network_s, whose_turn


def standing(*times: float | None, count: int = 1, bound: float = 1.0, seconds: float = 1.0) -> Standing:
    """A task that began with twice its bound, and whose best was `times` after its rounds."""
    return Standing(count, bound, 2 * bound, tuple(Turn(seconds, t) for t in times))


def test_each_has_a_first_round_the_largest_share_first() -> None:
    tasks = [standing(bound=1.0, count=3), standing(bound=2.0), standing(5.0, bound=1.0), standing(bound=4.0)]
    assert first_turns(tasks) == [0, 1, 3]
    assert whose_turn(tasks) == 3
    tasks[3] = standing(8.0, bound=4.0)
    assert whose_turn(tasks) == 0
    tasks[0] = standing(1.0, count=3)
    assert whose_turn(tasks) == 1


def test_what_cannot_save_anything_to_speak_of_has_none() -> None:
    large = standing(1000.0, 1000.0, 1000.0)
    assert first_turns([large, Standing(1, 10.0, 10.2), standing(bound=0.5), standing(bound=2.0)]) == [3]
    assert network_s([large, standing(bound=0.5, count=3)]) == 1003.0


def test_then_the_largest_gain_in_a_second() -> None:
    slow_rounds = standing(20.0, 16.0, 12.0, seconds=10.0)
    quick_rounds = standing(20.0, 18.0, 16.0, seconds=2.0)
    assert slow_rounds.gain_s > quick_rounds.gain_s
    assert whose_turn([slow_rounds, quick_rounds]) == 1
    assert whose_turn([standing(20.0, 18.0), standing(20.0, 18.0, count=2)]) == 1


def test_no_more_is_expected_than_is_above_the_roof() -> None:
    assert standing(20.0, 15.0, 10.0, bound=9.5).gain_s == pytest.approx(0.5)
    assert standing(20.0).gain_s == pytest.approx(FIRST_GAIN * 20.0)
    assert standing(20.0, 15.0, 11.0, count=3).gain_s == pytest.approx(3 * 4.5)


@pytest.mark.parametrize(
    "task",
    [
        standing(1.02),
        standing(0.9),
        standing(20.0, 20.0, 20.0),
        standing(None, None),
        Standing(1, 1.0, 1.0, (Turn(1.0, 20.0),), is_over=True),
        Standing(1, 1.0, 1.0, (), is_over=True),
    ],
)
def test_what_is_near_its_roof_or_gains_nothing_is_left_alone(task: Standing) -> None:
    assert task.gain_s == 0.0
    assert whose_turn([task]) is None


def test_it_ends_when_all_together_promise_next_to_nothing() -> None:
    idle = standing(1000.0, 1000.0, 1000.0)
    assert whose_turn([idle, standing(30.0, 20.0, 16.0)]) == 1
    assert whose_turn([idle, standing(30.0, 20.5, 20.4)]) is None


def test_a_task_without_a_verified_candidate_is_tried_again_once() -> None:
    assert whose_turn([standing(None)]) == 0
    assert standing(None, 8.0).gain_s == pytest.approx(FIRST_GAIN * 8.0)


def test_a_network_without_kernels() -> None:
    assert whose_turn([]) is None
