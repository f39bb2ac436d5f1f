"""Scalar semantics: the result of each operation on scalars of a dtype.

float32 rounds after each operation, float64 is IEEE double, integers wrap, comparisons give bool.
`exp`, `erf` and the other functions are computed in float64 and rounded once. `min` and `max` of floats
are NaN where an operand is; `round` goes to even; `shr` of a signed integer is arithmetic; `floordiv`,
`mod` and `ceildiv` round as Python does. Casts of a float to an integer truncate.

A float32 is a np.float32, and so is a number of a small float, which is only stored and cast; float64, the
integers and bool are Python's float, int and bool. The caller ignores NumPy's floating-point warnings (`np.errstate`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import COMPARISON

Value: TypeAlias = Any
Function: TypeAlias = Callable[[Value], Value]
Operation: TypeAlias = Callable[[Value, Value], Value]


def wrapping(dtype: str) -> Callable[[int], int]:
    """Any integer to the one of `dtype` that is equal modulo two to the number of bits."""
    low, high = DTYPES[dtype].integer_range
    span = high - low + 1
    return lambda v: v if low <= v <= high else (v - low) % span + low


def is_partial(op: str) -> bool:
    """Whether the operation on integers has no result for some operands."""
    return op in _PARTIAL


def operation(op: str, dtype: str) -> Operation:
    """`a op b` for operands of `dtype`; raises ArithmeticError where it has no result."""
    kind, bits = DTYPES[dtype].kind, DTYPES[dtype].bits
    if op in COMPARISON:
        return _COMPARE[op]
    if kind == "b":
        return _BOOL[op]
    if kind == "f":
        return (_FLOAT32 if dtype == "float32" else _FLOAT64)[op]
    if op in ("min", "max"):
        return min if op == "min" else max
    wrap = wrapping(dtype)
    if op in _INTEGER:
        total = _INTEGER[op]
        return lambda x, y: wrap(total(x, y))
    partial = _PARTIAL[op]
    return lambda x, y: wrap(partial(x, y, bits))


def conversion(source: str, dtype: str) -> Function:
    """The cast from `source` to `dtype`; floats that do not fit an integer raise ArithmeticError."""
    row = DTYPES[dtype]
    if row.kind == "b":
        return bool
    if row.is_stored_only:
        wide = conversion(row.computes_in, row.computes_in)
        return lambda x: wide(row.nearest(x))
    if dtype == "float64":
        return float
    if dtype == "float32":
        return np.float32 if DTYPES[source].bits < 64 or DTYPES[source].is_float else _float32_of(source)
    wrap = wrapping(dtype)
    if not DTYPES[source].is_float:
        return lambda x: wrap(int(x))
    low, high = DTYPES[dtype].integer_range

    def truncate(x: Value) -> int:
        value = float(x)
        if not (math.isfinite(value) and low <= int(value) <= high):
            raise ArithmeticError(f"it does not fit {dtype}")
        return int(value)

    return truncate


def _float32_of(source: str) -> Function:
    """Integers of 64 bits are rounded once; by way of float64 they would be rounded twice."""
    kind = DTYPES[source].numpy_dtype.type
    return lambda x: kind(x).astype(np.float32)


def reinterpretation(source: str, dtype: str) -> Function:
    """The number of `dtype` that has the bits of one of `source`."""
    row, target = DTYPES[source], DTYPES[dtype]
    if not target.is_float:
        return lambda x: int(row.numpy_dtype.type(x).view(dtype))
    kind = np.float32 if target.computes_in == "float32" else float
    return lambda x: kind(row.numpy_dtype.type(x).view(target.numpy_dtype))


def scalar_function(fn: str, dtype: str) -> Function:
    """`fn(a)` for an operand of `dtype`."""
    if fn == "not":
        return operator.not_
    if fn in ("abs", "neg"):
        function = abs if fn == "abs" else operator.neg
        if DTYPES[dtype].is_float:
            return function
        wrap = wrapping(dtype)
        return lambda x: wrap(function(x))
    rounded = np.float32 if dtype == "float32" else float
    exact = _FUNCTIONS[fn]
    return lambda x: rounded(exact(float(x)))


def _shift_left(x: int, y: int, bits: int) -> int:
    return x << _shift(y, bits)


def _shift_right(x: int, y: int, bits: int) -> int:
    return x >> _shift(y, bits)


def _shift(y: int, bits: int) -> int:
    if not 0 <= y < bits:
        raise ArithmeticError(f"a shift must be at least 0 and less than {bits}")
    return y


def _power(x: int, y: int, bits: int) -> int:
    if y < 0:
        raise ArithmeticError("an integer power must not be negative")
    return int(pow(x, y, 2**bits))


def _minimum(x: Value, y: Value) -> Value:
    return x if x < y or x != x else y


def _maximum(x: Value, y: Value) -> Value:
    return x if x > y or x != x else y


_COMPARE: dict[str, Operation] = {name: getattr(operator, name) for name in COMPARISON}
_BOOL: dict[str, Operation] = {"and": operator.and_, "or": operator.or_, "min": operator.and_, "max": operator.or_}
_INTEGER: dict[str, Operation] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "bitxor": operator.xor,
}
_PARTIAL: dict[str, Callable[[int, int, int], int]] = {
    "floordiv": lambda x, y, _: x // y,
    "mod": lambda x, y, _: x % y,
    "ceildiv": lambda x, y, _: -(-x // y),
    "pow": _power,
    "shl": _shift_left,
    "shr": _shift_right,
}
_FLOAT32: dict[str, Operation] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "min": _minimum,
    "max": _maximum,
    "pow": lambda x, y: np.float32(np.power(float(x), float(y))),
    "fmod": lambda x, y: np.float32(np.fmod(float(x), float(y))),
}
_FLOAT64: dict[str, Operation] = {
    **_FLOAT32,
    "div": lambda x, y: float(np.divide(x, y)),
    "pow": lambda x, y: float(np.power(x, y)),
    "fmod": lambda x, y: float(np.fmod(x, y)),
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "exp": np.exp,
    "exp_negative": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "erf": math.erf,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sin": np.sin,
    "cos": np.cos,
}
