"""The CPU search space: the order in which `sketches` applies rewrites, rules and variants.

1. `initial_sketches`: rewrites before all rules. Operands of small types that many points read are converted in a stage
   of their own (`Widen`); arithmetic on an operand gets one (`Factor`, `Once`), and so do indirect reads of a reduction
   (`Reindex`). The result is one initial sketch. There is one more with windows whose rows serve several outputs in
   two stages (`Separate`), one with long windows of integers as recurrences (`RunningSum`), one without conversions
   for operands that the processor's tiles take unconverted, and, where Winograd's error is accepted, one for each size
   of his tiles.
2. `Inline`: cheap elementwise stages and data movement are inlined into their readers.
3. `RULES`: the stages are visited from the outputs to the inputs. For each stage the first rule that applies gives the
   alternatives; no rule calls another one. Each alternative continues with the next stage.
4. `_leftovers`: consumers that no reduction was fused to get a nest of their own.
5. `prefetch_operands`: register tiles prefetch large operands while they compute.
6. `streaming_variants`: where the last-level cache cannot hold the data and there is little arithmetic, each sketch is
   added once more with non-temporal stores of its outputs.

A user's rules go before these: `sketches(dag, target, threads, rules=(MyRule(), *RULES))`.
"""

from __future__ import annotations

from autosched.target import Target
from autosched.te.dag import ComputeDAG
from search_spaces.cpu.attention import FusedAttention
from search_spaces.cpu.elementwise import Elementwise, FusedConsumer, Inline, Placement, PrepareWeights, own_nests
from search_spaces.cpu.fused_reductions import FusedReductions
from search_spaces.cpu.overlapped_tiles import TileReduction
from search_spaces.cpu.prefetch import prefetch_operands
from search_spaces.cpu.recurrences import AlongAxis
from search_spaces.cpu.rows import LaneReduction, PlainReduction, SplitReduction, SplitTiledReduction
from search_spaces.cpu.scans import PrefixScan
from search_spaces.cpu.scatter import Scatter
from search_spaces.cpu.streaming import streaming_variants
from search_spaces.cpu.tiling import MultiLevelTiling
from search_spaces.cpu.transforms import WinogradTransform, initial_sketches
from search_spaces.partial_sketch import MAX_SKETCHES, PartialSketch, SketchContext, SketchRule, grow, numbered
from search_spaces.space import Sketch

RULES: tuple[SketchRule, ...] = (
    # The stage depends on weights alone: computed at load time, at the root.
    PrepareWeights(),
    # A recurrence (te.scan): vectors along the last axis, positions in order; along the last axis blocks of lines.
    AlongAxis(),
    # It selects rows of a small matrix, as Winograd's transforms do: short axes unrolled, vectors along channels.
    WinogradTransform(),
    # Attention: a sum weighted by the softmax of a product. All of it in tasks of rows; and MultiLevelTiling.
    FusedAttention(),
    # A reduction whose readers are in tiles, and which reads a stage that others read as well: in these tiles.
    TileReduction(),
    # It reads another reduction's results, in windows or point by point: two or three reductions fused row block by row
    # block; and MultiLevelTiling.
    FusedReductions(),
    # It is elementwise and will be a reduction's fused consumer: skipped, the rule for that reduction schedules both.
    FusedConsumer(),
    # A blocked prefix scan: all stages row by row, or each stage by itself, parallel over blocks.
    PrefixScan(),
    # A scatter reduction: one step for each element, in vectors; small results with copies for each thread.
    Scatter(),
    # Few outputs, much work, contiguous data: blocks of the reduction over threads; and LaneReduction.
    SplitReduction(),
    # Few register tiles for many threads, long reduction: blocks of it over threads; and MultiLevelTiling.
    SplitTiledReduction(),
    # A reduction with an output axis to vectorise, and reuse or no better lanes along the reduction: register, middle
    # and parallel tiles, fused consumer, packed operands; blocks of the reduction, skinny products, inner products.
    MultiLevelTiling(),
    # A reduction along contiguous data: in vectors, in the rows of its consumer; inner products, transposed short rows.
    LaneReduction(),
    # Any other reduction: its loops unchanged, in the rows of its consumer or parallel.
    PlainReduction(),
    # Elementwise and read by scheduled stages (padding, an activation): in their tasks or rows, at the root, inlined.
    Placement(),
    # An elementwise output: parallel rows or chunks, in vectors; a transposed read in tiles; short rows flattened; in
    # tiles, each of which computes the stages that it reads, with their halos.
    Elementwise(),
)

# The most sketches of a graph with several reductions. Each nest needs its alternatives, not all combinations of them.
# With more sketches the search draws fewer rows of each, and its first choices by analytic latency are no better (12
# to 32 sketches of an LSTM cell and a transformer block). With 32 instead of 16 two products are 1 to 2 % faster.
MOST_OF_SEVERAL = 16


def sketches(
    dag: ComputeDAG, target: Target, threads: int, rules: tuple[SketchRule, ...] = RULES
) -> tuple[Sketch, ...]:
    """Return all sketches of a (collapsed) graph for a CPU target; at least one for every graph."""
    context = SketchContext(target, threads)
    several = sum(stage.reducer is not None for stage in dag.stages) > 1
    most = MOST_OF_SEVERAL if several else MAX_SKETCHES
    grown = [s for start in initial_sketches(dag, context) for s in grow(start, Inline(), rules, context, most)]
    done = [prefetch_operands(_leftovers(s, context), context) for s in grown]
    return numbered([s.complete() for s in (*done, *streaming_variants(done, dag, context))])


def _leftovers(sketch: PartialSketch, context: SketchContext) -> PartialSketch:
    """Give consumers that no reduction was fused to nests of their own."""
    for stage in sketch.state.stages:
        if stage.name not in sketch.done and stage.op.is_elementwise and stage.at is None:
            sketch = own_nests(sketch, stage, context)[0]
    return sketch


__all__ = ["RULES", "PartialSketch", "SketchContext", "SketchRule", "sketches"]
