"""Products of bytes by the instruction that adds up four: what sketches there are, and what they compute."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched import te
from autosched.codegen.c.kernel import emit
from autosched.codegen.c.source import GpuSource
from autosched.ir.expr import INDEX, Const, Expr, Load, Var
from autosched.ir.instructions.dots import Dot, Word
from autosched.ir.stmt import ForKind
from autosched.ir.visit import subexpressions
from autosched.lower import concretise, lower
from autosched.schedule import Bind, Tensorize, initial_state
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from search_spaces.space import Sketch
from tests.codegen.gpu import TARGETS, dialects, run
from tests.codegen.nvcc import ptx
from tests.codegen.test_c_kernels import plain
from tests.ir.nests import buffer, func, loop, reducer, store
from tests.search_spaces.gpu_candidates import check_candidates, draw

CASES: tuple[tuple[str, tuple[int, ...], str, dict[str, str]], ...] = (
    ("matmul", (5, 33, 16), "int8", {}),
    ("matmul", (13, 18, 31), "uint8", {}),
    ("matmul", (6, 31, 12), "uint8", {"w_dtype": "int8"}),
    ("matmul", (6, 31, 9), "int8", {"w_dtype": "uint8"}),
    ("dense", (5, 18, 20), "int8", {}),
    ("dense", (5, 18, 9), "uint8", {}),
    ("batch_matmul", (2, 5, 7, 8), "int8", {}),
    ("conv2d", (1, 5, 6, 8, 17, 3, 1, 1), "int8", {}),
    ("conv2d", (1, 5, 6, 5, 17, 3, 2, 1), "uint8", {}),
)


def has_dots(sketch: Sketch) -> bool:
    return any(isinstance(step, Tensorize) for step in sketch.state.steps)


@dialects
@pytest.mark.parametrize(("name", "shape", "dtype", "settings"), CASES)
def test_sketches_compute_the_reference(
    dialect: str, name: str, shape: tuple[int, ...], dtype: str, settings: dict[str, str]
) -> None:
    dag = build(name, shape, settings, dtype=dtype)[0]
    found = list(islice(draw(collapse(dag), TARGETS[dialect], wanted=has_dots), 3))
    assert found

    def look(source: GpuSource) -> None:
        assert "dot_" in source.text

    check_candidates(dag, found, TARGETS[dialect], look=look)


@pytest.mark.parametrize(("name", "shape", "dtype"), [
    ("matmul", (64, 64, 64), "float32"), ("matmul", (64, 64, 64), "int32"), ("matmul", (64, 64, 3), "int8"),
    ("max_pool2d", (1, 9, 8, 20, 3, 2, 1), "int8"), ("dep", (1, 7, 6, 5, 3, 1, 1), "int8"),
])  # fmt: skip
def test_others_have_none(name: str, shape: tuple[int, ...], dtype: str) -> None:
    found = sketches(collapse(build(name, shape, dtype=dtype)[0]), TARGETS["cuda"])
    assert not any(map(has_dots, found))


@pytest.mark.parametrize(("length", "adjacent", "made"), [(64, True, 0), (64, False, 1), (63, True, 2)])
def test_words_are_made_by_a_kernel_only_where_they_do_not_lie_in_memory(
    length: int, adjacent: bool, made: int
) -> None:
    dag = collapse(ComputeDAG(_product(length, adjacent)))
    first = next(s for s in sketches(dag, TARGETS["cuda"]) if has_dots(s))
    assert sum(".words" in s.name and s.at is None for s in first.state.stages) == made


def four(name: str, first: Expr, dtype: str) -> Expr:
    return Word(tuple(Load(name, (first + n,), dtype) for n in range(4)))


@dialects
@pytest.mark.parametrize(("a", "b", "row"), [
    ("int8", "int8", "dp4a.signed"), ("uint8", "uint8", "dp4a.unsigned"), ("uint8", "int8", "dp4a"),
])  # fmt: skip
def test_extreme_bytes(dialect: str, a: str, b: str, row: str) -> None:
    """All pairs of the ends of both types; words that are aligned and words that are not."""
    t = Var("t", INDEX)
    values = [Dot(row, four("A", t * 4 + shift, a), four("B", t * 4, b)) for shift in (0, 1)]
    stores = [store("C", (t, n), Const(7, "int32")) for n in range(2)]
    sums = [store("C", (t, n), v, reducer("add", "int32")) for n, v in enumerate(values)]
    f = func(
        [buffer("A", (260,), a), buffer("B", (256,), b)],
        [buffer("C", (64, 2), "int32")],
        loop(t, 64, *stores, *sums, kind=ForKind.THREAD_X),
    )
    ends = {"int8": [-128, -1, 0, 127], "uint8": [0, 1, 128, 255]}
    rng = np.random.default_rng(0)
    arrays = {"A": rng.choice(ends[a], 260).astype(a), "B": rng.choice(ends[b], 256).astype(b)}
    found = run(plain(f, dialect), f, arrays)["C"]
    right = arrays["B"].astype(np.int64).reshape(64, 4)
    for shift in (0, 1):
        left = arrays["A"][shift : shift + 256].astype(np.int64).reshape(64, 4)
        np.testing.assert_array_equal(found[:, shift], 7 + (left * right).sum(axis=1))
    if dialect == "cuda":
        assert plain(f, dialect).text.count("*(const int*)") == 3


def test_four_products_are_one_instruction(tmp_path: Path) -> None:
    """And their operands words."""
    dag = ComputeDAG(_product())
    state = initial_state(dag).apply(Tensorize("C", "k", "dp4a.signed", ""), Bind("C", "i", "threadIdx.x"))
    f, simplify = concretise(lower(state), {})
    text = emit(f, simplify, "cuda").text
    assert sum(isinstance(e, Dot) for e in subexpressions(state.stage("C").op.body[0])) == 1
    found = ptx(text, "sm_80", tmp_path)
    assert "dp4a.s32.s32" in found
    assert "ld.global.nc.u8" not in found


def _product(length: int = 64, adjacent: bool = True) -> te.Tensor:
    """Of 32 x 5 results; `adjacent`: the second operand is contiguous along the reduction as well."""
    a, k = te.placeholder((32, length), "int8", "A"), te.reduce_axis(length, "k")
    b = te.placeholder((5, length) if adjacent else (length, 5), "int8", "B")

    def at(i: Any, j: Any) -> Any:
        return te.sum(te.cast(a[i, k], "int32") * te.cast(b[j, k] if adjacent else b[k, j], "int32"), axis=k)

    return te.compute((32, 5), at, "C")
