"""Every class of failure on an OpenCL device, each followed by a good candidate that must still measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autosched.codegen.c.source import GpuSource
from autosched.measure import FAULTS, Failure, FinalMeasurement, Measurement, Measurer
from tests.measure.gpu_kernels import STAGED, gpu_job, gpu_source, opencl_target
from tests.measure.kernels import add_problem

FAULTY: dict[str, tuple[GpuSource, str, str]] = {
    "wrong sign": (gpu_source(op="-"), "wrong_result", "1024 of 1024 elements are wrong (data set normal)"),
    "part not written": (gpu_source(n=1000), "wrong_result", "24 were never written"),
    "shifted": (gpu_source(shift=1), "out_of_bounds", "output C: 4 bytes after its end, the nearest 1 bytes away"),
    "writes before": (gpu_source(shift=-1), "out_of_bounds", "before its start"),
    "clobbers": (gpu_source(after="B[i] = 0.0f;", b_const=""), "clobbered_input", "input B, the first B[0, 0]"),
    "not C": (replace(gpu_source(), text="__kernel void add_0( {"), "build_error", "error"),
    "other entry": (replace(gpu_source("other"), text=gpu_source().text), "build_error", "other"),
    "too many threads": (gpu_source(block=1 << 16, blocks=1), "launch_refused", "WORK_GROUP"),
    "endless": (gpu_source(before="while (A[0] < 1e30f) { C[0] += 1.0f; }"), "hang", "deadline"),
    "scratch too large": (gpu_source(workspace=(("T", 1 << 45),)), "out_of_memory", "workspace T 35184.37 GB"),
    "segfault": (gpu_source(after="C[i + 400000000000L] = 1.0f;"), "crash", "SIGSEGV"),
    "reads scratch before writing it": (
        replace(STAGED, launches=STAGED.launches[1:]),
        "wrong_result",
        "uninitialised scratch",
    ),
}


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    target = opencl_target()
    directory = tmp_path_factory.mktemp("problem")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with Measurer(add_problem(directory), target, 1, floor_s=0.005) as measurer:
            yield measurer


def check_good(measurer: Measurer, key: str) -> None:
    (result,) = measurer.measure([gpu_job(key)])
    assert isinstance(result, Measurement), result
    assert result.key == key
    assert 0 < min(result.samples) <= result.seconds < 1
    assert len(result.samples) >= 5


@pytest.mark.parametrize("name", FAULTY)
def test_fault_is_classified_and_survived(measurer: Measurer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, kind, words = FAULTY[name]
    if kind == "crash" and measurer._crew._target.gpu.warp != 8:
        pytest.skip("only a processor's OpenCL ends the process at an illegal address")
    with monkeypatch.context() as patch:
        if kind == "hang":
            patch.setattr(measurer, "_first_deadline_s", 1.5)
            patch.setattr(measurer, "_launch_build_s", 0.0)
        (result,) = measurer.measure([gpu_job(name, source)])
    assert isinstance(result, Failure)
    assert (result.key, result.kind) == (name, kind), result.message
    assert words in result.message
    assert kind in FAULTS
    check_good(measurer, f"good after {name}")


def test_several_launches_and_scratch(measurer: Measurer) -> None:
    (result,) = measurer.measure([gpu_job("staged", STAGED)])
    assert isinstance(result, Measurement), result


def test_slow_candidate_is_stopped_early(measurer: Measurer) -> None:
    (result,) = measurer.measure([gpu_job("slow")], best_s=1e-12)
    assert isinstance(result, Measurement)
    assert result.early_stopped
    assert len(result.samples) == 2


def test_final_compares_survivors(measurer: Measurer) -> None:
    wrong = gpu_job("final wrong", gpu_source(op="-"))
    jobs = [gpu_job("final 1"), wrong, gpu_job("final 2", STAGED)]
    results = measurer.final(jobs, rounds=6, sample_s=0.001)
    assert [r.key for r in results] == [j.key for j in jobs]
    assert [type(r) for r in results] == [FinalMeasurement, Failure, FinalMeasurement]
    for result in (results[0], results[2]):
        assert isinstance(result, FinalMeasurement)
        assert len(result.samples) == 6
        assert result.ci[0] <= result.seconds <= result.ci[1]
