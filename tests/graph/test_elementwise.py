"""Operators on elements against NumPy: values, types, and what is special: NaN, infinities, signs, wide shifts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autosched.errors import GraphError
from tests.graph.test_operators import computed, some

NAN, INF = math.nan, math.inf
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 3e38], "float32")
ANY = np.concatenate([SPECIAL, some(23) * 3])
WITHIN = np.linspace(-1, 1, 41, dtype="float32")
POSITIVE = np.abs(some(19)) + np.float32(1e-3)
SHAPES = [((2, 3), (2, 3)), ((2, 1, 3), (5, 1)), ((1,), (7,)), ((), (4,)), ((1, 1), (1, 1, 1))]

UNARY = {
    "neg": (np.negative, ANY),
    "abs": (np.abs, ANY),
    "exp": (np.exp, some(17)),
    "log": (np.log, np.concatenate([POSITIVE, SPECIAL])),
    "sqrt": (np.sqrt, np.concatenate([POSITIVE, SPECIAL])),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE),
    "reciprocal": (lambda x: 1 / x, ANY),
    "sin": (np.sin, some(13)),
    "cos": (np.cos, some(13)),
    "tan": (np.tan, np.concatenate([some(13) * 9, [np.pi / 2, 1e-20, 100.0]]).astype("float32")),
    "asin": (np.arcsin, np.concatenate([WITHIN, WITHIN * 1e-20, SPECIAL[:5], [2]]).astype("float32")),
    "acos": (np.arccos, np.concatenate([WITHIN, [NAN, 2, -2, 0.9999999]]).astype("float32")),
    "atan": (np.arctan, np.concatenate([ANY, WITHIN * 10, WITHIN * 1e-20]).astype("float32")),
    "sinh": (np.sinh, np.concatenate([SPECIAL, WITHIN * 89.4, WITHIN * 2, WITHIN * 1e-20]).astype("float32")),
    "cosh": (np.cosh, np.concatenate([SPECIAL, WITHIN * 89.4, WITHIN * 2]).astype("float32")),
    "tanh": (np.tanh, ANY),
    "log1p": (np.log1p, np.concatenate([SPECIAL, WITHIN, WITHIN * 1e-20, POSITIVE * 1e9]).astype("float32")),
    "expm1": (np.expm1, np.concatenate([SPECIAL[:8], WITHIN * 80, WITHIN * 2, WITHIN * 1e-20]).astype("float32")),
    "asinh": (np.arcsinh, np.concatenate([ANY, WITHIN * 10, WITHIN * 1e-20, WITHIN * 1e20]).astype("float32")),
    "acosh": (np.arccosh, np.concatenate([SPECIAL, WITHIN + 2, WITHIN * 1e-6 + 1, WITHIN * 1e20]).astype("float32")),
    "atanh": (np.arctanh, np.concatenate([WITHIN, WITHIN * 1e-20, [NAN, 2, -3]]).astype("float32")),
    "erf": (np.vectorize(math.erf), some(11)),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), some(11) * 5),
    "floor": (np.floor, ANY),
    "ceil": (np.ceil, ANY),
    "round": (np.rint, np.concatenate([SPECIAL, np.arange(-7, 8) * 0.5]).astype("float32")),
    "sign": (np.sign, ANY),
    "isnan": (np.isnan, ANY),
    "isinf": (np.isinf, ANY),
    "identity": (np.array, ANY),
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


def same(got: np.ndarray, expected: np.ndarray, rtol: float = 2e-7) -> None:
    """The values, NaN and infinities at the same places, and the type."""
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=0)
    assert got.dtype == expected.dtype


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_one_element(name, dtype):
    function, x = UNARY[name]
    x = x.astype(dtype)
    with np.errstate(all="ignore"):
        expected = np.asarray(function(x.astype("float64")))
        expected = expected if expected.dtype == bool else expected.astype(dtype)
    same(computed(name, x), expected, 2e-7 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shapes", SHAPES)
def test_functions_of_two_elements(name, shapes):
    a, b = (np.round(some(*shape) * 4) / 4 + 0.125 for shape in shapes)
    same(computed(name, a, b), np.asarray(BINARY[name](a, b)))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_any_number_of_tensors(name):
    a, b, c = some(3, 1), some(5), np.array(NAN, "float32")
    same(computed(name, a), a)
    same(computed(name, a, b), BINARY[name](a, b))
    assert np.isnan(computed(name, a, b, c)).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers(dtype):
    low = 0 if dtype == "uint8" else -7
    a, b = np.arange(low, 13, dtype=dtype)[:, None], np.array([d for d in range(low // 2, 6) if d], dtype)
    truncated = np.trunc(a.astype("float64") / b).astype(dtype)
    same(computed("div", a, b), truncated)
    same(computed("mod", a, b), np.mod(a, b))
    same(computed("mod", a, b, fmod=True), np.fmod(a, b))
    for name in ("add", "sub", "mul", "maximum", "minimum", "less", "equal"):
        same(computed(name, a, b), BINARY[name](a, b))
    for name, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        same(computed(f"bitwise_{name}", a, b), function(a, b))
    same(computed("bitwise_not", a), np.invert(a))
    same(computed("abs", a), np.abs(a))
    same(computed("sign", a), np.sign(a))
    same(computed("relu", a), np.maximum(a, 0).astype(dtype))
    same(computed("pow", a, np.array([0, 1, 2, 3], dtype)), a ** np.array([0, 1, 2, 3], dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_shifts_by_as_many_bits_as_there_are(dtype):
    bits = np.dtype(dtype).itemsize * 8
    a = np.array([[0], [1], [93], [np.iinfo(dtype).max], [np.iinfo(dtype).min]], dtype)
    b = np.array([0, 1, 3, bits - 1, bits, bits + 5, 0 if dtype == "uint8" else -1], dtype)
    same(computed("shift_left", a, b), np.left_shift(a, b))
    same(computed("shift_right", a, b), np.right_shift(a, b))


def test_truths():
    a, b = np.array([[True], [False]]), np.array([True, False])
    for name in ("and", "or", "xor"):
        same(computed(f"logical_{name}", a, b), getattr(np, f"logical_{name}")(a, b))
    same(computed("logical_not", a), ~a)
    same(computed("equal", a, b), a == b)
    with pytest.raises(GraphError, match="conditions"):
        computed("logical_xor", np.array([1]), np.array([2]))


def test_where():
    c, a, b = some(3, 1) > 0, some(4), some(2, 1, 1)
    same(computed("where", c, a, b), np.where(c, a, b))
    nan = np.full(4, NAN, "float32")
    same(computed("where", np.zeros(4, bool), nan, a), a)
    half = a.astype("float16")
    same(computed("where", c, half, -half), np.where(c, half, -half))


@pytest.mark.parametrize("fmod", [False, True])
def test_remainders_of_floats(fmod):
    a = np.array([5.5, -5.5, 0.0, 1e6, -1e6, 0.3, -1.0, NAN, INF, 3.0], "float32")[:, None]
    b = np.array([1.0, -1.0, 0.1, -0.1, 3.0, INF, -INF, NAN, 0.0], "float32")
    with np.errstate(all="ignore"):
        expected = (np.fmod if fmod else np.mod)(a, b)
    same(computed("mod", a, b, fmod=fmod), expected)


def test_powers():
    a, b = np.array([[-2.0], [0.0], [1.5]], "float32"), np.array([0.0, 1.0, 2.0, 3.0], "float32")
    same(computed("pow", a, b), a**b)
    same(computed("pow", a, np.array([0, 1, 2, 5], "int64")), (a ** np.array([0, 1, 2, 5], "float32")))
    same(computed("pow", np.array([4, 9], "int32"), np.array([0.5], "float32")), np.array([2, 3], "int32"))
    assert np.isnan(computed("pow", np.float32([-2]), np.float32([0.5]))).all()


def test_infinities_of_one_sign():
    same(computed("isinf", SPECIAL, negative=False), np.isposinf(SPECIAL))
    same(computed("isinf", SPECIAL, positive=False), np.isneginf(SPECIAL))
    same(computed("isinf", SPECIAL, positive=False, negative=False), np.zeros(SPECIAL.shape, bool))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_floats_stay_small(dtype):
    kind = np.dtype("float16") if dtype == "float16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    a, b = some(3, 1).astype(kind), some(5).astype(kind)
    wide_a, wide_b = a.astype("float32"), b.astype("float32")
    same(computed("mul", a, b).astype("float32"), (wide_a * wide_b).astype(kind).astype("float32"), 0)
    assert computed("mul", a, b).dtype == kind
    assert computed("tanh", a).dtype == computed("tan", a).dtype == computed("sign", a).dtype == kind
    assert computed("add", a, some(1)).dtype == np.float32
    assert computed("less", a, b).dtype == bool


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int32"), ("float32", "bool"), ("int32", "int8"), ("int64", "uint8"), ("bool", "float32"),
     ("float32", "float16"), ("float16", "float64"), ("uint8", "int8"), ("int32", "float32"), ("float16", "int8")],
)  # fmt: skip
def test_casts(source, target):
    x = (some(4, 5) * 3).astype(source) if source != "bool" else some(4, 5) > 0
    x.flat[0] = 0
    if np.dtype(source).kind in "iu" and np.dtype(target).kind in "iu":
        x = x * np.array(50, source)
    same(computed("cast", x, dtype=target), x.astype(target), 0)


@pytest.mark.parametrize("source", ["float32", "float64", "float16", "int64", "int32", "uint8", "int8", "bool"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int32", "int64"])
def test_casts_that_saturate(source, target):
    row = np.iinfo(target)
    if np.dtype(source).kind == "f":
        x = np.array([0.0, -0.9, 1.7, 255.5, -128.9, 127.9, 60000.0, INF, -INF, NAN]).astype(source)
        exact = [0 if v != v else max(row.min, min(row.max, math.trunc(min(max(v, -1e30), 1e30)))) for v in x.tolist()]
    else:
        x = np.array([0, 1]).astype(bool) if source == "bool" else np.array(
            [0, 1, 77, np.iinfo(source).min, np.iinfo(source).max], source)  # fmt: skip
        exact = [max(row.min, min(row.max, int(v))) for v in x.tolist()]
    same(computed("cast", x, dtype=target, saturate=True), np.array(exact, target), 0)


def test_what_is_refused():
    with pytest.raises(GraphError, match="the type float80"):
        computed("cast", some(2), dtype="float80")
    with pytest.raises(GraphError, match="exp needs a float"):
        computed("exp", np.array([1]))
