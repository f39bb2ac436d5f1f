"""Emission of prefix scans (`lower/register_tiles/scan.py`): log2(n) steps of shifted vectors instead of n.

    v = X[..]    v += v shifted by 1    v += v shifted by 2    ..    A[..] += v

Of 16 elements that is 4 shuffles and 4 additions instead of 16 additions under a mask. What the shift brings in is the
reducer's identity. The vectors of a longer block follow each other: each begins with what the one before it ended with;
lanes that do not exist hold the identity.
"""

from __future__ import annotations

from autosched.codegen.llvm.arithmetic import Val
from autosched.codegen.llvm.bindings import LaneRange
from autosched.codegen.llvm.emitters import StatementEmitter
from autosched.codegen.llvm.vocabulary import literal, splat, value_type
from autosched.ir.stmt import Store
from autosched.lower.register_tiles.scan import ScanPlan


def emit_prefix_scan(emitter: StatementEmitter, plan: ScanPlan) -> None:
    """Emit the vectors of a scan, each with what the one before it ended with."""
    store, lane = plan.store, plan.lane
    values, stores, backwards = emitter.values, emitter.stores, plan.operator in ("ge", "gt")
    before: Val | None = None
    for vector in reversed(plan.vectors) if backwards else plan.vectors:
        lanes, mask = len(vector), _mask(vector, plan.extent)
        emitter.bindings.env[lane], values.lanes, values.mask = LaneRange(vector.start, lanes), lanes, mask
        values.begin(store)
        scanned = _scanned(emitter, store, emitter.arithmetic.broadcast(values.emit(plan.term), lanes), mask, backwards)
        last = _last(emitter, scanned, backwards)
        if plan.operator in ("lt", "gt"):
            scanned = _shifted(emitter, store, scanned, 1, backwards)
        if before is not None:
            scanned, last = stores.combined(store, before, scanned), stores.combined(store, before, last)
        stores.update(store, scanned)
        before = last
    values.lanes, values.mask = 1, None
    del emitter.bindings.env[lane]


def _mask(vector: range, extent: int) -> str | None:
    """Return the lanes that exist, None where all do."""
    bits = ", ".join(f"i1 {'true' if n < extent else 'false'}" for n in vector)
    return None if vector.stop <= extent else f"<{bits}>"


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
