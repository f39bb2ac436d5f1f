"""`te.scan`: what it makes, what it refuses, and what the reference says of it."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.errors import ExpressionError
from autosched.ir.recurrence import Recurrence
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate
from autosched.te.reference.inputs import make_inputs
from autosched.te.reference.plain import evaluate_plainly
from autosched.te.rewrites.collapse import collapse
from autosched.te.text import dag_text
from tests.te import brute
from tests.te.scans import CASES, case, smoothed, there_and_back, third_order

X = te.placeholder((4, 5), name="X")
K = te.reduce_axis(5, name="k")


def scan(fn, shape=(4, 5), init=0.0, **more):
    return te.scan(shape, fn, init=init, name="Y", **more)


def test_a_state_before_the_beginning_is_init():
    dag = ComputeDAG(scan(lambda y, i, j: y[i - 1, j] * 0.5 + X[i, j], init=lambda i, j: X[0, j]))
    assert dag_text(dag).splitlines()[1] == "Y[i:4, j:5] = select(i >= 1, Y[i - 1, j], X[0, j]) * 0.5 + X[i, j]"
    assert dag.stages[0].recurrence == Recurrence(0, 1, False)
    assert dag.flops == 2 * 4 * 5


def test_later_positions_go_backwards():
    dag = ComputeDAG(scan(lambda y, i, j: y[i, j + 2] + X[i, j], axis=-1))
    assert dag_text(dag).splitlines()[1] == "Y[i:4, j:5] = select(j < 3, Y[i, j + 2], 0.0) + X[i, j]"
    assert dag.stages[0].recurrence == Recurrence(1, 2, True)


def test_reads_that_the_axis_is_too_short_for_are_init():
    assert ComputeDAG(scan(lambda y, i, j: y[i - 4, j] + X[i, j])).stages[0].recurrence is None
    made = te.scan((1, 5), lambda s, i, j: (s[0][i - 1, j] + s[1][i - 1, j], X[i, j]), init=(1.0, 2.0), name="S")
    assert [t.name for t in ComputeDAG(made).outputs] == ["S.v0", "S.v1"]


def test_a_name_that_an_input_has_as_well():
    x = te.placeholder((6,), name="Y")
    dag = ComputeDAG(te.scan((6,), lambda y, i: y[i - 1] + x[i], init=0.0, name="Y"))
    (result,) = evaluate(dag, {"Y": np.arange(6, dtype="float32")})
    np.testing.assert_array_equal(result.value, np.cumsum(np.arange(6)))


def test_names_do_not_matter_to_the_content_and_positions_do():
    def content(step: int, name: str) -> str:
        x = te.placeholder((6,), name="X")
        return ComputeDAG(te.scan((6,), lambda y, i: y[i + step] + x[i], init=0.0, name=name)).content_hash

    assert content(-1, "Y") == content(-1, "Other") != content(1, "Y")


def test_axes_of_lines_are_merged():
    assert [a.extent for a in collapse(case("forwards, axis 1 of 3")).stages[0].axes] == [5, 7, 11]
    x = te.placeholder((6, 3, 5), name="X")
    dag = ComputeDAG(te.scan((6, 3, 5), lambda y, i, j, k: y[i - 1, j, k] + x[i, j, k], init=0.0))
    assert [a.extent for a in collapse(dag).stages[0].axes] == [6, 15]


REFUSED = {
    "own position": (lambda: scan(lambda y, i, j: y[i, j]), r"y\[i, j\], whose index 0 is i, which is its own position"),
    "another line": (lambda: scan(lambda y, i, j: y[i - 1, j - 1]), "whose index 1 is j - 1 but must be j"),
    "both ways": (lambda: scan(lambda y, i, j: y[i - 1, j] + y[i + 1, j]), r"both before \(-1\) and after \(\+1\)"),
    "no constant step": (lambda: scan(lambda y, i, j: y[2 * i - 9, j]), "which is no constant step"),
    "an index that is data": (lambda: scan(lambda y, i, j: y[te.cast(X[i, j], "int64"), j]), "no constant step"),
    "too few indices": (lambda: scan(lambda y, i, j: y[i - 1]), "has 2 dimensions but is read at 1"),
    "no read": (lambda: scan(lambda y, i, j: X[i, j]), "does not read its state; use te.compute"),
    "another type": (lambda: scan(lambda y, i, j: y[i - 1, j] * 0.5, init=0), "is float32 but its state is int64"),
    "another type of init": (
        lambda: scan(lambda y, i, j: y[i - 1, j], init=lambda i, j: X[0, j], dtype="float64"),
        "init of scan Y is float32 but its state is float64",
    ),
    "no such axis": (lambda: scan(lambda y, i, j: y[i - 1, j], axis=2), "axis of scan Y is 2 but its shape has 2 dim"),
    "no axis at all": (lambda: scan(lambda y: y[()], shape=()), r"has the shape \(\) but needs an axis"),
    "no type": (lambda: scan(lambda y, i, j: y[i - 1, j], init=None), "has neither init nor dtype"),
    "no init": (
        lambda: scan(lambda y, i, j: y[i - 1, j] + X[i, j], init=None, dtype="float32"),
        "out of bounds: index 0, i - 1, runs over -1 .. 2 .* give the scan an init",
    ),
    "a reduction of it": (
        lambda: scan(lambda y, i, j: te.sum(y[i - 1, j] * X[i, K], axis=K)), "reduces over its state",
    ),
    "too many values": (lambda: scan(lambda y, i, j: (y[i - 1, j], 1.0)), "a tuple of 2 values but must return one"),
    "too few values": (
        lambda: scan(lambda y, i, j: y[0][i - 1, j], init=(0.0, 0.0)), "returned one value but must return a tuple of 2",
    ),
    "numbers of values": (
        lambda: scan(lambda y, i, j: y[0][i - 1, j], init=(0.0, 0.0), dtype=("float32",)), "has 2 values but its dtype",
    ),
    "no function": (lambda: scan(None), "the function of scan Y is None"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, message = REFUSED[name]
    with pytest.raises(ExpressionError, match=message):
        make()


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("int32", "int8 backwards", "automaton", "polynomial")])
def test_the_reference_computes_position_by_position(name):
    dag = case(name)
    inputs = {n: x.astype("float64") for n, x in make_inputs(dag, 0, "normal").items()}
    for got, value in zip(evaluate(dag, inputs), brute.evaluate(dag, inputs), strict=True):
        np.testing.assert_allclose(got.value, value.reshape(got.value.shape).astype(float), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "dag", [smoothed((400, 3)), third_order((200, 4)), there_and_back((3, 300), 1)], ids=["first", "third", "both"]
)
def test_bounds_hold_what_float32_does(dag):
    """Computed in float32, each operation rounded, which is inside of the bounds, and not far inside."""
    dag = ComputeDAG(dag)
    inputs = make_inputs(dag, 0, "normal")
    (reference,), (plain,) = evaluate(dag, inputs), brute.evaluate(dag, inputs)
    error = np.abs(plain - reference.value)
    assert (error <= reference.bound).all()
    assert error.max() > reference.bound.max() / 100


def test_bounds_grow_along_the_axis():
    x = te.placeholder((2000,), name="X")
    dag = ComputeDAG(te.scan((2000,), lambda y, i: y[i - 1] + x[i], init=0.0))
    (reference,) = evaluate(dag, {"X": np.random.default_rng(0).random(2000, "float32")})
    assert 0 < reference.bound[10] < reference.bound[100] / 9 < reference.bound[1999] / 90


def test_integers_are_exact_and_wrap_around():
    dag = case("int8 backwards")
    inputs = make_inputs(dag, 0, "normal")
    (reference,), state = evaluate(dag, inputs), inputs["X"][:, -1]
    assert not reference.bound.any()
    for i in reversed(range(inputs["X"].shape[1])):
        state = (state.astype("int64") * 3 + inputs["X"][:, i]).astype("int8")
        np.testing.assert_array_equal(reference.value[:, i], state)


def test_the_plain_evaluation_is_near_the_reference():
    dag = case("two states")
    inputs = make_inputs(dag, 0, "normal")
    for got, reference in zip(evaluate_plainly(dag, inputs), evaluate(dag, inputs), strict=True):
        np.testing.assert_allclose(got, reference.value, rtol=1e-5, atol=1e-5)


def test_a_state_may_be_an_index():
    dag = case("automaton")
    table, steps = np.arange(10, dtype="int32").reshape(5, 2) * 3 % 5, make_inputs(dag, 0, "normal")["X"] % 2
    (reference,), state = evaluate(dag, {"T": table, "X": steps}), np.zeros(21, int)
    for i, step in enumerate(steps):
        state = table[state, step]
        np.testing.assert_array_equal(reference.value[i], state)


@pytest.mark.parametrize(
    "name", ["third order backwards", "two states along rows", "automaton", "forwards, axis 1 of 3"]
)
@pytest.mark.parametrize("points", [1, 16, 50])
def test_blocks_of_positions_and_lines_make_no_difference(name, points, monkeypatch):
    dag = case(name)
    inputs = make_inputs(dag, 0, "normal")
    whole, plain = evaluate(dag, inputs), brute.evaluate(dag, inputs)
    monkeypatch.setattr("autosched.te.reference.evaluate.BLOCK", points)
    for got, reference, rounded in zip(evaluate(dag, inputs), whole, plain, strict=True):
        np.testing.assert_array_equal(got.value, reference.value)
        assert (np.abs(rounded - got.value) <= got.bound).all()  # it depends on which blocks happen to be exact
