"""Floats of which four bits decide: a table in a register, of which an instruction takes what these say.

    cast((w >> 8) & 15) - 8      of 16 lanes: a shift and a permutation of {-8, ..., 7}

A mask, a conversion and the arithmetic after it are one instruction then: weights of 4 bits take three with the shift
and the multiply-add, and come from memory about as fast.
"""

from __future__ import annotations

import numpy as np

from autosched.codegen.llvm.arithmetic import Val, has_avx512
from autosched.codegen.llvm.emitters import ValueEmitter
from autosched.codegen.llvm.vocabulary import literal
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Cast, Const, Expr

LANES = 16  # of 32 bits in a register, and numbers of four bits
FLOAT = "float32"
_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def from_table(values: ValueEmitter, expr: Expr) -> Val | None:
    """The lanes of a float that depends on four bits of an integer alone; None for other expressions, other vectors,
    and where all lanes share the integer."""
    if values.lanes != LANES or not has_avx512(values.arithmetic.target) or expr.dtype != FLOAT:
        return None
    found = _table(expr)
    if found is None:
        return None
    place, numbers = found
    index = values.emit(place)
    if index.lanes != LANES:
        return None
    table = ", ".join(f"float {literal(float(number), FLOAT)}" for number in numbers)
    kind, of_places = f"<{LANES} x float>", f"<{LANES} x i32>"
    name = values.writer.value(
        f"call {kind} @llvm.x86.avx512.permvar.sf.512({kind} <{table}>, {of_places} {index.name})"
    )
    return Val(name, FLOAT, LANES)


def _table(expr: Expr) -> tuple[Expr, np.ndarray[tuple[int], np.dtype[np.float32]]] | None:
    """(x, the value for each of its last four bits) of arithmetic with constants on float(x & 15)."""
    if isinstance(expr, Cast) and isinstance(expr.a, Binary) and expr.a.op == "bitand":
        bits = expr.a
        if isinstance(bits.b, Const) and bits.b.value == LANES - 1 and DTYPES[bits.dtype].nbytes == 4:
            return bits.a, np.arange(LANES, dtype=np.float32)
    if not isinstance(expr, Binary) or expr.op not in _ARITHMETIC or expr.dtype != FLOAT:
        return None
    if isinstance(expr.b, Const) and (inner := _table(expr.a)) is not None:
        return inner[0], _ARITHMETIC[expr.op](inner[1], np.float32(expr.b.value))
    if isinstance(expr.a, Const) and (inner := _table(expr.b)) is not None:
        return inner[0], _ARITHMETIC[expr.op](np.float32(expr.a.value), inner[1])
    return None
