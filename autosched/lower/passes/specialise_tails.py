"""Tail specialisation: constant extents for unrolled and vectorised loops, without tests in hot code.

An extent min(T, X) is T on full tiles. Where X changes only by multiples of T, a partial tile always has the same size
r = X mod T. So

    register tile   ->  if X >= T: tile with extent T  else: tile with extent r  (none where X <= 0)
    reduction loop over v that changes X  ->  full iterations, then the last one with extent r

Where the remainder is not constant, a vectorised loop is masked and an unrolled one becomes serial, except for full
tiles of accumulators, which are only in registers there.

A remainder of a size (`ir.size`) is one of these, and register tiles stay in registers: rows beyond the last one repeat
it, and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Var, binary, imax, imin
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, For, ForKind, If, Scope, Seq, Stmt, Store, changed, walk
from autosched.ir.symbolic import SymbolicInteger, is_known
from autosched.ir.visit import exprs_of, free_vars, is_number, loads, map_exprs, rebuild
from autosched.lower.passes.instantiate import simplify_stmt

MOST_ROWS = 6  # of a register tile of which there is code for every partial one, where sizes decide which is left
_TILE_KINDS = (ForKind.UNROLL, ForKind.VECTORIZE)


@dataclass(frozen=True)
class Tail:
    """The extent min(tile, rest), and the size of a partial tile, None where that varies.

    `is_sized`: it varies with sizes of the kernel only.
    """

    extent: Expr
    tile: int
    rest: Expr
    size: int | None
    is_sized: bool = False


def specialise_tails(
    stmt: Stmt, simplify: Simplifier, loops: tuple[For, ...] = (), partial: frozenset[Expr] = frozenset()
) -> Stmt:
    """Return `stmt`, which is inside `loops`, with the rules above applied everywhere.

    `partial`: extents of which `stmt` is the case of a partial tile.
    """

    def inside(body: Stmt) -> Stmt:
        return specialise_tails(body, simplify, loops, partial)

    match stmt:
        case For(kind=ForKind.SERIAL | ForKind.PARALLEL):
            split = _partition(stmt, simplify) if stmt.kind is ForKind.SERIAL or stmt.reduce else None
            if split is not None:
                return inside(split)
            return changed(stmt, body=specialise_tails(stmt.body, simplify, (*loops, stmt), partial))
        case Seq(stmts=stmts):
            return Seq(tuple(inside(s) for s in stmts))
        case If(cond=c, then=t, otherwise=o):
            return If(c, inside(t), None if o is None else inside(o))
        case Allocate(buffer=b, body=body) if b.scope is not Scope.REGISTER:
            return Allocate(b, inside(body))
        case Allocate() | For():
            return _tile(stmt, simplify, loops, partial)
    return stmt


def _tile(stmt: Stmt, simplify: Simplifier, loops: tuple[For, ...], partial: frozenset[Expr]) -> Stmt:
    tail = next((t for t in _tails(stmt, simplify) if t.extent not in partial), None)
    if tail is None:
        if isinstance(stmt, Allocate):
            return Allocate(stmt.buffer, specialise_tails(stmt.body, simplify, loops, partial))
        assert isinstance(stmt, For)
        return changed(stmt, body=specialise_tails(stmt.body, simplify, (*loops, stmt), partial))
    sizes: list[int | None] = [tail.tile, tail.size] if tail.size != 0 else [tail.tile]
    if tail.is_sized and tail.tile <= MOST_ROWS and _is_unrolled(stmt, tail):
        sizes = list(range(tail.tile, 0, -1))
    if (tail.size is not None or tail.is_sized) and not _is_positive(tail.rest, loops, simplify):
        sizes.append(0)  # the tile may be empty
    cases = [_with_extent(stmt, tail, size, simplify) for size in sizes]
    done = [
        None
        if s is None
        else s
        if s is stmt and not tail.is_sized
        else specialise_tails(s, simplify, loops, partial | {tail.extent} if size is None else partial)
        for size, s in zip(sizes, cases, strict=True)
    ]
    result = done.pop()
    for size, case in zip(reversed(sizes[:-1]), reversed(done), strict=True):
        least = size if size == tail.tile or (tail.is_sized and size is not None) else 1
        result = If(simplify(Binary("ge", tail.rest, Const(least, INDEX))), case or Seq(()), result)
    return result or Seq(())


def _is_unrolled(stmt: Stmt, tail: Tail) -> bool:
    """Whether the loops of the tail's extent are all unrolled ones."""
    return all(s.kind is ForKind.UNROLL for s in walk(stmt) if isinstance(s, For) and s.extent is tail.extent)


def _is_positive(rest: Expr, loops: tuple[For, ...], simplify: Simplifier) -> bool:
    """Whether `rest` is at least 1 everywhere inside `loops`, each of which ends at its extent."""
    for loop in reversed(loops):
        if is_known("ge", simplify.bounds(rest)[0], 1):
            return True
        step = dict(simplify.affine(rest).terms).get(loop.var, 0)
        if is_known("lt", step, 0):
            end = loop.extent
            end = end.b if isinstance(end, Binary) and end.op == "min" else end
            rest = rest + (end - 1 - loop.var) * step
    return is_known("ge", simplify.bounds(rest)[0], 1)


def _tails(stmt: Stmt, simplify: Simplifier) -> list[Tail]:
    """Return the tails that are decided outside of `stmt`: their extents contain no variable bound inside."""
    bound = {s.var for s in walk(stmt) if isinstance(s, For)}
    tails: dict[Expr, Tail] = {}
    for s in walk(stmt):
        if isinstance(s, For) and s.kind in _TILE_KINDS and not free_vars(s.extent) & bound:
            tail = _as_tail(s, simplify)
            if tail is not None and (tail.size is not None or tail.is_sized or isinstance(stmt, Allocate)):
                tails[s.extent] = tail
    return sorted(tails.values(), key=lambda t: t.size is None)


def _as_tail(loop: For, simplify: Simplifier) -> Tail | None:
    extent = loop.extent
    if isinstance(extent, Const) and not is_number(extent) and is_number(loop.bound):
        return Tail(extent, loop.bound.number, extent, None, is_sized=True)
    if not (isinstance(extent, Binary) and extent.op == "min" and is_number(extent.a)):
        return None
    tile, form = extent.a.number, simplify.affine(extent.b)
    if not all(is_known("eq", c % tile, 0) for _, c in form.terms):
        return Tail(extent, tile, extent.b, None)
    size = form.constant % tile
    is_sized = isinstance(size, SymbolicInteger)
    return Tail(extent, tile, extent.b, None if is_sized else size, is_sized)


def _with_extent(stmt: Stmt, tail: Tail, size: int | None, simplify: Simplifier) -> Stmt | None:
    if size is None:
        if not tail.is_sized:
            return stmt
        partial = map_exprs(_repeat_last_rows(stmt, tail), lambda e: tail.rest if e is tail.extent else e)
        return simplify_stmt(partial, simplify)
    number = Const(size, INDEX)
    return simplify_stmt(map_exprs(stmt, lambda e: number if e is tail.extent else e), simplify)


def _partition(loop: For, simplify: Simplifier) -> Stmt | None:
    """Split a reduction loop, or one of a size, in its full iterations and the remainder, if a tile inside depends on
    it."""
    for s in walk(loop.body):
        if not (isinstance(s, For) and s.kind in _TILE_KINDS and loop.var in free_vars(s.extent)):
            continue
        tail = _as_tail(s, simplify)
        step = 0 if tail is None else -dict(simplify.affine(tail.rest).terms).get(loop.var, 0)
        if tail is None or (tail.size is None and not tail.is_sized) or not is_known("gt", step, 0):
            continue
        at_start = simplify(binary("add", tail.rest, loop.var * step))
        full = simplify(imax(0, imin(loop.extent, (at_start - tail.tile) // step + 1)))
        left = simplify(loop.extent - full)
        if is_number(full) and is_number(left):
            if not loop.reduce:
                return None
            return _parts(loop, tail, full, left, simplify)
        if isinstance(full, Const) and isinstance(left, Const):
            return _sized_parts(loop, tail, full, left, simplify)
    return None


def _parts(loop: For, tail: Tail, full: Const, left: Const, simplify: Simplifier) -> Stmt:
    number = Const(tail.tile, INDEX)
    main_body = map_exprs(loop.body, lambda e: number if e is tail.extent else e)
    parts = [simplify_stmt(changed(loop, extent=full, body=main_body), simplify)]
    for n in range(left.number):  # at most one: the extent is ceil(rest / tile)
        parts.append(simplify_stmt(loop.body, simplify, {loop.var: Const(full.number + n, INDEX)}))
    return Seq(tuple(s for s in parts if s is not None))


def _sized_parts(loop: For, tail: Tail, full: Const, left: Const, simplify: Simplifier) -> Stmt:
    """The full iterations, and where sizes leave a partial one that after them."""
    number = Const(tail.tile, INDEX)
    main = changed(loop, extent=full, body=map_exprs(loop.body, lambda e: number if e is tail.extent else e))
    last = simplify_stmt(loop.body, simplify, {loop.var: full})
    parts = [main, *(() if last is None else (If(Binary("gt", left, Const(0, INDEX)), last),))]
    return simplify_stmt(Seq(tuple(parts)), simplify) or Seq(())


def _repeat_last_rows(stmt: Stmt, tail: Tail) -> Stmt:
    """Return the tile with the rows of registers in loops of its full length: those beyond the last repeat it."""
    loops = {s.var: s for s in walk(stmt) if isinstance(s, For) and s.extent is tail.extent}
    rows = _register_rows(stmt, loops.keys())
    number = Const(tail.tile, INDEX)

    def go(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.kind is ForKind.UNROLL and s.var in loops and _indexes(s, rows):
            return changed(s, extent=number, bound=number, body=_clamped(go(s.body), s.var, tail.rest, rows))
        return _rebuilt(s, go)

    return go(stmt)


def _register_rows(stmt: Stmt, loops: Collection[Expr]) -> frozenset[str]:
    """Return the buffers in registers, allocated in `stmt`, whose rows no loops but these go over."""
    allocated = [s.buffer for s in walk(stmt) if isinstance(s, Allocate) and s.buffer.scope is Scope.REGISTER]
    places: dict[str, list[tuple[Expr, ...]]] = {b.name: [] for b in allocated}
    for name, indices in _accesses(stmt):
        places.get(name, []).append(indices)
    columns = {b: [set(column) for column in zip(*used, strict=True)] for b, used in places.items()}
    return frozenset(b for b, each in columns.items() if any(column <= set(loops) for column in each))


def _indexes(loop: For, buffers: frozenset[str]) -> bool:
    return any(loop.var in free_vars(i) for name, indices in _accesses(loop.body) if name in buffers for i in indices)


def _accesses(stmt: Stmt) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    for s in walk(stmt):
        if isinstance(s, Store):
            yield from ((buffer, s.indices) for buffer in s.buffers)
        yield from ((x.buffer, x.indices) for e in exprs_of(s) for x in loads(e))


def _clamped(stmt: Stmt, row: Var, rest: Expr, registers: frozenset[str]) -> Stmt:
    """Return `stmt` for any row: beyond the last one the registers get what that has, and nothing else is written."""

    def clamped(e: Expr) -> Expr:
        if e is row:
            return imin(row, rest - 1)
        return e if isinstance(e, Load) and e.buffer in registers else rebuild(e, clamped)

    def go(s: Stmt) -> Stmt:
        if all(registers.isdisjoint(x.buffers) for x in walk(s) if isinstance(x, Store)):
            return If(binary("lt", row, rest), s)
        match s:
            case Store(values=values):
                return changed(s, values=tuple(map(clamped, values)))
            case For(extent=extent):
                return changed(s, extent=clamped(extent), body=go(s.body))
            case If(cond=cond, then=then, otherwise=otherwise):
                return If(clamped(cond), go(then), None if otherwise is None else go(otherwise))
        return _rebuilt(s, go)

    return go(stmt)


def _rebuilt(stmt: Stmt, fn: Callable[[Stmt], Stmt]) -> Stmt:
    match stmt:
        case For(body=body) | Allocate(body=body):
            return changed(stmt, body=fn(body))
        case Seq(stmts=stmts):
            return Seq(tuple(map(fn, stmts)))
        case If(cond=cond, then=then, otherwise=otherwise):
            return If(cond, fn(then), None if otherwise is None else fn(otherwise))
    return stmt
