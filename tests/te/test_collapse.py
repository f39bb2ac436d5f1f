"""`collapse`: values are preserved, what travels together merges, and nothing else does."""

import numpy as np
import pytest

from autosched import te
from autosched.ir.expr import Binary, Load, Select
from autosched.te.rewrites.collapse import _Fixpoint, collapse
from autosched.te.rewrites.groups import LONG_PERIOD
from autosched.te.tensor import postorder
from tests.te.brute import evaluate


def axes(op):
    return [(a.name, a.extent) for a in op.axes], [(a.name, a.extent) for a in op.reduce_axes]


def check(outputs):
    """The collapsed DAG, after comparing its values, public shapes, names and hash with the original's."""
    dag = te.ComputeDAG(outputs)
    small = collapse(dag)
    rng = np.random.default_rng(7)
    inputs = {t.name: rng.integers(-4, 5, t.shape) for t in dag.inputs}
    for before, after in zip(evaluate(dag, inputs), evaluate(small, inputs), strict=True):
        assert before.shape == after.shape
        np.testing.assert_allclose(before, after)
    for old, new in zip((*dag.inputs, *dag.outputs), (*small.inputs, *small.outputs), strict=True):
        assert (old.name, old.dtype, old.public_shape) == (new.name, new.dtype, new.public_shape)
        assert len(new.shape) >= 1
    assert [s.name for s in small.stages] == [s.name for s in dag.stages]
    assert small.content_hash == dag.content_hash
    again = collapse(small)
    assert [axes(s) for s in again.stages] == [axes(s) for s in small.stages]
    return small


def conv2d(n, h, w, ci, co, k, pad=0, stride=1):
    x = te.placeholder((n, h, w, ci), name="X")
    f = te.placeholder((k, k, ci, co), name="F")
    source = x
    if pad:

        def padded(n, h, w, c):
            inside = te.all(h >= pad, h < x.shape[1] + pad, w >= pad, w < x.shape[2] + pad)
            return te.select(inside, x[n, h - pad, w - pad, c], 0.0)

        source = te.compute((n, h + 2 * pad, w + 2 * pad, ci), padded, name="P")
    rh, rw, rc = te.reduce_axis(k, name="kh"), te.reduce_axis(k, name="kw"), te.reduce_axis(ci, name="c")
    oh, ow = (h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1
    return te.compute(
        (n, oh, ow, co),
        lambda n, h, w, o: te.sum(
            source[n, h * stride + rh, w * stride + rw, rc] * f[rh, rw, rc, o], axis=(rh, rw, rc)
        ),
        name="Y",
    )


def bias_relu(y):
    b = te.placeholder((y.shape[-1],), name="B")
    return te.compute(y.shape, lambda n, h, w, o: te.max(y[n, h, w, o] + b[o], 0.0), name="Z")


def test_what_is_divided_in_an_index_may_be_data():
    table, codes = te.placeholder((256,), name="T"), te.placeholder((6, 5), "uint8", name="W")
    for divided in (lambda x: x % 128, lambda x: x // 128, lambda x: te.cast(x, "int64") % 128):
        dag = te.ComputeDAG(te.compute((6, 5), lambda i, j, f=divided: table[f(codes[i, j])], name="C"))
        (body,) = collapse(dag).stages[0].body
        assert isinstance(body, Load)
        assert len(collapse(dag).stages[0].axes) == 1


def test_1x1_convolution_becomes_a_matrix_product():
    small = check(conv2d(2, 3, 4, 5, 6, 1))
    assert axes(small.stages[0]) == ([("n_h_w", 24), ("o", 6)], [("c", 5)])
    assert [t.shape for t in small.inputs] == [(24, 5), (5, 6)]
    assert [t.view for t in small.inputs] == [(2, 3, 4, 5), (1, 1, 5, 6)]
    assert str(small.stages[0].body[0]) == "X[n_h_w, c] * F[c, o]"


def test_1x1_convolution_with_epilogue():
    small = check(bias_relu(conv2d(2, 3, 4, 5, 6, 1)))
    assert axes(small.stage("Z")) == ([("n_h_w", 24), ("o", 6)], [])


def test_strided_1x1_convolution_keeps_rows_and_columns():
    small = check(conv2d(2, 5, 5, 3, 4, 1, stride=2))
    assert axes(small.stages[0]) == ([("n", 2), ("h", 3), ("w", 3), ("o", 4)], [("c", 3)])


def test_3x3_convolution_keeps_its_axes():
    small = check(conv2d(2, 4, 4, 3, 5, 3))
    assert axes(small.stages[0]) == ([("n", 2), ("h", 2), ("w", 2), ("o", 5)], [("kh", 3), ("kw", 3), ("c", 3)])


def test_one_image_loses_its_batch_axis():
    small = check(bias_relu(conv2d(1, 4, 4, 3, 2, 3, pad=1)))
    assert axes(small.stage("P")) == ([("h", 6), ("w", 6), ("c", 3)], [])
    assert axes(small.stage("Y")) == ([("h", 4), ("w", 4), ("o", 2)], [("kh", 3), ("kw", 3), ("c", 3)])
    assert small.inputs[0].shape == (4, 4, 3)


def test_elementwise_becomes_one_axis():
    a, b = te.placeholder((2, 3, 4, 5), name="A"), te.placeholder((2, 3, 4, 5), name="B")
    product = te.compute((2, 3, 4, 5), lambda n, c, h, w: a[n, c, h, w] * b[n, c, h, w], name="C")
    d = te.compute((2, 3, 4, 5), lambda n, c, h, w: te.max(product[n, c, h, w], 0.0), name="D")
    small = check(d)
    assert axes(small.stage("C")) == ([("n_c_h_w", 120)], [])
    assert axes(small.stage("D")) == ([("n_c_h_w", 120)], [])
    assert small.outputs[0].shape == (120,)


def test_broadcast_separates():
    a, b = te.placeholder((2, 3, 4, 5), name="A"), te.placeholder((3,), name="B")
    c = te.compute((2, 3, 4, 5), lambda n, c, h, w: a[n, c, h, w] * b[c], name="C")
    assert axes(check(c).stages[0]) == ([("n", 2), ("c", 3), ("h_w", 20)], [])


def test_a_separation_spreads_through_the_graph():
    a, b = te.placeholder((2, 3, 4), name="A"), te.placeholder((3,), name="B")
    c = te.compute((2, 3, 4), lambda i, j, k: a[i, j, k] + 1.0, name="C")
    d = te.compute((2, 3, 4), lambda i, j, k: c[i, j, k] * b[j], name="D")
    e = te.compute((2, 3, 4), lambda i, j, k: d[i, j, k] - 1.0, name="E")
    small = check(e)
    assert [len(s.axes) for s in small.stages] == [3, 3, 3]


def test_transposes_do_not_merge():
    a = te.placeholder((3, 4), name="A")
    assert axes(check(te.compute((4, 3), lambda i, j: a[j, i], name="T")).stages[0]) == ([("i", 4), ("j", 3)], [])
    square = te.placeholder((3, 3), name="A")
    t = te.compute((3, 3), lambda i, j: square[i, j] + square[j, i], name="T")
    assert len(check(t).stages[0].axes) == 2


def test_a_transpose_of_groups_merges_the_groups():
    a = te.placeholder((2, 3, 4, 5), name="A")
    t = te.compute((4, 5, 2, 3), lambda i, j, k, m: a[k, m, i, j] * 2.0, name="T")
    small = check(t)
    assert axes(small.stages[0]) == ([("i_j", 20), ("k_m", 6)], [])
    assert small.inputs[0].shape == (6, 20)


def test_part_of_a_tensor_merges_only_where_whole_rows_are_read():
    a = te.placeholder((4, 5, 6), name="A")
    top = te.compute((2, 5, 6), lambda i, j, k: a[i, j, k] * 2.0, name="T")
    assert axes(check(top).stages[0]) == ([("i_j_k", 60)], [])
    left = te.compute((4, 5, 3), lambda i, j, k: a[i, j, k] * 2.0, name="L")
    assert axes(check(left).stages[0]) == ([("i_j", 20), ("k", 3)], [])


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, i, j: te.cast(i, "float32") + a[i, j],
        lambda a, i, j: te.select(j < 2, a[i, j], 0.0),
        lambda a, i, j: a[i, j] + a[i, 0],
        lambda a, i, j: a[i, (j + 1) % 4],
        lambda a, i, j: a[i, j // 2],
        lambda a, i, j: a[i, i] + a[i, j],
    ],
)
def test_other_uses_of_an_axis_keep_it(fn):
    a = te.placeholder((4, 4), name="A")
    assert len(check(te.compute((4, 4), lambda i, j: fn(a, i, j), name="C")).stages[0].axes) == 2


def test_reduce_axes_merge_with_each_other_only():
    a = te.placeholder((2, 3, 4, 5), name="A")
    h, w = te.reduce_axis(3, name="h"), te.reduce_axis(4, name="w")
    pool = te.compute((2, 5), lambda n, c: te.sum(a[n, h, w, c], axis=(h, w)), name="P")
    assert axes(check(pool).stages[0]) == ([("n", 2), ("c", 5)], [("h_w", 12)])
    b = te.placeholder((3, 4), name="B")
    k = te.reduce_axis(4, name="k")
    rows = te.compute((3,), lambda i: te.sum(b[i, k], axis=k), name="S")
    assert axes(check(rows).stages[0]) == ([("i", 3)], [("k", 4)])


def test_reduce_axes_listed_in_another_order_stay():
    a = te.placeholder((3, 4), name="A")
    h, w = te.reduce_axis(3, name="h"), te.reduce_axis(4, name="w")
    s = te.compute((1,), lambda i: te.sum(a[h, w], axis=(w, h)), name="S")
    assert axes(check(s).stages[0]) == ([("i", 1)], [("w", 4), ("h", 3)])


def test_batched_matrix_product_keeps_its_batch():
    a, b = te.placeholder((2, 3, 4), name="A"), te.placeholder((2, 4, 5), name="B")
    k = te.reduce_axis(4, name="k")
    c = te.compute((2, 3, 5), lambda n, i, j: te.sum(a[n, i, k] * b[n, k, j], axis=k), name="C")
    assert axes(check(c).stages[0]) == ([("n", 2), ("i", 3), ("j", 5)], [("k", 4)])


def test_batch_merges_into_rows_where_the_weights_are_shared():
    a, b = te.placeholder((2, 3, 4), name="A"), te.placeholder((4, 5), name="B")
    k = te.reduce_axis(4, name="k")
    c = te.compute((2, 3, 5), lambda n, i, j: te.sum(a[n, i, k] * b[k, j], axis=k), name="C")
    assert axes(check(c).stages[0]) == ([("n_i", 6), ("j", 5)], [("k", 4)])


def test_scalars_become_one_element():
    a = te.placeholder((3, 4), name="A")
    i, j = te.reduce_axis(3, name="i"), te.reduce_axis(4, name="j")
    s = te.compute((), lambda: te.sum(a[i, j], axis=(i, j)), name="S")
    t = te.compute((3, 4), lambda n, m: a[n, m] - s[()], name="T")
    small = check((s, t))
    assert axes(small.stage("S")) == ([("i_1", 1)], [("i_j", 12)])
    assert axes(small.stage("T")) == ([("n_m", 12)], [])
    assert small.outputs[0].shape == (1,)
    assert small.outputs[0].view == ()


def test_only_unit_axes_leave_one():
    a = te.placeholder((1, 1), name="A")
    small = check(te.compute((1, 1), lambda i, j: a[i, j] + 1.0, name="B"))
    assert axes(small.stages[0]) == ([("j", 1)], [])


def test_a_reduction_over_unit_axes_is_elementwise():
    a = te.placeholder((4, 1), name="A")
    k = te.reduce_axis(1, name="k")
    small = check(te.compute((4,), lambda i: te.sum(a[i, k] * 2.0, axis=k), name="B"))
    assert small.stages[0].reducer is None
    assert axes(small.stages[0]) == ([("i", 4)], [])


def test_a_tuple_reduction_over_unit_axes_stays_one():
    a = te.placeholder((4, 1), name="A")
    k = te.reduce_axis(1, name="k")
    small = check(te.compute((4,), lambda i: te.argmax(a[i, k], axis=k), name="B"))
    assert axes(small.stages[0]) == ([("i", 4)], [("k", 1)])


def test_tuple_reductions_merge_in_all_outputs():
    a = te.placeholder((2, 3, 4), name="A")
    k = te.reduce_axis(4, name="k")
    small = check(te.compute((2, 3), lambda i, j: te.argmax(a[i, j, k], axis=k), name="M"))
    assert axes(small.stages[0]) == ([("i_j", 6)], [("k", 4)])


def test_guards_of_unit_axes_are_decided():
    a = te.placeholder((4, 1), name="A")
    b = te.compute((4, 1), lambda i, j: te.select(te.all(j >= 0, i < 9), a[i, j], 0.0), name="B")
    assert not any(isinstance(n, Select) for n in postorder(check(b).stages[0].body))


def test_flattening_and_unflattening_become_plain_copies_of_indices():
    a = te.placeholder((4, 6), name="A")
    flat = te.compute((24,), lambda i: a[i // 6, i % 6], name="F")
    back = te.compute((4, 6), lambda i, j: flat[i * 6 + j] + 1.0, name="G")
    small = check(back)
    assert len(small.stage("F").axes) == 1


@pytest.mark.parametrize(
    ("fn", "selects"),
    [
        (lambda a, i, j: a[i, (j + 4) % 7] + 1.0, 1),
        (lambda a, i, j: a[(i + 3) % 5, (j + 6) % 7], 3),
        (lambda a, i, j: a[(i + 10) % 5, (j - 3) % 7], 1),
        (lambda a, i, j: a[(j + 4) // 7, (j + 4) % 7], 0),  # the fourth to tenth element
        (lambda a, i, j: a[i, 2 * j % 7], 1),
        (lambda a, i, j: a[i, 3 * j % 7], 0),
    ],
)
def test_an_index_that_wraps_around_once_is_a_choice_of_two(fn, selects):
    a = te.placeholder((5, 7), name="A")
    small = check(te.compute((5, 7), lambda i, j: fn(a, i, j), name="B"))
    assert sum(isinstance(n, Select) for n in postorder(small.stages[0].body)) == selects


@pytest.mark.parametrize(("wraps", "selects"), [((True, False), 0), ((False, True), 1), ((True, True), 1)])
def test_operands_of_a_reduction_are_chosen_where_adjacent_elements_wrap_around(wraps, selects):
    """A circular convolution's rows wrap around outside of the loop over what is adjacent in them."""
    a, w = te.placeholder((6, 8), name="A"), te.placeholder((3, 3), name="W")
    u, v = te.reduce_axis(3, name="u"), te.reduce_axis(3, name="v")
    rows, columns = (n if around else n - 2 for n, around in zip((6, 8), wraps, strict=True))

    def body(i, j):
        y, x = (p % n if around else p for p, n, around in zip((i + u, j + v), (6, 8), wraps, strict=True))
        return te.sum(a[y, x] * w[u, v], axis=(u, v))

    small = check(te.compute((rows, columns), body, name="B"))
    assert sum(isinstance(n, Select) for n in postorder(small.stages[0].body)) == selects


def test_two_rows_as_one_do_not_wrap_around():
    a = te.placeholder((2, 6), name="A")
    small = check(te.compute((12,), lambda i: a[i // 6, i % 6], name="B"))
    assert not any(isinstance(n, Select) for n in postorder(small.stages[0].body))


def grouped(ci, co, groups, n):
    """A 1x2 convolution in groups, the group of an output channel found by division by `n`."""
    x, w = te.placeholder((5, ci), name="X"), te.placeholder((2, ci // groups, co), name="W")
    r, c = te.reduce_axis(2, name="r"), te.reduce_axis(ci // groups, name="c")
    return te.compute(
        (4, co), lambda i, o: te.sum(x[i + r, o // n * (ci // groups) + c] * w[r, c, o], axis=(r, c)), name="Y"
    )


@pytest.mark.parametrize(("ci", "co", "groups"), [(6, 10, 2), (4, 12, 4), (3, 6, 3), (10, 6, 2)])
def test_the_groups_of_a_convolution_are_an_axis(ci, co, groups):
    small = check(grouped(ci, co, groups, co // groups))
    assert [a.extent for a in small.stages[-1].axes] == [4, groups, co // groups]


def test_groups_that_do_not_divide_their_axis_stay():
    assert len(check(grouped(9, 10, 3, 4)).stages[-1].axes) == 2


def extents(small):
    """The spatial and reduce extents of every stage that is no matrix of weights."""
    return {s.name: [a.extent for a in (*s.axes, *s.reduce_axes)] for s in small.stages}


def relu(y, name="Z"):
    bias = te.placeholder((y.shape[-1],), name="B")
    return te.compute(y.shape, lambda i, o: te.max(y[i, o] + bias[o], 0.0), name=name)


@pytest.mark.parametrize(("ci", "co", "groups"), [(6, 10, 2), (4, 12, 4), (3, 9, 3), (10, 35, 5)])
def test_bias_and_residual_have_the_groups_of_what_they_read(ci, co, groups):
    r = te.placeholder((4, co), name="R")
    z = relu(grouped(ci, co, groups, co // groups))
    small = check(te.compute((4, co), lambda i, o: z[i, o] + r[i, o], name="S"))
    assert [extents(small)[s] for s in "ZS"] == [[4, groups, co // groups]] * 2
    assert extents(small)["Y"][:3] == [4, groups, co // groups]


def test_all_readers_have_the_groups():
    y = grouped(6, 10, 2, 5)
    twice = te.compute((10, 4), lambda o, i: y[i, o] * 2.0, name="T")
    o = te.reduce_axis(10, name="o")
    summed = te.compute((4,), lambda i: te.sum(y[i, o] * y[i, o], axis=o), name="M")
    best = te.compute((4,), lambda i: te.argmax(y[i, o], axis=o), name="A")
    small = check((twice, y, summed, *best))
    assert extents(small)["T"] == [2, 5, 4]
    assert extents(small)["M"] == extents(small)["A"] == [4, 2, 5]


def test_two_group_sizes_that_meet_are_one_of_them():
    y, z = grouped(6, 12, 2, 6), grouped(6, 12, 3, 4)
    small = check(te.compute((4, 12), lambda i, o: y[i, o] + z[i, o], name="S"))
    assert extents(small)["S"] == [4, 2, 6]
    assert extents(small)["Y"][:3] == [4, 2, 6]
    assert extents(small)["Y_1"][:2] == [4, 12]


def test_groups_of_what_is_grouped_again():
    y = grouped(6, 12, 2, 6)
    c = te.reduce_axis(3, name="c")
    small = check(te.compute((4, 12), lambda i, o: te.sum(y[i, o // 3 * 3 + c], axis=c), name="S"))
    assert extents(small)["Y"][:2] == [4, 12]
    assert extents(small)["S"] == [4, 4, 3, 3]


@pytest.mark.parametrize("index", [lambda o: o + 1, lambda o: 8 - o, lambda o: o // 2 * 2, lambda o: o])
def test_readers_that_index_otherwise_leave_the_groups(index):
    y = grouped(6, 10, 2, 5)
    z = te.compute((4, 9), lambda i, o: y[i, index(o)] * 2.0, name="Z")  # the last one leaves the last channel out
    small = check((relu(y, "R"), z))
    assert [extents(small)[s][:2] for s in "YR"] == [[4, 10]] * 2


def test_constant_indices_merge():
    a = te.placeholder((2, 3, 4), name="A")
    b = te.compute((4,), lambda i: a[1, 2, i] * 2.0, name="B")
    small = check(b)
    assert small.inputs[0].shape == (6, 4)
    assert [str(n) for n in postorder(small.stages[0].body) if isinstance(n, Load)] == ["A[5, i]"]


def test_views_of_outputs_are_kept():
    a = te.placeholder((2, 3, 4), name="A")
    b = te.compute((2, 3, 4), lambda i, j, k: a[i, j, k] + 1.0, name="B")
    small = check(te.view(b, (4, 6)))
    assert small.outputs[0].shape == (24,)
    assert small.outputs[0].public_shape == (4, 6)


def test_softmax_keeps_rows():
    a = te.placeholder((2, 3, 5), name="A")
    k = te.reduce_axis(5, name="k")
    s = te.compute((2, 3, 5), lambda i, j, m: a[i, j, m] - te.max(a[i, j, k], axis=k), name="S")
    small = check(s)
    assert axes(small.stage("S.red")) == ([("i_j", 6)], [("k", 5)])
    assert axes(small.stage("S")) == ([("i_j", 6), ("m", 5)], [])


def test_merged_axis_names_are_new():
    a = te.placeholder((2, 3, 4), name="A")
    i_j = te.reduce_axis(4, name="i_j")
    s = te.compute((2, 3), lambda i, j: te.sum(a[i, j, i_j], axis=i_j), name="S")
    assert axes(check(s).stages[0]) == ([("i_j_1", 6)], [("i_j", 4)])


@pytest.mark.parametrize(("m", "times"), [(64, 3), (200, 4), (101, 2), (63, 5)])
def test_long_cycles_and_long_repetitions_are_two_axes(m, times):
    x, w = te.placeholder((5, m), name="X"), te.placeholder((5, times), name="W")
    y = te.compute((5, times * m), lambda i, j: x[i, j % m] + w[i, j // m], name="Y")
    z = te.compute((5, times * m), lambda i, j: te.maximum(y[i, j], 0.0), name="Z")
    small, short = check(z), m < LONG_PERIOD
    assert [[a.extent for a in s.axes] for s in small.stages] == [[5, times * m] if short else [5, times, m]] * 2
    divided = {e.op for s in small.stages for e in postorder(s.body) if isinstance(e, Binary)} & {"mod", "floordiv"}
    assert bool(divided) is short


def test_a_long_cycle_stays_whole_where_its_readers_move_on():
    x = te.placeholder((64,), name="X")
    y = te.compute((192,), lambda j: x[j % 64], name="Y")
    z = te.compute((191,), lambda j: y[j + 1] + y[j], name="Z")
    assert [[a.extent for a in s.axes] for s in check(z).stages] == [[192], [191]]


def test_what_separates_axes_late_is_known_to_all_in_one_pass(monkeypatch):
    """The last of many copies is transposed, so that no pair of axes merges; each pass told one more stage of it."""
    y = te.placeholder((4, 6), name="X")
    for _ in range(60):
        y = te.compute((4, 6), lambda i, j, y=y: y[i, j], name="C")
    visits, visit = list[str](), _Fixpoint._visit
    monkeypatch.setattr(_Fixpoint, "_visit", lambda self, op: (visits.append(op.name), visit(self, op)))
    found = collapse(te.ComputeDAG(te.compute((6, 4), lambda i, j: y[j, i], name="T")))
    assert all(len(op.axes) == 2 for op in found.stages)
    assert len(visits) <= 4 * 61
