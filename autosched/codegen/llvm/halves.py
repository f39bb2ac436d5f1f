"""float16 and bfloat16 to float32 and back, rounding to even. Their values are 16 bits, for LLVM an i16.

Processors that have instructions for it use them (F16C, AVX512-BF16, all of Arm's float16); the others get integer
arithmetic, since what LLVM makes of a conversion there are calls of a library that need not be present. The forms are
those of F. Giesen, "float->half variants", https://gist.github.com/rygorous/2156668.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autosched.codegen.llvm.words import literal, splat, value_type

if TYPE_CHECKING:
    from autosched.codegen.llvm.arithmetic import Arithmetic, Val

_INFINITE, _QUIET = 0x7C00, 0x7E00  # of float16
_TOO_LARGE, _NORMAL = (127 + 16) << 23, 113 << 23  # float32's bits: beyond float16, its least normal number


def widen(m: Arithmetic, a: Val) -> Val:
    """The float32 that a float16 or bfloat16 is."""
    if a.dtype == "float16" and _has(m, "float16"):
        return m.converted("fpext", m.converted("bitcast", a, "half"), "float", "float32")
    word = m.converted("zext", a, "i32", "int32")
    if a.dtype == "bfloat16":
        return _float(m, m.binary("shl", word, _int(m, 16)))
    size = m.binary("bitand", word, _int(m, 0x7FFF))
    scaled = m.binary("mul", _float(m, m.binary("shl", size, _int(m, 13))), m.number(2.0**112, "float32"))
    bits = m.converted("bitcast", scaled, "i32", "int32")
    endless = m.binary("bitor", bits, _int(m, 0x7F800000))
    bits = m.select(m.binary("ge", size, _int(m, _INFINITE)), endless, bits)
    sign = m.binary("shl", m.binary("bitand", word, _int(m, 0x8000)), _int(m, 16))
    return _float(m, m.binary("bitor", bits, sign))


def narrow(m: Arithmetic, a: Val, dtype: str) -> Val:
    """The float16 or bfloat16 nearest to a float32."""
    if _has(m, dtype):
        kind = "half" if dtype == "float16" else "bfloat"
        return m.converted("bitcast", m.converted("fptrunc", a, kind), "i16", dtype)
    word = m.converted("bitcast", a, "i32", "int32")
    found = _bfloat16(m, a, word) if dtype == "bfloat16" else _float16(m, word)
    return m.converted("trunc", found, "i16", dtype)


def _has(m: Arithmetic, dtype: str) -> bool:
    if m.target.arch != "x86_64":
        return dtype == "float16"
    return m.target.has("f16c" if dtype == "float16" else "avx512bf16")


def _bfloat16(m: Arithmetic, a: Val, word: Val) -> Val:
    """The upper 16 bits after adding 0x7FFF and the bit that will be last; of a NaN all are set, as comparing it with
    itself leaves them in vectors."""
    last = m.binary("bitand", _down(m, word, 16), _int(m, 1))
    raised = m.binary("add", m.binary("add", word, _int(m, 0x7FFF)), last)
    return _down(m, m.select(m.binary("ne", a, a), _int(m, -1), raised), 16)


def _float16(m: Arithmetic, word: Val) -> Val:
    size = m.binary("bitand", word, _int(m, 0x7FFFFFFF))
    odd = m.binary("bitand", _down(m, size, 13), _int(m, 1))
    usual = _down(m, m.binary("add", m.binary("add", size, _int(m, 0xFFF - (112 << 23))), odd), 13)
    magic = ((127 - 15) + (23 - 10) + 1) << 23  # adding this number leaves a subnormal's digits in the last places
    shifted = m.binary("add", _float(m, size), _float(m, _int(m, magic)))
    tiny = m.binary("sub", m.converted("bitcast", shifted, "i32", "int32"), _int(m, magic))
    result = m.select(m.binary("lt", size, _int(m, _NORMAL)), tiny, usual)
    beyond = m.select(m.binary("gt", size, _int(m, 0x7F800000)), _int(m, _QUIET), _int(m, _INFINITE))
    result = m.select(m.binary("ge", size, _int(m, _TOO_LARGE)), beyond, result)
    return m.binary("bitor", result, m.binary("bitand", _down(m, word, 16), _int(m, 0x8000)))


def _int(m: Arithmetic, value: int) -> Val:
    return m.number(value, "int32")


def _float(m: Arithmetic, word: Val) -> Val:
    return m.converted("bitcast", word, "float", "float32")


def _down(m: Arithmetic, word: Val, places: int) -> Val:
    """Shifted right, zeros coming in."""
    text = value_type("int32", word.lanes)
    return m.emitted(f"lshr {text} {word.name}, {splat(literal(places, 'int32'), 'int32', word.lanes)}", word)
