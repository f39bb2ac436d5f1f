"""Loop partitioning: conditions leave the hot loops. A register tile away from every border is written without them.

A padded read is select(0 <= h and h < H, X[h], 0). For a register tile the condition holds everywhere if
it holds at the ends of the ranges of the loops inside, which is one test per tile over the loops outside:

    tile            ->  if inside at both ends: tile with X[h]  else: tile at a border (borders.py)

A block of vectors that is no such tile (of a concatenation, a mask, a copy with padding) is treated alike. A select
with a single comparison holds nowhere in most of the other blocks, so these are written without it as well:

    block           ->  if j + 63 < n: block of A[j]  else if j >= n: block of B[j - n]  else: block of select(..)

A tile of whole rows whose reduction is written out touches a border wherever it lies. Then the test is about the other
dimensions, and what is left in the tile are comparisons of its unrolled loops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_

from autosched.ir.conditions import LIMITS, NEGATED, comparisons, given, outside
from autosched.ir.expr import INDEX, Binary, Const, Expr, Select, Var, binary
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import (
    BLOCKS,
    THREADS,
    Allocate,
    Barrier,
    For,
    ForKind,
    If,
    Scope,
    Seq,
    Shuffle,
    Stmt,
    Store,
    changed,
    walk,
)
from autosched.ir.visit import free_vars, map_exprs, subexpressions
from autosched.lower.passes.borders import settle_borders
from autosched.lower.passes.instantiate import simplify_stmt


def partition_interior(stmt: Stmt, simplify: Simplifier) -> Stmt:
    """`stmt` with every register tile that has border conditions in an interior and a border version."""
    match stmt:
        case For(kind=kind) if kind in BLOCKS or kind in THREADS:
            return stmt  # threads of a block would part, with barriers inside; a predicated read costs them little
        case Allocate(buffer=buffer) if buffer.scope is Scope.REGISTER:
            return _tile(stmt, simplify)
        case For(kind=ForKind.UNROLL | ForKind.VECTORIZE):
            return _block(stmt, simplify)
        case Allocate() | For():
            return changed(stmt, body=partition_interior(stmt.body, simplify))
        case Seq(stmts=stmts):
            return Seq(tuple(partition_interior(s, simplify) for s in stmts))
        case If(cond=c, then=t, otherwise=o):
            return If(c, partition_interior(t, simplify), None if o is None else partition_interior(o, simplify))
    return stmt


def _tile(tile: Stmt, simplify: Simplifier) -> Stmt:
    if any(isinstance(s, (Barrier, Shuffle)) for s in walk(tile)):
        return tile  # all threads of a block must take the same way
    loops = [s for s in walk(tile) if isinstance(s, For)]
    found = comparisons(s for s in walk(tile) if isinstance(s, Store))
    worst = {c: _worst(c, {loop.var for loop in loops}, simplify) for c in found}
    known: set[Expr] = {c for c, w in worst.items() if not (isinstance(w, Const) and not w.value)}
    bordered = settle_borders(tile, simplify)
    is_written_out = not any(loop.reduce and loop.kind is ForKind.SERIAL for loop in loops)
    if not known or (len(known) < len(found) and not is_written_out):
        return bordered
    free = simplify_stmt(map_exprs(tile, lambda e: given(e, known)), simplify)
    assert free is not None
    inside = reduce(and_, (worst[c] for c in found if c in known))
    return free if isinstance(inside, Const) else If(inside, free, bordered)


def _block(block: Stmt, simplify: Simplifier) -> Stmt:
    """Vectors that are stored as they are computed, without the conditions that all or none of them meet."""
    loops = {s.var for s in walk(block) if isinstance(s, For)}
    stores = [s for s in walk(block) if isinstance(s, Store)]
    found = comparisons(stores)
    if not any(free_vars(c) & loops for c in found) or any(s.reducer is not None for s in stores):
        return block
    inside = reduce(and_, (_worst(c, loops, simplify) for c in found))
    rest, first = block, min(found, key=lambda c: bool(free_vars(c) & loops))
    if any(_is_alone(v, first) for s in stores for v in s.values):
        fails = _worst(Binary(NEGATED[first.op], first.a, first.b), loops, simplify)
        if not free_vars(first) & loops:
            rest = _block(_without(block, lambda e: given(e, {first}), simplify), simplify)
        rest = _versions(fails, _without(block, lambda e: outside(e, first), simplify), rest, simplify)
    return _versions(inside, _without(block, lambda e: given(e, set(found)), simplify), rest, simplify, again=False)


def _is_alone(value: Expr, comparison: Expr) -> bool:
    """Whether some select has the comparison as its condition."""
    return any(isinstance(e, Select) and e.cond is comparison for e in subexpressions(value))


def _without(block: Stmt, change: Callable[[Expr], Expr], simplify: Simplifier) -> Stmt:
    found = simplify_stmt(map_exprs(block, change), simplify)
    assert found is not None
    return found


def _versions(cond: Expr, then: Stmt, otherwise: Stmt, simplify: Simplifier, again: bool = True) -> Stmt:
    """`then`, with conditions of its own if looked at `again`, where `cond` holds."""
    if isinstance(cond, Const) and not cond.value:
        return otherwise
    then = _block(then, simplify) if again else then
    return then if isinstance(cond, Const) else If(cond, then, otherwise)


def _worst(cond: Binary, inner: set[Var], simplify: Simplifier) -> Expr:
    """A condition over the outer loops that makes `cond` hold for all values of the inner ones."""
    at_least, limit = LIMITS[cond.op]
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
