"""Quantisation arithmetic in floats: integral floats skip conversions to integers, and are rounded when converted.

    float(int(uint8(v)) - int(z))                      ->  v - float(z)                v an integer of 0 to 255
    max(min(round(y) + float(z), 255), 0) - float(z)   ->  max(min(round(y), 255 - float(z)), 0 - float(z))
    uint8(max(min(round(y) + float(z), 255), 0))       ->  uint8(int(round(max(min(y, 255 - float(z)), 0 - float(z))))
                                                                 + int(z))

A quantisation followed by a dequantisation takes six instructions instead of ten. The results are bit-identical:
rounding is monotone and keeps integers. z has 8 bits and is the same for all elements, so that expressions of z alone
are computed before the loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Cast, Const, Expr, binary, call, cast
from autosched.ir.stmt import Stmt
from autosched.ir.visit import bottom_up, free_vars, map_exprs

_FLOATS = ("float32", "float64")
_SUM = "int32"
_ROUNDING = ("round", "floor", "ceil")
Range = tuple[float, float]


@dataclass(frozen=True)
class _Clipped:
    """max(min(rounded + zero, high), low), where all four are integers."""

    rounded: Call
    zero: Cast | None
    low: Const
    high: Const

    def clip(self, value: Expr) -> Expr:
        """max(min(value, high - zero), low - zero)."""
        low, high = ((x if self.zero is None else binary("sub", x, self.zero)) for x in (self.low, self.high))
        return binary("max", binary("min", value, high), low)


def integral_floats(stmt: Stmt) -> Stmt:
    """Return `stmt` without such conversions."""

    def simpler(e: Expr) -> Expr:
        return bottom_up(bottom_up(e, _stays_float), _rounded_last) if e.children else e

    return map_exprs(stmt, simpler)


def _stays_float(e: Expr) -> Expr:
    kept = _kept(e.a, e.dtype) if isinstance(e, Cast) and e.dtype in _FLOATS and _is_byte_sum(e.a) else None
    return e if kept is None else kept


def _rounded_last(e: Expr) -> Expr:
    """Clip before rounding in a conversion to a byte."""
    clipped = _clipped(e.a) if isinstance(e, Cast) and DTYPES[e.dtype].is_integer else None
    if not isinstance(e, Cast) or clipped is None or clipped.rounded.dtype != "float32":
        return e
    if (clipped.low.value, clipped.high.value) != DTYPES[e.dtype].integer_range or DTYPES[e.dtype].nbytes > 1:
        return e
    whole = cast(call(clipped.rounded.fn, clipped.clip(clipped.rounded.args[0])), _SUM)
    return cast(whole if clipped.zero is None else binary("add", whole, cast(clipped.zero.a, _SUM)), e.dtype)


def _clipped(e: Expr) -> _Clipped | None:
    match e:
        case Binary(op="max", a=Binary(op="min", a=value, b=Const() as high), b=Const() as low):
            pass
        case _:
            return None
    zero: Cast | None = None
    if isinstance(value, Binary) and value.op == "add" and isinstance(value.b, Cast):
        zero, value = value.b, value.a
        if _range(zero) is None or free_vars(zero):
            return None
    return _Clipped(value, zero, low, high) if isinstance(value, Call) and value.fn == "round" else None


def _is_byte_sum(e: Expr) -> bool:
    """Whether an integer is a sum or difference of converted bytes: exact in any float type."""
    return isinstance(e, Binary) and e.op in ("add", "sub") and all(_byte(x) is not None for x in (e.a, e.b))


def _byte(e: Expr) -> Expr | None:
    """Return the byte that a wider integer was converted from; None if there is none."""
    is_wider = isinstance(e, Cast) and e.dtype == _SUM and DTYPES[e.a.dtype].is_integer
    return e.a if isinstance(e, Cast) and is_wider and DTYPES[e.a.dtype].nbytes == 1 else None


def _kept(e: Expr, dtype: str) -> Expr | None:
    """Return a sum of bytes as a float expression, where one of them was converted from a float; else None."""
    assert isinstance(e, Binary)
    bytes_ = [x for x in map(_byte, (e.a, e.b)) if x is not None]
    floats = [_before(x, dtype) for x in bytes_]
    if all(x is None for x in floats):
        return None
    a, b = (cast(x, dtype) if value is None else value for x, value in zip(bytes_, floats, strict=True))
    moved = _clipped(a) if e.op == "sub" else None
    return binary(e.op, a, b) if moved is None or moved.zero is not b else moved.clip(moved.rounded)


def _before(byte: Expr, dtype: str) -> Expr | None:
    """Return the float that a byte was converted from, if the conversion was exact; else None."""
    if not isinstance(byte, Cast):
        return None
    value = byte.a
    bounds = _range(value) if value.dtype == dtype else None
    low, high = DTYPES[byte.dtype].integer_range
    return value if bounds is not None and low <= bounds[0] and bounds[1] <= high else None


def _range(e: Expr) -> Range | None:
    """Return the range of a float that is an integer; None where it may be no integer."""
    match e:
        case Call(fn=fn) if fn in _ROUNDING:
            return -math.inf, math.inf
        case Const(value=value) if math.isfinite(value) and value == int(value):
            return float(value), float(value)
        case Cast(a=a) if DTYPES[a.dtype].is_integer and DTYPES[a.dtype].nbytes == 1:
            low, high = DTYPES[a.dtype].integer_range
            return float(low), float(high)
        case Binary(op=op, a=a, b=b):
            one, other = _range(a), _range(b)
            return None if one is None or other is None else _joined(op, one, other)
    return None


def _joined(op: str, one: Range, other: Range) -> Range | None:
    match op:
        case "add":
            return one[0] + other[0], one[1] + other[1]
        case "sub":
            return one[0] - other[1], one[1] - other[0]
        case "min":
            return min(one[0], other[0]), min(one[1], other[1])
        case "max":
            return max(one[0], other[0]), max(one[1], other[1])
    return None
