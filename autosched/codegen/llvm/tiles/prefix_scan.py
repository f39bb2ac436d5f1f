"""Prefix scans of a block of adjacent elements: log2(n) steps of shifted vectors instead of n.

    for k unrolled: for l in vectors: A[l] += select(k <= l, X[k], 0)

    v = X[..]    v += v shifted by 1    v += v shifted by 2    ..    A[..] += v

Of 16 elements that is 4 shuffles and 4 additions instead of 16 additions under a mask. What the shift brings in is the
reducer's identity. The vectors of a longer block follow each other: each begins with what the one before it ended with;
lanes that do not exist hold the identity.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.codegen.llvm.arithmetic import Val
from autosched.codegen.llvm.bindings import LaneRange
from autosched.codegen.llvm.emitters import RegisterTile, StatementEmitter
from autosched.codegen.llvm.vocabulary import literal, splat, value_type
from autosched.ir.conditions import LIMITS, MIRRORED, is_ordering
from autosched.ir.expr import Const, Expr, Select, Var
from autosched.ir.stmt import Store
from autosched.ir.visit import free_vars, is_gathered, loads, substitute

LEAST = 4  # elements; fewer are added under masks as soon


@dataclass(frozen=True)
class _Piece:
    """A vector of the block; `mask`: the lanes that exist, where not all do."""

    lanes: LaneRange
    mask: str | None


def emit_prefix_scan(emitter: StatementEmitter, tile: RegisterTile) -> bool:
    """Emits the tile if it is the prefix scan of its elements: one unrolled loop around vectors of as many."""
    unrolled, inner = tile.unrolled, tile.inner
    store = inner.body
    assert isinstance(inner.extent, Const)
    if len(unrolled) != 1 or unrolled[0][1] != inner.extent.value or unrolled[0][1] < LEAST:
        return False
    if not isinstance(store, Store) or store.reducer is None or len(store.values) != 1:
        return False
    value, (k, extent) = store.values[0], unrolled[0]
    if not isinstance(value, Select) or value.b is not store.reducer.identity[0]:
        return False
    order, pieces = _order(emitter, value.cond, k, inner.var), _pieces(extent, emitter.width(inner))
    if order is None or pieces[0].lanes.lanes == 1 or inner.var in free_vars(value.a):
        return False
    term = substitute(value.a, {k: inner.var})
    if not _is_adjacent(emitter, term, inner.var, pieces[0].lanes):
        return False
    _emit(emitter, store, inner.var, term, pieces, order)
    return True


def _pieces(extent: int, width: int) -> list[_Piece]:
    """The vectors of a loop."""
    lanes = min(width, _next_power(extent))
    whole, rest = divmod(extent, lanes)
    found = [_Piece(LaneRange(n * lanes, lanes), None) for n in range(whole)]
    if rest:
        tail = _next_power(rest)
        bits = ", ".join(f"i1 {'true' if n < rest else 'false'}" for n in range(tail))
        found.append(_Piece(LaneRange(whole * lanes, tail), None if rest == tail else f"<{bits}>"))
    return found


def _next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _order(emitter: StatementEmitter, cond: Expr, k: Var, lane: Var) -> str | None:
    """The comparison `k op lane` that the condition is; None for all others."""
    if not is_ordering(cond):
        return None
    form = emitter.bindings.simplify.affine(cond.a - cond.b)
    steps, op, shift = dict(form.terms), cond.op, form.constant
    if steps == {k: -1, lane: 1}:
        op, shift = MIRRORED[op], -shift
    elif steps != {k: 1, lane: -1}:
        return None
    is_least, end = LIMITS[op]
    return next((o for o, limit in LIMITS.items() if limit == (is_least, end - shift)), None)


def _is_adjacent(emitter: StatementEmitter, term: Expr, lane: Var, piece: LaneRange) -> bool:
    """Whether what the term reads follows each other lane by lane, or is the same in all of them."""
    if any(map(is_gathered, loads(term))):
        return False
    emitter.bindings.env[lane] = piece
    strides = {emitter.addresses.access(x.buffer, x.indices).lane_stride for x in loads(term)}
    del emitter.bindings.env[lane]
    return strides <= {0, 1}


def _emit(emitter: StatementEmitter, store: Store, lane: Var, term: Expr, pieces: list[_Piece], order: str) -> None:
    values, stores, backwards = emitter.values, emitter.stores, order in ("ge", "gt")
    before: Val | None = None
    for piece in reversed(pieces) if backwards else pieces:
        lanes = piece.lanes.lanes
        emitter.bindings.env[lane], values.lanes, values.mask = piece.lanes, lanes, piece.mask
        values.begin(store)
        found = _scanned(emitter, store, emitter.arithmetic.broadcast(values.emit(term), lanes), piece.mask, backwards)
        last = _last(emitter, found, backwards)
        if order in ("lt", "gt"):
            found = _shifted(emitter, store, found, 1, backwards)
        if before is not None:
            found, last = stores.combined(store, before, found), stores.combined(store, before, last)
        stores.update(store, found)
        before = last
    values.lanes, values.mask = 1, None
    del emitter.bindings.env[lane]


def _scanned(emitter: StatementEmitter, store: Store, value: Val, mask: str | None, backwards: bool) -> Val:
    """The prefix scan of a vector's lanes."""
    assert store.reducer is not None
    if mask is not None:
        start = emitter.arithmetic.number(store.reducer.identity[0].value, value.dtype)
        value = emitter.arithmetic.select(Val(mask, "bool", value.lanes), value, start)
    step = 1
    while step < value.lanes:
        other = _shifted(emitter, store, value, step, backwards)
        value = emitter.stores.combined(store, *((value, other) if backwards else (other, value)))
        step *= 2
    return value


def _shifted(emitter: StatementEmitter, store: Store, value: Val, by: int, backwards: bool) -> Val:
    """Each lane's element `by` lanes on, the reducer's identity in the first ones (`backwards`: towards the first)."""
    assert store.reducer is not None
    if value.lanes == 1:
        return emitter.arithmetic.number(store.reducer.identity[0].value, value.dtype)
    kind, n = value_type(value.dtype, value.lanes), value.lanes
    none = splat(literal(store.reducer.identity[0].value, value.dtype), value.dtype, n)
    places = range(by, n + by) if backwards else range(-by, n - by)
    picks = ", ".join(f"i32 {p if 0 <= p < n else n}" for p in places)
    return value._replace(
        name=emitter.writer.value(f"shufflevector {kind} {value.name}, {kind} {none}, <{n} x i32> <{picks}>")
    )


def _last(emitter: StatementEmitter, value: Val, backwards: bool) -> Val:
    """Return a vector's last lane."""
    if value.lanes == 1:
        return value
    place = 0 if backwards else value.lanes - 1
    kind = value_type(value.dtype, value.lanes)
    return Val(emitter.writer.value(f"extractelement {kind} {value.name}, i64 {place}"), value.dtype, 1)
