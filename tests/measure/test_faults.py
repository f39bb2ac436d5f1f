"""Every class of failure, each followed by a good candidate that must still measure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosched.codegen.source import KernelSource
from autosched.errors import UsageError
from autosched.measure import FAULTS, Failure, FinalMeasurement, Measurement, Measurer
from autosched.measure.results import Job
from autosched.target import parse_target
from tests.measure.kernels import add_problem, source

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
    "stops itself": (source(globals=RAISE, after="call i32 @raise(i32 19)"), "hang", "deadline"),
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


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    directory = tmp_path_factory.mktemp("problem")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        problem = add_problem(directory)
        with Measurer(problem, parse_target("cpu"), 1, floor_s=0.005) as measurer:
            yield measurer


def check_good(measurer: Measurer, key: str) -> None:
    (result,) = measurer.measure([Job(key, source())])
    assert isinstance(result, Measurement), result
    assert result.key == key
    assert 0 < min(result.samples) <= result.seconds < 1
    assert len(result.samples) >= 5


@pytest.mark.parametrize("name", FAULTY)
def test_fault_is_classified_and_survived(measurer: Measurer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, kind, words = FAULTY[name]
    with monkeypatch.context() as patch:
        if kind == "hang":
            patch.setattr(measurer, "_first_deadline_s", 0.5)
        (result,) = measurer.measure([Job(name, kernel)])
    assert isinstance(result, Failure)
    assert (result.key, result.kind) == (name, kind), result.message
    assert words in result.message
    assert kind in FAULTS
    check_good(measurer, f"good after {name}")


@pytest.mark.parametrize(("correct", "kind"), [(2, "unstable_result"), (3, None)])
def test_a_single_long_call_is_its_own_check(measurer: Measurer, correct: int, kind: str | None) -> None:
    """Two launches before timing, and the one that is timed: what that leaves is looked at, and there is no fourth."""
    late = LATE.replace("%k1, 2", f"%k1, {correct}")
    slow = source(globals=f"{COUNTER}\ndeclare i32 @usleep(i32)", after=f"{late}\n  call i32 @usleep(i32 60000)")
    (result,) = measurer.measure([Job(f"slow {correct}", slow)], best_s=0.02)
    if kind is None:
        assert isinstance(result, Measurement), result
        assert len(result.samples) == 1
        assert result.early_stopped
    else:
        assert isinstance(result, Failure)
        assert result.kind == kind
    check_good(measurer, f"good after slow {correct}")


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
    before = len(list(measurer._crew.directory.glob("*.o")))
    results = list(measurer.measure([*jobs, *failed]))
    assert len(list(measurer._crew.directory.glob("*.o"))) == before + 1
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
    n_jobs = 2 * measurer._builders._n + 3  # more than may wait or compile at a time

    def jobs() -> Iterator[Job]:
        for n in range(n_jobs):
            asked.append(len(list(written())))
            yield Job(f"stream {n}", source(name=f"stream{n}"))

    def written() -> Iterator[Path]:
        return measurer._crew.directory.glob("*.o")

    before = len(list(written()))
    results = list(measurer.measure(jobs()))
    assert [r.key for r in results] == [f"stream {n}" for n in range(n_jobs)]
    assert all(isinstance(r, Measurement) for r in results)
    assert asked[-1] > before  # the last one was made when an earlier one was compiled already


def test_slow_candidate_is_stopped_early(measurer: Measurer) -> None:
    (result,) = measurer.measure([Job("slow", source())], best_s=1e-9)
    assert isinstance(result, Measurement)
    assert result.early_stopped
    assert len(result.samples) == 2


def test_final_compares_survivors_of_a_fault(measurer: Measurer) -> None:
    crash = Job("final crash", FAULTY["segfault"][0])
    jobs = [Job("final 1", source()), crash, Job("final 2", source())]
    results = measurer.final(jobs, rounds=7, sample_s=0.001)
    assert [r.key for r in results] == [j.key for j in jobs]
    good = [r for r in results if isinstance(r, FinalMeasurement)]
    assert [r.key for r in good] == ["final 1", "final 2"]
    for result in good:
        assert len(result.samples) == 7
        assert result.ci[0] <= result.seconds <= result.ci[1]
    assert isinstance(results[1], Failure)
    assert results[1].kind == "crash"


def test_killed_runner_is_replaced_and_nobody_charged(measurer: Measurer) -> None:
    check_good(measurer, "before the kill")
    runner = measurer._runners._current
    assert runner is not None
    os.kill(runner.pid, 9)
    time.sleep(0.05)
    check_good(measurer, "after the kill")


def test_a_spare_that_dies_while_it_starts_is_forgotten(measurer: Measurer) -> None:
    check_good(measurer, "before the spare")
    spare = measurer._runners._spare = measurer._crew.spawn("run")
    os.kill(spare.pid, 9)
    for round in ("first", "second"):  # once its pipes were closed, the second look found descriptors of nobody
        check_good(measurer, f"{round} after the spare")
    assert measurer._runners._spare is not spare
    assert not spare.waiting
