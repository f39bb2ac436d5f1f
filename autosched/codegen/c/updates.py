"""Stores in C: assignments, and updates of reductions by operators such as `+=` or by functions."""

from __future__ import annotations

from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.ir.expr import Binary, Expr, Load, Var
from autosched.ir.stmt import Reducer, Shuffle, Store
from autosched.ir.visit import substitute


def compound(reducer: Reducer) -> str | None:
    """Return the compound assignment operator of a reducer, `+=` or `*=`; None for other reducers."""
    result = reducer.results[0]
    return {"add": "+=", "mul": "*="}.get(result.op) if is_plain(reducer) and isinstance(result, Binary) else None


def is_plain(reducer: Reducer) -> bool:
    """Return whether the reducer is one operation on its two operands."""
    result = reducer.results[0]
    return len(reducer.results) == 1 and set(result.children) == {reducer.lhs[0], reducer.rhs[0]}


def assign(stmt: Store | Shuffle, values: list[str], c: Expressions, text: Text) -> None:
    """Emit the assignment of values to the statement's buffers; all are computed before any is written."""
    targets = _targets(stmt, c)
    if len(targets) == 1:
        text.line(f"{targets[0]} = {values[0]};")
        return
    with text.block():
        names = [text.name("t") for _ in values]
        for buffer, name, value in zip(stmt.buffers, names, values, strict=True):
            text.line(f"const {c.type(c.buffers[buffer][0].dtype)} {name} = {value};")
        for target, name in zip(targets, names, strict=True):
            text.line(f"{target} = {name};")


def combine(stmt: Store, reducer: Reducer, c: Expressions, text: Text) -> None:
    """Emit the reducer's results of old and new values; all are computed before any is written."""
    targets = _targets(stmt, c)
    if len(targets) == 1 and is_plain(reducer) and isinstance(stmt.values[0], (Load, Var)):
        old = Load(stmt.buffers[0], stmt.indices, stmt.values[0].dtype)
        operands: dict[Expr, Expr] = {reducer.lhs[0]: old, reducer.rhs[0]: stmt.values[0]}
        text.line(f"{targets[0]} = {c.text(substitute(reducer.results[0], operands))};")
        return
    with text.block():
        for side, texts in ((reducer.lhs, targets), (reducer.rhs, [c.text(v) for v in stmt.values])):
            for var, value in zip(side, texts, strict=True):
                c.variables[var] = text.name(var.name)
                text.line(f"const {c.type(var.dtype)} {c.variables[var]} = {value};")
        results = [c.text(r) for r in reducer.results]
        for target, result in zip(targets, results, strict=True):
            text.line(f"{target} = {result};")


def _targets(stmt: Store | Shuffle, c: Expressions) -> list[str]:
    return [c.element(b, stmt.indices) for b in stmt.buffers]
