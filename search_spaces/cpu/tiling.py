"""Multi-level tiling with a register tile, fused with the consumer (Ansor's R3, R4, R5 in one rule).

    parallel a.0 for every axis
      a.1 for every axis, vectorised axis first or last           <- panels are packed here
        accumulators in registers:  reduction loops, last one unrolled
          a.2 unrolled, v.2 in vectors
        the consumer (the fused one, or the copy out) writes the tile

Alternatives: the vectorised axis, the order of the middle level, the operands that are packed and the loop of the
packing, and blocks of the reduction (blocking.py). Short rows that are reduced are transposed: one row in each lane.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosched.errors import ScheduleError
from autosched.ir.dtype import DTYPES
from autosched.ir.stmt import ForKind, Scope
from autosched.schedule import ComputeAt, Parallel, Reorder, Split, Stage, State, Step, Tensorize, Unroll, Vectorize
from autosched.schedule.stage import StageAxis
from autosched.schedule.steps.tensorize import made_of
from autosched.target import PIECE_BYTES
from autosched.te.rewrites.prefix_scan import step_along
from search_spaces.access import (
    Read,
    buffer_shape,
    column_dim,
    extent,
    has_indirect_lanes,
    has_reuse,
    lane_reduction,
    panel_dim,
    reads_of,
    row_tiles,
    short_last_axis,
    transposable_dim,
    vector_axes,
)
from search_spaces.cpu.accumulate import unroll_name, unrolled_accumulator
from search_spaces.cpu.blocking import blocked_reduction, is_streaming_reduction, skinny_reductions
from search_spaces.cpu.domains import register_tile, tile_count, vector_width
from search_spaces.cpu.inner_products import inner_products
from search_spaces.cpu.intrinsics import store_sums, store_words, tensorization
from search_spaces.cpu.packing import Place, pack_panels, pack_rows, pack_transposed, store_in_panels
from search_spaces.cpu.tile_products import tile_products
from search_spaces.fusion import fused_consumer, has_condition, is_continued
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer
from search_spaces.space import SketchParam

MAX_VECTOR_AXES = 2
SMALL_AXIS = 4  # axes up to this extent have no middle level
LONG_REDUCTION = (
    256  # iterations; with fewer, the rows of a tile stay in the first level cache and packing gains nothing
)
SHORT_ROW = 32  # elements up to which adding up the lanes takes longer than the loads of a row
FULL_VECTORS = 4  # vectors of the best axis from which no other axis is tried


@dataclass(frozen=True)
class Copy:
    """A packed operand.

    `place`: packed for each "panel" of the middle level, once for each "task" of the root stage, or at the "root".
    `rows`: for the operand of the register tile's rows, the number of the output axis along which it is tiled.
    `along`: the number of the output axis of the panels, if that is not the vectorised one. `reindexed`: the copy has a
    dimension for each axis, as W[g * 4 + c] needs for panels along c.
    """

    tensor: str
    place: str
    transposed: bool = False
    rows: int | None = None
    along: int | None = None
    reindexed: bool = False


@dataclass(frozen=True)
class Plan:
    """One alternative of a tiled reduction.

    `v`: the number of the vectorised axis. `panel_first`: the middle level has it outermost. `words`: the instruction
    that multiplies packed words. `whole`: the whole reduction is unrolled. `flat`: no middle level, since the task is
    small enough.
    """

    v: int
    panel_first: bool
    copies: tuple[Copy, ...] = ()
    words: Tensorize | None = None
    whole: bool = False
    flat: bool = False

    @property
    def note(self) -> str:
        order = "across" if self.whole else "panel" if self.panel_first else "rows"
        words = [] if self.words is None else [self.words.intrinsic]
        return "-".join([f"v{self.v}", order, *(f"{c.tensor}@{c.place}" for c in self.copies), *words])


class MultiLevelTiling:
    """Reductions with an output axis to vectorise; the only rule for those with data reuse."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return can_tile(sketch.state, stage, context)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> Sequence[Alternative]:
        return tiled_alternatives(sketch, stage, context)


def can_tile(state: State, stage: Stage, context: SketchContext) -> bool:
    """Whether the stage is a reduction with an output axis to vectorise, and lanes along the reduction are no better.

    With reuse they never are; without it, only where neighbouring lanes are adjacent windows.
    """
    if stage.op.reducer is None:
        return False
    reads = reads_of(state, stage)
    axes = _vectorised(state, stage, reads, context.lanes_of(stage))
    if not axes:
        return False
    lane = lane_reduction(stage, reads)
    if has_reuse(stage, reads) or lane is None or extent(lane) < context.lanes_of(stage):
        return True
    return step_along(stage.op.body, lane.var, axes[0].var) == (1, 1)  # adjacent windows


def tiled_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> Sequence[Alternative]:
    """Return the plans for each axis to vectorise; blocks of the reduction and inner products where they suit."""
    reads = reads_of(sketch.state, stage)
    lanes = context.lanes_of(stage)
    axes = _vectorised(sketch.state, stage, reads, lanes)
    most = 1 if extent(axes[0]) >= FULL_VECTORS * lanes else MAX_VECTOR_AXES + any(extent(a) < lanes for a in axes)
    axes = axes[:most]
    short = short_last_axis(stage, reads, lanes)
    axes = axes if short is None or short in axes else (*axes, short)
    words = [(step, a) for a in axes if (step := tensorization(stage, reads, a, context)) is not None]
    plans = [p for axis in axes for p in _plans(sketch.state, stage, reads, axis)]
    if words:  # one plan without them remains, for shapes where the instruction does not pay
        tensorized = [p for step, axis in words for p in _plans_of_words(stage, axis, step)]
        dots = inner_products(sketch, stage, context)
        tiled = tile_products(sketch, stage, context)
        tiled += [_deferred(context, p, sketch, stage) for p in (*tensorized, plans[0])]
        return tiled if dots is None else [*tiled, dots]
    paneled = [a for a in axes if all(r.fills_lanes(a) or panel_dim(r, stage, a) is not None for r in reads)]
    skinny = skinny_reductions(sketch, stage, paneled[0], context) if paneled else []
    if skinny and is_streaming_reduction(sketch, stage, paneled[0], context):
        return skinny
    partials = [*tile_products(sketch, stage, context), *(_deferred(context, p, sketch, stage) for p in plans)]
    inside = _inside_task(sketch, stage)
    if inside is not None:  # no panels: every task would pack them again
        at_root = [p for p in plans if all(c.place == "root" for c in p.copies)]
        if at_root and is_continued(sketch.state, stage):
            return [_Tiling(context, replace(at_root[0], panel_first=True, flat=True)).apply(inside, stage)]
        partials += [_deferred(context, _in_tasks(p, sketch.state, stage, reads), inside, stage) for p in at_root]
    more = [blocked_reduction(sketch, stage, a, context) for a in paneled[:1]]
    more += [*skinny, inner_products(sketch, stage, context)]
    return [*partials, *(d for d in more if d is not None)]


def _vectorised(state: State, stage: Stage, reads: tuple[Read, ...], lanes: int) -> tuple[StageAxis, ...]:
    """Return the axes to vectorise. The last one is among them if only weights prevent it, which are packed at load
    time, as those of few channels in many groups; beside other axes, if it fills at least half of a vector."""
    if not stage.op.axes:
        return ()
    axes, last = vector_axes(stage, reads, lanes), stage.op.axes[-1]
    if last in axes or extent(last) == 1 or (axes and 2 * extent(last) < lanes):
        return axes
    prepared = constant_panels(state, stage, reads, last)
    fits = all(r.load.buffer in prepared or r.fills_lanes(last) for r in reads)
    return (*axes, last) if fits else axes


def _deferred(context: SketchContext, plan: Plan, sketch: PartialSketch, stage: Stage) -> Alternative:
    return lambda: _Tiling(context, plan).apply(sketch, stage)


def short_rows_across(sketch: PartialSketch, stage: Stage, context: SketchContext) -> PartialSketch | None:
    """Return the alternative with one short contiguous row in each lane; blocks of rows are transposed in registers.

    None where a row is shorter than such a block, so short that strided loads get the lanes, or long enough to be
    vectorised itself.
    """
    reads = reads_of(sketch.state, stage)
    if len(stage.op.all_axes) != 2 or has_condition(stage):
        return None
    (axis,), (k,) = stage.op.axes, stage.op.reduce_axes
    across = [r for r in reads if not r.is_unit(axis.name)]
    bad = [r for r in across if r.is_near(axis.name) or r.strides[k.name] != 1 or r.load.dtype == "bool"]
    block = PIECE_BYTES // min((DTYPES[r.load.dtype].nbytes for r in across), default=PIECE_BYTES)
    if bad or not across or not block <= extent(k) <= SHORT_ROW or extent(axis) < context.lanes_of(stage):
        return None
    return _Tiling(context, Plan(0, True, whole=True)).apply(sketch, stage)


def _inside_task(sketch: PartialSketch, stage: Stage) -> PartialSketch | None:
    """Return the stage computed for each task of rows of its reader, so that its values stay in a cache.

    If it is a part of a reduction, its fused consumer is computed there too. None if other stages read the values.
    """
    state, goes_on = sketch.state, is_continued(sketch.state, stage)
    whole = fused_consumer(state, stage) or stage
    consumers = {state.root(r).name for r in state.consumers(whole)}
    consumer = state.stage(consumers.pop()) if len(consumers) == 1 else None
    row = None if consumer is None else sketch.row_loop(consumer.name)
    if consumer is None or row is None or (whole is not stage and not goes_on):
        return None
    tasks = [x.name for x in consumer.loops if x.kind is ForKind.PARALLEL]
    one_row = row.loop not in (x.name for x in consumer.loops[len(tasks) :])
    if not tasks or (one_row and not goes_on):
        return None
    try:
        return sketch.apply(ComputeAt(whole.name, consumer.name, tasks[-1])).finish(
            note=f"{whole.name}@{consumer.name}-tasks"
        )
    except ScheduleError:
        return None


def _in_tasks(plan: Plan, state: State, stage: Stage, reads: tuple[Read, ...]) -> Plan:
    """Return the plan for a stage inside a task.

    The middle level has panels first instead of rows, and each task packs operands that not all tasks share, such as
    the keys of a head of an attention. These panels never leave its caches.
    """
    others = [a for n, a in enumerate(stage.op.axes) if n != plan.v]
    own = {r.load.buffer for r in reads if any(r.moves(a.name) for a in others)} - state.constants
    if plan.panel_first or not any(c.tensor in own for c in plan.copies):
        return plan
    copies = tuple(replace(c, place="task") if c.tensor in own else c for c in plan.copies)
    return replace(plan, panel_first=True, copies=copies)


def _plans(state: State, stage: Stage, reads: tuple[Read, ...], axis: StageAxis) -> list[Plan]:
    """Return the plans for a vectorised axis. Weights are always packed in panels at the root, at load time."""
    free = constant_panels(state, stage, reads, axis)
    ahead = tuple(
        Copy(t, "root", along=stage.op.axes.index(a), reindexed=reindexed) for t, (a, reindexed) in free.items()
    )
    others = tuple(r for r in reads if r.load.buffer not in free)
    return [replace(p, copies=(*ahead, *p.copies)) for p in _plans_inside(stage, others, axis, bool(ahead))]


def _plans_of_words(stage: Stage, axis: StageAxis, words: Tensorize) -> list[Plan]:
    """Return the plans for an instruction on packed words: the operand with the lanes is in panels of words."""
    v = stage.op.axes.index(axis)
    panel, root = ((Copy(words.packed, place),) for place in ("panel", "root"))
    return [Plan(v, True, panel, words), Plan(v, True, root, words), Plan(v, False, root, words)]


def constant_panels(
    state: State, stage: Stage, reads: tuple[Read, ...], v: StageAxis
) -> dict[str, tuple[StageAxis, bool]]:
    """Return operands of weights alone, with the axis of their panels, and whether the copy is reindexed."""
    panels: dict[str, tuple[StageAxis, bool]] = {}
    for read in reads:
        name = read.load.buffer
        moving = [a for a in (*(a for a in stage.op.axes if a is not v), v) if read.moves(a.name)]
        if name not in state.constants or not moving or name in panels or read.is_indirect:
            continue
        plain = [a for a in moving if read.dim_of(a.var) is not None]
        if plain and (v not in moving or plain[-1] is v):
            panels[name] = plain[-1], False
        elif can_reindex(state, stage, reads, read):
            panels[name] = moving[-1], True
    return panels


def can_reindex(state: State, stage: Stage, reads: tuple[Read, ...], read: Read) -> bool:
    """Whether a copy with a dimension for each axis contains every element once."""
    axes = [a for a in stage.op.all_axes if a.var in read.axes]
    alone = sum(r.load.buffer == read.load.buffer for r in reads) == 1
    distinct = math.prod(extent(a) for a in axes) <= math.prod(buffer_shape(state, read.load.buffer))
    return alone and distinct and not stage.op.guards and not has_condition(stage)


def _plans_inside(stage: Stage, reads: tuple[Read, ...], axis: StageAxis, packed_ahead: bool) -> list[Plan]:
    """Return the plans for operands that are packed in the kernel, or not at all."""
    v = stage.op.axes.index(axis)
    far = [r for r in reads if not r.fills_lanes(axis) and not has_indirect_lanes(r, axis)]
    apart = [r for r in far if not _needs_strided_load(r, stage, axis)]
    if any(panel_dim(r, stage, axis) is None for r in apart):
        copies = tuple(
            Copy(t, "root", any(r.load.buffer == t and panel_dim(r, stage, axis) is None for r in apart))
            for t in dict.fromkeys(r.load.buffer for r in apart)
        )
        per_task = tuple(replace(c, place="task") for c in copies)
        return [Plan(v, True, copies), Plan(v, False, copies), Plan(v, True, per_task)]
    must = [r.load.buffer for r in apart]
    panels = [r.load.buffer for r in reads if r.moves(axis.name) and panel_dim(r, stage, axis) is not None]
    names = tuple(dict.fromkeys((*must, *panels)))
    plans = [] if must else [Plan(v, True), Plan(v, False)]
    columns = [r.load.buffer for r in reads if r.moves(axis.name) and column_dim(r, stage, axis) is not None]
    if not set(columns) <= set(names):  # weights of groups: a panel of a part of them would extend into the next group
        plans.append(Plan(v, True, tuple(Copy(t, "panel") for t in dict.fromkeys((*names, *columns)))))
    if names:
        plans.append(Plan(v, True, tuple(Copy(t, "panel") for t in names)))
        plans.append(Plan(v, True, tuple(Copy(t, "root") for t in names)))
        plans.append(Plan(v, False, tuple(Copy(t, "root") for t in names)))
    rows_too = tuple(
        Copy(r.load.buffer, "task", rows=stage.op.axes.index(tiled.axis))
        for r in reads
        if extent(stage.op.reduce_axes[-1]) >= LONG_REDUCTION and (tiled := row_tiles(r, stage, axis)) is not None
    )
    if rows_too and (names or packed_ahead):
        plans.append(Plan(v, True, (*(Copy(t, "root") for t in names), *rows_too)))
    return plans


def _needs_strided_load(read: Read, stage: Stage, axis: StageAxis) -> bool:
    """Whether lanes a few elements apart need strided loads, because no copy makes them adjacent."""
    return read.is_near(axis.name) and panel_dim(read, stage, axis) is transposable_dim(read, stage, axis) is None


@dataclass(frozen=True)
class _Tiling:
    """The application of a plan: splits of the consumer, the accumulating stage inside, then the copies."""

    context: SketchContext
    plan: Plan

    def apply(self, sketch: PartialSketch, stage: Stage) -> PartialSketch:
        reads = reads_of(sketch.state, stage)
        sketch, name, acc = fuse_consumer(sketch, stage)
        consumer = sketch.state.stage(name)
        sketch = self._tile_consumer(sketch, consumer)
        prefix = [x.name for x in sketch.state.stage(name).loops]
        attach = prefix[len(prefix) - len(consumer.op.axes) - 1]
        if self.plan.words is not None:
            sketch = store_words(sketch, acc, self.plan.words)
        sketch = sketch.apply(ComputeAt(acc, name, attach, Scope.REGISTER.value))
        accumulating = sketch.state.stage(acc)
        sketch = unrolled_accumulator(sketch, accumulating, accumulating.op.axes[self.plan.v].name, self.plan.whole)
        for copy in self.plan.copies:
            sketch = self._copy(sketch, stage, reads, copy, name, acc)
        first_middle = next((x for x in prefix if x.endswith(".1")), prefix[0])
        outer = prefix[max(0, prefix.index(first_middle) - 1)]
        return sketch.finish(name, acc, note=f"{stage.name}:{self.plan.note}").with_row_loop(name, outer)

    def _factors(self, consumer: Stage, n: int) -> tuple[str, ...]:
        """Return the names of the inner factors of consumer axis `n`: middle (if any) and register tile."""
        axis = consumer.op.axes[n]
        tile = f"{consumer.name}.{axis.name}.r"
        return (tile,) if self.plan.flat or extent(axis) <= SMALL_AXIS else (f"{consumer.name}.{axis.name}.m", tile)

    def _tile_consumer(self, sketch: PartialSketch, consumer: Stage) -> PartialSketch:
        params: list[SketchParam] = []
        steps: list[Step] = []
        lanes = self.context.lanes_of(consumer)
        for n, axis in enumerate(consumer.op.axes):
            names, size, group = self._factors(consumer, n), extent(axis), f"{consumer.name}.{axis.name}"
            steps.append(Split(consumer.name, axis.name, names))
            if len(names) == 2:
                params.append(tile_count(names[0], size, group))
            if n == self.plan.v:
                params.append(vector_width(names[-1], size, lanes, group))
            else:
                params.append(register_tile(names[-1], size, group))
        others = [a.name for n, a in enumerate(consumer.op.axes) if n != self.plan.v]
        v = consumer.op.axes[self.plan.v].name
        levels = {a.name: len(self._factors(consumer, n)) for n, a in enumerate(consumer.op.axes)}
        middle_order = [v, *others] if self.plan.panel_first else [*others, v]
        outer = [f"{a.name}.0" for a in consumer.op.axes]
        middle = [f"{a}.1" for a in middle_order if levels[a] == 2]
        inner = [f"{a}.{levels[a]}" for a in (*others, v)]
        steps.append(Reorder(consumer.name, (*outer, *middle, *inner)))
        if consumer.at is None:
            steps.append(Parallel(consumer.name, tuple(outer)))
        steps += [Unroll(consumer.name, x) for x in inner[:-1]]
        steps.append(Vectorize(consumer.name, inner[-1]))
        return sketch.with_params(params).apply(*steps)

    def _copy(
        self, sketch: PartialSketch, stage: Stage, reads: tuple[Read, ...], copy: Copy, consumer: str, acc: str
    ) -> PartialSketch:
        number = self.plan.v if copy.along is None else copy.along
        axis = stage.op.axes[number]
        consumer_stage = sketch.state.stage(consumer)
        at = self._place(consumer_stage, copy.place)
        of_tensor = [r for r in reads if r.load.buffer == copy.tensor]
        if self.plan.words is not None:
            dim = next(d for r in of_tensor if (d := r.dim_of(axis.var)) is not None)
            width = self._factors(consumer_stage, number)[-1]
            words, sums = (made_of(sketch.state, copy.tensor, kind, acc) for kind in ("words", "sums"))
            sketch = store_sums(sketch, sums, axis.name, width, at)
            return store_in_panels(sketch, words, dim, width, at)
        if copy.rows is not None:
            return self._copy_rows(sketch, stage, of_tensor[0], copy, acc, consumer_stage)
        if copy.transposed:
            dim = next(d for r in of_tensor if (d := transposable_dim(r, stage, axis)) is not None)
            return pack_transposed(sketch, copy.tensor, acc, dim, at, self.context)
        width = self._factors(consumer_stage, number)[-1]
        if copy.reindexed:
            moving = [a for a in stage.op.all_axes if a.var in of_tensor[0].axes]
            return pack_panels(sketch, copy.tensor, acc, moving.index(axis), width, at, reindexed=True)
        dims = (d for r in of_tensor for d in (r.dim_of(axis.var), column_dim(r, stage, axis)))
        dim = next(d for d in dims if d is not None)
        return pack_panels(sketch, copy.tensor, acc, dim, width, at)

    def _copy_rows(
        self, sketch: PartialSketch, stage: Stage, read: Read, copy: Copy, acc: str, consumer: Stage
    ) -> PartialSketch:
        tiled = row_tiles(read, stage, stage.op.axes[self.plan.v])
        assert copy.rows is not None
        assert tiled is not None
        widths = self._factors(consumer, copy.rows)[-1], unroll_name(acc, stage.op.reduce_axes[-1].name)
        return pack_rows(sketch, copy.tensor, acc, tiled.dims, widths, self._place(consumer, copy.place))

    def _place(self, consumer: Stage, place: str) -> Place:
        """Return the (stage, loop) that a copy is computed in."""
        if place == "root":
            return None
        if place == "task" and consumer.at is not None:
            return consumer.at.stage, consumer.at.loop
        v = consumer.op.axes[self.plan.v].name
        if place == "panel" and len(self._factors(consumer, self.plan.v)) == 2:
            return consumer.name, f"{v}.1"
        return consumer.name, [x.name for x in consumer.loops if x.name.endswith(".0")][-1]
