"""Conversions, minima, sums of products: one thread, one number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from autosched.ir.dtype import numpy_dtype
from experiments.gpu.forms.form import Array, FormOutput, InstructionForm, giver

N = 512
C_TYPES = {2: "unsigned short", 4: "unsigned"}


def floats(n: int = N) -> Array:
    """Of many sizes, and the edges of small types: zeros, subnormals, halves of the last place, too large ones."""
    rng = np.random.default_rng(0)
    made = (rng.standard_normal(n) * np.exp2(rng.integers(-30, 20, n))).astype(np.float32)
    edges = [
        0.0, -0.0, 2.0**-9, 3 * 2.0**-10, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-14, 65504.0, 65519.0, 65520.0, 1e6,
        448.0, 464.0, 1000.0, -1000.0, 2.0**-133, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11,
    ]  # fmt: skip
    made[: len(edges)] = edges
    return made


def of_each(name: str, helpers: str, expression: str, given: Array, expected: FormOutput, kind: str) -> InstructionForm:
    """Thread i computes an `expression` of A and i, of a C type."""
    n = N if given.ndim == 1 else len(given)
    out = np.zeros(n, {"float": np.float32, "unsigned": np.uint32, "int": np.int32, "unsigned short": np.uint16}[kind])
    letter = {"float32": "float", "uint16": "unsigned short", "uint32": "unsigned"}[given.dtype.name]
    return InstructionForm(
        name, f"const int i = threadIdx.x;\n  c[i] = {expression};", helpers, f"const {letter}* A, {kind}* c",
        ("A", "c"), {"A": given, "c": out}, {"c": expected}, threads=n, shared=0,
    )  # fmt: skip


def bits_of(values: Array) -> FormOutput:
    """Bit for bit."""
    kind = f"uint{8 * values.dtype.itemsize}"
    return FormOutput(np.ascontiguousarray(values).view(kind), kind)


def packs() -> Iterator[InstructionForm]:
    """Two floats in a register; the first operand is the upper one."""
    for ptx, dtype, nbytes in (
        ("cvt.rn.bf16x2.f32", "bfloat16", 4), ("cvt.rn.f16x2.f32", "float16", 4),
        ("cvt.rn.satfinite.e4m3x2.f32", "float8_e4m3", 2),
    ):  # fmt: skip
        kind, given = C_TYPES[nbytes], floats(2 * N).reshape(N, 2)
        text = giver(kind, "pack(float high, float low)", f"{ptx} %0, %1, %2;", ': "f"(high), "f"(low)')
        wide = np.clip(given, -448, 448) if nbytes == 2 else given
        with np.errstate(over="ignore"):
            expected = bits_of(wide.astype(small(dtype)))
        yield of_each(ptx, text, "pack(A[2 * i + 1], A[2 * i])", given, expected, kind)


def small(name: str) -> np.dtype[np.generic]:
    if not name.startswith("float8"):
        return numpy_dtype(name)
    import ml_dtypes

    found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name + "fn" * (name == "float8_e4m3")))
    return found


def singles() -> Iterator[InstructionForm]:
    given = floats()
    for ptx, dtype in (("cvt.rn.f16.f32", "float16"), ("cvt.rn.bf16.f32", "bfloat16")):
        text = giver("unsigned short", "turn(float x)", f"{ptx} %0, %1;", ': "f"(x)')
        with np.errstate(over="ignore"):
            expected = bits_of(given.astype(small(dtype)))
        yield of_each(ptx, text, "turn(A[i])", given, expected, "unsigned short")
    halves = (np.arange(N, dtype=np.uint32) * 129 % 65536).astype(np.uint16)
    text = giver("float", "turn(unsigned short x)", "cvt.f32.f16 %0, %1;", ': "h"(x)')
    wide = halves.view(np.float16).astype(np.float32)
    yield of_each("cvt.f32.f16", text, "turn(A[i])", halves, FormOutput(wide, "float32"), "float")
    text = giver("unsigned", "turn(float x)", "cvt.rna.tf32.f32 %0, %1;", ': "f"(x)')
    normal = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    rounded = (normal.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)  # ties away from zero
    yield of_each("cvt.rna.tf32.f32", text, "turn(A[i])", normal, FormOutput(rounded, "uint32"), "unsigned")


def bounds() -> Iterator[InstructionForm]:
    """Bit for bit: -0 is less than 0, and what is no number is 0x7fffffff."""
    special = np.array([1.0, -1.0, 0.0, -0.0, np.nan, np.inf, -np.inf, 3.0], np.float32)
    pairs = np.array([(a, b) for a in special for b in special], np.float32)
    functions: dict[str, Callable[[Array, Array], Array]] = {"max": np.maximum, "min": np.minimum}
    signs = np.signbit(pairs)
    for name, function in functions.items():
        chosen = function(pairs[:, 0], pairs[:, 1])
        zero = np.where(signs.all(axis=1) if name == "max" else signs.any(axis=1), np.float32(-0.0), np.float32(0.0))
        chosen = np.where((pairs == 0).all(axis=1), zero, chosen)
        bits = np.where(np.isnan(chosen), np.uint32(0x7FFFFFFF), chosen.view(np.uint32))
        text = giver("float", "bound(float a, float b)", f"{name}.NaN.f32 %0, %1, %2;", ': "f"(a), "f"(b)')
        expected = FormOutput(bits, "uint32")
        yield of_each(f"{name}.NaN.f32", text, "bound(A[2 * i], A[2 * i + 1])", pairs, expected, "float")


def powers() -> Iterator[InstructionForm]:
    """Of two; what would be subnormal is zero."""
    rng = np.random.default_rng(4)
    edges = np.array([0.0, 1.5, -3.25, -126.0, -140.0, -np.inf, np.inf, np.nan], np.float32)
    given = np.concatenate([edges, rng.uniform(-120, 120, N - len(edges)).astype(np.float32)])
    exact = np.exp2(given.astype(np.float64))
    exact[given < -126] = 0
    bound = np.where(np.isfinite(exact), 2.0**-21 * exact, 0.0)
    text = giver("float", "power(float x)", "ex2.approx.ftz.f32 %0, %1;", ': "f"(x)')
    expected = FormOutput(exact, "float32", None, bound)
    yield of_each("ex2.approx.ftz.f32", text, "power(A[i])", given, expected, "float")


def dots() -> Iterator[InstructionForm]:
    rng = np.random.default_rng(2)
    words = rng.integers(0, 1 << 32, (N, 3), dtype=np.uint32)
    for left in "su":
        for right in "su":
            ptx = f"dp4a.{left}32.{right}32"
            operands = ': "r"(a), "r"(b), "r"(c)'
            text = giver("unsigned", "dot(unsigned a, unsigned b, unsigned c)", f"{ptx} %0, %1, %2, %3;", operands)
            kinds = {"s": np.int8, "u": np.uint8}
            a, b = (np.ascontiguousarray(words[:, i]).view(kinds[k]).reshape(N, 4) for i, k in ((0, left), (1, right)))
            total = (a.astype(np.int64) * b.astype(np.int64)).sum(axis=1) + words[:, 2]
            expected = FormOutput((total & 0xFFFFFFFF).astype(np.uint32), "uint32")
            yield of_each(ptx, text, "dot(A[3 * i], A[3 * i + 1], A[3 * i + 2])", words, expected, "unsigned")


def shuffles() -> Iterator[InstructionForm]:
    given = np.random.default_rng(3).standard_normal(N).astype(np.float32)
    lane, first = np.arange(N) % 32, np.arange(N) // 32 * 32
    down, up = np.where(lane + 3 < 32, lane + 3, lane), np.where(lane >= 3, lane - 3, lane)
    sources = {"xor": lane ^ 5, "down": down, "up": up}
    for kind, source in sources.items():
        by = 5 if kind == "xor" else 3
        expression = f"__shfl_{kind}_sync(0xffffffff, A[i], {by})"
        yield of_each(f"shfl.{kind}", "", expression, given, FormOutput(given[first + source], "float32"), "float")
    expression = "__shfl_sync(0xffffffff, A[i], i * 7, 16)"
    source = lane // 16 * 16 + np.arange(N) * 7 % 16
    yield of_each("shfl.idx of 16", "", expression, given, FormOutput(given[first + source], "float32"), "float")


def forms() -> Iterator[InstructionForm]:
    for made in (packs, singles, bounds, powers, dots, shuffles):
        yield from made()
