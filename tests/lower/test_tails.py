"""Tails: constant extents where they can be, a test only where one is needed, and nothing run where nothing is left."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.ir.expr import INDEX, Const, Expr
from autosched.ir.stmt import Allocate, For, ForKind, Func, If, Stmt, walk
from autosched.schedule import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    Reorder,
    Rfactor,
    Split,
    Step,
    Unroll,
    Vectorize,
    initial_state,
)
from autosched.te import ComputeDAG
from tests.helpers import exact
from tests.schedule.graphs import conv1d, matmul, shifted


def nest(dag: ComputeDAG, *steps: Step) -> Func:
    return exact(dag, initial_state(dag).apply(*steps))


def loops(func: Func, *kinds: ForKind) -> list[For]:
    return [s for s in walk(func.body) if isinstance(s, For) and s.kind in kinds]


def conditions(stmt: Stmt) -> list[str]:
    return [str(s.cond) for s in walk(stmt) if isinstance(s, If)]


def extents(func: Func, *kinds: ForKind) -> list[Expr]:
    return [s.extent for s in loops(func, *kinds)]


def tile(m: int, n: int) -> Func:
    return nest(
        matmul(m, n, 5),
        CacheWrite("C"),
        Split("C", "i", (3, 4)),
        Split("C", "j", (2, 16)),
        Reorder("C", ("i.0", "j.0", "i.1", "j.1", "i.2", "j.2")),
        ComputeAt("C.acc", "C", "j.1", "register"),
        Reorder("C.acc", ("k", "i", "j")),
        Unroll("C", "i.2"),
        Unroll("C.acc", "i"),
        Vectorize("C", "j.2"),
        Vectorize("C.acc", "j"),
    )


@pytest.mark.parametrize(("m", "n"), [(24, 64), (12, 32), (4, 16), (3, 7)])
def test_tiles_that_divide_or_cover_the_axis_need_no_test(m, n):
    func = tile(m, n)
    assert not conditions(func.body)
    assert all(isinstance(e, Const) for e in extents(func, *ForKind))


def test_a_register_tile_is_chosen_once_and_outside_of_the_reduction():
    func = tile(53, 70)
    assert conditions(func.body) == [
        "C.i.0*-12 - C.i.1*4 + 53 >= 4",
        "C.j.0*-32 - C.j.1*16 + 70 >= 16",
        "C.j.0*-32 - C.j.1*16 + 70 >= 16",
    ]
    for loop in loops(func, ForKind.SERIAL):
        if loop.reduce:
            assert not conditions(loop)
    assert {int(e.value) for e in extents(func, ForKind.VECTORIZE)} == {16, 6}
    assert {int(e.value) for e in extents(func, ForKind.UNROLL)} == {4}  # 53 % 4 = 1: no loop is left of that tile


def test_a_whole_number_of_tiles_needs_no_test_even_where_the_middle_level_does_not_divide():
    """5 register tiles of 4 rows in groups of 3: the second group is short, but no tile is."""
    func = tile(20, 48)
    assert not conditions(func.body)


def test_a_long_reduction_is_its_full_steps_and_the_rest():
    func = nest(matmul(2, 3, 70), Split("C", "k", (4,)), Unroll("C", "k.1"))
    assert not conditions(func.body)
    assert [int(e.value) for e in extents(func, ForKind.UNROLL)] == [4, 2]
    (serial,) = [s for s in loops(func, ForKind.SERIAL) if s.reduce]
    assert isinstance(serial.extent, Const)
    assert serial.extent.value == 17


@pytest.mark.parametrize("kind", [Unroll, Vectorize])
def test_a_tile_of_which_nothing_may_be_left_is_tested(kind):
    """12 = 3 * 4, so there is no short tile; but the copy of X ends before the last tiles of Y, which read nothing."""
    func = nest(
        shifted(12, 4), CacheRead("X", "Y"), Split("Y", "i", (4,)), ComputeAt("X.cache", "Y", "i.0"),
        Split("X.cache", "d0", (4,)), kind("X.cache", "d0.1"),
    )  # fmt: skip
    assert all(isinstance(e, Const) for e in extents(func, ForKind.UNROLL, ForKind.VECTORIZE))


def test_the_start_values_around_an_empty_tile_remain():
    """k = 12 in blocks of 8 in blocks of 4: the fourth block of 4 is empty, and its sum is 0."""
    for kind in (Unroll, Vectorize):
        nest(
            matmul(2, 3, 12), Rfactor("C", "k", 8, "outer"), Rfactor("C.rf", "k.i", 4, "outer"),
            kind("C.rf.rf", "k.i.i"),
        )  # fmt: skip


@pytest.mark.parametrize("keep", ["inner", "outer"])
@pytest.mark.parametrize("factor", [4, 16])
def test_points_outside_of_the_reduction_that_nothing_is_added_to(keep, factor):
    """Three of k's lanes exist, the others start at 0 although their loop is outside of the reduction."""
    nest(matmul(2, 3, 3), Rfactor("C", "k", factor, keep), Reorder("C.rf", ("k.i", "i", "j", "k.o")) if keep == "inner"
         else Reorder("C.rf", ("k.o", "j", "i", "k.i")))  # fmt: skip


def test_an_extent_whose_rest_is_not_constant_stays_dynamic():
    """A window that is clipped at both ends of the input."""
    func = nest(
        conv1d(13, 2, 3, k=3, stride=1, pad=1), Split("C", "i", (4,)), CacheRead("X", "P"), ComputeAt("P", "C", "i.0"),
        ComputeAt("X.cache", "C", "i.0"), Reorder("X.cache", ("d1", "d0")), Vectorize("X.cache", "d0"),
    )  # fmt: skip
    assert any(not isinstance(e, Const) for e in extents(func, ForKind.VECTORIZE))


def test_accumulators_of_full_tiles_are_in_registers_whatever_the_rest_is():
    """What a task of 16 outputs reads, 18 elements, in tiles of 4."""
    x, (r, q) = te.placeholder((70,), name="X"), (te.reduce_axis(3, name="r") for _ in range(2))
    parts = te.compute((68,), lambda i: te.sum(x[i + r], axis=r), name="P")
    dag = ComputeDAG(te.compute((66,), lambda i: te.sum(parts[i + q], axis=q), name="Y"))
    func = nest(
        dag, Split("Y", "i", (16,)), CacheWrite("P"), ComputeAt("P", "Y", "i.0"), Split("P", "i", (4,)),
        ComputeAt("P.acc", "P", "i.0", "register"), Reorder("P.acc", ("r", "i")), Unroll("P.acc", "r"),
        Vectorize("P.acc", "i"), Vectorize("P", "i.1"),
    )  # fmt: skip
    tiles = [s for s in walk(func.body) if isinstance(s, Allocate) and s.buffer.name == "P.acc"]
    sizes = [[x.extent for x in walk(t) if isinstance(x, For) and x.kind is ForKind.VECTORIZE] for t in tiles]
    assert any(e is Const(4, INDEX) for e in sizes[0])
    assert any(not isinstance(e, Const) for e in sizes[1])


@pytest.mark.parametrize(("rows", "block", "tile"), [(24, 8, 3), (20, 5, 4), (13, 13, 6), (12, 4, 4), (13, 1, 4)])
def test_a_tile_ends_where_the_block_of_rows_does(rows, block, tile):
    """Its accumulators too: a stage that is read at one of the reader's axes stops where the reader's region does."""
    a = te.placeholder((rows, 5), name="A")
    b = te.placeholder((5, 7), name="B")
    k = te.reduce_axis(5, name="k")
    c = te.compute((rows, 7), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    dag = ComputeDAG(te.compute((rows, 7), lambda i, j: c[i, 6 - j] * 2.0, name="D"))
    func = nest(
        dag,
        Split("D", "i", (block,)),
        ComputeAt("C", "D", "i.0"),
        CacheWrite("C"),
        Split("C", "i", (tile,)),
        Reorder("C", ("i.0", "i.1", "j")),
        ComputeAt("C.acc", "C", "i.0", "register"),
        Reorder("C.acc", ("k", "i", "j")),
        Unroll("C", "i.1"),
        Unroll("C.acc", "i"),
        Vectorize("C", "j"),
        Vectorize("C.acc", "j"),
    )
    assert all(isinstance(e, Const) for e in extents(func, *ForKind))


@pytest.mark.parametrize("rows", [13, 24])
def test_readers_that_end_elsewhere_bound_nothing(rows):
    """One reader is at a block of rows, the other one reads them all."""
    a = te.placeholder((rows, 7), name="A")
    c = te.compute((rows, 7), lambda i, j: a[i, j] + 1.0, name="C")
    d = te.compute((rows, 7), lambda i, j: c[i, j] * 2.0, name="D")
    k = te.reduce_axis(rows, name="k")
    dag = ComputeDAG(te.compute((rows, 7), lambda i, j: te.sum(c[k, j] * d[i, j], axis=k), name="E"))
    nest(
        dag,
        Split("E", "i", (5,)),
        Reorder("E", ("i.0", "i.1", "j", "k")),
        ComputeAt("D", "E", "i.0"),
        ComputeAt("C", "E", "i.0"),
    )


def test_the_last_block_of_a_reduction_ends_its_loop_and_is_not_tested_in_every_step():
    """10 in blocks of 4: the block is a point where its steps run, whose number says how many there are."""
    func = nest(
        matmul(2, 3, 10),
        CacheWrite("C"),
        Rfactor("C.acc", "k", 4, "outer"),
        ComputeAt("C.acc", "C", "j"),
        ComputeAt("C.acc.rf", "C.acc", "k.o", "register"),
        Reorder("C.acc.rf", ("k.i", "k.o", "i", "j")),
    )
    steps = [s for s in loops(func, ForKind.SERIAL) if str(s.var).endswith("k.i")]
    assert [str(s.extent) for s in steps] == ["min(4, 10 - C.acc.k.o*4)"]
    assert not conditions(steps[0])
    assert all(isinstance(s.extent, Const) for s in walk(steps[0].body) if isinstance(s, For))
