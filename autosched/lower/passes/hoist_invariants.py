"""What all iterations of a loop over vectors read, and what becomes of that alone, is computed once, before it.

    for j: out[i, j] = x[i, j] * rsqrt(squares[i] / n)   ->   t = rsqrt(squares[i] / n); for j: out[i, j] = x[i, j] * t

LLVM moves no load past a store, and of what depends on registers alone some divisions, but no chain with a root in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from autosched.ir.dots import Dot, Word
from autosched.ir.expr import INDEX, Const, Expr, Load, Select, Var
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, If, Scope, Seq, Stmt, Store, changed, walk
from autosched.ir.visit import free_vars, loads, rebuild, subexpressions

MOST = 4  # registers that a loop may take for it
_FIRST = (Const(0, INDEX),)


def hoist_invariants(stmt: Stmt) -> Stmt:
    """`stmt`, concrete and in canonical form, with such values in registers."""
    locals_ = {s.buffer.name for s in walk(stmt) if isinstance(s, Allocate) and s.buffer.scope is Scope.LOCAL}
    return _held(stmt, frozenset(locals_))


def _held(stmt: Stmt, names: frozenset[str]) -> Stmt:
    match stmt:
        case For() if _is_over_vectors(stmt):
            return _with_registers(stmt, names)
        case For(body=body) | Allocate(body=body):
            return changed(stmt, body=_held(body, names))
        case Seq(stmts=stmts):
            return Seq(tuple(_held(s, names) for s in stmts))
        case If(cond=cond, then=then, otherwise=other):
            return If(cond, _held(then, names), None if other is None else _held(other, names))
    return stmt


def _is_over_vectors(loop: For) -> bool:
    """A serial loop that runs, over vectors and stores alone."""
    if loop.kind is not ForKind.SERIAL or loop.overlap is not None or not isinstance(loop.extent, Const):
        return False
    inner = [s for s in walk(loop.body) if not isinstance(s, Seq | Store)]
    return bool(inner) and all(isinstance(s, For) and s.kind in (ForKind.VECTORIZE, ForKind.SERIAL) for s in inner)


def _with_registers(loop: For, names: frozenset[str]) -> Stmt:
    stores = [s for s in walk(loop) if isinstance(s, Store)]
    moving = {s.var for s in walk(loop) if isinstance(s, For)}
    written = {b for s in stores for b in s.buffers}
    seen: set[Expr] = set()
    found = dict.fromkeys(x for s in stores for v in s.values for x in _standing(v, names - written, moving, seen))
    fixed = list(found)
    if not 0 < len(fixed) <= MOST:
        return changed(loop, body=_held(loop.body, names))  # perhaps there is something for an inner loop
    result: Stmt = _renamed(loop, {x: Load(_name(x, n), _FIRST, x.dtype) for n, x in enumerate(fixed)})
    before = (Store((_name(x, n),), _FIRST, (x,), None, loads(x)[0].buffer) for n, x in enumerate(fixed))
    result = Seq((*before, result))
    for n, x in enumerate(fixed):
        result = Allocate(Buffer(_name(x, n), (Const(1, INDEX),), x.dtype, Scope.REGISTER), result)
    return result


def _name(value: Expr, number: int) -> str:
    return f"{loads(value)[0].buffer}.held{number or ''}"


def _standing(value: Expr, names: frozenset[str], moving: set[Var], seen: set[Expr]) -> Iterator[Expr]:
    """The largest parts of `value`, computed in every case and no part of a word, that are made of loads from `names`
    and constants, none of which moves; without those below nodes that have been `seen`."""
    if value in seen or isinstance(value, Select | Word | Dot):
        return
    seen.add(value)
    read = loads(value)
    chosen = any(isinstance(e, Select | Word | Dot) for e in subexpressions(value))
    if read and not chosen and all(x.buffer in names for x in read) and not free_vars(value) & moving:
        yield value
    elif not isinstance(value, Load):
        for child in value.children:
            yield from _standing(child, names, moving, seen)


def _renamed(loop: For, held: dict[Expr, Load]) -> For:
    @cache
    def expr(e: Expr) -> Expr:
        if e in held:
            return held[e]
        return rebuild(e, expr) if e.children and not isinstance(e, Load | Word | Dot) else e

    def go(stmt: Stmt) -> Stmt:
        match stmt:
            case For(body=body):
                return changed(stmt, body=go(body))
            case Seq(stmts=stmts):
                return Seq(tuple(go(s) for s in stmts))
            case Store(values=values):
                return changed(stmt, values=tuple(map(expr, values)))
        return stmt

    return changed(loop, body=go(loop.body))
