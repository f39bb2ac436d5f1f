// PTX instructions as functions: the names that `instructions.py` gives them.
#pragma once

namespace simulator {

extern "C" {
void simulator_copy(unsigned to, const void* from, unsigned bytes, unsigned given, const void* site);
void simulator_commit_copies();
void simulator_wait_for_copies(unsigned pending);
void simulator_copies_arrive(unsigned barrier);
float simulator_float_of_half(unsigned short bits);
unsigned short simulator_half_of_float(float value);
unsigned short simulator_bfloat_of_float(float value);
unsigned short simulator_e4m3_of_float(float value);
void simulator_matrices(unsigned address, unsigned* const* registers, unsigned n, int transposed, int kind, const void* site);
void simulator_multiply(void* const* d, const unsigned* a, const unsigned* b, const void* c, unsigned k, const int* kinds, const void* site);
int simulator_elect(unsigned mask);
void simulator_named_barrier(unsigned number, unsigned count, int waits, const void* site);
void simulator_mbarrier_init(unsigned at, unsigned count);
void simulator_mbarrier_end(unsigned at);
void simulator_mbarrier_arrive(unsigned at, unsigned count, long long announced);
void simulator_mbarrier_wait(unsigned at, unsigned parity);
void simulator_load_tile(unsigned to, const void* map, const int* from, unsigned barrier, unsigned mask, const unsigned short* offsets);
void simulator_store_tile(const void* map, const int* to, unsigned from, int op);
void simulator_load_bytes(unsigned to, const void* from, unsigned bytes, unsigned barrier);
void simulator_store_bytes(void* to, unsigned from, unsigned bytes);
void simulator_commit_stores();
void simulator_wait_for_stores(unsigned pending);
void simulator_fence();
unsigned simulator_map(unsigned address, unsigned rank);
unsigned simulator_rank();
void simulator_cluster_arrive();
void simulator_cluster_wait();
void simulator_wgmma(void* const* places, unsigned results, const unsigned* held, unsigned long long a, unsigned long long b, const int* facts, const void* site);
void simulator_wgmma_fence(const void* site);
void simulator_wgmma_commit(const void* site);
void simulator_wgmma_wait(unsigned pending, const void* site);
void simulator_set_registers(unsigned count);
}

enum Number { f32, f16, bf16, tf32, s8, u8, e4m3, e5m2, s32 };

// numbers
static inline float max_nan(float a, float b) { return a > b || a != a ? a : b; }
static inline float min_nan(float a, float b) { return a < b || a != a ? a : b; }
static inline float float_of_half(unsigned short bits) { return simulator_float_of_half(bits); }
static inline unsigned short half_of_float(float value) { return simulator_half_of_float(value); }
static inline unsigned short bfloat_of_float(float value) { return simulator_bfloat_of_float(value); }
static inline unsigned halves_of_floats(float high, float low) { return (unsigned)half_of_float(high) << 16 | half_of_float(low); }
static inline unsigned bfloats_of_floats(float high, float low) { return (unsigned)bfloat_of_float(high) << 16 | bfloat_of_float(low); }
static inline unsigned short e4m3_of_floats(float high, float low) { return simulator_e4m3_of_float(high) << 8 | simulator_e4m3_of_float(low); }
static inline unsigned tf32_of_float(float value)  // to the nearest, away from zero where two are
{
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & ~0x1fffu;
}
template <class A, class B> static inline unsigned dot_of_bytes(unsigned a, unsigned b, unsigned total)
{
  for (unsigned n = 0; n < 32; n += 8) total += (unsigned)((A)(a >> n) * (B)(b >> n));
  return total;
}
static inline unsigned dp4a_uu(unsigned a, unsigned b, unsigned c) { return dot_of_bytes<unsigned char, unsigned char>(a, b, c); }
static inline unsigned dp4a_us(unsigned a, unsigned b, unsigned c) { return dot_of_bytes<unsigned char, signed char>(a, b, c); }
static inline unsigned dp4a_su(unsigned a, unsigned b, unsigned c) { return dot_of_bytes<signed char, unsigned char>(a, b, c); }
static inline unsigned dp4a_ss(unsigned a, unsigned b, unsigned c) { return dot_of_bytes<signed char, signed char>(a, b, c); }
template <class T> static inline T same(T value) { return value; }

// copies of single threads
CALLED void cp_async(unsigned to, unsigned long long from, unsigned bytes, unsigned given)
{ simulator_copy(to, (const void*)from, bytes, given < bytes ? given : bytes, SITE); }
CALLED void cp_async(unsigned to, unsigned long long from, unsigned bytes) { simulator_copy(to, (const void*)from, bytes, bytes, SITE); }
CALLED void cp_async_commit_group() { simulator_commit_copies(); }
CALLED void cp_async_wait_group(unsigned pending) { simulator_wait_for_copies(pending); }
CALLED void cp_async_wait_all() { simulator_commit_copies(); simulator_wait_for_copies(0); }
CALLED void cp_async_arrive(unsigned barrier) { simulator_copies_arrive(barrier); }

// matrices of a warp
template <unsigned N, bool TRANSPOSED> CALLED void load_matrices(unsigned* const (&registers)[N], unsigned address)
{ simulator_matrices(address, registers, N, TRANSPOSED, READ, SITE); }
template <unsigned N, bool TRANSPOSED> CALLED void store_matrices(unsigned address, const unsigned (&registers)[N])
{
  unsigned* places[N];
  for (unsigned n = 0; n < N; ++n) places[n] = (unsigned*)&registers[n];
  simulator_matrices(address, places, N, TRANSPOSED, WRITE, SITE);
}
template <unsigned K, bool SATURATES, Number D, Number A, Number B, class R, unsigned ND, unsigned NA, unsigned NB>
CALLED void mma(R* const (&d)[ND], const unsigned (&a)[NA], const unsigned (&b)[NB], const R (&c)[ND])
{
  static_assert(NA == 2 * NB && NB == K / (A == tf32 ? 4 : A == f16 || A == bf16 ? 8 : 16) && ND == (D == f16 ? 2 : 4), "registers");
  const int kinds[] = {D, A, B, SATURATES};
  simulator_multiply((void* const*)d, a, b, c, K, kinds, SITE);
}
CALLED bool elect(unsigned mask) { return simulator_elect(mask); }

// barriers
CALLED void bar_sync(unsigned number, unsigned count = 0) { simulator_named_barrier(number, count, 1, SITE); }
CALLED void bar_arrive(unsigned number, unsigned count) { simulator_named_barrier(number, count, 0, SITE); }
CALLED void mbarrier_init(unsigned at, unsigned count) { simulator_mbarrier_init(at, count); }
CALLED void mbarrier_inval(unsigned at) { simulator_mbarrier_end(at); }
CALLED void mbarrier_arrive(unsigned at, unsigned count = 1) { simulator_mbarrier_arrive(at, count, 0); }
CALLED void mbarrier_arrive_expect_tx(unsigned at, unsigned bytes) { simulator_mbarrier_arrive(at, 1, bytes); }
CALLED void mbarrier_expect_tx(unsigned at, unsigned bytes) { simulator_mbarrier_arrive(at, 0, bytes); }
CALLED bool mbarrier_wait(unsigned at, unsigned parity, unsigned = 0) { simulator_mbarrier_wait(at, parity); return true; }
CALLED void cluster_arrive() { simulator_cluster_arrive(); }
CALLED void cluster_wait() { simulator_cluster_wait(); }
CALLED unsigned mapa(unsigned address, unsigned rank) { return simulator_map(address, rank); }
CALLED void fence_proxy() { simulator_fence(); }
static inline void nothing() {}

// the copy engine
template <unsigned RANK> CALLED void load_tile(unsigned to, unsigned long long map, const unsigned (&from)[RANK], unsigned barrier, unsigned mask = 0)
{ simulator_load_tile(to, (const void*)map, (const int*)from, barrier, mask, nullptr); }
template <unsigned RANK> CALLED void load_pixels(unsigned to, unsigned long long map, const unsigned (&from)[RANK], unsigned barrier, const unsigned short (&offsets)[RANK - 2], unsigned mask = 0)
{ simulator_load_tile(to, (const void*)map, (const int*)from, barrier, mask, offsets); }
template <unsigned RANK> CALLED void store_tile(unsigned long long map, const unsigned (&to)[RANK], unsigned from)
{ simulator_store_tile((const void*)map, (const int*)to, from, 0); }
template <unsigned RANK> CALLED void add_tile(unsigned long long map, const unsigned (&to)[RANK], unsigned from)
{ simulator_store_tile((const void*)map, (const int*)to, from, 1); }
CALLED void load_bytes(unsigned to, unsigned long long from, unsigned bytes, unsigned barrier) { simulator_load_bytes(to, (const void*)from, bytes, barrier); }
CALLED void store_bytes(unsigned long long to, unsigned from, unsigned bytes) { simulator_store_bytes((void*)to, from, bytes); }
CALLED void commit_stores() { simulator_commit_stores(); }
CALLED void wait_for_stores(unsigned pending) { simulator_wait_for_stores(pending); }

// matrices of a warpgroup
template <unsigned N, unsigned K, Number D, Number A, Number B, class R, unsigned ND>
CALLED void wgmma(R* const (&d)[ND], unsigned long long a, unsigned long long b, bool adds, int sign_a = 1, int sign_b = 1, int trans_a = 0, int trans_b = 0)
{
  static_assert(ND == N / (D == f16 ? 4 : 2), "registers");
  const int facts[] = {D, A, B, N, K, adds, sign_a, sign_b, trans_a, trans_b};
  simulator_wgmma((void* const*)d, ND, nullptr, a, b, facts, SITE);
}
template <unsigned N, unsigned K, Number D, Number A, Number B, class R, unsigned ND>
CALLED void wgmma(R* const (&d)[ND], const unsigned (&a)[4], unsigned long long b, bool adds, int sign_a = 1, int sign_b = 1, int trans_b = 0)
{
  static_assert(ND == N / (D == f16 ? 4 : 2), "registers");
  const int facts[] = {D, A, B, N, K, adds, sign_a, sign_b, 0, trans_b};
  simulator_wgmma((void* const*)d, ND, a, 0, b, facts, SITE);
}
CALLED void wgmma_fence() { simulator_wgmma_fence(SITE); }
CALLED void wgmma_commit_group() { simulator_wgmma_commit(SITE); }
CALLED void wgmma_wait_group(unsigned pending) { simulator_wgmma_wait(pending, SITE); }
CALLED void set_registers(unsigned count) { simulator_set_registers(count); }

}  // namespace simulator
