"""Rules for reductions without reuse: sums, maxima, norms, pools, softmax, layer normalisation.

    RowReduction         rows of an elementwise stage: a block for each row, whose threads share all reductions of the
                         row; a block for several short rows; or a thread for each row
    RowValue             an elementwise stage that several of these read (an exponential): recomputed by each, or kept
                         in shared memory
    TeamReduction        along contiguous data: a block for each point; long ones in two kernels
    PointReduction       any other: a thread for each point; few long ones in two kernels
    SplitTiledReduction  a tiled reduction with few tiles: in two kernels

Two kernels: S.rf[part, ..] = reduce over a part of k, S = reduce over the parts. The order is always the same, so every
run has the same result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from autosched.errors import ScheduleError
from autosched.ir.linear import ONE
from autosched.ir.stmt import ForKind
from autosched.lower.symbolic.domains import infer_domains
from autosched.schedule import (
    Bind,
    ComputeAt,
    ComputeInline,
    Cooperate,
    CrossThread,
    Reorder,
    Rfactor,
    Split,
    Stage,
    State,
    Step,
    Team,
    Vectorize,
)
from autosched.schedule.stage import Num, StageAxis
from search_spaces.access import extent, lane_reduction, reads_of
from search_spaces.fusion import is_copy
from search_spaces.gpu import domains
from search_spaces.gpu.elementwise import narrowest, shares_leading_axes
from search_spaces.gpu.thread_binding import WARP, bind_blocks, bind_threads, last_thread_loop, size
from search_spaces.gpu.tiling import Plan, can_tile, plans, reduce_by_thread, tile_reduction, tiled_alternatives
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer, noted
from search_spaces.space import SketchParam

SEVERAL_ROWS = 1024  # elements of a row up to which a block may reduce several rows
SHORT_ROW = 128  # elements of a row up to which one thread may reduce it
MANY_POINTS = 1024  # blocks that keep a device busy
MANY_THREADS = 1 << 16  # threads that keep a device busy
LONG_TEAM = 8192  # elements of a reduction by a block from which its parts are worth a kernel of their own
LONG_POINT = 256  # elements of a reduction by a thread from which the same holds
TILED_POINTS = 1 << 20  # output points of a tiled reduction that fill a device
LEAST_PART = 64  # iterations of a tiled reduction in one part
MOST_PARTS = 64


class RowReduction:
    """A reduction whose readers are all in the rows of one elementwise stage, each row of which reads one value."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.reducer is not None and bool(_in_rows(sketch, stage, context))

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        return _row_alternatives(sketch, stage, context)


def _row_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
    """Return the stage in the rows of its consumer; [] where the consumer has no such rows."""
    alternatives, axis = _in_rows(sketch, stage, context), lane_reduction(stage, reads_of(sketch.state, stage))
    consumer = _root_consumer(sketch, stage)
    first = consumer is not None and consumer.name not in sketch.done  # of the row's reductions
    if alternatives and first and axis is not None and extent(axis) >= LONG_TEAM and points(stage) < MANY_POINTS:
        alternatives += team_alternatives(sketch, stage, context)  # one block would take long for a row
    return alternatives


def _in_rows(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
    """Return the stage in the rows of its consumer, for each way to bind these; [] where a row needs several values."""
    consumer = _root_consumer(sketch, stage)
    if consumer is None or not shares_leading_axes(stage, consumer):
        return []
    row = sketch.row_loop(consumer.name)
    if row is None:
        bound = [] if consumer.name in sketch.done else _bind_rows(sketch, stage, consumer)
        loops = [last_thread_loop(s, consumer.name) for s in bound]
    else:
        bound, loops = [sketch], [row.loop]
    tried = [_in_row(s, stage, consumer.name, x, context) for s, x in zip(bound, loops, strict=True)]
    return [s for s in tried if s is not None]


def _bind_rows(sketch: PartialSketch, stage: Stage, consumer: Stage) -> list[PartialSketch]:
    """Bind the consumer's rows: blocks for rows that are long enough for a warp, threads for short ones."""
    axis = lane_reduction(stage, reads_of(sketch.state, stage))
    lead = sum(size(a) > 1 for a in stage.op.axes)
    bound = []
    if axis is not None and extent(axis) >= WARP:
        bound.append(_block_rows(sketch, consumer, lead))
        if lead and _length(stage) <= SEVERAL_ROWS:
            bound.append(_block_rows(sketch, consumer, lead, several=True))
    if lead and _length(stage) <= SHORT_ROW:
        bound.append(_thread_rows(sketch, consumer, lead))
    return bound


def _length(stage: Stage) -> int:
    return math.prod(map(size, stage.op.reduce_axes))


def points(stage: Stage) -> int:
    return math.prod(map(size, stage.op.axes))


def _root_consumer(sketch: PartialSketch, stage: Stage) -> Stage | None:
    """Return the elementwise root stage in which all readers of `stage` are computed; None if there is none."""
    state = sketch.state
    if state.is_output(stage):
        return None
    roots = {state.root(reader).name for reader in state.consumers(stage)}
    consumer = state.stage(roots.pop()) if len(roots) == 1 else None
    return consumer if consumer is not None and consumer.op.is_elementwise else None


def _block_rows(sketch: PartialSketch, consumer: Stage, lead: int, several: bool = False) -> PartialSketch:
    """Schedule the consumer with a block for each row, or for `several`; the threads along the last axis."""
    name = consumer.name
    *others, last = consumer.op.axes[lead:]
    params = [domains.team(f"{name}.{last.name}.t", size(last))]
    rows = [a.name for a in consumer.op.axes[:lead]]
    beside: list[str] = []
    params.append(domains.row_vector(_row_vector(name), size(last), narrowest(consumer)))
    steps: list[Step] = [Split(name, last.name, (params[0].name, params[1].name))]
    if several:
        row = consumer.op.axes[lead - 1]
        params.append(domains.rows(f"{name}.{row.name}.t", size(row), size(last), 2))
        steps.append(Split(name, row.name, (params[-1].name,)))
        rows, beside = [*rows[:-1], f"{row.name}.0"], [f"{row.name}.1"]
    rest = [f"{last.name}.1", *(a.name for a in others), f"{last.name}.0", f"{last.name}.2"]
    steps += [Reorder(name, (*rows, *beside, *rest)), Vectorize(name, f"{last.name}.2")]
    if rows:
        steps += bind_blocks(name, rows, [size(a) for a in consumer.op.axes[:lead]])
    steps += bind_threads(name, [*beside, f"{last.name}.1"])
    sketch = sketch.with_params(params).apply(*steps)
    note = f"{name}:{'several' if several else 'block'}-rows"
    return sketch.finish(name, note=note).with_row_loop(name, f"{last.name}.1")


def _thread_rows(sketch: PartialSketch, consumer: Stage, lead: int) -> PartialSketch:
    """Schedule the consumer with a thread for each row."""
    name = consumer.name
    last = consumer.op.axes[lead - 1]
    threads = domains.threads(f"{name}.{last.name}.t", size(last), "", domains.MOST_X)
    blocks = [*(a.name for a in consumer.op.axes[: lead - 1]), f"{last.name}.0"]
    rest = [a.name for a in consumer.op.axes[lead:]]
    steps: list[Step] = [Split(name, last.name, (threads.name,)), Reorder(name, (*blocks, f"{last.name}.1", *rest))]
    steps += bind_blocks(name, blocks, [size(a) for a in consumer.op.axes[:lead]])
    steps.append(Bind(name, f"{last.name}.1", "threadIdx.x"))
    sketch = sketch.with_params([threads]).apply(*steps).finish(name, note=f"{name}:thread-rows")
    return sketch.with_row_loop(name, f"{last.name}.1")


def _in_row(
    sketch: PartialSketch, stage: Stage, consumer: str, loop: str, context: SketchContext
) -> PartialSketch | None:
    """Compute the stage in the row loop, with all threads of the block if they share the row; None if impossible."""
    try:
        sketch = sketch.apply(ComputeAt(stage.name, consumer, loop))
    except ScheduleError:
        return None  # a reader is outside of the loop
    root = sketch.state.stage(consumer)
    kernel = replace(sketch.state, stages=tuple(s for s in sketch.state.stages if sketch.state.root(s) is root))
    regions = infer_domains(kernel, stage.name)[stage.name].regions
    if any(regions[a.name].extent is not ONE for a in stage.op.axes):
        return None  # a row needs several values
    if _block_has_row(sketch.state.stage(consumer), loop):
        axis = lane_reduction(stage, reads_of(sketch.state, stage)) or max(stage.op.reduce_axes, key=size)
        width = _row_vector(consumer)
        same = size(axis) == size(sketch.state.stage(consumer).op.axes[-1])
        sketch = sketch.apply(CrossThread(stage.name, axis.name, context.warp, width if same else 1))
    return sketch.finish(stage.name)


def _row_vector(consumer: str) -> str:
    """Return the name of the parameter for the adjacent elements of a row of `consumer` that a thread processes."""
    return f"{consumer}.w"


def _block_has_row(consumer: Stage, loop: str) -> bool:
    """Whether the threads of a block share a row; otherwise each has its own."""
    return consumer.loop(loop).parts[0][0] == consumer.op.axes[-1].name


class RowValue:
    """An elementwise stage that is read only in the rows of a scheduled stage."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        if not stage.op.is_elementwise or not stage.op.axes:
            return False
        consumer = _root_consumer(sketch, stage)
        return consumer is not None and sketch.row_loop(consumer.name) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        consumer = _root_consumer(sketch, stage)
        row = None if consumer is None else sketch.row_loop(consumer.name)
        assert consumer is not None
        assert row is not None
        alternatives = [sketch.apply(ComputeInline(stage.name)).finish(stage.name, note=f"{stage.name}:again")]
        alone = all(x.kind is not ForKind.THREAD_Y for x in consumer.loops)
        same = [size(a) for a in stage.op.axes] == [size(a) for a in consumer.op.axes]
        if is_copy(stage) or not same or not alone or not _block_has_row(consumer, row.loop):
            return alternatives  # shared memory holds the values of one row, so all threads of the block must share it
        try:
            width = domains.copied_vector(f"{stage.name}.w", stage)
            shared = ComputeAt(stage.name, consumer.name, row.loop, "shared")
            kept = sketch.apply(shared, Cooperate(stage.name, width.name))
        except ScheduleError:
            return alternatives
        return [*alternatives, kept.with_params([width]).finish(stage.name, note=f"{stage.name}:kept")]


class TeamReduction:
    """A reduction along contiguous data: the threads of a block share one point."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return can_share_point(sketch.state, stage)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        return team_alternatives(sketch, stage, context)


def can_share_point(state: State, stage: Stage) -> bool:
    """Whether the stage is a reduction long enough for all threads of a warp to share one point."""
    if stage.op.reducer is None:
        return False
    axis = lane_reduction(stage, reads_of(state, stage))
    return not stage.op.axes or (axis is not None and extent(axis) >= WARP)


def team_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
    """Return a block for each point; two kernels as well for few long points, a thread for each short one."""
    axis = team_axis(sketch.state, stage)
    alternatives = [reduce_by_team(sketch, stage, axis.name, context, note=f"{stage.name}:team")]
    if points(stage) < MANY_POINTS and extent(axis) >= LONG_TEAM:
        alternatives.append(_split_team(sketch, stage, axis, context))
    if stage.op.axes and _length(stage) <= SHORT_ROW:
        alternatives.append(reduce_by_thread(sketch, stage, note=f"{stage.name}:point"))
    return alternatives


def team_axis(state: State, stage: Stage) -> StageAxis:
    """Return the reduction axis that the threads of a block share."""
    return lane_reduction(stage, reads_of(state, stage)) or max(stage.op.reduce_axes, key=size)


def reduce_by_team(
    sketch: PartialSketch, stage: Stage, axis: str, context: SketchContext, note: str = ""
) -> PartialSketch:
    """Schedule a block for each point of the consumer, or for several; its threads share the reduction over `axis`."""
    sketch, consumer, acc = fuse_consumer(sketch, stage)
    axes = sketch.state.stage(consumer).op.axes
    length = size(stage.op.axis(axis))
    width = domains.row_vector(f"{consumer}.w", length, narrowest(sketch.state.stage(acc)))
    params = [domains.team(f"{consumer}.team", length), width]
    blocks = [a.name for a in axes]
    steps: list[Step] = []
    if axes and size(axes[-1]) > 1 and length <= domains.SHORT_ROWS:
        last = axes[-1].name
        params.append(domains.rows(f"{consumer}.{last}.t", size(axes[-1]), length))
        steps += [Split(consumer, last, (params[-1].name,)), Bind(consumer, f"{last}.1", "threadIdx.y")]
        blocks[-1] = f"{last}.0"
    if axes:
        steps = [*steps[:1], *bind_blocks(consumer, blocks, [size(a) for a in axes]), *steps[1:]]
    shared = CrossThread(acc, axis, context.warp, width.name)
    steps += [Team(consumer, params[0].name), ComputeAt(acc, consumer, "team"), shared]
    return sketch.with_params(params).apply(*steps).finish(consumer, acc, note=note)


def _split_team(sketch: PartialSketch, stage: Stage, axis: StageAxis, context: SketchContext) -> PartialSketch:
    """Schedule parts of the reduction in one kernel, their combination in another."""
    length = extent(axis)
    parts = {p for p in (4, 8, 16, 32, 64, 128, 256, 512) if length // p >= 4 * WARP}
    part = SketchParam(f"{stage.name}.{axis.name}.b", tuple(sorted(-(-length // p) for p in parts)), "tile")
    sketch = sketch.with_params([part]).apply(Rfactor(stage.name, axis.name, part.name, "outer"))
    sketch = reduce_by_team(sketch, sketch.state.stage(stage.name), f"{axis.name}.o", context)
    return reduce_by_team(
        sketch, sketch.state.stage(f"{stage.name}.rf"), f"{axis.name}.i", context, note=f"{stage.name}:split-team"
    )


class PointReduction:
    """Any other reduction: a thread for each point."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.reducer is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        return _point_alternatives(sketch, stage, context)


def _point_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
    """Return a thread for each point; for few long points also two kernels, or several threads for each point."""
    alternatives = [reduce_by_thread(sketch, stage, note=f"{stage.name}:point")]
    axis = max(stage.op.reduce_axes, key=size)
    if points(stage) < MANY_THREADS and size(axis) >= LONG_POINT:
        parts = min(MOST_PARTS, size(axis) // WARP)
        split, partial = split_reduction(sketch, stage, axis, -(-size(axis) // parts))
        alternatives.append(reduce_by_thread(split, split.state.stage(partial), note=f"{stage.name}:split-point"))
    if points(stage) < MANY_THREADS and size(axis) >= WARP:
        alternatives.append(reduce_by_team(sketch, stage, axis.name, context, note=f"{stage.name}:team"))
    return alternatives


class SplitTiledReduction:
    """A tiled reduction with few output tiles and a long reduction: also blocks for parts of it."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return can_split_tiles(sketch.state, stage)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        return split_tiled_alternatives(sketch, stage, context)


def can_split_tiles(state: State, stage: Stage) -> bool:
    """Whether a tiled reduction has too few tiles to fill a device, and is long enough for two parts."""
    if not can_tile(state, stage):
        return False
    longest = max(size(a) for a in stage.op.reduce_axes)
    return points(stage) <= TILED_POINTS and longest >= 2 * LEAST_PART


def split_tiled_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
    """Return the tiles without parts; for a matrix-vector product also teams; and the reduction in parts."""
    alternatives = tiled_alternatives(sketch, stage, context)
    axis = max(stage.op.reduce_axes, key=size)
    lane = lane_reduction(stage, reads_of(sketch.state, stage))
    if lane is not None and len([a for a in stage.op.axes if size(a) > 1]) == 1:  # a matrix-vector product
        alternatives.append(reduce_by_team(sketch, stage, lane.name, context, note=f"{stage.name}:team"))
    for parts in parts_of_tiles(stage, axis):
        split, name = split_reduction(sketch, stage, axis, -(-size(axis) // parts))
        inner = split.state.stage(name)
        for plan in [p for p in plans(split, inner) if p.shared][:2] or [Plan()]:
            alternatives.append(noted(partial(tile_reduction, split, inner, plan, context), f"split-k{parts}"))
    return alternatives


def reduction_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> Sequence[Alternative]:
    """Return the alternatives of the rules for a reduction that is no matrix product, in their order."""
    if can_split_tiles(sketch.state, stage):
        return split_tiled_alternatives(sketch, stage, context)
    if can_tile(sketch.state, stage):
        return tiled_alternatives(sketch, stage, context)
    rows = _row_alternatives(sketch, stage, context)
    if rows or can_share_point(sketch.state, stage):
        return rows or team_alternatives(sketch, stage, context)
    return _point_alternatives(sketch, stage, context)


def parts_of_tiles(stage: Stage, axis: StageAxis) -> list[int]:
    """Return the numbers of parts of a tiled reduction: as many as fill a device, and fewer."""
    most = min(MOST_PARTS, size(axis) // LEAST_PART, max(2, TILED_POINTS // points(stage)))
    return sorted({most, max(2, most // 4)})


def split_reduction(sketch: PartialSketch, stage: Stage, axis: StageAxis, length: Num) -> tuple[PartialSketch, str]:
    """Return the reduction over `axis` in parts of `length`, and the stage that computes them; they are combined point
    by point."""
    sketch = sketch.apply(Rfactor(stage.name, axis.name, length, "outer"))
    return reduce_by_thread(sketch, sketch.state.stage(stage.name)), f"{stage.name}.rf"
