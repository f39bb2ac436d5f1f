"""Steps that change the loops of a stage: exact results and no point twice, whatever the extents."""

from __future__ import annotations

import math

import pytest

from autosched import te
from autosched.ir.printer import func_text
from autosched.ir.stmt import For, ForKind, Func, Prefetch, walk
from autosched.lower import concretise, lower
from autosched.schedule import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    FetchAhead,
    Fuse,
    Pack,
    Parallel,
    Reorder,
    Split,
    Step,
    Stream,
    Unroll,
    Vectorize,
    initial_state,
)
from autosched.schedule import Prefetch as PrefetchStep
from autosched.te import ComputeDAG
from tests.helpers import check_nest
from tests.schedule.graphs import GRAPHS, argmax, chain, conv1d, dense_relu, matmul, row_any, shifted, total, vectors

EXTENTS = (1, 2, 3, 5, 7, 12, 13, 17, 31)


def nest(dag: ComputeDAG, *steps: Step) -> Func:
    return concretise(lower(initial_state(dag).apply(*steps)), {})[0]


def points(dag: ComputeDAG) -> dict[str, int]:
    """How often each stage stores, and how often it stores start values, when every point is visited once."""
    counts: dict[str, int] = {}
    for op in dag.stages:
        space = math.prod(op.shape)
        counts[op.name] = space * math.prod(a.extent for a in op.reduce_axes)
        if op.reducer is not None:
            counts[f"{op.name}.init"] = space
    return counts


def check(dag: ComputeDAG, *steps: Step) -> Func:
    func = nest(dag, *steps)
    assert check_nest(func, dag) == points(dag), func_text(func)
    return func


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("factors", [(1,), (4,), (16,), (2, 3), (5, 4), (1, 7), (3, 2, 2), (32, 2)])
def test_a_split_visits_every_point_once(extent, factors):
    dag = matmul(extent, 2, extent)
    check(dag, Split("C", "i", factors), Split("C", "k", factors))


@pytest.mark.parametrize("extent", EXTENTS)
def test_a_split_in_any_order_of_its_loops(extent):
    dag = matmul(extent, 1, 3)
    for order in ("i.2 i.0 k i.1", "k i.1 i.2 i.0", "i.1 i.0 i.2 k", "i.2 k i.1 i.0"):
        check(dag, Split("C", "i", (2, 3)), Reorder("C", tuple(order.split())))


def test_a_reorder_leaves_the_loops_it_does_not_name():
    state = initial_state(matmul(3, 5, 7)).apply(Split("C", "i", (2,)), Reorder("C", ("k", "i.0")))
    assert [x.name for x in state.stage("C").loops] == ["k", "i.1", "j", "i.0"]


@pytest.mark.parametrize("order", ["i j k", "i k j", "j i k", "j k i", "k i j", "k j i"])
def test_start_values_are_stored_just_outside_the_reduction(order):
    func = check(matmul(3, 5, 7), Reorder("C", tuple(order.split())))
    loops = [s.var.name for s in walk(func.body) if isinstance(s, For)]
    before = order.split("k")[0].split()
    after = [f"C.{x}.init" for x in order.split() if x not in before and x != "k"]
    assert loops == [*(f"C.{x}" for x in before), *after, *(f"C.{x}" for x in order.split()[len(before) :])]


@pytest.mark.parametrize("extent", EXTENTS)
def test_fused_loops(extent):
    dag = matmul(extent, 7, 3)
    check(dag, Fuse("C", ("i", "j")))
    check(dag, Split("C", "i", (2,)), Split("C", "j", (3,)), Fuse("C", ("i.1", "j.0")))
    check(dag, Split("C", "i", (4,)), Fuse("C", ("i.0", "i.1", "j")), Parallel("C", ("i.0@i.1@j",)))


def test_fused_reduction_loops():
    dag = conv1d(7, 5, 3)
    check(dag, Fuse("C", ("a", "b")))
    check(dag, Split("C", "b", (2,)), Fuse("C", ("a", "b.0", "b.1")), Unroll("C", "a@b.0@b.1"))


def test_a_fused_loop_with_a_tail_stays_directly_inside_the_parallel_ones():
    func = check(
        matmul(7, 5, 3),
        Split("C", "i", (2, 2)),
        Split("C", "j", (2,)),
        Reorder("C", ("i.0", "i.1", "j.0", "i.2", "j.1", "k")),
        Fuse("C", ("i.0", "i.1")),
        Parallel("C", ("i.0@i.1", "j.0")),
    )
    outer = func.body
    assert isinstance(outer, For)
    assert isinstance(outer.body, For)


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("kind", [Unroll, Vectorize])
def test_annotated_tails(extent, kind):
    dag = matmul(extent, 3, 5)
    order = Reorder("C", ("i.0", "j", "k", "i.1"))
    check(dag, Split("C", "i", (4,)), order, kind("C", "i.1"))
    check(dag, Split("C", "i", (16,)), order, kind("C", "i.1"), Parallel("C", ("i.0", "j")))
    check(dag, Reorder("C", ("j", "k", "i")), kind("C", "i"))


@pytest.mark.parametrize("extent", EXTENTS)
def test_an_annotated_reduction(extent):
    dag = matmul(2, 3, extent)
    check(dag, Split("C", "k", (4,)), Unroll("C", "k.1"))
    check(dag, Split("C", "k", (8,)), Vectorize("C", "k.1"))
    check(dag, Split("C", "k", (2, 8)), Unroll("C", "k.1"), Vectorize("C", "k.2"))
    check(row_any(3, extent), Split("R", "k", (8,)), Vectorize("R", "k.1"))
    check(argmax(3, extent), Split("R", "k", (4,)), Vectorize("R", "k.1"), Parallel("R", ("i",)))
    check(
        total(3, extent),
        Split("S", "k", (4,)),
        Vectorize("S", "k.1"),
        Split("S", "l", (2,)),
        Reorder("S", ("k.0", "l.0")),
    )


def test_a_reduction_of_everything_has_no_spatial_loop():
    dag = total(7, 13)
    check(dag, Split("S", "k", (5,)), Reorder("S", ("k.1", "l", "k.0")), Unroll("S", "k.0"))


@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_split_reordered_parallel_and_vectorised(name):
    dag = GRAPHS[name]()
    func = concretise(lower(vectors(dag, 4)), {})[0]
    assert check_nest(func, dag) == points(dag)


def prefetches(func: Func) -> list[Prefetch]:
    return [s for s in walk(func.body) if isinstance(s, Prefetch)]


def test_a_prefetch_asks_for_what_is_read_later():
    func = check(matmul(3, 5, 7), Split("C", "k", (2,)), PrefetchStep("C", "B", "k.0", 3))
    (hint,) = prefetches(func)
    assert str(hint) == "prefetch B[C.k.0*2 + C.k.0.later0.row + 6, C.j]"


def test_a_prefetch_asks_for_every_line_of_an_iteration():
    """Two rows of 40 floats, three lines each."""
    tiles = Split("C", "k", (2,)), Reorder("C", ("i", "k.0", "k.1", "j"))
    func = check(matmul(3, 40, 7), *tiles, PrefetchStep("C", "B", "k.0", 3, 2))
    (hint,) = prefetches(func)
    assert str(hint) == "prefetch B[C.k.0*2 + C.k.0.later0.row + 6, C.k.0.later0*16] to L2"
    rows, lines = (s for s in walk(func.body) if isinstance(s, For) and s.kind is ForKind.UNROLL)
    assert (str(rows.extent), str(lines.extent), lines.body) == ("2", "3", hint)


def test_lanes_ask_for_nothing_of_their_own():
    vectors = Split("C", "j", (8,)), Reorder("C", ("i", "k", "j.0", "j.1")), Vectorize("C", "j.1")
    assert not prefetches(check(matmul(3, 20, 7), *vectors, PrefetchStep("C", "B", "j.1", 1)))


def test_a_prefetch_in_an_attached_stage_is_relative_to_its_buffer():
    func = check(chain(5, 7), ComputeAt("B", "M", "i"), PrefetchStep("M", "B", "j", 2))
    assert [str(h) for h in prefetches(func)] == ["prefetch B[0, M.j + 2]"]


def test_the_rows_of_a_later_tile_are_fetched_line_by_line():
    """Tiles of 2 x 7 points; what lies beyond the last tile of a row of tiles is the first of the next one."""
    tiles = Split("D", "i", (2,)), Split("D", "j", (7,)), Reorder("D", ("i.0", "j.0", "i.1", "j.1"))
    steps = *tiles, ComputeAt("C", "D", "j.0"), FetchAhead("D", "j.0", "C", "A", 1)
    (hint,) = prefetches(check(dense_relu(5, 14, 40), *steps))
    assert str(hint) == "prefetch A[D.i.0*2 + D.j.0.ahead0.row + (D.j.0 + 1)//2*2, D.j.0.ahead0*16]"


def test_the_iterations_inside_a_tile_share_its_lines():
    """33 floats are 3 lines: one for each of the 5 iterations, two of them twice."""
    steps = ComputeAt("C", "D", "i"), FetchAhead("D", "j", "C", "A", 2)
    func = check(dense_relu(4, 5, 33), *steps)
    assert [str(h) for h in prefetches(func)] == ["prefetch A[D.i + 2, D.j%3*16]"]


def test_the_reduction_of_a_tile_asks_for_the_next_one():
    """2 x 70 floats are 5 lines twice, 3 in each of 4 steps; after a column's last tile comes the next one's first."""
    tiles = Split("D", "i", (2,)), Split("D", "j", (7,)), Reorder("D", ("j.0", "i.0", "i.1", "j.1"))
    tile = Split("C", "k", (20,)), Reorder("C", ("k.0", "i", "j", "k.1")), FetchAhead("C", "k.0", "C", "A", 1)
    (hint,) = prefetches(check(dense_relu(5, 14, 70), *tiles, ComputeAt("C", "D", "i.0"), *tile))
    row, line = "(D.i.0 + 1)%3*2 + C.k.0//2", "min(4, C.k.0.ahead0 + C.k.0%2*3)"
    assert str(hint) == f"prefetch A[{row}, {line}*16]"


def test_tiles_that_read_the_same_rows_share_the_lines_of_the_next_ones():
    """2 x 70 floats are 5 lines twice: 2 in each of 4 steps of 2 tiles, 3 steps for a row."""
    tiles = Split("D", "i", (2,)), Split("D", "j", (7,)), Reorder("D", ("i.0", "j.0", "i.1", "j.1"))
    tile = Split("C", "k", (20,)), Reorder("C", ("k.0", "i", "j", "k.1")), FetchAhead("C", "k.0", "C", "A", 1)
    (hint,) = prefetches(check(dense_relu(5, 14, 70), *tiles, ComputeAt("C", "D", "j.0"), *tile))
    row, line = "(C.k.0 + D.j.0*4)//3%2", "min(4, C.k.0.ahead0 + (C.k.0 + D.j.0*4)%3*2)"
    assert str(hint) == f"prefetch A[D.i.0*2 + {row} + 2, {line}*16]"
    func = nest(dense_relu(5, 14, 70), *tiles, ComputeAt("C", "D", "j.0"), Parallel("D", ("i.0", "j.0")), *tile)
    (hint,) = prefetches(func)  # which task is next on a thread is not known
    assert "C.k.0%2*3" in str(hint)


def test_a_tile_asks_for_the_source_of_the_next_copy():
    """A copy of two rows for the columns inside: 10 lines, by 14 columns of 4 steps each."""
    copies = CacheRead("A", "C", "copy"), Split("D", "i", (2,)), Reorder("D", ("i.0", "j", "i.1"))
    computed = ComputeAt("C", "D", "j"), ComputeAt("A.copy", "D", "i.0")
    tile = Split("C", "k", (20,)), Reorder("C", ("k.0", "i", "j", "k.1")), FetchAhead("C", "k.0", "A.copy", "A", 1)
    func = nest(dense_relu(5, 14, 70), *copies, *computed, *tile)
    check_nest(func, dense_relu(5, 14, 70))
    (hint,) = prefetches(func)
    assert str(hint) == "prefetch A[D.i.0*2 + (C.k.0 + D.j*4)//5%2 + 2, (C.k.0 + D.j*4)%5*16]"


def test_a_tile_asks_for_the_next_panel():
    """Panels [j // 20][k][j % 20] of 7 rows of 20 floats, two lines each: 14 lines, by 3 tiles of 7 steps, one a step;
    the steps that are left ask for the first rows again."""
    copies = CacheRead("B", "C", "pack"), Pack("B.pack", (1, 0), ((1, 20),))
    tiles = Split("D", "i", (2,)), Split("D", "j", (20,)), Reorder("D", ("j.0", "i.0", "i.1", "j.1"))
    tile = ComputeAt("C", "D", "i.0"), Reorder("C", ("k", "i", "j")), FetchAhead("C", "k", "C", "B.pack", 1, 2)
    dag = dense_relu(5, 40, 7)
    func = nest(dag, *copies, *tiles, *tile)
    check_nest(func, dag)
    (hint,) = prefetches(func)
    row, column = "(C.k + D.i.0*7)//2%7", "D.j.0*20 + (C.k + D.i.0*7)%2*16 + 20"
    assert str(hint) == f"prefetch B.pack[{row}, {column}] to L2"


def test_a_fetch_of_what_is_computed_inside_since_is_dropped():
    copies = CacheRead("B", "C", "pack"), ComputeAt("C", "D", "i"), FetchAhead("C", "k", "C", "B.pack", 1)
    func = nest(dense_relu(4, 5, 3), *copies, ComputeAt("B.pack", "D", "i"))
    check_nest(func, dense_relu(4, 5, 3))
    assert not prefetches(func)


def test_a_tile_asks_for_the_next_place_in_the_output():
    """2 x 32 floats of rows of 96 are 4 lines; rows of 97 begin anywhere: 6, the last one where the row's part ends."""
    tiles = Split("D", "i", (2,)), Split("D", "j", (32,)), Reorder("D", ("i.0", "j.0", "i.1", "j.1"))
    tile = ComputeAt("C", "D", "j.0"), Reorder("C", ("k", "i", "j")), FetchAhead("C", "k", "C", "D", 1)
    (hint,) = prefetches(check(dense_relu(5, 96, 7), *tiles, *tile))
    assert hint.writes
    row, column = "D.i.0*2 + (D.j.0 + 1)//3*2", "(D.j.0 + 1)%3*32"
    assert str(hint) == f"prefetch D[{row} + C.k//2%2, {column} + C.k%2*16] to write"
    (hint,) = prefetches(check(dense_relu(5, 97, 7), *tiles, *tile))
    assert str(hint.indices[1]) == "(D.j.0 + 1)%4*32 + min(31, C.k%3*16)"


def test_a_tile_asks_for_the_next_place_in_a_buffer_of_its_own():
    """Rows of 32 floats of a copy of 2 rows, two lines each; indices are those in the copy."""
    outer = CacheWrite("D"), Split("D", "i", (2,)), Reorder("D", ("i.0", "i.1", "j")), ComputeAt("D.acc", "D", "i.0")
    tiles = Split("D.acc", "j", (32,)), Reorder("D.acc", ("j.0", "i", "j.1"))
    tile = ComputeAt("C", "D.acc", "j.0"), Reorder("C", ("k", "i", "j")), FetchAhead("C", "k", "C", "D.acc", 1)
    func = nest(dense_relu(5, 96, 7), *outer, *tiles, *tile)
    check_nest(func, dense_relu(5, 96, 7))
    (hint,) = prefetches(func)
    assert str(hint) == "prefetch D.acc[C.k//2%2, (D.acc.j.0 + 1)%3*32 + C.k%2*16] to write"


@pytest.mark.parametrize(("columns", "line"), [(96, "C.k%2*16"), (97, "min(31, C.k%3*16)")])
def test_a_tile_asks_for_what_is_read_with_the_next_one(columns, line):
    """2 x 32 floats of a residual: 4 lines of rows of 96; rows of 97 begin anywhere."""
    a, b = te.placeholder((5, 7), name="A"), te.placeholder((7, columns), name="B")
    x = te.placeholder((5, columns), name="X")
    k = te.reduce_axis(7, "k")
    c = te.compute((5, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    dag = ComputeDAG(te.compute((5, columns), lambda i, j: c[i, j] + x[i, j], name="D"))
    tiles = Split("D", "i", (2,)), Split("D", "j", (32,)), Reorder("D", ("i.0", "j.0", "i.1", "j.1"))
    tile = ComputeAt("C", "D", "j.0"), Reorder("C", ("k", "i", "j")), FetchAhead("C", "k", "C", "X", 1)
    (hint,) = prefetches(check(dag, *tiles, *tile))
    n_tiles = -(-columns // 32)
    assert str(hint.indices[0]).startswith(f"D.i.0*2 + (D.j.0 + 1)//{n_tiles}*2")
    assert str(hint.indices[1]) == f"(D.j.0 + 1)%{n_tiles}*32 + {line}"
    assert not hint.writes


def test_an_output_that_goes_around_the_caches_is_not_fetched():
    steps = ComputeAt("C", "D", "i"), FetchAhead("C", "k", "C", "D", 1), Vectorize("D", "j"), Stream("D")
    assert not prefetches(nest(dense_relu(4, 16, 3), *steps))


def test_a_fetch_of_what_another_stage_has_copied_is_dropped():
    steps = ComputeAt("C", "D", "i"), FetchAhead("D", "j", "C", "A", 1), CacheRead("A", "C", "copy")
    func = nest(dense_relu(4, 5, 3), *steps)
    check_nest(func, dense_relu(4, 5, 3))
    assert not prefetches(func)


def test_nothing_is_prefetched_from_a_buffer_that_does_not_exist_yet():
    state = initial_state(shifted(13, 5)).apply(PrefetchStep("Z", "Y", "i", 7), ComputeAt("Y", "Z", "i"))
    func = concretise(lower(state), {})[0]
    check_nest(func, shifted(13, 5))
    assert not prefetches(func)
