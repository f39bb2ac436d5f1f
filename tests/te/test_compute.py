"""Definitions: tracing, hoisting of reductions, reducers, names, and every refusal of a malformed definition."""

import math

import numpy as np
import pytest

from autosched import te
from autosched.errors import ExpressionError
from autosched.ir.expr import Binary, Cast, Const, Load, Select, Var
from autosched.ir.visit import loads
from autosched.te.reducers import Reduce
from autosched.te.tensor import postorder
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


A1 = te.placeholder((4,), name="A")
A2 = te.placeholder((4, 5), name="A")
N1 = te.placeholder((4,), "int32", name="N")
K = te.reduce_axis(5, name="k")
FOREIGN = te.compute((3,), lambda z: z * 2, name="F").op


def stage(fn, shape=(4,)):
    return te.compute(shape, fn, name="C")


LEAKED = []
stage(lambda z: LEAKED.append(z) or A1[z])

REFUSED = {
    "rank": (lambda: stage(lambda i: A2[i]), r"stage C: tensor A has 2 dimensions but is indexed with 1: A\[i\]"),
    "slice": (lambda: stage(lambda i: A2[:, i]), r"stage C: index 0 of tensor A is slice.*must be an axis"),
    "negative index": (lambda: stage(lambda i: A1[-1]), r"-1 .. -1 but .* extent 4 \(it does not count from the end\)"),
    "function of Python": (lambda: stage(lambda i: math.exp(A1[i])), r"stage C: .* A\[i\] is no number .*te.exp instead of"),
    "loop over an axis": (lambda: stage(lambda i: A1[len(range(i))]), r"expression i is no .*te.reduce_axis instead of"),
    "rounding": (lambda: stage(lambda i: round(A1[i])), r"A\[i\] is no number .*te.round instead of round"),
    "function of NumPy": (lambda: stage(lambda i: np.maximum(A1[i], 0)), r"stage C: NumPy's maximum .*write te.max"),
    "choice of NumPy": (lambda: stage(lambda i: np.where(i < 2, 1.0, 0.0)), r"where is for arrays .*write te.select"),
    "NumPy of a tensor": (lambda: np.exp(A1), r"tensor A is used as a whole"),
    "array as a factor": (lambda: stage(lambda i: np.ones(2) * A1[i]), r"whole ndarray of shape \(2,\); .*te.placeholder"),
    "tensor as a factor": (lambda: stage(lambda i: A1[i] * A1), r"whole Tensor of shape \(4,\)"),
    "text as a factor": (lambda: stage(lambda i: A1[i] * "2"), r"stage C: an operator got '2', a str"),
    "sum of Python": (lambda: stage(lambda i: sum(A2[i, K])), r"A\[i, k\] is one element .*te.sum"),
    "float index": (lambda: stage(lambda i: A1[0.5]), r"index 0 of tensor A is 0.5, a float"),
    "bool index": (lambda: stage(lambda i: A1[True]), r"index 0 of tensor A is True, a bool"),
    "whole tensor": (lambda: stage(lambda i: A1 + 1.0), r"tensor A is used as a whole.*A\[i\]"),
    "whole right": (lambda: stage(lambda i: 2.0 * A1), r"tensor A is used as a whole"),
    "function of a tensor": (lambda: stage(lambda i: te.exp(A2)), r"te.exp got the tensor A as a whole.*A\[i, j\]"),
    "returns a tensor": (lambda: stage(lambda i: A1), r"stage C returned the tensor A; return one element, A\[i\]"),
    "returns nothing": (lambda: stage(lambda i: None), r"stage C returned nothing"),
    "returns an empty tuple": (lambda: stage(lambda i: ()), r"stage C returned an empty tuple"),
    "returns text": (lambda: stage(lambda i: "x"), r"stage C got 'x', a str, but needs an expression"),
    "iteration": (lambda: list(A1), r"tensor A cannot be iterated over"),
    "truth": (lambda: stage(lambda i: 1.0 if A1[i] > 0 else 0.0), r"stage C: .*has no truth value.*te.select"),
    "chained comparison": (lambda: stage(lambda i: te.select(0 <= i < 3, A1[i], 0.0)), r"no truth value"),
    "arguments": (lambda: stage(lambda i, j: A1[i]), r"stage C takes 2 arguments \(i, j\) but the shape has 1"),
    "too few arguments": (lambda: stage(lambda i: A1[i], (4, 4)), r"takes 1 arguments \(i\) but the shape has 2"),
    "no function": (lambda: stage(A1), r"function of stage C is .*pass a lambda"),
    "name": (lambda: te.placeholder((2,), name="a b"), r"name 'a b' is not usable"),
    "dtype": (lambda: te.placeholder((2,), "complex64"), r"placeholder input: dtype 'complex64' is not supported"),
    "cast": (lambda: stage(lambda i: te.cast(A1[i], "half")), r"stage C: dtype 'half' is not supported; use one of"),
    "const dtype": (lambda: te.const(1, "bf16"), r"dtype 'bf16' is not supported"),
    "const range": (lambda: te.const(300, "uint8"), r"constant 300 does not fit in uint8, whose range is 0 to 255"),
    "int function": (lambda: stage(lambda i: te.exp(N1[i])), r"stage C: exp needs a float but got int32"),
    "int division": (lambda: stage(lambda i: N1[i] / N1[i]), r"/ needs floats but got int32"),
    "weak constant": (
        lambda: stage(lambda i: N1[i] + 2**40),
        r"stage C uses the constant 1099511627776 as int32, whose",
    ),
    "zero division": (lambda: stage(lambda i: N1[i] // 0), r"stage C divides by zero in N\[i\]//0"),
    "equality as a condition": (
        lambda: stage(lambda i: te.select(i == 0, A1[i], 0.0)),
        r"False is no .*te.equal\(a, b\)",
    ),
    "equality among conditions": (lambda: stage(lambda i: te.all(i > 0, i != 2)), r"te.all: True is no .*te.equal"),
    "equality and a condition": (lambda: stage(lambda i: te.select((i == 0) | (i > 2), A1[i], 0.0)), r"te.equal"),
    "equality as a factor": (lambda: stage(lambda i: A1[i] * (N1[i] == 0)), r"stage C: False is no expression"),
    "equality as a number": (lambda: stage(lambda i: te.cast(N1[i] == 0, "int32")), r"te.cast: False is no"),
    "equality as a result": (lambda: stage(lambda i: N1[i] == 0), r"function of stage C: False is no .*te.equal"),
    "product of tensors": (lambda: A1 @ A2, r"tensor A is used as a whole"),
    "select condition": (lambda: stage(lambda i: te.select(A1[i], 1.0, 0.0)), r"condition of select must be bool"),
    "max of one": (lambda: stage(lambda i: te.max(A1[i])), r"te.max needs either axis= .* or a second value"),
    "max of three": (lambda: stage(lambda i: te.max(A1[i], 1.0, axis=K)), r"te.max needs either axis="),
    "spatial axis": (lambda: stage(lambda i: te.sum(A1[i], axis=i)), r"axis of sum is i, an output axis"),
    "no axis": (lambda: stage(lambda i: te.sum(A2[i, K], axis=())), r"sum got no axis"),
    "number as axis": (lambda: stage(lambda i: te.sum(A2[i, K], axis=1)), r"axis of sum is 1, a int"),
    "axis twice": (lambda: stage(lambda i: te.sum(A2[i, K], axis=(K, K))), r"sum reduces over the same axis twice"),
    "unreduced": (lambda: stage(lambda i: A2[i, K]), r"stage C uses the reduce axis k outside of a reduction"),
    "unreduced inside": (
        lambda: stage(lambda i: 1.0 + te.sum(A2[i, K], axis=te.reduce_axis(2))),
        r"stage C uses the reduce axis k outside",
    ),
    "leaked": (lambda: stage(lambda i: A1[LEAKED[0]]), r"stage C uses the axis z, which belongs to another stage"),
    "leaked into a reduction": (
        lambda: stage(lambda i: 1.0 + te.sum(A2[LEAKED[0], K], axis=K)),
        r"stage C uses the axis z, which belongs to another stage",
    ),
    "range": (lambda: te.reduce_axis((1, 5), name="k"), r"range of reduce axis k is \(1, 5\) but must be an extent"),
    "argmax axes": (
        lambda: stage(lambda i: te.argmax(A2[i, K], axis=(K, te.reduce_axis(2)))),
        r"te.argmax over 2 axes needs its index spelled out",
    ),
    "argmax triple": (lambda: stage(lambda i: te.argmax((i, i, A1[i]), axis=K)), r"takes a value or a pair"),
    "logic of numbers": (lambda: stage(lambda i: te.all(A1[i])), r"te.all needs conditions but A\[i\] is float32"),
    "no conditions": (lambda: te.any(), r"te.any takes conditions"),
    "view size": (lambda: te.view(stage(lambda i: A1[i]), (3,)), r"view \[3\] of tensor C has 3 elements.*\[4\] has 4"),
    "view of an input": (lambda: te.view(A1, (2, 2)), r"te.view is for outputs but A is a placeholder"),
    "view of a number": (lambda: te.view(3, (2, 2)), r"te.view needs a tensor but got 3"),
    "read of a view": (
        lambda: stage(lambda i: te.view(stage(lambda i: A1[i]), (2, 2))[0, 0]),
        r"the view \[2, 2\] of tensor C cannot be read by another stage",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_of_definitions(case):
    build, message = REFUSED[case]
    with pytest.raises(ExpressionError, match=message):
        build()


REFUSED_REDUCERS = {
    "not a function": (1, (0.0, 0.0), r"combine of te.reducer must be a function"),
    "too few results": (lambda x, y: (x[0],), (0.0, 0.0), r"combine of reducer r must return 2 values but returned 1"),
    "not a tuple": (lambda x, y: x[0], (0.0, 0.0), r"combine of reducer r must return 2 values but returned a Var"),
    "identity": (lambda x, y: x, 0.0, r"identity of reducer r must return 2 values but returned a float"),
    "foreign value": (lambda x, y: (x[0] + A1[0], x[1]), (0.0, 0.0), r"combiner of reducer r uses A\[0\]"),
    "dtype": (lambda x, y: (x[0] < y[0], x[1]), (0.0, 0.0), r"turns two values of float32 into bool"),
    "identity not constant": (lambda x, y: x, lambda a, b: (A1[0], 0.0), r"identity of reducer r is A\[0\]"),
}


@pytest.mark.parametrize("case", REFUSED_REDUCERS)
def test_refusals_of_reducers(case):
    combine, identity, message = REFUSED_REDUCERS[case]
    with pytest.raises(ExpressionError, match=message):
        te.reducer(combine, identity, "r")((A1[0], A1[1]), axis=K)


def test_reducer_of_nothing_is_refused():
    with pytest.raises(ExpressionError, match="r got an empty tuple of operands"):
        te.reducer(lambda x, y: x, 0.0, "r")((), axis=K)
