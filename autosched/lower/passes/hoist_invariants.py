"""Loop-invariant code motion: loads and computations that all vectors of a row share are hoisted.

    for j: out[i, j] = x[i, j] * rsqrt(squares[i] / n)   ->   t = rsqrt(squares[i] / n); for j: out[i, j] = x[i, j] * t

LLVM moves no load past a store, and of computations on registers alone some divisions, but none with a root.
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

MOST = 8  # registers for hoisted values in a loop
_FIRST = (Const(0, INDEX),)


@dataclass(frozen=True)
class _Known:
    """Buffers whose elements may be kept in registers: `local` ones, and `inputs` at loop-invariant indices."""

    local: frozenset[str]
    inputs: frozenset[str]

    def without(self, written: set[str]) -> _Known:
        return _Known(self.local - written, self.inputs - written)

    def has(self, load: Load) -> bool:
        return load.buffer in self.local or (load.buffer in self.inputs and _is_at_fixed_place(load))


def hoist_invariants(stmt: Stmt, inputs: frozenset[str] = frozenset()) -> Stmt:
    """Return `stmt`, concrete and canonical, with invariants in registers. `inputs`: buffers that nothing writes."""
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
    """Whether the loop is serial and contains only loops over vectors and stores."""
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
    fixed = [x for x in found if runs or all(map(_is_at_fixed_place, loads(x)))]  # safe to load without an iteration
    if not 0 < len(fixed) <= MOST:
        return changed(loop, body=_held(loop.body, known))  # an inner loop may have invariants
    result: Stmt = _renamed(loop, {x: Load(_name(x, n), _FIRST, x.dtype) for n, x in enumerate(fixed)})
    before = (Store((_name(x, n),), _FIRST, (x,), None, loads(x)[0].buffer) for n, x in enumerate(fixed))
    result = Seq((*before, result))
    for n, x in enumerate(fixed):
        result = Allocate(Buffer(_name(x, n), (Const(1, INDEX),), x.dtype, Scope.REGISTER), result)
    return result


def _name(value: Expr, number: int) -> str:
    return f"{loads(value)[0].buffer}.held{number or ''}"


def _standing(value: Expr, known: _Known, moving: set[Var], seen: set[Expr]) -> Iterator[Expr]:
    """Yield the largest invariant subexpressions of `value` that are always computed and not inside a word, made of
    `known` elements and constants; without those below nodes in `seen`."""
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
    """Whether all loads are integers of 8 bits: their conversions are cheap, and `integral_floats` needs the loads to
    bound the values."""
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
