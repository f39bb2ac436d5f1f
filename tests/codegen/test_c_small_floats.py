"""Small types in C: conversions bit by bit, vectors of them, what NVIDIA's compiler makes of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autosched.codegen.c.kernel import emit
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Expr, Var, binary, cast, select
from autosched.ir.stmt import ForKind, Func
from autosched.lower import concretise, lower
from autosched.schedule import Pipeline
from tests.codegen.gpu import dialects, run
from tests.codegen.nvcc import ptx
from tests.codegen.test_c_kernels import agrees, plain
from tests.codegen.test_halves import BYTES, HALVES, SMALL, _floats, every
from tests.gpu_schedules import matmul, matmul_state
from tests.ir.nests import F32, buffer, func, load, loop, store

t, lane = Var("t", INDEX), Var("lane", INDEX)


def _mapped(value: Expr, source: str, count: int) -> Func:
    """C[t] = `value`, which reads A[t] of the type `source`."""
    body = loop(t, count, store("C", (t,), value), kind=ForKind.THREAD_X)
    return func([buffer("A", (count,), source)], [buffer("C", (count,), value.dtype)], body)


@dialects
@pytest.mark.parametrize("dtype", SMALL)
def test_conversions_are_numpys(dialect: str, dtype: str) -> None:
    numbers, kind, count = _floats(), DTYPES[dtype].numpy_dtype, 256
    given = np.resize(numbers, -(-len(numbers) // count) * count).reshape(-1, count)
    some = np.resize(every(dtype), given.size).reshape(given.shape)
    shape, row = given.shape, Var("row", INDEX)
    narrow = store("C", (row, t), cast(load("A", row, t), dtype))
    wide = store("D", (row, t), cast(load("B", row, t, dtype=dtype), F32))
    nest = loop(row, shape[0], loop(t, count, narrow, wide, kind=ForKind.THREAD_X), kind=ForKind.BLOCK_X)
    f = func([buffer("A", shape), buffer("B", shape, dtype)], [buffer("C", shape, dtype), buffer("D", shape)], nest)
    found = run(plain(f, dialect), f, {"A": given, "B": some}, optimised=True)
    with np.errstate(all="ignore"):
        expected = given.astype(kind)
    same = found["C"].view(DTYPES[dtype].bits_dtype) == expected.view(DTYPES[dtype].bits_dtype)
    same |= np.isnan(found["C"].astype(np.float32)) & np.isnan(given)
    assert same.all(), (given[~same][:5], found["C"][~same][:5])
    np.testing.assert_array_equal(found["D"], some.astype(np.float32))


@dialects
@pytest.mark.parametrize("dtype", SMALL)
def test_a_constant_and_a_choice_keep_their_bits(dialect: str, dtype: str) -> None:
    f = _mapped(select(t < 3, load("A", t, dtype=dtype), 1.5), dtype, 5)
    agrees(dialect, f, A=np.array([1.0, -0.0, 256.0, 3.0, 4.0]).astype(DTYPES[dtype].numpy_dtype))


WIDE = (  # source, result, vector loads and stores of 16 lanes in CUDA C
    ("float16", "float16", 2, 2),
    ("bfloat16", "float32", 2, 4),
    ("float32", "float16", 4, 2),
    ("int8", "int8", 1, 1),
    ("uint8", "float32", 1, 4),
    ("bool", "bool", 1, 1),
    ("int64", "int32", 8, 4),
)


@dialects
@pytest.mark.parametrize(("source", "result", "n_loads", "n_stores"), WIDE)
def test_elements_of_each_size_move_16_bytes_at_a_time(
    dialect: str, source: str, result: str, n_loads: int, n_stores: int
) -> None:
    """Where sizes differ, the larger elements take several accesses."""
    read = load("A", t * 16 + lane, dtype=source)
    value = read if source == "bool" else cast(binary("max", read, binary("mul", read, 3)), result)
    body = loop(lane, 16, store("C", (t * 16 + lane,), value), kind=ForKind.UNROLL)
    f = func([buffer("A", (64,), source)], [buffer("C", (64,), result)], loop(t, 4, body, kind=ForKind.THREAD_X))
    text = plain(f, "cuda").text
    assert (text.count(" = *(const "), text.count("  *(")) == (n_loads, n_stores), text
    rng = np.random.default_rng(0)
    agrees(
        dialect, f, A=rng.integers(0 if source in ("uint8", "bool") else -40, 40, 64).astype(DTYPES[source].numpy_dtype)
    )


@pytest.mark.parametrize(("dtype", "vector", "copies"), [
    ("float16", 8, "start_copy_uint4"), ("float16", 2, "start_copy_unsigned"), ("int8", 16, "start_copy_uint4"),
    ("float16", 1, ""), ("int8", 2, ""),
])  # fmt: skip
def test_copies_are_asynchronous_from_four_bytes_on(dtype: str, vector: int, copies: str, tmp_path: Path) -> None:
    """Smaller ones pass through registers."""
    state = matmul_state(matmul(64, 64, 64, dtype)).apply(Pipeline("C.acc", "k.0", 3))
    values = {"iv": 1, "it": 8, "is": 4, "jv": 1, "jt": 8, "js": 4, "k1": 4, "k2": 4, "va": vector, "vb": vector}
    text = emit(*concretise(lower(state), values), "cuda").text
    assert ("start_copy" in text) == bool(copies)
    assert not copies or f"{copies}((" in text
    assert ("held" in text) == (not copies)
    made = ptx(text, "sm_80", tmp_path)
    assert ("cp.async.wait_group" in made) == bool(copies)


def test_the_larger_and_the_smaller_are_one_instruction(tmp_path: Path) -> None:
    """From compute capability 8.0 on; NaN where an operand is, before that by a comparison."""
    value = binary("min", binary("max", load("A", t), load("B", t)), load("B", t + 1))
    nest = loop(t, 32, store("C", (t,), value), kind=ForKind.THREAD_X)
    text = plain(func([buffer("A", (32,)), buffer("B", (33,))], [buffer("C", (32,))], nest), "cuda").text
    found = {arch: ptx(text, arch, tmp_path) for arch in ("sm_75", "sm_80")}
    assert [found["sm_80"].count(x) for x in ("max.NaN.f32", "min.NaN.f32", "setp")] == [1, 1, 0]
    assert ".NaN" not in found["sm_75"]


def test_conversions_are_one_instruction(tmp_path: Path) -> None:
    """bfloat16 needs none to become a float32."""
    inputs, outputs = ([buffer(f"{name}{dtype}", (32,), dtype) for dtype in HALVES] for name in "AC")
    values = [cast(cast(load(a.name, t, dtype=a.dtype), F32) * 3.0, a.dtype) for a in inputs]
    stores = [store(c.name, (t,), value) for c, value in zip(outputs, values, strict=True)]
    text = plain(func(inputs, outputs, loop(t, 32, *stores, kind=ForKind.THREAD_X)), "cuda").text
    found = ptx(text, "sm_90", tmp_path)
    assert "x2.f32" not in found
    assert [found.count(x) for x in ("cvt.f32.f16", "cvt.rn.f16.f32", "cvt.rn.bf16.f32", "cvt.f32.bf16")] == [
        1,
        1,
        1,
        0,
    ]
    assert "cvt.rn.bf16" not in ptx(text, "sm_75", tmp_path)


@pytest.mark.parametrize(("dtype", "instruction"), [("float16", "cvt.rn.f16x2.f32"), ("bfloat16", "cvt.rn.bf16x2.f32")])
@dialects
def test_neighbours_are_rounded_in_pairs(dialect: str, dtype: str, instruction: str, tmp_path: Path) -> None:
    body = loop(lane, 8, store("C", (t * 8 + lane,), cast(load("A", t * 8 + lane), dtype)), kind=ForKind.UNROLL)
    f = func([buffer("A", (64,))], [buffer("C", (64,), dtype)], loop(t, 8, body, kind=ForKind.THREAD_X))
    rng = np.random.default_rng(0)
    agrees(dialect, f, A=(rng.standard_normal(64) * np.exp2(rng.integers(-20, 15, 64))).astype(np.float32))
    found = {arch: ptx(plain(f, "cuda").text, arch, tmp_path) for arch in ("sm_75", "sm_80")}
    assert [found["sm_80"].count(x) for x in (instruction, "cvt.rn")] == [4, 4]
    assert instruction not in found["sm_75"]


@pytest.mark.parametrize("dtype", BYTES)
def test_bytes_are_rounded_by_the_instruction_where_there_is_one(dtype: str, tmp_path: Path) -> None:
    """Two at a time, from compute capability 8.9 on."""
    body = loop(lane, 16, store("C", (t * 16 + lane,), cast(load("A", t * 16 + lane), dtype)), kind=ForKind.UNROLL)
    f = func([buffer("A", (128,))], [buffer("C", (128,), dtype)], loop(t, 8, body, kind=ForKind.THREAD_X))
    rng = np.random.default_rng(0)
    agrees("cuda", f, A=(rng.standard_normal(128) * np.exp2(rng.integers(-8, 6, 128))).astype(np.float32))
    instruction = f"cvt.rn.satfinite.{'e4m3' if 'e4m3' in dtype else 'e5m2'}x2.f32"
    found = {arch: ptx(plain(f, "cuda").text, arch, tmp_path) for arch in ("sm_80", "sm_89")}
    assert [found[arch].count(instruction) >= 8 for arch in ("sm_80", "sm_89")] == [False, True]
