"""The symbolic function of a schedule: nests of all root stages in order, their buffers, the parameters."""

from __future__ import annotations

from autosched.ir.stmt import Allocate, Buffer, Func, Scope, Seq, Stmt
from autosched.lower.symbolic.domains import infer_domains
from autosched.lower.symbolic.gpu_nest import GpuNest
from autosched.lower.symbolic.nest import NestBuilder, buffers_of_stage
from autosched.lower.symbolic.online_nest import OnlineNest
from autosched.lower.symbolic.regions import Domain
from autosched.lower.symbolic.weights import is_prepared, keep_weights
from autosched.schedule.stage import Stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import shape_of_buffer


def lower(state: State, name: str = "kernel") -> Func:
    """Return the loop nest of a schedule, with closed forms for its parameters and a separate body for weights."""
    state = keep_weights(state) if state.weights else state
    for stage in (s for s in state.stages if s.scope is Scope.WARP):
        is_held = stage.is_spread and all(s.matrix for s in state.consumers(stage))
        where = f"lower: {stage.name} is computed with scope 'warp'"
        check(is_held, f"{where}; spread it over threads (Spread), and let products of matrices (Mma) alone read it")
    domains = infer_domains(state)
    roots = [s for s in state.stages if s.at is None]
    params = tuple(
        Buffer(t.name, shape_of_buffer(state, t.name), t.dtype, Scope.PARAM) for t in (*state.inputs, *state.outputs)
    )
    outputs = frozenset(t.name for t in state.outputs)
    ahead = [s for s in roots if is_prepared(state, s)] if state.weights else []
    late = [s for s in roots if s not in ahead]
    body = _nests(state, domains, late, outputs)
    if not ahead:
        return Func(name, params, len(state.outputs), body)
    read = {b for s in state.stages if not is_prepared(state, s) for b in s.op.reads}
    prepared = tuple(b for s in ahead for b in buffers_of_stage(domains[s.name]) if b.name in read)
    prepare = _nests(state, domains, ahead, frozenset(b.name for b in prepared))
    return Func(name, params, len(state.outputs), body, prepared, prepare)


def _nests(state: State, domains: dict[str, Domain], roots: list[Stage], outside: frozenset[str]) -> Stmt:
    """The nests of stages at the root in order, inside their buffers but for those of `outside`."""
    body: Stmt = Seq(tuple(_builder(state, s)(state, domains, s).build() for s in _in_order(state, roots)))
    for stage in reversed([s for s in roots if s.into is None]):
        for buffer in buffers_of_stage(domains[stage.name]):
            if buffer.name not in outside:
                body = Allocate(buffer, body)
    return body


def _in_order(state: State, roots: list[Stage]) -> list[Stage]:
    """Start values come before the kernel that updates them."""
    found: list[Stage] = []
    for stage in roots:
        found += [] if stage.into is None else [state.stage(stage.into)]
        found += [] if stage.starts else [stage]
    return found


def _builder(state: State, stage: Stage) -> type[NestBuilder]:
    """Loops that stop early, or blocks of threads that all run whole tiles."""
    if not state.on_gpu(stage):
        return NestBuilder
    own = any((s.is_spread or s.running) and state.root(s) is stage for s in state.stages)
    return OnlineNest if own else GpuNest
