"""A sketch in the making, the protocol of the rules that make it, and the walk that applies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from autosched.ir.dtype import DTYPES
from autosched.schedule import CacheWrite, Stage, State, Step
from autosched.target import Target
from search_spaces.facts import fused_consumer
from search_spaces.space import Param, Sketch

MAX_SKETCHES = 32  # where there are more combinations so many are kept, spread over all alternatives


@dataclass(frozen=True)
class Context:
    """What rules may ask about the machine."""

    target: Target
    threads: int

    def lanes(self, itemsize: int) -> int:
        return max(1, self.target.vector_bytes // itemsize)

    def lanes_of(self, stage: Stage) -> int:
        """Of the widest values that the stage makes."""
        return self.lanes(max(DTYPES[d].nbytes for d in stage.op.dtypes))

    @property
    def warp(self) -> int:
        """Threads that exchange values in registers; 0 where the target's language has no words for it."""
        return self.target.gpu.warp if self.target.kind == "cuda" and self.target.gpu is not None else 0


@dataclass(frozen=True)
class Draft:
    """A schedule with the parameters it has so far; stages in `done` need no rule any more."""

    state: State
    params: tuple[Param, ...] = ()
    done: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    row_loops: tuple[tuple[str, str], ...] = ()  # root stage -> loop in which one row (or task) is finished

    def apply(self, *steps: Step) -> Draft:
        return replace(self, state=self.state.apply(*steps))

    def with_params(self, params: Iterable[Param]) -> Draft:
        return replace(self, params=(*self.params, *params))

    def finish(self, *stages: str, note: str = "") -> Draft:
        notes = (*self.notes, note) if note else self.notes
        return replace(self, done=self.done | set(stages), notes=notes)

    def with_row_loop(self, stage: str, loop: str) -> Draft:
        return replace(self, row_loops=(*self.row_loops, (stage, loop)))

    def sketch(self) -> Sketch:
        return Sketch("/".join(self.notes) or "default", self.state, self.params)


def distinct(sketches: list[Sketch]) -> tuple[Sketch, ...]:
    """The sketches with a number added to names that occur again: a record finds its sketch by name."""
    seen: dict[str, int] = {}
    result = []
    for sketch in sketches:
        n = seen[sketch.name] = seen.get(sketch.name, 0) + 1
        result.append(sketch if n == 1 else replace(sketch, name=f"{sketch.name}#{n}"))
    return tuple(result)


Alternative: TypeAlias = Draft | Callable[[], Draft]


class SketchRule(Protocol):
    """One way to schedule a stage. Stages are visited from the outputs to the inputs; the first rule that applies wins.

    `apply` returns the alternatives: each becomes (part of) a sketch, or is left out with the stages before it, which
    is why it may also be a function that makes it. A rule marks what it has scheduled with `Draft.finish` and adds its
    open numbers with `Draft.with_params`.
    """

    def applies(self, draft: Draft, stage: Stage, context: Context) -> bool: ...

    def apply(self, draft: Draft, stage: Stage, context: Context) -> Sequence[Alternative]: ...


def grow(draft: Draft, inline: SketchRule, rules: tuple[SketchRule, ...], context: Context, most: int) -> list[Draft]:
    """Combinations of what the rules offer, stage by stage, after `inline` has had every stage: all, or `most`."""
    for name in reversed([s.name for s in draft.state.stages]):
        draft = _made(_visit(draft, name, context, (inline,))[0])
    drafts = [draft]
    for number, name in enumerate(reversed([s.name for s in draft.state.stages])):
        drafts = _thin([_visit(d, name, context, rules) for d in drafts], most, number)
    return drafts


def _visit(draft: Draft, name: str, context: Context, rules: tuple[SketchRule, ...]) -> Sequence[Alternative]:
    stage = next((s for s in draft.state.stages if s.name == name), None)
    if stage is None or name in draft.done:
        return [draft]
    rule = next((r for r in rules if r.applies(draft, stage, context)), None)
    return [draft] if rule is None else rule.apply(draft, stage, context)


def _thin(grown: list[Sequence[Alternative]], most: int, seed: int) -> list[Draft]:
    """All alternatives of every draft, or `most`: as many of each draft and of each alternative, in no regular order,
    or some alternatives of two stages would only be seen together. The first of the first stays."""
    if sum(map(len, grown)) <= most:
        return [_made(new) for alternatives in grown for new in alternatives]
    share, rest = divmod(most, len(grown))
    turns = np.random.default_rng(seed).permutation(len(grown))
    turns[turns == 0], turns[0] = turns[0], 0
    kept = []
    for n, (alternatives, turn) in enumerate(zip(grown, turns.tolist(), strict=True)):
        count = min(len(alternatives), share + (n < rest))
        places = [(turn + j * len(alternatives) // count) % len(alternatives) for j in range(count)]
        kept += [_made(alternatives[place]) for place in places]
    return kept


def _made(alternative: Alternative) -> Draft:
    return alternative if isinstance(alternative, Draft) else alternative()


def choose_host(draft: Draft, stage: Stage) -> tuple[Draft, str, str]:
    """The stage that writes the tiles (the fused consumer, or a copy out) and the one that accumulates."""
    host = fused_consumer(draft.state, stage)
    if host is not None and host.name not in draft.done:
        return draft, host.name, stage.name
    return draft.apply(CacheWrite(stage.name)), stage.name, f"{stage.name}.acc"
