"""Steps for weighted averages on processors: DivideLast and WithinReach."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autosched.ir.expr import Binary, Call, Cast, Const, Expr, Load, Var, imin
from autosched.ir.reach import reach
from autosched.ir.visit import free_vars, substitute
from autosched.schedule.stage import Stage, StageAxis, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.online import WeightedSum, checked_weighted_sum, divided_by_total, expanded
from autosched.schedule.steps.stages import check_untouched


@dataclass(frozen=True)
class DivideLast:
    """The sum `stage` adds up weights that are not divided by their total yet; what it adds up to is."""

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"divide_last({self.stage})"
        found = checked_weighted_sum(where, state, stage)
        weight = undivided(found)
        check(weight is not None, f"{where}: {found.weights.name} does not divide itself")
        assert weight is not None
        name = f"{self.stage}.acc"
        check(not state.taken(name), f"{where}: {name} exists already")
        check_untouched(where, state, found.weights)
        op, own = stage.op, found.weights.op
        row = tuple(a.var for a in own.axes)
        if isinstance(weight, Load) and weight.indices == row:  # what is read as it is needs no stage
            made: tuple[Stage, ...] = ()
            read = Load(weight.buffer, found.load.indices, weight.dtype)
        else:
            made = (default_stage(replace(own, body=(weight,))),)
            read = found.load
        acc = replace(op, name=name, buffers=(name,), body=tuple(substitute(v, {found.load: read}) for v in op.body))
        whole = divided_by_total(stage, found.total, name)
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
    """Return a weight before its division; None if another stage divides it."""
    value = found.weights.op.body[0]
    share = value.a if isinstance(value, Cast) else value
    if not isinstance(share, Binary) or share.op != "div":
        return None
    return share.a if share is value else Cast(share.a, value.dtype)


@dataclass(frozen=True)
class WithinReach:
    """In each iteration of loop `loop` of stage `root`, a block of rows, what the sum `stage` is made of ends with the
    last row's columns: the sum itself, its weights, their maximum and total, and what these read alone.

    Refused where no condition says so of the weights, or a stage has other loops than those written.
    """

    stage: str
    root: str
    loop: str

    def apply(self, state: State) -> State:
        stage, root = state.stage(self.stage), state.stage(self.root)
        where = f"within_reach({self.stage}, {self.root}, {self.loop})"
        weights = _weights(state, stage)
        end = None if weights is None else _end_of_row(state, weights)
        check(end is not None, f"{where}: no condition hides weights after the diagonal")
        assert end is not None
        places = [x.indices[-2] for x in root.op.loads_from(*stage.op.buffers)]
        rows = next((a for a in root.op.axes if places and all(x is a.var for x in places)), None)
        check(rows is not None, f"{where}: {self.root} has other rows")
        assert rows is not None
        inside = [*(s for s in state.stages if s is not stage and _end_of_row(state, s) == end), stage]
        names = {s.name for s in inside}
        limit = _end_of_block(where, root, rows, self.loop) + (end - 1)
        for one in inside:
            check_untouched(where, state, one)
            more = one.op.reducer is None and {r.name for r in state.consumers(one)} - names
            check(not more, f"{where}: {', '.join(sorted(more or ()))} reads {one.name} as well")
        for one in inside:
            axis = (one.op.reduce_axes or one.op.axes)[-1]
            op = replace(one.op, guards=(*one.op.guards, (axis.var, imin(axis.extent, limit))))
            state = state.with_stage(replace(default_stage(op, one.scope), at=one.at))
        return state


def can_end_rows(state: State, stage: Stage) -> bool:
    """Whether `WithinReach` has anything to end of the sum `stage`."""
    weights = _weights(state, stage)
    return weights is not None and _end_of_row(state, weights) is not None


def _weights(state: State, stage: Stage) -> Stage | None:
    """What a sum over the columns of rows multiplies values by."""
    op = stage.op
    if op.reducer is None or not op.reducer.is_sum or len(op.reduce_axes) != 1 or op.guards:
        return None
    place = (*(a.var for a in op.axes[:-1]), op.reduce_axes[0].var)
    makers = [m for x in op.loads if x.indices == place and (m := state.producer(x.buffer)) is not None]
    return makers[0] if len(makers) == 1 and makers[0].op.is_elementwise else None


def _end_of_row(state: State, stage: Stage) -> int | None:
    """Where columns end that a stage has values of, or reduces, counted from the row: 1 or more; None where none do.

    What comes after is -inf, or an exponential of it: nothing to a maximum, or to a sum.
    """
    op = stage.op
    if len(op.body) != 1 or len(op.all_axes) < 2 or len(op.reduce_axes) > 1 or op.guards or state.is_output(stage):
        return None
    if op.recurrence is not None:
        return None
    row, column = (a.var for a in op.all_axes[-2:])
    value = expanded(state, op.body[0])
    value = value.a if isinstance(value, Cast) else value
    is_power = isinstance(value, Call) and value.fn in ("exp", "exp_negative")
    if isinstance(value, Call) and is_power:
        difference = value.children[0]
        if not isinstance(difference, Binary) or difference.op != "sub" or column in free_vars(difference.b):
            return None
        value = difference.a
    if op.reducer is not None and not (op.reducer.is_sum if is_power else op.reducer.is_max):
        return None
    found = reach(value, row, column, Const(-math.inf, value.dtype))
    if found is None or not isinstance(found.end, Const) or found.end.value < 1:
        return None
    return found.end.number


def _end_of_block(where: str, root: Stage, rows: StageAxis, loop: str) -> Expr:
    """The end of the rows of an iteration of a loop along them, in loops of `root`."""
    parts = root.loop(loop).parts
    check(len(parts) == 1 and parts[0][0] == rows.name, f"{where}: the loop is not along {rows.name} alone")
    end: Expr = root.stride(rows.name, parts[0][1])
    for outer in root.loops[: root.position(loop) + 1]:
        for axis, level in outer.parts:
            check(axis != rows.name or len(outer.parts) == 1, f"{where}: {outer.name} is fused")
            end = end + Var(f"{root.name}.{outer.name}") * root.stride(axis, level) if axis == rows.name else end
    return imin(rows.extent, end)
