"""Conditions leave the hot loops: a register tile away from every border is written without them.

A padded read is select(0 <= h and h < H, X[h], 0). For a register tile the condition holds everywhere if
it holds at the ends of the ranges of the loops inside, which is one test per tile over the loops outside:

    tile            ->  if inside at both ends: tile with X[h]  else: tile at a border (borders.py)
"""

from __future__ import annotations

from dataclasses import replace

from autosched.ir.expr import INDEX, Binary, Const, Expr, Select, Var, binary
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import BLOCKS, THREADS, Allocate, Barrier, For, If, Scope, Seq, Shuffle, Stmt, Store, walk
from autosched.ir.visit import free_vars, loads, map_exprs, rebuild, subexpressions
from autosched.lower.borders import settle_borders
from autosched.lower.instantiate import simplify_stmt

# comparison -> whether its difference a - b must stay at or above the limit, and that limit
_ATOMS = {"ge": (True, 0), "gt": (True, 1), "le": (False, 0), "lt": (False, -1)}


def specialise_interior(stmt: Stmt, simplify: Simplifier) -> Stmt:
    """`stmt` with every register tile that has border conditions in an interior and a border version."""
    match stmt:
        case For(kind=kind) if kind in BLOCKS or kind in THREADS:
            return stmt  # threads of a block would part, with barriers inside; a predicated read costs them little
        case Allocate(buffer=buffer) if buffer.scope is Scope.REGISTER:
            return _tile(stmt, simplify)
        case Allocate() | For():
            return replace(stmt, body=specialise_interior(stmt.body, simplify))
        case Seq(stmts=stmts):
            return Seq(tuple(specialise_interior(s, simplify) for s in stmts))
        case If(cond=c, then=t, otherwise=o):
            return If(c, specialise_interior(t, simplify), None if o is None else specialise_interior(o, simplify))
    return stmt


def _tile(tile: Stmt, simplify: Simplifier) -> Stmt:
    if any(isinstance(s, (Barrier, Shuffle)) for s in walk(tile)):
        return tile  # all threads of a block must take the same way
    inner = {s.var for s in walk(tile) if isinstance(s, For)}
    inside: Expr = Const(True, "bool")
    known: set[Expr] = set()
    for cond in _conditions(tile):
        worst = _worst(cond, inner, simplify)
        if worst is not None and cond not in known:
            known.add(cond)
            inside = inside & worst
    bordered = settle_borders(tile, simplify)
    if not known or (isinstance(inside, Const) and not inside.value):
        return bordered
    free = simplify_stmt(map_exprs(tile, lambda e: _without(e, known)), simplify)
    assert free is not None
    return free if isinstance(inside, Const) else If(inside, free, bordered)


def _conditions(tile: Stmt) -> list[Expr]:
    """The conditions of all selects in the tile's stores."""
    found: dict[Expr, None] = {}
    for stmt in walk(tile):
        if isinstance(stmt, Store):
            for value in stmt.values:
                found.update({e.cond: None for e in subexpressions(value) if isinstance(e, Select)})
    return list(found)


def _worst(cond: Expr, inner: set[Var], simplify: Simplifier) -> Expr | None:
    """A condition over the outer loops that makes `cond` hold for all values of the inner ones; None if unknown."""
    if isinstance(cond, Binary) and cond.op == "and":
        a, b = _worst(cond.a, inner, simplify), _worst(cond.b, inner, simplify)
        return None if a is None or b is None else a & b
    if not (isinstance(cond, Binary) and cond.op in _ATOMS and cond.a.dtype == INDEX) or loads(cond):
        return None  # a condition on data may itself be read under another one only
    at_least, limit = _ATOMS[cond.op]
    outer: Expr = Const(0, INDEX)
    form = simplify.affine(cond.a - cond.b)
    extreme = form.constant
    for atom, c in form.terms:
        if free_vars(atom) & inner:
            lo, hi = simplify.bounds(atom)
            extreme += min(lo * c, hi * c) if at_least else max(lo * c, hi * c)
        else:
            outer = outer + atom * c
    return simplify(binary("ge" if at_least else "le", outer + extreme, Const(limit, INDEX)))


def _without(expr: Expr, known: set[Expr]) -> Expr:
    """`expr` with the selects whose conditions are known to hold replaced by their first value."""
    if isinstance(expr, Select) and expr.cond in known:
        return _without(expr.a, known)
    return rebuild(expr, lambda e: _without(e, known)) if expr.children else expr
