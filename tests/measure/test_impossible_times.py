"""A measurer whose clock says what cannot be: it asks once more, and then answers with a failure of its own class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from autosched.measure import Failure, FinalMeasurement, Measurement, Measurer, WorkerPool
from autosched.measure.argument_sets import ArgumentSets
from autosched.measure.check import CandidateError
from autosched.measure.protocol import Message, Samples
from autosched.measure.runner import Timer
from autosched.measure.timing import BAD_STATUS, Clock, take_samples
from autosched.target import parse_target
from tests.measure.kernels import add_problem, job

LEAST_S = 1e-8  # of 1024 additions


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        problem = add_problem(tmp_path_factory.mktemp("problem"))
        with Measurer(problem, WorkerPool(parse_target("cpu"), 1), floor_s=0.005) as made:
            yield made


def lying(measurer: Measurer, change: Callable[[float], float], times: int) -> Callable[..., Message]:
    """`Measurer._timed`, of which the first `times` answers have one sample that the clock got wrong."""
    timed, left = measurer._timed, [True] * times

    def call(*arguments: Any) -> Message:
        reply = timed(*arguments)
        if isinstance(reply, Samples) and left:
            left.pop()
            return replace(reply, samples=(*reply.samples[:-1], change(reply.samples[-1])))
        return reply

    return call


FAULTS: Sequence[Callable[[float], float]] = (lambda s: 0.0, lambda s: -s, lambda s: -3600.0, lambda s: 1e-4 * s)


@pytest.mark.parametrize("change", FAULTS)
def test_once_is_measured_again_and_twice_is_a_failure(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch, change: Callable[[float], float]
) -> None:
    for times, kind in ((1, Measurement), (2, Failure)):
        with monkeypatch.context() as patch:
            patch.setattr(measurer, "_timed", lying(measurer, change, times))
            (result,) = measurer.measure([job(f"{change(1.0)} {times}")], None, lambda s: s >= LEAST_S)
        assert isinstance(result, kind), result
        if isinstance(result, Failure):
            assert result.kind == "impossible_time"
            assert "less than any kernel can take here" in result.message
        else:
            assert min(result.samples) >= LEAST_S
    (good,) = measurer.measure([job(f"{change(1.0)} good")], None, lambda s: s >= LEAST_S)
    assert isinstance(good, Measurement)


def test_an_impossible_time_stops_nobody_else_early(measurer: Measurer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the fastest known, against which all others have lost."""
    monkeypatch.setattr(measurer, "_timed", lying(measurer, lambda s: 1e-4 * s, 2))
    results = list(measurer.measure([job("first"), job("second")], None, lambda s: s >= LEAST_S))
    assert [type(result) for result in results] == [Failure, Measurement]
    assert not results[1].early_stopped


@pytest.mark.parametrize("change", FAULTS[:3])
def test_a_comparison_takes_the_sample_again(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch, change: Callable[[float], float]
) -> None:
    monkeypatch.setattr(measurer, "_timed", lying(measurer, change, 1))
    results = measurer.final([job("one"), job("two")], rounds=6, sample_s=0.001)
    for result in results:
        assert isinstance(result, FinalMeasurement), result
        assert len(result.samples) == 6
        assert 0.0 < result.ci[0] <= result.seconds <= result.ci[1]


def scripted(seconds: Sequence[float]) -> Clock:
    """Each sample has the next of `seconds` for a call."""
    following = iter(seconds)
    return lambda reps: reps * next(following)


def test_one_outlier_or_a_clock_of_two_speeds_do_not_hide_the_time() -> None:
    for n in range(8):
        outlier = scripted([1.0 if i == n else 1e-3 for i in range(99)])
        samples, _ = take_samples(outlier, 0.05, None)
        assert min(samples) == pytest.approx(1e-3)
    samples, early = take_samples(scripted([1e-3, 2e-3] * 50), 0.05, 1.2e-3)
    assert min(samples) == pytest.approx(1e-3)
    assert not early
    assert len(samples) >= 20


@pytest.mark.parametrize(
    ("nanoseconds", "kind"), [(BAD_STATUS, "crash"), (-1, "impossible_time"), (-(10**18), "impossible_time")]
)
def test_a_clock_that_went_back_is_no_status(nanoseconds: int, kind: str) -> None:
    timer = Timer(parse_target("cpu"))
    timer._run = lambda *_: nanoseconds
    with pytest.raises(CandidateError) as info:
        timer.clock(0, ArgumentSets((), None, 0), 0, 1)(10)
    assert info.value.fault == kind
