// What a warp does with matrices: ldmatrix, stmatrix, mma.sync. PTX ISA, "Warp-level matrix instructions".
#include "runtime.h"
#include <algorithm>

namespace simulator {

extern "C" uint16_t simulator_half_of_float(float value);

namespace {

struct Rows { uint32_t address; uint32_t* const* registers; unsigned thread; };

struct Multiplied {
  void* const* d;
  const uint32_t* a;
  const uint32_t* b;
  const void* c;
};

// Lane l holds of matrix m row l / 4, elements 2 (l % 4) and the next one; transposed: of columns.
void exchange(void* const* given, unsigned matrices, bool transposed, Kind kind)
{
  const auto lane = [&](unsigned n) -> const Rows& { return *(const Rows*)given[n]; };
  for (unsigned n = 0; n < 8 * matrices; ++n) {
    const Rows& row = lane(n);
    if (row.address % 16)
      find("misaligned", "%s gives a row of a matrix at byte %d", where(row.thread), byte_of(row.address));
    if (options.counted) count(shared_at(row.address), 16, kind, row.thread);
  }
  for (unsigned m = 0; m < matrices; ++m)
    for (unsigned l = 0; l < WARP; ++l)
      for (unsigned e = 0; e < 2; ++e) {
        const unsigned row = transposed ? 2 * (l % 4) + e : l / 4, column = transposed ? l / 4 : 2 * (l % 4) + e;
        unsigned char* const at = shared_at(lane(8 * m + row).address) + 2 * column;
        uint32_t& word = *lane(l).registers[m];
        if (options.checked) check(at, 2, kind, lane(l).thread);
        uint16_t half = word >> 16 * e;
        if (kind == WRITE) memcpy(at, &half, 2);
        else memcpy(&half, at, 2);
        if (kind == READ) word = (word & ~(0xffffu << 16 * e)) | uint32_t(half) << 16 * e;
      }
}

// Fragments of mMn8kK: the units of 32 bits hold 32 / bits elements each.
void multiply(void* const* given, const int* facts)
{
  const Number result = Number(facts[0]), left = Number(facts[1]), right = Number(facts[2]);
  const unsigned halves = facts[3] / 8, k_extent = facts[4];
  const bool saturates = facts[5];
  const auto lane = [&](unsigned n) -> const Multiplied& { return *(const Multiplied*)given[n]; };
  const unsigned per = 32 / bits_of(left), most = k_extent / (4 * per);
  const unsigned mask = per == 1 ? ~0u : (1u << bits_of(left)) - 1;
  const Sums sums = sums_of(left, false);
  std::vector<double> a(16 * k_extent), b(k_extent * 8);
  for (unsigned l = 0; l < WARP; ++l) {
    const unsigned g = l / 4, t = l % 4;
    for (unsigned r = 0; r < halves * most; ++r)
      for (unsigned e = 0; e < per; ++e) {
        const unsigned k = per * t + e + 4 * per * (r / halves), row = g + 8 * (r % halves);
        if (k < k_extent) a[row * k_extent + k] = value_of(left, lane(l).a[r] >> e * bits_of(left) & mask);
      }
    for (unsigned r = 0; r < most; ++r)
      for (unsigned e = 0; e < per; ++e) {
        const unsigned k = per * t + e + 4 * per * r;
        if (k < k_extent) b[k * 8 + g] = value_of(right, lane(l).b[r] >> e * bits_of(right) & mask);
      }
  }
  for (unsigned l = 0; l < WARP; ++l)
    for (unsigned i = 0; i < 2 * halves; ++i) {
      const unsigned row = l / 4 + 8 * (i / 2), column = 2 * (l % 4) + i % 2;
      const Multiplied& own = lane(l);
      const Factors factors = {&a[row * k_extent], &b[column], 8, k_extent, left, right};
      if (result == s32) {
        double sum = 0;
        for (unsigned k = 0; k < k_extent; ++k) sum += a[row * k_extent + k] * b[k * 8 + column];
        int64_t whole = int64_t(sum) + ((const int32_t*)own.c)[i];
        if (saturates) whole = std::min<int64_t>(std::max<int64_t>(whole, INT32_MIN), INT32_MAX);
        *(int32_t*)own.d[i] = int32_t(uint32_t(whole));
      } else if (result == f16) {
        uint32_t& word = *(uint32_t*)own.d[i / 2];
        const double old = value_of(f16, ((const uint32_t*)own.c)[i / 2] >> 16 * (i % 2) & 0xffff);
        const uint32_t half = simulator_half_of_float(added_up(sums, factors, old));
        word = (word & ~(0xffffu << 16 * (i % 2))) | half << 16 * (i % 2);
      } else {
        *(float*)own.d[i] = added_up(sums, factors, ((const float*)own.c)[i]);
      }
    }
}

Group& warp() { return me().block->warps[me().number / WARP].together; }

}  // namespace

extern "C" void simulator_matrices(uint32_t address, uint32_t* const* registers, unsigned n, int transposed, int kind)
{
  Rows mine = {address, registers, current};
  together(warp(), WARP, kind == READ ? "ldmatrix" : "stmatrix", &mine,
           [=](void* const* given) { exchange(given, n, transposed, (Kind)kind); });
}

// `facts`: types of the result and the operands, rows of A, extent of k, whether integers saturate.
extern "C" void simulator_multiply(void* const* d, const uint32_t* a, const uint32_t* b, const void* c,
                                   const int* facts)
{
  Multiplied mine = {d, a, b, c};
  together(warp(), WARP, "mma.sync", &mine, [=](void* const* given) { multiply(given, facts); });
}

// One lane of those that are there.
extern "C" int simulator_elect(unsigned mask) { return (me().number % WARP) == unsigned(__builtin_ctz(mask)); }

}  // namespace simulator
