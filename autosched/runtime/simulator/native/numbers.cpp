// Small floats and back, rounding to even.
#include "runtime.h"
#include <algorithm>
#include <cmath>

namespace simulator {

namespace {

uint32_t word_of(float value)
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
  const uint32_t word = word_of(value), sign = word >> 16 & 0x8000, size = word & 0x7fffffff;
  if (size > 0x7f800000) return 0x7fff;
  if (size >= word_of(65520.0f)) return sign | 0x7c00;
  if (size < word_of(0x1p-14f)) return sign | uint32_t(std::nearbyint(float_of(size) * 0x1p24f));
  return sign | (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
}

extern "C" uint16_t simulator_bfloat_of_float(float value)
{
  const uint32_t word = word_of(value);
  return value == value ? (word + 0x7fff + (word >> 16 & 1)) >> 16 : 0x7fff;
}

unsigned bits_of(Number number)
{
  switch (number) {
    case f32: case tf32: case s32: return 32;
    case f16: case bf16: return 16;
    default: return 8;
  }
}

double value_of(Number number, uint32_t bits)
{
  switch (number) {
    case f32: return float_of(bits);
    case tf32: return float_of(bits & ~uint32_t(0x1fff));  // the rest is not looked at
    case f16: return simulator_float_of_half(bits);
    case bf16: return float_of(bits << 16);
    case s8: return int8_t(bits);
    case u8: return uint8_t(bits);
    case s32: return int32_t(bits);
    case e5m2: return simulator_float_of_half(bits << 8);
    case e4m3: break;
  }
  const unsigned exponent = bits >> 3 & 15, fraction = bits & 7;
  if ((bits & 0x7f) == 0x7f) return NAN;
  const double size = exponent ? std::ldexp(8 + fraction, int(exponent) - 10) : std::ldexp(fraction, -9);
  return bits & 0x80 ? -size : size;
}

// Eight bits, `digits` of them of the fraction; what is beyond the largest number becomes that one.
static uint16_t byte_of_float(float value, int digits, int bias, double largest, unsigned largest_bits)
{
  const unsigned sign = word_of(value) >> 24 & 0x80;
  const double size = std::fabs(value);
  if (size != size) return 0x7f;
  if (size >= largest) return sign | largest_bits;
  const int exponent = std::max(size > 0 ? std::ilogb(size) : 1 - bias, 1 - bias);
  const unsigned fraction = unsigned(std::nearbyint(std::ldexp(size, digits - exponent)));  // less of subnormal ones
  return sign | (fraction + (unsigned(exponent + bias - 1) << digits));
}

extern "C" uint16_t simulator_e4m3_of_float(float value) { return byte_of_float(value, 3, 7, 448, 0x7e); }
extern "C" uint16_t simulator_e5m2_of_float(float value) { return byte_of_float(value, 2, 15, 57344, 0x7b); }

float truncated(double value)
{
  const float near = value;
  return std::isfinite(near) && std::fabs(near) > std::fabs(value) ? std::nextafter(near, 0.0f) : near;
}

// As an H200 adds up; experiments/gpu/forms/sums.py says what was measured.
Sums sums_of(Number operand, bool by_warpgroup)
{
  if (by_warpgroup && (operand == e4m3 || operand == e5m2)) return {13, 13, 32};
  return {25, 23, 16};
}

namespace {

constexpr int NONE = -5000;  // the exponent of zero

int exponent_of(double value, int least)
{
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value == 0 ? NONE : std::max(int(bits >> 52 & 0x7ff) - 1023, least);
}

int least_of(Number number)
{
  switch (number) {
    case f16: case e5m2: return -14;
    case e4m3: return -6;
    default: return -126;
  }
}

double part(const Sums& how, const Factors& f, unsigned first, unsigned end, double sum)
{
  const int left = least_of(f.left), right = least_of(f.right);
  int largest = exponent_of(sum, least_of(f32));
  double plain = sum;
  for (unsigned k = first; k < end; ++k) {
    largest = std::max(largest, exponent_of(f.a[k], left) + exponent_of(f.b[k * f.step_of_b], right));
    plain += f.a[k] * f.b[k * f.step_of_b];
  }
  if (!std::isfinite(plain)) return plain;
  if (largest <= NONE / 2) return 0;
  const double scale = std::ldexp(1.0, how.fraction - largest);
  int64_t total = int64_t(sum * scale);
  for (unsigned k = first; k < end; ++k) total += int64_t(f.a[k] * f.b[k * f.step_of_b] * scale);
  return std::ldexp(double(total), largest - how.fraction);
}

}  // namespace

double added_up(const Sums& how, const Factors& factors, double sum)
{
  for (unsigned k = 0; k < factors.n; k += how.length) {
    sum = part(how, factors, k, std::min(k + how.length, factors.n), sum);
    float cut = truncated(sum);
    if (how.kept < 23 && std::isfinite(cut)) cut = float_of(word_of(cut) & ~0u << (23 - how.kept));
    sum = cut;
  }
  return sum;
}

}  // namespace simulator
