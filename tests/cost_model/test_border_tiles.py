"""Tiles of pipelines at the borders of tensors, and the memory that strips of them move, in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autosched.ir.closed_forms.arithmetic import ZERO, real
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import INDEX, Binary, Const, Expr, Param, Select, Var, binary, ceildiv, const, imax, imin
from autosched.ir.stmt import Allocate, ForKind, Func, Scope, Seq, Store
from autosched.target import MICROARCHITECTURES, parse_target
from cost_model.analysis.border_tiles import has_clipped_remainder, is_clipped, share_of_whole_tiles
from cost_model.analysis.statements import Statement, analyse
from cost_model.analysis.traffic import pages_walked, unless_all_pages_fit
from cost_model.analysis.trips import AnalysedLoop
from cost_model.cpu.latency import statement_cost
from cost_model.cpu.machine import Machine, machine
from tests.cost_model import nests

ZEN4 = parse_target("llvm -mcpu=znver4")
T = Param("t")


def loop(name: str, trips: Expr | int) -> AnalysedLoop:
    bound = trips if isinstance(trips, Expr) else Const(trips, INDEX)
    return AnalysedLoop(1, Var(name), bound, real(bound), ForKind.SERIAL, False)


def value(e: Expr, **params: int) -> float:
    return float(np.ravel(Program([e], tuple(params))(np.array([list(params.values())], np.int64).reshape(1, -1)))[0])


@pytest.mark.parametrize("tile", [1, 3, 8, 20, 40, 64])
def test_tiles_whose_halo_is_inside_are_counted(tile: int) -> None:
    """A halo of one point on both sides of tiles of an axis of 40, written with comparisons or with clipped ends."""
    tiles = loop("v", ceildiv(40, T))
    first, end = tiles.var * T - 1, tiles.var * T + T + 1
    compared = (first >= const(0)) & (end <= const(40))
    clipped = imax(first, const(0)) + T + 2 <= imin(end, const(40))
    inside = [v * tile - 1 >= 0 and v * tile + tile + 1 <= 40 for v in range(-(-40 // tile))]
    for guard in (compared, clipped):
        assert value(share_of_whole_tiles(guard, [tiles]), t=tile) == pytest.approx(
            np.mean(inside), abs=0.35 / len(inside)
        )


def test_tiles_inside_along_two_axes_and_in_two_loops() -> None:
    """Of 4 x 5 rows of tiles the first is at the border, of 10 columns the first and the last."""
    outer, inner, columns = loop("a", 4), loop("b", 5), loop("j", 10)
    rows = outer.var * 40 + inner.var * 8 - 2 >= const(0)
    across = (columns.var * 16 - 1 >= const(0)) & (columns.var * 16 + 17 <= const(160))
    assert value(share_of_whole_tiles(rows & across, [outer, inner, columns])) == pytest.approx(19 / 20 * 8 / 10)
    assert value(share_of_whole_tiles(rows, [loop("c", 3)])) == 0.0  # these loops have nothing to do with it


@pytest.mark.parametrize(("tile", "want"), [(16, 1.0), (200, 0.0)])
def test_extents_are_clipped_at_run_time_where_there_are_several_tiles(tile: int, want: float) -> None:
    tiles = loop("v", ceildiv(200, T))
    first = imax(tiles.var * T - 1, const(0))
    extent = imin(const(16), imin(const(200), tiles.var * T + T + 1) - first)
    assert value(is_clipped(extent, [tiles]), t=tile) == want
    assert is_clipped(imin(const(16), const(200) - tiles.var * T), [tiles]) is ZERO  # a tail has a constant extent


@pytest.mark.parametrize(("tile", "want"), [(16, 1.0), (200, 0.0)])
def test_lanes_of_a_quotient_whose_remainder_only_run_time_tells(tile: int, want: float) -> None:
    tiles, lanes = loop("v", ceildiv(200, T)), loop("w", 16)
    clipped = binary("floordiv", imax(tiles.var * T - 1, const(0)) + lanes.var, const(2))
    whole = binary("floordiv", tiles.var * T - 1 + lanes.var, const(2))
    assert value(has_clipped_remainder(clipped, [tiles, lanes], lanes.var), t=tile) == want
    assert has_clipped_remainder(whole, [tiles, lanes], lanes.var) is ZERO


def strips(rows: int, columns: int) -> Statement:
    """out = a + b in strips of t columns over all rows."""
    i, j = nests.Axis("i", rows, ()), nests.Axis("j", columns, ("t",))
    at = (i.value(), j.value())
    store = Store(("out",), at, (nests.load("a", *at) + nests.load("b", *at),), None, "out")
    body = nests.nest([j.loop(0), i.loop(0), j.loop(1, ForKind.VECTORIZE)], store)
    buffers = [nests.buffer(name, rows, columns) for name in ("a", "b", "out")]
    (statement,) = analyse(Func("strips", tuple(buffers), 1, body), machine(ZEN4, 1).geometry).statements
    return statement


def core_and_memory(statement: Statement, which: Machine, **params: int) -> list[float]:
    cost = statement_cost(statement, which)
    return [value(e, **params) for e in (cost.core, *cost.memory)]


def changed_uarch(**fields: Any) -> Machine:
    cpu = machine(ZEN4, 1)
    return replace(cpu, uarch=replace(cpu.uarch, **fields))


@pytest.mark.parametrize(("rows", "tile", "factor"), [(1000, 128, 1.5), (1000, 512, 1 + 640 / 2048), (1000, 1024, 1.0)])
def test_strips_read_beyond_the_ends_of_their_rows(rows: int, tile: int, factor: float) -> None:
    plain = changed_uarch(overrun_share=0.0, page_walk=0.0)
    run_on = changed_uarch(page_walk=0.0)
    before, after = (core_and_memory(strips(rows, 1024), which, t=tile)[2] for which in (plain, run_on))
    assert after / before == pytest.approx(factor)
    low = [core_and_memory(strips(16, 65536), which, t=tile)[2] for which in (plain, run_on)]
    assert low[0] == low[1] > 0.0  # what is read beyond stays in L2 until the next strip


def test_pages_are_walked_to_where_all_together_are_out_of_reach() -> None:
    """Three matrices of 1024 rows of a page are 3072 pages; of 2048 rows each strip enters 6144 anew."""
    for rows, want in ((1000, 0.0), (2048, 3 * 2048 * 16.0)):
        statement = strips(rows, 1024)
        walked = [pages_walked(statement, a, 3072.0) for a in statement.accesses]
        found = sum(value(unless_all_pages_fit(statement, w, 3072.0), t=64) for w in walked)
        assert found == pytest.approx(want, rel=0.02)
    many, free = (
        core_and_memory(strips(2048, 1024), which, t=64)[2] for which in (changed_uarch(), changed_uarch(page_walk=0.0))
    )
    assert many - free == pytest.approx(3 * 2048 * 16 * MICROARCHITECTURES["znver4"].page_walk, rel=0.02)


def test_writing_back_takes_as_long_as_fetching_or_no_time() -> None:
    free, dear = (
        core_and_memory(strips(1000, 1024), changed_uarch(write_back=w, page_walk=0.0), t=1024) for w in (0.0, 1.0)
    )
    assert [d / f for d, f in zip(dear[1:3], free[1:3], strict=True)] == pytest.approx([4 / 3, 4 / 3])


@pytest.mark.parametrize(("offsets", "waits"), [((0,), 0), ((0, 1), 1)])
def test_a_buffer_read_at_neighbouring_places_is_waited_for_each_time_that_it_is_filled(
    offsets: tuple[int, ...], waits: int
) -> None:
    v, w, x = Var("v"), Var("w"), Var("x")
    fill = Store(("row",), (w,), (nests.load("a", v, w),), None, "row")
    read = [nests.load("row", x + o) for o in offsets]
    use = Store(("out",), (v, x), (read[0] + read[-1] * 2.0,), None, "out")
    width = Const(64, INDEX)
    lanes = [nests.nest([(n, width, width, ForKind.VECTORIZE, False)], s) for n, s in ((w, fill), (x, use))]
    row = nests.buffer("row", 80, scope=Scope.LOCAL)
    rows = Const(100, INDEX)
    body = nests.nest([(v, rows, rows, ForKind.SERIAL, False)], Allocate(row, Seq(tuple(lanes))))
    func = Func("rows", (nests.buffer("a", 100, 80), nests.buffer("out", 100, 80)), 1, body)
    _, consumer = analyse(func).statements
    waiting, costless = (core_and_memory(consumer, changed_uarch(unaligned_forward=c), t=1)[0] for c in (20.0, 0.0))
    assert waiting - costless == pytest.approx(waits * 100 * 20.0)


def test_what_only_blocks_at_a_border_read_is_not_counted() -> None:
    i = Var("i")
    inside = Binary("ge", i, Const(1, INDEX))
    clamped = Select(inside, nests.load("x", i - 1), nests.load("x", Const(0, INDEX)))
    joined = Select(inside, nests.load("x", i - 1), nests.load("y", i))
    for read, want in ((clamped, ["x"]), (joined, ["x", "y"])):
        body = nests.nest([(i, Const(64), Const(64), ForKind.VECTORIZE, False)], Store(("out",), (i,), (read,)))
        func = Func("edge", tuple(nests.buffer(n, 64) for n in ("x", "y", "out")), 1, body)
        (statement,) = analyse(func).statements
        assert [a.buffer.name for a in statement.accesses[1:]] == want
