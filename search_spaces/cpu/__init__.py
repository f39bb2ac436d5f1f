"""The CPU search space on one page.

First the cheap elementwise stages and data movement vanish into their readers (`Inline`). Then stages are
visited from the outputs to the inputs; the first rule that applies gives the alternatives.

    Host              an elementwise stage waits for the reduction that will be fused into it
    SplitReduction    few outputs, long reduction: K in blocks over threads (SplitTiledReduction: with tiles)
    MultiLevelTiling  register tile, middle tile, parallel tile; fused epilogue; packed operands
    LaneReduction     reductions along contiguous data, in vectors, row by row with what uses them
    PlainReduction    any other reduction
    Placement         padding and activations: for each task of their reader, at the root, or inline
    Elementwise       the rest

Rules of a user go before these: `sketches(dag, target, threads, rules=(MyRule(), *RULES))`.
"""

from __future__ import annotations

from autosched.schedule import initial_state
from autosched.target import Target
from autosched.te.dag import ComputeDAG
from search_spaces.cpu.draft import Context, Draft, SketchRule
from search_spaces.cpu.elementwise import Elementwise, Host, Inline, Placement
from search_spaces.cpu.rows import LaneReduction, PlainReduction, SplitReduction, SplitTiledReduction
from search_spaces.cpu.tiling import MultiLevelTiling
from search_spaces.space import Sketch

RULES: tuple[SketchRule, ...] = (
    Host(),
    SplitReduction(),
    SplitTiledReduction(),
    MultiLevelTiling(),
    LaneReduction(),
    PlainReduction(),
    Placement(),
    Elementwise(),
)
MAX_SKETCHES = 48  # a graph with many stages keeps this many combinations, spread over all alternatives


def sketches(
    dag: ComputeDAG, target: Target, threads: int, rules: tuple[SketchRule, ...] = RULES
) -> tuple[Sketch, ...]:
    """All sketches of a (collapsed) graph for a CPU target; at least one for every graph."""
    context = Context(target, threads)
    draft = Draft(initial_state(dag))
    for name in reversed([s.name for s in draft.state.stages]):
        draft = _visit(draft, name, context, (Inline(),))[0]
    drafts = [draft]
    for name in reversed([s.name for s in draft.state.stages]):
        drafts = _thin([new for d in drafts for new in _visit(d, name, context, rules)])
    drafts = [_leftovers(d, context) for d in drafts]
    names: dict[str, int] = {}
    found = []
    for d in drafts:
        name = "/".join(d.notes) or "default"
        names[name] = names.get(name, 0) + 1
        found.append(Sketch(name if names[name] == 1 else f"{name}#{names[name]}", d.state, d.params))
    return tuple(found)


def _visit(draft: Draft, name: str, context: Context, rules: tuple[SketchRule, ...]) -> list[Draft]:
    stage = next((s for s in draft.state.stages if s.name == name), None)
    if stage is None or name in draft.done:
        return [draft]
    rule = next((r for r in rules if r.applies(draft, stage, context)), None)
    return [draft] if rule is None else rule.apply(draft, stage, context)


def _thin(drafts: list[Draft]) -> list[Draft]:
    if len(drafts) <= MAX_SKETCHES:
        return drafts
    step = len(drafts) / MAX_SKETCHES
    return [drafts[int(n * step)] for n in range(MAX_SKETCHES)]


def _leftovers(draft: Draft, context: Context) -> Draft:
    """Hosts that no reduction was fused into after all."""
    for stage in draft.state.stages:
        if stage.name not in draft.done and stage.op.reducer is None and stage.at is None:
            draft = Elementwise().apply(draft, stage, context)[0]
    return draft


__all__ = ["RULES", "Context", "Draft", "SketchRule", "sketches"]
