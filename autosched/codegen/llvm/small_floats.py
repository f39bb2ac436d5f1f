"""Conversions between small floats and float32, rounding to even. Their values are an i16 or i8 in LLVM.

Processors that have instructions for it use them (F16C, AVX512-BF16, all of Arm's float16); the others get integer
arithmetic, since what LLVM makes of a conversion there are calls of a library that need not be present. The forms are
those of F. Giesen, "float->half variants", https://gist.github.com/rygorous/2156668.

Where lanes are de-interleaved (`lower/register_tiles/lane_pairs.py`), a register of bfloat16 becomes two of float32,
the even lanes by a shift and the odd ones by a mask. Two become one by a shift and a blend, or by a conversion and a
shuffle of AVX512-BF16. In their own order each half is shuffled across the register before its shift, or after it.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosched.codegen.llvm.vocabulary import literal, splat, value_type
from autosched.ir.dtype import DTYPES, Dtype
from autosched.target import Target

if TYPE_CHECKING:
    from autosched.codegen.llvm.arithmetic import Arithmetic, Val

_FEATURES = {"float16": "f16c", "bfloat16": "avx512bf16"}  # processors' instructions for conversions


def widen(m: Arithmetic, a: Val) -> Val:
    """The float32 that a number of fewer bits is."""
    if a.dtype == "float16" and _has(m, "float16"):
        return m.converted("fpext", m.converted("bitcast", a, "half"), "float", "float32")
    if m.writer.deinterleaved and a.lanes > 1:
        return _widen_pairs(m, a)
    word = m.converted("zext", a, "i32", "int32")
    if a.dtype == "bfloat16":
        return _float(m, m.binary("shl", word, _int(m, 16)))
    form = _ShortForm(DTYPES[a.dtype])
    size = m.binary("bitand", word, _int(m, form.sign - 1))
    scale = m.number(2.0**form.lower, "float32")
    scaled = m.binary("mul", _float(m, m.binary("shl", size, _int(m, form.shift))), scale)
    bits = m.converted("bitcast", scaled, "i32", "int32")
    endless = m.binary("bitor", bits, _int(m, 0x7F800000 if form.row.has_infinity else 0x7FC00000))
    bits = m.select(m.binary("ge", size, _int(m, form.infinite)), endless, bits)
    sign = m.binary("shl", m.binary("bitand", word, _int(m, form.sign)), _int(m, 32 - form.row.bits))
    return _float(m, m.binary("bitor", bits, sign))


def narrow(m: Arithmetic, a: Val, dtype: str) -> Val:
    """The number of fewer bits nearest to a float32."""
    pairs = dtype == "bfloat16" and m.writer.deinterleaved and a.lanes > 1
    if pairs and _has(m, dtype) and a.lanes * 2 == m.target.vector_bytes == 64:
        return _narrow_registers(m, a)
    if _has(m, dtype) and not pairs:
        kind = "half" if dtype == "float16" else "bfloat"
        return m.converted("bitcast", m.converted("fptrunc", a, kind), "i16", dtype)
    word = m.converted("bitcast", a, "i32", "int32")
    if dtype != "bfloat16":
        row = DTYPES[dtype]
        return m.converted("trunc", _shortened(m, word, _ShortForm(row)), f"i{row.bits}", dtype)
    rounded = _rounded(m, a, word)
    if pairs:
        return _narrow_pairs(m, rounded)
    return m.converted("trunc", _down(m, rounded, 16), "i16", dtype)


def _has(m: Arithmetic, dtype: str) -> bool:
    return _converts(m.target, dtype)


def _converts(target: Target, dtype: str) -> bool:
    """Whether the target has instructions for the conversion."""
    if target.arch != "x86_64":
        return dtype == "float16"
    return dtype in _FEATURES and target.has(_FEATURES[dtype])


def _widen_pairs(m: Arithmetic, a: Val) -> Val:
    """Return the even lanes, then the odd lanes."""
    half, text = a.lanes // 2, value_type("int32", a.lanes // 2)
    words = m.writer.value(f"bitcast {value_type(a.dtype, a.lanes)} {a.name} to {text}")
    even = m.writer.value(f"shl {text} {words}, {splat('16', 'int32', half)}")
    odd = m.writer.value(f"and {text} {words}, {splat('-65536', 'int32', half)}")
    picks = ", ".join(f"i32 {n}" for n in range(a.lanes))
    both = m.writer.value(f"shufflevector {text} {even}, {text} {odd}, <{a.lanes} x i32> <{picks}>")
    return _float(m, _like(a, both, "int32"))


def _narrow_pairs(m: Arithmetic, rounded: Val) -> Val:
    """The upper 16 bits of numbers in that order, in their own."""
    lanes, half = rounded.lanes, rounded.lanes // 2
    whole, text, short = (value_type(*t) for t in (("int32", lanes), ("int32", half), ("bfloat16", lanes)))
    parts = []
    for first in (0, half):
        picks = ", ".join(f"i32 {n}" for n in range(first, first + half))
        part = m.writer.value(f"shufflevector {whole} {rounded.name}, {whole} poison, <{half} x i32> <{picks}>")
        if first == 0:
            part = m.writer.value(f"lshr {text} {part}, {splat('16', 'int32', half)}")
        parts.append(m.writer.value(f"bitcast {text} {part} to {short}"))
    picks = ", ".join(f"i32 {n + n % 2 * lanes}" for n in range(lanes))
    name = m.writer.value(f"shufflevector {short} {parts[0]}, {short} {parts[1]}, <{lanes} x i32> <{picks}>")
    return _like(rounded, name, "bfloat16")


def _narrow_registers(m: Arithmetic, a: Val) -> Val:
    """Two registers of numbers in that order to one of bfloat16 in their own, by AVX512-BF16: converted together, then
    shuffled."""
    half, kind = a.lanes // 2, value_type("float32", a.lanes)
    text, parts = value_type("float32", half), []
    for first in (half, 0):  # the second operand's are the lower ones of the result
        picks = ", ".join(f"i32 {n}" for n in range(first, first + half))
        parts.append(m.writer.value(f"shufflevector {kind} {a.name}, {kind} poison, <{half} x i32> <{picks}>"))
    operands = ", ".join(f"{text} {part}" for part in parts)
    both = m.writer.value(f"call <{a.lanes} x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512({operands})")
    short = value_type("bfloat16", a.lanes)
    words = m.writer.value(f"bitcast <{a.lanes} x bfloat> {both} to {short}")
    picks = ", ".join(f"i32 {n // 2 + n % 2 * half}" for n in range(a.lanes))
    name = m.writer.value(f"shufflevector {short} {words}, {short} poison, <{a.lanes} x i32> <{picks}>")
    return _like(a, name, "bfloat16")


def _rounded(m: Arithmetic, a: Val, word: Val) -> Val:
    """In the upper 16 bits: after adding 0x7FFF and the bit that will be last; of a NaN all are set, as comparing it
    with itself leaves them in vectors."""
    last = m.binary("bitand", _down(m, word, 16), _int(m, 1))
    raised = m.binary("add", m.binary("add", word, _int(m, 0x7FFF)), last)
    return m.select(m.binary("ne", a, a), _int(m, -1), raised)


@dataclass(frozen=True)
class _ShortForm:
    """How the bits of a small float lie in those of a float32: `shift` places lower, its exponent `lower` by less."""

    row: Dtype

    @property
    def shift(self) -> int:
        return 23 - self.row.fraction_bits

    @property
    def lower(self) -> int:
        return 128 - (1 << (self.row.exponent_bits - 1))

    @property
    def sign(self) -> int:
        return 1 << (self.row.bits - 1)

    @property
    def infinite(self) -> int:
        """The first bits of what is no number."""
        exponent = ((1 << self.row.exponent_bits) - 1) << self.row.fraction_bits
        return exponent if self.row.has_infinity else self.sign - 1

    @property
    def beyond(self) -> int:
        """float32's bits from which on numbers are too large: halfway to what would be the next one, which rounds to
        the even of both."""
        last = math.floor(math.log2(self.row.largest)) - self.row.fraction_bits
        (bits,) = struct.unpack("<I", struct.pack("<f", self.row.largest + 2.0 ** (last - 1)))
        return int(bits) + (not self.row.has_infinity)


def _shortened(m: Arithmetic, word: Val, form: _ShortForm) -> Val:
    size, shift = m.binary("bitand", word, _int(m, 0x7FFFFFFF)), form.shift
    odd = m.binary("bitand", _down(m, size, shift), _int(m, 1))
    half = _int(m, (1 << (shift - 1)) - 1 - (form.lower << 23))
    usual = _down(m, m.binary("add", m.binary("add", size, half), odd), shift)
    magic = (form.lower + shift + 1) << 23  # adding this number leaves a subnormal's digits in the last places
    shifted = m.binary("add", _float(m, size), _float(m, _int(m, magic)))
    tiny = m.binary("sub", m.converted("bitcast", shifted, "i32", "int32"), _int(m, magic))
    result = m.select(m.binary("lt", size, _int(m, (form.lower + 1) << 23)), tiny, usual)
    quiet = form.infinite | 1 << (form.row.fraction_bits - 1)
    beyond = m.select(m.binary("gt", size, _int(m, 0x7F800000)), _int(m, quiet), _int(m, form.infinite))
    result = m.select(m.binary("ge", size, _int(m, form.beyond)), beyond, result)
    return m.binary("bitor", result, m.binary("bitand", _down(m, word, 32 - form.row.bits), _int(m, form.sign)))


def _like(a: Val, name: str, dtype: str) -> Val:
    return a._replace(name=name, dtype=dtype)


def _int(m: Arithmetic, value: int) -> Val:
    return m.number(value, "int32")


def _float(m: Arithmetic, word: Val) -> Val:
    return m.converted("bitcast", word, "float", "float32")


def _down(m: Arithmetic, word: Val, places: int) -> Val:
    """Shifted right, zeros coming in."""
    text = value_type("int32", word.lanes)
    return m.emitted(f"lshr {text} {word.name}, {splat(literal(places, 'int32'), 'int32', word.lanes)}", word)
