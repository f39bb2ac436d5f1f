"""Bytes between floats, and what is rounded as it becomes one."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.ir.expr import INDEX, Call, Cast, Const, Expr, Var, binary, call, cast, const
from autosched.ir.interpreter.interpret import interpret
from autosched.ir.stmt import Func, Store, walk
from autosched.ir.verify import verify
from autosched.ir.visit import exprs_of, subexpressions
from autosched.lower.passes.integral_floats import integral_floats
from tests.ir.nests import F32, buffer, func, load, loop, store

i = Var("i", INDEX)
Y, S = load("y", i), load("s", 0)
RANGES = {"uint8": (0, 255), "int8": (-128, 127)}


def byte(name: str, dtype: str, at: Expr | int = 0) -> Expr:
    return load(name, at, dtype=dtype)


def quantised(value: Expr, zero: Expr | None, dtype: str, high: float | None = None) -> Expr:
    low, most = RANGES[dtype]
    whole = call("round", value)
    moved = whole if zero is None else binary("add", whole, cast(zero, F32))
    clipped = binary("min", moved, const(float(most) if high is None else high, F32))
    return cast(binary("max", clipped, const(float(low), F32)), dtype)


def dequantised(value: Expr, zero: Expr) -> Expr:
    return cast(binary("sub", cast(value, "int32"), cast(zero, "int32")), F32)


def kernel(value: Expr, dtype: str, made: str = F32) -> Func:
    inputs = [buffer("y", (40,)), buffer("s", (1,)), buffer("z", (40,), dtype=dtype)]
    return func(inputs, [buffer("C", (40,), dtype=made)], loop(i, 40, store("C", (i,), value)))


def after(f: Func) -> list[Expr]:
    """The nodes of the kernel after the pass, which computes the same to the last bit."""
    simpler = func(f.params[:3], f.params[3:], integral_floats(f.body))
    verify(simpler)
    rng, dtype = np.random.default_rng(1), f.params[2].dtype
    y = np.concatenate([rng.uniform(-300, 300, 30), [0.5, 1.5, -0.5, 2.5, 3e9, -3e9, 254.5, 255.5, -128.5, 1e30]])
    low, high = RANGES[dtype]
    zeros = rng.integers(low, high + 1, 40).astype(dtype)
    arrays = {"y": y.astype(F32), "s": np.array([0.37], F32), "z": zeros}
    for got, want in zip(interpret(simpler, arrays), interpret(f, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    stores = [s for s in walk(simpler.body) if isinstance(s, Store)]
    return [e for s in stores for v in exprs_of(s) for e in subexpressions(v)]


def conversions(nodes: list[Expr]) -> int:
    """Of floats to integers."""
    return sum(isinstance(e, Cast) and e.a.dtype == F32 and e.dtype != F32 for e in nodes)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_byte_between_floats_stays_a_float(dtype):
    zero = byte("z", dtype)
    assert conversions(after(kernel(dequantised(quantised(Y, zero, dtype), zero) * S, dtype))) == 0


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_of_another_zero_too(dtype):
    taken = dequantised(quantised(Y, byte("z", dtype), dtype), byte("z", dtype, 3))
    assert conversions(after(kernel(taken, dtype))) == 0


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("has_zero", [False, True])
def test_what_becomes_a_byte_is_rounded_last(dtype, has_zero):
    nodes = after(kernel(quantised(Y, byte("z", dtype) if has_zero else None, dtype), dtype, dtype))
    (rounded,) = (e for e in nodes if isinstance(e, Cast) and isinstance(e.a, Call))
    assert rounded.dtype == "int32"


def test_what_stays():
    zero = byte("z", "uint8")
    wider = dequantised(quantised(Y, zero, "uint8", high=300.0), zero)
    unrounded = cast(binary("max", binary("min", Y, Const(255.0, F32)), Const(0.0, F32)), "uint8")
    own = quantised(Y, byte("z", "uint8", i), "uint8")  # a zero of each element is no number of the loop
    for value, made in ((dequantised(unrounded, zero), F32), (own, "uint8")):
        f = kernel(value, "uint8", made)
        assert value in after(f)
    body = kernel(wider, "uint8").body
    assert integral_floats(body) is body
