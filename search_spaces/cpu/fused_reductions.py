"""Fused reductions that read each other's results, in one nest: intermediate results exist for a few rows at a time.

    parallel: batches, and tasks of rows
      the first reduction for all rows that the task needs, including those under overlapping windows
      blocks of rows
        the next one, for the rows of a block
        register tiles of the last one, panel by panel of its weights

An inverted bottleneck is an example: 1x1 convolution, depthwise convolution, 1x1 convolution, of which the first has
six times the channels; so are the two products of a perceptron. Rows that two tasks need are computed twice; the number
of rows in a task is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosched.errors import ScheduleError
from autosched.ir.stmt import Scope
from autosched.ir.visit import free_vars
from autosched.schedule import ComputeAt, ComputeInline, Parallel, Reorder, Split, Stage, State, Step, Unroll, Vectorize
from autosched.schedule.stage import StageAxis
from search_spaces.access import Read, extent, reads_of
from search_spaces.cpu.accumulate import unrolled_accumulator
from search_spaces.cpu.domains import register_tile, tile_count, vector_width
from search_spaces.cpu.packing import pack_panels
from search_spaces.cpu.tiling import constant_panels, tiled_alternatives
from search_spaces.fusion import fused_consumer, has_condition, is_copy, is_expensive
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer

MOST_MEMBERS = 3  # reductions in one nest


@dataclass(frozen=True)
class _FusedReduction:
    """One of the fused reductions.

    `row`: the axis of its rows. `pixel`: the axis of its register tiles. `outer`: the other axes but the last one.
    `between`: the stages between the reduction and its reader, which are inlined there.
    """

    stage: Stage
    outer: tuple[StageAxis, ...]
    row: StageAxis
    pixel: StageAxis
    between: tuple[str, ...] = ()

    @property
    def last(self) -> StageAxis:
        return self.stage.op.axes[-1]


class FusedReductions:
    """All fused reductions in one nest; then the other rules' alternatives for the last of them."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return len(fusable_reductions(sketch.state, stage)) > 1

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> Sequence[Alternative]:
        chain = fusable_reductions(sketch.state, stage)
        nests = [_fused_nest(sketch, chain, context, panels) for panels in (True, False)]
        return [*(n for n in nests if n is not None), *tiled_alternatives(sketch, stage, context)]


def fusable_reductions(state: State, stage: Stage) -> tuple[_FusedReduction, ...]:
    """Return the reductions that can be fused in one nest, from the last, `stage`, to the first; () if none can be."""
    whole = fused_consumer(state, stage) or stage
    if not state.is_output(whole) or not _is_tiled_sum(state, stage):
        return ()
    wide = [a for a in stage.op.axes if extent(a) > 1 or a is stage.op.axes[-1]]
    if len(wide) < 2 or wide[-1] is not stage.op.axes[-1]:
        return ()
    pixel, row = wide[-2], wide[max(0, len(wide) - 3)]
    others = tuple(a for a in stage.op.axes[:-1] if a not in (pixel, row))
    members = [_FusedReduction(stage, others, row, pixel)]
    while len(members) < MOST_MEMBERS and (before := _previous_reduction(state, members[-1])) is not None:
        members.append(before)
    return tuple(members)


def _previous_reduction(state: State, reader: _FusedReduction) -> _FusedReduction | None:
    """Return the only reduction whose results `reader` reads, possibly through stages that move data."""
    between: list[str] = []
    consumer = reader.stage
    while True:
        makers = {
            m.name: m for b in consumer.op.reads if b not in state.constants and (m := state.producer(b)) is not None
        }
        if len(makers) != 1:
            return None
        (producer,) = makers.values()
        if producer.at is not None or state.is_output(producer) or state.consumers(producer) != (consumer,):
            return None
        inner = producer if producer.op.reducer is not None else _reduction_fused_to(state, producer)
        if inner is not None:
            break
        if is_expensive(producer) or not (is_copy(producer) or has_condition(producer)):
            return None
        between.append(producer.name)
        consumer = producer
    return _as_member(state, reader, inner, producer, tuple(between))


def _reduction_fused_to(state: State, whole: Stage) -> Stage | None:
    return next((s for s in state.stages if s.op.reducer is not None and fused_consumer(state, s) is whole), None)


def _as_member(
    state: State, reader: _FusedReduction, inner: Stage, whole: Stage, between: tuple[str, ...]
) -> _FusedReduction | None:
    """Return `inner` as a member if a block of the reader's rows reads a block of its rows and all of its columns."""
    if not _is_tiled_sum(state, inner):
        return None
    inlined = state.apply(*(ComputeInline(name) for name in between))
    reads = [r for r in reads_of(inlined, inlined.stage(reader.stage.name)) if r.load.buffer in whole.op.buffers]
    if len(reads) != 1 or reads[0].is_indirect:
        return None
    (read,) = reads
    outer = [_dimension(read, a) for a in reader.outer if extent(a) > 1]
    row, pixel = _dimension(read, reader.row), _dimension(read, reader.pixel)
    dims = [*outer, *{row, pixel}]
    if None in dims or len({*dims}) < len(dims) or any(d == len(inner.op.axes) - 1 for d in dims):
        return None
    if any(read.dim_of(a.var) is None for a in reader.outer if extent(a) > 1):
        return None
    axes = inner.op.axes
    assert row is not None
    assert pixel is not None
    return _FusedReduction(
        inner, tuple(a for n, a in enumerate(axes[:-1]) if n not in (row, pixel)), axes[row], axes[pixel], between
    )


def _dimension(read: Read, axis: StageAxis) -> int | None:
    """Return the dimension whose index contains the axis; None if several do."""
    dims = [n for n, i in enumerate(read.load.indices) if axis.var in free_vars(i)]
    return dims[0] if len(dims) == 1 else None


def _is_tiled_sum(state: State, stage: Stage) -> bool:
    """Whether the stage is a sum of products whose register tiles along the last axis need copies of weights only."""
    op = stage.op
    if len({load.buffer for load in op.loads}) < 2:
        return False
    if op.reducer is None or not op.reducer.is_sum or stage.at is not None or len(op.axes) < 2 or op.guards:
        return False
    last, reads = op.axes[-1], reads_of(state, stage)
    prepared = constant_panels(state, stage, reads, last)
    return all(r.fills_lanes(last) or r.load.buffer in prepared for r in reads)


def _fused_nest(
    sketch: PartialSketch, chain: tuple[_FusedReduction, ...], context: SketchContext, panels: bool
) -> PartialSketch | None:
    """Return the fused nest; None where a stage cannot be computed for the rows of a task."""
    last, *before = chain
    try:
        sketch = sketch.apply(*(ComputeInline(name) for member in before for name in member.between))
        sketch, root, acc = fuse_consumer(sketch, last.stage)
        sketch, loops = _split_tasks(sketch, root, last, len(before), context)
        sketch = _accumulate(sketch, root, acc, loops.pop())
        for member, loop in zip(before, reversed(loops), strict=True):
            sketch = _compute_at(sketch, member, (root, loop), context, panels)
    except ScheduleError:
        return None
    done = sketch.finish(note=f"{last.stage.name}:chain{'' if panels else '-rows'}")
    return replace(done, fuses_reductions=True)


def _split_tasks(
    sketch: PartialSketch, root: str, last: _FusedReduction, before: int, context: SketchContext
) -> tuple[PartialSketch, list[str]]:
    """Split the loops of the writing stage; return also the loop for each member, and that of the register tiles."""
    stage, row, pixel = sketch.state.stage(root), last.row.name, last.pixel.name
    v = stage.op.axes[-1]
    tile = register_tile(f"{root}.{pixel}.r", extent(last.pixel), f"{root}.{pixel}")
    width = vector_width(f"{root}.{v.name}.r", extent(v), context.lanes_of(stage), "")
    group = f"{root}.{row}"
    levels = [tile_count(f"{group}.{n}", extent(last.row), group) for n in "mb"[:before]]
    inside = f"{row}.{before}"
    if row == pixel:
        splits: list[Step] = [Split(root, row, (*(p.name for p in levels), tile.name))]
        tiles = [inside, f"{row}.{before + 1}"]
    else:
        splits = [Split(root, row, tuple(p.name for p in levels)), Split(root, pixel, (tile.name,))]
        tiles = [inside, f"{pixel}.0", f"{pixel}.1"]
    outer = [*(a.name for a in last.outer), f"{row}.0"]
    blocks = [f"{row}.{n}" for n in range(before)]
    sketch = sketch.with_params([*levels, tile, width]).apply(
        *splits,
        Split(root, v.name, (width.name,)),
        Reorder(root, (*outer, *blocks[1:], f"{v.name}.0", *tiles, f"{v.name}.1")),
        Parallel(root, tuple(outer)),
        Unroll(root, tiles[-1]),
        Vectorize(root, f"{v.name}.1"),
    )
    return sketch.finish(root), [*blocks, tiles[-2]]


def _accumulate(sketch: PartialSketch, name: str, acc: str, loop: str) -> PartialSketch:
    """Schedule the accumulators of a register tile, and pack the weights in panels of its columns."""
    stage = sketch.state.stage(acc)
    last, reads = stage.op.axes[-1], reads_of(sketch.state, stage)
    prepared = constant_panels(sketch.state, stage, reads, last)
    columns = sketch.state.stage(name).op.axes[-1].name
    sketch = sketch.apply(ComputeAt(acc, name, loop, Scope.REGISTER.value))
    sketch = unrolled_accumulator(sketch, sketch.state.stage(acc), last.name)
    for tensor, (axis, reindexed) in prepared.items():
        read = next(r for r in reads if r.load.buffer == tensor)
        moving = [a for a in stage.op.all_axes if a.var in read.axes]
        dim = moving.index(axis) if reindexed else read.dim_of(axis.var)
        if axis is last and dim is not None:
            sketch = pack_panels(sketch, tensor, acc, dim, f"{name}.{columns}.r", None, reindexed=reindexed)
    return sketch.finish(acc)


def _compute_at(
    sketch: PartialSketch, member: _FusedReduction, at: tuple[str, str], context: SketchContext, panels: bool
) -> PartialSketch:
    """Compute a member at the loop `place`, for the rows that are needed there."""
    sketch, name, acc = fuse_consumer(sketch, sketch.state.stage(member.stage.name))
    stage = sketch.state.stage(name)
    numbers = {a.name: n for n, a in enumerate(member.stage.op.axes)}
    names = [a.name for a in stage.op.axes]  # the fused consumer names its axes itself
    pixel, last = names[numbers[member.pixel.name]], names[-1]
    tile = register_tile(f"{name}.{pixel}.r", extent(member.pixel), "")
    width = vector_width(f"{name}.{last}.r", extent(member.last), context.lanes_of(stage), "")
    rows = [n for n in names[:-1] if n != pixel]
    outer = [f"{last}.0", *rows, f"{pixel}.0"] if panels else [*rows, f"{pixel}.0", f"{last}.0"]
    sketch = sketch.with_params([tile, width]).apply(
        ComputeAt(name, *at),
        Split(name, pixel, (tile.name,)),
        Split(name, last, (width.name,)),
        Reorder(name, (*outer, f"{pixel}.1", f"{last}.1")),
        Unroll(name, f"{pixel}.1"),
        Vectorize(name, f"{last}.1"),
    )
    return _accumulate(sketch, name, acc, outer[-1]).finish(name)
