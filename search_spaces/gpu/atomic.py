"""Split reductions with atomic updates, for long reductions with few results.

The order of the updates is not determined: sums of floats differ in their last bits from run to run. So this is only
used on request, `rules=(AtomicSplit(),)`. The rules of `RULES` combine the parts in a second kernel.
"""

from __future__ import annotations

from autosched.ir.instructions.atomics import atomic_operation
from autosched.schedule import Atomic, Bind, Rfactor, Split, Stage, State
from autosched.schedule.stage import StageAxis
from search_spaces.access import extent
from search_spaces.gpu.domains import next_power_of_two
from search_spaces.gpu.rows import (
    LONG_TEAM,
    MANY_POINTS,
    can_share_point,
    can_split_tiles,
    parts_of_tiles,
    points,
    reduce_by_team,
    split_tiled_alternatives,
    team_alternatives,
    team_axis,
)
from search_spaces.gpu.thread_binding import bind_blocks, size
from search_spaces.gpu.tiling import Plan, can_tile, plans, tile_reduction
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext

TEAM_PARTS = (8, 64)
START_THREADS = 128


class AtomicSplit:
    """The alternatives of SplitTiledReduction and TeamReduction, and the same with atomic updates in one kernel."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        if atomic_operation(stage.op.reducer) is None or stage.op.guards:
            return False
        return can_split_tiles(sketch.state, stage) or _is_long_team(sketch.state, stage)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        if _is_long_team(sketch.state, stage):
            return [*team_alternatives(sketch, stage, context), *_atomic_teams(sketch, stage, context)]
        return [*split_tiled_alternatives(sketch, stage, context), *_atomic_tiles(sketch, stage, context)]


def _is_long_team(state: State, stage: Stage) -> bool:
    """Whether the threads of a block share a point, and the reduction is long."""
    few = points(stage) < MANY_POINTS and extent(team_axis(state, stage)) >= LONG_TEAM
    return few and not can_tile(state, stage) and can_share_point(state, stage)


def _atomic_teams(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
    alternatives, axis = [], team_axis(sketch.state, stage)
    for parts in TEAM_PARTS:
        split, partial = _split(sketch, stage, axis, parts)
        new = reduce_by_team(split, partial, f"{axis.name}.i", context, note=f"atomic{parts}")
        alternatives.append(new.apply(Atomic(stage.name)))
    return alternatives


def _atomic_tiles(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
    alternatives, axis = [], max(stage.op.reduce_axes, key=size)
    for parts in parts_of_tiles(stage, axis):
        split, partial = _split(sketch, stage, axis, parts)
        for plan in [p for p in plans(split, partial) if p.shared][:2] or [Plan()]:
            new = tile_reduction(split, partial, plan, context).apply(Atomic(stage.name))
            alternatives.append(new.finish(note=f"atomic{parts}"))
    return alternatives


def _split(sketch: PartialSketch, stage: Stage, axis: StageAxis, parts: int) -> tuple[PartialSketch, Stage]:
    """Return the reduction in parts, and the stage that computes them; the stage itself only writes initial values."""
    sketch = sketch.apply(Rfactor(stage.name, axis.name, -(-size(axis) // parts), "outer"))
    sketch = _start(sketch, stage.name, stage.op.axes).finish(stage.name)
    return sketch, sketch.state.stage(f"{stage.name}.rf")


def _start(sketch: PartialSketch, stage: str, axes: tuple[StageAxis, ...]) -> PartialSketch:
    """Schedule the stage with a thread for each initial value."""
    if not axes:
        return sketch
    *rows, last = axes
    threads = min(START_THREADS, next_power_of_two(size(last)))
    blocks = [*(a.name for a in rows), f"{last.name}.0"]
    sketch = sketch.apply(Split(stage, last.name, (threads,)), *bind_blocks(stage, blocks, [size(a) for a in axes]))
    return sketch.apply(Bind(stage, f"{last.name}.1", "threadIdx.x"))
