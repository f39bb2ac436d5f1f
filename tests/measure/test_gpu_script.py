"""Faults that only a GPU has, played by the scripted device: each is recorded with its class and the next one measures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosched.codegen.c.source import GpuSource, Launch, TensorMap
from autosched.errors import DeviceError
from autosched.measure import FAULTS, Failure, FinalMeasurement, Job, Measurement, Measurer, WorkerPool, make_problem
from autosched.target import parse_target
from autosched.te.operators.registry import resolve

SPEC = {"name": "matmul", "args": {"M": 16, "N": 16, "K": 16}, "dtype": "float32"}


def job(number: int) -> Job:
    """Different texts, so that nothing comes from the cache."""
    names = [t.name for t in resolve(SPEC).inputs], [t.name for t in resolve(SPEC).outputs]
    launch = Launch("k_0", (1, 1, 1), (16, 16, 1), (*names[0], *names[1]), 0)
    return Job(f"job {number}", GpuSource("k", "cuda", f"// {number}", (launch,), (*names[0],), (*names[1],), ()))


@contextmanager
def scripted(directory: Path, events: list[dict[str, Any]], **options: Any) -> Iterator[Measurer]:
    script = directory / "script.json"
    script.write_text(json.dumps({"spec": SPEC, "events": events, **options}))
    data = directory / "data"
    data.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        patch.setenv("AUTOSCHED_DEVICE_SCRIPT", str(script))
        problem = make_problem(resolve(SPEC), data, 0)
        with Measurer(problem, WorkerPool(parse_target("cuda"), 1, 1), floor_s=0.0, first_deadline_s=1.0) as measurer:
            yield measurer


@pytest.mark.parametrize("kind", ["illegal_address", "wrong_result"])
def test_fault_costs_its_candidate_only(tmp_path: Path, kind: str) -> None:
    with scripted(tmp_path, [{"at": 60, "what": kind}]) as measurer:
        results = list(measurer.measure([job(n) for n in range(8)]))
    failures = [r for r in results if isinstance(r, Failure)]
    assert [r.key for r in results] == [f"job {n}" for n in range(8)]
    allowed = (kind, "unstable_result") if kind == "wrong_result" else (kind,)
    assert len(failures) <= 1
    if failures or kind != "wrong_result":  # a wrong result in the timing loop is overwritten by the next launch
        assert failures[0].kind in allowed
        assert failures[0].kind in FAULTS


def test_a_map_that_no_driver_makes_is_a_launch_refused(tmp_path: Path) -> None:
    """What the kernel takes for its first input is a map of it."""
    plain = job(0).source
    assert isinstance(plain, GpuSource)
    name, *others = plain.launches[0].buffers
    jobs = []
    for box in ((16, 16), (16, 300), (16, 8)):
        mapped = TensorMap("map", name, "float32", (16, 16), (64,), box)
        launch = replace(plain.launches[0], arguments=(mapped, *others))
        jobs.append(Job(str(box), replace(plain, text=f"// {box}", launches=(launch,))))
    with scripted(tmp_path, []) as measurer:
        first, second, third = measurer.measure(jobs)
    assert isinstance(first, Measurement)
    assert isinstance(second, Failure)
    assert (second.kind, "boxes have 1 to 256 elements" in second.message) == ("launch_refused", True)
    assert isinstance(third, Measurement)


def test_several_faults_in_one_search(tmp_path: Path) -> None:
    kinds = ["illegal_address", "hang", "device_lost", "out_of_memory", "crash", "misaligned_address"]
    kinds += ["launch_failure", "launch_refused"]
    events = [{"at": 15 * (n + 1), "what": kind} for n, kind in enumerate(kinds)]  # losers stop after a few launches
    with scripted(tmp_path, events) as measurer:
        results = list(measurer.measure([job(n) for n in range(24)]))
        best = [job(n) for n, r in enumerate(results) if isinstance(r, Measurement)][:3]
        final = measurer.final(best, rounds=6, sample_s=1e-4)
    assert {r.kind for r in results if isinstance(r, Failure)} <= set(kinds)
    assert len([r for r in results if isinstance(r, Measurement)]) >= 15
    assert all(isinstance(r, FinalMeasurement) for r in final)


def test_compilers_faults(tmp_path: Path) -> None:
    events = [
        {"build": 2, "what": "spills"},
        {"build": 3, "what": "build_error"},
        {"build": 4, "what": "crash"},
        {"build": 5, "what": "hang"},
        {"build": 6, "what": "serialised"},
    ]
    with scripted(tmp_path, events) as measurer:
        measurer._processes._deadline_s = 2.0
        results = list(measurer.measure([job(n) for n in range(7)]))
        assert measurer.resources["job 0"][0].registers == 32
    kinds = [r.kind if isinstance(r, Failure) else None for r in results]
    assert sorted(k for k in kinds if k) == ["build_error", "build_error", "build_timeout", "serialised", "spills"]
    assert kinds.count(None) == 2


def test_device_that_stays_lost_ends_the_search(tmp_path: Path) -> None:
    with scripted(tmp_path, [{"at": 40, "what": "device_lost", "times": 10**9}]) as measurer:
        answers = measurer.measure([job(n) for n in range(8)])
        with pytest.raises(DeviceError, match="device_lost at this launch"):
            list(answers)


def test_problem_beyond_the_memory_is_refused_with_sizes(tmp_path: Path) -> None:
    with (
        scripted(tmp_path, [], memory=4000) as measurer,
        pytest.raises(DeviceError, match=r"2 sets of inputs 0\.004 MB, outputs 0\.001 MB.*0\.004 MB of scripted"),
    ):
        list(measurer.measure([job(0)]))


def test_workspace_beyond_the_memory_is_refused_with_sizes(tmp_path: Path) -> None:
    with scripted(tmp_path, [], memory=10**6) as measurer:
        large = replace(job(1).source, workspace=(("T", 2 * 10**6),))
        refused, measured = measurer.measure([Job("large", large), job(2)])
    assert isinstance(refused, Failure)
    assert refused.kind == "out_of_memory"
    assert "workspace T 2.002 MB" in refused.message
    assert isinstance(measured, Measurement)
