// PTX instructions as functions: the names that `instructions.py` gives them.
#pragma once

namespace simulator {

extern "C" {
void simulator_copy(unsigned to, const void* from, unsigned bytes, unsigned given, const void* site);
void simulator_commit_copies();
void simulator_wait_for_copies(unsigned pending);
float simulator_float_of_half(unsigned short bits);
unsigned short simulator_half_of_float(float value);
unsigned short simulator_bfloat_of_float(float value);
}

static inline float max_nan(float a, float b) { return a > b || a != a ? a : b; }
static inline float min_nan(float a, float b) { return a < b || a != a ? a : b; }
static inline float float_of_half(unsigned short bits) { return simulator_float_of_half(bits); }
static inline unsigned short half_of_float(float value) { return simulator_half_of_float(value); }
static inline unsigned short bfloat_of_float(float value) { return simulator_bfloat_of_float(value); }

CALLED void cp_async(unsigned to, unsigned long long from, unsigned bytes, unsigned given)
{ simulator_copy(to, (const void*)from, bytes, given < bytes ? given : bytes, SITE); }
CALLED void cp_async(unsigned to, unsigned long long from, unsigned bytes) { cp_async(to, from, bytes, bytes); }
CALLED void cp_async_commit_group() { simulator_commit_copies(); }
CALLED void cp_async_wait_group(unsigned pending) { simulator_wait_for_copies(pending); }
CALLED void cp_async_wait_all() { simulator_commit_copies(); simulator_wait_for_copies(0); }

}  // namespace simulator
