"""Conversions between float16 or bfloat16 and float32, as C functions, rounding to even.

Their values are stored as unsigned integers of 16 bits, without the half types of the languages and their headers. In
CUDA each conversion is one PTX instruction where the architecture has it.
Sources: PTX ISA, "cvt"; the OpenCL 1.2 specification, 6.12.7 (vload_half and vstore_half are of its core).
"""

from __future__ import annotations

from collections.abc import Mapping


def conversion(dtype: str, source: str) -> str:
    """Return the name of the function that converts `source` to `dtype`."""
    return f"{dtype}_of_{source}"


def pair_conversion(dtype: str, source: str) -> str:
    """Return the name of the function that converts two numbers to a packed pair, the first in the lower half; only
    CUDA has such functions.
    """
    return f"{dtype}_pair_of_{source}"


_CUDA = "static __device__ __forceinline__ {result} {name}({operand} a)\n{{\n{body}\n}}"
_INSTRUCTION = """\
  {result} b;
  asm("{instruction} %0, %1;" : "={to}"(b) : "{source}"(a));
  return b;"""
_ROUNDED = """\
  const unsigned word = __float_as_uint(a);
  return a == a ? (word + 0x7fff + (word >> 16 & 1)) >> 16 : 0x7fff;"""
_BITS = "unsigned short"


def _cuda(name: str, result: str, operand: str, body: str) -> tuple[str, str]:
    return name, _CUDA.format(result=result, name=name, operand=operand, body=body)


def _narrowing(instruction: str) -> str:
    return _INSTRUCTION.format(result=_BITS, instruction=instruction, to="h", source="f")


_PAIR = """\
static __device__ __forceinline__ unsigned {name}(float a, float b)
{{
#if __CUDA_ARCH__ >= 800
  unsigned c;
  asm("{instruction} %0, %1, %2;" : "=r"(c) : "f"(b), "f"(a));
  return c;
#else
  return {one}(a) | (unsigned){one}(b) << 16;
#endif
}}"""


def _pair(one: str, instruction: str) -> tuple[str, str]:
    """Return (name, text) of the conversion of a pair; `one`: name of the conversion of a single number."""
    name = pair_conversion(*one.split("_of_"))
    return name, _PAIR.format(name=name, instruction=instruction, one=one)


# bfloat16 is the upper half of a float32; the conversion to it is an instruction from compute capability 8.0 on.
CUDA_CONVERSIONS: Mapping[str, str] = dict(
    (
        _cuda(
            "float32_of_float16",
            "float",
            _BITS,
            _INSTRUCTION.format(result="float", instruction="cvt.f32.f16", to="f", source="h"),
        ),
        _cuda("float16_of_float32", _BITS, "float", _narrowing("cvt.rn.f16.f32")),
        _cuda("float32_of_bfloat16", "float", _BITS, "  return __uint_as_float((unsigned)a << 16);"),
        _cuda(
            "bfloat16_of_float32",
            _BITS,
            "float",
            f"#if __CUDA_ARCH__ >= 800\n{_narrowing('cvt.rn.bf16.f32')}\n#else\n{_ROUNDED}\n#endif",
        ),
        _pair("float16_of_float32", "cvt.rn.f16x2.f32"),
        _pair("bfloat16_of_float32", "cvt.rn.bf16x2.f32"),
    )
)

OPENCL_CONVERSIONS: Mapping[str, str] = {
    "float32_of_float16": """\
float float32_of_float16(ushort a)
{
  return vload_half(0, (const __private half*)&a);
}""",
    "float16_of_float32": """\
ushort float16_of_float32(float a)
{
  ushort b;
  vstore_half_rte(a, 0, (__private half*)&b);
  return b;
}""",
    "float32_of_bfloat16": """\
float float32_of_bfloat16(ushort a)
{
  return as_float((uint)a << 16);
}""",
    "bfloat16_of_float32": """\
ushort bfloat16_of_float32(float a)
{
  const uint word = as_uint(a);
  return a == a ? (word + 0x7fff + (word >> 16 & 1)) >> 16 : 0x7fff;
}""",
}
