"""Overlapped tiles and strips: a stage in tiles, and the stages that it reads computed for each tile.

    for i.0, j.0:  Y[tile] from B[tile and halo] from A[tile and larger halo]          instead of A, then B, then Y

An intermediate value that is in the cache when it is read costs no traffic to memory; values of halos are computed once
for each tile that reads them. In a strip, tiles are a few rows, one after another, and rows that the tile
before has computed are kept (`lower/symbolic/sliding.py`): halos only cost at the ends of a strip.
The loop over tiles is a row loop, where `Placement` computes the producers, and `TileReduction` reductions over a
stage that another one reads as well: a mean weighted by stored weights, and their sum.
"""

from __future__ import annotations

from dataclasses import replace

from autosched.ir.expr import Expr
from autosched.ir.linear import ONE, linear
from autosched.ir.stmt import Scope
from autosched.ir.visit import free_vars
from autosched.schedule import CacheWrite, ComputeAt, Parallel, Reorder, Split, Stage, Step, Unroll, Vectorize
from autosched.schedule.stage import StageAxis
from search_spaces.access import extent, points
from search_spaces.cpu.accumulate import unrolled_accumulator
from search_spaces.cpu.domains import tile_count, vector_width
from search_spaces.partial_sketch import PartialSketch, SketchContext, row_loop_of_readers
from search_spaces.pipelines import TileAxes, has_own_lanes, shared_intermediates, tile_axes, tile_producers
from search_spaces.space import SketchParam

TILES = (2, 4, 8, 16, 32, 64, 128, 256)  # points of a tile along an axis that is no vector
ROWS = (1, 2, 4)  # that are computed together
CACHED_POINTS = 1 << 12  # of a stage up to which its producers stay in a cache without tiles


def overlapped_tiles(
    sketch: PartialSketch, stage: Stage, vectors: tuple[int, ...], context: SketchContext
) -> list[PartialSketch]:
    """Return the stage in tiles with a row loop for its producers, and in strips along which they slide; nothing where
    no producer can be computed in a tile.

    `vectors`: the candidate numbers of vectors of the last axis that are computed together.
    """
    reducing = reducing_tiles(sketch, stage, vectors, context)
    producers = tile_producers(sketch.state, stage, sketch.done)
    if reducing or not producers or points(stage) <= CACHED_POINTS:
        return reducing
    axes, lanes = tile_axes(stage, producers, stage.op.axes[:-1]), context.lanes_of(stage)
    ways = (False, True) if axes.tiled else (False,)
    return [_in_tiles(sketch, stage, axes, lanes, vectors, slides=slides) for slides in ways]


def reducing_tiles(
    sketch: PartialSketch, stage: Stage, vectors: tuple[int, ...], context: SketchContext
) -> list[PartialSketch]:
    """Return the stage in tiles for reductions that it reads, with a stage that several of them or others read; nothing
    where there is no such stage. `vectors` as above."""
    producers = tile_producers(sketch.state, stage, sketch.done, with_reductions=True)
    if not shared_intermediates(sketch.state, producers) or points(stage) <= CACHED_POINTS:
        return []
    axes = tile_axes(stage, producers, stage.op.axes[:-1])
    return [_in_tiles(sketch, stage, axes, context.lanes_of(stage), vectors, reduces=True)]


class TileReduction:
    """A reduction in the tiles of its readers: sums of a vector or a few in registers."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        row = row_loop_of_readers(sketch, stage)
        return row is not None and row.reduces and has_own_lanes(stage)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        row = row_loop_of_readers(sketch, stage)
        assert row is not None
        name, acc, (*others, last) = stage.name, f"{stage.name}.acc", (a.name for a in stage.op.axes)
        width = vector_width(
            f"{name}.{last}.r", extent(stage.op.axes[-1]), context.lanes_of(stage), "", vectors=(1, 2, 4)
        )
        chunk, vector = f"{last}.0", f"{last}.1"
        steps = (Split(name, last, (width.name,)), Reorder(name, (*others, chunk, vector)), Vectorize(name, vector))
        sketch = sketch.with_params([width]).apply(CacheWrite(name), ComputeAt(name, row.stage, row.loop), *steps)
        sketch = sketch.apply(ComputeAt(acc, name, chunk, Scope.REGISTER.value)).finish(
            name, acc, note=f"{name}@{row.stage}"
        )
        return [unrolled_accumulator(sketch, sketch.state.stage(acc), last)]


def _in_tiles(
    sketch: PartialSketch, stage: Stage, axes: TileAxes, lanes: int, vectors: tuple[int, ...],
    slides: bool = False, reduces: bool = False,
) -> PartialSketch:  # fmt: skip
    """The stage in tiles, or in strips of several tiles along its first tiled axis, that producers slide along; a few
    rows along this axis are computed together."""
    name, last = stage.op.name, stage.op.axes[-1]
    params, steps, around, inside = list[SketchParam](), list[Step](), [a.name for a in axes.outer], list[str]()
    for axis in axes.tiled:
        tile = _tile(f"{name}.{axis.name}.t", extent(axis))
        block = [block_of_rows(stage, axis)] if axis is axes.tiled[0] else []
        params += [replace(tile, group=block[0].group, counts=True) if block else tile, *block]
        steps.append(Split(name, axis.name, (tile.name, *(p.name for p in block))))
        around.append(f"{axis.name}.0")
        inside.append(f"{axis.name}.1")
    group = f"{name}.{last.name}"
    columns = replace(tile_count(f"{group}.t", -(-extent(last) // lanes), group), extent=extent(last))
    vector = vector_width(f"{group}.r", extent(last), lanes, group, vectors=vectors)
    steps.append(Split(name, last.name, (columns.name, vector.name)))
    row_loop, rows = f"{last.name}.0", [f"{a.name}.2" for a in axes.tiled[:1]]
    if slides:
        around, (row_loop, *inside) = [*around, row_loop], inside
    order = (*around, row_loop, *(a.name for a in axes.inner), *inside, f"{last.name}.1", *rows, f"{last.name}.2")
    steps += [
        Reorder(name, order),
        Parallel(name, tuple(around) or (row_loop,)),
        *(Unroll(name, r) for r in rows),
        Vectorize(name, f"{last.name}.2"),
    ]
    made = sketch.with_params([*params, columns, vector]).apply(*steps)
    made = made.finish(name, note=f"{name}:{'strips' if slides else 'tiles'}")
    return made.with_row_loop(name, row_loop, slides, reduces)


def block_of_rows(stage: Stage, axis: StageAxis) -> SketchParam:
    """Return the number of rows along `axis` that are computed together: what they read in common is read once."""
    group, size = f"{stage.name}.{axis.name}", extent(axis)
    return SketchParam(f"{group}.r", tuple(r for r in ROWS if r <= size), "tile", group, size)


def shared_rows(stage: Stage) -> StageAxis | None:
    """Return the innermost axis, but for the last, along which the stage reads neighbours: rows that are computed
    together share what they read. None where there is none."""
    for axis in reversed(stage.op.axes[:-1]):
        places = dict[tuple[str, Expr], Expr]()
        for load in stage.op.loads:
            for index in load.indices:
                if axis.var in free_vars(index):
                    form = linear(index)
                    key = load.buffer, form.coefficient(axis.var)
                    if form.coefficient(axis.var) is ONE and places.setdefault(key, form.constant) is not form.constant:
                        return axis
    return None


def _tile(name: str, size: int) -> SketchParam:
    return SketchParam(name, tuple(sorted({*(n for n in TILES if n < size), min(size, TILES[-1])})), "tile", "", size)
