"""Step Flatten: merge the short last dimension of an output with the dimension before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.expr import INDEX, Const, Expr, Load, Var, binary
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import rebuild, substitute
from autosched.schedule.stage import Stage, StageAxis, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import check_untouched
from autosched.te.tensor import fresh_name


@dataclass(frozen=True)
class Flatten:
    """The last two axes of `stage` become one; refused for all but what `can_flatten`."""

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"flatten({self.stage})"
        check_untouched(where, state, stage)
        only = "only an output of two axes or more, without a reduction or readers, can be"
        check(can_flatten(state, stage), f"{where}: {only}")
        *outer, j, c = stage.op.axes
        n = c.extent.number  # type: ignore[attr-defined]
        name = fresh_name(f"{j.name}_{c.name}", {a.name for a in stage.op.axes})
        flat = StageAxis(Var(name, INDEX), j.extent * n)
        table: dict[Expr, Expr] = {
            j.var: binary("floordiv", flat.var, Const(n, INDEX)),
            c.var: binary("mod", flat.var, Const(n, INDEX)),
        }
        axes = (*outer, flat)
        simplify = Simplifier({a.var: (0, a.extent.number - 1) for a in axes})  # type: ignore[attr-defined]

        def tidy(e: Expr) -> Expr:
            return rebuild(e, simplify if isinstance(e, Load) else tidy) if e.children else e

        op = replace(stage.op, axes=axes, body=tuple(tidy(substitute(v, table)) for v in stage.op.body))
        return state.with_stage(default_stage(op, stage.scope))


def can_flatten(state: State, stage: Stage) -> bool:
    """Return whether the stage computes outputs of two axes or more, without a reduction or a recurrence, that nothing
    else indexes."""
    op = stage.op
    plain = op.is_elementwise and len(op.axes) > 1 and all(isinstance(a.extent, Const) for a in op.axes)
    alone = not state.consumers(stage) and not state.attached(stage.name)
    return plain and alone and state.is_output(stage)
