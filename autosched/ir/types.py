"""Type checks of expression nodes, the lanes of their vectors, and the intervals of integers."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

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
from autosched.ir.visit import elements, loads

Interval: TypeAlias = tuple[int, int]
NO_RANGES: Mapping[Any, Interval] = MappingProxyType({})
MAX_BITS = 64  # of an integer
OF_A_FUNCTION = 8  # operations of an exponential or another function of floats, about
FEW_WIDE = 4  # operations for each in a wider type, up to which the wider type decides


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


def lane_bytes(value: Expr) -> int:
    """Bytes of the lanes that an expression is computed in: of the widest type that it handles, indices aside, or of a
    narrower one, if nearly all operations are in that. Vectors are longer than a register then, where they are wide."""
    handled, operations = {1, DTYPES[value.dtype].nbytes}, Counter[int]()
    for e in elements(value):
        if isinstance(e, Load) or (isinstance(e, Cast) and e.dtype != INDEX):
            handled.add(DTYPES[e.dtype].nbytes)
        elif isinstance(e, Binary | Call | Select) and _is_of_data(e):
            is_function = isinstance(e, Call) and e.fn in FLOAT_CALLS
            operations[DTYPES[e.children[-1].dtype].nbytes] += OF_A_FUNCTION if is_function else 1
    wide = 1  # the conversion
    for size in sorted(handled, reverse=True):
        wide += operations[size]
        if FEW_WIDE * wide > operations.total():
            return size
    return min(handled)


def _is_of_data(e: Expr) -> bool:
    """Whether an operation is on elements, and no condition or choice of indices."""
    if isinstance(e, Select) and not loads(e.cond):
        return False
    operand = e.children[-1]
    return operand.dtype != "bool" and (operand.dtype != INDEX or bool(loads(operand)))


def integer_bounds(expr: Expr, ranges: Mapping[Any, Interval] = NO_RANGES) -> Interval:
    """Smallest and largest value that an integer expression over data may have, whatever the data are. `ranges`: those
    of variables, and of other expressions where they are known."""
    if expr in ranges:
        return ranges[expr]
    whole = DTYPES[expr.dtype].integer_range

    def bounds(e: Expr) -> Interval:
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
        case Binary(op="mul", a=a, b=b) if a is b:
            ends = [x * x for x in bounds(a)]
            return _within((0, max(ends)), whole)
        case Binary(op=op, a=a, b=b) if op in _INTERVALS:
            interval = _INTERVALS[op](bounds(a), bounds(b))
            return whole if interval is None else _within(interval, whole)
        case Call(fn="neg", args=(a,)):
            low, high = bounds(a)
            return _within((-high, -low), whole)
        case Call(fn="abs", args=(a,)):
            low, high = bounds(a)
            return _within((max(0, low, -high), max(-low, high)), whole)
    return whole


def _corners(function: Callable[[int, int], int], x: Interval, y: Interval) -> Interval:
    """The interval of a function that is monotonic in each operand while the other one stays."""
    values = [function(a, b) for a in x for b in y]
    return min(values), max(values)


def _bitand(x: Interval, y: Interval) -> Interval | None:
    tops = [high for low, high in (x, y) if low >= 0]
    return (0, min(tops)) if tops else None


def _other_bits(x: Interval, y: Interval) -> Interval | None:
    """Of `bitor` and `bitxor`: no bit above the highest one of both."""
    return (0, (1 << (x[1] | y[1]).bit_length()) - 1) if x[0] >= 0 and y[0] >= 0 else None


def _shifted(function: Callable[[int, int], int], x: Interval, y: Interval) -> Interval | None:
    return _corners(function, x, y) if y[0] >= 0 and y[1] < MAX_BITS else None


_INTERVALS: Mapping[str, Callable[[Interval, Interval], Interval | None]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": lambda x, y: _corners(operator.mul, x, y),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "floordiv": lambda x, y: _corners(operator.floordiv, x, y) if y[0] > 0 else None,
    "mod": lambda x, y: (0, y[1] - 1) if y[0] > 0 else None,
    "bitand": _bitand,
    "bitor": _other_bits,
    "bitxor": _other_bits,
    "shl": lambda x, y: _shifted(operator.lshift, x, y),
    "shr": lambda x, y: _shifted(operator.rshift, x, y),
}


def _within(bounds: Interval, whole: Interval) -> Interval:
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
