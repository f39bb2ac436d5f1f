"""Type checks of expression nodes, and the ranges of integer types."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from autosched.ir.bitcast import Bitcast
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import (
    ARITHMETIC,
    BITWISE,
    CALLS,
    COMPARISON,
    FLOAT_CALLS,
    FLOAT_ONLY,
    INDEX,
    INT_ONLY,
    LOGICAL,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Select,
    Var,
)
from autosched.ir.instructions import dots
from autosched.ir.instructions.dots import Dot, Word
from autosched.ir.symbolic import type_name

NO_RANGES: Mapping[Any, tuple[int, int]] = MappingProxyType({})


def type_problem(e: Expr) -> str | None:
    """What is wrong with the dtypes of one node, its operands taken as right; None when nothing is."""
    match e:
        case Const(value, dtype):
            return _const_problem(value, dtype)
        case Binary(op, a, b):
            if a.dtype != b.dtype:
                return f"{op} of {a.dtype} and {b.dtype}"
            return _operation_problem(op, a.dtype)
        case Call(fn, args):
            return _call_problem(fn, args)
        case Select(cond, a, b):
            if cond.dtype != "bool":
                return f"the condition of select is {cond.dtype}, not bool"
            return f"select of {a.dtype} and {b.dtype}" if a.dtype != b.dtype else None
        case Load(name, indices, _):
            wrong = [i.dtype for i in indices if i.dtype != INDEX]
            return f"an index of {name} is {wrong[0]}, not {INDEX}" if wrong else None
        case Word() | Dot():
            return dots.problem(e)
        case Bitcast(a, dtype):
            return _bitcast_problem(a.dtype, dtype)
        case Var() | Cast() | Param():
            return None if e.dtype in DTYPES else f"unknown dtype {e.dtype!r}"
    return f"{type(e).__name__} is not an expression"


def _bitcast_problem(source: str, dtype: str) -> str | None:
    if dtype not in DTYPES:
        return f"unknown dtype {dtype!r}"
    return None if DTYPES[source].bits == DTYPES[dtype].bits else f"a bitcast of {source} to {dtype}, of another size"


def _const_problem(value: bool | int | float, dtype: str) -> str | None:
    if dtype not in DTYPES:
        return f"unknown dtype {dtype!r}"
    expected = {"b": bool, "f": float}.get(DTYPES[dtype].kind, int)
    if type(value) is not expected:
        return f"a constant of {dtype} holds the {type(value).__name__} {value}"
    if DTYPES[dtype].is_integer:
        low, high = DTYPES[dtype].integer_range
        if not low <= value <= high:
            return f"the constant {value} does not fit {dtype} ({DTYPES[dtype].bits} bits)"
    return None


def recorded_type(value: Any) -> Any:
    """A type of elements by its name, where `value` is one of NumPy's or PyTorch's; anything else as it is."""
    plain = value is None or isinstance(value, bool | int | float | str)
    return type_name(value) if not plain and type_name(value) in DTYPES else value


def integer_bounds(expr: Expr, ranges: Mapping[Any, tuple[int, int]] = NO_RANGES) -> tuple[int, int]:
    """Smallest and largest value that an integer expression over data may have, whatever the data are. `ranges`: those
    of variables."""
    whole = DTYPES[expr.dtype].integer_range

    def bounds(e: Expr) -> tuple[int, int]:
        return integer_bounds(e, ranges)

    match expr:
        case Const():
            return expr.number, expr.number
        case Cast(a=a) if a.dtype == "bool":
            return 0, 1
        case Cast(a=a) if DTYPES[a.dtype].is_integer:
            return _within(bounds(a), whole)
        case Select(a=a, b=b):
            x, y = bounds(a), bounds(b)
            return min(x[0], y[0]), max(x[1], y[1])
        case Binary(op="min" | "max" as op, a=a, b=b):
            choose, x, y = (min if op == "min" else max), bounds(a), bounds(b)
            return choose(x[0], y[0]), choose(x[1], y[1])
        case Binary(op="bitand", a=a, b=b):
            tops = [high for low, high in (bounds(a), bounds(b)) if low >= 0]
            return (0, min(tops)) if tops else whole
        case Binary(op="mod", b=Const() as b) if b.value > 0:
            return 0, b.number - 1
        case Binary(op="floordiv", a=a, b=Const() as b) if b.value > 0:
            low, high = bounds(a)
            return low // b.number, high // b.number
        case Binary(op="add" | "sub" | "mul" as op, a=a, b=b):
            pairs = [(x, y) for x in bounds(a) for y in bounds(b)]
            ends = [x + y if op == "add" else x - y if op == "sub" else x * y for x, y in pairs]
            return _within((min(ends), max(ends)), whole)
    return ranges.get(expr, whole)


def _within(bounds: tuple[int, int], whole: tuple[int, int]) -> tuple[int, int]:
    """`bounds`, or all of a type that is too narrow for them: numbers wrap around."""
    return bounds if whole[0] <= bounds[0] and bounds[1] <= whole[1] else whole


def _operation_problem(op: str, dtype: str) -> str | None:
    if dtype in DTYPES and DTYPES[dtype].is_stored_only:
        return f"{op} of {dtype}, in which there is no arithmetic"
    kind = DTYPES[dtype].kind if dtype in DTYPES else "?"
    if op in COMPARISON:
        return None
    if op in LOGICAL:
        return None if kind == "b" else f"{op} needs bool operands, not {dtype}"
    if op in INT_ONLY or op in BITWISE:
        return None if kind in "iu" else f"{op} needs integers, not {dtype}"
    if op not in ARITHMETIC:
        return f"unknown operation {op!r}"
    if op in FLOAT_ONLY:
        return None if kind == "f" else f"{op} needs floats, not {dtype}"
    if kind == "b" and op not in ("min", "max"):
        return f"{op} needs numbers, not bool"
    return None


def _call_problem(fn: str, args: tuple[Expr, ...]) -> str | None:
    if fn not in CALLS:
        return f"unknown function {fn!r}"
    if len(args) != 1:
        return f"{fn} takes 1 argument, not {len(args)}"
    kind = DTYPES[args[0].dtype].kind if args[0].dtype in DTYPES else "?"
    if fn in FLOAT_CALLS and kind != "f":
        return f"{fn} needs a float, not {args[0].dtype}"
    if (fn == "not") != (kind == "b"):
        return f"{fn} does not take {args[0].dtype}"
    return None
