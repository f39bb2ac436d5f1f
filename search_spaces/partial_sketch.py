"""Partial sketches, the protocol of the rules that schedule their stages, and the traversal that applies the rules.

`grow` visits the stages of a graph from the outputs to the inputs. For each stage it takes the first rule that
applies. That rule returns alternatives, and each of them continues with the next stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from autosched.ir.dtype import DTYPES
from autosched.ir.types import lane_bytes
from autosched.schedule import CacheWrite, Stage, State, Step
from autosched.target import Target
from search_spaces.fusion import fused_consumer
from search_spaces.space import Sketch, SketchParam

MAX_SKETCHES = 32  # of all combinations at most so many are kept, drawn evenly from all alternatives


@dataclass(frozen=True)
class SketchContext:
    """What a rule knows of the machine: its target, and the threads of the kernel."""

    target: Target
    threads: int

    def lanes(self, itemsize: int) -> int:
        return max(1, self.target.vector_bytes // itemsize)

    def lanes_of(self, stage: Stage) -> int:
        """Return the lanes of a vector of the widest type that the stage stores, or of a narrower one that nearly all
        operations of an elementwise stage are in."""
        stored = max(DTYPES[d].nbytes for d in stage.op.dtypes)
        return self.lanes(min(stored, *map(lane_bytes, stage.op.body)) if stage.op.is_elementwise else stored)

    @property
    def warp(self) -> int:
        """Threads that can exchange values in registers; 0 where the target's language has no shuffles."""
        return self.target.gpu.warp if self.target.backend.has_shuffles and self.target.gpu is not None else 0


@dataclass(frozen=True)
class RowLoop:
    """A loop of a root stage whose iterations each complete one row, or task: elementwise stages that it reads can be
    computed in it.

    `slides`: also so that an iteration computes only what is new. `reduces`: reductions as well.
    """

    stage: str
    loop: str
    slides: bool = False
    reduces: bool = False


@dataclass(frozen=True)
class PartialSketch:
    """A schedule that is complete for some stages, with its parameters so far.

    `done`: the stages that need no rule any more. `notes`: the alternatives chosen; joined they name the sketch.
    `row_loops`: at most one of each root stage.
    """

    state: State
    params: tuple[SketchParam, ...] = ()
    done: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    row_loops: tuple[RowLoop, ...] = ()
    fuses_reductions: bool = False  # see `Sketch`

    def apply(self, *steps: Step) -> PartialSketch:
        """Return the partial sketch with the steps applied. Raises ScheduleError if one of them is not legal."""
        return replace(self, state=self.state.apply(*steps))

    def with_params(self, params: Iterable[SketchParam]) -> PartialSketch:
        """Return the partial sketch with more parameters. Steps name them: `Split("C", "j", ("C.j.width",))`."""
        return replace(self, params=(*self.params, *params))

    def finish(self, *stages: str, note: str = "") -> PartialSketch:
        """Return the partial sketch with the stages done. Records keep the note as part of the sketch's name."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, done=self.done | set(stages), notes=notes)

    def row_loop(self, stage: str) -> RowLoop | None:
        return next((r for r in self.row_loops if r.stage == stage), None)

    def with_row_loop(self, stage: str, loop: str, slides: bool = False, reduces: bool = False) -> PartialSketch:
        others = tuple(r for r in self.row_loops if r.stage != stage)
        return replace(self, row_loops=(*others, RowLoop(stage, loop, slides, reduces)))

    def complete(self) -> Sketch:
        return Sketch("/".join(self.notes) or "default", self.state, self.params, self.fuses_reductions)


def numbered(sketches: list[Sketch]) -> tuple[Sketch, ...]:
    """Return the sketches with a number added to repeated names: a record finds its sketch by name."""
    seen: dict[str, int] = {}
    result = []
    for sketch in sketches:
        n = seen[sketch.name] = seen.get(sketch.name, 0) + 1
        result.append(sketch if n == 1 else replace(sketch, name=f"{sketch.name}#{n}"))
    return tuple(result)


Alternative: TypeAlias = PartialSketch | Callable[[], PartialSketch]


def noted(alternative: Alternative, note: str) -> Alternative:
    """Return the alternative with a further note, without evaluating it."""
    return lambda: _evaluate(alternative).finish(note=note)


class SketchRule(Protocol):
    """One way to schedule a stage.

    `applies` has no effects. `apply` is called only where it returned True, and returns at least one alternative: a
    partial sketch, or a function that returns one. Where there are too many, functions that are dropped are not called.

    A rule marks the stages that it has scheduled with `PartialSketch.finish`, and adds its parameters with
    `PartialSketch.with_params`.
    """

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool: ...

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> Sequence[Alternative]: ...


def grow(
    sketch: PartialSketch, inline: SketchRule, rules: tuple[SketchRule, ...], context: SketchContext, most: int
) -> list[PartialSketch]:
    """Return combinations of the rules' alternatives after `inline` has visited every stage: all, or `most`."""
    sketch = inlined(sketch, inline, context)
    grown, leading = [sketch], list[bool]()
    for number, name in enumerate(reversed([s.name for s in sketch.state.stages])):
        offers = [_alternatives(g, name, context, rules) for g in grown]
        grown, leading = _keep(offers, leading, most, number)
    return grown


def inlined(sketch: PartialSketch, inline: SketchRule, context: SketchContext) -> PartialSketch:
    """Return the sketch after `inline` has visited every stage, readers first."""
    for name in reversed([s.name for s in sketch.state.stages]):
        sketch = _evaluate(_alternatives(sketch, name, context, (inline,))[0])
    return sketch


def _alternatives(
    sketch: PartialSketch, name: str, context: SketchContext, rules: tuple[SketchRule, ...]
) -> Sequence[Alternative]:
    """Return the alternatives of the first rule that applies to the stage; the sketch unchanged where none does."""
    stage = next((s for s in sketch.state.stages if s.name == name), None)
    if stage is None or name in sketch.done:
        return [sketch]
    rule = next((r for r in rules if r.applies(sketch, stage, context)), None)
    return [sketch] if rule is None else rule.apply(sketch, stage, context)


def _keep(
    offers: list[Sequence[Alternative]], leading: Sequence[bool], most: int, seed: int
) -> tuple[list[PartialSketch], list[bool]]:
    """Return all alternatives of every sketch, or `most` of them: about as many of each sketch and each alternative.

    The order is pseudo-random: a regular one would combine some alternatives of two stages only with each other. The
    first alternative of a sketch that is `leading` is always kept, and leads again: with each alternative of the first
    choice, that is one sketch which takes the first alternative for all other stages. Until that choice none leads.
    """
    is_first_choice = not leading and sum(map(len, offers)) > 1
    lead = leading or [is_first_choice] * len(offers)
    if sum(map(len, offers)) <= most:
        pairs = [(n, position) for n, alternatives in enumerate(offers) for position in range(len(alternatives))]
    else:
        share, rest = divmod(most, len(offers))
        turns = np.random.default_rng(seed).permutation(len(offers)).tolist()
        pairs = []
        for n, alternatives in enumerate(offers):
            turn = 0 if lead[n] else turns[n]
            count = min(len(alternatives), share + (n < rest))
            pairs += [(n, (turn + j * len(alternatives) // count) % len(alternatives)) for j in range(count)]
    kept = [_evaluate(offers[n][position]) for n, position in pairs]
    leads = [lead[n] and (is_first_choice or position == 0) for n, position in pairs]
    return kept, leads if any(leads) else []


def _evaluate(alternative: Alternative) -> PartialSketch:
    return alternative if isinstance(alternative, PartialSketch) else alternative()


def row_loop_of_readers(sketch: PartialSketch, stage: Stage) -> RowLoop | None:
    """Return the row loop of the root stage that all readers are computed in."""
    consumers = sketch.state.consumers(stage)
    roots = {sketch.state.root(r).name for r in consumers}
    return sketch.row_loop(roots.pop()) if len(roots) == 1 else None


def fuse_consumer(sketch: PartialSketch, stage: Stage) -> tuple[PartialSketch, str, str]:
    """Return the sketch, the stage that writes the results of the reduction `stage`, and the one that accumulates them.

    The writing stage is the reduction's fused consumer. Where there is none, the writing stage is a copy that takes the
    stage's name, and a new stage before it accumulates.
    """
    consumer = fused_consumer(sketch.state, stage)
    if consumer is not None and consumer.name not in sketch.done:
        return sketch, consumer.name, stage.name
    return sketch.apply(CacheWrite(stage.name)), stage.name, f"{stage.name}.acc"
