"""Rules for reductions along contiguous data: sums, maxima, norms, softmax, layer normalisation.

    LaneReduction        S = reduce_k ..  ->  S.rf[.., lane] over vectors, then a horizontal combine (Ansor's R6, inner)
    SplitReduction       few outputs, long reduction: blocks of k over threads, then their combine (Ansor's R6, outer)
    SplitTiledReduction  the same for reductions that are tiled
    PlainReduction       any other reduction

A reduction that shares its leading axes with its consumer is computed in it row by row, or for a few rows at a time.
Several reductions over the same rows (maximum, sum, normalise) then share one loop over the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosched.errors import ScheduleError
from autosched.ir.dtype import DTYPES
from autosched.ir.stmt import Scope
from autosched.lower.symbolic.domains import infer_domains
from autosched.schedule import ComputeAt, Pack, Parallel, Reorder, Rfactor, Split, Stage, Step, Vectorize
from autosched.schedule.stage import StageAxis
from search_spaces.access import extent, has_reuse, lane_reduction, points, reads_of
from search_spaces.cpu.domains import blocks, is_row_block, row_levels, vector_width
from search_spaces.cpu.inner_products import inner_products
from search_spaces.cpu.tiling import can_tile, short_rows_across, tiled_alternatives
from search_spaces.fusion import fused_consumer
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext

TASKS_PER_THREAD = 4
POINTS_PER_THREAD = 1024  # output points; fewer are not enough register tiles to keep a thread busy
MIN_SPLIT_LENGTH = 1024  # iterations
MAX_VECTORS = 16  # of accumulators
MIN_BLOCK_WORK = 4096  # reduced elements, below which waking a thread costs more than it saves


class SplitReduction:
    """Fewer output points than tasks for all threads: the reduction axis is cut in blocks, which threads share."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        if stage.op.reducer is None or context.threads == 1 or stage.name.endswith(".rf"):
            return False
        work = points(stage) * max((extent(a) for a in stage.op.reduce_axes), default=1)
        reads = reads_of(sketch.state, stage)
        lane = lane_reduction(stage, reads)
        return points(stage) < TASKS_PER_THREAD * context.threads and work >= MIN_BLOCK_WORK and lane is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        axis = lane_reduction(stage, reads_of(sketch.state, stage))
        assert axis is not None
        block = blocks(f"{stage.name}.{axis.name}.b", extent(axis), context.threads)
        split = sketch.with_params([block]).apply(Rfactor(stage.name, axis.name, block.name, "outer"))
        partial = split.state.stage(f"{stage.name}.rf")
        split = lane_steps(split, partial, f"{axis.name}.i", block.domain[-1], context)
        split = split.apply(_on_own_lines(split.state.stage(partial.name), context))
        split = _finish_root(split, partial.name)
        split = _place(split, stage.name)
        alternatives = [split.finish(stage.name, partial.name, note=f"{stage.name}:split-k")]
        return alternatives + lane_alternatives(sketch, stage, context)


def _on_own_lines(partial: Stage, context: SketchContext) -> Pack:
    """Return the step that begins a cache line for each block of a reduction, its partial results' first axis.

    Different threads store neighbouring blocks: in one line, these stores would wait for each other.
    """
    last = len(partial.op.axes) - 1
    elements = context.target.line_bytes // min(DTYPES[d].nbytes for d in partial.op.dtypes)
    return Pack(partial.name, tuple(range(last + 1)), ((last, elements),))


class SplitTiledReduction:
    """A tiled reduction with few register tiles for many threads and a long reduction: blocks of it over threads."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        if stage.op.reducer is None or context.threads == 1 or not can_tile(sketch.state, stage, context):
            return False
        last = stage.op.reduce_axes[-1]
        return points(stage) < POINTS_PER_THREAD * context.threads and extent(last) >= MIN_SPLIT_LENGTH

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        axis = stage.op.reduce_axes[-1]
        block = -(-extent(axis) // (2 * context.threads))
        split = sketch.apply(Rfactor(stage.name, axis.name, block, "outer"))
        split = with_sum_of_blocks(split, split.state.stage(stage.name), context)
        partial = split.state.stage(f"{stage.name}.rf")
        alternatives = tiled_alternatives(split, partial, context)
        return [*alternatives, *tiled_alternatives(sketch, stage, context)]


class LaneReduction:
    """A reduction in vectors along contiguous data."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.reducer is not None and lane_reduction(stage, reads_of(sketch.state, stage)) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        return lane_alternatives(sketch, stage, context)


class PlainReduction:
    """A reduction that no other rule takes: its loops unchanged, in the rows of the consumer if it shares them."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.reducer is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        placed = _place(sketch, stage.name)
        if placed.state.stage(stage.name).at is None:
            placed = _finish_root(placed, stage.name)
        return [placed.finish(stage.name)]


def with_sum_of_blocks(
    sketch: PartialSketch, stage: Stage, context: SketchContext, tasks: Sequence[str] = ()
) -> PartialSketch:
    """Return the sketch with the sum of a reduction's blocks scheduled: vectors along the last axis, rows in parallel.

    `stage`: a reduction over the blocks, its first reduction axis; `tasks`: the rows that are tasks, in which the
    blocks are computed.
    """
    *rows, last = stage.op.axes
    lanes = context.lanes_of(stage)
    width = vector_width(f"{stage.name}.{last.name}.r", extent(last), lanes, "", vectors=(1, 2, 4))
    blocks_loop = stage.op.reduce_axes[0].name
    steps: list[Step] = [
        Split(stage.name, last.name, (width.name,)),
        Reorder(stage.name, (*(a.name for a in rows), f"{last.name}.0", blocks_loop, f"{last.name}.1")),
    ]
    if tasks:
        steps.append(Parallel(stage.name, tuple(tasks)))
    elif points(stage) >= MIN_BLOCK_WORK:
        steps.append(Parallel(stage.name, (*(a.name for a in rows), f"{last.name}.0")))
    steps.append(Vectorize(stage.name, f"{last.name}.1"))
    return sketch.with_params([width]).apply(*steps).finish(stage.name, note=f"{stage.name}:split-k")


def lane_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
    """Return the reduction in lanes, in its consumer's rows; inner products and transposed short rows if suited."""
    axis = lane_reduction(stage, reads_of(sketch.state, stage))
    assert axis is not None
    placed = _place(sketch, stage.name)
    is_root = placed.state.stage(stage.name).at is None
    rows = _rows_of_a_task(stage, extent(axis), context) if is_root else 1
    placed = lane_steps(placed, placed.state.stage(stage.name), axis.name, extent(axis), context, rows)
    if is_root:
        placed = _finish_root(placed, stage.name, 1 if rows > 1 else 0)
    lanes = placed.finish(stage.name, note=f"{stage.name}:lanes")
    tiles = inner_products(sketch, stage, context) if has_reuse(stage, reads_of(sketch.state, stage)) else None
    consumer = fused_consumer(sketch.state, stage)
    alone = is_root or (consumer is not None and consumer.at is None)  # other reductions stay in their readers' rows
    across = short_rows_across(sketch, stage, context) if alone else None
    return [lanes, *(d for d in (tiles, across) if d is not None)]


def lane_steps(
    sketch: PartialSketch, stage: Stage, axis: str, length: int, context: SketchContext, rows: int = 1
) -> PartialSketch:
    """Return the reduction over `axis` in lanes: several vectors of accumulators, combined horizontally at the end.

    `rows`: the points of the stage's last axis in a block.
    """
    itemsize = max(DTYPES[d].nbytes for d in stage.op.dtypes)
    lanes = context.lanes(itemsize)
    width = vector_width(f"{stage.name}.{axis}.l", length, lanes, "", vectors=(1, 2, 4, 8, MAX_VECTORS))
    if lanes < length <= MAX_VECTORS * lanes:  # a short row is reduced without a loop
        width = replace(width, domain=tuple(sorted({*(w for w in width.domain if w < length), length})))
    inner = f"{stage.name}.rf"
    sketch = sketch.with_params([width]).apply(Rfactor(stage.name, axis, width.name, "inner"))
    partial = sketch.state.stage(inner)
    space = [a.name for a in partial.op.axes[:-1]]
    rest = [a.name for a in partial.op.reduce_axes]
    steps: list[Step] = [Reorder(inner, (*space, *rest, f"{axis}.i")), Vectorize(inner, f"{axis}.i")]
    if rows > 1:
        steps.append(Split(stage.name, space[-1], (rows,)))
        space[-1] = f"{space[-1]}.1"
    if space:
        steps.append(ComputeAt(inner, stage.name, space[-1], Scope.REGISTER.value))
    steps.append(Vectorize(stage.name, f"{axis}.i"))
    return sketch.apply(*steps).finish(inner)


def _rows_of_a_task(stage: Stage, length: int, context: SketchContext) -> int:
    """Return the short rows in a task: calling the kernel's body for each row would take as long as its sum.

    The number divides the last axis, so that no task exceeds it.
    """
    most = min(MIN_BLOCK_WORK // length, points(stage) // (TASKS_PER_THREAD * context.threads))
    count = extent(stage.op.axes[-1]) if stage.op.axes else 1
    return max((n for n in range(1, most + 1) if count % n == 0), default=1)


def _finish_root(sketch: PartialSketch, name: str, inner: int = 0) -> PartialSketch:
    """Return the stage at the root with its leading output loops parallel, but for the last `inner` ones."""
    stage = sketch.state.stage(name)
    names: list[str] = []
    for loop in stage.loops:
        if loop.reduce or loop.kind.value != "serial":
            break
        names.append(loop.name)
    names = names[: len(names) - inner]
    return sketch.apply(Parallel(name, tuple(names))) if names else sketch


def _place(sketch: PartialSketch, name: str) -> PartialSketch:
    """Compute the stage in the row loop of its consumer, if a row needs one value of it; else change nothing."""
    state = sketch.state
    stage = state.stage(name)
    consumer = _root_consumer(sketch, stage)
    if consumer is None:
        return sketch
    if consumer.name not in sketch.done:
        sketch = _schedule_rows(sketch, consumer, stage)
        consumer = sketch.state.stage(consumer.name)
    row = sketch.row_loop(consumer.name)
    if row is None:
        return sketch
    try:
        placed = sketch.apply(ComputeAt(name, row.stage, row.loop))
    except ScheduleError:
        return sketch  # a reader is elsewhere
    regions = infer_domains(placed.state, name)[name].regions
    return placed if all(is_row_block(regions[a.name].extent) for a in stage.op.axes) else sketch


def _root_consumer(sketch: PartialSketch, stage: Stage) -> Stage | None:
    """Return the root stage in which all readers of `stage` are computed."""
    roots = {sketch.state.root(reader).name for reader in sketch.state.consumers(stage)}
    consumer = sketch.state.stage(roots.pop()) if len(roots) == 1 else None
    return consumer if consumer is not None and consumer.op.is_elementwise else None


def _schedule_rows(sketch: PartialSketch, consumer: Stage, stage: Stage) -> PartialSketch:
    """Schedule the elementwise stage `consumer` at the root, row by row.

    The leading axes that it shares with `stage` are rows. They are parallel, several blocks of rows a task, and the
    loop over blocks is the row loop. The last of the other axes is vectorised.
    """
    lead = min(len(stage.op.axes), len(consumer.op.axes))
    names = [a.name for a in consumer.op.axes]
    steps: list[Step] = []
    outer, row = names[:lead], names[lead - 1] if lead else ""
    if lead and consumer.at is None and extent(consumer.op.axes[lead - 1]) > 1:
        levels, factors = row_levels(f"{consumer.name}.{row}", extent(consumer.op.axes[lead - 1]))
        sketch = sketch.with_params(levels)
        steps.append(Split(consumer.name, row, factors))
        outer[-1], row = f"{row}.0", f"{row}.1"
    if lead < len(names):
        last: StageAxis = consumer.op.axes[-1]
        width = f"{consumer.name}.{last.name}.r"
        # Lanes for one 64-byte line of the widest value written; narrower targets take several vectors.
        lanes = max(1, 64 // max(DTYPES[d].nbytes for d in consumer.op.dtypes))
        sketch = sketch.with_params([vector_width(width, extent(last), lanes, "", vectors=(1, 2, 4, 8))])
        steps += [Split(consumer.name, last.name, (width,)), Vectorize(consumer.name, f"{last.name}.1")]
    if lead and consumer.at is None:
        steps.append(Parallel(consumer.name, tuple(outer)))
    sketch = sketch.apply(*steps).finish(consumer.name)
    return sketch.with_row_loop(consumer.name, row) if lead else sketch
