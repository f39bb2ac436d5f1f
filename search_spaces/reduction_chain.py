"""Reduction chains: a reduction whose operand is computed from another reduction's results, in one nest with it.

    sources        reductions, each of which nothing but the chain reads
    maps           elementwise stages between, an activation or a padding, which nothing but the chain reads
    last           the reduction that reads them

Two products, two convolutions, a product and the norm of its rows are chains. In attention the operand is a softmax of
the source's results. Each row then keeps its maximum and its sum, two more reductions; an online nest rescales what
`last` has added up whenever the maximum grows (`autosched/schedule/steps/online.py`).

`match_reduction_chain` says what is computed from what. Which of these a machine fuses, and at which of its levels, its
rules decide: register tiles in blocks of rows (`cpu/`); warps, warpgroups or threads that have whole rows (`gpu/`).
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.expr import Load
from autosched.ir.visit import free_vars
from autosched.schedule import ComputeInline, Stage, State
from autosched.schedule.steps.online import WeightedSum, weighted_sum
from search_spaces.fusion import fused_consumer, permuted_consumer
from search_spaces.partial_sketch import PartialSketch

# Distinct reads of an operand with its maps inlined. Stages of windows, a pyramid's for example, multiply each other's.
MOST_READS = 64


@dataclass(frozen=True)
class ReductionChain:
    """The reduction `last`, and the reductions `sources` from whose results its operand is computed.

    `operand`: the stage that reads these results once the maps are inlined: the weights of a softmax, else `last`.
    `maps`: the names of the elementwise stages between, in the order in which reads meet them, the last ones first.
    `is_alone`: whether no other reduction is read, one whose results are stored.
    `softmax`: the rescaling where the operand is a softmax, with what each row keeps, its maximum and its sum.
    `writer`: the elementwise stage that writes the results, possibly with permuted axes; None if `last` does.
    """

    last: Stage
    operand: Stage
    sources: tuple[Stage, ...]
    maps: tuple[str, ...]
    is_alone: bool
    softmax: WeightedSum | None
    writer: Stage | None

    @property
    def only_source(self) -> Stage | None:
        """The only reduction whose results are read; None if there are others."""
        return self.sources[0] if len(self.sources) == 1 and self.is_alone else None

    @property
    def between(self) -> frozenset[str]:
        """The stages between the sources and `last`."""
        return frozenset((*self.maps, *(s.name for s in _softmax_stages(self.softmax))))

    def reads(self, source: Stage) -> tuple[Load, ...]:
        """Return the distinct reads of a source's results, in axes of the operand."""
        return self.operand.op.loads_from(*source.op.buffers)


def match_reduction_chain(sketch: PartialSketch, last: Stage) -> ReductionChain | None:
    """Return the chain that ends with a reduction at the root; None if no reduction's results are for it alone."""
    state = sketch.state
    if last.op.reducer is None or last.op.guards or last.at is not None:
        return None
    softmax = weighted_sum(state, last)
    roots = tuple(s.name for s in _softmax_stages(softmax)) or (last.name,)
    members, maps = {last.name, *roots}, list[str]()
    inlined = state
    while (between := _next_map(inlined, roots, members, sketch.done)) is not None:
        inlined = inlined.apply(ComputeInline(between.name))
        maps.append(between.name)
        if any(len(inlined.stage(name).op.loads) > MOST_READS for name in roots):
            return None
    writer = fused_consumer(state, last) or permuted_consumer(state, last)
    readers = members if writer is None else {*members, writer.name}  # it may read the maxima, to mask rows
    if not all(_is_private(inlined, s, readers) for s in _softmax_stages(softmax)):
        return None
    operands = {p.name for name in roots for p in _producers(inlined, inlined.stage(name))} - members
    reductions = [s for s in state.stages if s.name in operands and (s.op.reducer or reads_reduction(state, s))]
    sources = tuple(s for s in reductions if s.op.reducer is not None and _is_private(inlined, s, members))
    if not sources:
        return None
    is_alone = len(sources) == len(reductions)
    return ReductionChain(last, inlined.stage(roots[0]), sources, tuple(maps), is_alone, softmax, writer)


def reads_reduction(state: State, stage: Stage) -> bool:
    """Return whether the stage reads results of a reduction, possibly through elementwise stages."""
    waiting = _producers(state, stage)
    visited = {p.name for p in waiting}
    while waiting:
        here = waiting.pop()
        if here.op.reducer is not None:
            return True
        between = _producers(state, here) if here.op.recurrence is None else []
        new = [p for p in between if p.name not in visited]
        visited.update(p.name for p in new)
        waiting += new
    return False


def _softmax_stages(softmax: WeightedSum | None) -> tuple[Stage, ...]:
    return () if softmax is None else (softmax.weights, softmax.total, softmax.peak)


def _next_map(state: State, roots: tuple[str, ...], members: set[str], done: frozenset[str]) -> Stage | None:
    """Return the first elementwise stage of reductions that a root reads along its reduction, and only members do."""
    for name in roots:
        op = state.stage(name).op
        along = {a.var for a in op.reduce_axes or op.axes[-1:]}
        for load in op.loads:
            stage = state.producer(load.buffer)
            if stage is None or not stage.op.is_elementwise or stage.name in done or state.is_constant(stage):
                continue
            moves = any(along & free_vars(i) for i in load.indices)
            if moves and _is_private(state, stage, members) and reads_reduction(state, stage):
                return stage
    return None


def _producers(state: State, stage: Stage) -> list[Stage]:
    return [p for b in stage.op.reads if (p := state.producer(b)) is not None]


def _is_private(state: State, stage: Stage, members: set[str]) -> bool:
    """Whether only the members read the stage, which is at the root."""
    readers = {s.name for s in state.consumers(stage)}
    return stage.at is None and not state.is_output(stage) and not state.attached(stage.name) and readers <= members
