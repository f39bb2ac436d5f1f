"""A schedule's nest with everything around it: all stages at the root in order, their buffers, the parameters."""

from __future__ import annotations

from autosched.ir.expr import INDEX, Const
from autosched.ir.stmt import Allocate, Buffer, Func, Scope, Seq, Stmt
from autosched.lower.domains import infer_domains
from autosched.lower.gpu import GpuNest
from autosched.lower.nest import Nest, buffers_of_stage
from autosched.schedule.stage import Stage
from autosched.schedule.state import State


def lower(state: State, name: str = "kernel") -> Func:
    """The loop nest of a schedule, with closed forms where it has parameters."""
    domains = infer_domains(state)
    roots = [s for s in state.stages if s.at is None]
    body: Stmt = Seq(tuple(_builder(state, s)(state, domains, s).build() for s in _in_order(state, roots)))
    outputs = {t.name for t in state.outputs}
    for stage in reversed([s for s in roots if s.into is None]):
        for buffer in buffers_of_stage(domains[stage.name]):
            if buffer.name not in outputs:
                body = Allocate(buffer, body)
    params = tuple(
        Buffer(t.name, tuple(Const(e, INDEX) for e in t.shape), t.dtype, Scope.PARAM)
        for t in (*state.inputs, *state.outputs)
    )
    return Func(name, params, len(state.outputs), body)


def _in_order(state: State, roots: list[Stage]) -> list[Stage]:
    """Start values come before the kernel that updates them."""
    found: list[Stage] = []
    for stage in roots:
        found += [] if stage.into is None else [state.stage(stage.into)]
        found += [] if stage.starts else [stage]
    return found


def _builder(state: State, stage: Stage) -> type[Nest]:
    """Loops that stop early, or blocks of threads that all run whole tiles."""
    return GpuNest if state.on_gpu(stage) else Nest
