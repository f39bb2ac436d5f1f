"""Long reductions with few results, cut over blocks that add their parts to the result by atomic updates.

The order of the updates is not determined: sums of floats differ in their last bits from run to run. So this is for
users who ask for it, `rules=(AtomicSplit(),)`; the rules beside it combine the parts in a kernel of their own.
"""

from __future__ import annotations

from autosched.ir.atomics import atomic_operation
from autosched.schedule import Atomic, Bind, Rfactor, Split, Stage
from autosched.schedule.stage import StageAxis
from search_spaces.facts import extent, lane_reduction, reads_of
from search_spaces.gpu.binding import bind_blocks, size
from search_spaces.gpu.domains import covering
from search_spaces.gpu.rows import (
    LONG_TEAM,
    MANY_POINTS,
    SplitTiledReduction,
    TeamReduction,
    parts_of_tiles,
    points,
    team,
)
from search_spaces.gpu.tiling import MultiLevelTiling, Plan, plans, tile
from search_spaces.partial_sketch import Context, Draft

TEAM_PARTS = (8, 64)
START_THREADS = 128


class AtomicSplit:
    """What SplitTiledReduction and TeamReduction offer, and the same with atomic updates for a second kernel."""

    def applies(self, draft: Draft, stage: Stage, context: Context) -> bool:
        if atomic_operation(stage.op.reducer) is None or stage.op.guards:
            return False
        return SplitTiledReduction().applies(draft, stage, context) or self._is_team(draft, stage, context)

    def _is_team(self, draft: Draft, stage: Stage, context: Context) -> bool:
        """A block has a point, and would take long for it."""
        few = points(stage) < MANY_POINTS and extent(_team_axis(draft, stage)) >= LONG_TEAM
        tiled = MultiLevelTiling().applies(draft, stage, context)
        return few and not tiled and TeamReduction().applies(draft, stage, context)

    def apply(self, draft: Draft, stage: Stage, context: Context) -> list[Draft]:
        if self._is_team(draft, stage, context):
            axis = _team_axis(draft, stage)
            found = TeamReduction().apply(draft, stage, context)
            for parts in TEAM_PARTS:
                split, partial = _split(draft, stage, axis, parts)
                new = team(split, partial, f"{axis.name}.i", context, note=f"atomic{parts}")
                found.append(new.apply(Atomic(stage.name)))
            return found
        found = SplitTiledReduction().apply(draft, stage, context)
        axis = max(stage.op.reduce_axes, key=size)
        for parts in parts_of_tiles(stage, axis):
            split, partial = _split(draft, stage, axis, parts)
            for plan in [p for p in plans(split, partial) if p.shared][:2] or [Plan()]:
                new = tile(split, partial, plan, context).apply(Atomic(stage.name))
                found.append(new.finish(note=f"atomic{parts}"))
        return found


def _team_axis(draft: Draft, stage: Stage) -> StageAxis:
    return lane_reduction(stage, reads_of(draft.state, stage)) or max(stage.op.reduce_axes, key=size)


def _split(draft: Draft, stage: Stage, axis: StageAxis, parts: int) -> tuple[Draft, Stage]:
    """The reduction in parts, whose results are still to be written; the stage itself only writes start values."""
    draft = draft.apply(Rfactor(stage.name, axis.name, -(-size(axis) // parts), "outer"))
    draft = _start(draft, stage.name, stage.op.axes).finish(stage.name)
    return draft, draft.state.stage(f"{stage.name}.rf")


def _start(draft: Draft, stage: str, axes: tuple[StageAxis, ...]) -> Draft:
    """A thread for each start value."""
    if not axes:
        return draft
    *rows, last = axes
    threads = min(START_THREADS, covering(size(last)))
    blocks = [*(a.name for a in rows), f"{last.name}.0"]
    draft = draft.apply(Split(stage, last.name, (threads,)), *bind_blocks(stage, blocks, [size(a) for a in axes]))
    return draft.apply(Bind(stage, f"{last.name}.1", "threadIdx.x"))


__all__ = ["AtomicSplit"]
