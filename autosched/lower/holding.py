"""What all iterations of a loop over vectors read is read once, before it.

    for j: out[i, j] = power[i, j] / total[i]   ->   t = total[i]; for j: out[i, j] = power[i, j] / t

LLVM moves what depends on registers alone out of a loop, such as the division 1 / t, but no load past a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosched.ir.dots import Dot, Word
from autosched.ir.expr import INDEX, Const, Expr, Load, Select
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, If, Scope, Seq, Stmt, Store, walk
from autosched.ir.visit import free_vars, rebuild

MOST = 4  # registers that a loop may take for it
_FIRST = (Const(0, INDEX),)


def hold_values(stmt: Stmt) -> Stmt:
    """`stmt`, concrete and in canonical form, with such values in registers."""
    locals_ = {s.buffer.name for s in walk(stmt) if isinstance(s, Allocate) and s.buffer.scope is Scope.LOCAL}
    return _held(stmt, frozenset(locals_))


def _held(stmt: Stmt, names: frozenset[str]) -> Stmt:
    match stmt:
        case For() if _is_over_vectors(stmt):
            return _with_registers(stmt, names)
        case For(body=body) | Allocate(body=body):
            return replace(stmt, body=_held(body, names))
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
    found = dict.fromkeys(x for s in stores for v in s.values for x in _always_read(v))
    fixed = [x for x in found if x.buffer in names - written and not any(free_vars(i) & moving for i in x.indices)]
    if not 0 < len(fixed) <= MOST:
        return loop
    result: Stmt = _renamed(loop, {x: Load(_name(x, n), _FIRST, x.dtype) for n, x in enumerate(fixed)})
    result = Seq((*(Store((_name(x, n),), _FIRST, (x,), None, x.buffer) for n, x in enumerate(fixed)), result))
    for n, x in enumerate(fixed):
        result = Allocate(Buffer(_name(x, n), (Const(1, INDEX),), x.dtype, Scope.REGISTER), result)
    return result


def _name(load: Load, number: int) -> str:
    return f"{load.buffer}.held{number or ''}"


def _always_read(value: Expr) -> Iterator[Load]:
    """The loads that are there in every case, and that are no part of a word."""
    if isinstance(value, Load):
        yield value
    elif not isinstance(value, Select | Word | Dot):
        for child in value.children:
            yield from _always_read(child)


def _renamed(loop: For, held: dict[Load, Load]) -> For:
    def expr(e: Expr) -> Expr:
        if isinstance(e, Load) and e in held:
            return held[e]
        return rebuild(e, expr) if e.children and not isinstance(e, Load | Word | Dot) else e

    def go(stmt: Stmt) -> Stmt:
        match stmt:
            case For(body=body):
                return replace(stmt, body=go(body))
            case Seq(stmts=stmts):
                return Seq(tuple(go(s) for s in stmts))
            case Store(values=values):
                return replace(stmt, values=tuple(map(expr, values)))
        return stmt

    return replace(loop, body=go(loop.body))
