"""Loop partitioning: interior register tiles without conditions, border tiles with them.

A padded read is select(0 <= h and h < H, X[h], 0). The condition holds in the whole register tile if it holds at the
ends of the ranges of the inner loops, which is one test per tile over the outer loops:

    tile            ->  if inside at both ends: tile with X[h]  else: border tile (borders.py)

A block of vectors outside of reductions (a concatenation, a mask, a padded copy) is partitioned too. A select with a
single comparison is false in most of the remaining blocks, so these have a version without it as well:

    block           ->  if j + 63 < n: block of A[j]  else if j >= n: block of B[j - n]  else: block of select(..)

A tile of whole rows whose reduction is unrolled always touches a border. The test is then about the other dimensions,
and comparisons of the unrolled loops remain in the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_

from autosched.ir.conditions import LIMITS, NEGATED, comparisons, given, outside
from autosched.ir.expr import INDEX, Binary, Const, Expr, Select, Var, const
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
from autosched.ir.symbolic import is_known
from autosched.ir.visit import free_vars, map_exprs, subexpressions
from autosched.lower.passes.borders import settle_borders
from autosched.lower.passes.instantiate import simplify_stmt
from autosched.lower.passes.path_conditions import PathConditions


def partition_interior(stmt: Stmt, simplify: Simplifier) -> Stmt:
    """Return `stmt` with an interior and a border version of every register tile that has border conditions."""
    return _partitioned(stmt, PathConditions(simplify))


def _partitioned(stmt: Stmt, path: PathConditions) -> Stmt:
    match stmt:
        case For(kind=kind) if kind in BLOCKS or kind in THREADS:
            return stmt  # threads of a block would diverge, with barriers inside; a predicated read costs little
        case Allocate(buffer=buffer) if buffer.scope is Scope.REGISTER:
            return _tile(stmt, path)
        case For(kind=ForKind.UNROLL | ForKind.VECTORIZE):
            return _block(stmt, path.simplify)
        case For():
            return changed(stmt, body=_partitioned(stmt.body, path.inside(stmt)))
        case Allocate():
            return changed(stmt, body=_partitioned(stmt.body, path))
        case Seq(stmts=stmts):
            return Seq(tuple(_partitioned(s, path) for s in stmts))
        case If(cond=c, then=t, otherwise=o):
            other = None if o is None else _partitioned(o, path.where(c, is_true=False))
            return If(c, _partitioned(t, path.where(c)), other)
    return stmt


def _tile(tile: Stmt, path: PathConditions) -> Stmt:
    if any(isinstance(s, (Barrier, Shuffle)) for s in walk(tile)):
        return tile  # all threads of a block must take the same branch
    simplify, loops = path.simplify, [s for s in walk(tile) if isinstance(s, For)]
    tests = comparisons(s for s in walk(tile) if isinstance(s, Store))
    worst = {c: _worst(c, {loop.var for loop in loops}, simplify) for c in tests}
    fails = {c for c, w in worst.items() if (not w.value if isinstance(w, Const) else path.decide(w) is False)}
    decided: set[Expr] = {c for c in tests if c not in fails}
    bordered = settle_borders(tile, path)
    is_written_out = not any(loop.reduce and loop.kind is ForKind.SERIAL for loop in loops)
    if not decided or (len(decided) < len(tests) and not is_written_out):
        return bordered
    free = simplify_stmt(map_exprs(tile, lambda e: given(e, decided)), simplify)
    assert free is not None
    open_tests = [w for c in tests if c in decided and (isinstance(w := worst[c], Const) or path.decide(w) is None)]
    inside = reduce(and_, open_tests, const(True, "bool"))
    return free if isinstance(inside, Const) else If(inside, free, bordered)


def _block(block: Stmt, simplify: Simplifier) -> Stmt:
    """Return versions of vectors that are stored once, without the conditions that all or none of them meet."""
    loops = {s.var for s in walk(block) if isinstance(s, For)}
    stores = [s for s in walk(block) if isinstance(s, Store)]
    tests = comparisons(stores)
    if not any(free_vars(c) & loops for c in tests) or any(s.reducer is not None for s in stores):
        return block
    inside = reduce(and_, (_worst(c, loops, simplify) for c in tests))
    remaining, first = block, min(tests, key=lambda c: bool(free_vars(c) & loops))
    if any(_is_alone(v, first) for s in stores for v in s.values):
        fails = _worst(Binary(NEGATED[first.op], first.a, first.b), loops, simplify)
        if not free_vars(first) & loops:
            remaining = _block(_without(block, lambda e: given(e, {first}), simplify), simplify)
        remaining = _versions(fails, _without(block, lambda e: outside(e, first), simplify), remaining, simplify)
    return _versions(
        inside, _without(block, lambda e: given(e, set(tests)), simplify), remaining, simplify, again=False
    )


def _is_alone(value: Expr, comparison: Expr) -> bool:
    """Whether the comparison is the whole condition of a select."""
    return any(isinstance(e, Select) and e.cond is comparison for e in subexpressions(value))


def _without(block: Stmt, change: Callable[[Expr], Expr], simplify: Simplifier) -> Stmt:
    changed_block = simplify_stmt(map_exprs(block, change), simplify)
    assert changed_block is not None
    return changed_block


def _versions(cond: Expr, then: Stmt, otherwise: Stmt, simplify: Simplifier, again: bool = True) -> Stmt:
    """Return `then` where `cond` holds, partitioned further with `again`; else `otherwise`."""
    if isinstance(cond, Const) and not cond.value:
        return otherwise
    then = _block(then, simplify) if again else then
    return then if isinstance(cond, Const) else If(cond, then, otherwise)


def _worst(cond: Binary, inner: set[Var], simplify: Simplifier) -> Expr:
    """Return a condition over the outer loops that makes `cond` hold for all values of the inner ones."""
    at_least, limit = LIMITS[cond.op]
    outer: Expr = Const(0, INDEX)
    form = simplify.affine(cond.a - cond.b)
    extreme = form.constant
    for atom, c in form.terms:
        if free_vars(atom) & inner:
            lo, hi = simplify.bounds(atom)
            extreme += (lo if is_known("gt", c, 0) is at_least else hi) * c
        else:
            outer = outer + atom * c
    return simplify(Binary("ge" if at_least else "le", outer + extreme, Const(limit, INDEX)))
