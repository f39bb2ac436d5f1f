"""The GPU search space on one page.

First cheap stages and data movement vanish into their readers (`Inline`). Then stages are visited from the outputs to
the inputs; the first rule that applies gives the alternatives.

    RowValue             what the reductions of a row share: computed again, or kept in shared memory
    FusedConsumer                 an elementwise stage waits for the reduction that will be fused into it
    SplitTiledReduction  few output tiles, long reduction: tiles for parts of K and a kernel that adds them
    MultiLevelTiling     blocks, virtual threads, threads, register tile; operands through shared memory, filled ahead
    RowReduction         a block for a row or a few of an elementwise stage, or a thread for each
    TeamReduction        contiguous data: the threads of a block share one point
    PointReduction       any other reduction: a thread for each point
    Elementwise          the rest

Rules of a user go before these: `sketches(dag, target, rules=(MyRule(), *RULES))`. One that is here to be asked for:

    AtomicSplit          parts of a long reduction meet by atomic updates, not always in the same order
"""

from __future__ import annotations

from autosched.schedule import initial_state
from autosched.target import Target
from autosched.te.dag import ComputeDAG
from search_spaces.gpu.atomic import AtomicSplit
from search_spaces.gpu.elementwise import Elementwise, FusedConsumer, Inline
from search_spaces.gpu.rows import PointReduction, RowReduction, RowValue, SplitTiledReduction, TeamReduction
from search_spaces.gpu.tiling import MultiLevelTiling
from search_spaces.partial_sketch import Context, PartialSketch, SketchRule, grow, numbered
from search_spaces.space import Sketch

RULES: tuple[SketchRule, ...] = (
    RowValue(),
    FusedConsumer(),
    SplitTiledReduction(),
    MultiLevelTiling(),
    RowReduction(),
    TeamReduction(),
    PointReduction(),
    Elementwise(),
)

MOST_SKETCHES = 24  # the kernels of a graph are independent: each needs its alternatives, not all combinations of them


def sketches(dag: ComputeDAG, target: Target, rules: tuple[SketchRule, ...] = RULES) -> tuple[Sketch, ...]:
    """All sketches of a (collapsed) graph for a GPU; at least one for every graph."""
    context = Context(target, 1)
    partials = grow(PartialSketch(initial_state(dag)), Inline(), rules, context, MOST_SKETCHES)
    return numbered([done.complete() for d in partials for done in _leftovers(d, context)])


def _leftovers(sketch: PartialSketch, context: Context) -> list[PartialSketch]:
    """Consumers that no reduction was fused into after all."""
    partials = [sketch]
    for stage in sketch.state.stages:
        if stage.name not in sketch.done and stage.op.reducer is None and stage.at is None:
            partials = [new for d in partials for new in Elementwise().apply(d, d.state.stage(stage.name), context)]
    return partials


__all__ = ["RULES", "AtomicSplit", "Context", "PartialSketch", "SketchRule", "sketches"]
