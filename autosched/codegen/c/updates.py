"""What C has for the updates of reductions: operators such as `+=`."""

from __future__ import annotations

from autosched.ir.expr import Binary
from autosched.ir.stmt import Reducer


def compound(reducer: Reducer) -> str | None:
    """`+=` and the like for reducers that are one operation."""
    result = reducer.results[0]
    return {"add": "+=", "mul": "*="}.get(result.op) if is_plain(reducer) and isinstance(result, Binary) else None


def is_plain(reducer: Reducer) -> bool:
    """Whether the reducer is one operation on its two operands."""
    result = reducer.results[0]
    return len(reducer.results) == 1 and set(result.children) == {reducer.lhs[0], reducer.rhs[0]}
