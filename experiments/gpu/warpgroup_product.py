"""Products of bfloat16 matrices by warpgroups, as an emitter could write them: C[M,N] = A[M,K] B, all row-major.

One warpgroup loads tiles by the copy engine into a ring of stages, the others multiply them (wgmma) and store. What
such a kernel may look like are the fields of `ProductForm`; the step `ladder` times them.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.codegen.c.source import GpuSource, Launch, TensorMap
from experiments.gpu.forms.blocks import CLUSTER
from experiments.gpu.forms.form import BARRIERS, TENSOR_MAP, helper
from experiments.gpu.forms.tiles import ARRIVES

DEPTH, PANEL = 64, 64  # of k in a stage; columns that a swizzled row of 128 bytes has
MOST_SHARED = 232448  # bytes of a block, of which ALIGNMENT may be lost
INSTRUCTION_ROWS = 64
PARAMETERS = (
    "const __grid_constant__ TensorMap map_A, const __grid_constant__ TensorMap map_B, "
    "const __grid_constant__ TensorMap map_C, unsigned* __restrict__ C"
)
TURN = 3  # the first of two named barriers: parities tell a phase from the next, and not from the one after it


@dataclass(frozen=True)
class ProductForm:
    """A tile of `rows` x `columns`, multiplied by `consumers` warpgroups.

    `stages`: 0 for as many as fit. `cluster`: blocks side by side along the rows, which load B together. `persistent`:
    as many blocks as multiprocessors, each computing several tiles. `group`: rows of tiles that are walked together.
    `takes_turns`: each warpgroup has a tile of its own, so that one multiplies while another stores. `stores_tiles`:
    through shared memory and the copy engine, `panels` of 64 columns at a time (0: all). `is_transposed`: B is stored
    as [N,K].
    """

    rows: int = 128
    columns: int = 256
    consumers: int = 2
    stages: int = 0
    cluster: int = 1
    persistent: bool = True
    group: int = 8
    takes_turns: bool = False
    stores_tiles: bool = False
    panels: int = 0
    is_transposed: bool = False

    @property
    def name(self) -> str:
        words = [f"{self.rows}x{self.columns}", f"{self.consumers} consumers", f"{self.n_stages} stages"]
        words += [f"cluster {self.cluster}"] * (self.cluster > 1) + ["one tile"] * (not self.persistent)
        words += [f"group {self.group}"] * (self.group != 8) + ["in turn"] * self.takes_turns
        words += ["tile store" + (f" by {self.panels}" if self.panels else "")] * self.stores_tiles
        return ", ".join([*words, *["B transposed"] * self.is_transposed])

    @property
    def blocks_of_rows(self) -> int:
        """Of 64, that a consumer has."""
        return self.rows // INSTRUCTION_ROWS // (1 if self.takes_turns else self.consumers)

    @property
    def a_bytes(self) -> int:
        return self.rows * DEPTH * 2

    @property
    def b_bytes(self) -> int:
        return self.columns * DEPTH * 2

    @property
    def c_bytes(self) -> int:
        """Of results on their way out."""
        if not self.stores_tiles:
            return 0
        return self.rows * self.panels_at_once * PANEL * 2 * (self.consumers if self.takes_turns else 1)

    @property
    def panels_at_once(self) -> int:
        return self.panels or self.columns // PANEL

    @property
    def n_stages(self) -> int:
        fit = (MOST_SHARED - 1024 - self.c_bytes - 256) // (self.a_bytes + self.b_bytes)
        return self.stages or min(fit, 8)

    @property
    def barriers(self) -> int:
        """Where they begin."""
        return self.n_stages * (self.a_bytes + self.b_bytes) + self.c_bytes

    @property
    def shared_bytes(self) -> int:
        return self.barriers + 16 * self.n_stages

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)


@dataclass(frozen=True)
class Size:
    m: int
    n: int
    k: int

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k


def helpers(form: ProductForm) -> str:
    n = form.columns // 2
    registers, results = ", ".join(f"%{i}" for i in range(n)), ", ".join(f'"+f"(d[{i}])' for i in range(n))
    swaps = ", 0, 0" if form.is_transposed else ", 0, 1"
    load = f"cp.async.bulk.tensor.2d.shared::cluster.global.{ARRIVES}"
    to = '"r"(to), "l"((unsigned long long)map), "r"(x), "r"(y), "r"(bar)'
    parts = [
        TENSOR_MAP, BARRIERS, CLUSTER,
        # Not .release.cluster, which waits a microsecond for all that the thread wrote before: nobody reads it.
        helper("give_back(unsigned bar)", "mbarrier.arrive.shared::cluster.b64 _, [%0];", ':: "r"(bar) : "memory"'),
        helper("load_tile(unsigned to, const TensorMap* map, int x, int y, unsigned bar)",
               f"{load} [%0], [%1, {{%2, %3}}], [%4];", f':: {to} : "memory"'),
        helper("load_for_all(unsigned to, const TensorMap* map, int x, int y, unsigned bar, unsigned short mask)",
               f"{load}.multicast::cluster [%0], [%1, {{%2, %3}}], [%4], %5;", f':: {to}, "h"(mask) : "memory"'),
        helper("store_tile(const TensorMap* map, int x, int y, unsigned from)",
               "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];",
               ':: "l"((unsigned long long)map), "r"(x), "r"(y), "r"(from) : "memory"'),
        helper("commit_stores()", "cp.async.bulk.commit_group;", '::: "memory"'),
        helper("wait_for_reads()", "cp.async.bulk.wait_group.read 0;", '::: "memory"'),
        helper("wait_for_stores()", "cp.async.bulk.wait_group 0;", '::: "memory"'),
        helper("store_matrices(unsigned at, const unsigned* r)",
               "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};",
               ': : "r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory"'),
        helper("meet(int id, int n)", "bar.sync %0, %1;", ':: "r"(id), "r"(n) : "memory"'),
        helper("tell(int id, int n)", "bar.arrive %0, %1;", ':: "r"(id), "r"(n) : "memory"'),
        helper("matrix_fence()", "wgmma.fence.sync.aligned;", '::: "memory"'),
        helper("matrix_commit()", "wgmma.commit_group.sync.aligned;", '::: "memory"'),
        helper("matrix_wait_0()", "wgmma.wait_group.sync.aligned 0;", '::: "memory"'),
        helper("matrix_wait_1()", "wgmma.wait_group.sync.aligned 1;", '::: "memory"'),
        helper("give_registers()", "setmaxnreg.dec.sync.aligned.u32 40;", ""),
        helper("take_registers()", "setmaxnreg.inc.sync.aligned.u32 232;", ""),
        'static __device__ __forceinline__ unsigned pack(float high, float low)\n{\n  unsigned r;\n'
        '  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));\n  return r;\n}\n',
        helper("multiply(float* d, unsigned long long a, unsigned long long b, int add)",
               f"{{ .reg .pred p; setp.ne.b32 p, %{n + 2}, 0; wgmma.mma_async.sync.aligned.m64n{form.columns}k16"
               f".f32.bf16.bf16 {{{registers}}}, %{n}, %{n + 1}, p, 1, 1{swaps}; }}",
               f': {results} : "l"(a), "l"(b), "r"(add)'),
    ]  # fmt: skip
    return "".join(parts)


def source(form: ProductForm, size: Size, multiprocessors: int) -> GpuSource:
    """Of any m, and of n and k in eights: what tiles have beyond the edges is zero, and not written."""
    tiles_m, tiles_n = -(-size.m // form.rows), -(-size.n // form.columns)
    bands_m = -(-tiles_m // form.cluster)  # each of as many tiles as a cluster has blocks
    n_tiles = bands_m * tiles_n
    workers = min(n_tiles, max(1, multiprocessors // form.cluster)) if form.persistent else n_tiles
    cluster = f"__cluster_dims__({form.cluster}, 1, 1) " if form.cluster > 1 else ""
    text = f"""{helpers(form)}
extern "C" __global__ void {cluster}__launch_bounds__({form.threads}, 1) gemm({PARAMETERS})
{{
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned base = (unsigned)__cvta_generic_to_shared(shared_memory);
  const int group = threadIdx.x / 128;
{_begin(form)}
  int s = 0;
  unsigned parity = 0;
  if (group == {form.consumers}) {{
{_producer(form, size, n_tiles, bands_m, tiles_n)}
  }} else {{
{_consumer(form, size, n_tiles, bands_m, tiles_n)}
  }}
{_end(form)}
}}
"""
    maps = _maps(form, size)
    launch = Launch("gemm", (workers * form.cluster, 1, 1), (form.threads, 1, 1), (*maps, "C"), form.shared_bytes)
    return GpuSource("gemm", "cuda", text, (launch,), ("A", "B"), ("C",), (), is_arch_specific=True)


def _maps(form: ProductForm, size: Size) -> tuple[TensorMap, ...]:
    b_columns = form.columns // form.cluster
    if form.is_transposed:
        b = TensorMap("map_B", "B", "bfloat16", (size.k, size.n), (2 * size.k,), (DEPTH, b_columns), 128)
    else:
        b = TensorMap("map_B", "B", "bfloat16", (size.n, size.k), (2 * size.n,), (PANEL, DEPTH), 128)
    return (
        TensorMap("map_A", "A", "bfloat16", (size.k, size.m), (2 * size.k,), (DEPTH, form.rows), 128),
        b,
        TensorMap("map_C", "C", "bfloat16", (size.n, size.m), (2 * size.n,), (PANEL, INSTRUCTION_ROWS), 128),
    )


def _begin(form: ProductForm) -> str:
    arrivals = (1 if form.takes_turns else form.consumers) * form.cluster
    ready = "all_arrive();\n  all_wait();" if form.cluster > 1 else "__syncthreads();"
    return f"""\
  if (threadIdx.x == 0) {{
    for (int s = 0; s < {form.n_stages}; ++s) {{
      init(base + {form.barriers} + s * 16, 1);
      init(base + {form.barriers} + s * 16 + 8, {arrivals});
    }}
    fence_init();
  }}
  {ready}"""


def _end(form: ProductForm) -> str:
    """A block must be there as long as others of its cluster write to it."""
    return "  __syncwarp();\n  all_arrive();\n  all_wait();" if form.cluster > 1 else ""


def _place(form: ProductForm, bands_m: int, tiles_n: int) -> str:
    """Where the tile is: bands of `group` rows of tiles, along which the columns are walked."""
    whole = form.group * tiles_n
    rank = f" * {form.cluster} + (int)rank()" if form.cluster > 1 else ""
    return f"""\
      const int band = tile / {whole}, left = {bands_m} - band * {form.group};
      const int rows = left < {form.group} ? left : {form.group};
      const int tile_m = (band * {form.group} + tile % {whole} % rows){rank}, tile_n = tile % {whole} / rows;"""


def _turn(form: ProductForm) -> str:
    return f"if (++s == {form.n_stages}) {{ s = 0; parity ^= 1; }}"


def _first(form: ProductForm) -> tuple[str, str]:
    """The first tile of a block, and how far the next one is."""
    if form.cluster == 1:
        return "blockIdx.x", "gridDim.x"
    return f"blockIdx.x / {form.cluster}", f"gridDim.x / {form.cluster}"


def _producer(form: ProductForm, size: Size, n_tiles: int, bands_m: int, tiles_n: int) -> str:
    first, step = _first(form)
    b_at = f"base + {form.n_stages * form.a_bytes} + s * {form.b_bytes}"
    b_columns = form.columns // form.cluster
    mine = f" + rank() * {b_columns * DEPTH * 2}" if form.cluster > 1 else ""
    column = f"tile_n * {form.columns}" + (f" + (int)rank() * {b_columns}" if form.cluster > 1 else "")
    load, mask = ("load_for_all", f", {(1 << form.cluster) - 1}") if form.cluster > 1 else ("load_tile", "")
    if form.is_transposed:
        b_loads = f"          {load}({b_at}{mine}, &map_B, k * {DEPTH}, {column}, full{mask});"
    else:
        b_loads = f"""\
          #pragma unroll
          for (int j = 0; j < {b_columns // PANEL}; ++j) {{
            {load}({b_at}{mine} + j * {DEPTH * 128}, &map_B, {column} + j * {PANEL}, k * {DEPTH}, full{mask});
          }}"""
    give = "    give_registers();\n" if form.consumers == 2 else ""
    return f"""\
{give}    if (threadIdx.x == {form.consumers * 128}) {{
      #pragma unroll 1
      for (int tile = {first}; tile < {n_tiles}; tile += {step}) {{
{_place(form, bands_m, tiles_n)}
        #pragma unroll 1
        for (int k = 0; k < {-(-size.k // DEPTH)}; ++k) {{
          const unsigned full = base + {form.barriers} + s * 16;
          while (!done(full + 8, parity ^ 1)) {{ }}
          expect(full, {form.a_bytes + form.b_bytes});
          load_tile(base + s * {form.a_bytes}, &map_A, k * {DEPTH}, tile_m * {form.rows}, full);
{b_loads}
          {_turn(form)}
        }}
      }}
    }}"""


def _consumer(form: ProductForm, size: Size, n_tiles: int, bands_m: int, tiles_n: int) -> str:
    first, step = _first(form)
    steps = -(-size.k // DEPTH)
    take = "    take_registers();\n" if form.consumers == 2 else ""
    skip = f"s += {steps}; parity ^= s / {form.n_stages} & 1; s %= {form.n_stages};"
    begin = f"if (group == 1) {{ {skip} tell({TURN}, 256); }}" if form.takes_turns else ""
    tile = f"{first} + group * ({step})" if form.takes_turns else first
    next_tile = f"2 * ({step})" if form.takes_turns else step
    return f"""\
{take}    {begin}
    #pragma unroll 1
    for (int tile = {tile}; tile < {n_tiles}; tile += {next_tile}) {{
{_place(form, bands_m, tiles_n)}
      float acc[{form.blocks_of_rows}][{form.columns // 2}];
      int before = 0;
      {f"meet({TURN} + group, 256);" if form.takes_turns else ""}
{_steps(form, steps)}
      {f"tell({TURN} + (group ^ 1), 256);" if form.takes_turns else ""}
      matrix_wait_0();
      {_free(form)}
{_tile_store(form) if form.stores_tiles else _direct_store(form, size)}
      {skip if form.takes_turns else ""}
    }}
    {_drained(form)}"""


def _drained(form: ProductForm) -> str:
    return "if (threadIdx.x % 128 == 0) wait_for_stores();" if form.stores_tiles else ""


def _free(form: ProductForm) -> str:
    """Says that the stage `before` has been read."""
    bar = f"base + {form.barriers} + before * 16 + 8"
    if form.cluster == 1:
        return f"if (threadIdx.x % 128 == 0) arrive({bar});"
    return f"if (threadIdx.x % 128 < {form.cluster}) give_back(map_to({bar}, threadIdx.x % 128));"


def _steps(form: ProductForm, steps: int) -> str:
    block = "0" if form.takes_turns else f"group * {form.blocks_of_rows}"
    swizzled = "(unsigned long long)1 << 62 | (unsigned long long)64 << 32"
    a_at = f"base + s * {form.a_bytes} + ({block} + i) * {INSTRUCTION_ROWS * DEPTH * 2}"
    b_at = f"base + {form.n_stages * form.a_bytes} + s * {form.b_bytes}"
    leading, b_step = (1, 2) if form.is_transposed else (DEPTH * 128 // 16, 128)
    return f"""\
      #pragma unroll 1
      for (int k = 0; k < {steps}; ++k) {{
        const unsigned full = base + {form.barriers} + s * 16;
        while (!done(full, parity)) {{ }}
        matrix_fence();
        const unsigned long long b = {swizzled} | (unsigned long long){leading} << 16 | (({b_at}) & 0x3ffff) >> 4;
        #pragma unroll
        for (int i = 0; i < {form.blocks_of_rows}; ++i) {{
          const unsigned long long a = {swizzled} | (unsigned long long)1 << 16 | (({a_at}) & 0x3ffff) >> 4;
          #pragma unroll
          for (int kk = 0; kk < {DEPTH // 16}; ++kk) {{
            multiply(acc[i], a + kk * 2, b + kk * {b_step}, k + kk > 0);
          }}
        }}
        matrix_commit();
        if (k > 0) {{
          matrix_wait_1();
          {_free(form)}
        }}
        before = s;
        {_turn(form)}
      }}"""


def _rows_of_consumer(form: ProductForm) -> str:
    group = "" if form.takes_turns else f" + group * {form.blocks_of_rows * INSTRUCTION_ROWS}"
    return f"tile_m * {form.rows}{group}"


def _direct_store(form: ProductForm, size: Size) -> str:
    """Two neighbours as one word; four lanes make half a sector."""
    return f"""\
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
      #pragma unroll
      for (int i = 0; i < {form.blocks_of_rows}; ++i) {{
        const int row = {_rows_of_consumer(form)} + i * {INSTRUCTION_ROWS} + warp * 16 + lane / 4;
        #pragma unroll
        for (int j = 0; j < {form.columns // 8}; ++j) {{
          const int col = tile_n * {form.columns} + j * 8 + lane % 4 * 2;
          unsigned* const to = &C[((long long)row * {size.n} + col) / 2];
          if (row < {size.m} && col < {size.n}) to[0] = pack(acc[i][j * 4 + 1], acc[i][j * 4]);
          if (row + 8 < {size.m} && col < {size.n}) to[{4 * size.n}] = pack(acc[i][j * 4 + 3], acc[i][j * 4 + 2]);
        }}
      }}"""


def _tile_store(form: ProductForm) -> str:
    """Panels of 64 columns, swizzled, one store of the copy engine for each."""
    panels, block = form.panels_at_once, INSTRUCTION_ROWS * 128
    at = form.n_stages * (form.a_bytes + form.b_bytes)
    own = f"group * {form.blocks_of_rows * panels * block}"
    return f"""\
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = warp * 16 + lane % 8 + lane / 8 % 2 * 8;
      const unsigned panel = base + {at} + {own};
      #pragma unroll
      for (int part = 0; part < {form.columns // PANEL // panels}; ++part) {{
        if (threadIdx.x % 128 == 0) wait_for_reads();
        meet(1 + group, 128);
        #pragma unroll
        for (int i = 0; i < {form.blocks_of_rows}; ++i) {{
          #pragma unroll
          for (int j = 0; j < {panels * 8}; j += 2) {{
            const float* const d = &acc[i][(part * {panels * 8} + j) * 4];
            unsigned r[4];
            r[0] = pack(d[1], d[0]);
            r[1] = pack(d[3], d[2]);
            r[2] = pack(d[5], d[4]);
            r[3] = pack(d[7], d[6]);
            const unsigned to = panel + (i * {panels} + j / 8) * {block} + row * 128;
            store_matrices(to + ((j % 8 + lane / 16) ^ row % 8) * 16, r);
          }}
        }}
        fence();
        meet(1 + group, 128);
        if (threadIdx.x % 128 == 0) {{
          for (int i = 0; i < {form.blocks_of_rows}; ++i) {{
            for (int p = 0; p < {panels}; ++p) {{
              const int x = tile_n * {form.columns} + (part * {panels} + p) * {PANEL};
              const int y = {_rows_of_consumer(form)} + i * {INSTRUCTION_ROWS};
              store_tile(&map_C, x, y, panel + (i * {panels} + p) * {block});
            }}
          }}
          commit_stores();
        }}
      }}"""
