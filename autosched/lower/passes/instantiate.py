"""Instantiation: substitutes integers for the parameters of a symbolic nest, and brings it into canonical form.

From here on every integer expression is simplified, loops of one iteration are gone, loops of none are gone with their
bodies, and equal extents are the same node.
"""

from __future__ import annotations

from collections.abc import Mapping

from autosched.ir.expr import INDEX, Const, Expr, Param, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import BLOCKS, THREADS, Allocate, Buffer, For, Func, If, Seq, Stmt, changed
from autosched.ir.symbolic import FOLDS, is_known
from autosched.ir.visit import is_number, map_buffer, map_exprs, substitute


def instantiate(func: Func, values: Mapping[str, int]) -> tuple[Func, Simplifier]:
    """Return the concrete function, and the simplifier with its loops' ranges.

    Raises KeyError for a parameter without a value (a bug of the caller).
    """
    params: dict[Expr, Expr] = {Param(name): Const(v, INDEX) for name, v in values.items()}
    memo: dict[Expr, Expr] = {}
    simplify = Simplifier()

    def buffers(symbolic: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(map_buffer(b, lambda e: simplify(substitute(e, params, memo))) for b in symbolic)

    def concrete(stmt: Stmt) -> Stmt:
        return simplify_stmt(map_exprs(stmt, lambda e: substitute(e, params, memo)), simplify) or Seq(())

    prepare = None if func.prepare is None else concrete(func.prepare)
    instance = changed(
        func, params=buffers(func.params), body=concrete(func.body), prepared=buffers(func.prepared), prepare=prepare
    )
    return instance, simplify


def simplify_stmt(stmt: Stmt, simplify: Simplifier, env: Mapping[Expr, Expr] | None = None) -> Stmt | None:
    """Return `stmt` with `env` substituted, expressions canonical, trivial loops gone; None if nothing remains."""
    mapping = dict(env or {})
    memo: dict[Expr, Expr] = {}

    def expr(e: Expr) -> Expr:
        return simplify(substitute(e, mapping, memo) if mapping else e)

    match stmt:
        case For():
            return _simplify_for(stmt, simplify, mapping, expr(stmt.extent), expr(stmt.bound))
        case Seq(stmts=stmts):
            kept = [s for s in (simplify_stmt(x, simplify, mapping) for x in stmts) if s is not None]
            flat = [y for x in kept for y in (x.stmts if isinstance(x, Seq) else (x,))]
            return flat[0] if len(flat) == 1 else Seq(tuple(flat)) if flat else None
        case If():
            cond = expr(stmt.cond)
            then = simplify_stmt(stmt.then, simplify, mapping)
            other = None if stmt.otherwise is None else simplify_stmt(stmt.otherwise, simplify, mapping)
            if isinstance(cond, Const):
                return then if cond.value else other
            return If(cond, then or Seq(()), other) if then or other else None
        case Allocate(buffer=buffer, body=body):
            inner = simplify_stmt(body, simplify, mapping)
            return None if inner is None else Allocate(map_buffer(buffer, expr), inner)
    return map_exprs(stmt, expr)


def _simplify_for(stmt: For, simplify: Simplifier, env: dict[Expr, Expr], extent: Expr, bound: Expr) -> Stmt | None:
    if isinstance(extent, Const) and is_known("le", extent.number, 0):
        return None
    if isinstance(extent, Const) and is_known("eq", extent.number, 1):
        inner = simplify_stmt(stmt.body, simplify, {**env, stmt.var: Const(0, INDEX)})
        is_bound = stmt.kind in BLOCKS or stmt.kind in THREADS  # a loop of one block still marks a kernel
        is_ring = stmt.overlap is not None and stmt.overlap.by_tiles  # a loop of one iteration still has a producer
        kept = (is_bound or is_ring) and inner is not None
        return changed(stmt, extent=extent, bound=extent, body=inner) if kept else inner
    assert isinstance(bound, Const), f"the bound {bound} of loop {stmt.var} is not a number"
    if is_number(extent) or (isinstance(extent, Const) and not is_number(bound)):
        bound = extent
    var: Var = stmt.var
    _, old = simplify.ranges.get(var, (0, -1))
    simplify.ranges[var] = (0, FOLDS["max"](old, bound.number - 1))
    body = simplify_stmt(stmt.body, simplify, env)
    return None if body is None else changed(stmt, extent=extent, bound=bound, body=body)
