"""Expressions as C: what they compute, run in both dialects and compared with the interpreter, and how they read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from autosched.codegen.c.dialects import CUDA, DIALECTS, OPENCL
from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.kernel import emit
from autosched.ir.bitcast import bitcast
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var, binary, call, cast, const, select
from autosched.ir.interpreter.interpret import interpret
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Buffer, ForKind, Func, Scope
from tests.codegen.gpu import dialects, run
from tests.ir.nests import F32, F64, I64, buffer, func, load, loop, store

I8, U8, I32 = "int8", "uint8", "int32"
t = Var("t", I64)
SMALL = (-7, -4, -3, -1, 0, 1, 2, 3, 5, 127, -128, 100)


class Names(Expressions):
    """Buffers by their names, indices as they are; every index is at least `least`."""

    least = -(1 << 62)

    def element(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        return f"{buffer}[{', '.join(map(self.text, indices))}]"

    def bounds(self, expr: Expr) -> tuple[int, int]:
        return self.least, 1000


def text(e: Expr, dialect: str = "cuda", least: int = -1000) -> str:
    kind = type("AtLeast", (Names,), {"least": least})
    return kind(DIALECTS[dialect], "int", Simplifier(), variables={Var(n, I64): n for n in "ijt"}).text(e)


def x(name: str, dtype: str = F32) -> Load:
    return load(name, t, dtype=dtype)


# How they read

a, b, c = (load(n, 0) for n in "abc")
m, n, p = (load(name, 0, dtype=I32) for name in "mnp")
i, j = Var("i", I64), Var("j", I64)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (a + b + c, "a[0] + b[0] + c[0]"),
        (a + (b + c), "a[0] + (b[0] + c[0])"),  # floats are not associative
        (a - (b - c), "a[0] - (b[0] - c[0])"),
        (a - b - c, "a[0] - b[0] - c[0]"),
        (a * (b + c), "a[0] * (b[0] + c[0])"),
        (a * (b / c), "a[0] * (b[0] / c[0])"),
        (a / b / c, "a[0] / b[0] / c[0]"),
        (a / (b * c), "a[0] / (b[0] * c[0])"),
        (-a * b, "-a[0] * b[0]"),
        (-(a * b), "-(a[0] * b[0])"),
        (-(-a), "-(-a[0])"),  # noqa: B002
        (a - Const(-1.5, F32), "a[0] - -1.5f"),
        ((a < b) & (b < c) | (c < a), "a[0] < b[0] && b[0] < c[0] || c[0] < a[0]"),
        ((a < b) & ((b < c) | (c < a)), "a[0] < b[0] && (b[0] < c[0] || c[0] < a[0])"),
        (~((a < b) & (b < c)), "!(a[0] < b[0] && b[0] < c[0])"),
        ((a < b).equal(b < c), "a[0] < b[0] == b[0] < c[0]"),
        ((m & n).equal(p), "(m[0] & n[0]) == p[0]"),
        (m & n | p, "m[0] & n[0] | p[0]"),
        (m & (n | p), "m[0] & (n[0] | p[0])"),
        ((m + n) << p, "m[0] + n[0] << p[0]"),
        (m << (n << p), "m[0] << (n[0] << p[0])"),
        (select(a < b, a, b) + c, "(a[0] < b[0] ? a[0] : b[0]) + c[0]"),
        (select(a < b, select(b < c, a, b), c), "a[0] < b[0] ? (b[0] < c[0] ? a[0] : b[0]) : c[0]"),
        (select(a < b, a, select(b < c, b, c)), "a[0] < b[0] ? a[0] : b[0] < c[0] ? b[0] : c[0]"),
        (cast(a + b, I32), "(int)(a[0] + b[0])"),
        (cast(a, "bool"), "a[0] != 0"),
        (binary("min", m, n) + 1, "(m[0] < n[0] ? m[0] : n[0]) + 1"),
        (binary("max", a, b), "max_float(a[0], b[0])"),
        (call("exp", a + b), "expf(a[0] + b[0])"),
        (call("exp_negative", a), "expf(a[0])"),
        (call("exp2", a), "exp2_float(a[0])"),
        (call("sigmoid", a), "1.0f / (1.0f + expf(-a[0]))"),
        (a**b, "powf(a[0], b[0])"),
    ],
)
def test_no_more_parentheses_than_needed(expr: Expr, expected: str) -> None:
    assert text(expr) == expected


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (i * 4 + j, "i * 4 + j"),
        (i // 4 * 8 + j % 4, "i / 4 * 8 + j % 4"),
        (Binary("mul", Const(8, I64), i // 4), "8 * (i / 4)"),
        (i - (j - 4) // 2, "i - (j - 4) / 2"),
        (i // (j + 1), "floordiv_long_long(i, j + 1)"),  # which might be 0
    ],
)
def test_indices_that_are_not_negative_divide_as_in_c(expr: Expr, expected: str) -> None:
    assert text(expr, least=0) == expected


@pytest.mark.parametrize(
    ("value", "dtype", "cuda", "opencl"),
    [
        (1.0, F32, "1.0f", "1.0f"),
        (0.1, F64, "0.1", "0.1"),
        (1e-20, F32, "1e-20f", "1e-20f"),
        (-0.0, F32, "-0.0f", "-0.0f"),
        (float("inf"), F32, "__int_as_float(0x7f800000)", "INFINITY"),
        (float("-inf"), F32, "-__int_as_float(0x7f800000)", "-INFINITY"),
        (float("nan"), F64, "__int_as_float(0x7fffffff)", "NAN"),
        (True, "bool", "true", "true"),
        (-3, I8, "-3", "-3"),
        (2**40, I64, "1099511627776", "1099511627776"),
        (-(2**63), I64, "(-9223372036854775807 - 1)", "(-9223372036854775807 - 1)"),
    ],
)
def test_literals(value: float, dtype: str, cuda: str, opencl: str) -> None:
    assert text(Const(value, dtype)) == cuda
    assert text(Const(value, dtype), "opencl") == opencl


def test_functions_of_double_precision() -> None:
    d = load("d", 0, dtype=F64)
    names = ("exp", "log", "tanh", "sqrt", "rsqrt", "erf", "floor", "ceil", "round", "abs", "sin", "cos")
    cuda = [text(call(fn, d)) for fn in names]
    assert cuda == [f"{fn}(d[0])" for fn in names[:8]] + ["rint(d[0])", "fabs(d[0])", "sin(d[0])", "cos(d[0])"]
    assert text(d**d) == "pow(d[0], d[0])"
    assert text(binary("min", d, d)) == "min_double(d[0], d[0])"
    assert [CUDA.functions.keys()] == [OPENCL.functions.keys()]


# What they compute


def check(
    dialect: str,
    exprs: Sequence[Expr],
    arrays: dict[str, np.ndarray],
    rtol: float = 0.0,
    expected: Sequence[np.ndarray] | None = None,
) -> None:
    """Each expression over t, at every element of the arrays: one kernel, one thread for each element. `expected`: the
    results where the interpreter has none."""
    size = len(next(iter(arrays.values())))
    inputs = [buffer(name, (size,), str(array.dtype)) for name, array in arrays.items()]
    outputs = [Buffer(f"out{n}", (const(size),), e.dtype, Scope.PARAM) for n, e in enumerate(exprs)]
    stores = [store(f"out{n}", (t,), e) for n, e in enumerate(exprs)]
    f: Func = func(inputs, outputs, loop(t, size, *stores, kind=ForKind.THREAD_X))
    simplify = Simplifier()
    simplify.ranges[t] = (0, size - 1)
    source = emit(f, simplify, dialect)
    expected = interpret(f, arrays) if expected is None else expected
    got = run(source, f, arrays, optimised=True)
    for e, o, want in zip(exprs, outputs, expected, strict=True):
        seen = got[o.name]
        same = np.isclose(seen, want, rtol, rtol, equal_nan=True) if o.dtype in (F32, F64) else seen == want
        at = np.argmin(same)
        assert same.all(), f"{e} is {seen[at]}, not {want[at]}, for {[v[at] for v in arrays.values()]}\n{source.text}"


def grid(dtype: str, values: Sequence[float]) -> dict[str, np.ndarray]:
    """Two arrays X and Y with all pairs of the values."""
    found = np.array([*values], dtype)
    first, second = (v.ravel() for v in np.meshgrid(found, found))
    return {"X": first, "Y": second}


@dialects
@pytest.mark.parametrize("dtype", [I8, I32, I64])
def test_integer_division_rounds_down(dialect: str, dtype: str) -> None:
    values = [v for v in SMALL if v]
    X, Y = x("X", dtype), x("Y", dtype)
    ops = ("floordiv", "mod", "ceildiv")
    three, minus = Const(3, dtype), Const(-4, dtype)
    exprs = [Binary(op, *pair) for op in ops for pair in ((X, Y), (X, three), (X, minus), (minus, Y))]
    nested = [X - Binary("floordiv", X, Y) * Y, X * Binary("mod", X, Y), X * Binary("floordiv", Y, three)]
    check(dialect, [*exprs, *nested, Binary("mod", Binary("mod", X, Y), three)], grid(dtype, values))


@dialects
@pytest.mark.parametrize("dtype", [I8, U8, I32, I64])
def test_integers_divided_by_zero_are_zero(dialect: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    values = grid(dtype, (info.min, info.max, 0, 1, 2, info.max - 1, *(() if dtype == U8 else (-1, -2))))
    X, Y = x("X", dtype), x("Y", dtype)
    with np.errstate(all="ignore"):
        expected = [np.floor_divide(values["X"], values["Y"]), np.mod(values["X"], values["Y"])]
    check(dialect, [Binary("floordiv", X, Y), Binary("mod", X, Y)], values, expected=expected)


@dialects
def test_bytes_wrap_around(dialect: str) -> None:
    X, Y = x("X", I8), x("Y", I8)
    sums = [X + Y, X - Y, X * Y, -X, abs(X), X << Const(1, I8), X >> Const(1, I8), X * Y + X]
    check(
        dialect, [*sums, X + Y > 0, cast(X * Y, I32), cast(X + Y, F32), binary("max", X + Y, X), X**2], grid(I8, SMALL)
    )
    unsigned = grid(U8, (0, 1, 3, 100, 200, 255))
    X, Y = x("X", U8), x("Y", U8)
    sums = [X + Y, X - Y, X * Y, X - Y > 3, cast(X - Y, I32)]
    check(dialect, [*sums, X ^ Y, X & Y | X, cast(X, I8), X // Const(3, U8)], unsigned)


@dialects
@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "uint64"])
def test_integers_wrap_around_at_the_ends_of_their_types(dialect: str, dtype: str) -> None:
    """Also divided by the largest unsigned number, which is no -1, shifted, compared, and cast to every type."""
    low, high = DTYPES[dtype].integer_range
    numbers = grid(dtype, (low, low + 1, 0, 1, 3, high // 2, high // 2 + 1, high - 1, high))
    X, Y, one = x("X", dtype), x("Y", dtype), Const(1, dtype)
    sums = [
        X + Y,
        X - Y,
        X * Y,
        -X,
        abs(X),
        X * Y + X,
        X ^ Y,
        X & Y | X,
        X << one,
        X >> one,
        one << (Y & Const(7, dtype)),
    ]
    sums += [Binary(op, X, Y | one) for op in ("floordiv", "mod", "ceildiv", "min", "max")]
    sums += [Binary(op, X, Const(high, dtype)) for op in ("floordiv", "mod")] + [
        X // Const(3, dtype),
        X % Const(7, dtype),
    ]
    orders = [X < Y, X >= Y, Const(3, dtype) < X - Y, select(X < Y, X, Y)]
    casts = [cast(X + Y, d) for d in (I8, U8, "int16", "uint16", I32, "uint32", I64, "uint64", F32, F64, "bool")]
    check(dialect, [*sums, *orders, *casts], numbers)
    with np.errstate(all="ignore"):
        expected = [np.floor_divide(numbers["X"], numbers["Y"]), np.mod(numbers["X"], numbers["Y"])]
    check(dialect, [Binary("floordiv", X, Y), Binary("mod", X, Y)], numbers, expected=expected)


@dialects
def test_large_floats_become_unsigned_integers(dialect: str) -> None:
    values = {"X": np.array([0.0, 0.9, 65535.5, 2.0**31, 2.0**32 - 256] * 2, F32)}
    check(dialect, [cast(x("X"), "uint32"), cast(x("X"), "uint64")], values)
    values = {"X": np.array([2.0**63, 2.0**64 - 2.0**40, 1e19, 3.0], F32)}
    check(dialect, [cast(x("X"), "uint64"), cast(cast(x("X"), "uint64"), F64)], values)


@dialects
def test_bits_are_those_of_another_number(dialect: str) -> None:
    words = {"X": np.array([0, 1, 0x3F800000, 0x7F7FFFFF, 0xFF800000, 0x80000000], "uint32")}
    X = x("X", "uint32")
    number = bitcast(X, F32)
    check(dialect, [number, bitcast(-number, I32), bitcast(number, "uint32") >> Const(23, "uint32")], words)
    check(
        dialect, [cast(bitcast(cast(X, "uint16"), "bfloat16"), F32), bitcast(cast(number, "bfloat16"), "int16")], words
    )
    wide = {"Y": np.array([0, 1, 0x3FF0000000000000, 0x8000000000000000, 0x7FEFFFFFFFFFFFFF], "uint64")}
    Y = x("Y", "uint64")
    check(dialect, [bitcast(Y, F64), bitcast(bitcast(Y, F64), I64), bitcast(Const(1.5, F64), "uint64") + Y], wide)


@dialects
def test_int64_is_as_wide_in_c(dialect: str) -> None:
    """Loop variables are int in C, what is computed of them may not fit."""
    big = t * 100_000_000
    N = x("N", I64)
    numbers = {"N": np.array([-(2**62), -1, 0, 1, 2**62, 5, 6, 7] * 4, I64)}
    lowest = Const(-(2**63), I64)
    exprs = [big, t * t * t * t * t * t * t * t, big * -1, t - big, cast(big, F64), binary("max", N, lowest), N + 1]
    exprs += [select(t < 3, big, t), big // 7, big % 1000, -(big + 1), cast(cast(N % 1000, I32) * 1000, I64) + big]
    shifted = Const(1, I64) << (N & Const(63, I64))
    check(dialect, [*exprs, cast(N, F32), (t << Const(40, I64)) + 1, shifted], numbers)


@dialects
def test_casts(dialect: str) -> None:
    X, Y = x("X"), x("Y")
    floats = grid(F32, (-3.7, -0.5, 0.0, 0.5, 2.0, 99.9))
    check(
        dialect,
        [cast(X, d) for d in (I8, I32, I64, F64, "bool")] + [cast(abs(Y), U8), cast(cast(X < Y, F32), I32)],
        floats,
    )
    Z = x("Z", I32)
    numbers = {"Z": np.array([-(2**31), -129, -1, 0, 1, 127, 128, 255, 256, 16777217, 2**31 - 1], I32)}
    check(dialect, [cast(Z, d) for d in (I8, U8, I64, F32, F64, "bool")], numbers)


@dialects
def test_conditions(dialect: str) -> None:
    P, Q = x("P", "bool"), x("Q", "bool")
    pairs = grid("bool", (0, 1))
    flags = {"P": pairs["X"], "Q": pairs["Y"]}
    exprs = [P & Q, P | Q, ~P, P.equal(Q), P.not_equal(Q), P < Q, binary("max", P, Q), binary("min", P, Q)]
    exprs += [(P | Q) & ~(P & Q), ~(P | Q) | P, select(P, Q, ~Q), cast(P, F32) + cast(Q, F32), select(P, 2.5, -1.0)]
    check(dialect, [e if isinstance(e, Expr) else const(e, F32) for e in exprs], flags)


@dialects
def test_floats_keep_their_order_of_evaluation(dialect: str) -> None:
    X, Y = x("X"), x("Y")
    big = Const(1e8, F32)
    exprs = [X + (big - big), (X + big) - big, X - (Y - X), X / (Y / X), X * (Y / X), X / Y / X, -(X - Y), X - -Y]
    check(dialect, exprs, grid(F32, (-7.5, -1.0, 0.3, 3.0, 1e4)), 1e-6)


@dialects
def test_minimum_and_maximum_are_nan_where_an_operand_is(dialect: str) -> None:
    values = (float("nan"), float("inf"), float("-inf"), -0.5, 0.0, 2.0)
    for dtype in (F32, F64):
        X, Y = x("X", dtype), x("Y", dtype)
        zero, infinite = Const(0.0, dtype), Const(float("-inf"), dtype)
        exprs = [Binary(op, *pair) for op in ("min", "max") for pair in ((X, Y), (X, zero), (zero, X), (X, infinite))]
        check(dialect, [*exprs, select(X < Y, X, infinite), X.equal(X), X + infinite], grid(dtype, values))


@dialects
@pytest.mark.parametrize("dtype", [F32, F64])
def test_functions(dialect: str, dtype: str) -> None:
    X, Y = x("X", dtype), x("Y", dtype)
    positive = abs(X) + Const(0.25, dtype)
    anywhere = ("exp", "tanh", "erf", "sigmoid", "floor", "ceil", "round", "sin", "cos", "abs", "neg")
    exprs = [call(fn, X) for fn in anywhere] + [call(fn, positive) for fn in ("log", "sqrt", "rsqrt")]
    exprs += [positive**Y, X ** Const(2.0, dtype), call("exp", -(X * X)) * Y]
    check(dialect, exprs, grid(dtype, (-2.5, -1.5, -0.5, 0.0, 0.5, 1.0, 3.25)), 1e-5 if dtype == F32 else 1e-13)


@dialects
@pytest.mark.parametrize("dtype", [F32, F64])
def test_remainders_of_floats_and_sines_of_large_numbers(dialect: str, dtype: str) -> None:
    X, Y = x("X", dtype), x("Y", dtype)
    values = (0.1, -0.3, 5.0, 1e9, -3e37, float("inf"), float("nan"), 0.0)
    check(dialect, [Binary("fmod", X, Y), Binary("fmod", X, Const(0.1, dtype))], grid(dtype, values))
    check(dialect, [call("sin", X), call("cos", Y)], grid(dtype, values), 1e-6 if dtype == F32 else 1e-14)


@dialects
def test_powers_of_integers(dialect: str) -> None:
    X = x("X", I32)
    check(dialect, [X ** Const(k, I32) for k in (0, 1, 2, 3, 5)], {"X": np.array([-3, -1, 0, 1, 2, 7], I32)})


Maker = Callable[[Expr, Expr], Expr]
INTEGER_OPERATIONS: tuple[Maker, ...] = (
    lambda p, q: p + q, lambda p, q: p - q, lambda p, q: p * q, lambda p, q: p - q * 3,
    lambda p, q: p // 3, lambda p, q: q % 5, lambda p, q: p // -4, lambda p, q: p % (abs(q) + 1),
    lambda p, q: binary("min", p, q), lambda p, q: binary("max", p, q), lambda p, q: -p, lambda p, q: abs(q),
    lambda p, q: p & q, lambda p, q: p | q, lambda p, q: p ^ q, lambda p, q: q >> 1, lambda p, q: (p & 7) << 2,
    lambda p, q: select(p < q, q, p), lambda p, q: select(p.equal(q) | (p > 2), q - p, p + 1),
    lambda p, q: cast((p < q).equal(q < 2), I64), lambda p, q: cast(cast(p % 100, I32) * 2, I64) - q,
)  # fmt: skip
FLOAT_OPERATIONS: tuple[Maker, ...] = (
    lambda p, q: p + q, lambda p, q: p - q, lambda p, q: p * q, lambda p, q: binary("min", p, q),
    lambda p, q: binary("max", p, q), lambda p, q: -p, lambda p, q: abs(p - q), lambda p, q: select(p < q, p, q + 1.0),
    lambda p, q: select((p < 2.0) & ~(q < p), q, p), lambda p, q: call("floor", p * 0.5), lambda p, q: q - (p - q),
)  # fmt: skip


def tree(rng: random.Random, leaves: Sequence[Expr], operations: Sequence[Maker], depth: int) -> Expr:
    if depth == 0:
        return rng.choice(leaves)
    p, q = (tree(rng, leaves, operations, rng.randrange(depth)) for _ in range(2))
    return rng.choice(operations)(p, q)


@dialects
@pytest.mark.parametrize("seed", range(3))
def test_random_expressions(dialect: str, seed: int) -> None:
    """Integers of any shape; floats that hold small integers, so that nothing is rounded."""
    rng = random.Random(seed)
    numbers = grid(I64, (-4, -3, -1, 0, 2, 3))
    check(dialect, [tree(rng, (x("X", I64), x("Y", I64), t), INTEGER_OPERATIONS, 5) for _ in range(40)], numbers)
    check(
        dialect, [tree(rng, (x("X"), x("Y")), FLOAT_OPERATIONS, 4) for _ in range(40)], grid(F32, (-4, -3, -1, 0, 2, 3))
    )


def test_every_node_has_a_text() -> None:
    nodes = (Const(1), Var("i"), a, Select(a < b, a, b), Cast(a, I32), Call("exp", (a,)), Binary("add", a, b))
    assert all(text(e) for e in nodes)
