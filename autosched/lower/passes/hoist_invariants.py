"""What all iterations of a loop over vectors read, and what becomes of that alone, is computed once, before it.

    for j: out[i, j] = x[i, j] * rsqrt(squares[i] / n)   ->   t = rsqrt(squares[i] / n); for j: out[i, j] = x[i, j] * t

LLVM moves no load past a store, and of what depends on registers alone some divisions, but no chain with a root in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Const, Expr, Load, Select, Var
from autosched.ir.instructions.dots import Dot, Word
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, If, Scope, Seq, Stmt, Store, changed, walk
from autosched.ir.visit import free_vars, loads, rebuild, subexpressions

MOST = 8  # registers that a loop may take for it
_FIRST = (Const(0, INDEX),)


@dataclass(frozen=True)
class _Known:
    """Buffers of which elements may be held: local ones, and `inputs`, of which only those at a fixed place."""

    local: frozenset[str]
    inputs: frozenset[str]

    def without(self, written: set[str]) -> _Known:
        return _Known(self.local - written, self.inputs - written)

    def has(self, load: Load) -> bool:
        return load.buffer in self.local or (load.buffer in self.inputs and _is_at_fixed_place(load))


def hoist_invariants(stmt: Stmt, inputs: frozenset[str] = frozenset()) -> Stmt:
    """`stmt`, concrete and in canonical form, with such values in registers. `inputs`: buffers that nobody writes."""
    locals_ = {s.buffer.name for s in walk(stmt) if isinstance(s, Allocate) and s.buffer.scope is Scope.LOCAL}
    return _held(stmt, _Known(frozenset(locals_), inputs))


def _held(stmt: Stmt, known: _Known) -> Stmt:
    match stmt:
        case For() if _is_over_vectors(stmt):
            return _with_registers(stmt, known)
        case For(body=body) | Allocate(body=body):
            return changed(stmt, body=_held(body, known))
        case Seq(stmts=stmts):
            return Seq(tuple(_held(s, known) for s in stmts))
        case If(cond=cond, then=then, otherwise=other):
            return If(cond, _held(then, known), None if other is None else _held(other, known))
    return stmt


def _is_over_vectors(loop: For) -> bool:
    """A serial loop over vectors and stores alone."""
    if loop.kind is not ForKind.SERIAL or loop.overlap is not None:
        return False
    inner = [s for s in walk(loop.body) if not isinstance(s, Seq | Store)]
    return bool(inner) and all(isinstance(s, For) and s.kind in (ForKind.VECTORIZE, ForKind.SERIAL) for s in inner)


def _with_registers(loop: For, known: _Known) -> Stmt:
    stores = [s for s in walk(loop) if isinstance(s, Store)]
    moving = {s.var for s in walk(loop) if isinstance(s, For)}
    left = known.without({b for s in stores for b in s.buffers})
    seen: set[Expr] = set()
    found = dict.fromkeys(x for s in stores for v in s.values for x in _standing(v, left, moving, seen))
    runs = isinstance(loop.extent, Const)
    fixed = [x for x in found if runs or all(map(_is_at_fixed_place, loads(x)))]  # which is there in any case
    if not 0 < len(fixed) <= MOST:
        return changed(loop, body=_held(loop.body, known))  # perhaps there is something for an inner loop
    result: Stmt = _renamed(loop, {x: Load(_name(x, n), _FIRST, x.dtype) for n, x in enumerate(fixed)})
    before = (Store((_name(x, n),), _FIRST, (x,), None, loads(x)[0].buffer) for n, x in enumerate(fixed))
    result = Seq((*before, result))
    for n, x in enumerate(fixed):
        result = Allocate(Buffer(_name(x, n), (Const(1, INDEX),), x.dtype, Scope.REGISTER), result)
    return result


def _name(value: Expr, number: int) -> str:
    return f"{loads(value)[0].buffer}.held{number or ''}"


def _standing(value: Expr, known: _Known, moving: set[Var], seen: set[Expr]) -> Iterator[Expr]:
    """The largest parts of `value`, computed in every case and no part of a word, that are made of `known` elements
    and constants, none of which moves; without those below nodes that have been `seen`."""
    if value in seen or isinstance(value, Select | Word | Dot):
        return
    seen.add(value)
    read = loads(value)
    chosen = any(isinstance(e, Select | Word | Dot) for e in subexpressions(value))
    if read and not chosen and all(map(known.has, read)) and not free_vars(value) & moving:
        yield from dict.fromkeys(read) if _is_of_bytes(read) else (value,)
    elif not isinstance(value, Load):
        for child in value.children:
            yield from _standing(child, known, moving, seen)


def _is_of_bytes(read: tuple[Load, ...]) -> bool:
    """Whether all that is read are integers of 8 bits: what is made of them takes a few instructions, and which
    integers it is made of tells `integral_floats` how large it is."""
    return all(DTYPES[x.dtype].is_integer and DTYPES[x.dtype].nbytes == 1 for x in read)


def _is_at_fixed_place(load: Load) -> bool:
    return not any(map(free_vars, load.indices))


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
