"""Atomic updates of global memory: the supported reducers and types.

Those that GPUs have as an instruction, or as a loop around compare-and-swap of 32 or 64 bits.
"""

from __future__ import annotations

from autosched.ir.expr import Binary
from autosched.ir.stmt import Reducer

NUMBERS = frozenset({"float32", "float64", "int32", "int64"})
INTEGERS = frozenset({"int32", "int64"})
ATOMICS = {"add": NUMBERS, "min": INTEGERS, "max": INTEGERS}


def atomic_operation(reducer: Reducer | None) -> str | None:
    """Return the atomic operation ("add", "min", "max") of an update; None if there is none."""
    if reducer is None or len(reducer.results) != 1:
        return None
    match reducer.results[0]:
        case Binary(op, a, b) if {a, b} == {reducer.lhs[0], reducer.rhs[0]} and a.dtype in ATOMICS.get(op, ()):
            return op
    return None
