"""Table lookups of floats with four index bits: a permutation of a register.

    cast((w >> 8) & 15) - 8      of 16 lanes: a shift and a permutation of {-8, ..., 7}

A mask, a conversion and the arithmetic after it are one instruction then: weights of 4 bits take three with the shift
and the multiply-add, and come from memory about as fast.

Half of the shifts are left out. Where the upper 16 bits of a float say all of it, bits from the 16th on choose these,
in a permutation of numbers of 16 bits of which the lower lanes become 0: bits 4 to 7 and 20 to 23 of a word take one
shift. One row by 960 x 576 weights in groups of 32, one core of Sapphire Rapids: 24.0 for 23.5 GB/s from the last
cache, 13.4 for 13.3 from memory, of which 15.3 are merely read.
"""

from __future__ import annotations

import numpy as np

from autosched.codegen.llvm.arithmetic import Val, has_avx512
from autosched.codegen.llvm.emitters import ValueEmitter
from autosched.codegen.llvm.vocabulary import UPPER_HALVES, literal
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Cast, Const, Expr, binary

LANES = 16  # of 32 bits in a register, and numbers of four bits
FLOAT = "float32"
HALF_BITS = 16
HALF = (1 << HALF_BITS) - 1
Numbers = np.ndarray[tuple[int], np.dtype[np.float32]]
_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def from_table(values: ValueEmitter, expr: Expr) -> Val | None:
    """The lanes of a float that depends on four bits of an integer alone; None for other expressions, other vectors,
    and where all lanes share the integer."""
    if values.lanes != LANES or not has_avx512(values.arithmetic.target) or expr.dtype != FLOAT:
        return None
    lookup = _table(expr)
    if lookup is None:
        return None
    place, numbers = lookup
    halves = values.arithmetic.target.has("avx512bw") and not np.any(numbers.view(np.uint32) & HALF)
    lower = _half_lower(place) if halves else None
    index = values.emit(place if lower is None else lower)
    if index.lanes != LANES:
        return None
    if lower is not None:
        return _upper_halves(values, index, numbers)
    table = ", ".join(f"float {literal(float(number), FLOAT)}" for number in numbers)
    kind, of_places = f"<{LANES} x float>", f"<{LANES} x i32>"
    name = values.writer.value(
        f"call {kind} @llvm.x86.avx512.permvar.sf.512({kind} <{table}>, {of_places} {index.name})"
    )
    return Val(name, FLOAT, LANES)


def _half_lower(place: Expr) -> Expr | None:
    """What has 16 bits further up the four that decide; None where none are there."""
    if isinstance(place, Binary) and place.op == "shr" and isinstance(place.b, Const) and place.b.value >= HALF_BITS:
        left = place.b.value - HALF_BITS
        return binary("shr", place.a, left) if left else place.a
    return None


def _upper_halves(values: ValueEmitter, index: Val, numbers: Numbers) -> Val:
    """The numbers that bits 16 to 19 of each lane choose, whose lower halves are 0. Bit 20 counts too: the table is
    there twice."""
    writer, kind = values.writer, f"<{2 * LANES} x i16>"
    bits = numbers.view(np.uint32) >> HALF_BITS
    table = ", ".join(f"i16 {half}" for half in (*bits, *bits))
    places = writer.value(f"bitcast <{LANES} x i32> {index.name} to {kind}")
    permuted = writer.value(f"call {kind} @llvm.x86.avx512.permvar.hi.512({kind} <{table}>, {kind} {places})")
    mask = writer.value(f"load i32, ptr {UPPER_HALVES}, align 4, !invariant.load !{{}}")
    upper = writer.value(f"bitcast i32 {mask} to <{2 * LANES} x i1>")
    halves = writer.value(f"select <{2 * LANES} x i1> {upper}, {kind} {permuted}, {kind} zeroinitializer")
    return Val(writer.value(f"bitcast {kind} {halves} to <{LANES} x float>"), FLOAT, LANES)


def _table(expr: Expr) -> tuple[Expr, Numbers] | None:
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
