"""Truth values that are only moved, as the bytes that they are in memory: such tiles have the forms that bytes have."""

from __future__ import annotations

from dataclasses import replace

from autosched.ir.expr import Const, Expr, Load, Select, select
from autosched.ir.stmt import Allocate, For, If, Seq, Stmt, Store


def moves_as_bytes(stmt: Stmt) -> Stmt:
    """Return the statement with bytes in place of truth values that it moves."""
    match stmt:
        case Store(reducer=None, values=values):
            moved = tuple(map(_byte, values))
            return replace(stmt, values=tuple(v if b is None else b for v, b in zip(values, moved, strict=True)))
        case For() | Allocate():
            return replace(stmt, body=moves_as_bytes(stmt.body))
        case Seq(stmts=stmts):
            return Seq(tuple(map(moves_as_bytes, stmts)))
        case If(then=then, otherwise=other):
            return replace(stmt, then=moves_as_bytes(then), otherwise=None if other is None else moves_as_bytes(other))
    return stmt


def _byte(value: Expr) -> Expr | None:
    """Return an element, or a choice of some, as a byte; None for what is computed."""
    match value:
        case Load(buffer=name, indices=indices, dtype="bool"):
            return Load(name, indices, "uint8")
        case Const(value=number, dtype="bool"):
            return Const(int(number), "uint8")
        case Select(cond=cond, a=a, b=b):
            x, y = _byte(a), _byte(b)
            return None if x is None or y is None else select(cond, x, y)
    return None
