"""DivideLast: an average whose weights are shares of a whole is divided when all is added up.

    Y[i, j] = sum over k of (E[i, k] / total[i]) * V[k, j]

becomes a sum of fewer divisions, which rounds neither more nor coarser:

    Y.acc[i, j] = sum over k of E[i, k] * V[k, j]
    Y[i, j]     = Y.acc[i, j] / total[i]

`Average` (online.py) does the same for weights that a kernel makes again and again; here they stay stages, so that each
is an exponential once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.expr import Binary, Cast, Expr, Load, binary
from autosched.ir.visit import substitute
from autosched.schedule.stage import Stage, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.online import WeightedSum, weighted_sum
from autosched.schedule.steps.stages import check_untouched


@dataclass(frozen=True)
class DivideLast:
    """The sum `stage` adds up weights that are not divided by their total yet; what it adds up to is."""

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"divide_last({self.stage})"
        check_untouched(where, state, stage)
        found = weighted_sum(state, stage)
        check(found is not None, f"{where}: its weights are no exponentials that are divided by their sum")
        assert found is not None
        weight = undivided(found)
        check(weight is not None, f"{where}: {found.weights.name} does not divide itself")
        assert weight is not None
        name = f"{self.stage}.acc"
        check(not state.taken(name), f"{where}: {name} exists already")
        check_untouched(where, state, found.weights)
        op, own = stage.op, found.weights.op
        lead, row = tuple(a.var for a in op.axes[:-1]), tuple(a.var for a in own.axes)
        if isinstance(weight, Load) and weight.indices == row:  # what is read as it is needs no stage
            made: tuple[Stage, ...] = ()
            read = Load(weight.buffer, found.load.indices, weight.dtype)
        else:
            made = (default_stage(replace(own, body=(weight,))),)
            read = found.load
        acc = replace(op, name=name, buffers=(name,), body=tuple(substitute(v, {found.load: read}) for v in op.body))
        sums = Load(name, tuple(a.var for a in op.axes), op.dtypes[0])
        divided = binary("div", sums, Load(found.total.op.buffers[0], lead, op.dtypes[0]))
        whole = default_stage(replace(op, reduce_axes=(), body=(divided,), reducer=None), stage.scope)
        stages: list[Stage] = []
        for s in state.stages:
            if s.name == self.stage:
                stages += [default_stage(acc), whole]
            elif s.name == own.name:
                stages += made
            else:
                stages.append(s)
        return replace(state, stages=tuple(stages))


def undivided(found: WeightedSum) -> Expr | None:
    """A weight before it is divided; None where another stage divides it."""
    value = found.weights.op.body[0]
    share = value.a if isinstance(value, Cast) else value
    if not isinstance(share, Binary) or share.op != "div":
        return None
    return share.a if share is value else Cast(share.a, value.dtype)
