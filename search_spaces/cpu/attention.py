"""Weighted sums whose weights are shares of a softmax of a product's results, in tasks of rows: attention, as it is
written or in any other way.

    panels of the first product's columns
    parallel: batches, and tasks of blocks of rows
      blocks of rows
        the first product for the rows of the block and all columns, in register tiles over the panels
        maxima, exponentials and their sums, row by row
        register tiles: the exponentials times the values, divided by the sums when all is added up

Where a condition hides the columns after the diagonal, a block ends with the columns of its last row. Panels that each
task makes, once for a batch, are no better: the same time, or 1.1 of it.

So many rows are a block that what is of their size and all columns stays in the second level cache. One thread of a
Xeon with AMX, 12 heads of 1024 rows and 64 columns, float32: 152 GFLOP/s, the softmax a fifth of the time; with scores
and shares of all rows in memory 95, and 107 to 120 PyTorch. With what comes after the diagonal hidden it is 0.6 of
the time.
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

FEWEST_ROWS = 4  # with fewer, panels are made for nobody
# Register tiles that are a block. One alone reads all panels from the second level cache: 8 heads of 4096 rows and 40
# columns take 1.25 of the time of two, of 1024 rows and 64 columns 1.05.
FEWEST_TILES = 2


@dataclass(frozen=True)
class _Chain:
    """A product that weights are made of, its operand with the columns, and the stages from there to the weights,
    producers first."""

    first: Stage
    columns: Read
    between: tuple[str, ...]


class WeightedRows:
    """Both products and what is between them in one nest; then what other rules do with the second one.

    Where an output has its results in another order, as heads beside each other, that stage is the nest's."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        inner = _in_another_order(sketch.state, stage) or stage
        return _chain(sketch.state, inner) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> Sequence[Alternative]:
        inner = _in_another_order(sketch.state, stage) or stage
        chain = _chain(sketch.state, inner)
        assert chain is not None
        whole = _in_one_nest(sketch, inner, chain, context)
        apart = tiled_alternatives(sketch, stage, context) if inner is stage else own_nests(sketch, stage, context)
        return [*([] if whole is None else [whole]), *apart]


def _in_another_order(state: State, stage: Stage) -> Stage | None:
    """The sum whose results an output has as they are, or of which it computes its own, its last axis in place."""
    if stage.op.reducer is not None or not state.is_output(stage):
        return None
    for inner in (s for s in state.stages if state.consumers(s) == (stage,) and len(s.op.axes) > 2):
        read = stage.op.loads_from(*inner.op.buffers)
        axes = [a.var for a in stage.op.axes]
        if len(read) == 1 and len(axes) > 1 and {*read[0].indices} == {*axes} and read[0].indices[-1] is axes[-1]:
            return inner if list(read[0].indices) != axes else None
    return None


def _chain(state: State, stage: Stage) -> _Chain | None:
    weighted = weighted_sum(state, stage)
    if weighted is None or undivided(weighted) is None or extent(stage.op.axes[-2]) < FEWEST_ROWS:
        return None
    behind = _behind(state, weighted.weights)
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
    after = [s for s in behind if s is not first and first in _behind(state, s)]
    return _Chain(first, wide[0], tuple(s.name for s in after))


def _behind(state: State, stage: Stage) -> list[Stage]:
    """The stages that `stage` is computed from, itself the last of them, producers first."""
    found, waiting = {stage.name}, [stage]
    while waiting:
        makers = (state.producer(b) for b in waiting.pop().op.reads)
        new = {m.name: m for m in makers if m is not None and m.name not in found}
        found.update(new)
        waiting += new.values()
    return [s for s in state.stages if s.name in found]


def _is_sum(stage: Stage) -> bool:
    op = stage.op
    return op.reducer is not None and op.reducer.is_sum and len(op.reduce_axes) == 1 and stage.at is None


def _in_one_nest(sketch: PartialSketch, stage: Stage, chain: _Chain, context: SketchContext) -> PartialSketch | None:
    """None where others read what is computed in the nest."""
    acc = f"{stage.name}.acc"
    try:
        sketch, root = _divided(sketch, stage)
        (read,) = sketch.state.stage(root).op.loads_from(acc)
        rows = next(a.name for a in sketch.state.stage(root).op.axes if a.var is read.indices[-2])
        sketch, block = _in_blocks(sketch, root, rows, context), (root, f"{rows}.1")
        if can_end_rows(sketch.state, sketch.state.stage(acc)):
            sketch = sketch.apply(WithinReach(acc, *block))
        sketch = sketch.apply(ComputeAt(acc, root, f"{rows}.2", Scope.REGISTER.value))
        accumulating = sketch.state.stage(acc)
        sketch = unrolled_accumulator(sketch, accumulating, accumulating.op.axes[-1].name)
        there = {s.name for s in sketch.state.stages}
        of_product = fused_consumer(sketch.state, chain.first)
        for name in reversed([n for n in chain.between if n in there]):
            if of_product is None or name != of_product.name:
                sketch = _by_rows(sketch.apply(ComputeAt(name, *block)), name, context)
        sketch = _scores(sketch, chain, block, context)
    except ScheduleError:
        return None
    return sketch.finish(root, acc, note=f"{stage.name}:rows").with_row_loop(root, f"{rows}.0")


def _divided(sketch: PartialSketch, stage: Stage) -> tuple[PartialSketch, str]:
    """The weights divided when they are added up, by what writes the results; that stage's name."""
    sketch = sketch.apply(DivideLast(stage.name))
    state = sketch.state
    consumer = fused_consumer(state, state.stage(stage.name))
    if consumer is None:
        consumer = next((s for s in state.stages if _in_another_order(state, s) is state.stage(stage.name)), None)
    if consumer is None or consumer.name in sketch.done:
        return sketch, stage.name
    return sketch.apply(ComputeInline(stage.name)), consumer.name


def _in_blocks(sketch: PartialSketch, root: str, row: str, context: SketchContext) -> PartialSketch:
    """The loops of what writes: tasks, blocks of a task, and their register tiles, column by column of these."""
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


def _by_rows(sketch: PartialSketch, name: str, context: SketchContext) -> PartialSketch:
    """A stage of a block's rows in vectors along them: what reduces them, or has a value for each element."""
    stage = sketch.state.stage(name)
    if stage.op.reducer is not None:
        (axis,) = stage.op.reduce_axes
        return lane_steps(sketch, stage, axis.name, extent(axis), context).finish(name)
    last = stage.op.axes[-1]
    width = vector_width(f"{name}.{last.name}.r", extent(last), context.lanes_of(stage), "", vectors=(1, 2, 4, 8))
    steps = Split(name, last.name, (width.name,)), Vectorize(name, f"{last.name}.1")
    return sketch.with_params([width]).apply(*steps).finish(name)


def _scores(sketch: PartialSketch, chain: _Chain, block: tuple[str, str], context: SketchContext) -> PartialSketch:
    """The first product, and what is fused to it, for a block: all rows of it use a panel of columns before the next
    one comes."""
    sketch, name, acc = fuse_consumer(sketch, sketch.state.stage(chain.first.name))
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
    first, read = chain.first, chain.columns
    if can_reindex(
        sketch.state, first, reads_of(sketch.state, first), read
    ):  # and not what else is stored beside it, as values and queries
        dim: int | None = [a for a in first.op.all_axes if a.var in read.axes].index(first.op.axes[-1])
        copied = pack_panels(sketch, read.load.buffer, acc, dim or 0, width.name, None, reindexed=True)
        return copied.finish(name, acc)
    dim = panel_dim(read, first, first.op.axes[-1])
    assert dim is not None
    return pack_panels(sketch, read.load.buffer, acc, dim, width.name, None).finish(name, acc)
