"""Reductions along the columns of a product of matrices where the product is, on tensor cores: sums of squares of rows,
their maxima, what a loss or a norm needs of them. The product is never stored.

    blocks m.0, parts.0:  warps m.1 by parts.1 (z):  lanes of a warp, 8 along m (y) by 4 along a part's columns (x)
      the product as in `matrices.py`, in registers: m.2 by j.0 tiles of 16 by 8
      each thread reduces its columns of a tile row, the four lanes of a row by shuffles, and the first one writes

What is asked is whether all that is read of the product is its element at the row and the column of the reduction, with
elementwise work in between at most, by nobody else. One warp has all columns where they are few; or each has a part of
them, and what the parts give is combined by another kernel, always in the same order. Where warpgroups can do the
product (`warpgroups.py`), the same is offered with these: a block then has the columns of one part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autosched.ir.expr import Load
from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, NEIGHBOURS
from autosched.ir.instructions.tiles import WARPS
from autosched.ir.visit import free_vars
from autosched.schedule import AcrossLanes, Bind, ComputeInline, Fuse, Reorder, Split, Stage, State, Step, Unroll
from autosched.schedule.stage import StageAxis
from search_spaces.gpu import domains
from search_spaces.gpu.matrices import Matrices, matrix_product, multiplied
from search_spaces.gpu.rows import reduction_alternatives, split_reduction
from search_spaces.gpu.thread_binding import bind_blocks, size
from search_spaces.gpu.warpgroups import TiledProduct, in_ring, products_of
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext
from search_spaces.space import SketchParam

LENGTHS = tuple(ACROSS * NEIGHBOURS * n for n in (1, 2, 4, 8, 16))  # columns that a warp has of its rows
GROUP_LENGTHS = tuple(ACROSS * NEIGHBOURS * n for n in domains.GROUP_COLUMNS)  # those of a warpgroup


class ReducedProducts:
    """The reduction where the product is; then what other rules do with it, for a product that is stored."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return _reduced(sketch, stage, context) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        found = _reduced(sketch, stage, context)
        assert found is not None
        here: list[Alternative] = []
        for group in products_of(found.sketch, found.stage, context):
            parts = _parts(group.sketch, stage.name, GROUP_LENGTHS)
            here += [partial(_by_warpgroups, group, p, context) for p in parts if p.is_in_spans]
        here += [partial(_by_warps, found, p, context) for p in _parts(found.sketch, stage.name, LENGTHS)]
        return [*here, *reduction_alternatives(sketch, stage, context)]


@dataclass(frozen=True)
class _Part:
    """A sketch, the reduction in it whose loops are bound, and the axis that numbers parts of the columns, if these are
    reduced in parts."""

    sketch: PartialSketch
    stage: Stage
    parts: StageAxis | None

    @property
    def note(self) -> str:
        return f"{self.stage.name}:lanes{'-of-parts' if self.parts is not None else ''}"

    @property
    def is_in_spans(self) -> bool:
        """Whether the copy engine loads rows of as many columns, whichever way they lie."""
        return self.parts is not None or size(self.stage.op.reduce_axes[0]) % GROUP_LENGTHS[0] == 0

    def rows(self, product: Stage, rows: StageAxis) -> StageAxis:
        """The axis that is the rows of the product."""
        [place] = {x.indices for x in self.stage.op.loads_from(*product.op.buffers)}
        return next(a for a in self.stage.op.axes if a.var is place[product.op.axes.index(rows)])

    def others(self, rows: StageAxis) -> list[StageAxis]:
        return [a for a in self.stage.op.axes if a is not rows and a is not self.parts]


def _parts(sketch: PartialSketch, name: str, lengths: tuple[int, ...]) -> list[_Part]:
    """The reduction over all columns where they are no more than the longest of `lengths`, and in parts of such, which
    another kernel combines."""
    stage = sketch.state.stage(name)
    columns = stage.op.reduce_axes[0]
    found = [_Part(sketch, stage, None)] if size(columns) <= lengths[-1] else []
    shorter = tuple(n for n in lengths if n < size(columns))
    if shorter:
        length = SketchParam(f"{name}.{columns.name}.b", shorter, "tile")
        split, made = split_reduction(sketch.with_params([length]), stage, columns, length.name)
        part = split.state.stage(made)
        found.append(_Part(split, part, part.op.axes[0]))
    return found


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


def _by_warps(found: Matrices, part: _Part, context: SketchContext) -> PartialSketch:
    """Blocks, warps along the rows and along parts, the lanes of a warp, and tiles with a thread's points."""
    name, rows, columns = part.stage.name, part.rows(found.stage, found.product.rows), part.stage.op.reduce_axes[0]
    group, tiles = f"{name}.{rows.name}", -(-size(rows) // (HALVES * DOWN))
    params = [domains.warps(f"{group}.w", tiles, group), domains.matrix_tiles(f"{group}.s", tiles, group)]
    m, n = ([f"{a.name}.{level}" for level in range(5)] for a in (rows, columns))
    others = part.others(rows)
    steps: list[Step] = [
        Split(name, rows.name, (*(p.name for p in params), HALVES, DOWN)),
        Split(name, columns.name, (ACROSS, NEIGHBOURS)),
    ]
    blocks, warps, extents = [*(a.name for a in others), m[0]], [m[1]], [size(a) for a in (*others, rows)]
    if part.parts is not None:
        number = part.parts.name
        params.append(domains.warps(f"{name}.{number}.w", domains.MOST_WARPS, f"{name}.{number}"))
        steps.append(Split(name, number, (params[-1].name,)))
        blocks, warps, extents = [*blocks, f"{number}.0"], [*warps, f"{number}.1"], [*extents, size(part.parts)]
    inner = (m[2], n[0], m[3], n[2])
    steps.append(Reorder(name, (*blocks, *warps, m[4], n[1], *inner)))
    steps += [Fuse(name, tuple(warps))] if len(warps) > 1 else []
    steps += bind_blocks(name, blocks, extents)
    steps += [Bind(name, "@".join(warps), "threadIdx.z"), Bind(name, m[4], "threadIdx.y")]
    steps += [*(Unroll(name, x) for x in inner), AcrossLanes(name, n[1])]
    sketch = part.sketch.with_params(params).apply(*steps)
    return multiplied(sketch, found, name, found.name, True, context).finish(note=part.note)


def _by_warpgroups(found: TiledProduct, part: _Part, context: SketchContext) -> PartialSketch:
    """Blocks, one for each part, warpgroups along the rows, their threads, and tiles with a thread's points."""
    product = found.sketch.state.stage(found.name)
    name, rows, columns = part.stage.name, part.rows(product, found.product.rows), part.stage.op.reduce_axes[0]
    group, tiles = f"{name}.{rows.name}", -(-size(rows) // (WARPS * HALVES * DOWN))
    params = [domains.warpgroups(f"{group}.g", tiles, group), domains.group_tiles(f"{group}.s", tiles, group)]
    m, n = ([f"{a.name}.{level}" for level in range(6)] for a in (rows, columns))
    others, numbers = part.others(rows), [] if part.parts is None else [part.parts]
    blocks = [*(a.name for a in others), m[0], *(a.name for a in numbers)]
    inner = (m[2], n[0], m[4], n[2])
    sketch = part.sketch.with_params(params).apply(
        Split(name, rows.name, (*(p.name for p in params), WARPS, HALVES, DOWN)),
        Split(name, columns.name, (ACROSS, NEIGHBOURS)),
        Reorder(name, (*blocks, m[1], m[3], m[5], n[1], *inner)),
        Fuse(name, (m[1], m[3])),
        *bind_blocks(name, blocks, [size(a) for a in (*others, rows, *numbers)]),
        Bind(name, f"{m[1]}@{m[3]}", "threadIdx.z"),
        Bind(name, m[5], "threadIdx.y"),
        *(Unroll(name, x) for x in inner),
        AcrossLanes(name, n[1]),
    )
    sketch = in_ring(sketch, found, name, found.name, context)
    how = f"{found.name}:{found.row.name}{'-copied' * found.by_threads}"
    return sketch.finish(name, found.name, note=how).finish(note=part.note)
