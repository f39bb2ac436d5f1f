"""Causal bounds: the last index of a row up to which a condition allows values other than the least one."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.conditions import conjuncts, every
from autosched.ir.expr import Binary, Const, Expr, Select, Var, select
from autosched.ir.linear import ONE, linear
from autosched.ir.visit import free_vars, is_closed


@dataclass(frozen=True)
class Reach:
    """Only columns below row + `end`, a closed form, have other values than the least; there they are `value`."""

    end: Expr
    value: Expr


def reach(value: Expr, row: Var, column: Var, least: Const) -> Reach | None:
    """None where no condition on both says what ends a row; its end must move with the row, one by one."""
    if not isinstance(value, Select) or value.b is not least:
        return None
    conditions = list(conjuncts(value.cond))
    for n, condition in enumerate(conditions):
        end = _end(condition, row, column)
        if end is not None:
            rest = every([*conditions[:n], *conditions[n + 1 :]])
            return Reach(end, value.a if len(conditions) == 1 else select(rest, value.a, least))
    return None


def _end(condition: Expr, row: Var, column: Var) -> Expr | None:
    """X where the condition is column < row + X."""
    if not isinstance(condition, Binary) or condition.op not in ("lt", "le", "gt", "ge"):
        return None
    if not {row, column} <= free_vars(condition) or condition.a.dtype != row.dtype:
        return None
    low, high = (condition.a, condition.b) if condition.op in ("lt", "le") else (condition.b, condition.a)
    form = linear(high - low)
    is_plain = form.coefficient(row) is ONE and linear(low - high).coefficient(column) is ONE and len(form.terms) == 2
    if not is_plain or not is_closed(form.constant):
        return None
    return form.constant if condition.op in ("lt", "gt") else form.constant + 1
