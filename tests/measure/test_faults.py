"""Every class of failure, on the processor and on an OpenCL device, each followed by a good candidate that must still
measure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autosched.codegen.c.source import GpuSource
from autosched.codegen.source import KernelSource
from autosched.errors import UsageError
from autosched.measure import FAULTS, Failure, FinalMeasurement, Measurement, Measurer, WorkerPool
from autosched.measure.results import Job
from autosched.target import Target, parse_target
from tests.measure.gpu_kernels import STAGED, gpu_job, gpu_source, opencl_target
from tests.measure.kernels import add_problem, job, source

COUNTER = """@count = internal global i32 0"""
LATE = """
  %k = load i32, ptr @count
  %k1 = add i32 %k, 1
  store i32 %k1, ptr @count
  %late = icmp sgt i32 %k1, 2
  %c0 = load float, ptr %c
  %w = select i1 %late, float 1024.0, float %c0
  store float %w, ptr %c
"""
FOREVER = "br label %forever\nforever:\n  br label %forever\ndead:"
RAISE = "declare i32 @raise(i32)"

FAULTY: dict[str, tuple[KernelSource, str, str]] = {
    "wrong sign": (source(op="sub"), "wrong_result", "1024 of 1024 elements are wrong (data set normal)"),
    "part not written": (source(n=1000), "wrong_result", "24 were never written"),
    "start not written": (source(start=1), "wrong_result", "C[0, 0] is nan"),
    "reads scratch before writing it": (
        source(after="%w = load float, ptr %ws\n  store float %w, ptr %c", workspace=64),
        "wrong_result",
        "uninitialised scratch",
    ),
    "writes behind": (source(n=1025), "out_of_bounds", "output C: "),
    "writes before": (source(start=-1), "out_of_bounds", "before its start"),
    "writes behind scratch": (
        source(after="%w = getelementptr i8, ptr %ws, i64 100\n  store i8 0, ptr %w", workspace=100),
        "out_of_bounds",
        "the workspace: 1 bytes after its end, the nearest 1 bytes away",
    ),
    "clobbers": (source(body="store float 0.0, ptr %bi"), "clobbered_input", "input B, the first B[0, 0]"),
    "segfault": (source(after="store volatile i32 0, ptr inttoptr (i64 8 to ptr)"), "crash", "SIGSEGV"),
    "abort": (source(globals="declare void @abort()", after="call void @abort()"), "crash", "SIGABRT"),
    "illegal": (source(globals="declare void @llvm.trap()", after="call void @llvm.trap()"), "crash", "SIG"),
    "bus": (source(globals=RAISE, after="call i32 @raise(i32 7)"), "crash", "SIGBUS"),
    "exits": (source(globals="declare void @_exit(i32)", after="call void @_exit(i32 0)"), "crash", "exit code 0"),
    "status": (source(status="3"), "crash", "status 3"),
    "endless": (source(after=FOREVER), "hang", "deadline"),
    "stops itself": (source(globals=RAISE, after="call i32 @raise(i32 19)"), "killed", "stopped"),
    "kills itself": (source(globals=RAISE, after="call i32 @raise(i32 9)"), "killed", "SIGKILL"),
    "scratch too large": (source(workspace=1 << 45), "out_of_memory", "limit"),
    "scratch beyond all": (source(workspace=1 << 62), "out_of_memory", "limit"),
    "not IR": (KernelSource("bad", "define i32 @bad(", 0, 1), "build_error", "expected"),
    "other entry": (KernelSource("other", source().ir, 0, 1), "build_error", "other"),
    "undefined symbol": (
        source(globals="declare void @nowhere()", after="call void @nowhere()"),
        "build_error",
        "materialize",
    ),
    "compiler aborts": (
        source(globals="declare void @llvm.nvvm.barrier0()", after="call void @llvm.nvvm.barrier0()"),
        "build_error",
        "SIGABRT",
    ),
    "wrong when repeated": (source(globals=COUNTER, after=LATE), "unstable_result", "correct before timing"),
}


GPU_FAULTY: dict[str, tuple[GpuSource, str, str]] = {
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


@dataclass(frozen=True)
class Place:
    """Where kernels run, and jobs for it: of the good kernel, of another one, and of a wrong one."""

    measurer: Measurer
    job: Callable[..., Job]
    another: KernelSource | GpuSource
    wrong: KernelSource | GpuSource

    def check_good(self, key: str) -> None:
        (result,) = self.measurer.measure([self.job(key)])
        assert isinstance(result, Measurement), result
        assert result.key == key
        assert 0 < min(result.samples) <= result.seconds < 1
        assert len(result.samples) >= 5


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with measuring(tmp_path_factory, parse_target("cpu")) as measurer:
        yield Place(measurer, job, source(name="another"), FAULTY["segfault"][0])


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with measuring(tmp_path_factory, opencl_target()) as measurer:
        yield Place(measurer, gpu_job, STAGED, gpu_source(op="-"))


@contextmanager
def measuring(tmp_path_factory: pytest.TempPathFactory, target: Target) -> Iterator[Measurer]:
    directory = tmp_path_factory.mktemp("problem")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with Measurer(add_problem(directory), WorkerPool(target, 1), floor_s=0.005) as measurer:
            yield measurer


@pytest.fixture(params=["cpu", "gpu"])
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(request.param)


@pytest.fixture
def measurer(cpu: Place) -> Measurer:
    return cpu.measurer


@pytest.mark.parametrize(
    ("kind_of_place", "name"), [*(("cpu", name) for name in FAULTY), *(("gpu", name) for name in GPU_FAULTY)]
)
def test_fault_is_classified_and_survived(
    request: pytest.FixtureRequest, kind_of_place: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Place = request.getfixturevalue(kind_of_place)
    kernel, kind, words = (FAULTY if kind_of_place == "cpu" else GPU_FAULTY)[name]
    gpu = place.measurer._processes.target.gpu
    if kind == "crash" and gpu is not None and gpu.warp != 8:
        pytest.skip("only a processor's OpenCL ends the process at an illegal address")
    with monkeypatch.context() as patch:
        if words in ("deadline", "stopped"):
            patch.setattr(place.measurer, "_first_deadline_s", 0.5 if gpu is None else 1.5)
            patch.setattr(place.measurer._worker_pool, "launch_build_s", 0.0)
        (result,) = place.measurer.measure([Job(name, kernel)])
    assert isinstance(result, Failure)
    assert (result.key, result.kind) == (name, kind), result.message
    assert words in result.message
    assert kind in FAULTS
    place.check_good(f"good after {name}")


@pytest.mark.parametrize(("correct", "kind"), [(2, "unstable_result"), (3, None)])
def test_a_single_long_call_is_its_own_check(cpu: Place, correct: int, kind: str | None) -> None:
    """Two launches before timing, and the one that is timed: what that leaves is looked at, and there is no fourth."""
    late = LATE.replace("%k1, 2", f"%k1, {correct}")
    slow = source(globals=f"{COUNTER}\ndeclare i32 @usleep(i32)", after=f"{late}\n  call i32 @usleep(i32 60000)")
    (result,) = cpu.measurer.measure([Job(f"slow {correct}", slow)], best_s=0.02)
    if kind is None:
        assert isinstance(result, Measurement), result
        assert len(result.samples) == 1
        assert result.early_stopped
    else:
        assert isinstance(result, Failure)
        assert result.kind == kind
    cpu.check_good(f"good after slow {correct}")


def test_writing_to_standard_output_does_no_harm(measurer: Measurer) -> None:
    text = '@text = internal constant [8 x i8] c"\\FF\\FF\\FF\\7Fxyz\\0A"\ndeclare i64 @write(i32, ptr, i64)'
    chatty = source(globals=text, after="call i64 @write(i32 1, ptr @text, i64 8)")
    (result,) = measurer.measure([Job("chatty", chatty)])
    assert isinstance(result, Measurement), result


def test_batch_answers_in_order_and_remembers_build_failures(measurer: Measurer) -> None:
    bad = Job("batch bad", KernelSource("bad", "nonsense", 0, 1))
    jobs = [Job("batch 1", source()), bad, Job("batch 2", source())]
    assert set(measurer.build(jobs)) == {"batch bad"}
    objects = {path: path.stat().st_mtime_ns for path in measurer._objects.values() if path.exists()}
    results = list(measurer.measure(jobs))
    assert [r.key for r in results] == [j.key for j in jobs]
    assert [type(r) for r in results] == [Measurement, Failure, Measurement]
    assert objects == {path: path.stat().st_mtime_ns for path in measurer._objects.values() if path.exists()}
    assert measurer.build_s > 0
    assert measurer.check_s > 0
    assert measurer.measure_s > 0


def test_a_text_is_compiled_once(measurer: Measurer) -> None:
    bad = KernelSource("twice", "twice nonsense", 0, 1)
    jobs = [Job(f"twin {n}", source(name="twin")) for n in range(3)]
    failed = [Job(f"bad twin {n}", bad) for n in range(2)]
    before = len(list(measurer._processes.directory.glob("*.o")))
    results = list(measurer.measure([*jobs, *failed]))
    assert len(list(measurer._processes.directory.glob("*.o"))) == before + 1
    assert [r.key for r in results] == [j.key for j in (*jobs, *failed)]
    assert [type(r) for r in results] == [Measurement] * 3 + [Failure] * 2
    (later,) = measurer.measure([Job("later twin", source(name="twin"))])
    assert isinstance(later, Measurement)
    too_many = KernelSource("many", "", 0, 2)
    with pytest.raises(UsageError):
        measurer.build([Job("left", source(name="left")), Job("many", too_many)])
    (again,) = measurer.measure([Job("left again", source(name="left"))])
    assert isinstance(again, Measurement)


def test_jobs_are_taken_while_others_compile(measurer: Measurer) -> None:
    asked: list[int] = []
    n_jobs = 2 * measurer._processes.n + 3  # more than may wait or compile at a time

    def jobs() -> Iterator[Job]:
        for n in range(n_jobs):
            asked.append(len(list(written())))
            yield Job(f"stream {n}", source(name=f"stream{n}"))

    def written() -> Iterator[Path]:
        return measurer._processes.directory.glob("*.o")

    before = len(list(written()))
    results = list(measurer.measure(jobs()))
    assert [r.key for r in results] == [f"stream {n}" for n in range(n_jobs)]
    assert all(isinstance(r, Measurement) for r in results)
    assert asked[-1] > before  # the last one was made when an earlier one was compiled already


def test_several_launches_and_scratch(gpu: Place) -> None:
    (result,) = gpu.measurer.measure([gpu_job("staged", STAGED)])
    assert isinstance(result, Measurement), result


def test_slow_candidate_is_stopped_early(place: Place) -> None:
    (result,) = place.measurer.measure([place.job("slow")], best_s=1e-12)
    assert isinstance(result, Measurement)
    assert result.early_stopped
    assert len(result.samples) == 2


def test_final_compares_survivors_of_a_fault(place: Place) -> None:
    faulty = place.job("final fault", place.wrong)
    jobs = [place.job("final 1"), faulty, place.job("final 2", place.another)]
    results = place.measurer.final(jobs, rounds=7, sample_s=0.001)
    assert [r.key for r in results] == [j.key for j in jobs]
    assert [type(r) for r in results] == [FinalMeasurement, Failure, FinalMeasurement]
    for result in (results[0], results[2]):
        assert len(result.samples) == 7
        assert result.ci[0] <= result.seconds <= result.ci[1]
    assert results[1].kind == ("crash" if place.job is job else "wrong_result")


def test_killed_runner_is_replaced_and_nobody_charged(cpu: Place) -> None:
    cpu.check_good("before the kill")
    runner = cpu.measurer._runners._current
    assert runner is not None
    os.kill(runner.pid, 9)
    time.sleep(0.05)
    cpu.check_good("after the kill")


def test_a_spare_that_dies_while_it_starts_is_forgotten(cpu: Place) -> None:
    cpu.check_good("before the spare")
    runners = cpu.measurer._runners
    spare = runners._spare = cpu.measurer._processes.spawn("run")
    os.kill(spare.pid, 9)
    for round in ("first", "second"):  # once its pipes were closed, the second look found descriptors of nobody
        cpu.check_good(f"{round} after the spare")
    assert runners._spare is not spare
    assert not spare.waiting
