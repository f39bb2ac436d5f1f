"""Rules for stages without a reduction: inlined, computed where they are used, or in nests of their own.

Inline          inlines cheap stages and pure data movement into their readers (Ansor's R2)
FusedConsumer   leaves an elementwise stage that a reduction will be fused to for that reduction's rule
Placement       computes the input of a tiled reduction (padding, an activation) for each task, or at the root
Elementwise     all others: parallel over rows or chunks, vectors innermost
PrepareWeights  stages of any type that depend on weights alone: at the root, computed at load time
"""

from __future__ import annotations

import math
from dataclasses import replace

from autosched.errors import ScheduleError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const, product
from autosched.ir.instructions.dots import dots_of
from autosched.lower.symbolic.domains import infer_domains
from autosched.schedule import (
    ComputeAt,
    ComputeInline,
    Flatten,
    Parallel,
    Reorder,
    Slide,
    Split,
    Stage,
    Step,
    Unroll,
    Vectorize,
    can_flatten,
)
from autosched.schedule.stage import StageAxis
from search_spaces.access import computed_bytes, extent, has_reuse, points, reads_of
from search_spaces.cpu.domains import (
    across_tile,
    is_row_block,
    run_of_tiles,
    single_row_extent,
    tile_count,
    vector_width,
)
from search_spaces.cpu.overlapped_tiles import block_of_rows, overlapped_tiles, reducing_tiles, shared_rows
from search_spaces.fusion import (
    feeds_continuation,
    feeds_padding,
    feeds_readers_of_scan,
    fused_consumer,
    has_condition,
    has_indirect_read,
    index_divisors,
    is_cheap_repeated,
    is_cheaper_stored,
    is_copy,
    is_expensive,
    is_read_indirectly,
    is_table,
    is_too_large_inlined,
    is_widening,
    is_worth_precomputing,
    prepares_weights,
    switch_axes,
    would_be_recomputed,
    would_lose_switch,
)
from search_spaces.partial_sketch import PartialSketch, SketchContext, row_loop_of_readers
from search_spaces.space import SketchParam

MOST_VECTORS = 16  # vectors of a chunk up to which it is unrolled completely
FEW_POINTS = 4096  # points of a nest up to which waking another thread does not pay


class Inline:
    """A stage that is cheaper to compute in each of its readers than to store."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        state = sketch.state
        if not stage.op.is_elementwise or state.is_output(stage) or state.attached(stage.name):
            return False
        if is_too_large_inlined(state, stage):
            return False
        if is_widening(stage) and not has_indirect_read(stage):
            return True
        if prepares_weights(state, stage):
            return False
        if is_copy(stage) and not has_indirect_read(stage):
            return True
        if not stage.op.reads:
            return context.target.gpu is not None or not is_table(state, stage)
        if (
            is_worth_precomputing(state, stage)
            or would_be_recomputed(state, stage)
            or feeds_readers_of_scan(state, stage)
            or feeds_continuation(state, stage)
            or feeds_padding(state, stage)
        ):
            return False
        readers = state.consumers(stage)
        if would_lose_switch(stage, readers) or (has_condition(stage) and any(switch_axes(r) for r in readers)):
            return False  # a transform, or one of its elements, each of which is read several times
        if all(r.op.reducer is None for r in readers):
            return (len(readers) == 1 or not is_expensive(stage)) and not is_cheaper_stored(state, stage)
        reused = any(has_reuse(r, reads_of(state, r)) for r in readers)
        return not reused and not has_condition(stage) and (not is_expensive(stage) or len(readers) == 1)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        return [sketch.apply(ComputeInline(stage.name)).finish(stage.name)]


class FusedConsumer:
    """An elementwise stage that is a reduction's or a recurrence's fused consumer: the rule for that schedules both,
    unless it is in tiles with several reductions and a stage that they share.

    It reads them point by point, or the reduction gives one value for each of its rows.
    """

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        state = sketch.state
        if not stage.op.is_elementwise:
            return False
        if row_loop_of_readers(sketch, stage) is not None and not feeds_continuation(state, stage):
            return False
        if any(fused_consumer(state, s) is stage for s in state.stages if not s.op.is_elementwise):
            return True
        producers = [s for s in state.stages if s.op.reducer is not None and stage in state.consumers(s)]
        rows = [s for s in producers if not has_reuse(s, reads_of(state, s)) and len(s.op.axes) < len(stage.op.axes)]
        return any(_shares_leading_axes(s, stage) for s in rows)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        vectors = _whole_periods(stage, context.lanes_of(stage))[:2] if stage.op.axes else ()
        return [sketch, *reducing_tiles(sketch, stage, vectors, context)]


def _shares_leading_axes(producer: Stage, consumer: Stage) -> bool:
    """Whether the producer's axes are as long as the consumer's leading axes."""
    lead = consumer.op.axes[: len(producer.op.axes)]
    return [extent(a) for a in producer.op.axes] == [extent(a) for a in lead]


class Placement:
    """An elementwise stage whose readers are scheduled: for each task or row of the readers, at the root, or inlined.

    It is always at the root if that saves repeated work: if it is worth precomputing, if it is read indirectly, or if a
    transform, which uses each element several times, reads it.
    """

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.is_elementwise and not sketch.state.is_output(stage) and bool(sketch.state.consumers(stage))

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        readers = sketch.state.consumers(stage)
        whole = (
            is_worth_precomputing(sketch.state, stage)
            or is_read_indirectly(sketch.state, stage)
            or any(map(switch_axes, readers))
        )
        attached = None if whole else self._attach(sketch, stage, context)
        at_root = own_nests(sketch, stage, context)
        if attached is None:
            return [*at_root, *([] if whole else self._inline_cheap(sketch, stage))]
        if _computed_once(attached, stage):
            return [attached]
        slides = attached.state.stage(stage.name).slides
        alike = [s for s in at_root if slides or not _slides(s, stage)]
        return [attached, *alike, *self._inline(sketch, stage)]

    def _inline(self, sketch: PartialSketch, stage: Stage) -> list[PartialSketch]:
        """Inline the stage where it is cheap: padding becomes a condition of the read, which only border tiles keep.

        Tile products need their operands in memory, so they exclude it. Of rows that are read indirectly, a tile then
        computes only those that it needs.
        """
        cheap = (has_condition(stage) or has_indirect_read(stage)) and not is_expensive(stage)
        by_tiles = any(dot.row.tile is not None for r in sketch.state.consumers(stage) for dot in dots_of(r.op.body))
        is_stencil = all(r.op.reducer is None for r in sketch.state.consumers(stage))  # the border of one is a clamp
        is_stored = is_stencil and is_cheaper_stored(sketch.state, stage)
        return _inlined(sketch, stage) if cheap and not by_tiles and not is_stored else []

    def _inline_cheap(self, sketch: PartialSketch, stage: Stage) -> list[PartialSketch]:
        """Inline a stage that readers in several nests read, where it is no reduction's operand."""
        readers = sketch.state.consumers(stage)
        is_simple = all(r.op.is_elementwise for r in readers) and not is_too_large_inlined(sketch.state, stage)
        return _inlined(sketch, stage) if is_simple and is_cheap_repeated(sketch.state, stage) else []

    def _attach(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> PartialSketch | None:
        row = row_loop_of_readers(sketch, stage)
        if row is None:
            return None
        place = ComputeAt(stage.name, row.stage, row.loop)
        ways: list[list[Step]] = [[place, Slide(stage.name)], [place]] if row.slides else [[place]]
        for steps in ways:
            try:
                placed = _vector_steps(sketch.apply(*steps), stage, context)
            except ScheduleError:
                continue  # a reader is outside of that loop, or rows are not read in order
            return placed.finish(stage.name, note=f"{stage.name}@{row.stage}")
        return None


def _slides(sketch: PartialSketch, stage: Stage) -> bool:
    """Whether the stage is in strips that others slide along."""
    row = sketch.row_loop(stage.name)
    return row is not None and row.slides


def _inlined(sketch: PartialSketch, stage: Stage) -> list[PartialSketch]:
    """Return the stage inlined as an alternative; nothing where others are computed in it."""
    if sketch.state.attached(stage.name):
        return []
    return [sketch.apply(ComputeInline(stage.name)).finish(stage.name, note=f"{stage.name}@inline")]


class Elementwise:
    """A nest of its own: outer axes parallel, the contiguous axis in chunks of vectors; a transposed read is tiled."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.is_elementwise

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        return own_nests(sketch, stage, context)


class PrepareWeights:
    """A stage that depends on weights alone, computed at load time. No parameters: its time does not count."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return sketch.state.is_constant(stage)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        steps: list[Step] = []
        if stage.op.axes and stage.op.reducer is None:
            last = stage.op.axes[-1].name
            lanes = context.lanes_of(stage)
            steps = [Split(stage.name, last, (lanes,)), Vectorize(stage.name, f"{last}.1")]
        if len(stage.op.axes) > 1:
            steps.append(Parallel(stage.name, (stage.op.axes[0].name,)))
        return [sketch.apply(*steps).finish(stage.name)]


def own_nests(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
    """Return the stage in a nest of its own; also with its axes flattened where rows are shorter than a vector."""
    nests = [_nest(sketch, stage, context, "" if sketch.state.is_output(stage) else f"{stage.name}@root")]
    flat = sketch
    if _has_short_rows(sketch, stage, context):
        flat = sketch.apply(Flatten(stage.name))
        nests.append(_nest(flat, flat.state.stage(stage.name), context, f"{stage.name}:flat"))
    rows = flat.state.stage(stage.name)
    vectors = _whole_periods(rows, context.lanes_of(rows))[:2] if rows.op.axes else ()
    return [*nests, *overlapped_tiles(flat, rows, vectors, context)]


def _nest(sketch: PartialSketch, stage: Stage, context: SketchContext, note: str) -> PartialSketch:
    name = stage.name
    if not stage.op.axes:
        return sketch.finish(name, note=note)
    last = stage.op.axes[-1]
    group = f"{name}.{last.name}"
    lanes = context.lanes_of(stage)
    vector = vector_width(f"{group}.r", extent(last), lanes, group, vectors=_whole_periods(stage, lanes))
    tail = [a for a in switch_axes(stage) if a != last.name]
    outer = [a.name for a in stage.op.axes[:-1] if a.name not in tail]
    read = None if tail else transposed_read(sketch, stage)
    across = None if read is None else read[0]
    params, factors, middle, steps = [vector], [vector.name], [f"{last.name}.0"], list[Step]()
    shared = None if tail or read is not None else shared_rows(stage)
    levels = {} if shared is None else {shared.name: [block_of_rows(stage, shared)]}
    if extent(last) > 64 * lanes:
        params.insert(0, replace(tile_count(f"{group}.m", -(-extent(last) // lanes), group), extent=extent(last)))
        factors.insert(0, params[0].name)
        outer, middle = [*outer, f"{last.name}.0"], [f"{last.name}.1"]
    elif across is not None or not outer:
        outer, middle = [*outer, f"{last.name}.0"], []
    else:  # a task is several short rows
        rows = tile_count(f"{name}.{outer[-1]}.m", extent(stage.op.axis(outer[-1])), "")
        levels[outer[-1]] = [rows, *levels.get(outer[-1], [])]
        middle.insert(0, f"{outer[-1]}.1")
    params += [p for split in levels.values() for p in split]
    steps += [Split(name, axis, tuple(p.name for p in split)) for axis, split in levels.items()]
    tail += [f"{shared.name}.{len(levels[shared.name])}"] if shared is not None else []
    outer = [f"{a}.0" if a in levels else a for a in outer]
    steps.append(Split(name, last.name, tuple(factors)))
    if read is not None:
        across, itemsize = read
        tiles = _across_tiles(name, stage.op.axis(across), itemsize)
        params += tiles
        steps.append(Split(name, across, tuple(p.name for p in tiles)))
        outer = [f"{across}.0" if a == across else a for a in outer]
        middle += [f"{across}.1"] * (len(tiles) - 1)
        tail = [f"{across}.{len(tiles)}"]
    steps.append(Reorder(name, (*outer, *middle, *tail, f"{last.name}.{len(factors)}")))
    if points(stage) > FEW_POINTS:
        steps.append(Parallel(name, tuple(outer)))
    steps += [*(Unroll(name, x) for x in tail), Vectorize(name, f"{last.name}.{len(factors)}")]
    return sketch.with_params(params).apply(*steps).finish(name, note=note)


def _computed_once(sketch: PartialSketch, stage: Stage) -> bool:
    """Whether the attached stage computes each of its points once: its regions for different rows are disjoint."""
    at = sketch.state.stage(stage.name).at
    assert at is not None
    consumer = sketch.state.stage(at.stage)
    domains = infer_domains(sketch.state, stage.name)
    around = consumer.loops[: consumer.position(at.loop) + 1]
    bounds = domains[consumer.name].bounds
    inside = {axis for x in consumer.loops[len(around) :] if not is_row_block(bounds[x.name]) for axis, _ in x.parts}
    whole = {axis for x in around for axis, _ in x.parts} - inside  # axes whose levels are all outside, but for a block
    rows = [a.extent for a in consumer.op.all_axes if a.name in whole]
    rows += [bounds[x.name] for x in around if not {axis for axis, _ in x.parts} <= whole]
    regions = ((a, single_row_extent(domains[stage.name].regions[a.name].extent)) for a in stage.op.axes)
    region = [e if isinstance(e, Const) else a.extent for a, e in regions]  # an upper bound
    total = product([*rows, *region])
    return total is product([a.extent for a in stage.op.axes])


def _vector_steps(sketch: PartialSketch, stage: Stage, context: SketchContext) -> PartialSketch:
    """Vectorise the last axis of an attached stage."""
    if not stage.op.axes:
        return sketch
    last = stage.op.axes[-1]
    regions = infer_domains(sketch.state, stage.name)[stage.name].regions
    if is_row_block(regions[last.name].extent):
        return sketch  # one value for each row
    name, lanes = stage.name, context.lanes_of(stage)
    width = vector_width(f"{name}.{last.name}.r", extent(last), lanes, "", vectors=(1, 2, 4, 8))
    placed = sketch.with_params([width]).apply(Split(name, last.name, (width.name,)))
    slid = next((a for a in stage.op.axes[:-1] if regions[a.name].sliding is not None), None)
    together = slid or shared_rows(stage)
    if together is not None:
        rows = together.name
        if slid is None:  # else an iteration has a few new rows
            block = block_of_rows(stage, together)
            placed, rows = placed.with_params([block]).apply(Split(name, rows, (block.name,))), f"{rows}.1"
        order = [x.name for x in placed.state.stage(name).loops if x.name not in (rows, f"{last.name}.1")]
        placed = placed.apply(Reorder(name, (*order, rows, f"{last.name}.1")), Unroll(name, rows))
    return placed.apply(Vectorize(name, f"{last.name}.1"))


def _has_short_rows(sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
    """Whether the last axis, as channels of an image, is shorter than a vector and a few vectors are whole rows."""
    if not can_flatten(sketch.state, stage):
        return False
    n, lanes = extent(stage.op.axes[-1]), context.lanes_of(stage)
    return 1 < n < lanes and n // math.gcd(n, lanes) <= MOST_VECTORS


def _whole_periods(stage: Stage, lanes: int) -> tuple[int, ...]:
    """Return the candidate numbers of vectors in a chunk of the last axis.

    Where indices divide the axis, chunks begin at multiples of the divisor, or there is one chunk: the elements that
    each lane reads are then known at compile time.
    """
    vectors, last = (1, 2, 4, 8), stage.op.axes[-1]
    divisor = math.lcm(*index_divisors(stage, last))
    period = divisor // math.gcd(divisor, lanes)
    most = -(-extent(last) // lanes)
    if period == 1 or min(period, most) > MOST_VECTORS:
        return vectors
    least, *more = sorted({min(v * period, most) for v in vectors})
    wider = computed_bytes(stage) / max(DTYPES[d].nbytes for d in stage.op.dtypes)
    return (least, *(n for n in more if n * wider <= MOST_VECTORS))


def _across_tiles(stage: str, axis: StageAxis, itemsize: int) -> list[SketchParam]:
    """Return the tile along the axis that a transposed read is contiguous along, and a tile count where one is not all.

    Consecutive tiles along this axis continue in the same rows, which the hardware prefetcher follows. Consecutive
    tiles along the written axis would begin a line in each of several new rows every time.
    """
    size, group = extent(axis), f"{stage}.{axis.name}"
    tile = replace(across_tile(f"{group}.r", size, itemsize=itemsize), group=group)
    return [tile] if size <= tile.domain[-1] else [run_of_tiles(f"{group}.m", size, group), tile]


def transposed_read(sketch: PartialSketch, stage: Stage) -> tuple[str, int] | None:
    """Return an outer axis along which a read is contiguous but the written axis is not, and its element's bytes."""
    last = stage.op.axes[-1].name
    for read in reads_of(sketch.state, stage):
        if read.is_unit(last):
            continue
        for axis in stage.op.axes[:-1]:
            if read.strides[axis.name] == 1:
                return axis.name, DTYPES[read.load.dtype].nbytes
    return None
