"""The reference: values, bounds that hold for float32 in any order, and that notice a missing term."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autosched import te
from autosched.te import ComputeDAG, Tensor
from autosched.te.operators import conv, gemm, normalise
from autosched.te.operators.registry import WORKLOADS, build, small_numbers
from autosched.te.operators.winograd import winograd
from autosched.te.reference import blas as reference_blas
from autosched.te.reference import error_bounds
from autosched.te.reference import evaluate as reference
from autosched.te.reference.evaluate import Reference, evaluate, evaluate_exactly, within
from autosched.te.reference.inputs import make_inputs
from autosched.te.reference.plain import evaluate_plainly

Array = np.ndarray[Any, Any]
F32 = np.float32


def check(tensors: Any, inputs: dict[str, Array]) -> tuple[Reference, ...]:
    return evaluate(ComputeDAG(tensors), inputs)


def elementwise(fn: Any, *arrays: Array) -> Reference:
    """fn over the elements of `arrays`."""
    ins = [te.placeholder(a.shape, str(a.dtype), name=f"x{i}") for i, a in enumerate(arrays)]
    out = te.compute(arrays[0].shape, lambda i: fn(*(x[i] for x in ins)), name="y")
    return check(out, {f"x{i}": a for i, a in enumerate(arrays)})[0]


def sequential_matmul(a: Array, b: Array, order: Array) -> Array:
    """float32, one product and one addition at a time, in the given order of k."""
    total = np.zeros((a.shape[0], b.shape[1]), F32)
    for k in order:
        total = total + a[:, k, None] * b[k]
    return total


@pytest.mark.parametrize(
    ("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("float32", 2.0**-24), ("float64", 2.0**-52)]
)
def test_a_rounding_of_float64_is_counted_twice(dtype: str, unit: float) -> None:
    """The reference, which computes in it, rounds as well."""
    assert error_bounds.unit(dtype) == unit


@pytest.mark.parametrize("k", [1, 2, 7, 100])
def test_a_sum_of_products_in_any_order_is_within_the_bound_and_a_dropped_term_is_not(k: int) -> None:
    dag = ComputeDAG(gemm.matmul(5, 7, k))
    ins = make_inputs(dag, 1)
    (ref,) = evaluate(dag, ins)
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = rng.permutation(k)
        assert within(ref, sequential_matmul(ins["A"], ins["B"], order)).all()
    dropped = sequential_matmul(ins["A"], ins["B"], np.arange(k - 1))
    assert not within(ref, dropped).any()
    assert (ref.bound < 1e-3).all()


@pytest.mark.parametrize("kind", ["structured", "integers"])
def test_sums_of_small_integers_are_checked_exactly(kind: str) -> None:
    for tensor in (conv.cbr(1, 7, 7, 16, 5, 3, 2, 1), conv.dep(1, 7, 5, 3, 3, 2, 1), gemm.tbg(1, 5, 2, 300)):
        dag = ComputeDAG(tensor)
        (ref,) = evaluate(dag, make_inputs(dag, 0, kind))
        assert not ref.bound.any()
        assert np.array_equal(ref.value, np.rint(ref.value))
        one_off = ref.value.copy()
        one_off.flat[3] += 1
        assert within(ref, ref.value.astype(F32)).all()
        assert np.count_nonzero(~within(ref, one_off.astype(F32))) == 1


def test_softmax_and_layer_norm_in_float32_are_within_the_bound() -> None:
    dag = ComputeDAG(normalise.softmax(5, 300))
    ins = make_inputs(dag, 2)
    (ref,) = evaluate(dag, ins)
    a = ins["A"] * F32(1)
    e = np.exp(a - a.max(-1, keepdims=True))
    good = e / e.sum(-1, keepdims=True, dtype=F32)
    assert within(ref, good).all()
    assert not within(ref, e / e[:, 1:].sum(-1, keepdims=True, dtype=F32)).all()
    dag = ComputeDAG(normalise.layer_norm(5, 64))
    ins = make_inputs(dag, 2)
    (ref,) = evaluate(dag, ins)
    x, one = ins["X"], F32(1)
    centred = x - (x.sum(-1, keepdims=True) / F32(64))
    variance = (centred * centred).sum(-1, keepdims=True) / F32(64)
    got = centred * (one / np.sqrt(variance + F32(1e-5))) * ins["gamma"] + ins["beta"]
    assert got.dtype == F32
    assert within(ref, got).all()
    assert (ref.bound < 1e-3).all()


def test_winograd_gets_a_larger_bound_that_direct_float32_convolution_meets() -> None:
    wino, direct = ComputeDAG(winograd(1, 8, 8, 16, 4, 1, 4)), ComputeDAG(conv.c2d(1, 8, 8, 16, 4, 3, 1, 1))
    ins = make_inputs(wino, 3)
    (a,), (b,) = evaluate(wino, ins), evaluate(direct, ins)
    assert np.allclose(a.value, b.value, atol=1e-5)
    assert a.bound.max() > b.bound.max()
    assert within(a, b.value.astype(F32)).all()


UNARY = {
    "exp": (lambda x: te.exp(x * 1.7), lambda x: np.exp(x * F32(1.7))),
    "log": (lambda x: te.log(te.abs(x) + 0.3), lambda x: np.log(np.abs(x) + F32(0.3))),
    "tanh": (lambda x: te.tanh(x * 3.0), lambda x: np.tanh(x * F32(3))),
    "sqrt": (lambda x: te.sqrt(x * x + 0.1), lambda x: np.sqrt(x * x + F32(0.1))),
    "rsqrt": (lambda x: te.rsqrt(x * x + 0.1), lambda x: F32(1) / np.sqrt(x * x + F32(0.1))),
    "sigmoid": (lambda x: te.sigmoid(x * 2.5), lambda x: F32(1) / (F32(1) + np.exp(-(x * F32(2.5))))),
    "sin": (lambda x: te.sin(x * 0.7), lambda x: np.sin(x * F32(0.7))),
    "cos": (lambda x: te.cos(x * 0.7), lambda x: np.cos(x * F32(0.7))),
    "pow": (lambda x: te.pow(te.abs(x) + 0.2, 1.3), lambda x: (np.abs(x) + F32(0.2)) ** F32(1.3)),
    "div": (lambda x: x / (x * x + 0.5), lambda x: x / (x * x + F32(0.5))),
    "cancel": (lambda x: (x * 1.1 + 100.0) - 100.0, lambda x: (x * F32(1.1) + F32(100)) - F32(100)),
    "minmax": (lambda x: te.max(te.min(x * 1.1, 0.5), -0.5), lambda x: np.clip(x * F32(1.1), F32(-0.5), F32(0.5))),
    "select": (lambda x: te.select(x * 1.1 > 0.0, x * 0.3, x), lambda x: np.where(x > 0, x * F32(0.3), x)),
}


@pytest.mark.parametrize("name", sorted(UNARY))
def test_functions_in_float32_are_within_a_small_bound(name: str) -> None:
    x = np.random.default_rng(1).standard_normal(4096).astype(F32)
    fn, direct = UNARY[name]
    ref = elementwise(fn, x)
    got = direct(x)
    assert got.dtype == F32
    assert within(ref, got).all()
    assert (ref.bound <= 2e-5 * (1 + np.abs(ref.value))).all()
    assert not within(ref, got + F32(0.001) * (F32(1) + np.abs(got))).any()


def test_exact_operations_have_no_bound() -> None:
    x = np.arange(-8, 8).astype(F32)
    exact = (lambda v: v * 0.5, lambda v: v + 3.0, lambda v: -v, lambda v: te.max(v, 0.0), lambda v: te.floor(v * 0.5))
    for fn in exact:
        assert not elementwise(fn, x).bound.any()
    assert elementwise(lambda v: v * 0.1, x).bound.any()


def test_steps_of_inexact_values_allow_both_sides_only_near_the_step() -> None:
    x = np.array([0.3, 10 / 3, 7.3], F32)
    ref = elementwise(lambda v: te.floor(v * 0.3), x)  # 10/3 * 0.3 is 1 but for rounding
    assert ref.bound.tolist() == [0.0, 1.0, 0.0]
    ref = elementwise(lambda v: (v * 0.3).astype("int32"), x)
    assert ref.value.dtype == np.int32
    assert ref.bound.tolist() == [0.0, 1.0, 0.0]
    ref = elementwise(lambda v: te.fmod(v * 0.3, 1.0), x)
    assert within(ref, np.fmod(x * F32(0.3), F32(1.0))).all()
    assert (ref.bound < 1e-6).tolist() == [True, False, True]
    assert not elementwise(lambda v: te.fmod(v, 0.3), x).bound.any()
    ref = elementwise(lambda v: te.select(v * 0.3 >= 1.0, 5.0, 2.0), x)
    assert ref.bound.tolist() == [0.0, 3.0, 0.0]


def test_integers_wrap_around_and_divide_like_python() -> None:
    a, b = np.array([100, -128, 7, -7], np.int8), np.array([100, -1, 2, 2], np.int8)
    assert elementwise(lambda x, y: x + y, a, b).value.tolist() == [-56, 127, 9, -5]
    assert elementwise(lambda x, y: x * y, a, b).value.tolist() == [16, -128, 14, -14]
    c, d = np.array([7, -7, 9], np.int32), np.array([2, 2, -4], np.int32)
    assert elementwise(lambda x, y: x // y, c, d).value.tolist() == [3, -4, -3]
    assert elementwise(lambda x, y: x % y, c, d).value.tolist() == [1, 1, -3]
    assert elementwise(lambda x: x.astype("bool"), c).value.tolist() == [True, True, True]


def test_large_integer_products_do_not_pass_through_floats() -> None:
    dag = ComputeDAG(gemm.matmul(3, 2, 5, "int64"))
    rng = np.random.default_rng(0)
    ins = {n: rng.integers(-(1 << 40), 1 << 40, dag.tensors[n].shape) for n in ("A", "B")}
    (ref,) = evaluate(dag, ins)
    with np.errstate(over="ignore"):
        assert np.array_equal(ref.value, ins["A"] @ ins["B"])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("out", ["float32", "float64"])
def test_small_integers_that_are_cast_to_floats_do_not_wrap_around(dtype: str, out: str) -> None:
    A, B = te.placeholder((3, 5), dtype, "A"), te.placeholder((5, 4), dtype, "B")
    k = te.reduce_axis(5, "k")
    C = te.compute((3, 4), lambda i, j: te.sum(A[i, k].astype(out) * B[k, j].astype(out), axis=k), "C")
    limits = np.iinfo(dtype)
    ins = {"A": np.full((3, 5), limits.min, dtype), "B": np.full((5, 4), limits.max, dtype)}
    ins["A"][1], ins["B"][:, 1] = limits.max, limits.min
    (ref,) = check(C, ins)
    assert np.array_equal(ref.value, ins["A"].astype("float64") @ ins["B"].astype("float64"))
    assert not ref.bound.any()


def test_nan_and_infinity_are_expected_where_they_belong() -> None:
    x = np.array([-1.0, 0.0, 1.0], F32)
    ref = elementwise(lambda v: te.log(v), x)
    assert within(ref, np.array([np.nan, -np.inf, 0.0], F32)).all()
    assert within(ref, np.array([0.0, 0.0, np.nan], F32)).tolist() == [False, False, False]
    masked = elementwise(lambda v: te.exp(te.select(v > 0.5, v, -np.inf)), x)
    assert masked.value[:2].tolist() == [0.0, 0.0]
    assert np.isfinite(masked.bound).all()
    huge = elementwise(lambda v: te.exp(v * 100.0), x)
    assert within(huge, np.array([0.0, 1.0, np.inf], F32)).all()  # e^100 is beyond float32


def test_what_overflows_in_float32_alone_may_make_anything_of_an_infinity() -> None:
    """e^100 is 3e43 and e^1000 infinite in float64; in float32 both are, and their difference is NaN."""
    x, nan = np.array([0.0, 1.0], F32), np.array([0.0, np.nan], F32)
    ref = elementwise(lambda v: te.exp(v * 100.0) - te.exp(v * 1000.0), x)
    assert ref.value.tolist() == [0.0, -np.inf]
    assert within(ref, nan).all()
    assert not within(elementwise(lambda v: 1.0 - te.exp(v * 1000.0), x), nan)[1]
    A, B = te.placeholder((2, 2), name="A"), te.placeholder((2, 3), name="B")
    k = te.reduce_axis(2, "k")
    E = te.compute((2, 2), lambda i, j: te.exp(A[i, j]), "E")
    ins = {"A": np.array([[0.0, 0.0], [100.0, 1000.0]], F32), "B": np.array([[1.0] * 3, [-1.0] * 3], F32)}
    for product in (lambda i, j: E[i, k] * B[k, j], lambda i, j: te.exp(A[i, k]) * B[k, j]):
        (sums,) = check(te.compute((2, 3), lambda i, j, f=product: te.sum(f(i, j), axis=k), "C"), ins)
        assert within(sums, np.array([[0.0] * 3, [np.nan] * 3], F32)).all()
        assert not within(sums, np.ones((2, 3), F32))[0].any()
    X, r = te.placeholder((2,), name="X"), te.reduce_axis(2, "r")
    running = te.compute((2,), lambda i: te.sum(te.select(r <= i, te.exp(X[r]) * (50.0 - X[r]), 0.0), axis=r), "R")
    assert within(*check(running, {"X": np.array([100.0, 1000.0], F32)}), np.array([-np.inf, np.nan], F32)).all()


def argmax_of(x: Array, scale: float | None = None) -> tuple[Reference, ...]:
    a = te.placeholder(x.shape, "float32", name="A")
    k = te.reduce_axis(x.shape[1], name="k")
    value = (lambda i, j: a[i, j]) if scale is None else (lambda i, j: a[i, j] * scale)
    return check(te.compute((x.shape[0],), lambda i: te.argmax(value(i, k), axis=k), name="best"), {"A": x})


def test_argmax_of_exact_values_is_the_first_maximum() -> None:
    x = np.random.default_rng(0).integers(0, 5, (7, 33)).astype(F32)
    index, value = argmax_of(x)
    assert np.array_equal(index.value, x.argmax(1))
    assert np.array_equal(value.value, x.max(1))
    assert not index.bound.any()


def test_argmax_of_inexact_values_allows_every_near_tie() -> None:
    x = np.array([[3.0, 1.0, np.nextafter(F32(3), F32(4)), 0.5], [1.0, 2.0, 5.0, 0.0]], F32)
    index, _ = argmax_of(x, 0.1)
    assert abs(index.value[0] - 0) <= index.bound[0]
    assert abs(index.value[0] - 2) <= index.bound[0]
    assert (index.value[1], index.bound[1]) == (2, 0)


def test_a_reducer_that_depends_on_the_order_of_ties_allows_both() -> None:
    best = te.reducer(
        lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.select(x[1] >= y[1], x[1], y[1])),
        lambda i, v: (te.const(-1, i), te.const(-np.inf, v)),
        name="last_best",
    )
    x = np.array([[2.0, 7.0, 1.0, 7.0, 3.0]], F32)
    a, k = te.placeholder(x.shape, "float32", name="A"), te.reduce_axis(5, name="k")
    index, value = check(te.compute((1,), lambda i: best((k, a[i, k]), axis=k), name="best"), {"A": x})
    assert all(abs(index.value[0] - tied) <= index.bound[0] for tied in (1, 3))
    assert (value.value[0], value.bound[0]) == (7.0, 0.0)


def test_numbers_that_add_up_exactly_in_one_order_are_rounded_in_another() -> None:
    A = te.placeholder((3,), "float32", name="A")
    k = te.reduce_axis(3, name="k")
    moments = te.reducer(lambda x, y: (x[0] + y[0], x[1] + y[1]), (0.0, 0.0), name="moments")
    dag = ComputeDAG(te.compute((), lambda: moments((A[k], 2.0 * A[k]), axis=k), name="M"))
    one, small = np.float32(1.0), np.float32(2.0**-30)
    for values in ([one, -one, small], [2.5, -2.5, small]):
        first, second = evaluate(dag, {"A": np.array(values, "float32")})
        assert first.value == small
        assert within(first, np.float32(0.0)).all()  # of (1 + 2^-30) - 1
        assert within(second, np.float32(0.0)).all()
        assert not within(first, np.float32(1e-5)).any()
    whole, _ = evaluate(dag, {"A": np.array([3.0, -7.0, 5.0], "float32")})
    assert whole.bound == 0.0


def test_reducers_of_the_users_own_run_in_order() -> None:
    moments = te.reducer(lambda x, y: (x[0] + y[0], x[1] + y[1]), (0.0, 0.0), name="moments")
    product = te.reducer(lambda x, y: x * y, 1.0, name="product")
    x = np.random.default_rng(3).standard_normal((4, 50)).astype(F32)
    a, k, r = te.placeholder(x.shape, "float32", name="A"), te.reduce_axis(50, name="k"), te.reduce_axis(9, name="r")
    total, squares = te.compute((4,), lambda i: moments((a[i, k], a[i, k] * a[i, k]), axis=k), name="m")
    times = te.compute((4,), lambda i: product(a[i, r], axis=r), name="p")
    got = check((total, squares, times), {"A": x})
    expected = (x.sum(1, dtype=F32), (x * x).sum(1, dtype=F32), x[:, :9].prod(1))
    for ref, array in zip(got, expected, strict=True):
        assert within(ref, array).all()
        assert (ref.bound < 1e-3).all()
        assert ref.bound.any()


def several_stages() -> Tensor:
    """Padding, a guarded read, a convolution and a normalisation in one."""
    return gemm.tbs(2, 7, 3, 5)


@pytest.mark.parametrize(
    "tensor",
    [
        lambda: conv.c2d(2, 7, 9, 3, 4, 3, 2, 1), lambda: conv.grp(2, 7, 9, 4, 6, 3, 2, 1, 1, 2),
        lambda: conv.dep(2, 9, 7, 5, 3, 2, 1), lambda: conv.cap(1, 5, 4, 2, 3, 3, 2, 1), several_stages,
        lambda: normalise.nrm(3, 9, 11), lambda: gemm.matmul(9, 7, 31, "int8"), lambda: normalise.layer_norm(5, 9),
    ],
)  # fmt: skip
def test_blocks_and_matrix_multiplication_change_nothing(tensor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dag = ComputeDAG(tensor())
    ins = make_inputs(dag, 4)
    (whole,) = evaluate(dag, ins)
    monkeypatch.setattr(reference, "BLOCK", 13)
    monkeypatch.setattr(reference_blas, "_BLOCK", 40)
    monkeypatch.setattr(reference_blas, "_INNER", 7)
    (blocked,) = evaluate(dag, ins)
    monkeypatch.setattr(reference_blas, "match", lambda *_: None)
    (plain,) = evaluate(dag, ins)
    for other in (blocked, plain):
        np.testing.assert_allclose(other.value, whole.value, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(other.bound, whole.bound, rtol=0.2, atol=1e-12)


def test_sums_with_unbounded_and_subnormal_terms_are_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One divisor may be 0, so that its quotient may be anything; one factor may be taken for 0."""
    a, d = te.placeholder((5, 7), "float32", name="A"), te.placeholder((5, 7), "float32", name="D")
    b, k = te.placeholder((7, 3), "bfloat16", name="B"), te.reduce_axis(7, name="k")
    quotient = te.compute((5, 7), lambda i, j: a[i, j] / (d[i, j] * d[i, j] - 3.0), name="quotient")
    dag = ComputeDAG(
        te.compute((5, 3), lambda i, j: te.sum(quotient[i, k] * b[k, j].astype("float32"), axis=k), name="product")
    )
    ins = make_inputs(dag, 0)
    ins["D"] = np.full((5, 7), 2, F32)
    ins["D"][1, 2], ins["B"][2, 0], ins["B"][4, 1] = np.sqrt(F32(3)), 0.0, 1e-39
    (found,) = evaluate(dag, ins)
    match, matched = reference_blas.match, []
    monkeypatch.setattr(reference_blas, "match", lambda *given: matched.append(match(*given)))
    (plain,) = evaluate(dag, ins)
    assert matched[-1] is not None
    np.testing.assert_allclose(found.value, plain.value, rtol=1e-12)
    assert np.isinf(found.bound).tolist() == [[i == 1] * 3 for i in range(5)]
    assert (np.isinf(plain.bound) <= np.isinf(found.bound)).all()
    others = [0, 2, 3, 4]
    np.testing.assert_allclose(found.bound[others], plain.bound[others], rtol=0.2)


def test_reads_outside_of_a_tensor_are_not_made() -> None:
    x = np.arange(1, 6).astype(F32)
    a = te.placeholder((5,), "float32", name="A")
    out = te.compute(
        (4, 5), lambda i, j: te.select(te.all(j + i - 2 >= 0, j + i - 2 < 5), a[j + i - 2], -1.0), name="shifted"
    )
    (ref,) = check(out, {"A": x})
    expected = [[x[j + i - 2] if 0 <= j + i - 2 < 5 else -1.0 for j in range(5)] for i in range(4)]
    assert ref.value.tolist() == expected
    assert not ref.bound.any()


def test_scalars_and_conditions() -> None:
    a, k = te.placeholder((5,), "float32", name="A"), te.reduce_axis(5, name="k")
    total = te.compute((), lambda: te.sum(a[k], axis=k), name="total")
    root = te.compute((), lambda: te.sqrt(total[()]), name="root")
    some = te.compute((), lambda: te.any(a[k] > 4.0, axis=k), name="some")
    every = te.compute((), lambda: te.all(a[k] > 4.0, axis=k), name="every")
    least = te.compute((), lambda: te.min(a[k], axis=k), name="least")
    got = check((root, some, every, least), {"A": np.arange(1, 6).astype(F32)})
    assert [r.value.shape for r in got] == [()] * 4
    assert [r.value.item() for r in got] == [15**0.5, True, False, 1.0]
    assert all(within(r, np.asarray(r.value)).all() for r in got)


def test_float64_is_held_to_float64() -> None:
    dag = ComputeDAG(gemm.matmul(5, 7, 50, "float64"))
    ins = make_inputs(dag, 1)
    (ref,) = evaluate(dag, ins)
    assert within(ref, sequential_matmul(ins["A"], ins["B"], np.arange(50))).all()
    exact = np.einsum("ik,kj->ij", ins["A"][:, ::-1], ins["B"][::-1])
    assert within(ref, exact).all()
    assert not within(ref, exact.astype(F32)).any()


def test_inputs_of_another_shape_or_type_are_refused() -> None:
    dag = ComputeDAG(gemm.matmul(2, 3, 4))
    good = make_inputs(dag, 0)
    with pytest.raises(ValueError, match=r"input A must be float32\[2, 4\] but is int32\[2, 4\]"):
        evaluate(dag, {**good, "A": good["A"].astype("int32")})


def test_a_product_that_underflows_makes_infinity_nan_or_not() -> None:
    """2^-280 is 0 in float32, which infinity makes NaN."""
    x, y = np.array([2.0**-140, 1.0], F32), np.array([np.inf, np.inf], F32)
    ref = elementwise(lambda a, b: a * a * b, x, y)
    assert within(ref, np.array([np.nan, np.inf], F32)).all()
    assert within(ref, np.array([np.inf, np.nan], F32)).tolist() == [True, False]


def test_a_choice_that_may_be_nan_admits_anything() -> None:
    x, y = np.array([3.0, 3.0], F32), np.array([np.nan, 5.0], F32)
    ref = elementwise(lambda a, b: te.select(te.sqrt(a) * te.sqrt(a) > 3.0, b, a), x, y)
    assert not np.isnan(ref.bound).any()
    assert within(ref, y)[0]
    assert within(ref, x)[0]


def test_a_plain_evaluation_rounds_in_the_declared_types():
    a, b, k = te.placeholder((5, 300), name="A"), te.placeholder((300, 7), name="B"), te.reduce_axis(300, "k")
    product = te.compute((5, 7), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    dag = ComputeDAG([te.compute((5, 7), lambda i, j: product[i, j] + 0.1, name="D")])
    inputs = make_inputs(dag, 0)
    (plain,), (exact,) = evaluate_plainly(dag, inputs), evaluate(dag, inputs)
    assert plain.dtype == F32
    assert (plain != exact.value.astype(F32)).any()  # the sums were rounded, not only the result
    assert (np.abs(plain - exact.value) <= exact.bound).all()


@pytest.mark.parametrize("name", WORKLOADS)
def test_values_are_the_same_without_their_bounds(name):
    dag = build(name, settings={**small_numbers(WORKLOADS[name]), **({"groups": 2} if name == "grp" else {})})[0]
    inputs = make_inputs(dag, 0)
    for value, bounded in zip(evaluate_exactly(dag, inputs), evaluate(dag, inputs), strict=True):
        assert value.dtype == bounded.value.dtype
        np.testing.assert_array_equal(value, bounded.value)


def test_values_without_bounds_of_what_is_read_again_and_of_integers():
    a, b, k = (
        te.placeholder((5, 70), "int8", name="A"),
        te.placeholder((70, 7), "int8", name="B"),
        te.reduce_axis(70, "k"),
    )
    product = te.compute((5, 7), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), k), name="C")
    dag = ComputeDAG([product, te.compute((5, 7), lambda i, j: product[i, j] * 3, name="D")])
    inputs = make_inputs(dag, 0)
    want = inputs["A"].astype("int32") @ inputs["B"].astype("int32")
    for found in (evaluate_exactly(dag, inputs), evaluate_plainly(dag, inputs)):
        np.testing.assert_array_equal(found[0], want)
        np.testing.assert_array_equal(found[1], 3 * want)


def test_floats_may_be_given_unrounded():
    a = te.placeholder((3,), name="A")
    dag = ComputeDAG([te.compute((3,), lambda i: a[i] * 2.0, name="B")])
    (result,) = evaluate(dag, {"A": np.array([0.1, 0.2, 0.3])})
    np.testing.assert_array_equal(result.value, [0.2, 0.4, 0.6])
