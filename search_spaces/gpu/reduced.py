"""Reductions along the columns of a product of matrices where the product is, on tensor cores: sums of squares of rows,
their maxima, what a loss or a norm needs of them. The product is never stored.

    blocks m.0, parts.0:  warps m.1 by parts.1 (z):  lanes of a warp, 8 along m (y) by 4 along a part's columns (x)
      the product as in `matrices.py`, in registers: m.2 by j.0 tiles of 16 by 8
      each thread reduces its columns of a tile row, the four lanes of a row by shuffles, and the first one writes

What is asked is whether all that is read of the product is its element at the row and the column of the reduction, with
elementwise work in between at most, by nobody else. One warp has all columns where they are few; or each has a part of
them, and what the parts give is combined by another kernel, always in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autosched.ir.expr import Load
from autosched.ir.matrices import ACROSS, DOWN, HALVES, NEIGHBOURS
from autosched.ir.visit import free_vars
from autosched.schedule import AcrossLanes, ComputeInline, Fuse, Reorder, Split, Stage, State, Step, Unroll
from autosched.schedule.stage import StageAxis
from search_spaces.gpu import domains
from search_spaces.gpu.binding import bind_blocks, bind_threads, size
from search_spaces.gpu.matrices import Matrices, matrix_product, multiplied
from search_spaces.gpu.rows import reduction_alternatives, split_reduction
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext
from search_spaces.space import SketchParam

MOST_ACROSS = 128  # columns that a warp has of its rows
TILE = ACROSS * NEIGHBOURS


class ReducedProducts:
    """The reduction where the product is; then what other rules do with it, for a product that is stored."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return _reduced(sketch, stage, context) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        found = _reduced(sketch, stage, context)
        assert found is not None
        columns = size(stage.op.reduce_axes[0])
        here: list[Alternative] = []
        if columns <= MOST_ACROSS:
            here.append(partial(_in_lanes, found, stage.name, context))
        if columns > TILE:
            here.append(partial(_in_parts, found, stage.name, context))
        return [*here, *reduction_alternatives(sketch, stage, context)]


@dataclass(frozen=True)
class _Rows:
    """Of a reduction: its axes other than those along which the product has rows and columns, the rows, and the parts
    of columns, if there are some."""

    others: tuple[StageAxis, ...]
    rows: StageAxis
    parts: StageAxis | None
    columns: StageAxis


def _reduced(sketch: PartialSketch, stage: Stage, context: SketchContext) -> Matrices | None:
    """The product whose columns the stage reduces, in a sketch in which nothing is between the two."""
    op = stage.op
    if op.reducer is None or (len(op.body), len(op.reduce_axes)) != (1, 1) or op.guards or stage.at is not None:
        return None
    sketch = _joined(sketch, stage.name)
    state, op = sketch.state, sketch.state.stage(stage.name).op
    columns, points = op.reduce_axes[0].var, {a.var for a in op.axes}
    makers = [m for b in dict.fromkeys(x.buffer for x in op.loads) if (m := state.producer(b)) is not None]
    found = [p for m in makers if _is_private(state, m) and (p := matrix_product(sketch, m.name, context)) is not None]
    if len(found) != 1:
        return None
    read = list(dict.fromkeys(op.loads_from(*found[0].stage.op.buffers)))
    place = read[0].indices
    is_row = len(read) == 1 and place[-1] is columns and len(place) == len(points) + 1 and {*place[:-1]} == points
    return found[0] if is_row else None


def _joined(sketch: PartialSketch, name: str) -> PartialSketch:
    """The stage with the elementwise work that is done for it alone on results of reductions."""
    while True:
        state, op = sketch.state, sketch.state.stage(name).op
        column = op.reduce_axes[0].var
        made = (_maker(sketch, x) for x in op.loads if any(column in free_vars(i) for i in x.indices))
        between = next((m for m in made if m is not None and _is_of_reduction(state, m)), None)
        if between is None:
            return sketch
        sketch = sketch.apply(ComputeInline(between.name))


def _maker(sketch: PartialSketch, load: Load) -> Stage | None:
    """The elementwise stage that makes what is read, for this reader alone."""
    maker = sketch.state.producer(load.buffer)
    is_free = maker is not None and maker.op.reducer is None and maker.name not in sketch.done
    return maker if maker is not None and is_free and _is_private(sketch.state, maker) else None


def _is_private(state: State, stage: Stage) -> bool:
    return stage.at is None and not state.is_output(stage) and len(state.consumers(stage)) == 1


def _is_of_reduction(state: State, stage: Stage) -> bool:
    makers = [m for b in stage.op.reads if (m := state.producer(b)) is not None]
    return any(m.op.reducer is not None or _is_of_reduction(state, m) for m in makers)


def _in_lanes(found: Matrices, name: str, context: SketchContext) -> PartialSketch:
    """A warp has all columns of its rows."""
    stage = found.sketch.state.stage(name)
    sketch = _bind(found.sketch, stage, _axes_of(found, stage, None))
    return multiplied(sketch, found, name, found.name, True, context).finish(note=f"{name}:lanes")


def _in_parts(found: Matrices, name: str, context: SketchContext) -> PartialSketch:
    """Each warp has a part of the columns."""
    stage = found.sketch.state.stage(name)
    columns = stage.op.reduce_axes[0]
    lengths = tuple(TILE * n for n in domains.powers(MOST_ACROSS // TILE) if TILE * n < size(columns))
    length = SketchParam(f"{name}.{columns.name}.b", lengths, "tile")
    sketch, made = split_reduction(found.sketch.with_params([length]), stage, columns, length.name)
    part = sketch.state.stage(made)
    sketch = _bind(sketch, part, _axes_of(found, part, part.op.axes[0]))
    return multiplied(sketch, found, made, found.name, True, context).finish(made, note=f"{name}:lanes-of-parts")


def _axes_of(found: Matrices, stage: Stage, parts: StageAxis | None) -> _Rows:
    [place] = {x.indices for x in stage.op.loads_from(*found.stage.op.buffers)}
    var = place[found.stage.op.axes.index(found.product.rows)]
    rows = next(a for a in stage.op.axes if a.var is var)
    others = tuple(a for a in stage.op.axes if a is not rows and a is not parts)
    return _Rows(others, rows, parts, stage.op.reduce_axes[0])


def _bind(sketch: PartialSketch, stage: Stage, axes: _Rows) -> PartialSketch:
    """The stage's loops as blocks, warps, the lanes of a warp, and tiles with the points and columns of a thread."""
    name, group, tiles = stage.name, f"{stage.name}.{axes.rows.name}", -(-size(axes.rows) // (HALVES * DOWN))
    params = [domains.warps(f"{group}.w", tiles, group), domains.matrix_tiles(f"{group}.s", tiles, group)]
    m, n = ([f"{a.name}.{level}" for level in range(5)] for a in (axes.rows, axes.columns))
    steps: list[Step] = [
        Split(name, axes.rows.name, (*(p.name for p in params), HALVES, DOWN)),
        Split(name, axes.columns.name, (ACROSS, NEIGHBOURS)),
    ]
    blocks, warps, extents = [*(a.name for a in axes.others), m[0]], m[1], [size(a) for a in (*axes.others, axes.rows)]
    if axes.parts is None:
        order = (*blocks, m[1], m[4], n[1], m[2], n[0], m[3], n[2])
        steps.append(Reorder(name, order))
    else:
        parts = axes.parts.name
        params.append(domains.warps(f"{name}.{parts}.w", domains.MOST_WARPS, f"{name}.{parts}"))
        blocks, warps = [*blocks, f"{parts}.0"], f"{m[1]}@{parts}.1"
        extents.append(size(axes.parts))
        order = (*blocks, m[1], f"{parts}.1", m[4], n[1], m[2], n[0], m[3], n[2])
        steps += [Split(name, parts, (params[-1].name,)), Reorder(name, order), Fuse(name, (m[1], f"{parts}.1"))]
    steps += bind_blocks(name, blocks, extents)
    steps += bind_threads(name, [warps, m[4], n[1]])[:2]
    steps += [Unroll(name, x) for x in (m[2], n[0], m[3], n[2])]
    return sketch.with_params(params).apply(*steps, AcrossLanes(name, n[1]))
