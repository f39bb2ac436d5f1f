"""Weight preparation: computations on inputs that are declared constant run once, at load time.

A stage at the root that reads nothing but constants (a copy in panels, a folded factor, a transform of the weights)
belongs to `Func.prepare`, with everything that is computed inside it. A weight that the kernel itself still reads is
copied as it is, so that the kernel needs no weight and a later change of the caller's array cannot be half seen.
"""

from __future__ import annotations

from dataclasses import replace

from autosched.ir.expr import INDEX, Const, Expr, Load, Var
from autosched.ir.visit import bottom_up
from autosched.schedule.stage import Stage, StageAxis, StageOp, default_stage
from autosched.schedule.state import State


def is_prepared(state: State, stage: Stage) -> bool:
    """Whether the stage is computed at load time, in a nest at the root that depends on weights alone."""
    return state.is_constant(state.root(stage))


def keep_weights(state: State) -> State:
    """Make the kernel read copies `weight.kept` in place of weights."""
    late = [s for s in state.stages if not is_prepared(state, s)]
    for weight in state.weights:
        if any(weight in s.op.reads for s in late):
            late = [_reading(s, weight, f"{weight}.kept") for s in late]
            state = replace(state, stages=(_copy(state, weight), *state.stages))
    for stage in late:
        state = state.with_stage(stage)
    return state


def _copy(state: State, weight: str) -> Stage:
    tensor = next(t for t in state.inputs if t.name == weight)
    name = f"{weight}.kept"
    axes = tuple(StageAxis(Var(f"d{n}"), Const(size, INDEX)) for n, size in enumerate(tensor.shape))
    body = Load(weight, tuple(a.var for a in axes), tensor.dtype)
    return default_stage(StageOp(name, axes, (), (body,), None, (name,), (tensor.dtype,)))


def _reading(stage: Stage, weight: str, copy: str) -> Stage:
    """`stage` reading `copy` in place of `weight`."""

    def renamed(e: Expr) -> Expr:
        return Load(copy, e.indices, e.dtype) if isinstance(e, Load) and e.buffer == weight else e

    prefetches = tuple(replace(p, buffer=copy) if p.buffer == weight else p for p in stage.prefetches)
    body = tuple(bottom_up(v, renamed) for v in stage.op.body)
    return replace(stage, op=replace(stage.op, body=body), prefetches=prefetches)
