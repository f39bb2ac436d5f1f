"""Prefix scans of the reference, recognised by rules of its own.

    Y[i] = sum over k of (X[k] if k <= i else 0)

Point by point such a stage takes n * n operations, each result from the one before takes n. The optimiser recognises
scans as well (`te.rewrites.prefix_scan`); the two share nothing, so that a false match there is a wrong kernel here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeGuard

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Const, Expr, Select, Var
from autosched.ir.stmt import Reducer
from autosched.ir.visit import free_vars
from autosched.te.tensor import ComputeOp

_REVERSED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt"}  # of both sides exchanged
_OPPOSITE = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le"}  # of a condition that does not hold
_CLOSED = {("le", 0): "le", ("le", -1): "lt", ("lt", 0): "lt", ("lt", 1): "le",
           ("ge", 0): "ge", ("ge", 1): "gt", ("gt", 0): "gt", ("gt", -1): "ge"}  # fmt: skip # k - i op n  as  k op i


@dataclass(frozen=True)
class Scan:
    """The reduction of `term` over those values of the reduce axis number `k` with `k op i`, where `i` is the number of
    a spatial axis that `term` does not depend on."""

    k: int
    i: int
    op: str
    term: Expr

    @property
    def backwards(self) -> bool:
        """Whether it is over the elements that follow."""
        return self.op in ("ge", "gt")

    @property
    def strict(self) -> bool:
        """Whether element i is no part of result i."""
        return self.op in ("lt", "gt")

    def term_stage(self, op: ComputeOp) -> ComputeOp:
        """The stage of what is scanned, over the axes of `op` with k instead of i; over its other reduce axes it is
        reduced already."""
        k, i = op.reduce_axes[self.k], op.axes[self.i]
        axes = tuple(replace(k, reduce=False) if axis is i else axis for axis in op.axes)
        others = tuple(axis for axis in op.reduce_axes if axis is not k)
        return ComputeOp(op.name, axes, others, (self.term,), op.reducer if others else None, op.inputs)


def find_scan(op: ComputeOp) -> Scan | None:
    """The scan that a stage is: its value, where none of some conditions fails, is a term that does not know i, and the
    reducer's identity elsewhere. None for all other stages."""
    if op.reducer is None or len(op.body) != 1:
        return None
    conditions, term = _guarded(op.body[0], op.reducer)
    for n, condition in enumerate(conditions):
        axes = _ordered(condition, op)
        rest = [*conditions[:n], *conditions[n + 1 :]]
        if axes is None or any(op.axes[axes[1]].var in free_vars(e) for e in (term, *rest)):
            continue
        for other in reversed(rest):  # the outer ones keep the inner ones from reading outside of a tensor
            term = Select(other, term, op.reducer.identity[0])
        return Scan(*axes, term)
    return None


def _guarded(value: Expr, reducer: Reducer) -> tuple[list[Expr], Expr]:
    """The conditions under which a value is not the reducer's identity, and what it is there."""
    conditions: list[Expr] = []
    while isinstance(value, Select):
        if _is_identity(value.b, reducer):
            conditions += _parts(value.cond)
            value = value.a
        elif _is_identity(value.a, reducer) and _has_opposite(value.cond):
            conditions.append(Binary(_OPPOSITE[value.cond.op], value.cond.a, value.cond.b))
            value = value.b
        else:
            break
    return conditions, value


def _has_opposite(condition: Expr) -> TypeGuard[Binary]:
    """Whether it is an ordering of integers; of floats neither an ordering nor its opposite holds for NaN."""
    return isinstance(condition, Binary) and condition.op in _OPPOSITE and not DTYPES[condition.a.dtype].is_float


def _is_identity(value: Expr, reducer: Reducer) -> bool:
    start = reducer.identity[0]
    return isinstance(value, Const) and value.dtype == start.dtype and value.value == start.value


def _parts(condition: Expr) -> list[Expr]:
    if isinstance(condition, Binary) and condition.op == "and":
        return [*_parts(condition.a), *_parts(condition.b)]
    return [condition]


def _ordered(condition: Expr, op: ComputeOp) -> tuple[int, int, str] | None:
    """(k, i, op) of a condition that is `k op i` of a reduce axis and a spatial one, by their numbers."""
    if not (isinstance(condition, Binary) and condition.op in _REVERSED):
        return None
    left, right = _linear(condition.a), _linear(condition.b)
    if left is None or right is None:
        return None
    steps = {var: left.get(var, 0) - right.get(var, 0) for var in {*left, *right}}
    constant = steps.pop(None, 0)
    steps = {var: step for var, step in steps.items() if step}
    for k, reduce_axis in enumerate(op.reduce_axes):
        for i, axis in enumerate(op.axes):
            for sign in (1, -1):
                if steps == {reduce_axis.var: sign, axis.var: -sign}:
                    order = condition.op if sign == 1 else _REVERSED[condition.op]
                    closed = _CLOSED.get((order, -sign * constant))
                    return None if closed is None else (k, i, closed)
    return None


def _linear(e: Expr) -> Mapping[Var | None, int] | None:
    """The steps of an index along its variables, and under None its constant; None for what is not linear."""
    match e:
        case Const(value=int(value)):
            return {None: value}
        case Var():
            return MappingProxyType({e: 1})
        case Binary(op="add" | "sub" as op, a=a, b=b):
            left, right, sign = _linear(a), _linear(b), 1 if op == "add" else -1
            if left is None or right is None:
                return None
            return {var: left.get(var, 0) + sign * right.get(var, 0) for var in (*left, *right)}
        case Binary(op="mul", a=a, b=Const(value=int(factor))) | Binary(op="mul", a=Const(value=int(factor)), b=a):
            inner = _linear(a)
            return None if inner is None else {var: factor * step for var, step in inner.items()}
    return None
