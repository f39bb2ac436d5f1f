"""Loop fusion: two passes over a row become one, and vectors are used while they are in registers.

    for t: buffer[block t] = f(..)          for t:
    total = 0                         ->        buffer[block t] = f(..)
    for t: total += buffer[block t]             total += buffer[block t]

A nest moves into a later one, past independent statements, under three conditions. Their loops pair up with equal
extents down to the vectors. Neither writes elements that the other one accesses. And each iteration of the later one
reads only the block of the buffer that the same iteration of the first one writes: along some dimension both advance by
c and access c elements. So a search fuses passes by giving them vectors of the same width. The loop that combines the
lanes of vectors into one value is not fused: vectors are combined with each other first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autosched.ir.expr import INDEX, Const, Expr, Load
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import BLOCKS, THREADS, Allocate, For, ForKind, If, Prefetch, Seq, Stmt, Store, changed, walk
from autosched.ir.visit import free_vars, loads, reduces_lanes
from autosched.lower.passes.instantiate import simplify_stmt

Indices = tuple[Expr, ...]


@dataclass(frozen=True)
class Accesses:
    """The elements that a statement accesses, by buffer."""

    reads: dict[str, list[Indices]]
    writes: dict[str, list[Indices]]

    def is_apart_from(self, later: Accesses) -> bool:
        """Whether the two statements are independent, so that their order does not matter."""
        touched = later.reads.keys() | later.writes.keys()
        return not self.writes.keys() & touched and not self.reads.keys() & later.writes.keys()


def fuse_passes(stmt: Stmt, simplify: Simplifier) -> Stmt:
    """Return `stmt`, concrete and in canonical form, with passes fused wherever legal; GPU kernels are unchanged."""
    if any(isinstance(s, For) and (s.kind in BLOCKS or s.kind in THREADS) for s in walk(stmt)):
        return stmt
    return _fused(stmt, simplify)


def _fused(stmt: Stmt, simplify: Simplifier) -> Stmt:
    match stmt:
        case For() | Allocate():
            return changed(stmt, body=_fused(stmt.body, simplify))
        case If(cond=cond, then=then, otherwise=other):
            return If(cond, _fused(then, simplify), None if other is None else _fused(other, simplify))
        case Seq(stmts=stmts):
            kept: list[Stmt] = []
            for s in reversed(stmts):  # later ones first, so that a pass may join one that has been joined
                moved = _moved(s, kept, simplify) if isinstance(s, For) else None
                kept = [_fused(s, simplify), *kept] if moved is None else moved
            return kept[0] if len(kept) == 1 else Seq(tuple(kept))
    return stmt


def _moved(loop: For, later: Sequence[Stmt], simplify: Simplifier) -> list[Stmt] | None:
    """Return the statements `later` with `loop` fused into one of them; None if that is illegal."""
    for n, stmt in enumerate(later):
        inside = _into(loop, stmt, simplify)
        if inside is not None:
            return [*later[:n], inside, *later[n + 1 :]]
        mine, other = accesses(loop), accesses(stmt)
        if mine is None or other is None or not mine.is_apart_from(other):
            return None
    return None


def _into(loop: For, stmt: Stmt, simplify: Simplifier) -> Stmt | None:
    match stmt:
        case Allocate(body=body):
            inside = _into(loop, body, simplify)
            return None if inside is None else changed(stmt, body=inside)
        case Seq(stmts=stmts):
            moved = _moved(loop, stmts, simplify)
            return None if moved is None else Seq(tuple(moved))
        case For():
            return _pair(loop, stmt, simplify)
    return None


def _pair(first: For, second: For, simplify: Simplifier) -> Stmt | None:
    """Return the fused loop, if the loops pair up down to the vectors; else None."""
    vectors = first.kind is ForKind.VECTORIZE
    if first.kind is not second.kind or not (vectors or first.kind is ForKind.SERIAL) or first.overlap or first.reduce:
        return None
    if first.extent is not second.extent:
        return None
    body = simplify_stmt(first.body, simplify, {first.var: second.var})
    if body is not None and vectors and _begins(body, second.body):
        assert isinstance(second.body, Store)
        return changed(second, body=changed(second.body, reducer=None))
    if body is None or not _in_step(first, second, simplify) or (vectors and reduces_lanes(second)):
        return None
    if vectors:
        return changed(second, body=Seq((*_flat(body), *_flat(second.body))))
    inside = _into(body, second.body, simplify) if isinstance(body, For) else None
    return None if inside is None else changed(second, body=inside)


def _begins(start: Stmt, first: Stmt) -> bool:
    """Whether one store initialises the element that the other one updates: the first term can be stored instead."""
    if not (isinstance(start, Store) and isinstance(first, Store)) or first.reducer is None:
        return False
    same = start.buffers == first.buffers and start.indices == first.indices and start.reducer is None
    read = {load.buffer for load in _loads((*first.values, *first.indices))}
    return same and start.values == first.reducer.identity and read.isdisjoint(first.buffers)


def _flat(stmt: Stmt) -> tuple[Stmt, ...]:
    return stmt.stmts if isinstance(stmt, Seq) else (stmt,)


def _in_step(first: For, second: For, simplify: Simplifier) -> bool:
    """Whether no iteration of `second` depends on a later iteration of `first`."""
    mine, other = accesses(first), accesses(second)
    if mine is None or other is None:
        return False
    if (mine.reads.keys() | mine.writes.keys()) & other.writes.keys():
        return False
    return all(
        _same_blocks(first, mine.writes[b], second, other.reads[b], simplify)
        for b in mine.writes.keys() & other.reads.keys()
    )


def _same_blocks(
    first: For, writes: Sequence[Indices], second: For, reads: Sequence[Indices], simplify: Simplifier
) -> bool:
    """Whether along some dimension iteration t of both loops accesses a block that no other iteration does."""
    return any(
        None not in blocks and len(blocks) == 1
        for blocks in (
            {block_of(first, w[d], simplify) for w in writes} | {block_of(second, r[d], simplify) for r in reads}
            for d in range(len(writes[0]))
        )
    )


def block_of(loop: For, index: Expr, simplify: Simplifier) -> tuple[int, Expr] | None:
    """Return (step, start) of the blocks [start + step t, start + step (t + 1)) that iterations t access."""
    inner = {s.var for s in walk(loop.body) if isinstance(s, For)}
    step, reach = 0, 0
    start: Expr = Const(0, INDEX)
    form = simplify.affine(index)
    for atom, c in form.terms:
        names = free_vars(atom)
        if atom is loop.var:
            step = c
        elif names <= inner and not loads(atom):
            low, high = simplify.bounds(atom)
            if low != 0 or c < 0:
                return None
            reach += c * high
        elif names & {loop.var, *inner} or loads(atom):
            return None
        else:
            start = start + atom * c
    return (step, simplify(start + form.constant)) if reach < step else None


def accesses(stmt: Stmt) -> Accesses | None:
    """Return the accesses of a statement; None for one that does more than load and store."""
    touched = Accesses({}, {})
    for s in walk(stmt):
        match s:
            case Store(buffers=buffers, indices=indices, values=values, reducer=reducer):
                for name in buffers:
                    touched.writes.setdefault(name, []).append(indices)
                    if reducer is not None:
                        touched.reads.setdefault(name, []).append(indices)
                _note(touched, (*indices, *values))
            case For(extent=extent):
                _note(touched, (extent,))
            case If(cond=cond):
                _note(touched, (cond,))
            case Seq() | Allocate() | Prefetch():
                pass
            case _:
                return None
    return touched


def _note(touched: Accesses, exprs: Sequence[Expr]) -> None:
    for load in _loads(exprs):
        touched.reads.setdefault(load.buffer, []).append(load.indices)


def _loads(exprs: Sequence[Expr]) -> Iterator[Load]:
    for expr in exprs:
        yield from loads(expr)
