"""Step Separate: split a window's reduction in two, so that neighbouring outputs share its partial results
along rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.expr import INDEX, Const, Expr, Load, Var
from autosched.ir.visit import rebuild, substitute
from autosched.schedule.stage import StageAxis, StageOp, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import check_untouched, insert
from autosched.te.rewrites.prefix_scan import step_along


@dataclass(frozen=True)
class Separate:
    """The reduction axis `axis` of `stage` stays with it, the others go to `stage`.part; refused for all but
    `window_axes`."""

    stage: str
    axis: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where, name = f"separate({self.stage}, {self.axis})", f"{self.stage}.part"
        check_untouched(where, state, stage)
        op, found = stage.op, window_axes(stage.op).get(self.axis)
        check(found is not None, f"{where}: no outputs share what the window reads along it")
        assert found is not None
        buffers = tuple(f"{b}.part" for b in op.buffers)
        check(not any(map(state.taken, (name, *buffers))), f"{where}: {name} exists already")
        i, r, step = found.output, op.axis(self.axis), found.step
        row = StageAxis(Var(f"{i.name}.{r.name}", INDEX), (i.extent - 1) * step + r.extent)
        table: dict[Expr, Expr] = {i.var: Const(0, INDEX), r.var: row.var}

        def along(e: Expr) -> Expr:
            return substitute(e, table) if isinstance(e, Load) else rebuild(e, along) if e.children else e

        axes = tuple(row if a is i else a for a in op.axes)
        rest = tuple(a for a in op.reduce_axes if a is not r)
        part = StageOp(name, axes, rest, tuple(map(along, op.body)), op.reducer, buffers, op.dtypes)
        at = tuple(i.var * step + r.var if a is i else a.var for a in op.axes)
        body = tuple(Load(b, at, d) for b, d in zip(buffers, op.dtypes, strict=True))
        state = state.with_stage(default_stage(replace(op, reduce_axes=(r,), body=body), stage.scope))
        return insert(state, default_stage(part), self.stage)


@dataclass(frozen=True)
class Shared:
    """Outputs along `output` share what a window reads along a reduction axis: element step * output + reduction."""

    output: StageAxis
    step: int


def window_axes(op: StageOp) -> dict[str, Shared]:
    """The reduction axes that go along an axis of the outputs by steps shorter than the window, wherever they occur,
    beside others; by name."""
    if op.reducer is None or op.guards or any(not isinstance(a.extent, Const) for a in op.all_axes):
        return {}
    size = {a.name: a.extent.number for a in op.all_axes if isinstance(a.extent, Const)}
    if sum(size[a.name] > 1 for a in op.reduce_axes) < 2:
        return {}
    pairs = ((r, i, step_along(op.body, r.var, i.var)) for r in op.reduce_axes for i in op.axes if size[i.name] > 1)
    return {r.name: Shared(i, by_i) for r, i, (by_r, by_i) in pairs if by_r == 1 and 0 < by_i < size[r.name]}
