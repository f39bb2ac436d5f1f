// PTX instructions as functions: the names that `instructions.py` gives them.
#pragma once

namespace simulator {

extern "C" {
void simulator_copy(unsigned to, const void* from, unsigned bytes, unsigned given);
void simulator_commit_copies();
void simulator_wait_for_copies(unsigned pending);
void simulator_copies_arrive(unsigned barrier);
float simulator_float_of_half(unsigned short bits);
unsigned short simulator_half_of_float(float value);
unsigned short simulator_bfloat_of_float(float value);
unsigned short simulator_e4m3_of_float(float value);
unsigned short simulator_e5m2_of_float(float value);
void simulator_matrices(unsigned address, unsigned* const* registers, unsigned n, int transposed, int kind);
void simulator_multiply(void* const* d, const unsigned* a, const unsigned* b, const void* c, const int* facts);
int simulator_elect(unsigned mask);
void simulator_named_barrier(unsigned number, unsigned count, int waits);
void simulator_mbarrier_init(unsigned at, unsigned count);
void simulator_mbarrier_end(unsigned at);
void simulator_show_barriers();
void simulator_wait_for_kernels();
void simulator_mbarrier_arrive(unsigned at, unsigned count, long long announced);
void simulator_mbarrier_wait(unsigned at, unsigned parity);
void simulator_load_tile(unsigned to, const void* map, const int* from, unsigned barrier, unsigned mask,
                         const unsigned short* offsets);
void simulator_store_tile(const void* map, const int* to, unsigned from, int adds);
void simulator_load_bytes(unsigned to, const void* from, unsigned bytes, unsigned barrier);
void simulator_store_bytes(void* to, unsigned from, unsigned bytes);
void simulator_commit_stores();
void simulator_wait_for_stores(unsigned pending);
void simulator_fence();
unsigned simulator_map(unsigned address, unsigned rank);
unsigned simulator_rank();
void simulator_cluster_arrive();
void simulator_cluster_wait();
void simulator_wgmma(void* const* places, unsigned results, const unsigned* held, const unsigned* const* held_at,
                     unsigned long long a, unsigned long long b, const int* facts);
void simulator_wgmma_fence();
void simulator_wgmma_commit();
void simulator_wgmma_wait(unsigned pending);
void simulator_set_registers(unsigned count, int is_more);
}

using Address = unsigned;  // in shared memory
using Pointer = unsigned long long;
enum Number { f32, f16, bf16, tf32, s8, u8, e4m3, e5m2, s32 };

// Numbers

// A number that is none has no sign and no content, and -0 is less than 0.
static inline float bound_nan(float a, float b, bool greater)
{
  if (a != a || b != b) return __builtin_nanf("0x7fffffff");
  if (a == b) return bool(__builtin_signbit(a)) == greater ? b : a;
  return (a > b) == greater ? a : b;
}
static inline float max_nan(float a, float b) { return bound_nan(a, b, true); }
static inline float min_nan(float a, float b) { return bound_nan(a, b, false); }
static inline float exp2_of_float(float a) { float c = __builtin_exp2f(a); return c < 0x1p-126f ? 0.0f : c; }
static inline float float_of_half(unsigned short bits) { return simulator_float_of_half(bits); }
static inline unsigned short half_of_float(float value) { return simulator_half_of_float(value); }
static inline unsigned short bfloat_of_float(float value) { return simulator_bfloat_of_float(value); }
static inline unsigned halves_of_floats(float high, float low)
{ return (unsigned)half_of_float(high) << 16 | half_of_float(low); }
static inline unsigned bfloats_of_floats(float high, float low)
{ return (unsigned)bfloat_of_float(high) << 16 | bfloat_of_float(low); }
static inline unsigned short e4m3_of_floats(float high, float low)
{ return simulator_e4m3_of_float(high) << 8 | simulator_e4m3_of_float(low); }
static inline unsigned short e5m2_of_floats(float high, float low)
{ return simulator_e5m2_of_float(high) << 8 | simulator_e5m2_of_float(low); }
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
static inline void nothing() {}
// What a register of the constraint is given has its size.
template <class R, class T> static inline R given(T value)
{
  static_assert(sizeof(R) == sizeof(T), "an operand of inline PTX has another size than its constraint says");
  return (R)value;
}

// Copies of single threads

CALLED void cp_async(Address to, Pointer from, unsigned bytes, unsigned given)
{ HERE; simulator_copy(to, (const void*)from, bytes, given < bytes ? given : bytes); }
CALLED void cp_async(Address to, Pointer from, unsigned bytes)
{ HERE; simulator_copy(to, (const void*)from, bytes, bytes); }
CALLED void cp_async_commit_group() { HERE; simulator_commit_copies(); }
CALLED void cp_async_wait_group(unsigned pending) { HERE; simulator_wait_for_copies(pending); }
CALLED void cp_async_wait_all() { HERE; simulator_commit_copies(); simulator_wait_for_copies(0); }
CALLED void cp_async_arrive(Address barrier) { HERE; simulator_copies_arrive(barrier); }

// Matrices of a warp

template <unsigned N, bool TRANSPOSED>
CALLED void load_matrices(unsigned* const (&registers)[N], Address address)
{ HERE; simulator_matrices(address, registers, N, TRANSPOSED, READ); }

template <unsigned N, bool TRANSPOSED>
CALLED void store_matrices(Address address, const unsigned (&registers)[N])
{
  HERE;
  unsigned* places[N];
  for (unsigned n = 0; n < N; ++n) places[n] = (unsigned*)&registers[n];
  simulator_matrices(address, places, N, TRANSPOSED, WRITE);
}

template <unsigned M, unsigned K, bool SATURATES, Number D, Number A, Number B, class R, unsigned ND, unsigned NA,
          unsigned NB>
CALLED void mma(R* const (&d)[ND], const unsigned (&a)[NA], const unsigned (&b)[NB], const R (&c)[ND])
{
  HERE;
  static_assert(NA == M / 8 * NB && ND == M / (D == f16 ? 8 : 4), "registers of the operands, and of the result");
  static_assert(NB == K / (A == tf32 ? 4 : A == f16 || A == bf16 ? 8 : 16), "registers of B");
  const int facts[] = {D, A, B, M, K, SATURATES};
  simulator_multiply((void* const*)d, a, b, c, facts);
}

CALLED bool elect(unsigned mask) { HERE; return simulator_elect(mask); }

// Barriers

CALLED void bar_sync(unsigned number, unsigned count = 0) { HERE; simulator_named_barrier(number, count, 1); }
CALLED void bar_arrive(unsigned number, unsigned count) { HERE; simulator_named_barrier(number, count, 0); }
CALLED void mbarrier_init(Address at, unsigned count) { HERE; simulator_mbarrier_init(at, count); }
CALLED void mbarrier_inval(Address at) { HERE; simulator_mbarrier_end(at); }
CALLED void mbarrier_arrive(Address at, unsigned count = 1) { HERE; simulator_mbarrier_arrive(at, count, 0); }
CALLED void mbarrier_arrive_expect_tx(Address at, unsigned bytes) { HERE; simulator_mbarrier_arrive(at, 1, bytes); }
CALLED void mbarrier_expect_tx(Address at, unsigned bytes) { HERE; simulator_mbarrier_arrive(at, 0, bytes); }
CALLED bool mbarrier_wait(Address at, unsigned parity, unsigned = 0)
{ HERE; simulator_mbarrier_wait(at, parity); return true; }
CALLED void cluster_arrive() { HERE; simulator_cluster_arrive(); }
CALLED void cluster_wait() { HERE; simulator_cluster_wait(); }
CALLED Address mapa(Address address, unsigned rank) { HERE; return simulator_map(address, rank); }
CALLED void fence_proxy() { HERE; simulator_fence(); simulator_show_barriers(); }
CALLED void show_barriers() { HERE; simulator_show_barriers(); }
CALLED void wait_for_kernels() { HERE; simulator_wait_for_kernels(); }

// The copy engine

template <unsigned RANK>
CALLED void load_tile(Address to, Pointer map, const unsigned (&from)[RANK], Address barrier, unsigned mask = 0)
{ HERE; simulator_load_tile(to, (const void*)map, (const int*)from, barrier, mask, nullptr); }

template <unsigned RANK>
CALLED void load_pixels(Address to, Pointer map, const unsigned (&from)[RANK], Address barrier,
                        const unsigned short (&offsets)[RANK - 2], unsigned mask = 0)
{ HERE; simulator_load_tile(to, (const void*)map, (const int*)from, barrier, mask, offsets); }

template <unsigned RANK> CALLED void store_tile(Pointer map, const unsigned (&to)[RANK], Address from)
{ HERE; simulator_store_tile((const void*)map, (const int*)to, from, 0); }

template <unsigned RANK> CALLED void add_tile(Pointer map, const unsigned (&to)[RANK], Address from)
{ HERE; simulator_store_tile((const void*)map, (const int*)to, from, 1); }

CALLED void load_bytes(Address to, Pointer from, unsigned bytes, Address barrier)
{ HERE; simulator_load_bytes(to, (const void*)from, bytes, barrier); }
CALLED void store_bytes(Pointer to, Address from, unsigned bytes)
{ HERE; simulator_store_bytes((void*)to, from, bytes); }
CALLED void commit_stores() { HERE; simulator_commit_stores(); }
CALLED void wait_for_stores(unsigned pending) { HERE; simulator_wait_for_stores(pending); }

// Matrices of a warpgroup

// Of a variable; a value that is in none is nowhere.
template <class T> static inline const unsigned* place_of_value(const T& value) { return (const unsigned*)&value; }
template <class T> static inline const unsigned* place_of_value(const T&& value) { return nullptr; }

template <unsigned N, unsigned K, Number D, Number A, Number B, class R, unsigned ND>
CALLED void wgmma(R* const (&d)[ND], unsigned long long a, unsigned long long b, bool adds, int sign_a = 1,
                  int sign_b = 1, int trans_a = 0, int trans_b = 0)
{
  HERE;
  static_assert(ND == N / (D == f16 ? 4 : 2), "registers of the result");
  const int facts[] = {D, A, B, N, K, adds, sign_a, sign_b, trans_a, trans_b};
  simulator_wgmma((void* const*)d, ND, nullptr, nullptr, a, b, facts);
}

template <unsigned N, unsigned K, Number D, Number A, Number B, class R, unsigned ND>
CALLED void wgmma(R* const (&d)[ND], const unsigned (&a)[4], const unsigned* const (&a_at)[4], unsigned long long b,
                  bool adds, int sign_a = 1, int sign_b = 1, int trans_b = 0)
{
  HERE;
  static_assert(ND == N / (D == f16 ? 4 : 2), "registers of the result");
  const int facts[] = {D, A, B, N, K, adds, sign_a, sign_b, 0, trans_b};
  simulator_wgmma((void* const*)d, ND, a, a_at, 0, b, facts);
}

CALLED void wgmma_fence() { HERE; simulator_wgmma_fence(); }
CALLED void wgmma_commit_group() { HERE; simulator_wgmma_commit(); }
CALLED void wgmma_wait_group(unsigned pending) { HERE; simulator_wgmma_wait(pending); }
CALLED void inc_registers(unsigned count) { HERE; simulator_set_registers(count, 1); }
CALLED void dec_registers(unsigned count) { HERE; simulator_set_registers(count, 0); }

}  // namespace simulator
