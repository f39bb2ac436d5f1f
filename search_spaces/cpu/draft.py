"""A sketch in the making, and the protocol of the rules that make it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from autosched.schedule import Stage, State, Step
from autosched.target import Target
from search_spaces.space import Param


@dataclass(frozen=True)
class Context:
    """What rules may ask about the machine."""

    target: Target
    threads: int

    def lanes(self, itemsize: int) -> int:
        return max(1, self.target.vector_bytes // itemsize)


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


class SketchRule(Protocol):
    """One way to schedule a stage. Stages are visited from the outputs to the inputs; the first rule that applies wins.

    `apply` returns the alternatives: each becomes (part of) a sketch. A rule marks what it has scheduled
    with `Draft.finish` and adds its open numbers with `Draft.with_params`.
    """

    @property
    def name(self) -> str: ...

    def applies(self, draft: Draft, stage: Stage, context: Context) -> bool: ...

    def apply(self, draft: Draft, stage: Stage, context: Context) -> list[Draft]: ...
