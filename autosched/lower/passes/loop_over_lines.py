"""Weight preparation by cache lines: wide panels are written by a loop over lines instead of unrolled vectors.

    for u unrolled, for v in vectors, n of them:  W[.., v] = f(S[..])
    for l in 0..n // line:  for u unrolled, for v in vectors, a line of them:  W[.., line * l + v] = f(S[..])

and the remainder of a line after it. A panel of weights is as wide as a register tile, several vectors. Unrolled, this
code, which runs once, was a third of a kernel's code and of LLVM's time.
"""

from __future__ import annotations

from collections.abc import Set

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Const, Expr, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, For, ForKind, If, Seq, Stmt, Store, changed
from autosched.ir.visit import loads, vector_tile
from autosched.lower.passes.instantiate import simplify_stmt
from autosched.target import LINE_BYTES

LEAST = 2  # lines of a tile from which a loop is made


def loop_over_lines(stmt: Stmt, written: Set[str], simplify: Simplifier) -> Stmt:
    """Return `stmt` with loops over the lines of tiles that are stored in the buffers `written` and not read there."""

    def inside(body: Stmt) -> Stmt:
        return loop_over_lines(body, written, simplify)

    tile = vector_tile(stmt)
    if tile is not None:
        return _by_lines(stmt, tile[1], written, simplify)
    match stmt:
        case For() | Allocate():
            return changed(stmt, body=inside(stmt.body))
        case Seq(stmts=stmts):
            return Seq(tuple(map(inside, stmts)))
        case If(cond=cond, then=then, otherwise=other):
            return If(cond, inside(then), None if other is None else inside(other))
    return stmt


def _by_lines(tile: Stmt, inner: For, written: Set[str], simplify: Simplifier) -> Stmt:
    store = inner.body
    if not isinstance(store, Store) or store.reducer is not None or not written >= set(store.buffers):
        return tile
    if any(load.buffer in store.buffers for value in store.values for load in loads(value)):
        return tile
    assert isinstance(inner.extent, Const)
    line = LINE_BYTES // max(DTYPES[value.dtype].nbytes for value in store.values)
    lines, rest = divmod(inner.extent.number, line)
    if lines < LEAST:
        return tile
    number = Var(f"{inner.var.name}.line")
    simplify.ranges[number] = (0, lines - 1)
    whole = _part(tile, inner, line, number * line, simplify)
    count = Const(lines, INDEX)
    parts: list[Stmt] = [For(number, count, count, ForKind.SERIAL, whole)]
    if rest:
        parts.append(_part(tile, inner, rest, Const(lines * line, INDEX), simplify))
    return parts[0] if len(parts) == 1 else Seq(tuple(parts))


def _part(tile: Stmt, inner: For, extent: int, first: Expr, simplify: Simplifier) -> Stmt:
    """Return the tile for `extent` values of its inner variable, starting at `first`."""
    var, count = Var(f"{inner.var.name}.of_line"), Const(extent, INDEX)
    simplify.ranges[var] = (0, extent - 1)
    body = simplify_stmt(inner.body, simplify, {inner.var: first + var})
    assert body is not None
    return _replaced(tile, inner, changed(inner, var=var, extent=count, bound=count, body=body))


def _replaced(tile: Stmt, inner: For, other: For) -> Stmt:
    if tile is inner:
        return other
    assert isinstance(tile, For)
    return changed(tile, body=_replaced(tile.body, inner, other))
