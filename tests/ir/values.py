"""The value of an integer or bool expression at a point, in Python's integers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from autosched.ir.expr import Binary, Call, Cast, Const, Expr, Param, Select, Var

_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "ceildiv": lambda a, b: -(-a // b), "min": min, "max": max, "eq": operator.eq, "ne": operator.ne,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b,
    "bitand": operator.and_, "bitor": operator.or_, "bitxor": operator.xor, "shl": operator.lshift, "shr": operator.rshift,
}  # fmt: skip
_CALLS: dict[str, Callable[[Any], Any]] = {"neg": operator.neg, "abs": abs, "not": operator.not_}


def value_of(expr: Expr, values: Mapping[Any, int]) -> int:
    """`values` gives variables and parameters; a ZeroDivisionError passes through."""
    match expr:
        case Const(value=v):
            return int(v)
        case Var() | Param():
            return values[expr]
        case Binary(op=op, a=a, b=b):
            return int(_OPS[op](value_of(a, values), value_of(b, values)))
        case Call(fn=fn, args=(a,)):
            return int(_CALLS[fn](value_of(a, values)))
        case Select(cond=c, a=a, b=b):
            return value_of(a if value_of(c, values) else b, values)
        case Cast(a=a):
            return value_of(a, values)
    raise TypeError(type(expr).__name__)
