"""Sessions whose clock lies about some candidates: once, or whenever they are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from autosched.errors import NoValidCandidate
from autosched.tuner.result import Result
from autosched.tuner.time_bound import TimeBound
from tests.tuner.test_session import Setup

LEAST_S = 1e-4  # by the peak of 2 GFLOP/s; the fastest candidate takes ten times as long
WRITTEN_S = 1e-6


def play(clock_error: Callable[[str, int], float], peaks: tuple[float, ...] = (2.0,)) -> tuple[Setup, Result]:
    """A session in which look number n at a candidate sees `clock_error(candidate, n)` times the truth."""
    setup, looks = Setup(), Counter[str]()

    def error(text: str) -> float:
        looks[text] += 1
        return clock_error(text, looks[text])

    setup.peaks = peaks
    setup.measurer.clock_error = error
    setup.task = replace(setup.task, bound=TimeBound(round(LEAST_S * 1.1 * 2e9), 1, 1 / WRITTEN_S))
    return setup, setup.run(24)


@pytest.mark.parametrize("factor", [1e-3, 1e-2])
def test_a_time_that_was_wrong_once_is_mended(factor: float) -> None:
    """In the first round before any peak is known, and in the comparison at the end, which then has others to take."""
    _, truth = play(lambda text, n: 1.0)
    first: list[str] = []

    def error(text: str, n: int) -> float:
        first.append(text)
        return factor if text == first[0] and n == 1 else 1.0

    setup, result = play(error)
    assert result.failures == truth.failures == {}
    assert result.best_s == truth.best_s
    assert min(p.best_s for p in result.curve) >= LEAST_S
    assert setup.measurer.measured.count(first[0]) == 2
    (trial,) = [t for t in setup.recorder.trials if t.seconds is not None and t.seconds < LEAST_S]
    later = [t for t in setup.recorder.trials if t.candidate == trial.candidate]
    assert [t.seconds == trial.seconds for t in later] == [True, False]  # the last outcome is what counts


@pytest.mark.parametrize("factor", [1e-5, 1e-3, 0.02])
@pytest.mark.parametrize("since", [1, 2])
def test_what_stays_too_fast_is_never_the_best(factor: float, since: int) -> None:
    """Below what writing the outputs takes, or below the peak; from the first look on, or in the comparison alone."""
    setup, result = play(lambda text, n: factor if n >= since and text[0] == "1" else 1.0)
    assert result.best_s >= LEAST_S
    assert min(p.best_s for p in result.curve) >= LEAST_S
    assert result.failures["impossible_time"] >= 1
    counted = {t.candidate: t for t in setup.recorder.trials}
    assert all(t.seconds is None or t.seconds >= LEAST_S for t in counted.values())
    assert all(s >= LEAST_S for _, _, s in setup.model.memory)  # nothing was learned from it
    assert result.record_id in setup.recorder.certified


def test_a_clock_that_is_always_wrong_ends_without_a_result() -> None:
    with pytest.raises(NoValidCandidate, match="impossible_time 24"):
        play(lambda text, n: 1e-6)


def test_a_peak_that_was_read_too_low_is_read_again_and_refuses_nobody() -> None:
    setup, result = play(lambda text, n: 1.0, peaks=(0.02, 0.1, 0.02, 2.0))  # the fastest seem 10 times the peak
    assert result.failures == {}
    assert result.peak_gflops == 2.0
    assert setup.measurer.measured.count(setup.measurer.measured[0]) == 1


def test_slow_outliers_are_no_better_than_slow_candidates() -> None:
    _, truth = play(lambda text, n: 1.0)
    _, result = play(lambda text, n: 1000.0 if text[0] == "0" else 1.0)
    assert result.failures == {}
    assert result.best_s == pytest.approx(truth.best_s, rel=0.2)
