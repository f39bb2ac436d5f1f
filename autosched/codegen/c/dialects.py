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
    resident: str  # the least {blocks} of a kernel resident on a multiprocessor
    cluster: str  # a cluster of {blocks} adjacent blocks along x
    pointer: str  # a global pointer argument; {type}, {const}
    pointer_to_earlier: str  # the same, to a buffer that an earlier launch of the same call writes
    shared: str
    all_shared: str  # before shared memory with dynamic size and {alignment}; empty: all is static
    static_shared_bytes: int  # the most that arrays with static size may have
    private: str  # before a private array of a thread
    barrier: str
    block: str  # index of the block along dimension {axis} ("x") or {number} (0)
    thread: str
    integers: Mapping[str, str]  # types by dtype
    suffixes: Mapping[str, str]  # of numbers, where arithmetic in int would be wrong, by dtype
    infinity: str
    nan: str
    unroll: str
    unroll_by: str  # {times}; empty where compilers unroll only by request
    function: str  # before a function that kernels call
    shuffles: Mapping[str, str]  # by kind of source lane (`shuffle.py`); empty without shuffles
    conversions: Mapping[str, str]  # between float32 and stored-only dtypes, by name (`small_floats.py`)
    vector_load: str  # {lanes} elements {at} an aligned address; {type} of the vector
    vector_store: str  # {value} to {at}
    vector_of: str  # a {type} of {elements}, separated by commas
    word: str  # an int from the {elements} {at} an aligned address
    dot: str  # function {name}: a number plus the dot product of two words of bytes, of types {a} and {b}
    own_register: str  # copies a float {value} to another register (`zigzag.py`)
    has_matrices: bool  # whether warps have matrix instructions; else threads multiply element by element
    packs_small_types: (
        bool  # whether vectors of elements below 32 bits are words of 32 bits; else all vectors have a type
    )
    atomics: Mapping[str, str]  # functions by operation, for `atomic_types`; other types use compare-and-swap loops
    atomic_types: frozenset[str]
    bit_functions: Mapping[str, tuple[str, str]]  # by float: to a signed integer with the same bits, and back
    helpers: Mapping[str, str] = field(default_factory=dict)  # by name, instead of `expressions.HELPERS`
    bytes_of: Mapping[str, str] = field(default_factory=dict)  # names of types in `dot`
    prologue: str = ""
    doubles: str = ""  # before code with float64
    # Functions for asynchronous copies to shared memory; without them copies are synchronous, and waits are no-ops.
    # start: copies a {type} of {bytes} bytes, or {zero}; commit: a group; wait: for all groups but {pending}.
    copies: dict[str, str] = field(default_factory=dict)
    # Functions that start the next kernel of a call and wait for those before (`launch_overlap.py`); may be empty.
    launch_overlap: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    double_functions: dict[str, str] = field(default_factory=dict)  # for float64, where they differ


# One instruction from compute capability 8.0 on.
MIN_OR_MAX = """\
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

# Relative error below 2^-22; denormal results are flushed to 0; NaN and infinities are exact.
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
DOT_OPENCL = """\
int {name}(int a, int b, int total)
{{
  const {a} x = as_{a}(a);
  const {b} y = as_{b}(b);
  return total + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}}"""
# PTX ISA, "griddepcontrol": the next kernel launches when the last block has started, and its wait ends when all ended.
GRID_DEPENDENCY = """\
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
    pointer_to_earlier="{const}{type}*",  # with __restrict__ loads might precede the end of the launch that writes it
    shared="__shared__ __align__(16) ",  # vector accesses move up to 16 bytes
    all_shared="extern __shared__ __align__({alignment}) ",
    static_shared_bytes=48 << 10,  # CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x and later
    private="__align__(16) ",
    barrier="__syncthreads();",
    block="blockIdx.{axis}",
    thread="threadIdx.{axis}",
    integers={
        "int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short", "int32": "int",
        "uint32": "unsigned int", "int64": "long long", "uint64": "unsigned long long",
    },
    suffixes={"uint32": "u", "uint64": "ull"},
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
    launch_overlap={
        "start_next_kernel": GRID_DEPENDENCY.format(name="start_next_kernel", ptx="launch_dependents"),
        "wait_for_kernels_before": GRID_DEPENDENCY.format(name="wait_for_kernels_before", ptx="wait"),
    },
    conversions={**CUDA_CONVERSIONS, **CUDA_BYTES},
    helpers={
        "min_float": MIN_OR_MAX.format(name="min_float", op="min", sign="<"),
        "max_float": MIN_OR_MAX.format(name="max_float", op="max", sign=">"),
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
    packs_small_types=True,
    atomics={"add": "atomicAdd", "min": "atomicMin", "max": "atomicMax"},
    atomic_types=NUMBERS,
    bit_functions={
        "float32": ("__float_as_int", "__int_as_float"), "float64": ("__double_as_longlong", "__longlong_as_double"),
    },
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
    integers={
        "int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort", "int32": "int", "uint32": "uint",
        "int64": "long", "uint64": "ulong",
    },
    suffixes={"uint32": "u", "uint64": "ul"},
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
    dot=DOT_OPENCL,
    bytes_of={"int8": "char4", "uint8": "uchar4"},
    own_register="{value}",
    has_matrices=False,
    packs_small_types=False,
    atomics={"add": "atomic_add", "min": "atomic_min", "max": "atomic_max"},
    atomic_types=frozenset({"int32"}),
    bit_functions={"float32": ("as_int", "as_float"), "float64": ("as_long", "as_double")},
    doubles="#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n",
    prologue="#pragma OPENCL FP_CONTRACT ON\n",
    functions={
        "exp": "exp", "log": "log", "tanh": "tanh", "sqrt": "sqrt", "rsqrt": "rsqrt", "erf": "erf",
        "floor": "floor", "ceil": "ceil", "round": "rint", "abs": "fabs", "sin": "sin", "cos": "cos",
        "pow": "pow", "fmod": "fmod",
    },
)  # fmt: skip

DIALECTS = {"cuda": CUDA, "opencl": OPENCL}
