"""A new dtype is a row of DTYPES: all before code generation follows from it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from autosched import te
from autosched.ir.dtype import Dtype, promote
from autosched.ir.expr import Binary, Cast, Load, Var, binary, cast, const, select
from autosched.ir.interpreter.interpret import interpret
from autosched.ir.printer import expr_text, func_text
from autosched.ir.types import type_problem
from autosched.ir.verify import verify
from autosched.schedule import initial_state
from autosched.te import ComputeDAG
from autosched.te.operators.window import stored, widen
from autosched.te.reference.error_bounds import cut_off
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import KINDS, make_inputs
from tests.float8 import E4M3, E5M2, NEW
from tests.helpers import ROOT, exact

pytestmark = pytest.mark.usefixtures("float8")
EACH = pytest.mark.parametrize("row", NEW, ids=lambda row: row.name)


def elementwise(row: Dtype) -> ComputeDAG:
    x, y = te.placeholder((40, 30), row.name, "X"), te.placeholder((30,), "float16", "Y")
    return ComputeDAG(te.compute((40, 30), lambda i, j: te.cast(te.tanh(x[i, j]) * 3.0 + y[j], row.name), name="Z"))


def largest(row: Dtype) -> ComputeDAG:
    x, k = te.placeholder((20, 16), row.name, "X"), te.reduce_axis(16, "k")
    return ComputeDAG(te.compute((20,), lambda i: te.max(x[i, k], axis=k), name="Z"))


def matmul(row: Dtype) -> ComputeDAG:
    a, b, k = te.placeholder((9, 24), row.name, "A"), te.placeholder((24, 7), row.name, "B"), te.reduce_axis(24, "k")
    total = te.compute((9, 7), lambda i, j: te.sum(widen(a[i, k]) * widen(b[k, j]), axis=k), name="C")
    return ComputeDAG(stored(total, row.name))


def test_promotion() -> None:
    assert promote(E4M3.name, E5M2.name) == "float16", "the first that has the numbers of both"
    assert promote("float16", E5M2.name) == "float16"
    assert promote(E4M3.name, "bfloat16") == "bfloat16"
    assert promote(E4M3.name, "float32") == "float32"
    assert promote("int64", E5M2.name) == E5M2.name


@EACH
def test_expressions_are_computed_in_float32(row: Dtype) -> None:
    x, i = Load("X", (Var("i"),), row.name), Var("i")
    assert (x + x).dtype == te.exp(x).dtype == (x + i).dtype == "float32"
    assert binary("lt", x, x).dtype == "bool"
    assert cast(x, "int32") == Cast(Cast(x, "float32"), "int32")
    assert cast(cast(x, "float64"), row.name) == Cast(Cast(cast(x, "float64"), "float32"), row.name)
    other = NEW[row is E4M3]
    assert cast(x, other.name) == Cast(Cast(x, "float32"), other.name)
    assert select(i < 3, x, 1.3).dtype == row.name


@EACH
def test_types_are_checked_and_constants_are_rounded_and_printed(row: Dtype) -> None:
    x = Load("X", (Var("i"),), row.name)
    assert type_problem(x) is type_problem(cast(x, "float32")) is type_problem(const(1.3, row.name)) is None
    assert type_problem(Binary("add", x, x)) == f"add of {row.name}, in which there is no arithmetic"
    assert expr_text(const(1.3, row.name)) == f"1.25_f8_{row.name.partition('_')[2]}"


@EACH
@pytest.mark.parametrize("make", [elementwise, largest, matmul])
def test_the_reference_inputs_and_the_interpreter_agree(row: Dtype, make) -> None:
    """By the nest as it is lowered, on inputs of each kind."""
    dag = make(row)
    func = exact(dag, initial_state(dag))
    verify(func)
    assert row.name in func_text(func)
    for kind in KINDS:
        inputs = make_inputs(dag, 3, kind)
        assert inputs[dag.inputs[0].name].dtype == row.numpy_dtype
        (reference,), (found,) = evaluate(dag, inputs), interpret(func, inputs)
        assert within(reference, found).all()
        size = np.abs(reference.value)
        fits = size < row.largest / 2.0
        assert fits.mean() > (0.1 if kind == "structured" else 0.8)
        allowed = 0.3 * size + 0.05
        if make is matmul:  # instructions cut off parts of each product and of each sum
            a, b = (np.abs(inputs[t.name].astype(np.float64)) for t in dag.inputs)
            allowed = allowed + cut_off(dag.stages[0].body[0], 24) * (a @ b)
        assert (reference.bound[fits] <= allowed[fits]).all(), "larger numbers may overflow"


@EACH
def test_a_result_that_is_not_the_nearest_is_refused(row: Dtype) -> None:
    dag = elementwise(row)
    inputs = make_inputs(dag, 1)
    (reference,) = evaluate(dag, inputs)
    value = np.tanh(inputs["X"].astype(np.float32)) * np.float32(3) + inputs["Y"].astype(np.float32)
    assert within(reference, value.astype(row.numpy_dtype)).all()
    beyond = value.astype(np.float64) * (1.0 + 6.0 * row.unit_roundoff)
    assert not within(reference, beyond.astype(row.numpy_dtype))[np.abs(value) > 0.5].any()


@pytest.mark.parametrize(("value", "expected"), [(1e6, np.inf), (np.inf, 0.0), (-3.0, 0.0)])
def test_what_no_float8_holds(value: float, expected: float) -> None:
    """Too large a number may become anything; infinity is NaN where there is none."""
    for row in NEW:
        x = te.placeholder((1,), "float32", "X")
        dag = ComputeDAG(te.compute((1,), lambda i, x=x, row=row: x[i].astype(row.name), name="Z"))
        array = np.array([value], np.float32)
        (reference,) = evaluate(dag, {"X": array})
        assert reference.bound[0] == expected
        assert within(reference, array.astype(row.numpy_dtype)).all()


@EACH
def test_built_in_operators_take_it(row: Dtype) -> None:
    """In a process of its own, in which the table has the row before anything reads it."""
    text = f"""
from autosched.ir.dtype import DTYPES
from tests.float8 import E4M3, E5M2
DTYPES.update({{row.name: row for row in (E4M3, E5M2)}})
from autosched.schedule import initial_state
from autosched.te.operators import registry
from tests.helpers import exact
for name, shape in (("matmul", (5, 6, 7)), ("softmax", (4, 9)), ("relu", (4, 5))):
    dag = registry.build(name, shape, dtype={row.name!r})[0]
    exact(dag, initial_state(dag))
    print(name, dag.outputs[0].dtype)
"""
    result = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[1::2] == [row.name] * 3
