"""Packing of rounded floats to bytes (`lower/register_tiles/vectors.py`), several vectors at a time.

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
from typing import NamedTuple

from autosched.codegen.llvm.arithmetic import Arithmetic, Val
from autosched.codegen.llvm.bindings import LaneRange
from autosched.codegen.llvm.emitters import StatementEmitter
from autosched.ir.stmt import For, Store
from autosched.lower.register_tiles.vectors import BytePacking


class _Instructions(NamedTuple):
    """For vectors of so many lanes: what rounds and what packs words, by LLVM's names."""

    rounded: str
    words: str
    unsigned: str
    signed: str


_BY_LANES = {
    16: _Instructions("avx512.mask.cvtps2dq.512", "avx512.packssdw.512", "avx512.packuswb.512", "avx512.packsswb.512"),
    8: _Instructions("avx.cvt.ps2dq.256", "avx2.packssdw", "avx2.packuswb", "avx2.packsswb"),
}  # lanes of 32 bits


def emit_packed(emitter: StatementEmitter, loop: For, lanes: int, packing: BytePacking) -> None:
    """Emit the vectors of a loop that become bytes together."""
    store, values, environment = loop.body, emitter.values, emitter.bindings.env
    assert isinstance(store, Store)
    for first in range(0, packing.vectors, packing.together):
        values.lanes, floats = lanes, list[Val]()
        for chunk in range(first, first + packing.together):
            environment[loop.var] = LaneRange(chunk * lanes, lanes)
            values.begin(store)
            floats.append(emitter.arithmetic.broadcast(values.emit(packing.byte.value), lanes))
        zero = None if packing.byte.zero is None else values.emit(packing.byte.zero)
        made = _packed(emitter.arithmetic, packing.byte.dtype, floats, zero)
        environment[loop.var], values.lanes = LaneRange(first * lanes, made.lanes), made.lanes
        emitter.stores.write(store, made)
    values.lanes = 1
    del environment[loop.var]


def _packed(arithmetic: Arithmetic, dtype: str, floats: Sequence[Val], zero: Val | None) -> Val:
    """Bytes of two or four vectors of floats, which are at most the greatest byte without the zero."""
    lanes, w = floats[0].lanes, arithmetic.writer
    how = _BY_LANES[lanes]
    integers = [_rounded(arithmetic, how, x) for x in floats]
    half = None if zero is None else _broadcast(arithmetic, zero, 2 * lanes)
    words = [_words(arithmetic, how, lanes, pair, half) for pair in zip(integers[::2], integers[1::2], strict=True)]
    kind, wide = f"<{4 * lanes} x i8>", f"<{2 * lanes} x i16>"
    name = how.unsigned if dtype == "uint8" else how.signed
    made = w.value(f"call {kind} @llvm.x86.{name}({wide} {words[0]}, {wide} {words[-1]})")
    pieces, count = lanes // 4, len(floats)
    order = [piece * 4 + vector for vector in range(count) for piece in range(pieces)]
    picks = ", ".join(f"i32 {n}" for n in order)
    whole = w.value(f"bitcast {kind} {made} to <{lanes} x i32>")
    moved = w.value(f"shufflevector <{lanes} x i32> {whole}, <{lanes} x i32> poison, <{len(order)} x i32> <{picks}>")
    return Val(w.value(f"bitcast <{len(order)} x i32> {moved} to <{count * lanes} x i8>"), dtype, count * lanes)


def _rounded(arithmetic: Arithmetic, how: _Instructions, x: Val) -> str:
    """By the instruction itself: what LLVM's own function makes of a float that is too large is not known."""
    old, new = f"<{x.lanes} x float>", f"<{x.lanes} x i32>"
    masked = f", {new} zeroinitializer, i16 -1, i32 4" if x.lanes == 16 else ""
    return arithmetic.writer.value(f"call {new} @llvm.x86.{how.rounded}({old} {x.name}{masked})")


def _words(arithmetic: Arithmetic, how: _Instructions, lanes: int, pair: tuple[str, str], zero: str | None) -> str:
    n = 2 * lanes
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
