"""A schedule: stages in topological order (producers first) and the steps that led here.

A `State` never changes; `state.apply(step)` gives a new one or raises `ScheduleError` before any
change. The list of steps, with integers put in for parameters, is what a record stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from autosched.errors import ScheduleError
from autosched.ir.expr import INDEX, Const
from autosched.ir.size import has_size
from autosched.ir.stmt import BLOCKS, THREADS, Scope
from autosched.schedule.stage import At, Loop, Stage, StageAxis, StageOp, default_stage
from autosched.schedule.steps.atomic import check_atomics
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import ComputeOp, Tensor


class Step(Protocol):
    """A schedule primitive: a frozen record of plain data."""

    def apply(self, state: State) -> State: ...


@dataclass(frozen=True)
class State:
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    steps: tuple[Step, ...] = ()
    weights: tuple[str, ...] = ()  # inputs that are declared constant
    winograd: bool = False  # whether its error is accepted

    def apply(self, *steps: Step) -> State:
        state = self
        for step in steps:
            made = step.apply(state)
            state = State(made.inputs, made.outputs, made.stages, (*state.steps, step), made.weights, made.winograd)
            check_atomics(state)
        return state

    def stage(self, name: str) -> Stage:
        stage = self._by_name.get(name)
        if stage is None:
            names = ", ".join(self._by_name)
            raise ScheduleError(f"the schedule has no stage {name!r}; its stages are {names}")
        return stage

    @cached_property
    def _by_name(self) -> dict[str, Stage]:
        return {stage.op.name: stage for stage in self.stages}

    def producer(self, buffer: str) -> Stage | None:
        """The stage that writes `buffer`, None for an input."""
        return self._by_buffer.get(buffer)

    @cached_property
    def _by_buffer(self) -> dict[str, Stage]:
        """The stage that writes each buffer; the first of several."""
        return {buffer: stage for stage in reversed(self.stages) for buffer in stage.op.buffers}

    def consumers(self, stage: Stage) -> tuple[Stage, ...]:
        numbers = {n for buffer in stage.op.buffers for n in self._readers.get(buffer, ())}
        return tuple(s for n in sorted(numbers) if (s := self.stages[n]) is not stage)

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        """The numbers of the stages that read each buffer, ascending."""
        found: dict[str, list[int]] = {}
        for n, stage in enumerate(self.stages):
            for buffer in stage.op.reads:
                found.setdefault(buffer, []).append(n)
        return found

    def is_output(self, stage: Stage) -> bool:
        return bool({t.name for t in self.outputs} & set(stage.op.buffers))

    @cached_property
    def constants(self) -> frozenset[str]:
        """The weights, and the buffers of stages that depend on nothing else; outputs are none of them, nor are stages
        of sizes that are known at run time."""
        found = set(self.weights)
        for stage in self.stages if found else ():
            is_sized = has_size(tuple(axis.extent for axis in stage.op.axes))
            if stage.op.reads <= found and not is_sized and not self.is_output(stage):
                found.update(stage.op.buffers)
        return frozenset(found)

    def is_constant(self, stage: Stage) -> bool:
        """Whether the values of `stage` are known once the weights are."""
        return self.constants.issuperset(stage.op.buffers)

    def with_stage(self, stage: Stage) -> State:
        """The stage of the same name replaced."""
        stages = tuple(stage if s.op.name == stage.op.name else s for s in self.stages)
        return State(self.inputs, self.outputs, stages, self.steps, self.weights, self.winograd)

    def attached(self, stage: str, loop: str | None = None) -> tuple[Stage, ...]:
        """Stages computed inside `stage` (inside its loop `loop`), producers first."""
        return tuple(s for s in self.stages if s.at is not None and s.at.stage == stage and loop in (None, s.at.loop))

    def root(self, stage: Stage) -> Stage:
        """The root stage that this one is computed in (itself, if it is one)."""
        chain = self.chain(stage)
        return self.stage(chain[-1].stage) if chain else stage

    def on_gpu(self, stage: Stage) -> bool:
        """Whether the stage runs in blocks of threads."""
        return any(x.kind in BLOCKS or x.kind in THREADS for x in self.root(stage).loops)

    def chain(self, stage: Stage) -> tuple[At, ...]:
        """Where the stage is computed, where that is, and so on out to the root."""
        result: list[At] = []
        at = stage.at
        while at is not None:
            result.append(at)
            at = self.stage(at.stage).at
        return tuple(result)

    def loops_between(self, reader: Stage, stage: Stage, loop: Loop) -> list[tuple[Stage, Loop]] | None:
        """The loops inside the one that `reader` is computed in, down to `loop` of `stage`, outermost first; the stage
        may be the reader. None where `loop` is not inside."""
        inner = [(stage, x) for x in stage.loops[: stage.position(loop.name) + 1]]
        while reader.at is not None and stage.name != reader.at.stage and stage.at is not None:
            at, stage = stage.at, self.stage(stage.at.stage)
            inner = [*((stage, x) for x in stage.loops[: stage.position(at.loop) + 1]), *inner]
        if reader.at is None or stage.name != reader.at.stage:
            return None
        around = stage.position(reader.at.loop)
        return inner[around + 1 :] if len(inner) > around and inner[around][0] is stage else None

    def inside(self, stage: Stage, at: At) -> bool:
        """Whether the values of `stage` are computed inside the loop `at`."""
        if stage.name == at.stage:
            return True
        host = self.stage(at.stage)
        depth = host.position(at.loop)
        return any(x.stage == at.stage and host.position(x.loop) >= depth for x in self.chain(stage))

    def taken(self, name: str) -> bool:
        """Whether an input, a stage or one of its buffers has this name."""
        return any(t.name == name for t in self.inputs) or any(name in (s.name, *s.op.buffers) for s in self.stages)


def directly_read_by(state: State, stage: Stage) -> list[Stage]:
    """The readers of a stage but for those that run along with another one of them."""
    return [s for s in state.consumers(stage) if not s.running]


def stage_op(op: ComputeOp, tensors: tuple[Tensor, ...]) -> StageOp:
    """The schedule's view of a tensor operation; its tensors become buffers of the same names."""

    def axis(a_var: object, extent: int, reduce: bool) -> StageAxis:
        return StageAxis(a_var, Const(extent, INDEX), reduce)  # type: ignore[arg-type]

    return StageOp(
        op.name,
        tuple(axis(a.var, a.extent, False) for a in op.axes),
        tuple(axis(a.var, a.extent, True) for a in op.reduce_axes),
        op.body,
        op.reducer,
        tuple(t.name for t in tensors),
        tuple(t.dtype for t in tensors),
    )


def initial_state(dag: ComputeDAG) -> State:
    """The unscheduled program: every stage at the root, loops as written. An output without elements has no stage."""
    outputs = {t.name for t in dag.outputs}
    stages = []
    for op in (op for op in dag.stages if op.has_points):
        tensors = tuple(sorted((t for t in dag.tensors.values() if t.op is op), key=lambda t: t.index))
        scope = Scope.PARAM if any(t.name in outputs for t in tensors) else Scope.GLOBAL
        stages.append(default_stage(stage_op(op, tensors), scope))
    return State(dag.inputs, dag.outputs, tuple(stages), weights=dag.weights, winograd=dag.winograd)
