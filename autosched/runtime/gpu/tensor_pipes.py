"""Peak rates of tensor cores: kernels of matrix instructions only, for each pipe, that is each kind of operand.

`mma`: warps keep several tiles of results and both operands in registers. `wgmma`: two warpgroups keep results of 64 x
256 in registers and read both operands from shared memory, in rows of 128 bytes, as generated kernels do. All operands
are 1.0, since toggling bits costs power and thereby clock. The registers of A are changed by a number that is zero but
not known to the compiler: if a device emulates an instruction (float8 on sm_90), the compiler would else hoist the
product out of the loop and keep only the addition in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autosched.codegen.c.source import GpuSource
from autosched.runtime.gpu.handwritten import THREADS, handwritten_source, thread_number

if TYPE_CHECKING:
    from autosched.target import GpuFacts

NAME = "matrix_peak"  # name of the kernels
STEPS = 16  # instructions for one tile in one iteration of the loop
TILES_PER_WARP = (8, 12)  # of results of a warp, whose instructions are independent
OPERAND_BYTES = 32  # bytes of k of every instruction
ROW_BYTES, GROUP_ROWS, COLUMNS = 128, 64, 256  # rows of shared operands; rows and columns of a warpgroup's results
_PRODUCTS_PER_CYCLE = 2048  # rows * columns * bytes of k that a multiprocessor multiplies in a cycle, roughly

FUNCTION = "static __device__ __forceinline__ void "
_PLAIN = {
    "show_shared": "fence.proxy.async.shared::cta;",
    "begin_products": "wgmma.fence.sync.aligned;",
    "commit_products": "wgmma.commit_group.sync.aligned;",
    "wait_for_all_products_but_0": "wgmma.wait_group.sync.aligned 0;",
    "wait_for_all_products_but_1": "wgmma.wait_group.sync.aligned 1;",
}
PLAIN = "\n".join(f'{FUNCTION}{name}() {{ asm volatile("{ptx}" ::: "memory"); }}' for name, ptx in _PLAIN.items())


@dataclass(frozen=True)
class TensorPipe:
    """A kind of matrix product that tensor cores compute.

    `name`: instruction and type of A, the `pipe` of rows of `ir/instructions/matrices.py`; `operand`: PTX type of both
    operands, of `nbytes`; `one_bits`: 32 bits of packed ones of that type; `capability`: the least compute capability
    with the pipe, 90 for 9.0, or the only one if `is_exact_capability`."""

    name: str
    operand: str
    nbytes: int
    one_bits: int
    capability: int
    is_exact_capability: bool = False
    instructions_per_fma: int = 1  # instructions for one multiply-add of the pipe

    @property
    def is_integer(self) -> bool:
        return self.operand in ("s8", "u8")

    @property
    def result(self) -> tuple[str, str, str]:
        """The type of results in C, its constraint in inline PTX, and its PTX name."""
        return ("int", "r", "s32") if self.is_integer else ("float", "f", "f32")

    @property
    def k(self) -> int:
        """The extent along k of one instruction."""
        return OPERAND_BYTES // self.nbytes

    def exists_on(self, facts: GpuFacts) -> bool:
        digits = "".join(c for c in facts.arch if c.isdigit())
        number = int(digits or 0)
        return number == self.capability if self.is_exact_capability else number >= self.capability


PIPES: Mapping[str, TensorPipe] = {
    pipe.name: pipe
    for pipe in (
        TensorPipe("mma.float16", "f16", 2, 0x3C003C00, 80),
        TensorPipe("mma.bfloat16", "bf16", 2, 0x3F803F80, 80),
        TensorPipe("mma.tf32", "tf32", 4, 0x3F800000, 80),
        TensorPipe("mma.3xtf32", "tf32", 4, 0x3F800000, 80, instructions_per_fma=3),
        TensorPipe("mma.int8", "s8", 1, 0x01010101, 80),
        TensorPipe("mma.uint8", "u8", 1, 0x01010101, 80),
        TensorPipe("mma.float8_e4m3fn", "e4m3", 1, 0x38383838, 89),
        TensorPipe("mma.float8_e5m2", "e5m2", 1, 0x3C3C3C3C, 89),
        TensorPipe("wgmma.float16", "f16", 2, 0x3C003C00, 90, True),
        TensorPipe("wgmma.bfloat16", "bf16", 2, 0x3F803F80, 90, True),
        TensorPipe("wgmma.tf32", "tf32", 4, 0x3F800000, 90, True),
        TensorPipe("wgmma.int8", "s8", 1, 0x01010101, 90, True),
        TensorPipe("wgmma.uint8", "u8", 1, 0x01010101, 90, True),
        TensorPipe("wgmma.float8_e4m3fn", "e4m3", 1, 0x38383838, 90, True),
        TensorPipe("wgmma.float8_e5m2", "e5m2", 1, 0x3C3C3C3C, 90, True),
    )
}


def pipes_of(facts: GpuFacts) -> tuple[str, ...]:
    """Return the names of the PIPES that a GPU has."""
    return tuple(pipe.name for pipe in PIPES.values() if pipe.exists_on(facts))


@dataclass(frozen=True)
class PeakKernel:
    """A kernel that measures a pipe. `operations` of one launch, two for each multiply-add; its input has
    `n_operand_words` words of 32 bits, all ones of the type, and `n_zero_words` zeros."""

    source: GpuSource
    operations: float
    n_operand_words: int
    n_zero_words: int = 0


def peak_kernels(pipe: TensorPipe, facts: GpuFacts, seconds: float) -> tuple[PeakKernel, ...]:
    """Return kernels that fill a GPU with a pipe's instructions for about `seconds`; the fastest has the peak rate."""

    def rounds(results: int) -> int:
        """Return the iterations for `results` elements on a multiprocessor at a time."""
        cycles = STEPS * results * OPERAND_BYTES / _PRODUCTS_PER_CYCLE
        return max(1, round(1e9 * facts.clock_ghz * seconds / cycles))

    if pipe.is_exact_capability:
        return (wgmma_kernel(pipe, facts.multiprocessors, rounds(THREADS // 128 * GROUP_ROWS * COLUMNS)),)
    resident = max(1, facts.max_threads_per_multiprocessor // THREADS)
    warps, blocks = THREADS // 32 * resident, facts.multiprocessors * resident
    return tuple(mma_kernel(pipe, n, blocks, rounds(warps * n * 16 * 8)) for n in TILES_PER_WARP)


def mma_kernel(pipe: TensorPipe, tiles: int, blocks: int, rounds: int) -> PeakKernel:
    """Reads the operands' words, A's 4 and B's 2, and a zero; each thread writes the sum of its results."""
    result, letter, number = pipe.result
    places = ", ".join(f'"+{letter}"(d[{n}])' for n in range(4))
    given = ", ".join([*(f'"r"(a[{n}])' for n in range(4)), *(f'"r"(b[{n}])' for n in range(2))])
    instruction = f"mma.sync.aligned.m16n8k{pipe.k}.row.col.{number}.{pipe.operand}.{pipe.operand}.{number}"
    helper = f"""{FUNCTION}multiply_matrices({result}* d, const unsigned* a, const unsigned* b)
{{
  asm volatile("{instruction} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
               : {places} : {given});
}}
"""
    lines = [
        "  unsigned a[4] = {start[0], start[1], start[2], start[3]};",
        "  const unsigned b[2] = {start[4], start[5]}, zero = start[6];",
        f"  {result} d[{tiles}][4] = {{}}, sum = 0;",
        f"  for (int i = 0; i < {rounds}; ++i) {{",
        "    #pragma unroll",
        f"    for (int s = 0; s < {STEPS}; ++s) {{",
        "      a[s % 4] ^= zero;",
        *(f"      multiply_matrices(d[{n}], a, b);" for n in range(tiles)),
        "    }",
        "  }",
        *_sum_results(pipe, [f"d[{n}][{i}]" for n in range(tiles) for i in range(4)]),
    ]
    source = handwritten_source("cuda", NAME, "unsigned", lines, blocks, helper)
    operations = 2.0 * 16 * 8 * pipe.k * tiles * STEPS * rounds * blocks * (THREADS // 32)
    return PeakKernel(source, operations / pipe.instructions_per_fma, 6, 1)


def wgmma_kernel(pipe: TensorPipe, blocks: int, rounds: int) -> PeakKernel:
    """Return a kernel of wgmma. It reads one row of A and one of B, 32 words each, for all rows, and writes sums of
    results."""
    result, letter, number = pipe.result
    n_results = COLUMNS // 2
    places = ", ".join(f'"+{letter}"(d[{n}])' for n in range(n_results))
    registers = ", ".join(f"%{n}" for n in range(n_results))
    signs = "" if pipe.is_integer else ", 1, 1"
    majors = ", 0, 0" if pipe.k == 16 else ""  # other types are always contiguous along k
    instruction = f"wgmma.mma_async.sync.aligned.m64n{COLUMNS}k{pipe.k}.{number}.{pipe.operand}.{pipe.operand}"
    helper = f"""{PLAIN}
{FUNCTION}multiply_tiles({result}* d, unsigned long long a, unsigned long long b)
{{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{n_results + 2}, 0; {instruction} "
               "{{{registers}}}, %{n_results}, %{n_results + 1}, p{signs}{majors}; }}"
               : {places} : "l"(a), "l"(b), "r"(1));
}}
"""
    row, groups = ROW_BYTES // 4, THREADS // 128
    sizes = {"A": groups * GROUP_ROWS * row, "B": COLUMNS * row}
    place = f"w / {row} * {row} + (w % {row} / 4 ^ w / {row} % 8) * 4 + w % 4"
    # Descriptor of a swizzle of 128 bytes: the next k is 32 bytes further on, the next 8 rows 1024 bytes.
    form = "(unsigned long long)1 << 62 | (unsigned long long)64 << 32 | (unsigned long long)1 << 16"
    address = "((unsigned)__cvta_generic_to_shared(&{}_shared[{}]) & 0x3ffff) >> 4"
    parts = ROW_BYTES // OPERAND_BYTES
    lines = [
        *(f"  __shared__ __align__(1024) unsigned {name}_shared[{size}];" for name, size in sizes.items()),
        *(
            f"  for (int w = threadIdx.x; w < {size}; w += {THREADS})\n"
            f"    {name}_shared[{place}] = start[{n * row} + w % {row}];"
            for n, (name, size) in enumerate(sizes.items())
        ),
        "  show_shared();",
        "  __syncthreads();",
        f"  const unsigned long long form = {form};",
        f"  const unsigned long long a = form | {address.format('A', f'threadIdx.x / 128 * {GROUP_ROWS * row}')};",
        f"  const unsigned long long b = form | {address.format('B', 0)};",
        f"  {result} d[{n_results}] = {{}}, sum = 0;",
        "  #pragma unroll 1",
        f"  for (int i = 0; i < {rounds}; ++i) {{",
        "    begin_products();",
        "    #pragma unroll",
        f"    for (int s = 0; s < {STEPS}; ++s) {{",
        f"      multiply_tiles(d, a + s % {parts} * {OPERAND_BYTES // 16}, b + s % {parts} * {OPERAND_BYTES // 16});",
        "    }",
        "    commit_products();",
        "    wait_for_all_products_but_1();",
        "  }",
        "  wait_for_all_products_but_0();",
        *_sum_results(pipe, [f"d[{n}]" for n in range(n_results)]),
    ]
    source = handwritten_source("cuda", NAME, "unsigned", lines, blocks, helper)
    launch = replace(source.launches[0], shared_bytes=4 * sum(sizes.values()))
    source = replace(source, launches=(launch,), is_arch_specific=True)
    operations = 2.0 * GROUP_ROWS * COLUMNS * pipe.k * STEPS * rounds * blocks * groups
    return PeakKernel(source, operations / pipe.instructions_per_fma, 2 * row)


def _sum_results(pipe: TensorPipe, results: list[str]) -> list[str]:
    """Return lines that use all results, so that the compiler does not eliminate their computation."""
    bits = "(unsigned)sum" if pipe.is_integer else "__float_as_uint(sum)"
    return [*(f"  sum += {result};" for result in results), f"  end[{thread_number('cuda')}] = {bits};"]
