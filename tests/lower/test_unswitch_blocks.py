"""Vectors over parts of a concatenation: branches between blocks; `exact` compares the values with the reference."""

from __future__ import annotations

from itertools import accumulate

import pytest

from autosched import te
from autosched.ir.stmt import For, ForKind, Func, Store, walk
from autosched.schedule import Split, Vectorize, initial_state
from autosched.te import ComputeDAG
from tests.helpers import exact
from tests.lower.test_interior import has_select


def joined(widths: list[int], rows: int = 3) -> ComputeDAG:
    """Parts of these widths side by side, through a nest of selects like that of the operator."""
    parts = [te.placeholder((rows, width), name=f"X{n}") for n, width in enumerate(widths)]
    ends = list(accumulate(widths))

    def value(i, j):
        def of(first: int, last: int):
            if first == last:
                return parts[first][i, j - (ends[first] - widths[first])]
            middle = (first + last) // 2
            return te.select(j < ends[middle], of(first, middle), of(middle + 1, last))

        return of(0, len(parts) - 1) * 2.0 + 1.0

    return ComputeDAG(te.compute((rows, ends[-1]), value, name="Y"))


def nest(dag: ComputeDAG, tile: int) -> Func:
    return exact(dag, initial_state(dag).apply(Split("Y", "j", (tile,)), Vectorize("Y", "j.1")))


def vectors(func: Func) -> list[For]:
    return [s for s in walk(func.body) if isinstance(s, For) and s.kind is ForKind.VECTORIZE]


@pytest.mark.parametrize(
    ("widths", "tile", "block"),
    [
        ([16, 16, 16], 16, 16),
        ([64, 32, 32, 32], 64, 32),
        ([96, 32, 64], 64, 32),  # the last tile is a half one
        ([24, 8, 40, 16], 16, 8),
        ([48, 24, 24], 48, 24),
        ([32] * 25, 32, 32),
    ],
)
def test_one_block_of_each_part(widths, tile, block):
    func = nest(joined(widths), tile)
    loops = vectors(func)
    assert {loop.extent.number for loop in loops} == {block}
    assert len(loops) == len(widths), "each part has one body"
    assert not any(has_select(loop) for loop in loops)


@pytest.mark.parametrize("widths", [[5, 7, 4], [16, 17, 16], [1, 1, 1], [12, 20, 12]])
def test_parts_that_are_no_multiples_of_a_block(widths):
    func = nest(joined(widths), 16)
    assert any(has_select(s) for s in walk(func.body) if isinstance(s, Store))


def test_a_window_of_a_copy():
    """Conditions that hold together, and one that holds from its bound on."""
    x = te.placeholder((4, 32), name="X")

    def value(i, j):
        return te.select(te.all(j >= 16, 48 - j > 0, i < 4), x[i, j - 16], 7.0) + te.select(63 - j >= 0, 1.0, 3.0)

    func = nest(ComputeDAG(te.compute((5, 80), value, name="Y")), 16)
    assert {loop.extent.number for loop in vectors(func)} == {16}
    assert not any(has_select(loop) for loop in vectors(func))


@pytest.mark.parametrize("last", [47, 48, 49])
def test_bounds_that_are_included(last):
    """The first of several conditions changes after, at or before the end of a block of 16."""
    x, z = te.placeholder((2, 64), name="X"), te.placeholder((2, 64), name="Z")

    def value(i, j):
        return te.select(last >= j, te.select(j <= 15, x[i, j], z[i, j]), te.select(last - 62 <= -j, 5.0, x[i, j]))

    func = nest(ComputeDAG(te.compute((2, 64), value, name="Y")), 16)
    assert any(has_select(loop) for loop in vectors(func)) is (last != 47)


def test_an_index_that_runs_backwards():
    x, z, v = (te.placeholder((2, 24), name=name) for name in "XZV")

    def value(i, j):
        k = 71 - j
        return te.select(k < 24, x[i, k], te.select(k < 48, z[i, k - 24], v[i, k - 48]))

    func = nest(ComputeDAG(te.compute((2, 72), value, name="Y")), 24)
    assert len(vectors(func)) == 3
