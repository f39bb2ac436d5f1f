"""From a tensor expression to a measured kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autosched import te
from autosched.errors import UsageError
from autosched.measure import Failure, Measurement, Measurer, WorkerPool, make_problem
from autosched.target import parse_target
from autosched.te.dag import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from tests.measure.kernels import job, source


def test_expression_to_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    A, B = te.placeholder((32, 32), name="A"), te.placeholder((32, 32), name="B")
    dag = ComputeDAG([te.compute((32, 32), lambda i, j: A[i, j] + B[i, j], name="C")])
    problem = make_problem(dag, tmp_path, seed=3)
    with Measurer(problem, WorkerPool(parse_target("cpu"), 1), floor_s=0.002) as measurer:
        good, bad = measurer.measure([job("good"), job("bad", source(op="sub"))])
    assert isinstance(good, Measurement), good
    assert isinstance(bad, Failure)
    assert bad.kind == "wrong_result"
    assert [str(spec) for spec in (*problem.inputs, *problem.outputs)] == 3 * ["float32[32, 32]"]
    stored = np.load(tmp_path / "structured.in1.npy", allow_pickle=False)
    np.testing.assert_array_equal(stored, make_inputs(dag, 3, "structured")["B"])


def test_problems_take_turns_with_the_same_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal keys of jobs of two problems are different jobs, and each is checked on its own data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    A, B = te.placeholder((32, 32), name="A"), te.placeholder((32, 32), name="B")
    measurers = []
    with WorkerPool(parse_target("cpu"), 1, 1) as worker_pool:
        for n, combine in enumerate((lambda a, b: a + b, lambda a, b: a - b)):
            dag = ComputeDAG([te.compute((32, 32), lambda i, j, f=combine: f(A[i, j], B[i, j]), name="C")])
            (tmp_path / str(n)).mkdir()
            measurers.append(Measurer(make_problem(dag, tmp_path / str(n), seed=3), worker_pool, floor_s=0.002))
        right = [job("c0"), job("c0", source(op="sub"))]
        for _ in range(2):
            for n in (0, 1):
                (good,) = measurers[n].measure([right[n]])
                assert isinstance(good, Measurement), good
        (wrong,) = measurers[0].measure([job("c1", source(op="sub"))])
        assert isinstance(wrong, Failure)
        assert wrong.kind == "wrong_result"
        (final,) = measurers[1].final([right[1]], rounds=2)
        assert not isinstance(final, Failure)
        assert len([w for w in worker_pool.processes._workers if w.alive]) <= 3  # a builder, a runner and its spare


def test_what_goes_wrong_in_the_reference_is_raised(tmp_path: Path) -> None:
    A = te.placeholder((4,), name="A")
    dag = ComputeDAG([te.compute((4,), lambda i: A[i] * 2.0, name="C")])
    problem = make_problem(dag, tmp_path / "missing", seed=3)
    with pytest.raises(UsageError, match=r"the reference cannot be written to .*missing: No such file"):
        problem.wait()

    def refuse(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autosched.te.reference.evaluate.evaluate", refuse)
        with pytest.raises(ZeroDivisionError):
            make_problem(dag, tmp_path, seed=3).wait()


def test_data_sets_are_the_same_side_by_side(tmp_path, monkeypatch):
    """Each in a thread of its own, where there are cores for it."""
    from autosched.measure import problem as module
    from autosched.te.operators.registry import build

    dag, _ = build("gmm", (1, 8, 9, 10))
    for cores in (1, 64):
        folder = tmp_path / str(cores)
        folder.mkdir()
        monkeypatch.setattr(module, "usable_cores", lambda cores=cores: cores)
        made = module.make_problem(dag, folder, 0)
        made.wait()
        assert len(made._written) == (1 if cores == 1 else 2)
    files = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "64").iterdir())
    assert all((tmp_path / "1" / name).read_bytes() == (tmp_path / "64" / name).read_bytes() for name in files)
