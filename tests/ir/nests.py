"""Short words for building loop nests by hand in tests."""

from __future__ import annotations

from collections.abc import Sequence

from autosched.ir.expr import Const, Expr, Load, Var, binary, const, imax, select
from autosched.ir.stmt import Buffer, For, ForKind, Func, Reducer, Scope, Seq, Stmt, Store

F32, F64, I64 = "float32", "float64", "int64"
i, j, k = Var("i", I64), Var("j", I64), Var("k", I64)


def num(value: int) -> Const:
    return Const(value, I64)


def buffer(name: str, shape: Sequence[int | Expr], dtype: str = F32, scope: Scope = Scope.PARAM) -> Buffer:
    return Buffer(name, tuple(const(n) for n in shape), dtype, scope)


def loop(var: Var, extent: int | Expr, *body: Stmt, kind: ForKind = ForKind.SERIAL, bound: int | None = None) -> For:
    """`bound` may be left out where the extent is a constant."""
    return For(var, const(extent), const(extent if bound is None else bound), kind, seq(*body))


def seq(*stmts: Stmt) -> Stmt:
    return stmts[0] if len(stmts) == 1 else Seq(stmts)


def load(name: str, *indices: int | Expr, dtype: str = F32) -> Load:
    return Load(name, tuple(const(e) for e in indices), dtype)


def store(
    name: str, indices: Sequence[int | Expr], value: Expr, reducer: Reducer | None = None, stage: str = ""
) -> Store:
    return Store((name,), tuple(const(e) for e in indices), (value,), reducer, stage)


def reducer(op: str, dtype: str = F32, identity: float = 0) -> Reducer:
    x, y = Var("x", dtype), Var("y", dtype)
    return Reducer(op, (x,), (y,), (binary(op, x, y),), (Const(const(identity, dtype).value, dtype),))  # type: ignore[attr-defined]


def argmax(dtype: str = F32) -> Reducer:
    """(value, position) of the largest value, the smallest position among equals."""
    v, n, w, m = Var("v", dtype), Var("n", I64), Var("w", dtype), Var("m", I64)
    is_left = (v > w) | (v.equal(w) & (n < m))
    return Reducer("argmax", (v, n), (w, m), (imax(v, w), select(is_left, n, m)), (Const(-1e38, dtype), num(2**62)))


def func(inputs: Sequence[Buffer], outputs: Sequence[Buffer], *body: Stmt) -> Func:
    return Func("kernel", (*inputs, *outputs), len(outputs), seq(*body))
