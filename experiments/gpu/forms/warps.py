"""Matrices of a warp: ldmatrix, stmatrix, mma.sync.

g is the lane over 4, t the lane modulo 4; a register has 32 bits, the element with the lower k in its lower part.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from experiments.gpu.forms.form import SHARED, Array, FormOutput, InstructionForm, giver, helper
from experiments.gpu.forms.numbers import small
from experiments.gpu.forms.sums import added_up, sum_of

LANES = np.arange(32)
G, T = LANES // 4, LANES % 4

KINDS: dict[str, tuple[int, int]] = {  # bits of an element, k
    "f16": (16, 16), "bf16": (16, 16), "tf32": (32, 8), "s8": (8, 32), "u8": (8, 32), "e4m3": (8, 32), "e5m2": (8, 32),
}  # fmt: skip
NAMES = {"f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3", "e5m2": "float8_e5m2"}
RESULTS = {"f32": ("f", "float"), "f16": ("r", "unsigned"), "s32": ("r", "unsigned")}
DTYPES = {"f32": "float32", "f16": "float16", "s32": "int32"}
# Away from what is known of the instruction's sums (`sums`), of the sum of absolute values.
BOUNDS = {"f32": 2.0**-22, "f16": 1e-2, "s32": 0.0}


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
    made = normal.astype(small(NAMES[kind]))
    return made.view(np.uint8 if made.dtype.itemsize == 1 else np.uint16), made.astype(np.float64)


def packed(bits: Array) -> Array:
    """Neighbours along the last axis in words of 32 bits."""
    return np.ascontiguousarray(bits).view(np.uint32)


def loads() -> Iterator[InstructionForm]:
    """ldmatrix: lane l gives the address of row l % 8 of matrix l / 8."""
    for n in (1, 2, 4):
        for word in ("", ".trans"):
            registers = ", ".join(f"%{i}" for i in range(n))
            outs = ", ".join(f'"=r"(r[{i}])' for i in range(n))
            ptx = f"ldmatrix.sync.aligned.m8n8.x{n}{word}.shared.b16"
            load = helper(
                "load(unsigned* r, unsigned at)", f"{ptx} {{{registers}}}, [%{n}];", f': {outs} : "r"(at) : "memory"'
            )
            matrices = np.arange(n * 64, dtype=np.uint16).reshape(n, 8, 8)
            turned = matrices.transpose(0, 2, 1) if word else matrices
            low, high = turned[:, G, 2 * T].astype(np.uint32), turned[:, G, 2 * T + 1].astype(np.uint32)
            body = f"""{SHARED}
  for (int i = threadIdx.x; i < {n * 64}; i += 32) ((unsigned short*)s)[i] = A[i];
  __syncthreads();
  unsigned r[{n}];
  load(r, base + threadIdx.x % {8 * n} * 16);
  for (int i = 0; i < {n}; ++i) c[threadIdx.x * {n} + i] = r[i];"""
            yield InstructionForm(
                ptx, body, load, "const unsigned short* A, unsigned* c", ("A", "c"),
                {"A": matrices, "c": np.zeros((32, n), np.uint32)}, {"c": FormOutput((low | high << 16).T, "uint32")},
            )  # fmt: skip


def stores() -> Iterator[InstructionForm]:
    for n in (1, 2, 4):
        for word in ("", ".trans"):
            registers = ", ".join(f"%{i + 1}" for i in range(n))
            ins = ", ".join(f'"r"(r[{i}])' for i in range(n))
            ptx = f"stmatrix.sync.aligned.m8n8.x{n}{word}.shared.b16"
            store = helper(
                "store(unsigned at, const unsigned* r)", f"{ptx} [%0], {{{registers}}};",
                f': : "r"(at), {ins} : "memory"',
            )  # fmt: skip
            given = np.arange(32 * n * 2, dtype=np.uint16).reshape(32, n, 2)
            expected = np.zeros((n, 8, 8), np.uint16)
            expected[:, np.repeat(G, 2), (2 * T[:, None] + [0, 1]).ravel()] = given.transpose(1, 0, 2).reshape(n, 64)
            body = f"""{SHARED}
  store(base + threadIdx.x % {8 * n} * 16, (const unsigned*)A + threadIdx.x * {n});
  __syncthreads();
  for (int i = threadIdx.x; i < {n * 64}; i += 32) c[i] = ((unsigned short*)s)[i];"""
            yield InstructionForm(
                ptx, body, store, "const unsigned short* A, unsigned short* c", ("A", "c"),
                {"A": given, "c": np.zeros((n, 8, 8), np.uint16)},
                {"c": FormOutput(expected.transpose(0, 2, 1) if word else expected, "uint16")},
            )  # fmt: skip


MMA = [
    *((kind, kind, "f32", 16, 2) for kind in ("f16", "bf16", "tf32", "e4m3", "e5m2")),
    ("e4m3", "e5m2", "f32", 16, 2), ("f16", "f16", "f16", 16, 2), ("f16", "f16", "f32", 16, 1),
    *((a, b, "s32", m, deep) for a in ("s8", "u8") for b in ("s8", "u8") for m, deep in ((16, 2), (8, 1))),
]  # fmt: skip


def product(left: str, right: str, result: str, m: int, deep: int) -> InstructionForm:
    """mma.sync, twice into the same sums. `deep`: registers of B, and of A for 8 rows."""
    halves = m // 8
    k, n_results, in_a = 4 * deep * 32 // KINDS[left][0], halves * (1 if result == "f16" else 2), halves * deep
    a, x = numbers(left, (m, k), 0)
    b, y = numbers(right, (k, 8), 1)
    words_a, words_b = packed(a).reshape(m, -1), packed(np.ascontiguousarray(b.T)).reshape(8, -1)
    fragments_a = np.stack([words_a[G + 8 * (r % halves), T + 4 * (r // halves)] for r in range(in_a)], axis=1)
    fragments_b = np.stack([words_b[G, T + 4 * r] for r in range(deep)], axis=1)
    letter, kind = RESULTS[result]
    d = ", ".join(f"%{i}" for i in range(n_results))
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(n_results))
    ins = ", ".join(f'"r"({name}[{i}])' for name, count in (("a", in_a), ("b", deep)) for i in range(count))
    regs = [f"%{n_results + i}" for i in range(in_a + deep)]
    ptx = f"mma.sync.aligned.m{m}n8k{k}.row.col.{result}.{left}.{right}.{result}"
    multiply = helper(
        f"multiply({kind}* d, const unsigned* a, const unsigned* b)",
        f"{ptx} {{{d}}}, {{{', '.join(regs[:in_a])}}}, {{{', '.join(regs[in_a:])}}}, {{{d}}};", f": {outs} : {ins}",
    )  # fmt: skip
    body = f"""{kind} d[{n_results}];
  for (int i = 0; i < {n_results}; ++i) d[i] = 0;
  for (int twice = 0; twice < 2; ++twice) multiply(d, A + threadIdx.x * {in_a}, B + threadIdx.x * {deep});
  for (int i = 0; i < {n_results}; ++i) (({kind}*)c)[threadIdx.x * {n_results} + i] = d[i];"""
    element = np.arange(2 * halves)
    rows, columns = G[:, None] + 8 * (element // 2), 2 * T[:, None] + element % 2
    exact = result == "s32"
    total = 2 * (x @ y) if exact else added_up(sum_of(left, False), x, y, (left, right), 2)
    size = np.abs(x) @ np.abs(y) + 1
    bound = BOUNDS[result] * size[rows, columns].ravel()
    expected = FormOutput(total[rows, columns].ravel(), DTYPES[result], None, bound)
    memory = {"A": fragments_a, "B": fragments_b, "c": np.zeros((32, n_results), np.uint32)}
    parameters = "const unsigned* A, const unsigned* B, unsigned* c"
    return InstructionForm(ptx, body, multiply, parameters, ("A", "B", "c"), memory, {"c": expected}, shared=0)


def elected() -> InstructionForm:
    """Which lane it is may differ; the simulator takes the first."""
    text = giver("unsigned", "chosen()", "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p; }", "")
    expected = FormOutput((np.arange(64) % 32 == 0).astype(np.uint32), "uint32")
    body = "c[threadIdx.x] = chosen();"
    return InstructionForm(
        "elect.sync", body, text, "unsigned* c", ("c",), {"c": np.zeros(64, np.uint32)}, {"c": expected}, threads=64,
        shared=0,
    )  # fmt: skip


def forms() -> Iterator[InstructionForm]:
    yield from loads()
    yield from stores()
    yield from (product(*row) for row in MMA)
    yield elected()
