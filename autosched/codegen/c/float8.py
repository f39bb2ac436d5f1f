"""Conversions between 8-bit floats and float32, as C functions, rounding to even.

Integer arithmetic, in the forms of `codegen/llvm/small_floats.py`: a number's bits, shifted to where float32 has them,
are the number but for a power of two; adding a magic number leaves the digits of a subnormal one in the last places.
CUDA has an instruction to 8 bits from compute capability 8.9 on. It takes what is too large for the largest number,
which is infinite here, or NaN where there are no infinities, as ml_dtypes has it.
Source: PTX ISA, "cvt".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from autosched.codegen.c.small_floats import conversion, pair_conversion
from autosched.ir.dtype import DTYPES

PTX_NAMES = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
NAN = 0x7F

_WIDE = """\
{function}float {name}({byte} a)
{{
  const unsigned size = a & 0x7f;
  const unsigned bits = {word_of}({float_of}(size << {shift}) * {scale}f);
  return {float_of}((size >= {special} ? bits | {endless}u : bits) | (unsigned)(a & 0x80) << 24);
}}"""
_NARROW = """\
{function}{byte} {name}(float a)
{{
  const unsigned word = {word_of}(a), size = word & 0x7fffffff, sign = word >> 24 & 0x80;
  if (size > 0x7f800000) return sign | {nan};
  if (size >= {beyond}u) return sign | {over};
  if (size < {normal}u) return sign | ({word_of}({float_of}(size) + {float_of}({magic}u)) - {magic}u);
  return sign | (size + {half}u + (size >> {shift} & 1)) >> {shift};
}}"""
_NARROW_CUDA = """\
static __device__ __forceinline__ unsigned {dtype}_bits(float a, float b)
{{
#if __CUDA_ARCH__ >= 890
  unsigned short c;
  asm("cvt.rn.satfinite.{ptx}x2.f32 %0, %1, %2;" : "=h"(c) : "f"(b), "f"(a));
  return c;
#else
  return 0;
#endif
}}

{plain}

static __device__ __forceinline__ unsigned char {dtype}_of_float32(float a)
{{
  return __CUDA_ARCH__ >= 890 && __float_as_uint(fabsf(a)) < {beyond}u ? {dtype}_bits(a, 0.0f) : {dtype}_by_digits(a);
}}"""
_PAIR_CUDA = """\
static __device__ __forceinline__ unsigned {name}(float a, float b)
{{
  if (__CUDA_ARCH__ >= 890 && __float_as_uint(fabsf(a)) < {beyond}u && __float_as_uint(fabsf(b)) < {beyond}u)
    return {dtype}_bits(a, b);
  return {dtype}_of_float32(a) | (unsigned){dtype}_of_float32(b) << 8;
}}"""


@dataclass(frozen=True)
class ByteDialect:
    """A language's texts: function attributes, type of a byte, conversions from a float to its bits and back."""

    function: str
    byte: str
    word_of: str
    float_of: str


CUDA_NAMES = ByteDialect("static __device__ __forceinline__ ", "unsigned char", "__float_as_uint", "__uint_as_float")
OPENCL_NAMES = ByteDialect("", "uchar", "as_uint", "as_float")


def _constants(dtype: str, language: ByteDialect) -> dict[str, object]:
    """Return the values of the templates' fields for a dtype: texts of the language, bit patterns and thresholds."""
    row = DTYPES[dtype]
    shift, bias = 23 - row.fraction_bits, (1 << (row.exponent_bits - 1)) - 1
    infinity_bits = ((1 << row.exponent_bits) - 1) << row.fraction_bits
    # A value halfway between the largest number and its successor rounds to the even one of them.
    halfway = row.largest + 2.0 ** (math.floor(math.log2(row.largest)) - row.fraction_bits - 1)
    (limit_bits,) = struct.unpack("<I", struct.pack("<f", halfway))
    return {
        **vars(language),
        "dtype": dtype,
        "ptx": PTX_NAMES[dtype],
        "shift": shift,
        "scale": 2.0 ** (127 - bias),
        "nan": NAN,
        "special": infinity_bits if row.has_infinity else NAN,
        "endless": 0x7F800000 if row.has_infinity else 0x7FC00000,
        "beyond": limit_bits if row.has_infinity else limit_bits + 1,
        "over": infinity_bits if row.has_infinity else NAN,
        "normal": (128 - bias) << 23,
        "magic": (127 - bias + shift + 1) << 23,
        "half": ((1 << (shift - 1)) - 1 - ((127 - bias) << 23)) & 0xFFFFFFFF,
    }


def _cuda(dtype: str) -> dict[str, str]:
    constants = _constants(dtype, CUDA_NAMES)
    wide, narrow, pair = conversion("float32", dtype), conversion(dtype, "float32"), pair_conversion(dtype, "float32")
    plain = _NARROW.format(**constants, name=f"{dtype}_by_digits")
    return {
        wide: _WIDE.format(**constants, name=wide),
        narrow: _NARROW_CUDA.format(**constants, plain=plain),
        pair: _PAIR_CUDA.format(**constants, name=pair),
    }


def _opencl(dtype: str) -> dict[str, str]:
    constants = _constants(dtype, OPENCL_NAMES)
    wide, narrow = conversion("float32", dtype), conversion(dtype, "float32")
    return {wide: _WIDE.format(**constants, name=wide), narrow: _NARROW.format(**constants, name=narrow)}


CUDA_BYTES: Mapping[str, str] = {name: text for dtype in PTX_NAMES for name, text in _cuda(dtype).items()}
OPENCL_BYTES: Mapping[str, str] = {name: text for dtype in PTX_NAMES for name, text in _opencl(dtype).items()}
