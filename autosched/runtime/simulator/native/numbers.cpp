// Small floats and back, rounding to even.
#include "runtime.h"
#include <cmath>

namespace simulator {

namespace {

uint32_t bits_of(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

extern "C" float simulator_float_of_half(uint16_t bits)
{
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 0) return std::copysign(float(fraction) * 0x1p-24f, float_of(sign));
  if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
  return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

extern "C" uint16_t simulator_half_of_float(float value)
{
  const uint32_t word = bits_of(value), sign = word >> 16 & 0x8000, size = word & 0x7fffffff;
  if (size > 0x7f800000) return 0x7fff;
  if (size >= bits_of(65520.0f)) return sign | 0x7c00;
  if (size < bits_of(0x1p-14f)) return sign | uint32_t(std::nearbyint(float_of(size) * 0x1p24f));
  return sign | (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
}

extern "C" uint16_t simulator_bfloat_of_float(float value)
{
  const uint32_t word = bits_of(value);
  return value == value ? (word + 0x7fff + (word >> 16 & 1)) >> 16 : 0x7fff;
}

}  // namespace simulator
