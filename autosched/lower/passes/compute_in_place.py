"""In-place computation: an intermediate row is kept in the output that it is copied to.

    alloc row                                   for j: out[i, j] = f(..)
    for j: row[j] = f(..)                 ->    .. uses of out[i, j] ..
    .. uses of row ..                           for j: out[i, j] = g(out[i, j])
    for j: out[i, j] = g(row[j])

The output's lines are fetched while the first loop computes, and the second one hits the cache. A buffer is removed if
the last statement of its scope writes every point of it once to the same point of an output, possibly shifted, and no
other statement accesses that output in between. Buffers of sums stay: they are written many times. Outputs with
non-temporal stores are written once.
"""

from __future__ import annotations

from collections.abc import Mapping

from autosched.ir.expr import INDEX, Const, Expr, Load, Var, ceildiv, imin
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, If, Scope, Seq, Stmt, Store, changed, walk
from autosched.ir.visit import bottom_up, free_vars, loads, map_exprs

_SERIAL = (ForKind.SERIAL, ForKind.UNROLL, ForKind.VECTORIZE)


def compute_in_place(stmt: Stmt, outputs: Mapping[str, Buffer], simplify: Simplifier) -> Stmt:
    """Return `stmt`, concrete and in canonical form, without the buffers that one of `outputs` can replace."""
    match stmt:
        case Allocate(buffer=buffer, body=body):
            body = compute_in_place(body, outputs, simplify)
            moved = _moved(buffer, body, outputs, simplify)
            return changed(stmt, body=body) if moved is None else moved
        case For(body=body):
            return changed(stmt, body=compute_in_place(body, outputs, simplify))
        case Seq(stmts=stmts):
            return Seq(tuple(compute_in_place(s, outputs, simplify) for s in stmts))
        case If(cond=cond, then=then, otherwise=other):
            rest = None if other is None else compute_in_place(other, outputs, simplify)
            return If(cond, compute_in_place(then, outputs, simplify), rest)
    return stmt


def _moved(buffer: Buffer, body: Stmt, outputs: Mapping[str, Buffer], simplify: Simplifier) -> Stmt | None:
    """Return `body` with the buffer's elements in an output; None if that is impossible."""
    if buffer.scope is not Scope.LOCAL or buffer.layout is not None or buffer.has_versions:
        return None
    last = body
    while isinstance(last, Seq | Allocate):
        last = last.stmts[-1] if isinstance(last, Seq) else last.body
    loops, store = _loops_to_store(last)
    if store is None or len(store.buffers) != 1 or store.reducer is not None or store.non_temporal:
        return None
    output = outputs.get(store.buffers[0])
    read = {x.indices for v in store.values for x in loads(v) if x.buffer == buffer.name}
    if output is None or output.dtype != buffer.dtype or output.layout is not None or len(read) != 1:
        return None
    (indices,) = read
    if len(indices) != len(store.indices) or not _covers(loops, indices, buffer, simplify):
        return None
    shift = tuple(simplify(o - p) for o, p in zip(store.indices, indices, strict=True))
    inside = {s.var for s in walk(body) if isinstance(s, For)}
    if any(free_vars(s) & inside or loads(s) for s in shift) or not _may_move(buffer, output, body, store):
        return None
    return _renamed(body, buffer.name, output.name, shift, simplify)


def _loops_to_store(stmt: Stmt) -> tuple[list[For], Store | None]:
    """Return perfectly nested loops, and the only store in them."""
    loops: list[For] = []
    while isinstance(stmt, For) and stmt.kind in _SERIAL and not stmt.reduce and stmt.overlap is None:
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt if isinstance(stmt, Store) else None


def _covers(loops: list[For], indices: tuple[Expr, ...], buffer: Buffer, simplify: Simplifier) -> bool:
    """Whether the loops visit every point of the buffer once: in each dimension they are the digits of the index."""
    seen: list[Var] = []
    for index, extent in zip(indices, buffer.shape, strict=True):
        form = simplify.affine(index)
        if form.constant:
            return False
        rest, above, step = extent, extent, 0
        for atom, step in sorted(form.terms, key=lambda term: -term[1]):
            loop = next((x for x in loops if x.var is atom), None)
            count = simplify(ceildiv(imin(above, rest), Const(step, INDEX)))
            if loop is None or step < 1 or loop.extent is not count:
                return False
            seen.append(loop.var)
            rest, above = rest - loop.var * step, Const(step, INDEX)
        if step > 1 or (not step and extent is not Const(1, INDEX)):
            return False
    return len(seen) == len(loops) == len(set(seen))


def _may_move(buffer: Buffer, output: Buffer, body: Stmt, last: Store) -> bool:
    """Whether only `last` accesses the output, and only plain stores write the buffer."""
    for s in walk(body):
        match s:
            case _ if s is last:
                pass
            case Store(buffers=buffers, indices=indices, values=values, reducer=reducer):
                touched = {*buffers, *(x.buffer for e in (*indices, *values) for x in loads(e))}
                if output.name in touched or (buffer.name in buffers and reducer is not None):
                    return False
            case For() | Seq() | Allocate() | If():
                pass
            case _:
                return False
    return not any(x.buffer == output.name for v in last.values for x in loads(v))


def _renamed(stmt: Stmt, old: str, new: str, shift: tuple[Expr, ...], simplify: Simplifier) -> Stmt:
    def at(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(simplify(i + s) for i, s in zip(indices, shift, strict=True))

    def renamed(e: Expr) -> Expr:
        return Load(new, at(e.indices), e.dtype) if isinstance(e, Load) and e.buffer == old else e

    def go(s: Stmt) -> Stmt:
        match s:
            case For(body=body) | Allocate(body=body):
                return changed(s, body=go(body))
            case Seq(stmts=stmts):
                return Seq(tuple(go(x) for x in stmts))
            case If(cond=cond, then=then, otherwise=other):
                return If(bottom_up(cond, renamed), go(then), None if other is None else go(other))
            case Store(buffers=buffers, indices=indices) if old in buffers:
                s = changed(s, buffers=tuple(new if b == old else b for b in buffers), indices=at(indices))
        return map_exprs(s, lambda e: bottom_up(e, renamed))

    return go(stmt)
