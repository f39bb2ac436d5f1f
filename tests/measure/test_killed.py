"""Workers that somebody else kills or stops: their candidates are measured again, and charged with nothing at once."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autosched.errors import DeviceError, UsageError
from autosched.measure import Failure, FinalMeasurement, Measurement, Measurer, WorkerPool
from autosched.measure.process import Worker
from autosched.target import parse_target
from tests.measure.kernels import add_problem, job, source

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSTOP)


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        problem = add_problem(tmp_path_factory.mktemp("problem"))
        with Measurer(problem, WorkerPool(parse_target("cpu"), 1), floor_s=0.005) as made:
            made._first_deadline_s = made._processes._deadline_s = 1.0  # a stopped worker is found out by its deadline
            yield made


def killing(function: Callable[..., Any], which: int, number: int, times: int) -> Callable[..., Any]:
    """`function`, whose argument `which` is a worker: it gets the signal once its request is on its way."""
    left = [number] * times

    def call(*arguments: Any) -> Any:
        worker: Worker = arguments[which]
        if left:
            os.kill(worker.pid, left.pop())
        return function(*arguments)

    return call


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("step", ["_hold", "_timed"])
def test_a_killed_runner_costs_its_candidate_nothing(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, step: str
) -> None:
    monkeypatch.setattr(measurer, step, killing(getattr(measurer, step), 0, number, 1))
    (result,) = measurer.measure([job(f"{number.name} {step}")])
    assert isinstance(result, Measurement), result


@pytest.mark.parametrize("number", SIGNALS)
def test_a_killed_builder_costs_its_candidate_nothing(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    processes = measurer._processes
    monkeypatch.setattr(processes, "_assign", killing(processes._assign, 0, number, 1))
    failures = measurer.build([job(f"{number.name} built {n}", source(f"built{number}{n}")) for n in range(3)])
    assert failures == {}


def test_twice_is_recorded_and_says_so(measurer: Measurer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(measurer, "_timed", killing(measurer._timed, 0, signal.SIGKILL, 2))
        (result,) = measurer.measure([job("twice")])
    assert isinstance(result, Failure)
    assert (result.kind, result.message) == (
        "killed", "the worker was killed from outside by SIGKILL, perhaps by the system for lack of memory",
    )  # fmt: skip
    processes = measurer._processes
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_assign", killing(processes._assign, 0, signal.SIGTERM, 2))
        failures = measurer.build([job("built twice", source("built_twice"))])
    assert [(f.key, f.kind) for f in failures.values()] == [("built twice", "killed")]
    (good,) = measurer.measure([job("good after twice", source("good"))])
    assert isinstance(good, Measurement)


def test_a_comparison_goes_on_in_another_runner(measurer: Measurer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurer, "_timed", killing(measurer._timed, 0, signal.SIGKILL, 1))
    results = measurer.final([job("final 1"), job("final 2", source("other"))], rounds=6, sample_s=0.001)
    assert [type(result) for result in results] == [FinalMeasurement] * 2


def test_starting_builders_that_are_killed_now_and_then_are_no_fault_of_the_machine(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one after the other without any that started means that none will."""
    processes = measurer._processes
    spawn = processes.spawn

    def unlucky(role: str) -> Worker:
        worker = spawn(role)
        os.kill(worker.pid, signal.SIGKILL)
        return worker

    for n in range(4):
        for worker in processes._idle:
            worker.kill()
        monkeypatch.setattr(
            processes, "spawn", lambda role: (monkeypatch.setattr(processes, "spawn", spawn), unlucky(role))[1]
        )
        assert measurer.build([job(f"unlucky {n}", source(f"unlucky{n}"))]) == {}
    for worker in processes._idle:
        worker.kill()
    monkeypatch.setattr(processes, "spawn", unlucky)
    with pytest.raises(DeviceError, match="build workers do not start"):
        measurer.build([job("never", source("never"))])


@pytest.mark.parametrize("step", ["build", "measure"])
def test_a_removed_directory_is_no_fault_of_a_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "problem").mkdir()
    with Measurer(add_problem(tmp_path / "problem"), WorkerPool(parse_target("cpu"), 1), floor_s=0.005) as measurer:
        assert measurer.build([job("first")]) == {}
        shutil.rmtree(measurer._processes.directory)
        with pytest.raises(UsageError, match="was removed while worker processes needed it"):
            measurer.build([job("second", source("second"))]) if step == "build" else [
                *measurer.measure([job("first")])
            ]
