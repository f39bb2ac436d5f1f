"""Random expressions and reductions over given values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from autosched import te
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te.tensor import AxisVar

_FLOAT_FUNCTIONS: tuple[Callable[[Expr], Expr], ...] = (
    te.tanh,
    te.sigmoid,
    te.erf,
    te.abs,
    lambda x: -x,
    lambda x: te.exp(te.minimum(x, 4.0)),
    lambda x: te.sqrt(te.abs(x)),
    lambda x: te.rsqrt(te.abs(x) + 1.0),
    lambda x: te.log(te.abs(x) + 1.0),
    lambda x: te.maximum(x, 0.0),
    lambda x: te.pow(x, 2),
    lambda x: te.floor(x),
    lambda x: te.round(x),
    lambda x: x * 0.5 + 1.0,
    lambda x: te.sin(x * 3.0),
    lambda x: te.cos(x * 3e7),  # beyond what a few instructions reduce
    lambda x: te.fmod(x * 5.0, 0.3),
    lambda x: te.fmod(x * 1e9, 3.0),
    lambda x: te.floor(x * 49.0 / 49.0),
)


def at_an_end(x: Expr) -> Expr:
    """Integers near the largest number of their type, or near the least."""
    low, high = DTYPES[x.dtype].integer_range
    near = x & 7
    return te.select(te.equal(x & 1, 0), te.const(high, x.dtype) - near, te.const(low, x.dtype) + near)


def through_a_float(x: Expr) -> Expr:
    """Its bits seen as a float's and back: only those of 0 as exponent, so that none is NaN."""
    row = DTYPES[x.dtype]
    name = {8: "float8_e5m2", 16: "float16", 32: "float32", 64: "float64"}[row.bits]
    return te.bitcast(te.bitcast(te.abs(x) & 3, name), x.dtype) + x


_INT_FUNCTIONS: tuple[Callable[[Expr], Expr], ...] = (
    te.abs,
    lambda x: -x,
    lambda x: x + 3,
    lambda x: x * 3 - 1,
    lambda x: x // 3,
    lambda x: x % 5,
    lambda x: te.cast(te.cast(x, "int64") // -3, x.dtype),
    lambda x: te.cast(te.cast(x, "int32") % -5, x.dtype),
    lambda x: x & 6,
    lambda x: x ^ 5,
    lambda x: x >> 1,
    lambda x: x << 1,
    at_an_end,
    lambda x: at_an_end(x) // 3,
    lambda x: at_an_end(x) % 7,
    lambda x: te.abs(at_an_end(x)),
)
_PAIRS: tuple[Callable[[Expr, Expr], Expr], ...] = (
    lambda x, y: x + y,
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    te.maximum,
    te.minimum,
    lambda x, y: te.select(x < y, x, y * 2),
    lambda x, y: te.select(te.equal(x, y), y, x),
)
_INT_PAIRS: tuple[Callable[[Expr, Expr], Expr], ...] = (
    lambda x, y: at_an_end(x) // y,  # by 0 as well, and the least number by -1
    lambda x, y: x // at_an_end(y),
    lambda x, y: at_an_end(x) % y,
    lambda x, y: te.minimum(at_an_end(x), y),
)
_BOOL_PAIRS: tuple[Callable[[Expr, Expr], Expr], ...] = (
    lambda x, y: x & y,
    lambda x, y: x | y,
    lambda x, y: te.not_equal(x, y),
    lambda x, y: te.select(x, y, te.logical_not(y)),
)


def number(dtype: str, value: int) -> Expr:
    return te.const(bool(value) if dtype == "bool" else value, dtype)


def function(rng: random.Random, x: Expr) -> Expr:
    kind = DTYPES[x.dtype].kind
    if kind == "b":
        return te.logical_not(x)
    if kind == "f":
        return rng.choice(_FLOAT_FUNCTIONS)(x)
    return rng.choice((*_INT_FUNCTIONS, through_a_float))(x)


def together(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """Two values that may meet: no type has the numbers of uint64 and of a type with a sign."""
    kinds = {DTYPES[x.dtype].kind, DTYPES[y.dtype].kind}
    if kinds == {"i", "u"} and "uint64" in (x.dtype, y.dtype):
        return te.cast(x, "int64"), te.cast(y, "int64")
    return x, y


def pair(rng: random.Random, x: Expr, y: Expr) -> Expr:
    x, y = together(x, y)
    if x.dtype == y.dtype == "bool":
        return rng.choice(_BOOL_PAIRS)(x, y)
    if DTYPES[x.dtype].is_float and y.dtype != "bool" and rng.random() < 0.1:
        divisor = te.abs(y) + 1.0
        return rng.choice((x / divisor, te.fmod(x, divisor), te.floor(x / divisor)))
    if DTYPES[x.dtype].is_integer and DTYPES[y.dtype].is_integer and rng.random() < 0.15:
        return rng.choice(_INT_PAIRS)(x, y)
    return rng.choice(_PAIRS)(x, y)


def mixed(rng: random.Random, values: Sequence[Expr]) -> Expr:
    """One expression that uses all the values, with functions in between; now and then compared or cast."""
    rest = [function(rng, v) if rng.random() < 0.25 else v for v in values]
    while len(rest) > 1:
        y, x = rest.pop(), rest.pop()
        rest.append(pair(rng, x, y))
    value = rest[0]
    if rng.random() < 0.3 or (len(values) == 1 and rng.random() < 0.6):
        value = function(rng, value)
    if rng.random() < 0.06 and value.dtype != "bool":
        value = value > number(value.dtype, 1)
    elif rng.random() < 0.08:
        wider = [d for d in ("int32", "uint32", "int64", "uint64", "float32", "float64") if te_wider(d, value.dtype)]
        value = te.cast(value, rng.choice(wider)) if wider else value
    elif value.dtype == "float32" and rng.random() < 0.05:
        value = te.cast(value, rng.choice(("float16", "bfloat16")))
    return value


def steady(rng: random.Random, values: Sequence[Expr]) -> Expr:
    """An expression of the values, all of one type, that is of it too, and no larger than they are if that is a
    float: a recurrence of thousands of steps stays finite."""
    rest, dtype = list(values), values[0].dtype
    while len(rest) > 1:
        y, x = rest.pop(), rest.pop()
        if dtype == "bool":
            ways = (x & y, x | y, te.select(x, y, te.logical_not(y)))
        else:
            chosen = (te.maximum(x, y), te.minimum(x, y), te.select(x > number(dtype, 0), x, y))
            joined = x * 0.5 + y * 0.5 if DTYPES[dtype].is_float else x + y * number(dtype, 3)
            ways = (joined, joined, joined, *chosen)
        rest.append(te.cast(rng.choice(ways), dtype))
    return rest[0]


def te_wider(a: str, b: str) -> bool:
    """Whether `a` comes after `b` in promotion order, so that a cast cannot overflow."""
    order = list(DTYPES)
    return order.index(a) > order.index(b)


def index_condition(rng: random.Random, indices: Sequence[tuple[Any, int]]) -> Expr:
    """A condition on one of the axes."""
    axis, extent = rng.choice(list(indices))
    limit, divisor = rng.randint(0, extent), rng.randint(2, 5)
    part = rng.choice((axis, axis, axis % divisor, axis // divisor))
    return rng.choice((part < limit, part >= limit, te.equal(part, limit // divisor), te.not_equal(part, limit)))


def reduced(rng: random.Random, values: Sequence[Expr], axes: tuple[AxisVar, ...], product: bool) -> Any:
    """A reduction of the values' product (or of another combination of them) over `axes`."""
    if product and len(values) == 2 and rng.random() < 0.8:
        x, y = together(*(_accumulated(v) for v in values))
        value = x * y
    else:
        value = mixed(rng, values)
    choice = rng.random()
    if value.dtype == "bool":
        return rng.choice((te.any, te.all, te.sum))(value, axis=axes)
    if choice < (0.75 if product else 0.4):
        return te.sum(value, axis=axes)
    if choice < 0.85:
        return rng.choice((te.max, te.min))(value, axis=axes)
    if choice < 0.9 and not DTYPES[value.dtype].is_float:
        return te.prod(value, axis=axes)
    return _own(rng, value, axes)


def _accumulated(value: Expr) -> Expr:
    row = DTYPES[value.dtype]
    return value if row.is_float else te.cast(value, row.accumulates_in)


def _own(rng: random.Random, value: Expr, axes: tuple[AxisVar, ...]) -> Any:
    """The place of the best, or a reducer of the user's own: root of the sum of squares, exclusive or, sum and maximum
    together, or one of which the order matters."""
    choice = rng.random()
    if choice < 0.3:
        place: Expr = te.const(0, "int64")
        for axis in axes:
            place = place * axis.extent + axis
        return rng.choice((te.argmax, te.argmin))((place, value), axis=axes)
    if choice < 0.5 and value.dtype != "bool":
        return _in_order(rng, value, axes)
    if choice < 0.75:
        both = te.reducer(
            lambda x, y: (x[0] + y[0], te.maximum(x[1], y[1])),
            lambda s, t: (number(s, 0), te.const(-100, t)),
            "sum_and_max",
        )
        return both((value, te.maximum(te.cast(value, "float64"), -100.0)), axis=axes)
    if DTYPES[value.dtype].is_float:
        root = te.reducer(lambda x, y: te.sqrt(x * x + y * y), lambda t: te.const(0, t), "hypot")
        return root(te.abs(value), axis=axes)
    return te.reducer(lambda x, y: x ^ y, lambda t: te.const(0, t), "xor")(value, axis=axes)


def _in_order(rng: random.Random, value: Expr, axes: tuple[AxisVar, ...]) -> Any:
    """A recurrence of one state, or of two, the second of which takes the first before it changes."""
    half = 0.5 if DTYPES[value.dtype].is_float else 3
    if rng.random() < 0.5:
        return te.reducer(lambda x, y: x * half - y, 1, "horner", ordered=True)(value, axis=axes)
    both = te.reducer(lambda x, y: (y[0] - x[0] * half, x[1] * half + x[0]), (0, 1), "in_order", ordered=True)
    return both((value, value), axis=axes)
