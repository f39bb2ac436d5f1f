"""Step Partition: split a result in two ranges of an axis, each with loops of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.expr import Const, Expr, Load
from autosched.ir.symbolic import INTEGERS
from autosched.ir.visit import substitute
from autosched.schedule.stage import AxisPart, Num, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check, check_factor
from autosched.schedule.steps.stages import check_untouched


@dataclass(frozen=True)
class Partition:
    """The points of `stage` from `at` of `axis` on become `stage`.rest, which has its own copy of `reduction`.

    Refused unless `stage` is an output that nothing reads, elementwise, and all that reads `reduction`.
    """

    stage: str
    reduction: str
    axis: str
    at: Num

    def apply(self, state: State) -> State:
        stage, reduction = state.stage(self.stage), state.stage(self.reduction)
        where = f"partition({self.stage}, {self.reduction}, {self.axis}, {self.at})"
        check_factor(where, self.at)
        check_untouched(where, state, stage)
        check_untouched(where, state, reduction)
        is_output = {t.name for t in state.outputs}.issuperset(stage.op.buffers)
        alone = is_output and stage.at is None and not state.consumers(stage)
        check(alone and stage.op.is_elementwise, f"{where}: {self.stage} is no elementwise output, or it is read")
        check(state.consumers(reduction) == (stage,), f"{where}: {self.stage} is not all that reads {self.reduction}")
        if isinstance(extent := stage.op.axis(self.axis).extent, Const) and isinstance(self.at, INTEGERS):
            check(self.at < extent.value, f"{where}: {self.axis} has no points from there on")
        names = tuple(f"{n}.rest" for n in (self.stage, self.reduction, *reduction.op.buffers))
        check(not any(map(state.taken, names)), f"{where}: {names[0]} or {names[1]} exists already")
        renamed = dict(zip(reduction.op.buffers, names[2:], strict=True))
        found = stage.op.loads_from(*renamed)
        table: dict[Expr, Expr] = {x: Load(renamed[x.buffer], x.indices, x.dtype) for x in found}
        body = tuple(substitute(v, table) for v in stage.op.body)
        inner = default_stage(replace(reduction.op, name=names[1], buffers=names[2:]), reduction.scope)
        outer = default_stage(replace(stage.op, name=names[0], body=body), stage.scope)
        first = replace(stage, part=AxisPart(self.axis, self.at, False))
        rest = (inner, replace(outer, part=AxisPart(self.axis, self.at, True)))
        state = state.with_stage(first)
        place = state.stages.index(first) + 1
        return replace(state, stages=(*state.stages[:place], *rest, *state.stages[place:]))
