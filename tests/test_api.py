"""The library's verbs, with real measurement and records, over a search space of hand-written kernels."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.codegen.source import KernelSource
from autosched.errors import (
    AutoschedError,
    DeviceError,
    NoValidCandidate,
    RecordWarning,
    ScheduleError,
    StoreError,
    UsageError,
)
from autosched.kernel.task import nearest_shapes
from autosched.measure import Failure, Measurer
from autosched.store import Database, Finding, TargetRow
from autosched.store import WorkloadRow as WorkloadRow
from autosched.te import Tensor
from autosched.tuner.policy import SearchSetup
from autosched.tuner.workload_spec import WorkloadSpec
from search_spaces.space import Sketch, SketchParam
from tests.helpers import python
from tests.tuner.fakes import FakeModel

M, N = 32, 32


@at.workload
def added(M: int = M, N: int = N) -> Tensor:
    A, B = te.placeholder((M, N), "float32", name="A"), te.placeholder((M, N), "float32", name="B")
    result: Tensor = te.compute((M, N), lambda i, j: A[i, j] + B[i, j], name="C")
    return result


IR = """
define i32 @add(ptr %args, ptr %ws, i64 %threads) {{
entry:
  %a = load ptr, ptr %args
  %b.at = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %b.at
  %c.at = getelementptr ptr, ptr %args, i64 2
  %c = load ptr, ptr %c.at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %ai = getelementptr float, ptr %a, i64 %i
  %bi = getelementptr float, ptr %b, i64 %i
  %ci = getelementptr float, ptr %c, i64 %i
  %x = load {vector}, ptr %ai, align 4
  %y = load {vector}, ptr %bi, align 4
  %sum = {op} {vector} %x, %y
  store {vector} %sum, ptr %ci, align 4
  %next = add i64 %i, {lanes}
  %more = icmp slt i64 %next, {n}
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}}
"""


class Model(FakeModel):
    """Wide vectors are thought to be fast."""

    def analytic_latency(self, i: int, rows: Any) -> Any:
        return 1e-5 / rows[:, 0]


def source(nest: object, values: Mapping[str, int], target: object, threads: int, origin: object) -> KernelSource:
    """Vectors of `a` floats; `b` = 1 subtracts, which is wrong."""
    lanes, wrong = (values["a"], values["b"]) if values else (4, 0)
    ir = IR.format(vector=f"<{lanes} x float>", op="fsub" if wrong else "fadd", lanes=lanes, n=M * N)
    return KernelSource("add", ir, 0, threads)


@pytest.fixture(autouse=True)
def hand_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A search space of twelve kernels in place of the rules, the lowering and the code generator."""
    import autosched.codegen
    import autosched.lower
    import autosched.schedule
    import cost_model
    import search_spaces

    params = (SketchParam("a", (1, 2, 4, 8, 16, 32), "vector"), SketchParam("b", (0, 1), "switch"))
    state: Any = SimpleNamespace(steps=())
    rules = ModuleType("search_spaces.cpu")
    rules.RULES = ()  # type: ignore[attr-defined]
    rules.sketches = lambda dag, target, threads, rules: (Sketch("flat", state, params),)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "search_spaces.cpu", rules)
    monkeypatch.setattr(search_spaces, "cpu", rules, raising=False)  # set where something imported it before
    monkeypatch.setattr(autosched.lower, "lower", lambda state, name="kernel": state, raising=False)
    monkeypatch.setattr(cost_model, "CostModel", lambda *args, **kwargs: Model(()), raising=False)
    monkeypatch.setattr(autosched.codegen, "build_source", source, raising=False)
    monkeypatch.setattr(autosched.schedule, "replay", lambda dag, steps: SimpleNamespace(steps=json.loads(steps)))
    monkeypatch.setattr(autosched.schedule, "check_target", lambda *_: None)
    monkeypatch.setattr(
        autosched.schedule, "steps_to_json", lambda state, values: json.dumps([["Split", *values.values()]])
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_tune_then_everything_that_is_done_with_records(tmp_path: Path) -> None:
    db, out = tmp_path / "records.db", tmp_path / "out"
    result = at.tune(added, trials=12, threads=1, db=db, out_dir=out)
    assert (result.trials, result.failures, result.workload) == (12, {"wrong_result": 6}, "added")
    assert result.values["b"] == 0
    assert result.verified
    assert result.best_ci_s[0] <= result.best_s <= result.best_ci_s[1]
    assert result.peak_gflops is not None
    assert result.gflops == pytest.approx(M * N / result.best_s / 1e9)
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["record_id"] == result.record_id
    assert sorted(p.name for p in out.iterdir()) == [f"added-{rank}.ll" for rank in (1, 2, 3, 4)]

    (out / "added-1.ll").unlink()
    (out / "added-1.ll").mkdir()  # as a full disk, it shows only when everything has been measured
    with pytest.raises(UsageError, match=r"added-1.ll cannot be .*; the best .* us, is record \d+ all"):
        at.tune(added, trials=1, threads=1, db=tmp_path / "other.db", out_dir=out)

    A, B = (np.random.default_rng(s).standard_normal((M, N)).astype(np.float32) for s in (1, 2))
    np.testing.assert_array_equal(result.compile()(A, B), A + B)
    np.testing.assert_array_equal(at.compile(added, threads=1, db=db)(A, B), A + B)
    elsewhere = copy.deepcopy(result)  # as for another process
    assert elsewhere.to_json() == result.to_json()
    assert len(elsewhere.records) == 12
    with pytest.raises(ValueError, match=r"in this process: see autosched\.compile"):
        elsewhere.compile()

    assert result.record_id is not None
    (best,) = at.best(added, threads=1, db=db)
    assert best.id == result.record_id
    assert best.certified
    assert at.show(best.id, db, workload=added).startswith('["Split", ')
    assert "define i32 @add" in at.show(best.id, db, "llvm", workload=added)
    assert at.verify(best.id, db, workload=added).seconds > 0
    assert best.show(workload=added).startswith('["Split", ')
    assert best.show("llvm", workload=added) == at.show(best.id, db, "llvm", workload=added)
    assert best.verify(workload=added).seconds > 0
    assert best.export("c-header", tmp_path / "added.h", workload=added) == [tmp_path / "added.h"]
    with pytest.raises(UsageError, match="added"):
        at.show(best.id, db)
    with pytest.raises(UsageError, match="schedule for a processor"):
        at.show(best.id, db, "cuda", workload=added)
    with pytest.raises(UsageError, match="another workload"):
        at.show(best.id, db, workload=lambda M=1, N=1: te.compute((M, N), lambda i, j: i + j, name="X"))


def test_resuming_measures_nothing_twice(tmp_path: Path) -> None:
    db = tmp_path / "records.db"
    first = at.tune(added, trials=4, threads=1, db=db)
    again = at.tune(added, trials=12, threads=1, db=db, resume=True)
    assert (first.trials, again.trials, again.resumed) == (4, 12, 4)
    assert len(at.best(added, threads=1, db=db, n=100)) == 6
    whole = at.tune(added, trials=12, threads=1, db=db, resume=True)
    assert (whole.trials, whole.resumed) == (12, 12)


def test_a_new_shape_starts_from_what_was_fastest_for_the_nearest_others(tmp_path: Path) -> None:
    db = tmp_path / "records.db"
    for shape, lanes in ((32, 32), 2), ((8, 128), 4):  # the draft would begin with 32
        result = at.tune(added, shape=shape, trials=12, threads=1, db=db)
        with Database(db) as database:
            (record,) = (t.record_id for t in result.records if t.candidate.values == (lanes, 0))
            assert record is not None
            database.certify(record, 1e-12, (1e-12, 1e-12))

    def lanes_tried(shape: tuple[int, int], trials: int, db: Path = db) -> set[int]:
        return {t.candidate.values[0] for t in at.tune(added, shape=shape, trials=trials, threads=1, db=db).records}

    assert lanes_tried((16, 64), 4) >= {2, 4}
    assert not lanes_tried((16, 64), 4, tmp_path / "fresh.db") & {2, 4}
    assert lanes_tried((64, 16), 2) == {2, 32}


def test_other_shapes_are_those_of_the_same_operator() -> None:
    def known(name: str, spec: object) -> WorkloadRow:
        return WorkloadRow(name, "conv2d", json.dumps(spec))

    def spec(n: int, layout: str = "NHWC", **more: object) -> dict[str, object]:
        return {"name": "conv2d", "args": {"N": n, "layout": layout}, "dtype": "float32", **more}

    rows = [
        known("itself", spec(7)), known("far", spec(31)), known("near", spec(8)), known("nothing", spec(0)),
        known("layout", spec(7, "NCHW")), known("dtype", spec(7, dtype="int8")), known("weights", spec(7, weights=["W"])),
        known("more", {**spec(7), "args": {"N": 7, "M": 1, "layout": "NHWC"}}), known("other version", []),
    ]  # fmt: skip
    rows += [known("huge", spec(10**400)), WorkloadRow("deep", "conv2d", "[" * 20_000)]
    assert [w.hash for w in nearest_shapes(WorkloadSpec.of(spec(7)), rows)] == ["near", "far", "nothing"]


def test_records_whose_steps_no_longer_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewriting of the same workload may have changed since: the steps are refused, or mean another program."""
    import autosched.schedule

    db = tmp_path / "r.db"
    at.tune(added, trials=12, threads=1, db=db)
    stale = at.best(added, threads=1, db=db)[0]

    def replay(dag: object, steps: str) -> object:
        if steps == stale.steps:
            raise ScheduleError("stage C has no axis 'o'")
        return json.loads(steps)

    monkeypatch.setattr(autosched.schedule, "replay", replay)
    A, B = (np.random.default_rng(s).standard_normal((M, N)).astype(np.float32) for s in (1, 2))
    with pytest.warns(RecordWarning, match=rf"passed over \(record {stale.id}: does not fit .*no axis 'o'\)"):
        np.testing.assert_array_equal(at.compile(added, threads=1, db=db)(A, B), A + B)
    with pytest.raises(
        ScheduleError, match=rf"record {stale.id} does not fit .*no axis 'o'\): tune its workload again"
    ):
        at.show(stale.id, db, "ir", workload=added)

    monkeypatch.setattr(autosched.schedule, "steps_to_json", lambda state, values: '[["Unroll"]]')
    assert at.tune(added, trials=3, threads=1, db=db, resume=True).resumed == 0


def test_what_could_not_be_built_does_not_count_as_a_trial_of_a_resumed_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import autosched.codegen

    def broken(nest: object, values: Mapping[str, int], *device_and_origin: Any) -> KernelSource:
        if values["a"] > 4:
            raise IndexError("a fault of this version")
        return source(nest, values, *device_and_origin)

    db = tmp_path / "records.db"
    with monkeypatch.context() as patch:
        patch.setattr(autosched.codegen, "build_source", broken)
        first = at.tune(added, trials=12, threads=1, db=db)
    assert first.failures == {"build_error": 6, "wrong_result": 3}
    again = at.tune(added, trials=12, threads=1, db=db, resume=True)
    assert (again.trials, again.resumed, again.failures) == (12, 6, {"wrong_result": 6})


def test_a_candidate_whose_worker_was_killed_is_measured_by_a_resumed_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "records.db"
    with monkeypatch.context() as patch:
        patch.setattr(Measurer, "_measure_one", lambda self, job, *_: Failure(job.key, "killed", "by somebody"))
        with pytest.raises(NoValidCandidate, match=r"4 measured .* \(killed 4\)"):
            at.tune(added, trials=4, threads=1, db=db)
    again = at.tune(added, trials=4, threads=1, db=db, resume=True)
    assert (again.trials, again.resumed) == (4, 0)
    assert "killed" not in again.failures
    assert [record.seconds for record in at.best(added, threads=1, db=db)] == [again.best_s]


def test_compile_without_records_takes_the_analytic_best(tmp_path: Path) -> None:
    kernel = at.compile(added, db=tmp_path / "none.db")
    A = np.ones((M, N), np.float32)
    assert kernel(A, A).shape == (M, N)
    assert not (tmp_path / "none.db").exists()
    assert at.best(added, db=tmp_path / "none.db") == []


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"trials": 0}, "trials must be a whole number of at least 1, got 0"),
        ({"trials": 1.5}, "trials must be a whole number"),
        ({"trials": True}, "trials must be a whole number of at least 1, got True"),
        ({"trials": "3"}, "trials must be a whole number of at least 1, got '3'"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"seed": 2**70}, "seed must be a whole number"),
        ({"budget_s": 0}, "budget_s must be a number of seconds above 0, got 0"),
        ({"budget_s": -1.0}, "budget_s must be"),
        ({"budget_s": float("nan")}, "budget_s must be"),
        ({"budget_s": "10s"}, "budget_s must be a number of seconds above 0, got '10s'"),
        ({"threads": 0}, "threads must be a whole number from 1 to"),
        ({"threads": 1.5}, "threads must be a whole number from 1 to 256, got 1.5"),
        ({"threads": "2"}, "threads must be"),
    ],
)
def test_numbers_out_of_range_are_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        at.tune(added, **option)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"workload": 3}, "a workload is a built-in name"),
        ({"workload": int}, "a workload is a built-in name"),
        ({"shape": 3}, "shape and batch are whole numbers"),
        ({"shape": (3.5, 2)}, "shape and batch are whole numbers"),
        ({"batch": "2"}, "shape and batch are whole numbers"),
        ({"settings": "M=3"}, "settings are arguments by name"),
        ({"settings": {1: 2}}, "settings are arguments by name"),
        ({"settings": {"dtype": "int8"}, "dtype": "float64"}, "the type of the elements is given twice"),
        ({"weights": 3}, "weights is a list of names"),
        ({"target": 3}, "a target is a text"),
        ({"target": at.parse_target("cpu")}, "a target is a text"),
        ({"threads": True}, "threads must be a whole number"),
        ({"db": 3}, "3 names no file"),
        ({"out_dir": 3}, "3 names no file"),
        ({"rules": [3]}, "rules must be a sequence of sketch rules"),
        ({"search": "full"}, "search must be a SearchSetup"),
        ({"callbacks": [None]}, "callbacks must be a sequence of callbacks"),
        ({"winograd": "yes"}, "winograd must be True or False, got 'yes'"),
        ({"resume": 1}, "resume must be True or False, got 1"),
        ({"resume": True, "search": SearchSetup(measure=False)}, "resume goes on with what was measured"),
    ],
)
def test_values_of_another_kind_are_refused_in_one_sentence(option: dict[str, Any], message: str) -> None:
    given = {"workload": added, "trials": 1, **option}
    with pytest.raises(AutoschedError, match=message):
        at.tune(**given)


def test_integers_of_numpy_are_numbers(tmp_path: Path) -> None:
    shape = (np.int64(M), np.int32(N))
    result = at.tune(
        added, shape=shape, trials=np.int64(1), seed=np.int64(3), threads=np.int64(1), db=tmp_path / "records.db"
    )
    assert result.shape == (M, N)
    assert at.best(added, settings={"M": np.int64(M)}, threads=1, db=tmp_path / "records.db")


def test_a_record_of_another_processor_is_not_run_here(tmp_path: Path) -> None:
    """What its code does to this one, a worker would find out by dying."""
    db = tmp_path / "records.db"
    result = at.tune(added, trials=1, threads=1, db=db)
    foreign = "llvm -mcpu=haswell" if platform.machine() in ("aarch64", "arm64") else "llvm -mcpu=neoverse-n1"
    with Database(db) as database:
        record = database.record(result.record_id or 0)
        task = database.workload(record.workload)
        fingerprint = at.parse_target(foreign).fingerprint
        run = database.start_run(task, TargetRow(fingerprint, "{}"), 1, 0)
        number = database.append(run, record.sketch, record.steps, record.values, 0, Finding(1e-6))
    assert at.show(number, db, "asm", workload=added, target=foreign)
    with pytest.raises(DeviceError, match="cannot be measured on this machine"):
        at.verify(number, db, workload=added, target=foreign)
    with pytest.raises(StoreError, match="there is no record"):
        at.show(2**70, db)


def test_tune_is_a_function_whatever_was_imported() -> None:
    importlib.import_module("autosched.tuner.session")
    assert inspect.isfunction(at.tune)
    assert inspect.ismodule(at.tuner)  # type: ignore[attr-defined]


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, autosched; print(autosched.__version__, *sorted(sys.modules))"
    words = python("-c", code, check=True).stdout.split()
    assert words[0] == at.__version__
    assert not {"numpy", "llvmlite", "xgboost", "networkx", "rich", "sqlite3"} & set(words)


def test_unknown_names_are_attribute_errors() -> None:
    assert set(dir(at)) >= {"tune", "compile", "workload", "te", "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'tunes'"):
        _ = at.tunes  # type: ignore[attr-defined]
