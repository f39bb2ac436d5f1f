// What generated CUDA C is compiled against on a processor. Thin, for every kernel reads it: what does the work is in
// the runtime, an object of its own. With SIMULATOR_CHECKED, compilers also report every access to memory (see memory.cpp).
#pragma once

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __cluster_dims__(...)

struct uint3 { unsigned x, y, z; };

namespace simulator {

// Of the thread that runs now.
struct Place { uint3 thread, block, block_size, grid_size; };

extern "C" {
extern Place simulator_place;
unsigned char* simulator_shared(unsigned offset);
unsigned simulator_shared_offset(const void* at);
void simulator_at(const void* site);  // where the thread is
void simulator_barrier(int line);
void simulator_warp_barrier();
unsigned long long simulator_shuffle(int kind, unsigned mask, unsigned long long value, int by, int width);
void simulator_access(const void* at, unsigned bytes, int kind, const void* site);
}

enum Kind { READ, WRITE, BOTH };  // BOTH: an atomic update
enum Shuffle { LANE, UP, DOWN, XOR };

inline void access(const void* at, unsigned bytes, Kind kind, const void* site)
{
#ifdef SIMULATOR_CHECKED
  simulator_access(at, bytes, kind, site);
#endif
}

}  // namespace simulator

#define threadIdx simulator::simulator_place.thread
#define blockIdx simulator::simulator_place.block
#define blockDim simulator::simulator_place.block_size
#define gridDim simulator::simulator_place.grid_size

// Functions of the languages are called, so that where they return to says where in the text a thread is.
#define SITE __builtin_return_address(0)
#define HERE simulator::simulator_at(SITE)
#define CALLED static __attribute__((noinline, unused, no_sanitize("thread")))
#define SIMULATOR_ENTRY __attribute__((no_sanitize("thread")))  // what calls a kernel

namespace simulator {
CALLED void block_barrier(int line) { HERE; simulator_barrier(line); }
}
#define __syncthreads() simulator::block_barrier(__LINE__)
CALLED void __syncwarp(unsigned = ~0u) { HERE; simulator::simulator_warp_barrier(); }
CALLED unsigned long long __cvta_generic_to_shared(const void* at) { return simulator::simulator_shared_offset(at); }

namespace simulator {

template <class T> static inline T shuffle(Shuffle kind, unsigned mask, T value, int by, int width)
{
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = simulator_shuffle(kind, mask, bits, by, width);
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace simulator

#define WARP_SHUFFLE(NAME, KIND) \
  template <class T> CALLED T NAME(unsigned mask, T value, int by, int width = 32) \
  { HERE; return simulator::shuffle(simulator::KIND, mask, value, by, width); }
WARP_SHUFFLE(__shfl_sync, LANE)
WARP_SHUFFLE(__shfl_up_sync, UP)
WARP_SHUFFLE(__shfl_down_sync, DOWN)
WARP_SHUFFLE(__shfl_xor_sync, XOR)

#define ATOMIC(NAME, T, RESULT) \
  CALLED T NAME(T* at, T value) \
  { \
    simulator::access(at, sizeof(T), simulator::BOTH, SITE); \
    const T old = *at; \
    *at = RESULT; \
    return old; \
  }
#define ATOMICS(T) ATOMIC(atomicAdd, T, old + value)
#define ATOMIC_BOUNDS(T) \
  ATOMIC(atomicMin, T, value < old ? value : old) \
  ATOMIC(atomicMax, T, value > old ? value : old)
ATOMICS(float)
ATOMICS(double)
ATOMICS(int)
ATOMICS(unsigned)
ATOMICS(unsigned long long)
ATOMIC_BOUNDS(int)
ATOMIC_BOUNDS(unsigned)
ATOMIC_BOUNDS(long long)
ATOMIC_BOUNDS(unsigned long long)

// A vector is moved as a whole: one access of its size, at an address that is a multiple of it.
#ifdef SIMULATOR_CHECKED
#define UNTOLD __attribute__((noinline, no_sanitize("thread")))
#define MOVES(NAME) \
  NAME() = default; \
  UNTOLD NAME(const NAME& other) \
  { \
    simulator::access(&other, sizeof other, simulator::READ, SITE); \
    __builtin_memcpy((void*)this, &other, sizeof other); \
  } \
  UNTOLD NAME& operator=(const NAME& other) \
  { \
    simulator::access(&other, sizeof other, simulator::READ, SITE); \
    simulator::access(this, sizeof other, simulator::WRITE, SITE); \
    __builtin_memcpy((void*)this, &other, sizeof other); \
    return *this; \
  }
#else
#define MOVES(NAME)
#endif
#define VECTOR2(NAME, T) \
  struct alignas(2 * sizeof(T)) NAME { T x, y; MOVES(NAME) }; \
  static inline NAME make_##NAME(T x, T y) { NAME v; v.x = x; v.y = y; return v; }
#define VECTOR4(NAME, T) \
  struct alignas(4 * sizeof(T)) NAME { T x, y, z, w; MOVES(NAME) }; \
  static inline NAME make_##NAME(T x, T y, T z, T w) { NAME v; v.x = x; v.y = y; v.z = z; v.w = w; return v; }
VECTOR2(float2, float)
VECTOR4(float4, float)
VECTOR2(int2, int)
VECTOR4(int4, int)
VECTOR2(uint2, unsigned)
VECTOR4(uint4, unsigned)
VECTOR2(double2, double)
VECTOR2(longlong2, long long)
VECTOR2(ulonglong2, unsigned long long)

extern "C" {
#define FUNCTION(NAME) float NAME##f(float); double NAME(double);
FUNCTION(exp) FUNCTION(log) FUNCTION(tanh) FUNCTION(sqrt) FUNCTION(erf) FUNCTION(floor) FUNCTION(ceil) FUNCTION(rint)
FUNCTION(fabs) FUNCTION(sin) FUNCTION(cos) FUNCTION(exp2) FUNCTION(log2)
#undef FUNCTION
float powf(float, float);
double pow(double, double);
float fmodf(float, float);
double fmod(double, double);
float fmaf(float, float, float);
double fma(double, double, double);
}
static inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
static inline double rsqrt(double a) { return 1.0 / sqrt(a); }
static inline float __fadd_rn(float a, float b) { return a + b; }

static inline float __int_as_float(int bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
static inline float __uint_as_float(unsigned bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
static inline int __float_as_int(float value) { int bits; __builtin_memcpy(&bits, &value, 4); return bits; }
static inline long long __double_as_longlong(double value)
{
  long long bits;
  __builtin_memcpy(&bits, &value, 8);
  return bits;
}
static inline double __longlong_as_double(long long bits)
{
  double value;
  __builtin_memcpy(&value, &bits, 8);
  return value;
}
static inline unsigned __float_as_uint(float value) { unsigned bits; __builtin_memcpy(&bits, &value, 4); return bits; }

#include "instructions.h"

// A kernel's tensors may have any of these names.
#undef ATOMIC
#undef ATOMICS
#undef ATOMIC_BOUNDS
#undef CALLED
#undef HERE
#undef MOVES
#undef SITE
#undef UNTOLD
#undef VECTOR2
#undef VECTOR4
#undef WARP_SHUFFLE
