"""The CPU search space on one page.

First operands of small types that many points read get a stage that converts them (`Widen`), those with arithmetic on
them one that computes them (`Factor`), elements that data choose for several points of a reduction one that finds them
(`Reindex`), and the cheap elementwise stages and data movement vanish into their readers (`Inline`). Then stages are
visited from the outputs to the inputs; the first rule that applies gives the alternatives.

    PrepareWeights          what depends on weights alone is done ahead of time, at the root
    WinogradTransform         Winograd's transforms: one dimension inside the nest of the other, all written out
    FusedConsumer              an elementwise stage waits for the reduction that will be fused into it
    PrefixScan              running reductions in blocks, row by row or stage by stage
    Scatter          what the data send to each element: histograms, sums of segments
    SplitReduction    few outputs, long reduction: K in blocks over threads (SplitTiledReduction: with tiles)
    MultiLevelTiling  register tile, middle tile, parallel tile; fused epilogue; packed operands
    LaneReduction     reductions along contiguous data, in vectors, row by row with what uses them
    PlainReduction    any other reduction
    Placement         padding and activations: for each task of their reader, at the root, or inline
    Elementwise       the rest

Operands that are contiguous along the reduction and that few outputs use are also multiplied in tiles of inner
products (`inner_products.py`).

Register tiles ask for large operands while they compute (`prefetch.py`).

Where the last cache cannot hold the data and there is little arithmetic, each sketch also comes with outputs that are
written around the caches (`streaming.py`).

Windows whose rows serve several outputs also come in two stages, where that halves the operations (`Separate`); long
ones are in stages already (`te.rewrites.windows`). What goes on with a stage of them has it computed for each of its
tasks.

Where the workload accepts Winograd's error, all of this comes once for each way to compute its 3x3 convolutions.

Rules of a user go before these: `sketches(dag, target, threads, rules=(MyRule(), *RULES))`.
"""

from __future__ import annotations

from autosched.target import Target
from autosched.te.dag import ComputeDAG
from search_spaces.cpu.elementwise import Elementwise, FusedConsumer, Inline, Placement, PrepareWeights
from search_spaces.cpu.prefetch import prefetch_operands
from search_spaces.cpu.rows import LaneReduction, PlainReduction, SplitReduction, SplitTiledReduction
from search_spaces.cpu.scans import PrefixScan
from search_spaces.cpu.scatter import Scatter
from search_spaces.cpu.streaming import streaming_variants
from search_spaces.cpu.tiling import MultiLevelTiling
from search_spaces.cpu.transforms import WinogradTransform, initial_sketches
from search_spaces.partial_sketch import MAX_SKETCHES, Context, PartialSketch, SketchRule, grow, numbered
from search_spaces.space import Sketch

RULES: tuple[SketchRule, ...] = (
    PrepareWeights(),
    WinogradTransform(),
    FusedConsumer(),
    PrefixScan(),
    Scatter(),
    SplitReduction(),
    SplitTiledReduction(),
    MultiLevelTiling(),
    LaneReduction(),
    PlainReduction(),
    Placement(),
    Elementwise(),
)

# ... of graphs with several reductions: each nest needs its alternatives, not all combinations of them. With more the
# draft has fewer rows of each, and what it picks is no better (12 to 32 of an LSTM cell and a transformer block); with
# 32 instead of 16 it finds 1 to 2 % more for graphs of two products.
MOST_OF_SEVERAL = 16


def sketches(
    dag: ComputeDAG, target: Target, threads: int, rules: tuple[SketchRule, ...] = RULES
) -> tuple[Sketch, ...]:
    """All sketches of a (collapsed) graph for a CPU target; at least one for every graph."""
    context = Context(target, threads)
    several = sum(stage.reducer is not None for stage in dag.stages) > 1
    most = MOST_OF_SEVERAL if several else MAX_SKETCHES
    grown = [d for start in initial_sketches(dag, context) for d in grow(start, Inline(), rules, context, most)]
    partials = [prefetch_operands(_leftovers(d, context), context) for d in grown]
    return numbered([d.complete() for d in (*partials, *streaming_variants(partials, dag, context))])


def _leftovers(sketch: PartialSketch, context: Context) -> PartialSketch:
    """Consumers that no reduction was fused into after all."""
    for stage in sketch.state.stages:
        if stage.name not in sketch.done and stage.op.reducer is None and stage.at is None:
            sketch = Elementwise().apply(sketch, stage, context)[0]
    return sketch


__all__ = ["RULES", "Context", "PartialSketch", "SketchRule", "sketches"]
