"""Tensors without elements and reductions over none: checks, the reference, and the rewriting `fold_empty`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autosched import te
from autosched.errors import ExpressionError
from autosched.te import ComputeDAG
from autosched.te.operators.normalise import softmax_over
from autosched.te.reference.evaluate import evaluate, evaluate_exactly
from autosched.te.reference.inputs import make_inputs
from autosched.te.reference.plain import evaluate_plainly
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.empty import fold_empty

REDUCERS = {
    "sum": (te.sum, 0.0),
    "prod": (te.prod, 1.0),
    "max": (te.max, -math.inf),
    "min": (te.min, math.inf),
    "own": (te.reducer(lambda a, b: a + b - a * b, 0.0, "either"), 0.0),
    "in order": (te.reducer(lambda a, b: a * 0.5 + b, 2.0, "halved", ordered=True), 2.0),
}


def row_reduction(reduce, rows=3, columns=0):
    a = te.placeholder((rows, columns), name="A")
    k = te.reduce_axis(columns, "k")
    return ComputeDAG(te.compute((rows,), lambda i: reduce(a[i, k], axis=k), name="C"))


@pytest.mark.parametrize("name", REDUCERS)
def test_a_reduction_over_nothing_is_the_identity(name):
    reduce, identity = REDUCERS[name]
    dag = row_reduction(reduce)
    inputs = {"A": np.zeros((3, 0), np.float32)}
    for each in (dag, fold_empty(dag)):
        (reference,) = evaluate(each, inputs)
        np.testing.assert_array_equal(reference.value, np.full(3, identity))
        np.testing.assert_array_equal(reference.bound, np.zeros(3))
        np.testing.assert_array_equal(evaluate_exactly(each, inputs)[0], np.full(3, identity))
        np.testing.assert_array_equal(evaluate_plainly(each, inputs)[0], np.full(3, identity, np.float32))


def test_a_product_over_nothing_is_zero():
    a, b, k = te.placeholder((5, 0), name="A"), te.placeholder((0, 7), name="B"), te.reduce_axis(0, "k")
    dag = ComputeDAG(te.compute((5, 7), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C"))
    inputs = {"A": np.zeros((5, 0), np.float32), "B": np.zeros((0, 7), np.float32)}
    for each in (dag, fold_empty(dag)):
        np.testing.assert_array_equal(evaluate(each, inputs)[0].value, np.zeros((5, 7)))
        np.testing.assert_array_equal(evaluate_plainly(each, inputs)[0], np.zeros((5, 7)))
    assert dag.flops == 0


def test_places_of_the_best_of_nothing_are_the_identity_in_both_results():
    a, k = te.placeholder((2, 0), name="A"), te.reduce_axis(0, "k")
    place, value = te.compute((2,), lambda i: te.argmax(a[i, k], axis=k), name="C")
    dag = ComputeDAG([place, value])
    plain, folded = (evaluate_exactly(each, {"A": np.zeros((2, 0), np.float32)}) for each in (dag, fold_empty(dag)))
    for one, other in zip(plain, folded, strict=True):
        assert one.shape == (2,)
        np.testing.assert_array_equal(one, other)


def test_a_chain_without_elements():
    """Softmax over no columns, and in no rows."""
    for shape in ((3, 0), (0, 4), (0, 0)):
        dag = ComputeDAG(softmax_over(te.placeholder(shape, name="A")))
        for each in (dag, fold_empty(dag)):
            (reference,) = evaluate(each, {"A": np.zeros(shape, np.float32)})
            assert reference.value.shape == shape


def test_running_sums_and_views_without_elements():
    a = te.placeholder((2, 0), name="A")
    k = te.reduce_axis(0, "k")
    sums = te.compute((2, 0), lambda i, j: te.sum(te.select(k <= j, a[i, k], 0.0), axis=k), name="C")
    dag = ComputeDAG(te.view(sums, (0, 5)))
    assert evaluate(dag, {"A": np.zeros((2, 0), np.float32)})[0].value.shape == (0, 5)
    assert [t.public_shape for t in collapse(dag).outputs] == [(0, 5)]


def test_a_branch_that_is_never_taken_may_read_a_tensor_without_elements():
    e, x = te.placeholder((0,), name="E"), te.placeholder((3,), name="X")
    dag = ComputeDAG(te.compute((3,), lambda i: te.select(i < 0, e[i], x[i]), name="C"))
    inputs = {"E": np.zeros(0, np.float32), "X": np.arange(3, dtype=np.float32)}
    folded = fold_empty(dag)
    assert [t.name for t in folded.inputs] == ["E", "X"]
    assert {load.buffer for op in folded.stages for load in folded.reads(op)} == {"X"}
    for each in (dag, folded):
        np.testing.assert_array_equal(evaluate(each, inputs)[0].value, inputs["X"])


def test_a_read_of_no_element_is_refused():
    e, ids = te.placeholder((0,), name="E"), te.placeholder((3,), "uint8", name="I")
    with pytest.raises(ExpressionError, match=r"reads E.* out of bounds.* extent 0"):
        te.compute((3,), lambda i: e[i], name="C")
    with pytest.raises(ExpressionError, match=r"reads E.* out of bounds.* extent 0"):
        te.compute((3,), lambda i: e[ids[i]], name="C")


def test_stages_without_points_may_divide_by_sizes_of_0():
    a = te.placeholder((4, 0), name="A")
    made = te.compute((0,), lambda i: a[i // 0 % 4, i % 0], name="C")
    assert made.shape == (0,)


def test_graphs_with_points_stay():
    dag = row_reduction(te.sum, 3, 4)
    assert fold_empty(dag) is dag


def test_an_intermediate_without_elements_is_gone_and_the_inputs_stay():
    a, b = te.placeholder((0, 3), name="A"), te.placeholder((3,), name="B")
    k = te.reduce_axis(0, "k")
    doubled = te.compute((0, 3), lambda i, j: a[i, j] * b[j], name="D")
    dag = ComputeDAG(te.compute((3,), lambda j: te.sum(doubled[k, j], axis=k), name="C"))
    folded = fold_empty(dag)
    assert [op.name for op in folded.stages] == ["C"]
    assert sorted(t.name for t in folded.inputs) == ["A", "B"]


def test_inputs_without_elements_can_be_made():
    dag = row_reduction(te.sum)
    assert all(make_inputs(dag, 0, kind)["A"].shape == (3, 0) for kind in ("normal", "structured", "integers"))
