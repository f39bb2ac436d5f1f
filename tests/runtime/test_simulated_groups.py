"""Instructions of warpgroups, clusters and the copy engine against formulas in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autosched.codegen.c.source import PixelBox, TensorMap
from autosched.errors import UsageError
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import Mode
from autosched.runtime.simulator.maps import encoded
from tests.runtime.tensor_maps import tensor_map
from tests.runtime.test_simulated_instructions import (
    KINDS,
    MODES,
    SHARED,
    TILE,
    Array,
    aligned,
    helper,
    loaded,
    numbers,
    packed,
    run,
)

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")
SPAN = {0: 16, 32: 32, 64: 64, 128: 128}
SWIZZLE_WORD = {0: 0, 128: 1, 64: 2, 32: 3}

# Products of warpgroups


def places(rows: int, k: int, nbytes: int, swizzle: int, mn_major: bool) -> tuple[Array, int, int]:
    """(byte of each element, leading and stride byte offset) of a dense operand: PTX ISA, "Shared Memory Matrix Layout"."""
    span = SPAN[swizzle]
    mn, kk = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
    if mn_major:
        across = span // nbytes
        groups_mn, groups_k = -(-rows // across), -(-k // 8)
        if swizzle:
            leading, stride = 8 * span * groups_k, 8 * span
            at = mn % across * nbytes + mn // across * leading + kk % 8 * span + kk // 8 * stride
        else:
            leading, stride = 128 * groups_mn, 128
            at = mn % 8 * nbytes + mn // 8 * stride + kk % 8 * 16 + kk // 8 * leading
    elif swizzle:
        leading, stride = 16, 8 * span
        at = mn % 8 * span + mn // 8 * stride + kk * nbytes
    else:
        stride = 128
        leading = 128 * -(-rows // 8)
        at = mn % 8 * 16 + mn // 8 * stride + kk * nbytes // 16 * leading + kk * nbytes % 16
    turn = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    return at ^ ((at >> 7 & turn) << 4), leading, stride


def laid_out(bits: Array, swizzle: int, mn_major: bool, start: int) -> tuple[Array, int]:
    """(bytes of shared memory with the operand, its descriptor)"""
    nbytes = bits.itemsize
    at, leading, stride = places(*bits.shape, nbytes, swizzle, mn_major)
    memory = np.zeros(32768, np.uint8)
    for byte in range(nbytes):
        memory[at + byte] = bits.view(np.uint8).reshape(*bits.shape, nbytes)[..., byte]
    said = start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLE_WORD[swizzle] << 62
    return memory, said


CASES = [
    *(("bf16", "f32", 64, swizzle, a, b) for swizzle in SPAN for a in (False, True) for b in (False, True)),
    *((kind, "f32", 16, 128, False, False) for kind in ("f16", "tf32", "e4m3", "e5m2")),
    ("s8", "s32", 32, 128, False, False), ("u8", "s32", 8, 32, False, False), ("f16", "f16", 24, 64, False, True),
    ("bf16", "f32", 256, 128, False, True),
]  # fmt: skip


def product(kind: str, result: str, n: int, from_registers: bool, transposed: tuple[bool, bool]) -> str:
    """Helpers: d = a b, or d += a b."""
    count = n // (4 if result == "f16" else 2)
    letter, c_type = ("f", "float") if result == "f32" else ("r", "unsigned")
    d = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    k = KINDS[kind][1]
    words = [count + i for i in range(6)]
    left = f"{{%{words[0]}, %{words[1]}, %{words[2]}, %{words[3]}}}" if from_registers else f"%{words[0]}"
    b, p = (words[4], words[5]) if from_registers else (words[1], words[2])
    signs = "" if result == "s32" else ", 1, 1"
    if KINDS[kind][0] == 16:
        signs += f", {int(transposed[1])}" if from_registers else f", {int(transposed[0])}, {int(transposed[1])}"
    a = ", ".join(f'"r"(a[{i}])' for i in range(4)) if from_registers else '"l"(a)'
    a_type = "const unsigned* a" if from_registers else "unsigned long long a"
    ptx = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{p}, 0; wgmma.mma_async.sync.aligned.m64n{n}k{k}.{result}.{kind}.{kind} "
        f"{{{d}}}, {left}, %{b}, p{signs}; }}"
    )
    return (
        TILE.replace("void wait()", "void wait_for_stores()").replace("void commit()", "void commit_stores()")
        + helper(
            f"multiply({c_type}* d, {a_type}, unsigned long long b, int add)", ptx, f': {outs} : {a}, "l"(b), "r"(add)'
        )
        + helper("before()", "wgmma.fence.sync.aligned;", '::: "memory"')
        + helper("commit()", "wgmma.commit_group.sync.aligned;", '::: "memory"')
        + helper("wait()", "wgmma.wait_group.sync.aligned 0;", '::: "memory"')
    )


def multiplied(
    kind: str,
    result: str,
    n: int,
    memory: dict[str, Array],
    text: str,
    left: str,
    right: int,
    mode: Mode,
    meanwhile: str = "",
) -> Array:
    """The 64 x n results of twice the product; `meanwhile` is done while it is under way."""
    count = n // (4 if result == "f16" else 2)
    c_type = "float" if result == "f32" else "unsigned"
    out = aligned(np.zeros((128, count), {"f32": np.float32, "f16": np.uint32, "s32": np.int32}[result]))
    body = f"""{SHARED}
  for (int i = threadIdx.x; i < 65536; i += 128) s[i] = S[i];
  fence();
  __syncthreads();
  {c_type} d[{count}];
  for (int i = 0; i < {count}; ++i) d[i] = 7;
  unsigned own[4];
  for (int i = 0; i < 4; ++i) own[i] = A[threadIdx.x % 128 * 4 % {memory["A"].size} + i];
  before();
  multiply(d, {left}, {right}ull, 0);
  multiply(d, {left}, {right}ull, 1);
  commit();
  {meanwhile}
  wait();
  for (int i = 0; i < {count}; ++i) (({c_type}*)c)[threadIdx.x * {count} + i] = d[i];"""
    parameters = "const unsigned char* S, const unsigned* A, unsigned* c"
    ran = run(body, text, {**memory, "c": out}, parameters, "S A c", threads=128, mode=mode)
    assert not ran.mistakes, ran.mistakes
    got = np.zeros((64, n))
    flat = out.view(np.float16) if result == "f16" else out
    thread = np.arange(128)
    for i in range(n // 2):
        row, column = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (thread % 4) + i % 2
        got[row, column] = flat[:, i]
    return got


@pytest.mark.parametrize(("kind", "result", "n", "swizzle", "a_major", "b_major"), CASES)
def test_wgmma(kind: str, result: str, n: int, swizzle: int, a_major: bool, b_major: bool) -> None:
    k = KINDS[kind][1]
    a, x = numbers(kind, (64, k), 0)
    b, y = numbers(kind, (n, k), 1)
    memory_a, left = laid_out(a, swizzle, a_major, 0)
    memory_b, right = laid_out(b, swizzle, b_major, 32768)
    memory = {"S": aligned(np.concatenate([memory_a, memory_b])), "A": aligned(np.zeros(4, np.uint32))}
    text = product(kind, result, n, False, (a_major, b_major))
    got = multiplied(kind, result, n, memory, text, f"{left}ull", right, MODES[n % 3])
    bound = {"f32": 1e-5, "f16": 1e-2, "s32": 0}[result] * (np.abs(x) @ np.abs(y).T + 1)
    assert (np.abs(got - 2 * (x @ y.T)) <= bound).all()


def in_registers(kind: str, mode: Mode, meanwhile: str = "") -> bool:
    """Whether the product with A in registers is right."""
    k, n = KINDS[kind][1], 16
    a, x = numbers(kind, (64, k), 0)
    b, y = numbers(kind, (n, k), 1)
    words = packed(a).reshape(64, 8)
    thread, lane = np.arange(128), np.arange(128) % 32
    rows = [thread // 32 * 16 + lane // 4 + 8 * (r % 2) for r in range(4)]
    held = np.stack([words[rows[r], lane % 4 + 4 * (r // 2)] for r in range(4)], axis=1)
    memory_b, right = laid_out(b, 128, False, 32768)
    memory = {"S": aligned(np.concatenate([np.zeros(32768, np.uint8), memory_b])), "A": aligned(held)}
    result = "s32" if kind == "s8" else "f32"
    text = product(kind, result, n, True, (False, False))
    got = multiplied(kind, result, n, memory, text, "own", right, mode, meanwhile)
    return bool((np.abs(got - 2 * (x @ y.T)) <= 1e-5 * (np.abs(x) @ np.abs(y).T + 1)).all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["bf16", "tf32", "s8"])
def test_wgmma_with_a_in_registers(kind: str, mode: Mode) -> None:
    assert in_registers(kind, mode)


def test_registers_of_operands_are_read_until_the_wait() -> None:
    change = "for (int i = 0; i < 4; ++i) own[i] = 0;"
    assert not in_registers("bf16", MODES[0], change)
    assert in_registers("bf16", Mode(late=False), change)


# Images


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("stride", "pad", "kernel", "tap"), [(1, 1, 3, (0, 0)), (1, 1, 3, (2, 1)), (2, 1, 3, (1, 2)), (2, 0, 1, (0, 0))]
)
def test_images_to_columns(stride: int, pad: int, kernel: int, tap: tuple[int, int], mode: Mode) -> None:
    """Pixels go on over rows and images; what is outside is zero."""
    n, h, w, c = 2, 5, 6, 16
    array = aligned(np.arange(1, n * h * w * c + 1, dtype=np.float32).reshape(n, h, w, c))
    out_h, out_w = ((e + 2 * pad - kernel) // stride + 1 for e in (h, w))
    first, pixels, channels = out_w * out_h - 4, 9, 8
    corners = PixelBox((-pad, -pad), (pad - kernel + 1, pad - kernel + 1), channels, pixels)
    made = tensor_map(array, corners, steps=(1, stride, stride, 1))
    p, q, image_n = first // out_w % out_h, first % out_w, first // (out_w * out_h)
    inner = ", ".join(f"%{d + 2}" for d in range(4))
    text = TILE + helper(
        "load(unsigned to, const TensorMap* map, const int* from, unsigned short w, unsigned short h, unsigned bar)",
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        f"[%0], [%1, {{{inner}}}], [%6], {{%7, %8}};",
        ':: "r"(to), "l"((unsigned long long)map), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(bar), '
        '"h"(w), "h"(h) : "memory"',
    )
    where = (8, q * stride - pad, p * stride - pad, image_n)
    call = f"load(base, &map, from, {tap[1]}, {tap[0]}, base + 60000);"
    got = loaded(made, array, where, pixels * channels * 4, mode, text, call).view(np.float32).reshape(pixels, channels)
    padded = np.pad(array, ((0, 1), (pad, pad + kernel), (pad, pad + kernel), (0, 0)))
    for number in range(pixels):
        at = first + number
        b, y, x = at // (out_w * out_h), at // out_w % out_h * stride + tap[0], at % out_w * stride + tap[1]
        assert (got[number] == padded[b, y, x, 8:16]).all(), number


# Tiles back, parts without a map, several blocks

STORE = TILE + helper(
    "store(const TensorMap* map, int x, int y, unsigned from)",
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];",
    ':: "l"((unsigned long long)map), "r"(x), "r"(y), "r"(from) : "memory"',
)
ADD = STORE.replace(
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group",
    "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group",
)


def stored(text: str, made: TensorMap, out: Array, mode: Mode, after: str = "fence();") -> Any:
    body = f"""{SHARED}
  for (int i = threadIdx.x; i < 128; i += 32) ((float*)s)[i] = i;
  {after}
  __syncthreads();
  if (threadIdx.x == 0) {{ store(&map, 8, 2, base); commit(); wait(); }}"""
    names = {"m": made, "C" if text is ADD else "c": out}
    return run(body, text, names, "const __grid_constant__ TensorMap map", "m", mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_tiles_are_written_where_the_tensor_is(mode: Mode) -> None:
    out = aligned(np.full((5, 16), -1, np.float32))
    assert not stored(STORE, tensor_map(out, (16, 8), buffer="c"), out, mode).mistakes
    expected = np.full((5, 16), -1, np.float32)
    expected[2:, 8:] = np.arange(128).reshape(8, 16)[:3, :8]
    assert (out == expected).all()


def test_tiles_are_added() -> None:
    out = aligned(np.full((5, 16), 100, np.float32))
    stored(ADD, tensor_map(out, (16, 8), buffer="C"), out, Mode())
    assert (out[2:, 8:] == 100 + np.arange(128).reshape(8, 16)[:3, :8]).all()
    assert (out[:2] == 100).all()


def test_the_engine_sees_what_is_behind_a_fence() -> None:
    out = aligned(np.zeros((5, 16), np.float32))
    found = stored(STORE, tensor_map(out, (16, 8), buffer="c"), out, MODES[0], after="").mistakes
    assert [mistake.kind for mistake in found] == ["unfenced"]


@pytest.mark.parametrize("mode", MODES)
def test_bytes_without_a_map(mode: Mode) -> None:
    text = TILE + helper(
        "load(unsigned to, const void* from, unsigned bytes, unsigned bar)",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];",
        ':: "r"(to), "l"((unsigned long long)from), "r"(bytes), "r"(bar) : "memory"',
    )
    array = aligned(np.arange(64, dtype=np.float32))
    out = aligned(np.zeros(256, np.uint8))
    body = f"""{SHARED}
  if (threadIdx.x == 0) init(base + 60000, 1);
  __syncthreads();
  if (threadIdx.x == 0) {{ expect(base + 60000, 256); load(base, A, 256, base + 60000); }}
  while (!done(base + 60000, 0)) {{ }}
  for (int i = threadIdx.x; i < 256; i += 32) c[i] = s[i];"""
    parameters = "const float* A, unsigned char* c"
    assert not run(body, text, {"A": array, "c": out}, parameters, "A c", mode=mode).mistakes
    assert (out.view(np.float32) == array).all()


CLUSTER = """
static __device__ __forceinline__ unsigned rank()
{ unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
static __device__ __forceinline__ unsigned map_to(unsigned at, unsigned cta)
{ unsigned r; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(cta)); return r; }
static __device__ __forceinline__ void arrive_at(unsigned bar)
{ asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(bar) : "memory"); }
static __device__ __forceinline__ void all_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
static __device__ __forceinline__ void all_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_tile_for_all_blocks_of_a_cluster(mode: Mode) -> None:
    """Each block loads a half for both, and waits for all bytes; each tells the other when it has read."""
    array = aligned(np.arange(32 * 16, dtype=np.float32).reshape(32, 16))
    out = aligned(np.zeros((2, 32, 16), np.float32))
    text = (
        TILE
        + CLUSTER
        + helper(
            "load(unsigned to, const TensorMap* map, int x, int y, unsigned bar, unsigned short mask)",
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%2, %3}], [%4], %5;",
            ':: "r"(to), "l"((unsigned long long)map), "r"(x), "r"(y), "r"(bar), "h"(mask) : "memory"',
        )
    )
    body = f"""{SHARED}
  const unsigned full = base + 60000, empty = base + 60008;
  if (threadIdx.x == 0) {{ init(full, 1); init(empty, 2); }}
  all_arrive();
  all_wait();
  if (threadIdx.x == 0) {{ expect(full, 2048); load(base + rank() * 1024, &map, 0, rank() * 16, full, 3); }}
  while (!done(full, 0)) {{ }}
  for (int i = threadIdx.x; i < 512; i += 32) c[blockIdx.x * 512 + i] = ((float*)s)[i];
  __syncwarp();
  if (threadIdx.x < 2) arrive_at(map_to(empty, threadIdx.x));
  while (!done(empty, 0)) {{ }}
  all_arrive();
  all_wait();"""
    parameters = "const __grid_constant__ TensorMap map, float* c"
    memory = {"m": tensor_map(array, (16, 16)), "A": array, "c": out}
    ran = run(body, text, memory, parameters, "m c", mode=mode, cluster=2)
    assert not ran.mistakes, ran.mistakes
    assert (out == array).all()


# Barriers


@pytest.mark.parametrize("mode", MODES)
def test_named_barriers_are_for_some_threads(mode: Mode) -> None:
    """Two pairs of warps exchange, and a warp tells the others without waiting."""
    text = helper("meet(int id, int n)", "bar.sync %0, %1;", ':: "r"(id), "r"(n) : "memory"')
    text += helper("tell(int id, int n)", "bar.arrive %0, %1;", ':: "r"(id), "r"(n) : "memory"')
    body = """__shared__ float s[128];
  const int t = threadIdx.x, pair = t / 64;
  s[t] = A[t];
  meet(1 + pair, 64);
  const float other = s[t ^ 32];
  if (t < 32) s[t] = other + A[t];
  if (t < 32) tell(3, 64);
  else if (t < 64) meet(3, 64);
  c[t] = t >= 32 && t < 64 ? s[t - 32] : other;"""
    a, c = aligned(np.arange(128, dtype=np.float32)), aligned(np.zeros(128, np.float32))
    ran = run(body, text, {"A": a, "c": c}, "const float* A, float* c", "A c", threads=128, mode=mode)
    expected = np.arange(128) ^ 32
    expected[32:64] = np.arange(32) + (np.arange(32) ^ 32)
    assert (c == expected).all()
    # the second half of the first pair reads what the first half overwrites
    assert [m.kind for m in ran.mistakes] == (["race"] if mode.checked else [])


@pytest.mark.parametrize("mode", MODES)
def test_copies_arrive_at_an_mbarrier(mode: Mode) -> None:
    text = TILE + helper(
        "start(unsigned to, const void* from)", "cp.async.cg.shared.global [%0], [%1], 16;",
        ':: "r"(to), "l"((unsigned long long)from) : "memory"',
    ) + helper("join(unsigned bar)", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];", ':: "r"(bar) : "memory"')  # fmt: skip
    body = f"""{SHARED}
  if (threadIdx.x == 0) init(base + 60000, 32);
  __syncthreads();
  start(base + threadIdx.x * 16, A + threadIdx.x * 4);
  join(base + 60000);
  while (!done(base + 60000, 0)) {{ }}
  for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = ((float*)s)[127 - threadIdx.x * 4 - i];"""
    a, c = aligned(np.arange(128, dtype=np.float32)), aligned(np.zeros(128, np.float32))
    assert not run(body, text, {"A": a, "c": c}, "const float* A, float* c", "A c", mode=mode).mistakes
    assert (c == a[::-1]).all()


def test_one_lane_is_elected() -> None:
    text = """static __device__ __forceinline__ unsigned chosen()
{ unsigned r; asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p; }" : "=r"(r)); return r; }
"""
    c = aligned(np.zeros(64, np.uint32))
    assert not run("c[threadIdx.x] = chosen();", text, {"c": c}, "unsigned* c", "c", threads=64).mistakes
    assert np.flatnonzero(c).tolist() == [0, 32]


@pytest.mark.parametrize(("registers", "whole"), [(40, True), (232, True), (41, False), (16, False)])
def test_registers_are_asked_for_in_eights(registers: int, whole: bool) -> None:
    text = helper("take()", f"setmaxnreg.inc.sync.aligned.u32 {registers};", "")
    assert run("take();", text, {"c": aligned(np.zeros(1))}, "double* c", "c").is_whole == whole


@pytest.mark.parametrize(("given", "taken", "found"), [(40, 232, []), (40, 240, ["deadlock"]), (24, 240, [])])
def test_registers_are_there_when_others_gave_them_back(given: int, taken: int, found: list[str]) -> None:
    """384 threads begin with 168 each, and a multiprocessor has 65536."""
    text = helper("give()", f"setmaxnreg.dec.sync.aligned.u32 {given};", "")
    text += helper("take()", f"setmaxnreg.inc.sync.aligned.u32 {taken};", "")
    body = "if (threadIdx.x < 256) take();\nelse give();"
    ran = run(body, text, {"c": aligned(np.zeros(1))}, "double* c", "c", threads=384)
    assert [mistake.kind for mistake in ran.mistakes] == found


# Numbers

PACKS: dict[str, tuple[str, str]] = {
    "cvt.rn.bf16x2.f32": ("bfloat16", "unsigned"), "cvt.rn.f16x2.f32": ("float16", "unsigned"),
    "cvt.rn.satfinite.e4m3x2.f32": ("float8_e4m3fn", "unsigned short"),
}  # fmt: skip


@pytest.mark.parametrize("ptx", PACKS)
def test_pairs_of_small_floats(ptx: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    name, c_type = PACKS[ptx]
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    letter = "r" if c_type == "unsigned" else "h"
    text = f"""static __device__ __forceinline__ {c_type} pack(float high, float low)
{{ {c_type} r; asm("{ptx} %0, %1, %2;" : "={letter}"(r) : "f"(high), "f"(low)); return r; }}
"""
    rng = np.random.default_rng(0)
    numbers = (rng.standard_normal(512) * np.exp2(rng.integers(-12, 9, 512))).astype(np.float32)
    numbers[:4] = 0.0, -0.0, 2.0**-9, 3 * 2.0**-10
    if dtype.itemsize == 1:
        numbers = np.clip(numbers, -448, 448)
    c = aligned(np.zeros(512, dtype))
    body = f"(({c_type}*)c)[threadIdx.x] = pack(A[2 * threadIdx.x + 1], A[2 * threadIdx.x]);"
    memory = {"A": aligned(numbers), "c": c.view(np.uint8)}
    run(body, text, memory, "const float* A, unsigned char* c", "A c", threads=256, mode=Mode())
    assert (c.view(np.uint8) == numbers.astype(dtype).view(np.uint8)).all()


def test_tf32_is_rounded() -> None:
    text = """static __device__ __forceinline__ unsigned rounded(float x)
{ unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
"""
    numbers = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    c = aligned(np.zeros(64, np.uint32))
    run(
        "c[threadIdx.x] = rounded(A[threadIdx.x]);",
        text,
        {"A": aligned(numbers), "c": c},
        "const float* A, unsigned* c",
        "A c",
        threads=64,
    )
    assert (c & 0x1FFF == 0).all()
    assert (np.abs(c.view(np.float32) - numbers) <= np.abs(numbers) * 2.0**-11).all()


# Maps


@pytest.mark.parametrize(("shape", "box", "swizzle", "message"), [
    ((8, 8), (8, 300), 0, "boxes have 1 to 256 elements"),
    ((8, 8), (2, 8), 0, "a row of a box must have a multiple of 16 bytes, got 8"),
    ((8, 64), (64, 8), 128, "at most the 128 bytes of the swizzle, got 256"),
    ((8, 7), (4, 8), 0, "strides must be multiples of 16 bytes"),
    ((8, 8), (4, 8), 48, "a swizzle has 0, 32, 64 or 128 bytes"),
    ((1,) * 6, (4,), 0, "a tensor has 1 to 5 dimensions"),
])  # fmt: skip
def test_maps_that_no_driver_makes(shape: tuple[int, ...], box: tuple[int, ...], swizzle: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encoded(tensor_map(np.zeros(shape, np.float32), box, swizzle), 256)


@pytest.mark.parametrize(("columns", "message"), [
    (PixelBox((-200, 0), (0, 0), 8, 8), "corners are 2 numbers each from -128 to 127"),
    (PixelBox((0, 0), (0, 0), 3, 8), "a multiple of 16 bytes, got 12"),
    (PixelBox((0, 0), (0, 0), 8, 2000), "1 to 1024 pixels"),
])  # fmt: skip
def test_images_that_no_driver_maps(columns: PixelBox, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encoded(tensor_map(np.zeros((1, 4, 4, 8), np.float32), columns), 256)


def test_a_tensor_that_begins_in_between() -> None:
    with pytest.raises(UsageError, match="no tensor map map can be made of A: it must begin at a multiple of 16 bytes"):
        encoded(tensor_map(np.zeros((8, 8), np.float32), (8, 8)), 264)
