"""Register tiles away from the borders: no condition in them, the same values, and no read that a condition forbade."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.ir.conditions import comparisons
from autosched.ir.expr import Expr, Select
from autosched.ir.stmt import Allocate, Func, If, Scope, Stmt, Store, walk
from autosched.ir.visit import free_vars, loads, subexpressions
from autosched.schedule import (
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Reorder,
    Split,
    Step,
    Unroll,
    Vectorize,
    initial_state,
)
from autosched.te import ComputeDAG
from tests.helpers import exact
from tests.schedule.graphs import conv1d, conv2d


def nest(dag: ComputeDAG, *steps: Step) -> Func:
    return exact(dag, initial_state(dag).apply(*steps))


def conditions(stmt: Stmt) -> list[Expr]:
    stores = [s for s in walk(stmt) if isinstance(s, Store)]
    return [e.cond for s in stores for v in s.values for e in subexpressions(v) if isinstance(e, Select)]


def has_select(stmt: Stmt) -> bool:
    return bool(conditions(stmt))


def register_tiles(func: Func) -> list[Allocate]:
    return [s for s in walk(func.body) if isinstance(s, Allocate) and s.buffer.scope is Scope.REGISTER]


def padded(dag: ComputeDAG, rows: int) -> Func:
    return nest(
        dag,
        ComputeInline("P"),
        CacheWrite("C"),
        Split("C", "i", (rows,)),
        *((Reorder("C", ("i.0", "j", "i.1", "o")),) if len(dag.outputs[0].shape) == 3 else ()),
        ComputeAt("C.acc", "C", "i.0" if len(dag.outputs[0].shape) == 2 else "j", "register"),
        Unroll("C", "i.1"),
        Vectorize("C", "o"),
        Reorder("C.acc", (*(x for x in "abc"[: len(dag.outputs[0].shape)]), "i", "o")),
        Unroll("C.acc", "i"),
        Vectorize("C.acc", "o"),
    )


@pytest.mark.parametrize("length", [3, 7, 12, 13, 17])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_padding_of_one_dimension(length, rows):
    func = padded(conv1d(length, 2, 5), rows)
    assert not any(has_select(t) for t in register_tiles(func))


@pytest.mark.parametrize(("h", "w"), [(1, 1), (2, 7), (5, 3), (7, 7)])
def test_padding_of_two_dimensions(h, w):
    func = padded(conv2d(h, w, 2, 5), 2)
    assert not any(has_select(t) for t in register_tiles(func))


def test_the_test_is_outside_of_the_tile():
    func = padded(conv1d(17, 2, 5), 4)
    tiles = register_tiles(func)
    assert any(not any(isinstance(s, If) for s in walk(tile)) for tile in tiles)
    assert len(tiles) == 2 * (1 + (17 % 4 > 0))


def test_a_condition_on_data_is_not_looked_at_too_early():
    """X[i + 5] exists only where i + 5 < n: taken out of the select, it would be read behind its end."""
    n, m = 13, 20
    x, z = te.placeholder((n,), "int64", "X"), te.placeholder((n, m), name="Z")
    dag = ComputeDAG(
        te.compute((n, m), lambda i, j: te.select(i + 5 < n, te.select(x[i + 5] > 3, z[i, j], 1.0), 0.0), name="Y")
    )
    func = nest(
        dag, CacheWrite("Y"), ComputeAt("Y.acc", "Y", "i", "register"), Vectorize("Y.acc", "j"), Vectorize("Y", "j")
    )
    tests = [s.cond for s in walk(func.body) if isinstance(s, If)]
    assert tests
    assert not any(loads(c) for c in tests)


def test_values_that_differ_inside_and_outside():
    """Not a zero outside, and a condition that other selects share."""
    x = te.placeholder((17, 8), name="X")

    def value(i, j):
        there = (i >= 2) & (i < 15)
        return te.select(there, x[i - 2, j], 7.0) + te.select(there, x[i + 2, j], 5.0) * te.select(i < 16, x[i, j], 2.0)

    dag = ComputeDAG(te.compute((17, 8), value, name="Y"))
    nest(
        dag, CacheWrite("Y"), Split("Y", "i", (3,)), ComputeAt("Y.acc", "Y", "i.0", "register"),
        Unroll("Y.acc", "i"), Unroll("Y", "i.1"), Vectorize("Y.acc", "j"), Vectorize("Y", "j"),
    )  # fmt: skip


@pytest.mark.parametrize(("h", "w"), [(7, 3), (12, 5), (3, 1)])
def test_tiles_of_whole_rows(h, w):
    """They all touch the left and the right border, and only the first and the last ones those above and below."""
    func = nest(
        conv2d(h, w, 2, 5), ComputeInline("P"), CacheWrite("C"), ComputeAt("C.acc", "C", "i", "register"),
        Unroll("C", "j"), Vectorize("C", "o"), Reorder("C.acc", ("c", "a", "b", "i", "j", "o")),
        *(Unroll("C.acc", x) for x in "cabj"), Vectorize("C.acc", "o"),
    )  # fmt: skip
    tiles = [[v.name for v in free_vars(c)] for tile in register_tiles(func) for c in conditions(tile)]
    assert {"i" in "".join(names) for names in tiles} == {True, False}


def free_blocks(func: Func) -> int:
    """Stores without a select; `nest` has compared the values."""
    return sum(isinstance(s, Store) and not has_select(s) for s in walk(func.body))


@pytest.mark.parametrize("columns", [5, 8, 13, 24])
@pytest.mark.parametrize("rows", [1, 3])
def test_blocks_of_vectors_on_either_side_of_a_condition(columns, rows):
    """A concatenation, and the lower triangle of a matrix."""
    x, z = te.placeholder((7, columns), name="X"), te.placeholder((7, columns), name="Z")
    joined = te.compute(
        (7, 2 * columns), lambda i, j: te.select(j < columns, x[i, j], z[i, j - columns] * 2.0), name="Y"
    )
    triangle = te.compute((7, columns), lambda i, j: te.select(j <= i, x[i, j], 0.0), name="Y")
    for output in (joined, triangle):
        func = nest(
            ComputeDAG(output), Split("Y", "i", (rows,)), Split("Y", "j", (8,)),
            Reorder("Y", ("i.0", "j.0", "i.1", "j.1")), Unroll("Y", "i.1"), Vectorize("Y", "j.1"),
        )  # fmt: skip
        assert free_blocks(func) or output is triangle


def test_a_copy_with_padding_tests_once_for_a_block():
    x = te.placeholder((6, 21), name="X")

    def value(i, j):
        return te.select(te.all(i >= 1, i < 7, j >= 1, j < 22), x[i - 1, j - 1], 0.0)

    func = nest(
        ComputeDAG(te.compute((8, 23), value, name="Y")), Split("Y", "j", (8,)), Vectorize("Y", "j.1")
    )  # fmt: skip
    assert free_blocks(func)
    assert len([s for s in walk(func.body) if isinstance(s, If)]) >= 1


def test_three_parts_of_a_concatenation():
    parts = [te.placeholder((3, 16), name=name) for name in "ABC"]

    def value(i, j):
        a, b, c = (part[i, j - 16 * n] for n, part in enumerate(parts))
        return te.select(j < 16, a, te.select(j < 32, b, c))

    func = nest(ComputeDAG(te.compute((3, 48), value, name="Y")), Split("Y", "j", (8,)), Vectorize("Y", "j.1"))
    assert free_blocks(func) == 3


def test_rows_beyond_a_border_are_told_apart_once_for_a_block():
    """Of a row above the image, one of it and one below, blocks away from both ends have no condition left."""
    x = te.placeholder((5, 40), name="X")

    def value(i, j):
        return x[te.min(te.max(i - 1, 0), 4), te.min(te.max(j - 1, 0), 39)]

    func = nest(ComputeDAG(te.compute((7, 42), value, name="Y")), Split("Y", "j", (8,)), Vectorize("Y", "j.1"))
    rows = {tuple(str(load.indices[0]) for load in loads(s.values[0])) for s in walk(func.body) if isinstance(s, Store)}
    assert {("0",), ("4",)} < rows
    assert free_blocks(func) >= 3


def test_borders_in_a_condition_on_data():
    """A neighbour above the image counts as 1, wherever it stands: also where it is compared."""
    x = te.placeholder((5, 40), dtype="int32", name="X")

    def value(i, j):
        above = te.select(i >= 1, x[i - 1, j], 1)
        right = te.select(j < 39, x[i, j + 1], 1)
        return te.select(te.equal(above, right), x[i, j], above) + right

    func = nest(ComputeDAG(te.compute((5, 40), value, name="Y")), Split("Y", "j", (8,)), Vectorize("Y", "j.1"))
    assert any(not comparisons([s]) for s in walk(func.body) if isinstance(s, Store))
