"""Definitions: tracing, hoisting of reductions, reducers and names; `test_refusals.py` has what is refused."""

import numpy as np
import pytest

from autosched import te
from autosched.errors import ExpressionError
from autosched.ir.expr import Binary, Cast, Const, Load, Select, Var
from autosched.ir.visit import loads
from autosched.te.reducers import Reduce
from autosched.te.tensor import postorder
from autosched.te.text import dag_text
from tests.te.brute import evaluate


def run(outputs, **arrays):
    return evaluate(te.ComputeDAG(outputs), arrays)


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape)


def matrix(m=4, n=5, dtype="float32", name="A"):
    return te.placeholder((m, n), dtype, name=name)


def test_matmul_is_one_reduction():
    a, b = matrix(4, 5), matrix(5, 3, name="B")
    k = te.reduce_axis(5, name="k")
    c = te.compute((4, 3), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    assert (c.name, c.shape, c.dtype) == ("C", (4, 3), "float32")
    assert [x.name for x in c.op.axes] == ["i", "j"]
    assert [(x.name, x.extent, x.reduce) for x in c.op.reduce_axes] == [("k", 5, True)]
    assert c.op.reducer.name == "sum"
    assert str(c.op.body[0]) == "A[i, k] * B[k, j]"
    assert all(type(n) is Var for n in postorder(c.op.body) if isinstance(n, Var))
    x, y = normal(4, 5), normal(5, 3)
    np.testing.assert_allclose(run(c, A=x, B=y)[0], x @ y)


def test_a_reduction_inside_an_expression_is_hoisted_over_the_axes_it_uses():
    a = matrix()
    k = te.reduce_axis(5, name="k")
    b = te.compute((4, 5), lambda i, j: te.sqrt(te.sum(a[i, k] * a[i, k], axis=k)) + a[i, j], name="B")
    stages = te.ComputeDAG(b).stages
    assert [s.name for s in stages] == ["B.red", "B"]
    assert [s.shape for s in stages] == [(4,), (4, 5)]
    x = normal(4, 5)
    np.testing.assert_allclose(run(b, A=x)[0], np.sqrt((x * x).sum(1))[:, None] + x)


def test_two_reductions_in_one_expression():
    a = matrix()
    k = te.reduce_axis(5, name="k")
    b = te.compute((4,), lambda i: te.max(a[i, k], axis=k) - te.sum(a[i, k], axis=k), name="B")
    assert [s.name for s in te.ComputeDAG(b).stages] == ["B.red", "B.red1", "B"]
    x = normal(4, 5)
    np.testing.assert_allclose(run(b, A=x)[0], x.max(1) - x.sum(1))


def test_softmax_in_one_expression_shares_the_inner_reduction():
    a = matrix()
    k = te.reduce_axis(5, name="k")

    def softmax(i, j):
        top = te.max(a[i, k], axis=k)
        return te.exp(a[i, j] - top) / te.sum(te.exp(a[i, k] - top), axis=k)

    s = te.compute((4, 5), softmax, name="S")
    assert [t.name for t in te.ComputeDAG(s).stages] == ["S.red", "S.red1", "S"]
    x = normal(4, 5)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(run(s, A=x)[0], e / e.sum(1, keepdims=True))


def test_a_reduction_inside_a_reduction():
    a = te.placeholder((2, 3, 4), name="A")
    j, k = te.reduce_axis(3, name="j"), te.reduce_axis(4, name="k")
    b = te.compute((2,), lambda i: te.sum(te.max(a[i, j, k], axis=k), axis=j), name="B")
    stages = te.ComputeDAG(b).stages
    assert [(s.name, s.shape) for s in stages] == [("B.red", (2, 3)), ("B", (2,))]
    assert not stages[0].axes[1].reduce
    x = normal(2, 3, 4)
    np.testing.assert_allclose(run(b, A=x)[0], x.max(2).sum(1))


def test_no_reduce_node_survives():
    a = matrix()
    k = te.reduce_axis(5)
    b = te.compute((4,), lambda i: te.select(te.sum(a[i, k], axis=k) > 0, 1.0, te.min(a[i, k], axis=k)))
    for stage in te.ComputeDAG(b).stages:
        assert not any(isinstance(n, Reduce) for n in postorder(stage.body))


def test_full_reduction_has_rank_zero():
    a = matrix()
    i, j = te.reduce_axis(4, name="i"), te.reduce_axis((0, 5), name="j")
    s = te.compute((), lambda: te.sum(a[i, j], axis=(i, j)), name="S")
    assert s.shape == ()
    t = te.compute((2,), lambda i: s[()] + 1.0, name="T")
    x = normal(4, 5)
    np.testing.assert_allclose(run((s, t), A=x)[1], [x.sum() + 1] * 2)


def test_axis_names_are_unique_in_a_stage():
    a = te.placeholder((2, 3, 3), name="A")
    first, second = te.reduce_axis(3), te.reduce_axis(3)
    b = te.compute((2,), lambda r: te.sum(a[r, first, second], axis=(first, second)), name="B")
    assert [x.name for x in (*b.op.axes, *b.op.reduce_axes)] == ["r", "r_1", "r_2"]
    assert str(b.op.body[0]) == "A[r, r_1, r_2]"


@pytest.mark.parametrize(
    ("fn", "names"),
    [(lambda n, c, s=2: n + c * s, ["n", "c"]), (lambda *i: i[0] + i[1], ["i0", "i1"]), (lambda a, *b: a, ["a", "b1"])],
)
def test_axis_names_come_from_the_arguments(fn, names):
    assert [x.name for x in te.compute((2, 3), fn).op.axes] == names


def test_python_numbers_are_weak():
    a = matrix(dtype="float64")
    b = te.compute((4, 5), lambda i, j: te.max(a[i, j] * 2, 0.5), name="B")
    assert b.dtype == "float64"
    assert not any(isinstance(n, Cast) for n in postorder(b.op.body))
    assert te.compute((2,), lambda i: 0.0).dtype == "float32"
    assert te.compute((2,), lambda i: i).dtype == "int64"
    assert te.compute((2,), lambda i: np.float64(1.5)).dtype == "float32"
    assert te.compute((2,), lambda i: te.select(i < 1, 1, 2.0)).dtype == "float32"


def test_numbers_of_numpy_are_numbers_on_either_side():
    """A float makes a float of an integer, whatever class it is of; np.float64 is Python's float too."""
    a = matrix(dtype="int32")
    half, two = [np.float32(2.5), np.float64(2.5), np.array(2.5)], [np.int64(2), np.uint8(2), np.array(2)]
    for number in half:
        left, right = te.compute((4, 5), lambda i, j, c=number: (c * a[i, j], a[i, j] * c))
        assert [str(t.op.body[0]) for t in (left, right)] == ["2.5 * float32(A[i, j])", "float32(A[i, j]) * 2.5"]
    for number in two:
        assert te.compute((4, 5), lambda i, j, c=number: c << a[i, j] ** c).dtype == "int32"
    assert te.placeholder((2,), np.float16).dtype == "float16"
    assert te.compute((4, 5), lambda i, j: te.cast(a[i, j], np.dtype("uint8"))).dtype == "uint8"


def test_names_of_numpy_are_told_those_of_te():
    with pytest.raises(AttributeError, match=r"te has no 'where'; it is te.select here"):
        te.where(0, 1.0, 2.0)
    with pytest.raises(AttributeError, match=r"te has no 'gamma'$"):
        te.gamma(1.0)


def test_index_arithmetic_beside_neutral_elements():
    a = te.placeholder((8,), name="A")
    b = te.compute((4,), lambda i: a[i * 1 + 0] + a[2 * i + 1], name="B")
    assert str(b.op.body[0]) == "A[i] + A[2*i + 1]"


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8"])
def test_narrow_sums_accumulate_in_int32(dtype):
    a = matrix(dtype=dtype)
    k = te.reduce_axis(5)
    for fn in (te.sum, te.prod):
        assert te.compute((4,), lambda i, f=fn: f(a[i, k], axis=k)).dtype == "int32"


@pytest.mark.parametrize(
    ("fn", "dtype", "identity"),
    [
        (te.max, "float32", float("-inf")),
        (te.min, "float64", float("inf")),
        (te.max, "int8", -128),
        (te.min, "uint8", 255),
        (te.max, "int32", -(2**31)),
        (te.min, "int64", 2**63 - 1),
        (te.max, "bool", False),
        (te.min, "bool", True),
        (te.sum, "float64", 0.0),
        (te.prod, "int32", 1),
    ],
)
def test_identities(fn, dtype, identity):
    a = matrix(dtype=dtype)
    k = te.reduce_axis(5)
    op = te.compute((4,), lambda i: fn(a[i, k], axis=k)).op
    assert op.reducer.identity == (Const(identity, dtype),)
    assert op.body[0].dtype == dtype


def test_argmax_takes_the_first_of_equal_values():
    a = matrix(2, 4)
    k = te.reduce_axis(4, name="k")
    index, value = te.compute((2,), lambda i: te.argmax(a[i, k], axis=k), name="M")
    assert (index.name, value.name, index.dtype, value.dtype) == ("M.v0", "M.v1", "int64", "float32")
    assert index.op is value.op
    x = np.array([[1.0, 3.0, 3.0, 2.0], [-np.inf] * 4])
    got = run((index, value), A=x)
    assert got[0].tolist() == [1, 0]
    assert got[1].tolist() == [3.0, -np.inf]


def test_argmin_with_a_written_out_index_and_only_one_part_used():
    a = te.placeholder((2, 3), name="A")
    i, j = te.reduce_axis(2, name="i"), te.reduce_axis(3, name="j")
    where = te.compute((1,), lambda n: te.argmin((i * 3 + j, a[i, j]), axis=(i, j))[0], name="W")
    x = np.array([[5.0, 1.0, 4.0], [3.0, 0.5, 0.5]])
    assert run(where, A=x)[0].tolist() == [4]


def test_user_reducer_on_a_tuple():
    a = matrix(2, 6)
    k = te.reduce_axis(6)
    both = te.reducer(lambda x, y: (x[0] + y[0], te.max(x[1], y[1])), lambda s, m: (0.0, -1e30), "both")
    total, top = te.compute((2,), lambda i: both((a[i, k], te.abs(a[i, k])), axis=k), name="T")
    x = normal(2, 6)
    got = run((total, top), A=x)
    np.testing.assert_allclose(got[0], x.sum(1))
    np.testing.assert_allclose(got[1], abs(x).max(1))


def test_a_reducer_whose_order_matters_is_a_recurrence():
    x, k = te.placeholder((4, 5), name="X"), te.reduce_axis(4, "k")
    halved = te.reducer(lambda a, b: a * 0.5 + b, 1.0, "halved", ordered=True)
    dag = te.ComputeDAG(te.compute((5,), lambda j: halved(x[k, j], axis=k) * 2.0, name="Y"))
    assert dag_text(dag).splitlines()[1:3] == [
        "Y.red[k:4, j:5] = select(k >= 1, Y.red[k - 1, j], 1.0) * 0.5 + X[k, j]",
        "Y[j:5] = Y.red[3, j] * 2.0",
    ]
    (result,) = evaluate(dag, {"X": np.arange(20.0).reshape(4, 5)})
    expected = np.ones(5)
    for row in np.arange(20.0).reshape(4, 5):
        expected = expected * 0.5 + row
    np.testing.assert_array_equal(result, expected * 2)


@pytest.mark.parametrize(
    ("combine", "rows", "extent"),
    [
        (lambda a, b: a * 0.5 + b, 35, 4),  # eight at each position, the first three where it begins
        (lambda a, b: a * 0.5 + b, 15, 15),  # too few
        (lambda a, b: a * a + b, 35, 35),  # it would be doubled by each
    ],
)
def test_positions_combine_several_terms_in_order(combine, rows, extent):
    x, k = te.placeholder((rows, 2), name="X"), te.reduce_axis(rows, "k")
    fold = te.reducer(combine, 0.25, "fold", ordered=True)
    dag = te.ComputeDAG(te.compute((2,), lambda j: fold(x[k, j], axis=k), name="Y"))
    assert dag.stages[0].shape == (extent, 2)
    data = np.random.default_rng(0).integers(-2, 3, (rows, 2)) / 8
    expected = np.full(2, 0.25)
    for row in data:
        expected = combine(expected, row)
    np.testing.assert_allclose(evaluate(dag, {"X": data})[0], expected, rtol=1e-12)


def test_an_ordered_reduction_of_reductions():
    x, k, r = te.placeholder((3, 20, 4), name="X"), te.reduce_axis(20, "k"), te.reduce_axis(3, "r")
    fold = te.reducer(lambda a, b: a * 0.5 - b, 1.0, "fold", ordered=True)
    dag = te.ComputeDAG(te.compute((4,), lambda j: fold(te.sum(x[r, k, j], axis=r), axis=k), name="Y"))
    data = np.arange(240.0).reshape(3, 20, 4)
    expected = np.ones(4)
    for row in data.sum(0):
        expected = expected * 0.5 - row
    np.testing.assert_allclose(evaluate(dag, {"X": data})[0], expected)


def test_an_ordered_reduction_is_over_a_size_from_1_on():
    n = te.size("N", 0, 9)
    x, k = te.placeholder((n,), name="X"), te.reduce_axis(n, "k")
    first = te.reducer(lambda a, b: a, 1.0, "first", ordered=True)
    with pytest.raises(ExpressionError, match=r"stage Y: .*ordered.* may be 0; give te\.size a range from 1 on"):
        te.compute((), lambda: first(x[k], axis=k), name="Y")


def test_user_reducer_on_one_value():
    a = matrix(2, 6)
    k = te.reduce_axis(6)
    norm = te.reducer(lambda x, y: te.max(te.abs(x), te.abs(y)), 0.0, "norm")
    x = normal(2, 6)
    np.testing.assert_allclose(run(te.compute((2,), lambda i: norm(a[i, k], axis=k)), A=x)[0], abs(x).max(1))


def test_elementwise_tuple_gives_a_tensor_for_each_value():
    a = matrix()
    low, high = te.compute((4, 5), lambda i, j: (te.min(a[i, j], 0.0), te.max(a[i, j], 0.0)), name="S")
    assert (low.name, high.name) == ("S.v0", "S.v1")
    x = normal(4, 5)
    got = run((low, high), A=x)
    np.testing.assert_allclose(got[0] + got[1], x)


def test_any_and_all_in_both_forms():
    a = matrix(2, 3)
    k = te.reduce_axis(3)
    some = te.compute((2,), lambda i: te.any(a[i, k] > 0, axis=k))
    each = te.compute((2,), lambda i: te.all(a[i, k] > 0, axis=k))
    x = np.array([[1.0, -1.0, 1.0], [2.0, 1.0, 1.0]])
    assert run(some, A=x)[0].tolist() == [True, True]
    assert run(each, A=x)[0].tolist() == [False, True]
    pad = te.compute((5,), lambda i: te.select(te.all(i >= 1, i < 4), a[0, i - 1], 0.0))
    assert isinstance(pad.op.body[0], Select)
    either = te.compute((5,), lambda i: te.if_then_else(te.any(i < 1, te.logical_not(i < 4)), 0.0, a[1, i - 1]))
    assert run(either, A=x)[0].tolist() == [0, 2, 1, 1, 0]


def test_an_index_may_choose():
    """Minima, maxima, absolute values and selects in an index become selects of elements: np.pad's modes, and data."""
    a = matrix(4, 5)
    n = te.placeholder((4,), "int32", name="N")
    x, bits = normal(4, 5), np.array([1, 0, 0, 1])

    def clamped(i, size):
        return te.min(te.max(i - 2, 0), size - 1)

    edge = te.compute((8, 9), lambda i, j: a[clamped(i, 4), clamped(j, 5)], name="B")
    assert all(isinstance(v, (Var, Const, Binary)) for load in loads(edge.op.body[0]) for v in load.indices)
    np.testing.assert_array_equal(run(edge, A=x)[0], np.pad(x, 2, "edge"))
    mirrored = te.compute((4, 9), lambda i, j: a[i, 4 - te.abs(4 - te.abs(j - 2))], name="B")
    np.testing.assert_array_equal(run(mirrored, A=x)[0], np.pad(x, ((0, 0), (2, 2)), "reflect"))
    either = te.compute((4,), lambda i: a[te.select(n[i] > 0, i, 3 - i), 1] + a[te.select(i < 2, i, 0), te.min(2, 1)])
    expected = [x[i if bits[i] else 3 - i, 1] + x[i if i < 2 else 0, 1] for i in range(4)]
    np.testing.assert_array_equal(run(either, A=x, N=bits)[0], expected)


def test_an_index_may_be_data():
    """Of any integer type, in sums with axes, in conditions of choices, and outside of the dimension: its nearest end."""
    a, n = matrix(4, 5), te.placeholder((6,), "int32", name="N")
    x, at = normal(4, 5), np.array([2, -1, 4, 0, 3, 99])
    rows = te.compute((6, 5), lambda i, j: a[n[i], j], name="B")
    np.testing.assert_array_equal(run(rows, A=x, N=at)[0], np.take(x, at, axis=0, mode="clip"))
    sums = te.compute((6, 4), lambda i, j: a[j, n[i] * 2 - j], name="B")
    expected = [[x[j, np.clip(k * 2 - j, 0, 4)] for j in range(4)] for k in at]
    np.testing.assert_array_equal(run(sums, A=x, N=at)[0], expected)
    chosen = te.compute((6,), lambda i: a[te.min(n[i], 3), te.min(i, 2)], name="B")
    expected = [x[max(0, min(k, 3)), min(i, 2)] for i, k in enumerate(at)]
    np.testing.assert_array_equal(run(chosen, A=x, N=at)[0], expected)
    k = te.reduce_axis(5, name="k")
    best = te.compute((4,), lambda i: a[i, te.argmax(a[i, k], axis=k)[0]], name="B")
    np.testing.assert_array_equal(run(best, A=x)[0], x.max(axis=1))


def test_functions_of_expressions():
    a = te.placeholder((2,), name="A")
    n = te.placeholder((2,), "int32", name="N")
    smooth = (te.exp, te.log, te.tanh, te.sqrt, te.rsqrt, te.erf, te.sigmoid, te.sin, te.cos)
    for fn in (*smooth, te.floor, te.ceil, te.round):
        assert te.compute((2,), lambda i, f=fn: f(a[i])).op.body[0].fn == fn.__name__
    assert te.compute((2,), lambda i: te.abs(n[i])).dtype == "int32"
    assert te.compute((2,), lambda i: te.pow(a[i], 2)).op.body[0].op == "pow"
    assert te.compute((2,), lambda i: te.minimum(n[i], te.maximum(3, n[i]))).dtype == "int32"
    assert te.compute((2,), lambda i: te.mod(n[i], 3) + te.floordiv(n[i], 3)).dtype == "int32"
    assert te.compute((2,), lambda i: te.equal(n[i], 0)).dtype == "bool"
    assert te.compute((2,), lambda i: te.not_equal(a[i], 0.0)).dtype == "bool"
    assert te.compute((2,), lambda i: te.cast(n[i], "float64")).dtype == "float64"
    assert te.const(1, "int8") is Const(1, "int8")
    assert te.const(1.5) is Const(1.5, "float32")


def test_view_changes_only_what_the_caller_sees():
    a = matrix()
    b = te.compute((4, 5), lambda i, j: a[i, j] + 1.0, name="B")
    v = te.view(b, (2, 10))
    assert (v.shape, v.public_shape) == ((4, 5), (2, 10))
    assert te.view(b, (4, 5)).view is None
    x = normal(4, 5)
    np.testing.assert_allclose(run(v, A=x)[0], (x + 1).reshape(2, 10))


def test_numpy_integers_are_extents_and_indices():
    a = te.placeholder(np.int64(4), name="A")
    b = te.compute((np.int32(2),), lambda i: a[i + np.int64(1)] + a[np.int64(0)], name="B")
    assert b.shape == (2,)
    assert type(b.shape[0]) is int


def chain(count):
    a = te.placeholder((3,), name="A")

    def written_out(i):
        value = a[i]
        for _ in range(count):
            value = value + 1.0
        return value

    return te.compute((3,), written_out, name="C")


def test_written_out_sums_have_a_limit():
    assert te.ComputeDAG(chain(190)).flops == 570
    with pytest.raises(ExpressionError, match="stage C nests more than 200 operations in one another; reduce over"):
        chain(200)
    with pytest.raises(ExpressionError, match="stage C nests more than 200 operations"):
        chain(5000)
    with pytest.raises(ExpressionError, match="stage C nests far too many operations"):
        te.compute((3,), endless, name="C")


def endless(i):
    return endless(i + 1) + 1.0


def test_shared_subexpressions_stay_shared():
    a = te.placeholder((3,), name="A")

    def doubled(i):
        value = a[i]
        for _ in range(100):
            value = value + value
        return value

    dag = te.ComputeDAG(te.compute((3,), doubled))
    assert dag.flops == 300
    assert len(dag.content_hash) == 64


def test_two_tensors_of_one_name_in_one_stage_stay_apart():
    a, b = te.placeholder((2,), name="A"), te.placeholder((2,), name="A")
    c = te.compute((2,), lambda i: a[i] - b[i], name="C")
    dag = te.ComputeDAG(c)
    assert [t.name for t in dag.inputs] == ["A", "A_1"]
    body = dag.stages[0].body[0]
    assert isinstance(body, Binary)
    assert [type(n) for n in body.children] == [Load, Load]
    assert run(c, A=np.array([3.0, 4.0]), A_1=np.array([1.0, 1.0]))[0].tolist() == [2, 3]
