"""The GPU search space on one page. `sketches` does the following, in this order.

1. `Inline`: cheap elementwise stages and data movement vanish into their readers.
2. `RULES`: the stages are visited from the outputs to the inputs. For each stage the first rule that applies gives the
   alternatives; no rule calls another one. Each alternative goes on to the next stage.
3. `_leftovers`: consumers that no reduction was fused to get a kernel of their own.

Rules of a user go before these: `sketches(dag, target, rules=(MyRule(), *RULES))`. One that is here to be asked for:

    AtomicSplit          parts of a long reduction meet by atomic updates, not always in the same order
"""

from __future__ import annotations

from autosched.schedule import initial_state
from autosched.target import Target
from autosched.te.dag import ComputeDAG
from search_spaces.gpu.atomic import AtomicSplit
from search_spaces.gpu.elementwise import Elementwise, FusedConsumer, Inline, own_nests
from search_spaces.gpu.fused_row_reduction import ReducedProducts
from search_spaces.gpu.matrices import MatrixTiling
from search_spaces.gpu.online_softmax import OnlineProducts
from search_spaces.gpu.online_threads import OnlineThreads
from search_spaces.gpu.rows import PointReduction, RowReduction, RowValue, SplitTiledReduction, TeamReduction
from search_spaces.gpu.tiling import MultiLevelTiling
from search_spaces.gpu.warpgroups import WarpgroupTiling
from search_spaces.partial_sketch import PartialSketch, SketchContext, SketchRule, grow, numbered
from search_spaces.space import Sketch

RULES: tuple[SketchRule, ...] = (
    # The stage is elementwise, and only a scheduled row reads it: computed by each reader, or kept in shared memory.
    RowValue(),
    # It is elementwise, and a reduction will be fused to it: left alone, the rule for that reduction schedules both.
    FusedConsumer(),
    # A sum of products whose weights are a softmax of another one, on tensor cores: all in one kernel, and apart.
    OnlineProducts(),
    # A reduction along the columns of a product on tensor cores, for it alone: in one kernel, or in parts; and apart.
    ReducedProducts(),
    # A sum of products of matrices whose tiles a copy engine loads, by warpgroups; and as MatrixTiling.
    WarpgroupTiling(),
    # A sum of products of matrices, on tensor cores: blocks, warps, tiles of instructions; and as MultiLevelTiling.
    MatrixTiling(),
    # A sum of products whose weights are a softmax of another one, in any type: all in one kernel, and apart.
    OnlineThreads(),
    # A long reduction with reuse, few output tiles: as MultiLevelTiling; and tiles for parts, added up by a kernel.
    SplitTiledReduction(),
    # A reduction with reuse: blocks, threads, register tiles; operands through shared memory, filled ahead.
    MultiLevelTiling(),
    # A reduction that gives each row of an elementwise stage one value: a block for a row or a few, or a thread.
    RowReduction(),
    # A reduction along contiguous data: the threads of a block share one point.
    TeamReduction(),
    # Any other reduction: a thread for each point; few long ones in two kernels.
    PointReduction(),
    # Elementwise: threads along the last axis, in vectors; a transposed read through shared memory.
    Elementwise(),
)

MOST_SKETCHES = 24  # the kernels of a graph are independent: each needs its alternatives, not all combinations of them


def sketches(dag: ComputeDAG, target: Target, rules: tuple[SketchRule, ...] = RULES) -> tuple[Sketch, ...]:
    """All sketches of a (collapsed) graph for a GPU; at least one for every graph."""
    context = SketchContext(target, 1)
    done = grow(PartialSketch(initial_state(dag)), Inline(), rules, context, MOST_SKETCHES)
    return numbered([full.complete() for s in done for full in _leftovers(s)])


def _leftovers(sketch: PartialSketch) -> list[PartialSketch]:
    """Consumers that no reduction was fused to after all, in kernels of their own."""
    done = [sketch]
    for stage in sketch.state.stages:
        if stage.name not in sketch.done and stage.op.reducer is None and stage.at is None:
            done = [new for s in done for new in own_nests(s, s.state.stage(stage.name))]
    return done


__all__ = ["RULES", "AtomicSplit", "PartialSketch", "SketchContext", "SketchRule", "sketches"]
