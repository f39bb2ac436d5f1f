"""Products of warpgroups: types, widths, layouts of both operands, A in registers.

Where a descriptor's words mean something else than is thought, `others` has what they may mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from experiments.gpu.forms.form import BARRIERS, SHARED, Array, FormOutput, InstructionForm, helper
from experiments.gpu.forms.sums import added_up, sum_of
from experiments.gpu.forms.warps import BOUNDS, DTYPES, KINDS, RESULTS, numbers, packed

SPAN = {0: 16, 32: 32, 64: 64, 128: 128}
SWIZZLE_WORD = {0: 0, 128: 1, 64: 2, 32: 3}
HALF = 32768  # where B begins in shared memory
THREADS = np.arange(128)


@dataclass(frozen=True)
class LaidOut:
    """An operand in shared memory: its bytes, which are from `start` on of what the kernel has, and its descriptor's
    words for the leading and the stride byte offset."""

    memory: Array
    start: int
    leading: int
    stride: int
    swizzle: int

    @property
    def descriptor(self) -> str:
        """In C: the kernel's shared memory begins at `base`, which is not 0."""
        words = (self.leading >> 4) << 16 | (self.stride >> 4) << 32 | SWIZZLE_WORD[self.swizzle] << 62
        return f"({words}ull | (base + {self.start}) >> 4)"

    def read_as(self, meaning: str) -> LaidOut:
        """The same bytes with another descriptor."""
        if meaning == "exchanged":
            return replace(self, leading=self.stride, stride=self.leading)
        return replace(self, leading={"leading 0": 0, "leading 16": 16}[meaning])


MEANINGS = ("exchanged", "leading 0", "leading 16")


def places(rows: int, k: int, nbytes: int, swizzle: int, mn_major: bool) -> tuple[Array, int, int]:
    """(byte of each element, leading and stride byte offset) of a dense operand.

    PTX ISA, "Shared Memory Matrix Layout".
    """
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


def laid_out(bits: Array, swizzle: int, mn_major: bool, start: int) -> LaidOut:
    nbytes, (rows, k) = bits.itemsize, bits.shape
    at, leading, stride = places(rows, k, nbytes, swizzle, mn_major)
    memory = np.zeros(HALF, np.uint8)
    for byte in range(nbytes):
        memory[at + byte] = bits.view(np.uint8).reshape(*bits.shape, nbytes)[..., byte]
    return LaidOut(memory, start, leading, stride, swizzle)


@dataclass(frozen=True)
class Wgmma:
    """An instruction: m64 n and k of 32 bytes, and how its operands lie."""

    kind: str
    result: str
    n: int
    swizzle: int
    a_major: bool = False
    b_major: bool = False
    in_registers: bool = False

    @property
    def count(self) -> int:
        """Registers of the sums of a thread."""
        return self.n // (4 if self.result == "f16" else 2)

    @property
    def name(self) -> str:
        a = "registers" if self.in_registers else "m-major" if self.a_major else "k-major"
        b = "n-major" if self.b_major else "k-major"
        shape = f"m64n{self.n}k{KINDS[self.kind][1]}"
        return f"wgmma {shape} {self.result}.{self.kind} swizzle {self.swizzle}, A {a}, B {b}"


CASES = (
    *(Wgmma("bf16", "f32", 64, swizzle, a, b) for swizzle in SPAN for a in (False, True) for b in (False, True)),
    *(Wgmma(kind, "f32", 16, 128) for kind in ("f16", "tf32", "e4m3", "e5m2")),
    *(Wgmma(kind, "f32", 64, swizzle) for kind in ("tf32", "e4m3") for swizzle in (0, 32, 64)),
    Wgmma("s8", "s32", 32, 128), Wgmma("u8", "s32", 8, 32), Wgmma("f16", "f16", 24, 64, False, True),
    Wgmma("bf16", "f32", 256, 128, False, True), Wgmma("bf16", "f32", 128, 128, True, True),
    Wgmma("f16", "f32", 192, 128, True, False), Wgmma("s8", "s32", 256, 128), Wgmma("e4m3", "f32", 256, 128),
    *(Wgmma(kind, "f32", 16, 128, in_registers=True) for kind in ("bf16", "tf32", "e4m3")),
    Wgmma("s8", "s32", 16, 128, in_registers=True),
    Wgmma("bf16", "f32", 64, 128, False, True, in_registers=True),
)  # fmt: skip


def helpers(wgmma: Wgmma) -> str:
    """d = a b, or d += a b."""
    letter, c_type = RESULTS[wgmma.result]
    d = ", ".join(f"%{i}" for i in range(wgmma.count))
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(wgmma.count))
    words = [wgmma.count + i for i in range(6)]
    left = f"{{{', '.join(f'%{w}' for w in words[:4])}}}" if wgmma.in_registers else f"%{words[0]}"
    b, p = (words[4], words[5]) if wgmma.in_registers else (words[1], words[2])
    signs = "" if wgmma.result == "s32" else ", 1, 1"
    if KINDS[wgmma.kind][0] == 16:
        signs += f", {int(wgmma.b_major)}" if wgmma.in_registers else f", {int(wgmma.a_major)}, {int(wgmma.b_major)}"
    a = ", ".join(f'"r"(a[{i}])' for i in range(4)) if wgmma.in_registers else '"l"(a)'
    a_type = "const unsigned* a" if wgmma.in_registers else "unsigned long long a"
    name = f"m64n{wgmma.n}k{KINDS[wgmma.kind][1]}.{wgmma.result}.{wgmma.kind}.{wgmma.kind}"
    ptx = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{p}, 0; wgmma.mma_async.sync.aligned.{name} "
        f"{{{d}}}, {left}, %{b}, p{signs}; }}"
    )
    signature = f"multiply({c_type}* d, {a_type}, unsigned long long b, int add)"
    return (
        BARRIERS
        + helper(signature, ptx, f': {outs} : {a}, "l"(b), "r"(add)')
        + helper("before()", "wgmma.fence.sync.aligned;", '::: "memory"')
        + helper("commit()", "wgmma.commit_group.sync.aligned;", '::: "memory"')
        + helper("wait()", "wgmma.wait_group.sync.aligned 0;", '::: "memory"')
    )


def kernel(wgmma: Wgmma, left: str, right: str, meanwhile: str = "") -> str:
    """Twice the product; `meanwhile` is done while it is under way."""
    _, c_type = RESULTS[wgmma.result]
    own = (
        "unsigned own[4];\n  for (int i = 0; i < 4; ++i) own[i] = A[threadIdx.x * 4 + i];" if wgmma.in_registers else ""
    )
    return f"""{SHARED}
  for (int i = threadIdx.x; i < 65536 / 16; i += 128) ((uint4*)s)[i] = ((const uint4*)S)[i];
  fence();
  __syncthreads();
  {c_type} d[{wgmma.count}];
  #pragma unroll
  for (int i = 0; i < {wgmma.count}; ++i) d[i] = 7;
  {own}
  before();
  multiply(d, {left}, {right}, 0);
  multiply(d, {left}, {right}, 1);
  commit();
  {meanwhile}
  wait();
  #pragma unroll
  for (int i = 0; i < {wgmma.count}; ++i) (({c_type}*)c)[threadIdx.x * {wgmma.count} + i] = d[i];"""


def form(wgmma: Wgmma, meanwhile: str = "") -> InstructionForm:
    k = KINDS[wgmma.kind][1]
    a, x = numbers(wgmma.kind, (64, k), 0)
    b, y = numbers(wgmma.kind, (wgmma.n, k), 1)
    left, right = laid_out(a, wgmma.swizzle, wgmma.a_major, 0), laid_out(b, wgmma.swizzle, wgmma.b_major, HALF)
    element = np.arange(wgmma.n // 2)
    rows = THREADS[:, None] // 32 * 16 + THREADS[:, None] % 32 // 4 + 8 * (element // 2 % 2)
    columns = 8 * (element // 4) + 2 * (THREADS[:, None] % 4) + element % 2
    exact, kinds = wgmma.result == "s32", (wgmma.kind, wgmma.kind)
    total = 2 * (x @ y.T) if exact else added_up(sum_of(wgmma.kind, True), x, y.T, kinds, 2)
    size = np.abs(x) @ np.abs(y).T + 1
    expected = FormOutput(
        total[rows, columns].ravel(), DTYPES[wgmma.result], None, BOUNDS[wgmma.result] * size[rows, columns].ravel()
    )
    out = np.zeros((128, wgmma.count), np.uint32)
    memory = {"S": np.concatenate([left.memory, right.memory]), "A": fragments(a), "c": out}
    parameters = "const unsigned char* S, const unsigned* A, unsigned* c"

    def made(a_side: LaidOut, b_side: LaidOut, name: str) -> InstructionForm:
        taken = "own" if wgmma.in_registers else a_side.descriptor
        body = kernel(wgmma, taken, b_side.descriptor, meanwhile)
        return InstructionForm(
            name, body, helpers(wgmma), parameters, ("S", "A", "c"), memory, {"c": expected}, threads=128
        )

    others = {
        f"A {one}, B {two}": made(left.read_as(one), right.read_as(two), f"{wgmma.name}, A {one}, B {two}")
        for one in MEANINGS for two in MEANINGS
    }  # fmt: skip
    for meaning in MEANINGS:
        others[f"A {meaning}"] = made(left.read_as(meaning), right, f"{wgmma.name}, A {meaning}")
        others[f"B {meaning}"] = made(left, right.read_as(meaning), f"{wgmma.name}, B {meaning}")
    return replace(made(left, right, wgmma.name), others=others)


def fragments(bits: Array) -> Array:
    """A as the threads of a warpgroup hold it: four registers each."""
    words = packed(bits).reshape(64, 8)
    lane = THREADS % 32
    rows = [THREADS // 32 * 16 + lane // 4 + 8 * (r % 2) for r in range(4)]
    return np.stack([words[rows[r], lane % 4 + 4 * (r // 2)] for r in range(4)], axis=1)


def forms() -> Iterator[InstructionForm]:
    yield from (form(wgmma) for wgmma in CASES)
