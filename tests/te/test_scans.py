"""Running reductions are in blocks: values stay, and the work is that of the elements instead of their square."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from autosched import te
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.scans import LONGEST, digits_of
from tests.te import brute
from tests.te.test_phases import check, divides, extents

ORDERS = {
    "k <= i": lambda k, i: k <= i,
    "k < i": lambda k, i: k < i,
    "i <= k": lambda k, i: i <= k,
    "k + 1 > i + 1": lambda k, i: k + 1 > i + 1,
}


def running(shape, axis=-1, order="k <= i", reducer="sum", start=0.0, dtype="float32", longer=0, term=lambda x: x):
    """All elements up to each one along an axis, or from it on; `longer`: than the elements are the results."""
    axis %= len(shape)
    x, k = te.placeholder(shape, dtype, name="X"), te.reduce_axis(shape[axis], name="k")

    def result(*i):
        element = term(x[(*i[:axis], k, *i[axis + 1 :])])
        return getattr(te, reducer)(te.select(ORDERS[order](k, i[axis]), element, start), axis=k)

    return te.compute(tuple(n + longer * (d == axis) for d, n in enumerate(shape)), result, name="Y")


def work(stages):
    return sum(prod(extents(s)) for s in stages.values())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("shape", "axis"), [((2, 40), 1), ((35, 3), 0), ((2, 37, 3), 1), ((130,), 0), ((48, 1), 0)])
def test_values_stay(shape, axis, order):
    stages = check(running(shape, axis, order))
    assert all(a.extent <= LONGEST for s in stages.values() for a in s.reduce_axes)


@pytest.mark.parametrize(("reducer", "start"), [("max", -100.0), ("max", -np.inf), ("min", np.inf), ("prod", 1.0)])
def test_other_reducers(reducer, start):
    stages = check(running((40,), reducer=reducer, start=start))
    assert (len(stages) > 1) == (start != -100.0)  # which is not what changes nothing


@pytest.mark.parametrize(("longer", "order"), [(1, "k < i"), (-6, "k <= i"), (3, "i <= k")])
def test_results_may_be_more_or_fewer_than_elements(longer, order):
    assert len(check(running((2, 70), order=order, longer=longer))) > 1


def test_what_is_computed_for_each_element_is_so_once():
    stages = check(running((2, 40), term=lambda x: te.exp(x * 0.5)))
    assert extents(stages["Y.term"]) == [2, 40]


def test_readers_have_the_axes_of_blocks():
    x, k, z = te.placeholder((3, 70), name="X"), te.reduce_axis(70, name="k"), te.placeholder((70,), name="Z")
    sums = te.compute((3, 70), lambda b, i: te.sum(te.select(k <= i, x[b, k], 0.0), axis=k), name="S")
    mean = te.compute((3, 70), lambda b, i: sums[b, i] / te.cast(i + 1, "float32"), name="M")
    stages = check(te.compute((3, 70), lambda b, i: te.max(mean[b, i], z[i]), name="Y"))
    assert extents(stages["Y"]) == extents(stages["S.digits"])
    assert not divides(stages["Y"])


def test_readers_may_be_many_and_meet_again():
    """Each pair of readers doubled the time."""
    y = running((40,))
    for _ in range(40):
        a, b = (te.compute((40,), lambda i, y=y, n=n: y[i] + n, name="A") for n in range(2))
        y = te.compute((40,), lambda i, a=a, b=b: a[i] * b[i], name="M")
    assert "Y.digits" in collapse(te.ComputeDAG(y)).names


def test_a_chain_of_many_copies():
    """What the copies are read by was asked for one inside the other, until Python's limit."""
    y = te.placeholder((8, 4), name="X")
    for _ in range(1200):
        y = te.compute((8, 4), lambda i, j, y=y: y[i, j], name="C")
    assert len(collapse(te.ComputeDAG(y)).stages) == 1200


def test_the_sums_of_a_rectangle_are_in_blocks_along_both_sides():
    x, k, m = te.placeholder((40, 35), name="X"), te.reduce_axis(40, name="k"), te.reduce_axis(35, name="m")
    corner = lambda i, j: te.select(te.all(k <= i, m <= j), x[k, m], 0.0)  # noqa: E731
    dag = te.ComputeDAG(te.compute((40, 35), lambda i, j: te.sum(corner(i, j), axis=(k, m)), name="Y"))
    slim, data = collapse(dag), make_inputs(dag, 0, "normal")
    assert work({s.name: s for s in slim.stages}) < 40 * 35 * 50
    for graph in (dag, slim):
        (found,) = evaluate(graph, data)
        assert within(found, np.cumsum(np.cumsum(data["X"], 0), 1)).all()


@pytest.mark.parametrize("shape", [(4096,), (3, 1 << 20), (1000, 7)])
def test_the_work_is_linear(shape):
    dag = te.ComputeDAG(running(shape, axis=-1 if len(shape) == 1 or shape[0] == 3 else 0))
    assert work({s.name: s for s in collapse(dag).stages}) <= 22 * prod(shape)
    assert dag.flops == prod(shape)


@pytest.mark.parametrize("contiguous", [True, False])
def test_digits_cover_all_places(contiguous):
    for n in (33, 64, 100, 1000, 4093, 4096, 50257, 10**6, 1 << 20):
        digits = digits_of(n, contiguous)
        assert n <= prod(digits) < n * 1.2
        assert max(digits) <= LONGEST


def test_what_knows_its_result_stays():
    """Weights by the distance: no sum of a block is part of several results."""
    x, k = te.placeholder((80,), name="X"), te.reduce_axis(80, name="k")
    weighted = te.compute((80,), lambda i: te.sum(te.select(k <= i, x[k] * te.cast(i - k, "float32"), 0.0), axis=k))
    assert len(check(weighted)) == 1


@pytest.mark.parametrize("reducer", ["sum", "max", "min"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_reference_goes_from_one_result_to_the_next(reducer, order):
    start = {"sum": 0.0, "max": -np.inf, "min": np.inf}[reducer]
    dag = te.ComputeDAG(running((3, 9, 2), 1, order, reducer, start, "float64", longer=2))
    data = make_inputs(dag, 0, "normal")
    (found,), (expected,) = evaluate(dag, data), brute.evaluate(dag, data)
    np.testing.assert_allclose(found.value, expected, rtol=1e-12, atol=1e-12)


def test_the_reference_of_a_long_row_is_sharp():
    """An element left out, or added twice, is out of bounds, and a sum in order is not."""
    dag = te.ComputeDAG(running((1 << 20,)))
    data = make_inputs(dag, 0, "normal")
    (found,) = evaluate(dag, data)
    assert within(found, np.cumsum(data["X"], dtype="float32")).all()
    assert not within(found, np.cumsum(data["X"], dtype="float32") - data["X"])[:100].all()
