"""Tail specialisation: constant extents for unrolled and vectorised loops, without tests in hot code.

An extent min(T, X) is T on full tiles. Where X changes only by multiples of T, a partial tile always has the same size
r = X mod T. So

    register tile   ->  if X >= T: tile with extent T  else: tile with extent r  (none where X <= 0)
    reduction loop over v that changes X  ->  full iterations, then the last one with extent r

Where the remainder is not constant, a vectorised loop is masked and an unrolled one becomes serial, except for full
tiles of accumulators, which are only in registers there.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.expr import INDEX, Binary, Const, Expr, binary, imax, imin
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, For, ForKind, If, Scope, Seq, Stmt, changed, walk
from autosched.ir.visit import free_vars, map_exprs
from autosched.lower.passes.instantiate import simplify_stmt

_TILE_KINDS = (ForKind.UNROLL, ForKind.VECTORIZE)


@dataclass(frozen=True)
class Tail:
    """The extent min(tile, rest), and the size of a partial tile, None where that varies."""

    extent: Expr
    tile: int
    rest: Expr
    size: int | None


def specialise_tails(stmt: Stmt, simplify: Simplifier, loops: tuple[For, ...] = ()) -> Stmt:
    """Return `stmt`, which is inside `loops`, with the rules above applied everywhere."""

    def inside(body: Stmt) -> Stmt:
        return specialise_tails(body, simplify, loops)

    match stmt:
        case For(kind=ForKind.SERIAL | ForKind.PARALLEL):
            split = _partition(stmt, simplify) if stmt.reduce else None
            if split is not None:
                return inside(split)
            return changed(stmt, body=specialise_tails(stmt.body, simplify, (*loops, stmt)))
        case Seq(stmts=stmts):
            return Seq(tuple(inside(s) for s in stmts))
        case If(cond=c, then=t, otherwise=o):
            return If(c, inside(t), None if o is None else inside(o))
        case Allocate(buffer=b, body=body) if b.scope is not Scope.REGISTER:
            return Allocate(b, inside(body))
        case Allocate() | For():
            return _tile(stmt, simplify, loops)
    return stmt


def _tile(stmt: Stmt, simplify: Simplifier, loops: tuple[For, ...]) -> Stmt:
    tail = next(iter(_tails(stmt, simplify)), None)
    if tail is None:
        if isinstance(stmt, Allocate):
            return Allocate(stmt.buffer, specialise_tails(stmt.body, simplify, loops))
        assert isinstance(stmt, For)
        return changed(stmt, body=specialise_tails(stmt.body, simplify, (*loops, stmt)))
    sizes: list[int | None] = [tail.tile, tail.size] if tail.size != 0 else [tail.tile]
    if tail.size is not None and not _is_positive(tail.rest, loops, simplify):
        sizes.append(0)  # the tile may be empty
    cases = [_with_extent(stmt, tail, size, simplify) for size in sizes]
    done = [None if s is None else s if s is stmt else specialise_tails(s, simplify, loops) for s in cases]
    result = done.pop()
    for size, case in zip(reversed(sizes[:-1]), reversed(done), strict=True):
        least = tail.tile if size == tail.tile else 1
        result = If(binary("ge", tail.rest, Const(least, INDEX)), case or Seq(()), result)
    return result or Seq(())


def _is_positive(rest: Expr, loops: tuple[For, ...], simplify: Simplifier) -> bool:
    """Whether `rest` is at least 1 everywhere inside `loops`, each of which ends at its extent."""
    for loop in reversed(loops):
        if simplify.bounds(rest)[0] >= 1:
            return True
        step = dict(simplify.affine(rest).terms).get(loop.var, 0)
        if step < 0:
            end = loop.extent
            end = end.b if isinstance(end, Binary) and end.op == "min" else end
            rest = rest + (end - 1 - loop.var) * step
    return simplify.bounds(rest)[0] >= 1


def _tails(stmt: Stmt, simplify: Simplifier) -> list[Tail]:
    """Return the tails that are decided outside of `stmt`: their extents contain no variable bound inside."""
    bound = {s.var for s in walk(stmt) if isinstance(s, For)}
    tails: dict[Expr, Tail] = {}
    for s in walk(stmt):
        if isinstance(s, For) and s.kind in _TILE_KINDS and not free_vars(s.extent) & bound:
            tail = _as_tail(s.extent, simplify)
            if tail is not None and (tail.size is not None or isinstance(stmt, Allocate)):
                tails[s.extent] = tail
    return sorted(tails.values(), key=lambda t: t.size is None)


def _as_tail(extent: Expr, simplify: Simplifier) -> Tail | None:
    if not (isinstance(extent, Binary) and extent.op == "min" and isinstance(extent.a, Const)):
        return None
    tile, form = extent.a.number, simplify.affine(extent.b)
    size = None if any(c % tile for _, c in form.terms) else form.constant % tile
    return Tail(extent, tile, extent.b, size)


def _with_extent(stmt: Stmt, tail: Tail, size: int | None, simplify: Simplifier) -> Stmt | None:
    if size is None:
        return stmt
    number = Const(size, INDEX)
    return simplify_stmt(map_exprs(stmt, lambda e: number if e is tail.extent else e), simplify)


def _partition(loop: For, simplify: Simplifier) -> Stmt | None:
    """Split a reduction loop in its full iterations and the remainder, if a tile inside depends on it."""
    for s in walk(loop.body):
        if not (isinstance(s, For) and s.kind in _TILE_KINDS and loop.var in free_vars(s.extent)):
            continue
        tail = _as_tail(s.extent, simplify)
        step = 0 if tail is None else -dict(simplify.affine(tail.rest).terms).get(loop.var, 0)
        if tail is None or tail.size is None or step <= 0:
            continue
        at_start = simplify(binary("add", tail.rest, loop.var * step))
        full = simplify(imax(0, imin(loop.extent, (at_start - tail.tile) // step + 1)))
        left = simplify(loop.extent - full)
        if isinstance(full, Const) and isinstance(left, Const):
            return _parts(loop, tail, full, left, simplify)
    return None


def _parts(loop: For, tail: Tail, full: Const, left: Const, simplify: Simplifier) -> Stmt:
    number = Const(tail.tile, INDEX)
    main_body = map_exprs(loop.body, lambda e: number if e is tail.extent else e)
    parts = [simplify_stmt(changed(loop, extent=full, body=main_body), simplify)]
    for n in range(left.number):  # at most one: the extent is ceil(rest / tile)
        parts.append(simplify_stmt(loop.body, simplify, {loop.var: Const(full.number + n, INDEX)}))
    return Seq(tuple(s for s in parts if s is not None))
