"""Elementary functions against references of more precision, at several widths, with and without FMA."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.codegen.llvm.arithmetic import shuffled_bits
from autosched.codegen.llvm.math.rare_cases import FAR, definitions
from autosched.codegen.llvm.math.vector_math import emit_call, emit_fmod, emit_pow
from autosched.codegen.llvm.writer import Writer
from autosched.codegen.source import function_attributes
from autosched.runtime import jit
from autosched.target import parse_target

Array = npt.NDArray[Any]
HOST = parse_target("cpu")
SCALARS = {"float32": "float", "float64": "double"}
BITS = {"float32": "i32", "float64": "i64"}
N = 1 << 17

LOOP = """
define i32 @apply(ptr %args, ptr %workspace, i64 %threads) #0 {{
entry:
  %x.base = load ptr, ptr %args
  %y.p = getelementptr ptr, ptr %args, i64 1
  %y.base = load ptr, ptr %y.p
  %z.p = getelementptr ptr, ptr %args, i64 2
  %z.base = load ptr, ptr %z.p
  %n.p = getelementptr ptr, ptr %args, i64 3
  %n = load i64, ptr %n.p
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %x.at = getelementptr {scalar}, ptr %x.base, i64 %i
  %x = load {type}, ptr %x.at, align {align}
  %y.at = getelementptr {scalar}, ptr %y.base, i64 %i
  %y = load {type}, ptr %y.at, align {align}
{lines}
  br label %next
next:
  %z.at = getelementptr {scalar}, ptr %z.base, i64 %i
  store {type} {result}, ptr %z.at, align {align}
  %i1 = add i64 %i, {lanes}
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}}
attributes #0 = {{ {attributes} }}
"""


def _apply(
    fn: str, lanes: int, fma: bool, x: Array, y: Array | None = None, shuffled: int = shuffled_bits(HOST),
    branches: bool = True,
) -> Array:  # fmt: skip
    """`fn` of every element (a multiple of `lanes` of them), computed by compiled code."""
    dtype = x.dtype.name
    writer = Writer()
    writer.label("start")
    how = (writer.fresh, writer.emit, fma)
    rarely = writer.rarely if branches else None
    if fn == "pow":
        result = emit_pow(dtype, lanes, "%x", "%y", *how, shuffled)
    elif fn == "fmod":
        result = emit_fmod(dtype, lanes, "%x", "%y", *how, rarely)
    else:
        result = emit_call(fn, dtype, lanes, "%x", *how, shuffled, rarely)
    scalar = SCALARS[dtype]
    ir = LOOP.format(
        scalar=scalar,
        type=scalar if lanes == 1 else f"<{lanes} x {scalar}>",
        align=x.itemsize,
        lanes=lanes,
        lines="  br label %start\n" + writer.text(),
        result=result,
        attributes=function_attributes(HOST),
    )
    ir = "\n".join([ir, *definitions([ir])])
    kernel = jit.load_object(jit.compile_object(ir, HOST), "apply", 1)
    assert len(x) % lanes == 0
    other, out = np.ascontiguousarray(x if y is None else y), np.empty_like(x)
    args = (ctypes.c_int64 * 4)(x.ctypes.data, other.ctypes.data, out.ctypes.data, len(x))
    kernel(ctypes.addressof(args), 0)
    return out


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


_erf = np.vectorize(math.erf, otypes=[np.float64])
REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp_negative": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
}
BOUNDS = {
    "float32": {"exp": 2, "exp_negative": 2, "log": 2, "tanh": 4, "sigmoid": 4, "erf": 2, "sin": 2, "cos": 2},
    "float64": {"exp": 2, "exp_negative": 2, "log": 2, "tanh": 4, "sigmoid": 4, "erf": 4, "sin": 3, "cos": 3},
}
# Intervals sampled evenly; "log" ones are sampled evenly in the exponent.
DOMAINS: dict[str, dict[str, list[tuple[float, float]]]] = {
    "float32": {
        "exp": [(-104, 89), (-1, 1), (-88, -86), (88, 100)],
        "exp_negative": [(-105, 40), (-1, 0), (-104, -86)],
        "log": [(0.5, 2), (0.99, 1.01), (1e-45, 3e38)],
        "tanh": [(-12, 12), (-1, 1), (-1e-4, 1e-4)],
        "sigmoid": [(-104, 30), (-4, 4)],
        "erf": [(-5, 5), (-1.2, 1.2), (-1e-4, 1e-4)],
        "sin": [(-7, 7), (-1e6, 1e6), (-3e6, 3e6)],
        "cos": [(-7, 7), (-1e6, 1e6), (-3e6, 3e6)],
    },
    "float64": {
        "exp": [(-746, 710), (-1, 1)],
        "exp_negative": [(-747, 40), (-746, -707)],
        "log": [(0.5, 2), (0.99, 1.01), (1e-320, 1e308)],
        "tanh": [(-24, 24), (-1, 1), (-1e-4, 1e-4)],
        "sigmoid": [(-745, 50), (-4, 4)],
        "erf": [(-7, 7), (-1.2, 1.2)],
        "sin": [(-7, 7), (-1e6, 1e6)],
        "cos": [(-7, 7), (-1e6, 1e6)],
    },
}
FEW_LANES = {"float32": [16, 32, 8, 2, 1], "float64": [8, 16, 4, 1]}


def _samples(fn: str, low: float, high: float, dtype: str) -> Array:
    rng = np.random.default_rng(7)
    if fn == "log" and high > 1e30:
        return np.exp(rng.uniform(math.log(low), math.log(high), N)).astype(dtype)
    return rng.uniform(low, high, N).astype(dtype)


def _ulps(value: Array, exact: Array) -> float:
    """The largest distance in units in the last place of the exact result; infinite where only one is finite."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = exact.astype(value.dtype)
    finite = np.isfinite(rounded) & np.isfinite(value)
    if not np.array_equal(value[~finite], rounded[~finite], equal_nan=True):
        return math.inf
    unit = np.spacing(np.abs(rounded[finite])).astype(exact.dtype)
    return float(np.max(np.abs(value[finite].astype(exact.dtype) - exact[finite]) / unit, initial=0.0))


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("fn", list(REFERENCES))
@pytest.mark.parametrize("dtype", list(SCALARS))
def test_error_bounds(dtype: str, fn: str, fma: bool) -> None:
    if fma and not HOST.has_fma:
        pytest.skip("no fused multiply-add here")
    # erf's reference is the C library's own float64, up to one unit off; so is longdouble where it is a double
    wide = np.float64 if dtype == "float32" or fn == "erf" else np.longdouble
    slack = 1 if wide is np.float64 and dtype == "float64" else 0
    for low, high in DOMAINS[dtype][fn]:
        x = _samples(fn, low, high, dtype)
        with np.errstate(all="ignore"):
            exact = np.asarray(REFERENCES[fn](x.astype(wide)))
        first = _apply(fn, FEW_LANES[dtype][0], fma, x)
        assert _ulps(first, exact) <= BOUNDS[dtype][fn] + slack
        for lanes in FEW_LANES[dtype][1:]:
            np.testing.assert_array_equal(_apply(fn, lanes, fma, x), first)


@pytest.mark.parametrize("shuffled", [0, 256, 512])
@pytest.mark.parametrize("fn", ["exp", "exp_negative", "log", "tanh", "sigmoid", "erf"])
def test_error_bounds_with_the_shuffles_of_each_instruction_set(fn: str, shuffled: int) -> None:
    if shuffled > shuffled_bits(HOST):
        pytest.skip("no such shuffles here")
    for low, high in DOMAINS["float32"][fn]:
        x = _samples(fn, low, high, "float32")
        exact = REFERENCES[fn](x.astype(np.float64))
        assert _ulps(_apply(fn, 8, HOST.has_fma, x, shuffled=shuffled), exact) <= BOUNDS["float32"][fn]
    edges = np.array([value for value, _ in EDGES[fn]] + [0] * (16 - len(EDGES[fn])), np.float32)
    expected = np.array([result for _, result in EDGES[fn]], np.float32)
    got = _apply(fn, 8, HOST.has_fma, edges, shuffled=shuffled)[: len(expected)]
    np.testing.assert_array_equal(got, expected)


def _lines_for(fn: str, mcpu: str, dtype: str = "float32") -> list[str]:
    """What is written for a register."""
    lines: list[str] = []
    numbers = itertools.count()
    target = parse_target(f"llvm -mcpu={mcpu}")
    lanes = target.vector_bytes * 8 // int(dtype[-2:])
    how = (lambda: f"%t{next(numbers)}", lines.append, True, shuffled_bits(target))
    if fn == "pow":
        emit_pow(dtype, lanes, "%x", "%y", *how)
    else:
        emit_call(fn, dtype, lanes, "%x", *how)
    return lines


@pytest.mark.parametrize(
    ("mcpu", "lookup", "n_products"),
    [("sandybridge", "", 11), ("haswell", "avx2.permps", 8), ("skylake-avx512", "avx512.vpermi2var", 6)],
)
def test_exp_looks_up_powers_where_a_shuffle_can(mcpu: str, lookup: str, n_products: int) -> None:
    lines = _lines_for("exp", mcpu)
    looked_up = [line for line in lines if "perm" in line]
    assert len(looked_up) == bool(lookup)
    assert all(lookup in line for line in looked_up)
    assert sum("llvm.fma" in line or "fmul" in line for line in lines) == n_products


def test_exp_of_what_is_never_positive_is_scaled_once() -> None:
    fewer = {
        mcpu: len(_lines_for("exp", mcpu)) - len(_lines_for("exp_negative", mcpu))
        for mcpu in ("sandybridge", "haswell", "skylake-avx512")
    }
    assert fewer == {"sandybridge": 7, "haswell": 8, "skylake-avx512": 0}


def test_erf_looks_up_its_coefficients_where_that_is_one_shuffle_each() -> None:
    products = {
        mcpu: sum("llvm.fma" in line or "fmul" in line for line in _lines_for("erf", mcpu))
        for mcpu in ("sandybridge", "haswell", "skylake-avx512")
    }
    assert products == {"sandybridge": 20, "haswell": 10, "skylake-avx512": 9}
    assert sum("avx2.permps" in line for line in _lines_for("erf", "haswell")) == 7
    assert sum("permvar.sf.512" in line for line in _lines_for("erf", "skylake-avx512")) == 6


def test_log_looks_up_what_its_argument_is_near() -> None:
    lines = {mcpu: _lines_for("log", mcpu) for mcpu in ("sandybridge", "haswell", "skylake-avx512")}
    assert [sum("avx2.permps" in line or "permvar.sf" in line for line in lines[mcpu]) for mcpu in lines] == [0, 2, 2]
    products = [sum("llvm.fma" in line or "fmul" in line for line in lines[mcpu]) for mcpu in lines]
    assert products == [15, 8, 7]


@pytest.mark.parametrize(("fn", "most"), [("erf", 29), ("exp", 18)])
def test_long_polynomials_do_not_wait_for_one_term_after_the_other(fn: str, most: int) -> None:
    depth: dict[str, int] = {}
    for line in _lines_for(fn, "haswell", "float64"):
        name, *operands = re.findall(r"%t\d+", line)
        depth[name] = max((depth[x] for x in operands), default=0) + (" bitcast " not in line)
    assert max(depth.values()) <= most
    assert len(_lines_for("exp", "skylake-avx512", "float64")) == 17  # whose chain costs less than another product


@pytest.mark.parametrize("shuffled", [0, 256, 512])
def test_erf_stays_at_one(shuffled: int) -> None:
    if shuffled > shuffled_bits(HOST):
        pytest.skip("no such shuffles here")
    x = np.arange(np.float32(3.5).view(np.int32), np.float32(4.25).view(np.int32), dtype=np.int32).view(np.float32)
    x = x[: len(x) // 8 * 8]
    assert _apply("erf", 8, HOST.has_fma, x, shuffled=shuffled).max() == 1


INF, NAN = math.inf, math.nan
EDGES: dict[str, list[tuple[float, float]]] = {
    "exp": [(0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (NAN, NAN), (1e30, INF), (-1e30, 0), (1e-40, 1), (800, INF)],
    "exp_negative": [(0, 1), (-0.0, 1), (-INF, 0), (NAN, NAN), (-1e30, 0), (-1e-40, 1), (-800, 0)],
    "log": [(1, 0), (0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (-1, NAN), (-1e-40, NAN), (NAN, NAN)],
    "tanh": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (NAN, NAN), (1e30, 1), (-1e30, -1), (1e-40, 1e-40)],
    "sigmoid": [(0, 0.5), (INF, 1), (-INF, 0), (NAN, NAN), (1e30, 1), (-1e30, 0)],
    "erf": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (NAN, NAN), (1e30, 1), (-1e30, -1)],
    "sin": [(0, 0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (1e-40, 1e-40), (-1e-40, -1e-40)],
    "cos": [(0, 1), (-0.0, 1), (INF, NAN), (-INF, NAN), (NAN, NAN), (1e-40, 1)],
}


@pytest.mark.parametrize("dtype", list(SCALARS))
@pytest.mark.parametrize("fn", list(EDGES))
def test_edges(fn: str, dtype: str) -> None:
    x = np.zeros(32, dtype)
    x[: len(EDGES[fn])] = [value for value, _ in EDGES[fn]]
    expected = np.array([result for _, result in EDGES[fn]], dtype)
    for lanes in FEW_LANES[dtype]:
        got = _apply(fn, lanes, HOST.has_fma, x)[: len(expected)]
        np.testing.assert_array_equal(got, expected)
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(expected[known]))


# Numbers as near to a multiple of pi / 2 as those of their format get.
NEAREST = {"float32": 16367173.0 * 2.0**72, "float64": 6381956970095103.0 * 2.0**797}


@pytest.mark.parametrize("branches", [True, False])
@pytest.mark.parametrize("dtype", list(SCALARS))
def test_sines_of_large_numbers(dtype: str, branches: bool) -> None:
    """Over the whole range, small numbers in between, against sums of digits of pi that are exact for each."""
    rng, largest = np.random.default_rng(5), float(np.finfo(dtype).max)
    with np.errstate(over="ignore"):
        drawn = np.exp(rng.uniform(0.0, math.log(largest), 500)) * rng.choice([-1, 1], 500)
        x = np.array([*drawn, largest, -largest, FAR, -FAR, FAR * 1.001, NEAREST[dtype]]).astype(dtype)
    x = np.resize(x, 512)
    expected = {fn: np.array([_turned(float(v), quarter) for v in x]) for fn, quarter in (("sin", 0), ("cos", 1))}
    for fn, exact in expected.items():
        for fma in {False, HOST.has_fma}:
            first = _apply(fn, 8, fma, x, branches=branches)
            assert _ulps(first, exact.astype(np.longdouble)) <= BOUNDS[dtype][fn]
            np.testing.assert_array_equal(_apply(fn, 1, fma, x, branches=branches), first)


_PI_DIGITS = 1500


def _turned(x: float, quarter: int) -> np.longdouble:
    """sin(x + quarter pi / 2): x less quarters in integers of many bits, then a short series of what is left."""
    pi, (n, d) = _pi(_PI_DIGITS), x.as_integer_ratio()
    half, scaled = pi >> 1, (n << _PI_DIGITS) // d
    quarters = (scaled + (half >> 1)) // half
    rest = scaled - quarters * half
    r = np.longdouble(rest >> (_PI_DIGITS - 200)) / np.longdouble(2) ** 200
    turn = (quarters + quarter) % 4
    value = np.cos(r) if turn % 2 else np.sin(r)
    return -value if turn > 1 else value


def _pi(bits: int) -> int:
    """pi 2**bits by Gauss and Legendre: square roots alone, unlike the table in the product."""
    one = 1 << (bits + 64)
    a, b, t, p = one, math.isqrt(one * one >> 1), one >> 2, 1
    for _ in range(12):
        a, b, t, p = (a + b) >> 1, math.isqrt(a * b), t - (p * ((a - b) >> 1) ** 2 >> (bits + 64)), 2 * p
    return ((a + b) ** 2 // (4 * t)) >> 64


@pytest.mark.parametrize("branches", [True, False])
@pytest.mark.parametrize("fma", [False, True])
@pytest.mark.parametrize("dtype", list(SCALARS))
def test_remainders_are_exact(dtype: str, fma: bool, branches: bool) -> None:
    """Of numbers of all exponents, of quotients just below and above whole numbers, and of what is no number."""
    if fma and not HOST.has_fma:
        pytest.skip("no fused multiply-add here")
    rng, info = np.random.default_rng(4), np.finfo(dtype)
    exponents = rng.integers(math.log2(info.smallest_subnormal), info.maxexp, (2, 3000))
    x, y = np.ldexp(rng.uniform(-1, 1, (2, 3000)), exponents).astype(dtype)
    with np.errstate(all="ignore"):
        x[:1000] = y[:1000] * np.round(rng.uniform(-1e4, 1e4, 1000)).astype(dtype)
        x[1000:2000] = y[1000:2000] * np.exp2(rng.uniform(0, 2 * info.nmant, 1000)).astype(dtype)
        special = np.array([0, -0.0, INF, -INF, NAN, 1, info.smallest_subnormal, info.max], dtype)
        x, y = np.append(x, np.repeat(special, 8)), np.append(y, np.tile(special, 8))
        expected = np.fmod(x, y)
    for lanes in (8, 1):
        got = _apply("fmod", lanes, fma, x, y, branches=branches)
        np.testing.assert_array_equal(got, expected)
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(expected[known]))


@pytest.mark.parametrize(("fma", "shuffled"), [(False, 0), (True, 0), (True, 256), (True, 512)])
def test_pow_of_float32(fma: bool, shuffled: int) -> None:
    if (fma and not HOST.has_fma) or shuffled > shuffled_bits(HOST):
        pytest.skip("no such instructions here")
    rng = np.random.default_rng(3)
    for logarithm, exponent in ((20, 4), (0.05, 2000), (90, 1.2)):
        x = np.exp(rng.uniform(-logarithm, min(logarithm, 88), N)).astype(np.float32)
        y = rng.uniform(-exponent, exponent, N).astype(np.float32)
        with np.errstate(over="ignore", under="ignore"):
            exact = x.astype(np.float64) ** y.astype(np.float64)
        assert _ulps(_apply("pow", 16, fma, x, y, shuffled), exact) <= 2


@pytest.mark.parametrize("lanes", [8, 1])
def test_pow_of_float64(lanes: int) -> None:
    rng = np.random.default_rng(3)
    x = np.exp(rng.uniform(-20, 20, 1 << 12))
    y = rng.uniform(-4, 4, 1 << 12)
    got = _apply("pow", lanes, HOST.has_fma, x, y)
    exact = x**y
    bound = (5 + 2 * np.abs(y * np.log(x))) * np.spacing(exact)
    assert (np.abs(got - exact) <= bound).all()


@pytest.mark.parametrize("dtype", list(SCALARS))
def test_pow_edges(dtype: str) -> None:
    bases = np.array([0, -0.0, 1e-40, -1e-40, 0.5, -0.5, 1, -1, 2, -2, -8, INF, -INF, NAN], dtype)
    exponents = np.array([0, -0.0, 0.5, -0.5, 1, -1, 2, -2, 3, -3, 10, 1e30, -1e30, INF, -INF, NAN], dtype)
    x, y = (np.resize(a, 256).astype(dtype) for a in (np.repeat(bases, len(exponents)), np.tile(exponents, len(bases))))
    with np.errstate(all="ignore"):
        expected = x**y
    for shuffled in {0, min(256, shuffled_bits(HOST)), shuffled_bits(HOST)}:
        got = _apply("pow", 8, HOST.has_fma, x, y, shuffled)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(expected[known]))


def test_pow_of_float32_is_in_float64_as_far_as_it_must() -> None:
    wide = {
        mcpu: sum(bool(re.search(r"= (fmul|call) <\d+ x double>", line)) for line in _lines_for("pow", mcpu))
        for mcpu in ("sandybridge", "haswell")
    }
    assert wide == {"sandybridge": 38, "haswell": 10}


@pytest.mark.parametrize("fn", list(REFERENCES))
def test_a_constant_may_be_the_argument(fn: str) -> None:
    for lanes, half in ((1, "0.5"), (8, "splat (float 0.5)")):
        lines: list[str] = []
        numbers = itertools.count()
        result = emit_call(fn, "float32", lanes, half, lambda n=numbers: f"%t{next(n)}", lines.append, HOST.has_fma)
        wide = "float" if lanes == 1 else f"<{lanes} x float>"
        body = "\n  ".join([*lines, f"store {wide} {result}, ptr %args, align 4", "ret i32 0"])
        ir = f"define i32 @k(ptr %args, ptr %workspace, i64 %n) #0 {{\n  {body}\n}}"
        ir = "\n".join([ir, *definitions([ir]), f"attributes #0 = {{ {function_attributes(HOST)} }}"])
        out = np.zeros(lanes, np.float32)
        jit.load_object(jit.compile_object(ir, HOST), "k", 1)(out.ctypes.data, 0)
        np.testing.assert_allclose(out, REFERENCES[fn](np.float64(0.5)), rtol=1e-6)


def test_unknown_functions_are_refused() -> None:
    with pytest.raises(KeyError):
        emit_call("gamma", "float32", 4, "%x", lambda: "%t", lambda line: None, True)
    with pytest.raises(KeyError):
        emit_call("exp", "int32", 4, "%x", lambda: "%t", lambda line: None, True)
