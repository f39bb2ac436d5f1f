"""Running reductions: over all elements up to each one.

    Y[i] = sum over k of (X[k] where k <= i, else 0)

te has no other way to write them than under such a condition, k <= i, k < i, k >= i or k > i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

from autosched.ir.conditions import ORDERINGS, conjuncts, given, leaves_identity
from autosched.ir.expr import INDEX, Binary, Expr, Select, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Reducer
from autosched.ir.visit import free_vars, loads, subexpressions, substitute
from autosched.te.tensor import ComputeOp

_FACING = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt"}


class _Axis(Protocol):
    @property
    def var(self) -> Var: ...


class _Stage(Protocol):
    """A stage of a graph, or of a schedule."""

    @property
    def axes(self) -> tuple[_Axis, ...]: ...
    @property
    def reduce_axes(self) -> tuple[_Axis, ...]: ...
    @property
    def body(self) -> tuple[Expr, ...]: ...
    @property
    def reducer(self) -> Reducer | None: ...


@dataclass(frozen=True)
class Running:
    """The reduction of `term` over those values of the reduce axis `k` with `k op i`, `i` a spatial axis that `term`
    does not know; both are numbers of axes."""

    k: int
    i: int
    op: str
    term: Expr

    @property
    def backwards(self) -> bool:
        """Whether it is over what follows."""
        return self.op in ("ge", "gt")

    @property
    def strict(self) -> bool:
        """Whether element i is no part of result i."""
        return self.op in ("lt", "gt")


def running(op: _Stage) -> Running | None:
    """What the stage reduces element by element; None for all other stages."""
    if op.reducer is None or len(op.body) != 1:
        return None
    return next(_found(op, op.body[0], op.reducer), None)


def _found(op: _Stage, value: Expr, reducer: Reducer) -> Iterator[Running]:
    spatial, reduced = ([a.var for a in axes] for axes in (op.axes, op.reduce_axes))
    selects = (e for e in subexpressions(value) if isinstance(e, Select))
    for condition in dict.fromkeys(c for e in selects for c in conjuncts(e.cond)):
        pair = _compared(condition, spatial, reduced)
        if pair is not None and leaves_identity((value,), reducer, condition):
            k, i, order = pair
            term = given(value, {condition})
            if spatial[i] not in free_vars(term):
                yield Running(k, i, order, term)


def _compared(condition: Expr, spatial: list[Var], reduced: list[Var]) -> tuple[int, int, str] | None:
    """(k, i, op) of a comparison  k op i  of two axes."""
    if not (isinstance(condition, Binary) and condition.op in ORDERINGS and condition.a.dtype == INDEX):
        return None
    if loads(condition):
        return None
    form = Simplifier({}).affine(condition.a - condition.b)
    steps = dict(form.terms)
    k, i = (next((n for n, v in enumerate(axes) if v in steps), None) for axes in (reduced, spatial))
    if k is None or i is None or len(steps) != 2 or steps[reduced[k]] * steps[spatial[i]] != -1:
        return None
    op, shift = condition.op, form.constant
    if steps[reduced[k]] < 0:
        op, shift = _FACING[op], -shift
    return next(((k, i, o) for o in ORDERINGS if _at_least(o, 0) == _at_least(op, shift)), None)


def _at_least(op: str, shift: int) -> tuple[bool, int]:
    """k - i + shift op 0, as k - i >= or <= a number."""
    return op in ("ge", "gt"), {"ge": 0, "gt": 1, "le": 0, "lt": -1}[op] - shift


def elements(op: ComputeOp, found: Running, name: str) -> ComputeOp:
    """The stage of what is reduced, over the axes of the whole with k instead of i: what else it is reduced over is so
    for each element before."""
    k, i = op.reduce_axes[found.k], op.axes[found.i]
    axes = tuple(replace(k, reduce=False) if a is i else a for a in op.axes)
    others = tuple(a for a in op.reduce_axes if a is not k)
    return ComputeOp(name, axes, others, (found.term,), op.reducer if others else None, op.inputs)


def combined(reducer: Reducer, parts: list[Expr]) -> Expr:
    """What the reducer of one operand makes of several."""
    (x,), (y,), (result,) = reducer.lhs, reducer.rhs, reducer.results
    return reduce(lambda a, b: substitute(result, {x: a, y: b}), parts)
