"""Step WriteOut: a reduction of few terms becomes an expression, so that its stage is an elementwise one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod

from autosched.ir.expr import INDEX, Const, Expr
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import is_number, subexpressions, substitute
from autosched.schedule.stage import StageOp, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import check_untouched

MOST_TERMS = 32  # of a reduction that is written out
MOST_WRITTEN = 1024  # nodes of all terms together


@dataclass(frozen=True)
class WriteOut:
    """S[i] = sum over k < 3 of X[i + k]  ->  S[i] = X[i] + X[i + 1] + X[i + 2], in the order of the reduction's loops.

    Refused for all but what `can_write_out`."""

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"write_out({self.stage})"
        check_untouched(where, state, stage)
        limits = f"at most {MOST_TERMS} terms and {MOST_WRITTEN} nodes, each combined once, without guards"
        check(can_write_out(stage.op), f"{where}: only a reduction of {limits}, can be written out")
        return state.with_stage(replace(default_stage(_written_out(stage.op), stage.scope), at=stage.at))


def can_write_out(op: StageOp) -> bool:
    """Return whether the operation is a reduction of few terms, whose combination has what came before once: twice, as
    in argmax, every term would double the expression."""
    if op.reducer is None or op.guards or not all(is_number(a.extent) for a in op.reduce_axes):
        return False
    if any(sum(_occurrences(result, before) for result in op.reducer.results) > 1 for before in op.reducer.lhs):
        return False
    terms = prod(_lengths(op))
    nodes = sum(len(list(subexpressions(v))) for v in op.body)
    return 0 < terms <= MOST_TERMS and terms * nodes <= MOST_WRITTEN


def _lengths(op: StageOp) -> list[int]:
    return [a.extent.number for a in op.reduce_axes if isinstance(a.extent, Const)]


def _occurrences(expr: Expr, node: Expr) -> int:
    return 1 if expr is node else sum(_occurrences(child, node) for child in expr.children)


def _written_out(op: StageOp) -> StageOp:
    assert op.reducer is not None
    simplify = Simplifier({a.var: (0, a.extent.number - 1) for a in op.axes if isinstance(a.extent, Const)})
    places = product(*map(range, _lengths(op)))
    total: tuple[Expr, ...] = ()
    for place in places:
        numbers: dict[Expr, Expr] = {a.var: Const(n, INDEX) for a, n in zip(op.reduce_axes, place, strict=True)}
        term = tuple(simplify(substitute(value, numbers)) for value in op.body)
        pairs = zip((*op.reducer.lhs, *op.reducer.rhs), (*total, *term), strict=bool(total))
        operands: dict[Expr, Expr] = dict(pairs)
        total = tuple(substitute(result, operands) for result in op.reducer.results) if total else term
    return replace(op, reduce_axes=(), body=total, reducer=None)
