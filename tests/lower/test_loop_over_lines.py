"""Packed weights are written by a loop over lines, whatever is left of the last one, and are the same."""

from __future__ import annotations

import pytest

from autosched.ir.stmt import For, ForKind, Func, walk
from autosched.lower import concretise, lower
from autosched.schedule import CacheRead, Pack, Split, Unroll, Vectorize, initial_state
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from tests.codegen.running import check_kernel
from tests.helpers import check_nest


def packing(n: int, width: int, k: int = 5, dtype: str = "float32") -> Func:
    """The product of two rows with a matrix of n columns, packed in panels of `width` columns by unrolled rows."""
    dag = collapse(build("matmul", settings={"M": 2, "N": n, "K": k}, dtype=dtype)[0].with_weights(["B"]))
    state = initial_state(dag).apply(
        CacheRead("B", "matmul", "pack"),
        Pack("B.pack", (1, 0), ((1, width),)),
        Split("B.pack", "d1", (width,)),
        Split("B.pack", "d0", (4,)),
        Unroll("B.pack", "d0.1"),
        Vectorize("B.pack", "d1.1"),
    )
    func, _ = concretise(lower(state), {})
    check_nest(func, dag)
    check_kernel(dag, state, threads=(1,))
    return func


def extents(func: Func, kind: ForKind) -> list[int]:
    assert func.prepare is not None
    return [int(str(s.extent)) for s in walk(func.prepare) if isinstance(s, For) and s.kind is kind]


@pytest.mark.parametrize(
    ("width", "vectors"), [(48, {16}), (40, {16, 8}), (33, {16, 1}), (31, {31}), (16, {16}), (7, {7})]
)
def test_a_panel_is_written_by_lines(width: int, vectors: set[int]) -> None:
    assert set(extents(packing(3 * width, width), ForKind.VECTORIZE)) == vectors


def test_lines_are_of_the_bytes_that_are_stored() -> None:
    assert set(extents(packing(128, 64, dtype="float64"), ForKind.VECTORIZE)) == {8}
    assert set(extents(packing(128, 64, dtype="int8"), ForKind.VECTORIZE)) == {64}


def test_a_last_panel_that_is_not_full() -> None:
    """40 columns and 23, in rows that four does not divide."""
    assert set(extents(packing(63, 40, 7), ForKind.VECTORIZE)) == {16, 8, 23}
    packing(2, 40, 2)
