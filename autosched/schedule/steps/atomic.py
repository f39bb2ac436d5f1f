"""Step Atomic: blocks add their partial reductions to the result by atomic updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autosched.errors import ScheduleError
from autosched.ir.expr import Expr, Load
from autosched.ir.instructions.atomics import ATOMICS, atomic_operation
from autosched.ir.stmt import ForKind
from autosched.schedule.stage import Stage

if TYPE_CHECKING:
    from autosched.schedule.state import State


@dataclass(frozen=True)
class Atomic:
    """The kernel of the parts of `stage` (see Rfactor) updates the result atomically instead of storing the parts; the
    loops of `stage` only write its start values, in a kernel before that one.

    The order of the updates is not determined, so sums of floats differ in their last bits from run to run.
    What is updated must be one number of 4 or 8 bytes: a sum, or a minimum or maximum of integers. The parts must be
    made by a stage at the root, bound to blocks of threads, that only copies them (cache_write). All else is refused.
    """

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        load = parts_of(stage)
        maker = None if load is None else state.producer(load.buffer)
        if load is None or maker is None:
            raise ScheduleError(f"atomic({self.stage}): it must be a reduction of parts; rfactor it first")
        if maker.into is not None:
            raise ScheduleError(f"atomic({self.stage}): it is so already")
        return state.with_stage(replace(maker, into=self.stage)).with_stage(replace(stage, starts=True))


def parts_of(stage: Stage) -> Load | None:
    """Return the element of another stage that each step of the reduction adds unchanged; None for any other sum."""
    axes = {a.var for a in stage.op.all_axes}
    match stage.op.body:
        case (Load(indices=indices) as load,):
            each_once = len(indices) == len(axes) and set(indices) == axes
            return load if each_once and stage.op.reducer is not None and not stage.op.guards else None
    return None


def check_atomics(state: State) -> None:
    """Check the conditions of `Atomic` after every step, as a later step may violate them. Raises ScheduleError."""
    if not any(s.starts or s.into is not None for s in state.stages):  # as in nearly all schedules
        return
    updated = {s.into for s in state.stages}
    for maker in state.stages:
        gone = maker.starts and maker.name not in updated
        _check(not gone, f"atomic({maker.name}): its parts come from there; they cannot be computed elsewhere now")
        if maker.into is None:
            continue
        where = f"atomic({maker.into})"
        stage = state.stage(maker.into)
        operation = atomic_operation(stage.op.reducer)
        known = "; ".join(f"{op} of {', '.join(sorted(dtypes))}" for op, dtypes in ATOMICS.items())
        _check(operation is not None, f"{where}: there are atomic updates for {known}, but it is none of these")
        load = parts_of(stage)
        is_source = load is not None and load.buffer in maker.op.buffers and len(maker.op.buffers) == 1
        _check(is_source, f"{where}: it must be a reduction of the parts that {maker.name} makes")
        _check(stage.starts and stage.at is None and maker.at is None, f"{where}: both stages must stay at the root")
        _check(maker.op.is_elementwise, f"{where}: {maker.name} must only copy its parts; cache_write it first")
        alone = state.consumers(maker) == (stage,) and not state.is_output(maker)
        _check(alone, f"{where}: another stage reads {maker.name}, whose parts are not kept")
        _check(state.on_gpu(maker), f"{where}: bind the loops of {maker.name} to blocks and threads first")
        empty = not state.attached(stage.name) and all(x.kind is not ForKind.VECTORIZE for x in stage.loops)
        _check(empty, f"{where}: its loops only write start values; nothing is computed in them, none is vectorised")


def start_indices(load: Load, indices: tuple[Expr, ...], stage: Stage) -> tuple[Expr, ...]:
    """Return the indices in the result of a part at `indices`."""
    return tuple(indices[load.indices.index(a.var)] for a in stage.op.axes)


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ScheduleError(message)
