"""Packing of rounded floats to bytes, several vectors at a time.

    vminps, vcvtps2dq    of each vector
    vpackssdw            of two: integers of 16 bits
    vpaddsw              the zero, where there is one
    vpackuswb            of two again: bytes, or vpacksswb
    vpermd               into order: packing goes on within 128 bits

Packing ends at the least and the greatest byte, so nothing is clipped before it but what no integer of 32 bits holds:
beyond the greatest an instruction rounds to the least. One vector at a time would take a maximum, an addition and two
shuffles for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autosched.codegen.llvm.arithmetic import Arithmetic, Val
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Call, Cast, Const, Expr
from autosched.ir.stmt import Store
from autosched.ir.visit import free_vars
from autosched.target import Target


class _Instructions(NamedTuple):
    """For vectors of so many bits: an extension of the processor, what rounds and what packs words, LLVM's names."""

    feature: str
    rounded: str
    words: str
    unsigned: str
    signed: str


_BY_LANES = {
    16: _Instructions(
        "avx512bw", "avx512.mask.cvtps2dq.512", "avx512.packssdw.512", "avx512.packuswb.512", "avx512.packsswb.512"
    ),
    8: _Instructions("avx2", "avx.cvt.ps2dq.256", "avx2.packssdw", "avx2.packuswb", "avx2.packsswb"),
}  # lanes of 32 bits


@dataclass(frozen=True)
class RoundedByte:
    """`value`, at most `high`, rounded half to even, plus `zero`, as the nearest number of `dtype`."""

    value: Expr
    zero: Expr | None
    dtype: str


def rounded_byte(store: Store) -> RoundedByte | None:
    """Return the rounded float behind a stored byte in the form of `lower.passes.integral_floats`; else None."""
    if len(store.values) != 1 or store.reducer is not None:
        return None
    match store.values[0]:
        case Cast(a=Cast() as whole, dtype="int8" | "uint8" as dtype):
            zero = None
        case Cast(a=Binary(op="add", a=Cast() as whole, b=Cast() as zero), dtype="int8" | "uint8" as dtype):
            if free_vars(zero):
                return None
        case _:
            return None
    match whole:
        case Cast(a=Call(fn="round", args=(Binary(op="max", a=Binary(op="min") as least, b=low),)), dtype="int32"):
            first = DTYPES[dtype].integer_range[0]
            is_least = least.dtype == "float32" and _is_moved(low, first, zero)
            return RoundedByte(least, zero, dtype) if is_least else None
    return None


def _is_moved(bound: Expr, value: int, zero: Cast | None) -> bool:
    """Whether a float is an integer without the zero that is added after it."""
    if zero is None:
        return isinstance(bound, Const) and bound.value == value
    match bound:
        case Binary(op="sub", a=Const(value=constant), b=Cast(a=byte)):
            return constant == value and byte == zero.a and DTYPES[byte.dtype].nbytes == 1
    return False


def packs(target: Target, lanes: int) -> bool:
    """Whether the processor has the instructions for vectors of so many floats."""
    return target.arch == "x86_64" and lanes in _BY_LANES and target.has(_BY_LANES[lanes].feature)


def together(whole: int) -> int:
    """How many of so many vectors are packed at a time; none of a single one."""
    return 4 if whole >= 4 else whole // 2 * 2


def packed(arithmetic: Arithmetic, rounded_byte: RoundedByte, floats: Sequence[Val], zero: Val | None) -> Val:
    """Bytes of two or four vectors of floats, which are at most the greatest byte without the zero."""
    lanes, w = floats[0].lanes, arithmetic.writer
    how = _BY_LANES[lanes]
    integers = [_rounded(arithmetic, how, x) for x in floats]
    half = None if zero is None else _broadcast(arithmetic, zero, 2 * lanes)
    words = [_words(arithmetic, how, pair, half) for pair in zip(integers[::2], integers[1::2], strict=True)]
    kind, wide = f"<{4 * lanes} x i8>", f"<{2 * lanes} x i16>"
    name = how.unsigned if rounded_byte.dtype == "uint8" else how.signed
    made = w.value(f"call {kind} @llvm.x86.{name}({wide} {words[0]}, {wide} {words[-1]})")
    pieces, count = lanes // 4, len(floats)
    order = [piece * 4 + vector for vector in range(count) for piece in range(pieces)]
    picks = ", ".join(f"i32 {n}" for n in order)
    whole = w.value(f"bitcast {kind} {made} to <{lanes} x i32>")
    moved = w.value(f"shufflevector <{lanes} x i32> {whole}, <{lanes} x i32> poison, <{len(order)} x i32> <{picks}>")
    return Val(
        w.value(f"bitcast <{len(order)} x i32> {moved} to <{count * lanes} x i8>"), rounded_byte.dtype, count * lanes
    )


def _rounded(arithmetic: Arithmetic, how: _Instructions, x: Val) -> str:
    """By the instruction itself: what LLVM's own function makes of a float that is too large is not known."""
    old, new = f"<{x.lanes} x float>", f"<{x.lanes} x i32>"
    masked = f", {new} zeroinitializer, i16 -1, i32 4" if x.lanes == 16 else ""
    return arithmetic.writer.value(f"call {new} @llvm.x86.{how.rounded}({old} {x.name}{masked})")


def _words(arithmetic: Arithmetic, how: _Instructions, pair: tuple[str, str], zero: str | None) -> str:
    n = 32 if how.feature == "avx512bw" else 16
    kind, half = f"<{n} x i16>", f"<{n // 2} x i32>"
    made = arithmetic.writer.value(f"call {kind} @llvm.x86.{how.words}({half} {pair[0]}, {half} {pair[1]})")
    if zero is None:
        return made
    return arithmetic.writer.value(f"call {kind} @llvm.sadd.sat.v{n}i16({kind} {made}, {kind} {zero})")


def _broadcast(arithmetic: Arithmetic, number: Val, lanes: int) -> str:
    """An integer of 32 bits as integers of 16 bits, the same in all lanes."""
    w, kind = arithmetic.writer, f"<{lanes} x i16>"
    if not number.name.startswith("%"):
        return f"splat (i16 {number.name})"
    half = w.value(f"trunc i32 {number.name} to i16")
    first = w.value(f"insertelement {kind} poison, i16 {half}, i64 0")
    return w.value(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")
