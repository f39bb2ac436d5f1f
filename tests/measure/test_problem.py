"""From a tensor expression to a measured kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autosched import te
from autosched.errors import UsageError
from autosched.measure import Failure, Measurement, Measurer, make_problem
from autosched.target import parse_target
from autosched.te.dag import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from tests.measure.kernels import job, source


def test_expression_to_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    A, B = te.placeholder((32, 32), name="A"), te.placeholder((32, 32), name="B")
    dag = ComputeDAG([te.compute((32, 32), lambda i, j: A[i, j] + B[i, j], name="C")])
    problem = make_problem(dag, tmp_path, seed=3)
    with Measurer(problem, parse_target("cpu"), 1, floor_s=0.002) as measurer:
        good, bad = measurer.measure([job("good"), job("bad", source(op="sub"))])
    assert isinstance(good, Measurement), good
    assert isinstance(bad, Failure)
    assert bad.kind == "wrong_result"
    assert [str(spec) for spec in (*problem.inputs, *problem.outputs)] == 3 * ["float32[32, 32]"]
    stored = np.load(tmp_path / "structured.in1.npy", allow_pickle=False)
    np.testing.assert_array_equal(stored, make_inputs(dag, 3, "structured")["B"])


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
