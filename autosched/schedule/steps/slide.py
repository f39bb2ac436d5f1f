"""Step Slide: keep the rows of a stage from one iteration of the loop around it to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.stmt import ForKind, Scope
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check


@dataclass(frozen=True)
class Slide:
    """A stage that is computed in a loop computes only rows that no earlier iteration computed, and keeps the others:
    A at row i + 1, not at i - 1, i and i + 1 (`lower/symbolic/sliding.py`).

    Refused unless the stage is elementwise and the loop is serial; when it is lowered, refused where an iteration does
    not read the next rows of one dimension.
    """

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"slide({self.stage})"
        check(stage.at is not None, f"{where}: it is at the root; compute it in a loop (ComputeAt) before")
        assert stage.at is not None
        loop = state.stage(stage.at.stage).loop(stage.at.loop)
        is_in_order = loop.kind is ForKind.SERIAL and not loop.reduce and len(loop.parts) == 1
        check(is_in_order, f"{where}: loop {loop.name} of {stage.at.stage} is not a serial one over an axis")
        is_own = stage.op.is_elementwise and stage.scope is Scope.LOCAL
        check(is_own, f"{where}: only an elementwise stage that is private to a thread (scope 'local') slides")
        return state.with_stage(replace(stage, slides=True))
