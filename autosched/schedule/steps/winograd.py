"""Step Winograd: replace a convolution by the stages of its transforms."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.errors import ScheduleError
from autosched.ir.expr import Const, Var
from autosched.ir.stmt import Scope
from autosched.schedule.stage import Stage, StageAxis
from autosched.schedule.state import State, initial_state
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import check_untouched, shape_of_buffer
from autosched.te.compute import placeholder
from autosched.te.dag import ComputeDAG
from autosched.te.rewrites.winograd import TILES, Convolution, match, transformed
from autosched.te.tensor import Axis, Tensor


@dataclass(frozen=True)
class Winograd:
    """The 3x3 convolution `stage` by F(m x m, 3 x 3): stages `stage`.data, .kernel, .product, .tiles before it (see
    `te.rewrites.winograd`), the stage itself becomes the copy that puts tiles into place.

    Refused unless the workload accepts the larger error.
    """

    stage: str
    m: int

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"winograd({self.stage}, {self.m})"
        check(state.winograd, f"{where}: the workload does not accept that its error is larger")
        check(self.m in TILES, f"{where}: tiles have {' or '.join(map(str, TILES))} outputs")
        check_untouched(where, state, stage)
        found = convolution(stage)
        if found is None:
            raise ScheduleError(f"{where}: it is no 3x3 convolution of stride 1")
        data, weights = (_tensor(state, load.buffer, load.dtype) for load in (found.data, found.weights))
        axes = [Axis(a.var, found.extents[a.var]) for a in stage.op.axes]
        made = initial_state(ComputeDAG(transformed(found, self.m, data, weights, self.stage, axes))).stages
        *before, last = made
        check(not any(map(state.taken, (s.name for s in before))), f"{where}: {self.stage}.data exists already")
        last = replace(last, op=replace(last.op, buffers=stage.op.buffers), scope=stage.scope, at=stage.at)
        at = state.stages.index(stage)
        inner = tuple(replace(s, scope=Scope.GLOBAL) for s in before)
        return replace(state, stages=(*state.stages[:at], *inner, last, *state.stages[at + 1 :]))


def convolution(stage: Stage) -> Convolution | None:
    """Return the convolution that the stage computes, or None."""
    if stage.op.guards:
        return None
    axes, reduced = _extents(stage.op.axes), _extents(stage.op.reduce_axes)
    return None if axes is None or reduced is None else match(axes, reduced, stage.op.body, stage.op.reducer)


def _extents(axes: tuple[StageAxis, ...]) -> dict[Var, int] | None:
    found = {a.var: a.extent.number for a in axes if isinstance(a.extent, Const)}
    return found if len(found) == len(axes) else None


def _tensor(state: State, buffer: str, dtype: str) -> Tensor:
    shape = [e.value for e in shape_of_buffer(state, buffer) if isinstance(e, Const)]
    return placeholder(shape, dtype, buffer)
