"""Sums of every s-th term are those terms alone, and padded reads are stages: values stay, divisions go."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import te
from autosched.ir.expr import Binary, Select
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.padded import padded_reads
from autosched.te.rewrites.phases import in_phases
from autosched.te.tensor import postorder
from tests.te.brute import evaluate


def check(outputs):
    """The stages after `collapse`, which keeps the outputs' values, shapes and names, and whose result it leaves."""
    dag = te.ComputeDAG(outputs)
    small = collapse(dag)
    rng = np.random.default_rng(7)
    inputs = {t.name: rng.integers(-4, 5, t.shape) for t in dag.inputs}
    for before, after in zip(evaluate(dag, inputs), evaluate(small, inputs), strict=True):
        assert before.shape == after.shape
        np.testing.assert_allclose(before, after)
    for kind in ("inputs", "outputs"):
        assert [t.name for t in getattr(small, kind)] == [t.name for t in getattr(dag, kind)]
    assert small.content_hash == dag.content_hash
    assert [s.name for s in collapse(small).stages] == [s.name for s in small.stages]
    return {s.name: s for s in small.stages}


def extents(stage):
    return [a.extent for a in (*stage.axes, *stage.reduce_axes)]


def divides(stage):
    return any(isinstance(e, Binary) and e.op in ("floordiv", "mod") for e in postorder(stage.body))


def chooses(stage):
    return any(isinstance(e, Select) for e in postorder(stage.body))


def transposed(sizes, k, s, pad, channels=(2, 3), groups=1, last=False, forward=False, dilation=1):
    """A transposed convolution as users write it: all taps, of which most meet no element. `forward`: taps backwards."""
    (ci, co), rank = channels, len(sizes)
    x = te.placeholder((*sizes, ci) if last else (ci, *sizes), name="X")
    w = te.placeholder((*(k,) * rank, ci, co // groups) if last else (ci, co // groups, *(k,) * rank), name="W")
    taps, c = [te.reduce_axis(k, name=f"k{d}") for d in range(rank)], te.reduce_axis(ci // groups, name="c")
    shape = [(n - 1) * s - 2 * pad + dilation * (k - 1) + 1 for n in sizes]

    def at(i, o, *h):
        i = o // (co // groups) * (ci // groups) + c if groups > 1 else c
        o = o % (co // groups) if groups > 1 else o
        where = [
            a + t * dilation - (k - 1) * dilation + pad if forward else a + pad - t * dilation
            for a, t in zip(h, taps, strict=True)
        ]
        there = te.all(
            *(e for q, n in zip(where, sizes, strict=True) for e in (q >= 0, te.equal(q % s, 0), q // s < n))
        )
        place = [q // s for q in where]
        weight = w[(*taps, i, o) if last else (i, o, *taps)]
        return te.sum(te.if_then_else(there, x[(*place, i) if last else (i, *place)], 0.0) * weight, axis=(c, *taps))

    if last:
        return te.compute((*shape, co), lambda *i: at(None, i[-1], *i[:-1]), name="Y")
    return te.compute((co, *shape), lambda o, *h: at(None, o, *h), name="Y")


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize(
    ("n", "k", "s", "pad"),
    [
        (5, 4, 2, 1),
        (5, 3, 2, 0),
        (4, 5, 3, 1),
        (3, 2, 2, 0),
        (1, 3, 2, 0),
        (6, 1, 2, 0),
        (4, 4, 4, 2),
        (3, 7, 5, 1),
        (2, 2, 3, 0),
    ],
)
def test_a_transposed_convolution_multiplies_no_zeros(n, k, s, pad, forward):
    stages = check(transposed((n,), k, s, pad, forward=forward))
    phases = stages["Y.phases"]
    size = (n - 1) * s - 2 * pad + k
    assert extents(phases)[0] == s
    assert -(-size // s) <= extents(phases)[2] <= size // s + 1
    assert np.prod(extents(phases)[3:]) == 2 * -(-k // s)
    assert not divides(phases)
    assert not chooses(phases)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("sizes", [(3, 2), (2, 1, 3)])
def test_every_dimension_has_its_phases(sizes, last):
    phases = check(transposed(sizes, 3, 2, 1, last=last))["Y.phases"]
    assert not divides(phases)
    long = sum(n > 1 for n in sizes)
    assert sum(a.name.endswith("_phase") for a in phases.axes) == long
    assert all(a.name.endswith("_phase") for a in phases.axes[:long]) is not last


def test_all_phases_in_order_are_the_result():
    stages = check(transposed((3, 3), 2, 2, 0, channels=(4, 6), groups=2, last=True))
    assert list(stages) == ["Y"]
    assert extents(stages["Y"]) == [3, 2, 3, 2, 2, 3, 2]
    assert not divides(stages["Y"])


@pytest.mark.parametrize(
    ("s", "dilation", "found"), [(2, 3, True), (3, 2, True), (3, 4, True), (5, 2, False), (4, 2, False)]
)
def test_steps_of_taps_have_phases_where_one_follows_another(s, dilation, found):
    assert ("Y.phases" in check(transposed((4,), 3, s, 1, dilation=dilation))) is found


def test_data_of_which_nothing_counts_are_an_input_all_the_same():
    stages = check(transposed((2, 3), 1, 2, 1, last=True, forward=True))
    assert "X.pad" not in stages


def test_readers_read_the_phases():
    y, b = transposed((3, 3), 2, 2, 0), te.placeholder((3,), name="B")
    stages = check(te.compute(y.shape, lambda o, i, j: te.max(y[o, i, j] + b[o], 0.0), name="Z"))
    assert not divides(stages["Y.phases"])


@pytest.mark.parametrize(("n", "k", "s", "pad"), [(5, 3, 2, 1), (5, 4, 3, 0), (4, 2, 2, 1)])
def test_elements_that_are_spread_out_first_are_read_where_they_are(n, k, s, pad):
    """As TVM's operators do it: zeros between, zeros around, then a plain convolution."""
    x, w = te.placeholder((2, n), name="X"), te.placeholder((2, 3, k), name="W")
    r, c = te.reduce_axis(k, name="r"), te.reduce_axis(2, name="c")
    size, around = (n - 1) * s + 1, k - 1 - pad
    zero = te.const(0, "float32")
    spread = te.compute((2, size), lambda c, i: te.select(te.equal(i % s, 0), x[c, i // s], zero), name="D")

    def padded(c, i):
        return te.select(te.all(i >= around, i < size + around), spread[c, i - around], zero)

    data = te.compute((2, size + 2 * around), padded, name="P")
    y = te.compute(
        (3, size + 2 * around - k + 1), lambda o, h: te.sum(data[c, h + r] * w[c, o, k - 1 - r], axis=(c, r)), name="Y"
    )
    stages = check(y)
    assert {"D", "P"}.isdisjoint(stages)
    assert not divides(stages["Y.phases"])


def test_terms_that_all_outputs_leave_out_need_no_phases():
    a, k = te.placeholder((4, 9), name="A"), te.reduce_axis(9, name="k")
    odd = check(te.compute((4,), lambda i: te.sum(te.select(te.equal(k % 2, 1), a[i, k], 0.0), axis=k), name="S"))
    assert extents(odd["S"]) == [4, 5]
    least = te.compute((4,), lambda i: te.max(te.select(te.equal(k % 3, 2), a[i, k], -np.inf), axis=k), name="M")
    assert extents(check(least)["M"]) == [4, 3]


@pytest.mark.parametrize(
    "term",
    [
        lambda a, i, k: te.select(te.equal((i + k) % 2, 0), a[i, k], 1.0),  # the others count
        lambda a, i, k: te.select(te.equal((i + k) % 2, 0), a[i, k], 0.0) + a[i, k],
        lambda a, i, k: (
            te.select(te.equal(2 * k % 4, 0), a[i, k], 0.0) * te.select(te.equal((i + 2 * k) % 4, 1), 1.0, 0.0)
        ),
        lambda a, i, k: te.select((i + k) % 3 < 2, a[i, k], 0.0),
    ],
)
def test_other_conditions_stay(term):
    a, k = te.placeholder((5, 6), name="A"), te.reduce_axis(6, name="k")
    dag = te.ComputeDAG(te.compute((5,), lambda i: te.sum(term(a, i, k), axis=k), name="S"))
    check(dag.outputs[0])
    assert in_phases(dag) is dag


def test_a_padded_read_is_a_stage_that_others_share():
    x, w = te.placeholder((7, 5), name="X"), te.placeholder((3, 3), name="W")
    u, v = te.reduce_axis(3, name="u"), te.reduce_axis(3, name="v")

    def element(i, j):
        return te.select(te.all(i >= 1, i <= 7, -j <= -1, 2 * j < 11), x[i - 1, j - 1], 0.0)

    y = te.compute((7, 5), lambda i, j: te.sum(element(i + u, j + v) * w[u, v] + element(i + u, j + v), axis=(u, v)))
    stages = check(y)
    assert extents(stages["X.pad"]) == [9, 7]
    assert not chooses(stages[y.name])


@pytest.mark.parametrize(
    "term",
    [
        lambda x, i, k: te.select(k <= i, x[k], 0.0),  # not a matter of the place alone
        lambda x, i, k: te.select(te.all(i + k >= 1, i + k < 7), x[i + k - 1], 1.0),
        lambda x, i, k: te.select(x[k] > 0.0, x[k], 0.0),
    ],
)
def test_other_choices_of_reductions_are_left_to_them(term):
    x, k = te.placeholder((6,), name="X"), te.reduce_axis(6, name="k")
    dag = te.ComputeDAG(te.compute((9,), lambda i: te.sum(term(x, i, k), axis=k), name="S"))
    check(dag.outputs[0])
    assert padded_reads(dag) is dag


def test_a_read_that_another_condition_keeps_inside_is_no_stage():
    x, k = te.placeholder((6,), name="X"), te.reduce_axis(3, name="k")
    inner = lambda i: te.select(i + k >= 1, x[i + k - 1], 0.0)  # noqa: E731
    dag = te.ComputeDAG(te.compute((9,), lambda i: te.sum(te.select(i + k < 7, inner(i) * 2.0, 0.0), axis=k), name="S"))
    check(dag.outputs[0])
    assert padded_reads(dag) is dag
