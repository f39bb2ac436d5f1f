"""Prefix scans and sliding windows: reductions over all elements up to each one, or over its neighbours.

    Y[i] = sum over k of (X[k] where k <= i, else 0)            Y[i] = sum over k of (X[k] where i - 9 < k <= i, else 0)

te has no other way to write the first ones than under such a condition, k <= i, k < i, k >= i or k > i.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

from autosched.ir.conditions import LIMITS, MIRRORED, conjuncts, given, is_ordering, leaves_identity
from autosched.ir.expr import Expr, Load, Select, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Reducer
from autosched.ir.visit import elements as elements_of
from autosched.ir.visit import free_vars, subexpressions, substitute
from autosched.te.tensor import ComputeOp, postorder


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
class ScanPattern:
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


@dataclass(frozen=True)
class Band:
    """The reduction of `term` over those values of the reduce axis `k` with first <= k - i <= last."""

    k: int
    i: int
    first: int
    last: int
    term: Expr


@dataclass(frozen=True)
class _Bound:
    """A comparison of two axes: k - i is at least `end`, or at most."""

    k: int
    i: int
    is_least: bool
    end: int


def find_prefix_scan(op: _Stage) -> ScanPattern | None:
    """What the stage reduces element by element; None for all other stages."""
    return next(_matches(op), None)


def _matches(op: _Stage) -> Iterator[ScanPattern]:
    for condition, bound in _bounds(op):
        order = next((o for o, limit in LIMITS.items() if limit == (bound.is_least, bound.end)), None)
        term = given(op.body[0], {condition})
        if order is not None and op.axes[bound.i].var not in free_vars(term):
            yield ScanPattern(bound.k, bound.i, order, term)


def band(op: _Stage) -> Band | None:
    """What the stage reduces around each element; None for all other stages."""
    bounds = list(_bounds(op))
    for condition, least in bounds:
        for other, most in bounds:
            if (least.k, least.i) == (most.k, most.i) and least.is_least and not most.is_least:
                term = given(op.body[0], {condition, other})
                if op.axes[least.i].var not in free_vars(term):
                    return Band(least.k, least.i, least.end, most.end, term)
    return None


def _bounds(op: _Stage) -> Iterator[tuple[Expr, _Bound]]:
    """Comparisons of a reduce axis with another one, outside of which nothing is reduced."""
    if op.reducer is None or len(op.body) != 1:
        return
    spatial, reduced = ([a.var for a in axes] for axes in (op.axes, op.reduce_axes))
    selects = (e for e in subexpressions(op.body[0]) if isinstance(e, Select))
    for condition in dict.fromkeys(c for e in selects for c in conjuncts(e.cond)):
        bound = _compared(condition, spatial, reduced)
        if bound is not None and leaves_identity(op.body, op.reducer, condition):
            yield condition, bound


def _compared(condition: Expr, spatial: list[Var], reduced: list[Var]) -> _Bound | None:
    if not is_ordering(condition):
        return None
    form = Simplifier({}).affine(condition.a - condition.b)
    steps = dict(form.terms)
    k, i = (next((n for n, v in enumerate(axes) if v in steps), None) for axes in (reduced, spatial))
    if k is None or i is None or len(steps) != 2 or steps[reduced[k]] * steps[spatial[i]] != -1:
        return None
    op, shift = condition.op, form.constant
    if steps[reduced[k]] < 0:
        op, shift = MIRRORED[op], -shift
    is_least, end = LIMITS[op]
    return _Bound(k, i, is_least, end - shift)


def elements(op: ComputeOp, pattern: ScanPattern | Band, name: str) -> ComputeOp:
    """The stage of what is reduced, over the axes of the whole with k instead of i: what else it is reduced over is so
    for each element before."""
    k, i = op.reduce_axes[pattern.k], op.axes[pattern.i]
    axes = tuple(replace(k, reduce=False) if a is i else a for a in op.axes)
    others = tuple(a for a in op.reduce_axes if a is not k)
    return ComputeOp(name, axes, others, (pattern.term,), op.reducer if others else None, op.inputs)


def combined(reducer: Reducer, parts: list[Expr]) -> Expr:
    """What the reducer of one operand makes of several."""
    (x,), (y,), (result,) = reducer.lhs, reducer.rhs, reducer.results
    return reduce(lambda a, b: substitute(result, {x: a, y: b}), parts)


def step_along(body: Iterable[Expr], k: Var, i: Var) -> tuple[int, int]:
    """How far one of `k`, and one of `i`, leads along the one index of all that is read at them: K and I where that is
    K k + I i + .., and so everywhere; zeros where they occur otherwise."""
    nodes = list(postorder(body))
    forms = [Simplifier({}).affine(x) for e in nodes if isinstance(e, Load) for x in e.indices if free_vars(x) & {k, i}]
    plain = all(isinstance(a, Var) or not free_vars(a) & {k, i} for f in forms for a, _ in f.terms)
    steps = {(dict(f.terms).get(k, 0), dict(f.terms).get(i, 0)) for f in forms}
    outside = any(e in (k, i) for value in body for e in elements_of(value))
    return steps.pop() if plain and len(steps) == 1 and not outside else (0, 0)
