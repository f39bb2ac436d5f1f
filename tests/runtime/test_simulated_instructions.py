"""Each PTX instruction of the simulator against a formula in NumPy: fragments, layouts, tiles, barriers.

g is the lane over 4, t the lane modulo 4; a register has 32 bits, the element with the lower k in its lower part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.codegen.c.source import Launch, TensorMap
from autosched.ir.dtype import numpy_dtype
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import EXTREMES, Execution, Mode, build, execute
from tests.runtime.tensor_maps import tensor_map

Array = npt.NDArray[Any]
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")
MODES = (Mode(checked=True), *EXTREMES)
LANES = np.arange(32)
G, T = LANES // 4, LANES % 4


def aligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 256, np.uint8)
    begin = -raw.ctypes.data % 256
    made: Array = raw[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def run(
    body: str, helpers: str, given: dict[str, Any], parameters: str, launched: str, *, threads: int = 32,
    mode: Mode = MODES[0], shared: int = 65536, cluster: int = 1,
) -> Execution:  # fmt: skip
    """`launched`: names in `given`, arrays and maps of them; arrays in lower case have no content."""
    words = f"__cluster_dims__({cluster}, 1, 1) " if cluster > 1 else ""
    text = f'{helpers}\nextern "C" __global__ void {words}k({parameters})\n{{\n{body}\n}}\n'
    memory = {name: value for name, value in given.items() if not isinstance(value, TensorMap)}
    arguments = tuple(n if n in memory else given[n] for n in launched.split())
    launch = Launch("k", (cluster, 1, 1), (threads, 1, 1), arguments, shared)
    known = frozenset(n for n in memory if n.isupper())
    return execute(build(text, mode.checked), [launch], memory, known, mode)


def helper(signature: str, ptx: str, operands: str) -> str:
    return f'static __device__ __forceinline__ void {signature}\n{{\n  asm volatile("{ptx}" {operands});\n}}\n'


SHARED = (
    "extern __shared__ __align__(1024) unsigned char s[];\nconst unsigned base = (unsigned)__cvta_generic_to_shared(s);"
)


# Numbers


def test_powers_of_two() -> None:
    X = np.array([0.0, 1.5, -3.25, -126.0, -140.0, -np.inf, np.inf, np.nan] * 4, np.float32)
    text = 'static __device__ __forceinline__ float power(float a)\n{\n  float c;\n  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(c) : "f"(a));\n  return c;\n}\n'
    y = aligned(np.zeros(32, np.float32))
    run("y[threadIdx.x] = power(X[threadIdx.x]);", text, {"X": aligned(X), "y": y}, "const float* X, float* y", "X y")
    expected = np.exp2(X)
    expected[X == -140] = 0  # what would be denormal
    np.testing.assert_allclose(y, expected, rtol=2.0**-22)


# Matrices of a warp


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_ldmatrix(n: int, transposed: bool) -> None:
    """Lane l gives the address of row l % 8 of matrix l / 8."""
    word = ".trans" if transposed else ""
    registers = ", ".join(f"%{i}" for i in range(n))
    outs = ", ".join(f'"=r"(r[{i}])' for i in range(n))
    load = helper(
        "load(unsigned* r, unsigned at)", f"ldmatrix.sync.aligned.m8n8.x{n}{word}.shared.b16 {{{registers}}}, [%{n}];",
        f': {outs} : "r"(at) : "memory"',
    )  # fmt: skip
    matrices = aligned(np.arange(n * 64, dtype=np.uint16).reshape(n, 8, 8))
    out = aligned(np.zeros((32, n), np.uint32))
    body = f"""{SHARED}
  for (int i = threadIdx.x; i < {n * 64}; i += 32) ((unsigned short*)s)[i] = A[i];
  __syncthreads();
  unsigned r[{n}];
  load(r, base + threadIdx.x % {8 * n} * 16);
  for (int i = 0; i < {n}; ++i) c[threadIdx.x * {n} + i] = r[i];"""
    ran = run(body, load, {"A": matrices, "c": out}, "const unsigned short* A, unsigned* c", "A c")
    assert not ran.mistakes
    for m in range(n):
        matrix = matrices[m].T if transposed else matrices[m]
        low, high = matrix[G, 2 * T].astype(np.uint32), matrix[G, 2 * T + 1].astype(np.uint32)
        assert (out[:, m] == low | high << 16).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_stmatrix(n: int, transposed: bool) -> None:
    word = ".trans" if transposed else ""
    registers = ", ".join(f"%{i + 1}" for i in range(n))
    ins = ", ".join(f'"r"(r[{i}])' for i in range(n))
    store = helper(
        "store(unsigned at, const unsigned* r)",
        f"stmatrix.sync.aligned.m8n8.x{n}{word}.shared.b16 [%0], {{{registers}}};", f': : "r"(at), {ins} : "memory"',
    )  # fmt: skip
    given = aligned(np.arange(32 * n * 2, dtype=np.uint16).reshape(32, n, 2))
    out = aligned(np.zeros((n, 8, 8), np.uint16))
    body = f"""{SHARED}
  store(base + threadIdx.x % {8 * n} * 16, (const unsigned*)A + threadIdx.x * {n});
  __syncthreads();
  for (int i = threadIdx.x; i < {n * 64}; i += 32) c[i] = ((unsigned short*)s)[i];"""
    ran = run(body, store, {"A": given, "c": out}, "const unsigned short* A, unsigned short* c", "A c")
    assert not ran.mistakes
    for m in range(n):
        expected = np.zeros((8, 8), np.uint16)
        expected[np.repeat(G, 2), (2 * T[:, None] + [0, 1]).ravel()] = given[:, m].ravel()
        assert (out[m] == (expected.T if transposed else expected)).all()


SMALL = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
KINDS: dict[str, tuple[int, int]] = {  # bits of an element, k
    "f16": (16, 16), "bf16": (16, 16), "tf32": (32, 8), "s8": (8, 32), "u8": (8, 32), "e4m3": (8, 32), "e5m2": (8, 32),
}  # fmt: skip


def numbers(kind: str, shape: tuple[int, ...], seed: int) -> tuple[Array, Array]:
    """(bits as they lie in memory, values in float64)"""
    rng = np.random.default_rng(seed)
    if kind in ("s8", "u8"):
        values = rng.integers(-128 if kind == "s8" else 0, 128 if kind == "s8" else 256, shape)
        return values.astype(np.int8 if kind == "s8" else np.uint8).view(np.uint8), values.astype(np.float64)
    normal = rng.standard_normal(shape).astype(np.float32)
    if kind == "tf32":
        bits = normal.view(np.uint32)
        return bits, (bits & ~np.uint32(0x1FFF)).view(np.float32).astype(np.float64)
    if kind in SMALL:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        made = normal.astype(getattr(ml_dtypes, SMALL[kind]))
        return made.view(np.uint8), made.astype(np.float64)
    made = normal.astype(numpy_dtype({"f16": "float16", "bf16": "bfloat16"}[kind]))
    return made.view(np.uint16), made.astype(np.float64)


def packed(bits: Array) -> Array:
    """Neighbours along the last axis in words of 32 bits."""
    return np.ascontiguousarray(bits).view(np.uint32)


MMA = [
    *((kind, kind, "f32", 16, 2) for kind in ("f16", "bf16", "tf32", "e4m3", "e5m2")),
    ("e4m3", "e5m2", "f32", 16, 2), ("f16", "f16", "f16", 16, 2), ("f16", "f16", "f32", 16, 1),
    *((a, b, "s32", m, deep) for a in ("s8", "u8") for b in ("s8", "u8") for m, deep in ((16, 2), (8, 1))),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "result", "m", "deep"), MMA)
def test_mma(left: str, right: str, result: str, m: int, deep: int) -> None:
    """`deep`: registers of B, and of A for 8 rows."""
    halves, bits = m // 8, KINDS[left][0]
    k, n_results = 4 * deep * 32 // bits, halves * (1 if result == "f16" else 2)
    a, x = numbers(left, (m, k), 0)
    b, y = numbers(right, (k, 8), 1)
    words_a, words_b = packed(a).reshape(m, -1), packed(np.ascontiguousarray(b.T)).reshape(8, -1)
    in_a = halves * deep
    fragments_a = np.stack([words_a[G + 8 * (r % halves), T + 4 * (r // halves)] for r in range(in_a)], axis=1)
    fragments_b = np.stack([words_b[G, T + 4 * r] for r in range(deep)], axis=1)
    letter, kind = ("f", "float") if result == "f32" else ("r", "unsigned")
    d = ", ".join(f"%{i}" for i in range(n_results))
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(n_results))
    ins = ", ".join(f'"r"({name}[{i}])' for name, count in (("a", in_a), ("b", deep)) for i in range(count))
    regs = [f"%{n_results + i}" for i in range(in_a + deep)]
    multiply = helper(
        f"multiply({kind}* d, const unsigned* a, const unsigned* b)",
        f"mma.sync.aligned.m{m}n8k{k}.row.col.{result}.{left}.{right}.{result} "
        f"{{{d}}}, {{{', '.join(regs[:in_a])}}}, {{{', '.join(regs[in_a:])}}}, {{{d}}};", f": {outs} : {ins}",
    )  # fmt: skip
    dtype = {"f32": np.float32, "f16": np.uint32, "s32": np.int32}[result]
    out = aligned(np.zeros((32, n_results), dtype))
    body = f"""{kind} d[{n_results}];
  for (int i = 0; i < {n_results}; ++i) d[i] = 0;
  for (int twice = 0; twice < 2; ++twice) multiply(d, A + threadIdx.x * {in_a}, B + threadIdx.x * {deep});
  for (int i = 0; i < {n_results}; ++i) (({kind}*)c)[threadIdx.x * {n_results} + i] = d[i];"""
    memory = {"A": aligned(fragments_a), "B": aligned(fragments_b), "c": out}
    assert not run(body, multiply, memory, "const unsigned* A, const unsigned* B, unsigned* c", "A B c").mistakes
    expected, got = 2 * (x @ y), np.zeros((m, 8))
    flat = out.view(np.float16).reshape(32, 4) if result == "f16" else out
    for i in range(2 * halves):
        got[G + 8 * (i // 2), 2 * T + i % 2] = flat[:, i]
    bound = {"f32": 1e-5, "f16": 1e-2, "s32": 0}[result] * (np.abs(x) @ np.abs(y) + 1)
    assert (np.abs(got - expected) <= bound).all()


# Tiles

TILE = """
static __device__ __forceinline__ void init(unsigned bar, unsigned count)
{ asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory"); }
static __device__ __forceinline__ void expect(unsigned bar, unsigned bytes)
{ asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory"); }
static __device__ __forceinline__ unsigned done(unsigned bar, unsigned parity)
{
  unsigned done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  return done;
}
static __device__ __forceinline__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
static __device__ __forceinline__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
static __device__ __forceinline__ void wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
struct __align__(64) TensorMap { unsigned long long opaque[16]; };
"""


def coordinates(rank: int) -> str:
    return ", ".join(f'"r"(from[{d}])' for d in range(rank))


def loader(rank: int) -> str:
    inner = ", ".join(f"%{d + 2}" for d in range(rank))
    return TILE + helper(
        "load(unsigned to, const TensorMap* map, const int* from, unsigned bar)",
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[%0], [%1, {{{inner}}}], [%{rank + 2}];",
        f':: "r"(to), "l"((unsigned long long)map), {coordinates(rank)}, "r"(bar) : "memory"',
    )


def loaded(
    made: TensorMap, array: Array, where: tuple[int, ...], nbytes: int, mode: Mode, text: str, call: str
) -> Array:
    out = aligned(np.zeros(nbytes, np.uint8))
    body = f"""{SHARED}
  if (threadIdx.x == 0) init(base + 60000, 1);
  __syncthreads();
  const int from[] = {{{", ".join(map(str, where))}}};
  if (threadIdx.x == 0) {{ expect(base + 60000, {nbytes}); {call} }}
  while (!done(base + 60000, 0)) {{ }}
  for (int i = threadIdx.x; i < {nbytes}; i += 32) c[i] = s[i];"""
    parameters = "const __grid_constant__ TensorMap map, unsigned char* c"
    ran = run(body, text, {"m": made, "A": array, "c": out}, parameters, "m c", mode=mode)
    assert not ran.mistakes, ran.mistakes
    return out


def unswizzled(tile: Array, row_bytes: int, swizzle: int) -> Array:
    """Bytes of rows, whose parts of 16 bytes change places as bits 7 and on of their addresses say."""
    at = np.arange(tile.size)
    turn = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    return tile[at ^ ((at >> 7 & turn) << 4)].reshape(-1, row_bytes)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "box", "where"), [
    ((40,), (16,), (8,)), ((13, 24), (8, 5), (4, 2)), ((7, 24), (16, 9), (16, -3)), ((5, 6, 8), (4, 3, 2), (-2, 4, 1)),
    ((3, 4, 5, 8), (8, 2, 3, 2), (0, 4, 2, -1)), ((2, 3, 2, 3, 4), (4, 2, 2, 2, 2), (0, 1, 1, 2, 1)),
])  # fmt: skip
def test_tiles_are_zero_outside(
    shape: tuple[int, ...], box: tuple[int, ...], where: tuple[int, ...], mode: Mode
) -> None:
    array = aligned(np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape))
    nbytes = int(np.prod(box)) * 4
    call = "load(base, &map, from, base + 60000);"
    got = loaded(tensor_map(array, box), array, where, nbytes, mode, loader(len(shape)), call)
    wide = np.pad(array, 16)
    first = tuple(16 + w for w in reversed(where))
    expected = wide[tuple(slice(f, f + b) for f, b in zip(first, reversed(box), strict=True))]
    assert (got.view(np.float32).reshape(expected.shape) == expected).all()


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_tiles_are_swizzled(swizzle: int) -> None:
    array = aligned(np.arange(40 * 128, dtype=np.uint16).reshape(40, 128))
    columns = (swizzle or 128) // 2
    call = "load(base, &map, from, base + 60000);"
    got = loaded(tensor_map(array, (columns, 24), swizzle), array, (64, 8), columns * 48, MODES[0], loader(2), call)
    rows = unswizzled(got, columns * 2, swizzle).view(np.uint16)
    assert (rows == array[8:32, 64 : 64 + columns]).all()


def test_steps_leave_elements_out() -> None:
    array = aligned(np.arange(40 * 8, dtype=np.float32).reshape(40, 8))
    call = "load(base, &map, from, base + 60000);"
    got = loaded(tensor_map(array, (4, 9), steps=(1, 2)), array, (4, 3), 5 * 16, MODES[0], loader(2), call)
    assert (got.view(np.float32).reshape(5, 4) == array[3:12:2, 4:8]).all()
