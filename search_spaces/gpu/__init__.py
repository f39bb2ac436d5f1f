"""The GPU search space: the order in which `sketches` applies its rules.

1. `Inline`: cheap elementwise stages and data movement are inlined into their readers. Pipelines of stages on images
   start once more, without those that their readers would compute several times.
2. `RULES`: the stages are visited from the outputs to the inputs. For each stage the first rule that applies gives the
   alternatives; no rule calls another one. Each alternative continues with the next stage.
3. `_leftovers`: consumers that no reduction was fused to get a kernel of their own.

A user's rules go before these: `sketches(dag, target, rules=(MyRule(), *RULES))`. One rule is not in `RULES`:

    AtomicSplit          parts of a long reduction are added up by atomic updates, in an order that varies
"""

from __future__ import annotations

from autosched.ir.size import has_size
from autosched.schedule import WriteOut, initial_state
from autosched.target import Target
from autosched.te.dag import ComputeDAG
from search_spaces.gpu.atomic import AtomicSplit
from search_spaces.gpu.elementwise import Elementwise, FusedConsumer, Inline, own_nests
from search_spaces.gpu.fused_row_reduction import FusedRowReduction
from search_spaces.gpu.matrices import MatrixTiling
from search_spaces.gpu.online_softmax import OnlineSoftmax, OnlineSoftmaxByThreads
from search_spaces.gpu.overlapped_tiles import has_tiles
from search_spaces.gpu.recurrences import AlongAxis
from search_spaces.gpu.rows import PointReduction, RowReduction, RowValue, SplitTiledReduction, TeamReduction
from search_spaces.gpu.tiling import MultiLevelTiling
from search_spaces.gpu.warpgroups import WarpgroupTiling
from search_spaces.partial_sketch import PartialSketch, SketchContext, SketchRule, grow, inlined, numbered
from search_spaces.pipelines import is_stencil_of, short_windows, sums_of_stencils
from search_spaces.space import Sketch

RULES: tuple[SketchRule, ...] = (
    # A recurrence (te.scan): a thread for each line, or for a few adjacent ones.
    AlongAxis(),
    # The stage is elementwise, and only the rows of scheduled stages read it: recomputed by each, or in shared memory.
    RowValue(),
    # It is elementwise and will be a reduction's fused consumer: skipped, the rule for that reduction schedules both.
    FusedConsumer(),
    # Attention on tensor cores: both products and the softmax in one kernel; and in several.
    OnlineSoftmax(),
    # A reduction along a product's columns on tensor cores, its only reader: one kernel, or in parts; and separate.
    FusedRowReduction(),
    # A product of matrices whose tiles a copy engine loads, by warpgroups; and MatrixTiling.
    WarpgroupTiling(),
    # A product of matrices on tensor cores: blocks, warps, tiles of instructions; and MultiLevelTiling.
    MatrixTiling(),
    # Attention in any type: both products and the softmax in one kernel; and in several.
    OnlineSoftmaxByThreads(),
    # A long reduction with reuse, few output tiles: MultiLevelTiling; and tiles for parts, added up by another kernel.
    SplitTiledReduction(),
    # A reduction with reuse: blocks, threads, register tiles; operands in shared memory, with multi-stage buffering.
    MultiLevelTiling(),
    # A reduction that gives each row of an elementwise stage one value: a block for a row or several, or a thread.
    RowReduction(),
    # A reduction along contiguous data: the threads of a block share one point.
    TeamReduction(),
    # Any other reduction: a thread for each point; few long ones in two kernels.
    PointReduction(),
    # Elementwise: threads along the last axis, in vectors; a transposed read through shared memory; in tiles, in each
    # of which the stages that it reads are computed in shared memory, with their halos.
    Elementwise(),
)

MOST_SKETCHES = 24  # the kernels of a graph are independent: each needs its alternatives, not all combinations


def sketches(dag: ComputeDAG, target: Target, rules: tuple[SketchRule, ...] = RULES) -> tuple[Sketch, ...]:
    """Return all sketches of a (collapsed) graph for a GPU; at least one for every graph."""
    context, start = SketchContext(target, 1), PartialSketch(initial_state(dag))
    done = grow(start, Inline(), rules, context, MOST_SKETCHES)
    stages = _stages_of_pipeline(start, context)
    more = [] if stages is None else grow(stages, Inline(keeps_repeated=True), rules, context, MOST_SKETCHES // 2)
    done += [s for s in more if has_tiles(s)]
    return numbered([full.complete() for s in done for full in _leftovers(s)])


def _stages_of_pipeline(start: PartialSketch, context: SketchContext) -> PartialSketch | None:
    """Return a pipeline with its short reductions written out, for `Inline` to keep stages of which readers use values
    several times. None where it keeps none, where only reductions and their consumers do, as in a softmax, and for
    sizes that are known at run time, to which numbers of operations cannot be compared."""
    if has_size(tuple(a.extent for s in start.state.stages for a in s.op.axes)):
        return None
    taps = list(dict.fromkeys([*short_windows(start.state), *sums_of_stencils(start.state)]))
    sketch = start.apply(*map(WriteOut, taps)).finish(note="taps") if taps else start
    fewer, more = (inlined(sketch, Inline(keeps_repeated=k), context).state for k in (False, True))
    kept = [s for s in more.stages if s.name not in {x.name for x in fewer.stages}]
    is_stencil = any(is_stencil_of(r, s) for s in kept for r in more.consumers(s))
    return sketch if is_stencil or (kept and all(s.op.is_elementwise for s in more.stages)) else None


def _leftovers(sketch: PartialSketch) -> list[PartialSketch]:
    """Give consumers that no reduction was fused to kernels of their own."""
    done = [sketch]
    for stage in sketch.state.stages:
        if stage.name not in sketch.done and stage.op.is_elementwise and stage.at is None:
            done = [new for s in done for new in own_nests(s, s.state.stage(stage.name))]
    return done


__all__ = ["RULES", "AtomicSplit", "PartialSketch", "SketchContext", "SketchRule", "sketches"]
