"""The two dialects of the C-like emitter, as tables of text: CUDA C and OpenCL C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autosched.codegen.c.float8 import CUDA_BYTES, OPENCL_BYTES
from autosched.codegen.c.small_floats import CUDA_CONVERSIONS, OPENCL_CONVERSIONS
from autosched.ir.instructions.atomics import NUMBERS


@dataclass(frozen=True)
class Dialect:
    """The differences between the dialects. `functions` maps names of the IR to theirs."""

    name: str
    suffix: str  # of a file
    kernel: str  # before the name; {threads} is the block size as "x, y, z", {count} of them; {resident}, {cluster}
    resident: str  # {blocks} of a kernel that a multiprocessor should keep
    cluster: str  # {blocks} next to each other along x that load tiles for each other
    pointer: str  # a global pointer argument; {type}, {const}
    pointer_to_earlier: str  # the same, to what an earlier launch of the same call writes
    shared: str
    all_shared: str  # before shared memory whose size the launch says, with its {alignment}; empty: not needed
    static_shared_bytes: int  # that arrays of known size may have
    private: str  # before an array of a thread's own
    barrier: str
    block: str  # index of the block along dimension {axis} ("x") or {number} (0)
    thread: str
    long: str  # 64-bit integer
    byte: str  # 8-bit signed integer
    unsigned_byte: str
    unsigned_short: str
    infinity: str
    nan: str
    unroll: str
    unroll_by: str  # {times}; empty where compilers do not unroll unasked
    function: str  # before a function that kernels call
    shuffles: Mapping[str, str]  # by where the lane is (see `shuffle.py`); empty where the language has none
    conversions: Mapping[str, str]  # functions between float32 and a dtype that is only stored; see `small_floats.py`
    vector_load: str  # {lanes} elements {at} an aligned address; {type} of the vector
    vector_store: str  # {value} to {at}
    vector_of: str  # {elements}: as many, with commas
    word: str  # {elements} in the vector {type} {at} an address, whose place is a multiple of them, as an int
    dot: str  # a function {name} that adds the products of the bytes of two words to a number; {a}, {b} of their types
    own_register: str  # a float {value} in a register of its own, whatever it is needed for; see `zigzag.py`
    has_matrices: bool  # whether warps multiply matrices; else each thread does what it is to have of them
    packs_small_ones: bool  # into 32 bits, elements that are less; else there are vectors of all
    atomics: Mapping[str, str]  # functions by operation; for types besides `atomic_types`, loops of OpenCL C
    atomic_types: frozenset[str]
    helpers: Mapping[str, str] = field(default_factory=dict)  # in its own way, by name; see `expressions.HELPERS`
    bytes_of: Mapping[str, str] = field(default_factory=dict)  # names of types in `dot`
    prologue: str = ""
    doubles: str = ""  # before code with float64
    # Functions for asynchronous copies to shared memory; where there are none, plain copies are made and nobody waits.
    # start: a {type} of {bytes} bytes, or {zero}; commit; wait: for all groups but {pending}.
    copies: dict[str, str] = field(default_factory=dict)
    # Functions by which a kernel lets the next one of a call start, and waits for those before it; may be empty.
    meetings: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    double_functions: dict[str, str] = field(default_factory=dict)  # where float64 has others than float32


# One instruction from compute capability 8.0 on.
EXTREME = """\
static __device__ __forceinline__ float {name}(float a, float b)
{{
#if __CUDA_ARCH__ >= 800
  float c;
  asm("{op}.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return a {sign} b || a != a ? a : b;
#endif
}}"""

# Within 2^-22; what would be denormal is 0. NaN and infinities are as they should be.
POWER_OF_TWO = """\
static __device__ __forceinline__ float exp2_float(float a)
{
  float c;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(c) : "f"(a));
  return c;
}"""

# One instruction from compute capability 6.1 on.
DOT = """\
static __device__ __forceinline__ int {name}(int a, int b, int total)
{{
  int sum;
  asm("dp4a.{a}.{b} %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(total));
  return sum;
}}"""
PRODUCTS = """\
int {name}(int a, int b, int total)
{{
  const {a} x = as_{a}(a);
  const {b} y = as_{b}(b);
  return total + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}}"""
# PTX ISA, "griddepcontrol": the next kernel is there when the last block has started, and goes on when all have ended.
MEETING = """\
static __device__ __forceinline__ void {name}()
{{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.{ptx};" ::: "memory");
#endif
}}"""
CUDA = Dialect(
    name="cuda",
    suffix=".cu",
    kernel='extern "C" __global__ void {cluster}__launch_bounds__({count}{resident})',
    resident=", {blocks}",
    cluster="__cluster_dims__({blocks}, 1, 1) ",
    pointer="{const}{type}* __restrict__",
    pointer_to_earlier="{const}{type}*",  # or loads would be made before the launch that writes it has ended
    shared="__shared__ __align__(16) ",  # vector accesses move up to 16 bytes
    all_shared="extern __shared__ __align__({alignment}) ",
    static_shared_bytes=48 << 10,  # CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x and later
    private="__align__(16) ",
    barrier="__syncthreads();",
    block="blockIdx.{axis}",
    thread="threadIdx.{axis}",
    long="long long",
    byte="signed char",
    unsigned_byte="unsigned char",
    unsigned_short="unsigned short",
    infinity="__int_as_float(0x7f800000)",
    nan="__int_as_float(0x7fffffff)",
    unroll="#pragma unroll",
    unroll_by="#pragma unroll {times}",
    function="static __device__ __forceinline__ ",
    shuffles={
        "xor": "__shfl_xor_sync(0xffffffff, {value}, {number}{width})",
        "down": "__shfl_down_sync(0xffffffff, {value}, {number}{width})",
        "lane": "__shfl_sync(0xffffffff, {value}, {number}{width})",
    },
    copies={
        "start": """\
// 16 bytes pass by the first-level cache; before compute capability 8.0 the thread copies.
static __device__ __forceinline__ void {name}({type}* to, const {type}* from, bool inside)
{{
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {bytes}, %2;"
               :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? {bytes} : 0) : "memory");
#else
  *to = inside ? *from : {zero};
#endif
}}""",
        "commit": """\
static __device__ __forceinline__ void commit_copies()
{{
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}}""",
        "wait": """\
static __device__ __forceinline__ void wait_for_all_copies_but_{pending}()
{{
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group {pending};" ::: "memory");
#endif
}}""",
    },
    meetings={
        "start_next_kernel": MEETING.format(name="start_next_kernel", ptx="launch_dependents"),
        "wait_for_kernels_before": MEETING.format(name="wait_for_kernels_before", ptx="wait"),
    },
    conversions={**CUDA_CONVERSIONS, **CUDA_BYTES},
    helpers={
        "min_float": EXTREME.format(name="min_float", op="min", sign="<"),
        "max_float": EXTREME.format(name="max_float", op="max", sign=">"),
        "exp2_float": POWER_OF_TWO,
    },
    vector_load="*(const {type}*)({at})",
    vector_store="*({type}*)({at}) = {value};",
    vector_of="make_{type}({elements})",
    word="*(const int*)({at})",
    dot=DOT,
    bytes_of={"int8": "s32", "uint8": "u32"},
    own_register="__fadd_rn({value}, -0.0f)",
    has_matrices=True,
    packs_small_ones=True,
    atomics={"add": "atomicAdd", "min": "atomicMin", "max": "atomicMax"},
    atomic_types=NUMBERS,
    functions={
        "exp": "expf", "log": "logf", "tanh": "tanhf", "sqrt": "sqrtf", "rsqrt": "rsqrtf", "erf": "erff",
        "floor": "floorf", "ceil": "ceilf", "round": "rintf", "abs": "fabsf", "sin": "sinf", "cos": "cosf",
        "pow": "powf", "fmod": "fmodf",
    },
    double_functions={
        "exp": "exp", "log": "log", "tanh": "tanh", "sqrt": "sqrt", "rsqrt": "rsqrt", "erf": "erf",
        "floor": "floor", "ceil": "ceil", "round": "rint", "abs": "fabs", "sin": "sin", "cos": "cos",
        "pow": "pow", "fmod": "fmod",
    },
)  # fmt: skip

OPENCL = Dialect(
    name="opencl",
    suffix=".cl",
    kernel="__kernel __attribute__((reqd_work_group_size({threads}))) void",
    resident="",
    cluster="",
    pointer="__global {const}{type}* restrict",
    pointer_to_earlier="__global {const}{type}* restrict",
    shared="__local ",
    all_shared="",
    static_shared_bytes=0,
    private="",
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    block="get_group_id({number})",
    thread="get_local_id({number})",
    long="long",
    byte="char",
    unsigned_byte="uchar",
    unsigned_short="ushort",
    infinity="INFINITY",
    nan="NAN",
    unroll="#pragma unroll",
    unroll_by="",
    function="",
    shuffles={},
    conversions={**OPENCL_CONVERSIONS, **OPENCL_BYTES},
    vector_load="vload{lanes}(0, {at})",
    vector_store="vstore{lanes}({value}, 0, {at});",
    vector_of="({type})({elements})",
    word="as_int(vload{elements}(0, {at}))",
    dot=PRODUCTS,
    bytes_of={"int8": "char4", "uint8": "uchar4"},
    own_register="{value}",
    has_matrices=False,
    packs_small_ones=False,
    atomics={"add": "atomic_add", "min": "atomic_min", "max": "atomic_max"},
    atomic_types=frozenset({"int32"}),
    doubles="#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n",
    prologue="#pragma OPENCL FP_CONTRACT ON\n",
    functions={
        "exp": "exp", "log": "log", "tanh": "tanh", "sqrt": "sqrt", "rsqrt": "rsqrt", "erf": "erf",
        "floor": "floor", "ceil": "ceil", "round": "rint", "abs": "fabs", "sin": "sin", "cos": "cos",
        "pow": "pow", "fmod": "fmod",
    },
)  # fmt: skip

DIALECTS = {"cuda": CUDA, "opencl": OPENCL}
