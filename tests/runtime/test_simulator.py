"""CUDA C on the processor: what threads do together, and that each kind of mistake is found."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autosched.codegen.c.dialects import CUDA
from autosched.codegen.c.source import Launch
from autosched.errors import UsageError
from autosched.runtime.simulator.assembly import translate_assembly
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import EXTREMES, Execution, Mode, build, execute
from autosched.runtime.simulator.translate import granule, translate

Array = npt.NDArray[Any]
CHECKED = Mode(checked=True, counted=True)


def kernel(body: str, parameters: str = "const float* __restrict__ A, float* __restrict__ C") -> str:
    return f'extern "C" __global__ void __launch_bounds__(64) k({parameters})\n{{\n{body}\n}}\n'


def run(
    text: str, arrays: Mapping[str, Array], threads: int = 64, blocks: int = 1, mode: Mode = CHECKED, shared: int = 4096
) -> Execution:
    """Of the arrays, those in lower case have no content that a kernel may read."""
    if find_compiler() is None:
        pytest.skip("g++ is not installed (on Debian: g++)")
    launch = Launch("k", (blocks, 1, 1), (threads, 1, 1), tuple(arrays), shared)
    known = frozenset(name for name in arrays if name.isupper())
    return execute(build(text, checked=True), [launch], arrays, known, mode)


def kinds(execution: Execution) -> list[str]:
    return [mistake.kind for mistake in execution.mistakes]


def ramp(n: int = 64) -> Array:
    return np.arange(n, dtype=np.float32)


def zeros(n: int = 64) -> Array:
    return np.zeros(n, np.float32)


# What threads do together

REVERSED = """
  __shared__ __align__(16) float s[64];
  const int t = threadIdx.x;
  s[t] = A[t];
  __syncthreads();
  C[t] = s[63 - t];
"""


@pytest.mark.parametrize("mode", [*EXTREMES, CHECKED])
def test_a_barrier_is_for_all(mode: Mode) -> None:
    a, c = ramp(), zeros()
    assert not run(kernel(REVERSED), {"A": a, "c": c}, mode=mode).mistakes
    assert c.tolist() == a[::-1].tolist()


def test_threads_that_have_ended_are_not_waited_for() -> None:
    c = zeros()
    body = "if (threadIdx.x >= 32) return;\n__syncthreads();\nC[threadIdx.x] = A[threadIdx.x];"
    assert not run(kernel(body), {"A": ramp(), "c": c}).mistakes
    assert c[:32].tolist() == ramp()[:32].tolist()


def expected_shuffle(kind: str, lane: int, by: int, width: int) -> int:
    """The lane that is read: CUDA C++ Programming Guide, "Warp Shuffle Functions"."""
    first = lane - lane % width
    if kind == "":
        return first + by % width
    other = {"_up": lane - by, "_down": lane + by, "_xor": lane ^ by}[kind]
    return other if other >= first and (kind == "_up" or other < first + width) else lane


@pytest.mark.parametrize("kind", ["", "_up", "_down", "_xor"])
def test_shuffles(kind: str) -> None:
    for by, width in ((0, 32), (1, 32), (7, 32), (16, 32), (31, 32), (3, 8), (5, 16), (1, 2)):
        c = zeros()
        body = f"C[threadIdx.x] = __shfl{kind}_sync(0xffffffff, A[threadIdx.x], {by}, {width});"
        assert not run(kernel(body), {"A": ramp(), "c": c}).mistakes
        assert c.tolist() == [n // 32 * 32 + expected_shuffle(kind, n % 32, by, width) for n in range(64)]


def test_lanes_that_are_not_there_have_nothing() -> None:
    """A short last warp: what comes from beyond it is no number."""
    c = zeros(40)
    body = "C[threadIdx.x] = __shfl_down_sync(0xffffffff, A[threadIdx.x], 4);"
    run(kernel(body), {"A": ramp(40), "c": c}, threads=40)
    assert c[:28].tolist() == ramp(32)[4:].tolist()
    assert c[32:36].tolist() == [36, 37, 38, 39]
    assert np.isnan(c[36:]).all()


@pytest.mark.parametrize("dtype", ["double", "long long"])
def test_shuffles_of_8_bytes(dtype: str) -> None:
    numpy = {"double": np.float64, "long long": np.int64}[dtype]
    a, c = np.arange(32).astype(numpy) << 40 if dtype != "double" else np.arange(32) / 3, np.zeros(32, numpy)
    body = "C[threadIdx.x] = __shfl_xor_sync(0xffffffff, A[threadIdx.x], 1);"
    assert not run(kernel(body, f"const {dtype}* A, {dtype}* C"), {"A": a, "c": c}, threads=32).mistakes
    assert (c == a[np.arange(32) ^ 1]).all()


def test_updates_of_several_blocks_meet() -> None:
    c = zeros(1)
    assert not run(kernel("atomicAdd(&C[0], A[threadIdx.x]);"), {"A": ramp(), "C": c}, blocks=3).mistakes
    assert c[0] == 3 * sum(range(64))


COPIES = """
  __shared__ __align__(16) float s[64];
  const int t = threadIdx.x;
  start_copy_float(&s[t], &A[t], t % 3 > 0);
  commit_copies();
  wait_for_all_copies_but_0();
  __syncthreads();
  C[t] = s[63 - t];
"""
HELPERS = """
static __device__ __forceinline__ void start_copy_float(float* to, const float* from, bool inside)
{
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 4 : 0) : "memory");
}
static __device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
static __device__ __forceinline__ void wait_for_all_copies_but_0() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
"""


@pytest.mark.parametrize("mode", [*EXTREMES, CHECKED])
def test_copies_arrive_and_are_zero_elsewhere(mode: Mode) -> None:
    c = zeros()
    assert not run(HELPERS + kernel(COPIES), {"A": ramp(), "c": c}, mode=mode).mistakes
    assert c.tolist() == [n if n % 3 else 0 for n in range(63, -1, -1)]


# What is found

FAULTS: dict[str, tuple[str, str]] = {
    "race: a barrier is missing": ("race", kernel(REVERSED.replace("__syncthreads();", ""))),
    "race: a barrier of the warp is not for the block": ("race", kernel(REVERSED.replace("threads", "warp"))),
    "race: written again too early": ("race", kernel(f"{REVERSED}  s[t] = 0.0f;\n  C[t] += s[t];")),
    "race: two threads write the same": ("race", kernel("C[threadIdx.x / 2] = A[threadIdx.x];")),
    "race: a plain update": ("race", kernel("C[0] = A[0];\n__syncthreads();\nC[0] += A[threadIdx.x];")),
    "unwritten: a place that nobody fills": ("unwritten", kernel(REVERSED.replace("s[t] =", "if (t != 5) s[t] ="))),
    "unwritten: a result that is read": ("unwritten", kernel("C[threadIdx.x] += A[threadIdx.x];")),
    "under way: nobody waits": (
        "under way", HELPERS + kernel(COPIES.replace("wait_for_all_copies_but_0();", "")),
    ),
    "under way: no group was made": ("under way", HELPERS + kernel(COPIES.replace("commit_copies();", ""))),
    "race: others do not know that a copy has arrived": (
        "race", HELPERS + kernel(COPIES.replace("__syncthreads();", "")),
    ),
    "misaligned": ("misaligned", kernel("const float4 v = *(const float4*)(&A[1]);\nC[threadIdx.x] = v.x;")),
    "outside: beyond an input": ("outside", kernel("C[threadIdx.x] = A[threadIdx.x + 1];")),
    "outside: before a result": ("outside", kernel("C[(int)threadIdx.x - 1] = A[threadIdx.x];")),
    "outside: beyond an array of the thread": (
        "outside", kernel("float a[4];\nfor (int i = 0; i <= 4; ++i) a[i] = A[i];\nC[threadIdx.x] = a[threadIdx.x % 4];"),
    ),
    "outside: in another array of shared memory": (
        "outside", kernel("__shared__ float s[32];\n__shared__ float r[64];\ns[threadIdx.x] = r[0] = A[0];"),
    ),
    "outside: beyond shared memory": ("outside", kernel(REVERSED.replace("s[63 - t]", "s[2000 + t]"))),
    "deadlock: one lane waits for its warp, which waits for it": (
        "deadlock", kernel("if (threadIdx.x == 0) __shfl_xor_sync(0xffffffff, A[0], 1);\n__syncthreads();"),
    ),
    "diverged: lanes at different collectives": (
        "diverged", kernel("C[threadIdx.x] = threadIdx.x % 2 ? __shfl_xor_sync(0xffffffff, A[0], 1) : "
                           "__shfl_down_sync(0xffffffff, A[0], 1);"),
    ),
    "diverged: lanes at different barriers": (
        "diverged", kernel("if (threadIdx.x % 2)\n__syncthreads();\nelse\n__syncthreads();"),
    ),
    "diverged: a lane has left": (
        "diverged", kernel("if (threadIdx.x == 3) return;\nC[threadIdx.x] = __shfl_xor_sync(0x1, A[0], 1);"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_mistakes_are_found(name: str) -> None:
    kind, text = FAULTS[name]
    found = run(text, {"A": ramp(), "c": zeros()}).mistakes
    assert kind in [mistake.kind for mistake in found]
    assert all(mistake.first.startswith("thread (") for mistake in found)


def test_mistakes_name_the_line() -> None:
    """Also behind inline PTX of several lines, and of what a helper does."""
    text = HELPERS + kernel(COPIES.replace("wait_for_all_copies_but_0();", ""))
    mistake, *_ = (m for m in run(text, {"A": ramp(), "c": zeros()}).mistakes if m.kind == "under way")
    assert mistake.line is not None
    assert text.splitlines()[mistake.line - 1].strip() == mistake.code == "C[t] = s[63 - t];"
    assert str(mistake).endswith(f", in line {mistake.line}: C[t] = s[63 - t];")
    late = COPIES.replace("__syncthreads();", "").replace(
        "C[t] = s[63 - t];", "start_copy_float(&s[63 - t], &A[t], true);"
    )
    mistake, *_ = run(HELPERS + kernel(late), {"A": ramp(), "c": zeros()}).mistakes
    assert mistake.code.startswith("start_copy_float(&s[")


def test_tensors_may_have_the_names_of_the_header() -> None:
    a, c = ramp(), zeros()
    text = kernel("SITE[threadIdx.x] = HERE[threadIdx.x];", "const float* HERE, float* SITE")
    assert not run(text, {"HERE": a, "site": c}).mistakes
    assert c.tolist() == a.tolist()


def test_blocks_must_not_meet_in_memory() -> None:
    body = "C[threadIdx.x] = A[threadIdx.x];"
    assert kinds(run(kernel(body), {"A": ramp(), "c": zeros()}, blocks=2)) == ["race"]


def test_launches_come_one_after_the_other() -> None:
    text = kernel("C[threadIdx.x] = A[threadIdx.x];")
    launch = Launch("k", (1, 1, 1), (64, 1, 1), ("a", "c"), 0)
    if find_compiler() is None:
        pytest.skip("g++ is not installed (on Debian: g++)")
    memory = {"a": ramp(), "c": zeros(), "d": zeros()}
    kernels = build(text, checked=True)
    again = Launch("k", (1, 1, 1), (64, 1, 1), ("c", "d"), 0)
    assert not execute(kernels, [launch, again], memory, frozenset("a"), CHECKED).mistakes
    assert memory["d"].tolist() == ramp().tolist()
    assert kinds(execute(kernels, [again, launch], memory, frozenset("a"), CHECKED)) == ["unwritten"]


def test_launches_that_no_gpu_takes() -> None:
    clusters = kernel(REVERSED).replace(" k(", " __cluster_dims__(2, 1, 1) k(")
    with pytest.raises(UsageError, match="clusters of 2 blocks, but 3 of them"):
        run(clusters, {"A": ramp(), "c": zeros()}, blocks=3)
    with pytest.raises(UsageError, match="2048 threads"):
        run(kernel(REVERSED), {"A": ramp(), "c": zeros()}, threads=2048)


BROKEN: dict[str, tuple[str, str]] = {
    "outside": ("C[(long long)threadIdx.x - (1ll << 44)] = A[threadIdx.x];", "touches memory of nobody"),
    "endless": ("while (*(volatile const float*)A < 1.0f) { }", "has not ended after 1 seconds"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_the_process_lives_on(kind: str) -> None:
    """Also where accesses are not examined."""
    body, text = BROKEN[kind]
    for _ in range(2):
        ran = run(kernel(body), {"A": ramp(), "c": zeros()}, mode=Mode(seconds=1))
        assert not ran.is_whole
        assert [(m.kind, text in m.first, m.code in ("", body)) for m in ran.mistakes] == [(kind, True, True)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere x / 0 is 0")
def test_divisions_by_zero_are_broken_off() -> None:
    ran = run(kernel("C[threadIdx.x] = 5 / (int)A[threadIdx.x];"), {"A": ramp(), "c": zeros()}, mode=Mode())
    assert kinds(ran) == ["trap"]


# Numbers


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 1), (2, 2), (3, 1), (4, 4), (32, 32), (33, 1), (0, 1)])
def test_wavefronts(stride: int, wavefronts: int) -> None:
    body = f"__shared__ float s[2048];\ns[threadIdx.x * {stride}] = A[threadIdx.x];\nC[threadIdx.x] = A[0];"
    numbers = run(kernel(body), {"A": ramp(), "c": zeros()}, threads=32, shared=8192).numbers
    assert numbers["wavefronts"] == wavefronts
    assert numbers["shared_requests"] == 1


def test_wavefronts_of_vectors() -> None:
    """A quarter of the warp at a time: neighbours take four, as little as 512 bytes can; every second vector twice."""
    for stride, wavefronts in ((4, 4), (8, 8), (20, 4)):
        body = f"__shared__ __align__(16) float s[1024];\n*(float4*)(&s[threadIdx.x * {stride}]) = make_float4(1, 2, 3, 4);"
        assert run(kernel(body), {"A": ramp(), "c": zeros()}, threads=32).numbers["wavefronts"] == wavefronts


@pytest.mark.parametrize(("index", "sectors"), [("t", 4), ("t * 2", 8), ("t * 8", 32), ("0", 1), ("t + 1", 5)])
def test_sectors(index: str, sectors: int) -> None:
    a = np.zeros(512, np.float32)
    a = a[-a.ctypes.data // 4 % 8 :]
    body = f"const int t = threadIdx.x;\n__shared__ float s[32];\ns[t] = A[{index}];"
    assert run(kernel(body), {"A": a, "c": zeros()}, threads=32).numbers["sectors"] == sectors


# Translation


def test_all_ptx_of_the_dialect_is_known() -> None:
    facts = {"type": "float", "name": "f", "bytes": 4, "zero": "0", "cache": "ca", "pending": 0}
    texts = [*CUDA.conversions.values(), *CUDA.helpers.values(), *(x.format(**facts) for x in CUDA.copies.values())]
    assert sum("asm" in text for text in texts) >= 8
    assert not any("asm" in translate_assembly(text) for text in texts)


def test_shared_arrays_lie_one_behind_the_other() -> None:
    body = (
        "__shared__ __align__(16) signed char p[5];\n__shared__ __align__(16) float q[2][3];\n__shared__ double r[1];"
    )
    text = translate(kernel(body)).text
    assert "signed char (&p)[5] = *(signed char (*)[5])simulator::simulator_shared(0);" in text
    assert "float (&q)[2][3] = *(float (*)[2][3])simulator::simulator_shared(16);" in text
    assert "double (&r)[1] = *(double (*)[1])simulator::simulator_shared(40);" in text


def test_what_a_kernel_may_write() -> None:
    translated = translate(kernel("") + kernel("").replace(" k(", " other(").replace("const ", ""))
    assert {name: translated.written(name) for name in ("k", "other")} == {"k": (False, True), "other": (True, True)}


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("const float* A; bool inside", 4), ("unsigned char* A", 1), ("signed char s[3]", 1), ("unsigned short s[2][4]", 2),
     ("extern __shared__ unsigned char shared_memory[];", 4), ("(bool)(x) + (signed char)(y)", 4)],
)  # fmt: skip
def test_the_smallest_elements(text: str, nbytes: int) -> None:
    assert granule(text) == nbytes


def test_ptx_becomes_calls() -> None:
    text = 'asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(f(to, 1)), "l"(from), "r"(x ? 16 : 0));'
    assert (
        translate_assembly(f"a; {text} b;")
        == "a; { simulator::cp_async(simulator::given<unsigned>(f(to, 1)), simulator::given<unsigned long long>(from), "
        "16, simulator::given<unsigned>(x ? 16 : 0)); } b;"
    )


def test_ptx_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match=r"fma\.rn\.f32 cannot be executed .* add a row"):
        translate_assembly('asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));')
