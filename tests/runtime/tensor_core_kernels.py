"""Two products of bfloat16 matrices written for tensor cores, as an emitter would write them: C[M,N] = A[M,K] B[K,N].

`mma_product`: mma.sync with ldmatrix, chunks of 16 bytes that change places, and a ring of cp.async in three stages.
`wgmma_product`: a persistent kernel in which one warpgroup loads tiles and two others multiply them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.codegen.c.source import Launch, TensorMap
from autosched.ir.dtype import numpy_dtype

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Product:
    text: str
    launch: Launch
    m: int
    n: int
    k: int

    def memory(self) -> tuple[dict[str, Array], Array, Array]:
        """(arguments by name, what C must be, how far from it)"""
        rng = np.random.default_rng(0)
        a, b = (
            aligned(rng.standard_normal(shape).astype(numpy_dtype("bfloat16")))
            for shape in ((self.m, self.k), (self.k, self.n))
        )
        x, y = a.astype(np.float64), b.astype(np.float64)
        c = aligned(np.full((self.m, self.n), np.nan, np.float32))
        return {"A": a, "B": b, "C": c}, x @ y, 1e-5 * (np.abs(x) @ np.abs(y))


def aligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 256, np.uint8)
    begin = -raw.ctypes.data % 256
    made: Array = raw[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def helper(signature: str, *lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"static __device__ __forceinline__ {signature}\n{{\n{body}\n}}\n"


# mma.sync: blocks of 128 x 128, four warps of 64 x 64, 32 of k at a time

MMA_HELPERS = "\n".join((
    helper("void start_copy_uint4(uint4* to, const uint4* from, bool inside)",
           'asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"',
           '             :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");'),
    helper("void commit_copies()", 'asm volatile("cp.async.commit_group;" ::: "memory");'),
    helper("void wait_for_all_copies_but_1()", 'asm volatile("cp.async.wait_group 1;" ::: "memory");'),
    helper("void load_matrices(unsigned* r, unsigned address)",
           'asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"',
           '             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");'),
    helper("void load_matrices_transposed(unsigned* r, unsigned address)",
           'asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"',
           '             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");'),
    helper("void multiply_add(float* d, const unsigned* a, const unsigned* b)",
           'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "',
           '             "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"',
           '             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])',
           '             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));'),
))  # fmt: skip


def mma_product(m: int, n: int, k: int) -> Product:
    """Of whole blocks and chunks, two at least."""
    assert m % 128 == n % 128 == k % 32 == 0
    assert k >= 64

    def fill(place: str, chunk: str) -> str:
        return f"""\
    #pragma unroll
    for (int each = 0; each < 4; ++each) {{
      const int a_row = each * 32 + thread / 4, a_chunk = thread % 4;
      start_copy_uint4((uint4*)&A_shared[{place}][a_row * 32 + (a_chunk ^ a_row / 2 % 4) * 8], (const uint4*)&A[(block_i * 128 + a_row) * {k} + {chunk} * 32 + a_chunk * 8], true);
      const int b_row = each * 8 + thread / 16, b_chunk = thread % 16;
      start_copy_uint4((uint4*)&B_shared[{place}][b_row * 128 + (b_chunk ^ b_row % 8) * 8], (const uint4*)&B[({chunk} * 32 + b_row) * {n} + block_j * 128 + b_chunk * 8], true);
    }}"""

    text = f"""{MMA_HELPERS}
extern "C" __global__ void __launch_bounds__(128, 2) gemm(const unsigned short* __restrict__ A, const unsigned short* __restrict__ B, float* __restrict__ C)
{{
  __shared__ __align__(128) unsigned short A_shared[3][4096];
  __shared__ __align__(128) unsigned short B_shared[3][4096];
  const int block_i = blockIdx.y, block_j = blockIdx.x, thread = threadIdx.x;
  const int lane = thread % 32, warp_i = thread / 32 / 2, warp_j = thread / 32 % 2;
  __align__(16) float acc[128];
  for (int i = 0; i < 128; ++i) acc[i] = 0.0f;
  for (int ahead = 0; ahead < 2; ++ahead) {{
{fill("ahead", "ahead")}
    commit_copies();
  }}
  #pragma unroll 1
  for (int k = 0; k < {k // 32}; ++k) {{
    wait_for_all_copies_but_1();
    __syncthreads();
    if (k + 2 < {k // 32}) {{
{fill("(k + 2) % 3", "(k + 2)")}
    }}
    commit_copies();
    const unsigned a_base = (unsigned)__cvta_generic_to_shared(&A_shared[k % 3][0]);
    const unsigned b_base = (unsigned)__cvta_generic_to_shared(&B_shared[k % 3][0]);
    #pragma unroll
    for (int step = 0; step < 2; ++step) {{
      unsigned a[4][4], b[8][2];
      for (int i = 0; i < 4; ++i) {{
        const int row = warp_i * 64 + i * 16 + lane % 16, chunk = step * 2 + lane / 16;
        load_matrices(a[i], a_base + (row * 32 + (chunk ^ row / 2 % 4) * 8) * 2);
      }}
      for (int j = 0; j < 4; ++j) {{
        const int row = step * 16 + lane % 16, chunk = warp_j * 8 + j * 2 + lane / 16;
        load_matrices_transposed(b[j * 2], b_base + (row * 128 + (chunk ^ row % 8) * 8) * 2);
      }}
      for (int i = 0; i < 4; ++i) {{
        for (int j = 0; j < 8; ++j) {{
          multiply_add(&acc[(i * 8 + j) * 4], a[i], b[j]);
        }}
      }}
    }}
  }}
  for (int i = 0; i < 4; ++i) {{
    for (int j = 0; j < 8; ++j) {{
      for (int h = 0; h < 2; ++h) {{
        *(float2*)(&C[(block_i * 128 + warp_i * 64 + i * 16 + h * 8 + lane / 4) * {n} + block_j * 128 + warp_j * 64 + j * 8 + lane % 4 * 2]) = make_float2(acc[(i * 8 + j) * 4 + h * 2], acc[(i * 8 + j) * 4 + h * 2 + 1]);
      }}
    }}
  }}
}}
"""
    launch = Launch("gemm", (n // 128, m // 128, 1), (128, 1, 1), ("A", "B", "C"), 49152)
    return Product(text, launch, m, n, k)


# wgmma: tiles of 128 x 128, 64 of k at a time, three stages; two consumers of 64 rows

BM, BN, BK, STAGES, CONSUMERS, GROUP = 128, 128, 64, 3, 2, 8
A_BYTES, B_BYTES = BM * BK * 2, BN * BK * 2
BARS = STAGES * (A_BYTES + B_BYTES)


def wgmma_helpers() -> str:
    n = BN // 2
    registers = ", ".join(f"%{i}" for i in range(n))
    results = ", ".join(f'"+f"(d[{i}])' for i in range(n))
    memory = ': "memory"'
    return "\n".join((
        helper("void barrier_init(unsigned bar, unsigned count)",
               f'asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) {memory});'),
        helper("void barrier_init_fence()", 'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'),
        helper("void barrier_expect(unsigned bar, unsigned bytes)",
               'asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"',
               f'             :: "r"(bar), "r"(bytes) {memory});'),
        helper("void barrier_arrive(unsigned bar)",
               f'asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) {memory});'),
        helper("unsigned barrier_try_wait(unsigned bar, unsigned parity)", "unsigned done;",
               'asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"',
               f'             : "=r"(done) : "r"(bar), "r"(parity) {memory});', "return done;"),
        helper("void load_tile(unsigned to, const TensorMap* map, int x, int y, unsigned bar)",
               'asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "',
               '             "[%0], [%1, {%2, %3}], [%4];"',
               f'             :: "r"(to), "l"((unsigned long long)map), "r"(x), "r"(y), "r"(bar) {memory});'),
        helper("void matrix_fence()", 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'),
        helper("void matrix_commit()", 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'),
        helper("void matrix_wait_0()", 'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");'),
        helper("void matrix_wait_1()", 'asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");'),
        helper("void give_registers()", 'asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");'),
        helper("void take_registers()", 'asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");'),
        helper("void matrix_multiply_add(float* d, unsigned long long a, unsigned long long b, int add)",
               f'asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{n + 2}, 0; "',
               f'             "wgmma.mma_async.sync.aligned.m64n{BN}k16.f32.bf16.bf16 "',
               f'             "{{{registers}}}, %{n}, %{n + 1}, p, 1, 1, 0, 1; }}"',
               f'             : {results} : "l"(a), "l"(b), "r"(add));'),
    ))  # fmt: skip


def wgmma_product(m: int, n: int, k: int, blocks: int = 2) -> Product:
    """Of any m, and of n and k in eights: what tiles have beyond the edges is zero, and not written."""
    assert n % 8 == k % 8 == 0
    tiles_m, tiles_n, steps = -(-m // BM), -(-n // BN), -(-k // BK)
    rows_of_band = f"({tiles_m} - band * {GROUP} < {GROUP} ? {tiles_m} - band * {GROUP} : {GROUP})"
    tile = f"""\
      const int band = tile / {GROUP * tiles_n}, rows = {rows_of_band};
      const int tile_m = band * {GROUP} + tile % {GROUP * tiles_n} % rows, tile_n = tile % {GROUP * tiles_n} / rows;"""
    turn = f"if (++s == {STAGES}) {{ s = 0; parity ^= 1; }}"
    b_loads = "\n".join(
        f"          load_tile(base + {STAGES * A_BYTES} + s * {B_BYTES} + {j * BK * 128}, &map_B, tile_n * {BN} + {j * 64}, k * {BK}, full);"
        for j in range(BN // 64)
    )
    text = f"""struct __align__(64) TensorMap {{ unsigned long long opaque[16]; }};

{wgmma_helpers()}
extern "C" __global__ void __launch_bounds__({128 * (CONSUMERS + 1)}, 1) gemm(const __grid_constant__ TensorMap map_A, const __grid_constant__ TensorMap map_B, float* __restrict__ C)
{{
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned base = (unsigned)__cvta_generic_to_shared(shared_memory);
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {{
    for (int s = 0; s < {STAGES}; ++s) {{
      barrier_init(base + {BARS} + s * 16, 1);
      barrier_init(base + {BARS} + s * 16 + 8, {CONSUMERS});
    }}
    barrier_init_fence();
  }}
  __syncthreads();
  int s = 0;
  unsigned parity = 0;
  if (group == {CONSUMERS}) {{
    give_registers();
    if (threadIdx.x == {CONSUMERS * 128}) {{
      #pragma unroll 1
      for (int tile = blockIdx.x; tile < {tiles_m * tiles_n}; tile += gridDim.x) {{
{tile}
        #pragma unroll 1
        for (int k = 0; k < {steps}; ++k) {{
          const unsigned full = base + {BARS} + s * 16;
          while (!barrier_try_wait(full + 8, parity ^ 1)) {{ }}
          barrier_expect(full, {A_BYTES + B_BYTES});
          load_tile(base + s * {A_BYTES}, &map_A, k * {BK}, tile_m * {BM}, full);
{b_loads}
          {turn}
        }}
      }}
    }}
  }} else {{
    take_registers();
    #pragma unroll 1
    for (int tile = blockIdx.x; tile < {tiles_m * tiles_n}; tile += gridDim.x) {{
{tile}
      float acc[{BN // 2}];
      int before = 0;
      #pragma unroll 1
      for (int k = 0; k < {steps}; ++k) {{
        const unsigned full = base + {BARS} + s * 16;
        while (!barrier_try_wait(full, parity)) {{ }}
        matrix_fence();
        const unsigned long long a = (unsigned long long)1 << 62 | (unsigned long long)64 << 32 | (unsigned long long)1 << 16 | ((base + s * {A_BYTES} + group * {64 * BK * 2}) & 0x3ffff) >> 4;
        const unsigned long long b = (unsigned long long)1 << 62 | (unsigned long long)64 << 32 | (unsigned long long){BK * 128 // 16} << 16 | ((base + {STAGES * A_BYTES} + s * {B_BYTES}) & 0x3ffff) >> 4;
        #pragma unroll
        for (int kk = 0; kk < {BK // 16}; ++kk) {{
          matrix_multiply_add(acc, a + kk * 2, b + kk * 128, k + kk > 0);
        }}
        matrix_commit();
        if (k > 0) {{
          matrix_wait_1();
          if (threadIdx.x % 128 == 0) barrier_arrive(base + {BARS} + before * 16 + 8);
        }}
        before = s;
        {turn}
      }}
      matrix_wait_0();
      if (threadIdx.x % 128 == 0) barrier_arrive(base + {BARS} + before * 16 + 8);
      const int lane = threadIdx.x % 32, row = tile_m * {BM} + group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
      #pragma unroll
      for (int j = 0; j < {BN // 8}; ++j) {{
        const int col = tile_n * {BN} + j * 8 + lane % 4 * 2;
        if (row < {m} && col < {n}) *(float2*)(&C[row * {n} + col]) = make_float2(acc[j * 4], acc[j * 4 + 1]);
        if (row + 8 < {m} && col < {n}) *(float2*)(&C[(row + 8) * {n} + col]) = make_float2(acc[j * 4 + 2], acc[j * 4 + 3]);
      }}
    }}
  }}
}}
"""
    maps = (
        TensorMap("map_A", "A", "bfloat16", (k, m), (2 * k,), (BK, BM), 128),
        TensorMap("map_B", "B", "bfloat16", (n, k), (2 * n,), (64, BK), 128),
    )
    launch = Launch("gemm", (blocks, 1, 1), (128 * (CONSUMERS + 1), 1, 1), (*maps, "C"), BARS + 16 * STAGES)
    return Product(text, launch, m, n, k)
