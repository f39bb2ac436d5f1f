"""Attention in tasks of rows: sums weighted by the softmax of a product, in any order of the axes.

    panels of the first product's columns
    parallel: batches, and tasks of blocks of rows
      blocks of rows
        the first product for the rows of the block and all columns, in register tiles over the panels
        maxima, exponentials and their sums, row by row
        register tiles: the exponentials times the values, divided by the sums after the reduction

Under a causal mask, a block ends with the columns of its last row. Panels that each task packs once for a batch are no
better: 1 to 1.1 times the time.

The number of rows of a block is chosen so that its scores of all columns stay in the second level cache. One thread of
a Xeon with AMX, 12 heads of 1024 rows and 64 columns, float32: 152 GFLOP/s, a fifth of the time for the softmax; 95
with all scores and weights in memory; PyTorch 107 to 120. A causal mask makes it 1.67 times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosched.errors import ScheduleError
from autosched.ir.stmt import Scope
from autosched.schedule import (
    ComputeAt,
    ComputeInline,
    DivideLast,
    Parallel,
    Reorder,
    Split,
    Stage,
    State,
    Unroll,
    Vectorize,
    WithinReach,
)
from autosched.schedule.steps.online import weighted_sum
from autosched.schedule.steps.shares import can_end_rows, undivided
from search_spaces.access import Read, extent, panel_dim, reads_of
from search_spaces.cpu.accumulate import unrolled_accumulator
from search_spaces.cpu.domains import register_tile, tile_count, vector_width
from search_spaces.cpu.elementwise import own_nests
from search_spaces.cpu.packing import pack_panels
from search_spaces.cpu.rows import lane_steps
from search_spaces.cpu.tiling import can_reindex, tiled_alternatives
from search_spaces.fusion import fused_consumer
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer

FEWEST_ROWS = 4  # with fewer, packing panels does not pay
# The least register tiles of a block. A block of one tile reads all panels from the second level cache for it: 8 heads
# of 4096 rows and 40 columns take 1.25 times as long as with two, of 1024 rows and 64 columns 1.05 times.
FEWEST_TILES = 2


@dataclass(frozen=True)
class _Attention:
    """The first product of an attention, its read that moves along columns, and the stages between it and the weights,
    producers first."""

    first: Stage
    columns: Read
    between: tuple[str, ...]


class FusedAttention:
    """Both products and the softmax in one nest; then the other rules' alternatives for the second product.

    If an output permutes the result, as heads that are concatenated do, that stage is the root of the nest."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        inner = _permuted_sum(sketch.state, stage) or stage
        return _match_attention(sketch.state, inner) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> Sequence[Alternative]:
        inner = _permuted_sum(sketch.state, stage) or stage
        attention = _match_attention(sketch.state, inner)
        assert attention is not None
        whole = _fused_nest(sketch, inner, attention, context)
        apart = tiled_alternatives(sketch, stage, context) if inner is stage else own_nests(sketch, stage, context)
        return [*([] if whole is None else [whole]), *apart]


def _permuted_sum(state: State, stage: Stage) -> Stage | None:
    """Return the sum that an output reads with permuted axes and the last one unchanged; None if there is none."""
    if stage.op.reducer is not None or not state.is_output(stage):
        return None
    for inner in (s for s in state.stages if state.consumers(s) == (stage,) and len(s.op.axes) > 2):
        read = stage.op.loads_from(*inner.op.buffers)
        axes = [a.var for a in stage.op.axes]
        if len(read) == 1 and len(axes) > 1 and {*read[0].indices} == {*axes} and read[0].indices[-1] is axes[-1]:
            return inner if list(read[0].indices) != axes else None
    return None


def _match_attention(state: State, stage: Stage) -> _Attention | None:
    weighted = weighted_sum(state, stage)
    if weighted is None or undivided(weighted) is None or extent(stage.op.axes[-2]) < FEWEST_ROWS:
        return None
    behind = _ancestors(state, weighted.weights)
    others = (weighted.peak.name, weighted.total.name)
    sums = [s for s in behind if s.op.reducer is not None and s.name not in others]
    shape = [extent(a) for a in weighted.weights.op.axes]
    if len(sums) != 1 or [extent(a) for a in sums[0].op.axes] != shape or not _is_sum(sums[0]):
        return None
    (first,) = sums
    rows, columns = first.op.axes[-2:]
    wide = [r for r in reads_of(state, first) if r.moves(columns.name)]
    if len(wide) != 1 or wide[0].moves(rows.name) or panel_dim(wide[0], first, columns) is None:
        return None
    after = [s for s in behind if s is not first and first in _ancestors(state, s)]
    return _Attention(first, wide[0], tuple(s.name for s in after))


def _ancestors(state: State, stage: Stage) -> list[Stage]:
    """Return the stages that `stage` depends on, itself included, producers first."""
    names, waiting = {stage.name}, [stage]
    while waiting:
        makers = (state.producer(b) for b in waiting.pop().op.reads)
        new = {m.name: m for m in makers if m is not None and m.name not in names}
        names.update(new)
        waiting += new.values()
    return [s for s in state.stages if s.name in names]


def _is_sum(stage: Stage) -> bool:
    op = stage.op
    return op.reducer is not None and op.reducer.is_sum and len(op.reduce_axes) == 1 and stage.at is None


def _fused_nest(
    sketch: PartialSketch, stage: Stage, attention: _Attention, context: SketchContext
) -> PartialSketch | None:
    """Return the fused nest; None where stages outside of the nest read what is computed in it."""
    acc = f"{stage.name}.acc"
    try:
        sketch, root = _divide_last(sketch, stage)
        (read,) = sketch.state.stage(root).op.loads_from(acc)
        rows = next(a.name for a in sketch.state.stage(root).op.axes if a.var is read.indices[-2])
        sketch, block = _split_blocks(sketch, root, rows, context), (root, f"{rows}.1")
        if can_end_rows(sketch.state, sketch.state.stage(acc)):
            sketch = sketch.apply(WithinReach(acc, *block))
        sketch = sketch.apply(ComputeAt(acc, root, f"{rows}.2", Scope.REGISTER.value))
        accumulating = sketch.state.stage(acc)
        sketch = unrolled_accumulator(sketch, accumulating, accumulating.op.axes[-1].name)
        names = {s.name for s in sketch.state.stages}
        of_product = fused_consumer(sketch.state, attention.first)
        for name in reversed([n for n in attention.between if n in names]):
            if of_product is None or name != of_product.name:
                sketch = _schedule_rows(sketch.apply(ComputeAt(name, *block)), name, context)
        sketch = _schedule_scores(sketch, attention, block, context)
    except ScheduleError:
        return None
    return sketch.finish(root, acc, note=f"{stage.name}:rows").with_row_loop(root, f"{rows}.0")


def _divide_last(sketch: PartialSketch, stage: Stage) -> tuple[PartialSketch, str]:
    """Divide by the softmax's sums in the stage that writes the results; return the sketch and that stage's name."""
    sketch = sketch.apply(DivideLast(stage.name))
    state = sketch.state
    consumer = fused_consumer(state, state.stage(stage.name))
    if consumer is None:
        consumer = next((s for s in state.stages if _permuted_sum(state, s) is state.stage(stage.name)), None)
    if consumer is None or consumer.name in sketch.done:
        return sketch, stage.name
    return sketch.apply(ComputeInline(stage.name)), consumer.name


def _split_blocks(sketch: PartialSketch, root: str, row: str, context: SketchContext) -> PartialSketch:
    """Split the loops of the writing stage: tasks, blocks of a task, and their register tiles, column by column."""
    stage = sketch.state.stage(root)
    rows, columns = stage.op.axis(row), stage.op.axes[-1]
    batch = [a for a in stage.op.axes if a not in (rows, columns)]
    group = f"{root}.{rows.name}"
    blocks, tiles = (tile_count(f"{group}.{level}", extent(rows), group) for level in "mb")
    tiles = replace(tiles, domain=tuple(n for n in tiles.domain if n >= FEWEST_TILES))
    tile = register_tile(f"{group}.r", extent(rows), group)
    width = vector_width(f"{root}.{columns.name}.r", extent(columns), context.lanes_of(stage), "")
    outer = (*(a.name for a in batch), f"{rows.name}.0")
    inner = (f"{rows.name}.1", f"{columns.name}.0", f"{rows.name}.2", f"{rows.name}.3", f"{columns.name}.1")
    return sketch.with_params([blocks, tiles, tile, width]).apply(
        Split(root, rows.name, (blocks.name, tiles.name, tile.name)),
        Split(root, columns.name, (width.name,)),
        Reorder(root, (*outer, *inner)),
        Parallel(root, outer),
        Unroll(root, f"{rows.name}.3"),
        Vectorize(root, f"{columns.name}.1"),
    )


def _schedule_rows(sketch: PartialSketch, name: str, context: SketchContext) -> PartialSketch:
    """Schedule a stage of a block's rows, elementwise or a reduction along them, in vectors along the rows."""
    stage = sketch.state.stage(name)
    if stage.op.reducer is not None:
        (axis,) = stage.op.reduce_axes
        return lane_steps(sketch, stage, axis.name, extent(axis), context).finish(name)
    last = stage.op.axes[-1]
    width = vector_width(f"{name}.{last.name}.r", extent(last), context.lanes_of(stage), "", vectors=(1, 2, 4, 8))
    steps = Split(name, last.name, (width.name,)), Vectorize(name, f"{last.name}.1")
    return sketch.with_params([width]).apply(*steps).finish(name)


def _schedule_scores(
    sketch: PartialSketch, attention: _Attention, block: tuple[str, str], context: SketchContext
) -> PartialSketch:
    """Schedule the first product and its fused consumer for a block, whose rows all use one panel of columns before the
    next panel."""
    sketch, name, acc = fuse_consumer(sketch, sketch.state.stage(attention.first.name))
    consumer = sketch.state.stage(name)
    *batch, rows, columns = consumer.op.axes
    tile = register_tile(f"{name}.{rows.name}.r", extent(rows), "")
    width = vector_width(f"{name}.{columns.name}.r", extent(columns), context.lanes_of(consumer), "")
    inner = (f"{columns.name}.0", f"{rows.name}.0", f"{rows.name}.1", f"{columns.name}.1")
    sketch = sketch.with_params([tile, width]).apply(
        ComputeAt(name, *block),
        Split(name, rows.name, (tile.name,)),
        Split(name, columns.name, (width.name,)),
        Reorder(name, (*(a.name for a in batch), *inner)),
        Unroll(name, f"{rows.name}.1"),
        Vectorize(name, f"{columns.name}.1"),
        ComputeAt(acc, name, f"{rows.name}.0", Scope.REGISTER.value),
    )
    accumulating = sketch.state.stage(acc)
    sketch = unrolled_accumulator(sketch, accumulating, accumulating.op.axes[-1].name)
    first, read = attention.first, attention.columns
    if can_reindex(
        sketch.state, first, reads_of(sketch.state, first), read
    ):  # the copy leaves out whatever is stored beside the operand, as values and queries
        dim: int | None = [a for a in first.op.all_axes if a.var in read.axes].index(first.op.axes[-1])
        copied = pack_panels(sketch, read.load.buffer, acc, dim or 0, width.name, None, reindexed=True)
        return copied.finish(name, acc)
    dim = panel_dim(read, first, first.op.axes[-1])
    assert dim is not None
    return pack_panels(sketch, read.load.buffer, acc, dim, width.name, None).finish(name, acc)
