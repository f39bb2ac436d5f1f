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

from autosched.errors import ScheduleError
from autosched.schedule import ComputeAt, ComputeInline, DivideLast, Split, Stage, State, Vectorize, WithinReach
from autosched.schedule.steps.shares import can_end_rows, undivided
from autosched.schedule.steps.stages import places_in
from search_spaces.access import Read, extent, panel_dim, reads_of
from search_spaces.cpu.domains import vector_width
from search_spaces.cpu.elementwise import own_nests
from search_spaces.cpu.fused_reductions import accumulate, split_tasks, tile_in_block
from search_spaces.cpu.packing import pack_panels
from search_spaces.cpu.rows import lane_steps
from search_spaces.cpu.tiling import can_reindex, tiled_alternatives
from search_spaces.fusion import fused_consumer, permuted_consumer
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer
from search_spaces.reduction_chain import ReductionChain, match_reduction_chain, reads_reduction

FEWEST_ROWS = 4  # with fewer, packing panels does not pay
# The least register tiles of a block. A block of one tile reads all panels from the second level cache for it: 8 heads
# of 4096 rows and 40 columns take 1.25 times as long as with two, of 1024 rows and 64 columns 1.05 times.
FEWEST_TILES = 2


class FusedAttention:
    """Both products and the softmax in one nest; then the other rules' alternatives for the second product.

    If an output permutes the result, as heads that are concatenated do, that stage is the root of the nest."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return _match_attention(sketch, _permuted_sum(sketch.state, stage) or stage) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> Sequence[Alternative]:
        chain = _match_attention(sketch, _permuted_sum(sketch.state, stage) or stage)
        assert chain is not None
        whole = _fused_nest(sketch, chain, context)
        rule = tiled_alternatives if chain.last is stage else own_nests
        return [*([] if whole is None else [whole]), *rule(sketch, stage, context)]


def _permuted_sum(state: State, stage: Stage) -> Stage | None:
    """Return the sum that an output reads with permuted axes and the last one unchanged; None if there is none."""
    sums = (s for s in state.stages if state.is_output(stage) and permuted_consumer(state, s) is stage)
    return next((s for s in sums if places_in(stage, s)[-1] is stage.op.axes[-1]), None)


def _match_attention(sketch: PartialSketch, stage: Stage) -> ReductionChain | None:
    """Return the chain if its source is a product at the weights' points, and its columns can be packed in panels."""
    state, chain = sketch.state, match_reduction_chain(sketch, stage)
    source = None if chain is None else chain.only_source
    if chain is None or chain.softmax is None or source is None or undivided(chain.softmax) is None:
        return None
    is_product = source.op.reducer is not None and source.op.reducer.is_sum and len(source.op.reduce_axes) == 1
    if not is_product or reads_reduction(state, source):
        return None
    shapes = [[extent(a) for a in s.op.axes] for s in (source, chain.softmax.weights)]
    is_fit = shapes[0] == shapes[1] and extent(stage.op.axes[-2]) >= FEWEST_ROWS
    return chain if is_fit and _columns_read(state, source) is not None else None


def _columns_read(state: State, product: Stage) -> tuple[Read, int] | None:
    """Return the only read of the product that moves along its columns, and the dimension that they index; None if it
    moves along the rows too."""
    rows, columns = product.op.axes[-2:]
    wide = [r for r in reads_of(state, product) if r.moves(columns.name)]
    dim = panel_dim(wide[0], product, columns) if len(wide) == 1 and not wide[0].moves(rows.name) else None
    return None if dim is None else (wide[0], dim)


def _fused_nest(sketch: PartialSketch, chain: ReductionChain, context: SketchContext) -> PartialSketch | None:
    """Return the fused nest; None where stages outside of the nest read what is computed in it."""
    stage, acc = chain.last, f"{chain.last.name}.acc"
    try:
        sketch, root = _divide_last(sketch, chain)
        (read,) = root.op.loads_from(acc)
        rows = next(a for a in root.op.axes if a.var is read.indices[-2])
        sketch, loops = split_tasks(sketch, root.name, (root, rows, rows), 2, context, FEWEST_TILES)
        block = root.name, loops[1]
        if can_end_rows(sketch.state, sketch.state.stage(acc)):
            sketch = sketch.apply(WithinReach(acc, *block))
        sketch = accumulate(sketch, root.name, acc, loops[2])
        of_product = fused_consumer(sketch.state, sketch.state.stage(chain.sources[0].name))
        for name in [s.name for s in reversed(sketch.state.stages) if s.name in chain.between]:
            if of_product is None or name != of_product.name:
                sketch = _schedule_rows(sketch.apply(ComputeAt(name, *block)), name, context)
        sketch = _schedule_scores(sketch, chain.sources[0], block, context)
    except ScheduleError:
        return None
    return sketch.finish(root.name, acc, note=f"{stage.name}:rows").with_row_loop(root.name, loops[0])


def _divide_last(sketch: PartialSketch, chain: ReductionChain) -> tuple[PartialSketch, Stage]:
    """Divide by the softmax's sums in the stage that writes the results; return the sketch and that stage."""
    state, name, writer = sketch.state, chain.last.name, chain.writer
    sketch = sketch.apply(DivideLast(name))
    if writer is None or writer.name in sketch.done:
        return sketch, sketch.state.stage(name)
    if writer is not fused_consumer(state, chain.last) and _permuted_sum(state, writer) is not chain.last:
        return sketch, sketch.state.stage(name)
    sketch = sketch.apply(ComputeInline(name))
    return sketch, sketch.state.stage(writer.name)


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
    sketch: PartialSketch, product: Stage, block: tuple[str, str], context: SketchContext
) -> PartialSketch:
    """Schedule the first product and its fused consumer for a block, whose rows all use one panel of columns before the
    next panel."""
    sketch, name, acc = fuse_consumer(sketch, sketch.state.stage(product.name))
    *batch, rows, columns = (a.name for a in sketch.state.stage(name).op.axes)
    outer = [*batch, f"{columns}.0", f"{rows}.0"]
    sketch = accumulate(tile_in_block(sketch, name, rows, block, outer, context), name, acc, outer[-1])
    columns_read = _columns_read(sketch.state, product)
    assert columns_read is not None
    read, dim = columns_read
    reindexed = can_reindex(sketch.state, product, reads_of(sketch.state, product), read)
    if reindexed:  # the copy leaves out whatever is stored beside the operand, as values and queries
        dim = [a for a in product.op.all_axes if a.var in read.axes].index(product.op.axes[-1])
    width = f"{name}.{columns}.r"
    return pack_panels(sketch, read.load.buffer, acc, dim, width, None, reindexed=reindexed).finish(name, acc)
