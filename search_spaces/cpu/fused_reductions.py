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
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias

from autosched.errors import ScheduleError
from autosched.ir.expr import Expr
from autosched.ir.stmt import Scope
from autosched.ir.visit import free_vars, is_gathered
from autosched.schedule import ComputeAt, ComputeInline, Parallel, Reorder, Split, Stage, State, Step, Unroll, Vectorize
from autosched.schedule.stage import StageAxis
from search_spaces.access import extent, reads_of
from search_spaces.cpu.accumulate import unrolled_accumulator
from search_spaces.cpu.domains import register_tile, tile_count, vector_width
from search_spaces.cpu.packing import pack_panels
from search_spaces.cpu.tiling import constant_panels, tiled_alternatives
from search_spaces.fusion import fused_consumer, has_condition, is_copy, is_expensive
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer
from search_spaces.reduction_chain import ReductionChain, match_reduction_chain

MOST_MEMBERS = 3  # reductions in one nest
Member: TypeAlias = tuple[Stage, StageAxis, StageAxis]  # a reduction, and the axes of its rows and its register tiles


class FusedReductions:
    """All fused reductions in one nest; then the other rules' alternatives for the last of them."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return len(_members(sketch, stage)[0]) > 1

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> Sequence[Alternative]:
        nests = [_fused_nest(sketch, stage, context, panels) for panels in (True, False)]
        return [*(n for n in nests if n is not None), *tiled_alternatives(sketch, stage, context)]


def _members(sketch: PartialSketch, stage: Stage) -> tuple[list[Member], list[str]]:
    """Return the reductions that can be fused, from the last, `stage`, to the first, and the stages to be inlined
    between them."""
    state = sketch.state
    if not state.is_output(fused_consumer(state, stage) or stage) or not _is_tiled_sum(state, stage):
        return [], []
    wide = [a for a in stage.op.axes if extent(a) > 1 or a is stage.op.axes[-1]]
    if len(wide) < 2 or wide[-1] is not stage.op.axes[-1]:
        return [], []
    members: list[Member] = [(stage, wide[max(0, len(wide) - 3)], wide[-2])]
    inlined: list[str] = []
    while len(members) < MOST_MEMBERS and (chain := match_reduction_chain(sketch, members[-1][0])) is not None:
        source, copies = _source_through_copies(state, chain)
        member = None if source is None else _as_member(state, chain, source, members[-1])
        if member is None:
            break
        members.append(member)
        inlined += copies
    return members, inlined


def _source_through_copies(state: State, chain: ReductionChain) -> tuple[Stage | None, list[str]]:
    """Return the source whose results `chain.last` reads through stages that only move data, and these stages."""
    writers = {(fused_consumer(state, s) or s).name: s for s in reversed(chain.sources)}
    copies = list(takewhile(lambda name: name not in writers, chain.maps))
    between = [state.stage(name) for name in copies]
    operands = [
        {p.name for b in s.op.reads - state.constants if (p := state.producer(b))} for s in (chain.last, *between)
    ]
    moves = all((is_copy(s) or has_condition(s)) and not is_expensive(s) for s in between)
    if not moves or operands[:-1] != [{name} for name in copies] or len(operands[-1]) != 1:
        return None, []
    return writers.get(operands[-1].pop()), copies


def _as_member(state: State, chain: ReductionChain, source: Stage, reader: Member) -> Member | None:
    """Return the source as a member if a block of the reader's rows needs a block of its rows and all its columns."""
    reads, (stage, row, pixel) = chain.reads(source), reader
    if not _is_tiled_sum(state, source) or len(reads) != 1 or is_gathered(reads[0]):
        return None
    indices, others = reads[0].indices, [a for a in _outer(stage, row, pixel) if extent(a) > 1]
    dims = [d for a in (*others, row, pixel) if (d := _dimension(indices, a)) is not None]
    if len(dims) < len(others) + 2 or any(indices[d] is not a.var for d, a in zip(dims, others, strict=False)):
        return None
    numbers, axes = [*dims[:-2], *{*dims[-2:]}], source.op.axes
    is_block = len({*numbers}) == len(numbers) and len(axes) - 1 not in numbers
    return (source, axes[dims[-2]], axes[dims[-1]]) if is_block else None


def _outer(stage: Stage, row: StageAxis, pixel: StageAxis) -> list[StageAxis]:
    """Return the output axes that are neither rows, register tiles nor columns."""
    return [a for a in stage.op.axes[:-1] if a not in (row, pixel)]


def _dimension(indices: tuple[Expr, ...], axis: StageAxis) -> int | None:
    """Return the dimension whose index contains the axis; None if several do."""
    dims = [n for n, i in enumerate(indices) if axis.var in free_vars(i)]
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


def _fused_nest(sketch: PartialSketch, stage: Stage, context: SketchContext, panels: bool) -> PartialSketch | None:
    """Return the fused nest; None where a stage cannot be computed for the rows of a task."""
    (last, *before), inlined = _members(sketch, stage)
    try:
        sketch = sketch.apply(*map(ComputeInline, inlined))
        sketch, root, acc = fuse_consumer(sketch, stage)
        sketch, loops = split_tasks(sketch, root, last, len(before), context)
        sketch = _accumulate_packed(sketch, root, acc, loops.pop())
        for member, loop in zip(before, reversed(loops), strict=True):
            sketch = _compute_at(sketch, member, (root, loop), context, panels)
    except ScheduleError:
        return None
    done = sketch.finish(root, note=f"{stage.name}:chain{'' if panels else '-rows'}")
    return replace(done, fuses_reductions=True)


def split_tasks(
    sketch: PartialSketch, root: str, last: Member, before: int, context: SketchContext, least: int = 1
) -> tuple[PartialSketch, list[str]]:
    """Split the loops of the writing stage; return also the loop for each of the reductions `before` the last, and that
    of the register tiles. `least`: the fewest of these in a block."""
    of, rows, pixels = last
    stage = sketch.state.stage(root)
    row, pixel = _name_in(stage, of, rows), _name_in(stage, of, pixels)
    v = stage.op.axes[-1]
    tile = register_tile(f"{root}.{pixel}.r", extent(pixels), f"{root}.{pixel}")
    width = vector_width(f"{root}.{v.name}.r", extent(v), context.lanes_of(stage), "")
    group = f"{root}.{row}"
    levels = [tile_count(f"{group}.{n}", extent(rows), group) for n in "mb"[:before]]
    levels[-1] = replace(levels[-1], domain=tuple(n for n in levels[-1].domain if n >= least))
    inside = f"{row}.{before}"
    if row == pixel:
        splits: list[Step] = [Split(root, row, (*(p.name for p in levels), tile.name))]
        tiles = [inside, f"{row}.{before + 1}"]
    else:
        splits = [Split(root, row, tuple(p.name for p in levels)), Split(root, pixel, (tile.name,))]
        tiles = [inside, f"{pixel}.0", f"{pixel}.1"]
    outer = [*(_name_in(stage, of, a) for a in _outer(of, rows, pixels)), f"{row}.0"]
    blocks = [f"{row}.{n}" for n in range(before)]
    sketch = sketch.with_params([*levels, tile, width]).apply(
        *splits,
        Split(root, v.name, (width.name,)),
        Reorder(root, (*outer, *blocks[1:], f"{v.name}.0", *tiles, f"{v.name}.1")),
        Parallel(root, tuple(outer)),
        Unroll(root, tiles[-1]),
        Vectorize(root, f"{v.name}.1"),
    )
    return sketch, [*blocks, tiles[-2]]


def _name_in(writer: Stage, reduction: Stage, axis: StageAxis) -> str:
    """Return the name of a reduction's axis in the stage that writes its results, which may name its axes itself."""
    names = [a.name for a in writer.op.axes]
    return axis.name if axis.name in names else names[reduction.op.axes.index(axis)]


def _accumulate_packed(sketch: PartialSketch, name: str, acc: str, loop: str) -> PartialSketch:
    """Schedule the accumulators of a register tile, and pack the weights in panels of its columns."""
    stage = sketch.state.stage(acc)
    last, reads = stage.op.axes[-1], reads_of(sketch.state, stage)
    prepared = constant_panels(sketch.state, stage, reads, last)
    columns = sketch.state.stage(name).op.axes[-1].name
    sketch = accumulate(sketch, name, acc, loop)
    for tensor, (axis, reindexed) in prepared.items():
        read = next(r for r in reads if r.load.buffer == tensor)
        moving = [a for a in stage.op.all_axes if a.var in read.axes]
        dim = moving.index(axis) if reindexed else read.dim_of(axis.var)
        if axis is last and dim is not None:
            sketch = pack_panels(sketch, tensor, acc, dim, f"{name}.{columns}.r", None, reindexed=reindexed)
    return sketch.finish(acc)


def accumulate(sketch: PartialSketch, name: str, acc: str, loop: str) -> PartialSketch:
    """Compute the accumulators of a register tile in registers, at a loop of the stage `name` that writes them."""
    sketch = sketch.apply(ComputeAt(acc, name, loop, Scope.REGISTER.value))
    stage = sketch.state.stage(acc)
    return unrolled_accumulator(sketch, stage, stage.op.axes[-1].name)


def _compute_at(
    sketch: PartialSketch, member: Member, at: tuple[str, str], context: SketchContext, panels: bool
) -> PartialSketch:
    """Compute a member at a loop, for the rows that are needed there."""
    stage, _, pixels = member
    sketch, name, acc = fuse_consumer(sketch, stage)
    axes = [a.name for a in sketch.state.stage(name).op.axes]  # the fused consumer names its axes itself
    pixel, last = axes[stage.op.axes.index(pixels)], axes[-1]
    rows = [n for n in axes[:-1] if n != pixel]
    outer = [f"{last}.0", *rows, f"{pixel}.0"] if panels else [*rows, f"{pixel}.0", f"{last}.0"]
    sketch = tile_in_block(sketch, name, pixel, at, outer, context)
    return _accumulate_packed(sketch, name, acc, outer[-1]).finish(name)


def tile_in_block(
    sketch: PartialSketch, name: str, pixel: str, at: tuple[str, str], outer: list[str], context: SketchContext
) -> PartialSketch:
    """Compute the stage `name` at a loop over blocks of rows, in register tiles of `pixel` by vectors inside the loops
    `outer`."""
    stage = sketch.state.stage(name)
    last = stage.op.axes[-1]
    tile = register_tile(f"{name}.{pixel}.r", extent(stage.op.axis(pixel)), "")
    width = vector_width(f"{name}.{last.name}.r", extent(last), context.lanes_of(stage), "")
    return sketch.with_params([tile, width]).apply(
        ComputeAt(name, *at),
        Split(name, pixel, (tile.name,)),
        Split(name, last.name, (width.name,)),
        Reorder(name, (*outer, f"{pixel}.1", f"{last.name}.1")),
        Unroll(name, f"{pixel}.1"),
        Vectorize(name, f"{last.name}.1"),
    )
