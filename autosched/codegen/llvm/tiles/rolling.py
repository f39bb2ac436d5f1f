"""Rolling accumulators: register tiles over windows whose outputs are written as soon as they are complete.

    A[oh, ow, c] = 0;   A[oh, ow, c] += X[oh + kh, ow + kw, c] * W[kh, kw, c];   Y[oh, ow, c] = f(A[oh, ow, c])

With all of kh and kw in one tile, an accumulator is needed from the first to the last element of X that it adds up.
In the order of X (`windows.py`) these are the outputs of a few rows, whatever the tile's height: an image of 7 x 7 is
one tile of 49 outputs, of which some seventeen are in registers at a time, W is there all the time, and each element is
read once and written once. Depthwise convolutions of 7 x 7 images took 1/1.1 to 1/1.3 of the time of tiles whose
outputs all have a register: 576 and 960 channels at the multiply-adds' rate, 1024, whose pixels lie 4 KiB apart and
still meet in few sets of the cache, at 0.8 of it, and less dependent on where the arrays lie.

A vector goes over the whole tile before the next one does. Where it is a part of a line, and the lines of a tile crowd
in a few sets, each of them would be fetched for each vector: such a tile keeps the order of its loops (14 x 14 images
of 512 channels, stride 2, with vectors of half a line: 1.9 times as long).

Copies that lie beyond a border for certain, and add nothing there, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import prod

from autosched.codegen.llvm.address import Addresses
from autosched.codegen.llvm.bindings import LaneRange
from autosched.codegen.llvm.emitters import RegisterTile, StatementEmitter
from autosched.codegen.llvm.tiles.windows import Point, RegisterWindow, find_window
from autosched.ir.conditions import adds_nothing, conjuncts
from autosched.ir.expr import INDEX, Const, Expr, Select, Var
from autosched.ir.stmt import For, ForKind, Scope, Stmt, Store
from autosched.ir.storage import flat_index
from autosched.ir.visit import free_vars, loads, reduces_lanes, subexpressions, substitute, vector_tile
from autosched.lower.limits import MAX_CHUNKS

# Registers that a tile which passes by leaves free, where it need not pass: with 30 of 32 taken LLVM spills a tenth of
# the steps. Depthwise 5x5 with channels first took 1.1 to 1.2 times as long as column by column on Emerald Rapids.
SPARE = 4


@dataclass(frozen=True)
class Accumulators:
    """What becomes of a window's accumulators: the unrolled loops, and their values for each accumulator."""

    loops: tuple[Var, ...]
    inner: For
    points: dict[Point, Point]


def emit_window(emitter: StatementEmitter, tile: RegisterTile) -> bool:
    """Emits the tile if it is a window: in the order of what it reads where its operands,
    or those of the steps of one loop, fit into registers, else step by step of its reduction, each of which loads what
    it needs. What clears the accumulators may come before."""
    window = _window(emitter, tile.stmt)
    if window is None:
        return False
    room = _n_vectors(emitter, window), emitter.target.n_vector_registers
    if window.fits(*room):
        _emit(emitter, window, lambda n, first: None, _clears(tile.before, window, emitter.addresses))
    elif parts := window.parts(*room):
        _emit_parts(emitter, parts)
    elif window.is_broadcast and room[0] > 1:
        return False
    else:
        _emit_steps(emitter, window)
    return True


def emit_reordered(emitter: StatementEmitter, tile: RegisterTile) -> bool:
    """Emits a register tile in another order than its loops', if the operands that wait in registers to be used again
    have no room beside the accumulators: vector by vector, or with a loop that moves both operands outside.

    If no order has room, each operand is loaded again for each vector, and a fence for the compiler alone keeps LLVM
    from holding it.
    """
    unrolled, inner = tile.unrolled, tile.inner
    store, loops = inner.body, tuple(v for v, _ in unrolled)
    if not isinstance(store, Store) or store.reducer is None or reduces_lanes(inner):
        return False
    assert isinstance(inner.extent, Const)
    extent, width = int(inner.extent.value), emitter.width(inner)
    vectors = -(-extent // width)
    sizes = {**dict(unrolled), inner.var: vectors}
    room = emitter.target.n_vector_registers - prod(sizes.values())
    written = {v for i in store.indices for v in free_vars(i)}
    if room < 2 or vectors > MAX_CHUNKS or not written.issuperset(loops):
        return False
    read = dict.fromkeys(x for value in store.values for x in loads(value))
    operands = [frozenset(v for i in x.indices for v in free_vars(i) if sizes.get(v, 1) > 1) for x in read]
    if _waiting((*loops, inner.var), sizes, operands) <= room:
        return False
    columns = (inner.var, *loops)
    order = min((columns, *permutations(columns)), key=lambda o: _waiting(o, sizes, operands))
    fits = _waiting(order, sizes, operands) <= room
    if not fits and room > vectors:
        return False
    order = order if fits else columns
    emitter.writer.single = not fits
    for point in product(*(range(sizes[v]) for v in order)):
        at = dict(zip(order, point, strict=True))
        if not fits and not any(at[v] for v in loops):
            emitter.writer.emit('fence syncscope("singlethread") acq_rel')
            emitter.values.forget()
        _vector_at(emitter, inner, loops, tuple(at[v] for v in loops), at[inner.var] * width)
    emitter.writer.single = False
    for var in loops:
        del emitter.bindings.env[var]
    return True


def _waiting(order: Sequence[Var], sizes: Mapping[Var, int], operands: Sequence[frozenset[Var]]) -> int:
    """Registers of operands that move with these loops of `sizes`, in an order, outermost first: what is used again in
    a loop that does not move it waits for that, all that the loops inside go through."""
    wide = [v for v in order if sizes[v] > 1]
    again = (next((n for n, v in enumerate(wide) if v not in moving), len(wide)) for moving in operands)
    return sum(prod(sizes[v] for v in wide[n:] if v in moving) for n, moving in zip(again, operands, strict=True))


def emit_rolling(emitter: StatementEmitter, tile: RegisterTile) -> bool:
    """Emits the tile and the statement after it, if it is a window that fits only where outputs are written when they
    are complete, and that statement writes them. What clears them comes before."""
    result = tile.after
    if not (isinstance(result, For) and _is_unrolled(result)):
        return False
    found, registers = _window(emitter, tile.stmt), emitter.target.n_vector_registers
    if found is None or found.fits(vectors := _n_vectors(emitter, found), registers):
        return False
    if found.is_broadcast and vectors > 1:  # all vectors pass by at a time
        return False
    window = next((w for w in found.sweeps() if w.fits_rolling(vectors, registers)), None)
    if window is None or (
        not window.fits_rolling(vectors, registers - SPARE) and _comes_apart(found, vectors, registers)
    ):
        return False
    target = emitter.target
    if target.vector_bytes < target.line_bytes and window.has_set_conflicts(target):
        return False
    written = find_result(window, result, emitter.addresses)
    if written is None or emitter.width(written.inner) != emitter.width(window.inner):
        return False
    complete = {n: written.points[place] for place, n in window.last.items()}
    cleared = _clears(tile.before, window, emitter.addresses)

    def finish(n: int, first: int) -> None:
        if n in complete:
            emitter.values.in_window = False
            _vector_at(emitter, written.inner, written.loops, complete[n], first)
            emitter.values.in_window = True

    _emit(emitter, window, finish, cleared)
    for var in written.loops:
        del emitter.bindings.env[var]
    return True


def _comes_apart(window: RegisterWindow, vectors: int, registers: int) -> bool:
    """Whether the steps of one loop are windows that fit and read no more of X than the whole."""
    parts = window.parts(vectors, registers)
    return bool(parts) and sum(part.elements for part in parts) == window.elements


def find_result(window: RegisterWindow, stmt: For, addresses: Addresses) -> Accumulators | None:
    """The statement as what writes the window's accumulators, each once and in the same lanes; else None."""
    nest = vector_tile(stmt)
    update = window.inner.body
    assert isinstance(update, Store)
    if nest is None or len(update.buffers) > 1:
        return None
    unrolled, inner = nest
    store, name = inner.body, update.buffers[0]
    if not isinstance(store, Store) or store.reducer is not None or inner.extent != window.inner.extent:
        return None
    read = {x.indices for value in store.values for x in loads(value) if x.buffer == name}
    if len(read) != 1 or {x.buffer for value in update.values for x in loads(value)} & {*store.buffers}:
        return None
    if addresses.placed[name].buffer.scope is not Scope.REGISTER:
        return None
    variables = tuple(v for v, _ in unrolled)
    points = list(product(*(range(n) for _, n in unrolled)))
    theirs = _offsets(name, update.indices, window.outputs, sorted(set(window.places)), window.inner.var, addresses)
    ours = _offsets(name, read.pop(), variables, points, inner.var, addresses)
    if theirs is None or ours is None or len(ours) != len(points) or set(ours) != set(theirs):
        return None
    return Accumulators(variables, inner, {place: ours[offset] for offset, place in theirs.items()})


def _offsets(
    name: str, indices: tuple[Expr, ...], loops: tuple[Var, ...], points: list[Point], lane: Var, addresses: Addresses
) -> dict[int, Point] | None:
    """The points by the element of the buffer that their first lane is at; None where anything else moves it."""
    simplify = addresses.bindings.simplify
    form = simplify.affine(flat_index(addresses.placed[name].buffer, indices, simplify))
    steps = dict(form.terms)
    if steps.pop(lane, 0) != 1 or not set(steps) <= set(loops):
        return None
    return {form.constant + sum(steps.get(v, 0) * x for v, x in zip(loops, p, strict=True)): p for p in points}


def _is_unrolled(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind is ForKind.UNROLL and isinstance(stmt.extent, Const)


def _window(emitter: StatementEmitter, stmt: For) -> RegisterWindow | None:
    window = find_window(stmt, emitter.addresses)
    if window is None or reduces_lanes(window.inner):
        return None
    return window if _n_vectors(emitter, window) <= MAX_CHUNKS else None


def _extent(window: RegisterWindow) -> int:
    assert isinstance(window.inner.extent, Const)
    return int(window.inner.extent.value)


def _n_vectors(emitter: StatementEmitter, window: RegisterWindow) -> int:
    return -(-_extent(window) // emitter.width(window.inner))


def _clears(stmt: Stmt | None, window: RegisterWindow, addresses: Addresses) -> bool:
    """Whether the statement sets the window's accumulators to what changes nothing in the update's reducer."""
    nest = None if stmt is None else vector_tile(stmt)
    update = window.inner.body
    if nest is None or not isinstance(update, Store) or update.reducer is None:
        return False
    unrolled, inner = nest
    store, reducer = inner.body, update.reducer
    if not isinstance(store, Store) or store.reducer is not None or store.buffers != update.buffers:
        return False
    start, identity = store.values[0], [c.value for c in reducer.identity]
    if not isinstance(start, Const) or [start.value] != identity or inner.extent != window.inner.extent:
        return False
    points = list(product(*(range(n) for _, n in unrolled)))
    loops = tuple(v for v, _ in unrolled)
    ours = _offsets(update.buffers[0], store.indices, loops, points, inner.var, addresses)
    theirs = _offsets(
        update.buffers[0], update.indices, window.outputs, sorted(set(window.places)), window.inner.var, addresses
    )
    return ours is not None and theirs is not None and set(theirs) <= set(ours)


def _emit(
    emitter: StatementEmitter, window: RegisterWindow, after: Callable[[int, int], None], cleared: bool = False
) -> None:
    """All points of each vector, or all vectors of each point where lanes share what passes by; `after` each of them
    with its number and the vector's first element. Where the accumulators are `cleared`, the first product is stored
    and not added: LLVM would copy operands for it."""
    emitter.values.in_window = True
    outside = _outside(window, emitter.addresses)
    assert isinstance(window.inner.body, Store)
    start = replace(window.inner, body=replace(window.inner.body, reducer=None))
    begun: set[tuple[Point, int]] = set()
    numbers, vectors = range(len(window.points)), range(0, _extent(window), emitter.width(window.inner))
    steps = sorted(product(numbers, vectors), key=lambda step: step[0 if window.is_broadcast else 1])
    for n, first in steps:
        point, place = window.points[n], window.places[n]
        if point not in outside:
            inner = start if cleared and (place, first) not in begun else window.inner
            begun.add((place, first))
            _vector_at(emitter, inner, window.loops, point, first)
        after(n, first)
    emitter.values.in_window = False
    for var in window.loops:
        emitter.bindings.env.pop(var, None)  # all points may be outside


def _emit_parts(emitter: StatementEmitter, parts: Sequence[RegisterWindow]) -> None:
    """One window after another, with nothing held from one to the next, see `_emit_steps`."""
    for n, part in enumerate(parts):
        if n:
            emitter.writer.emit('fence syncscope("singlethread") acq_rel')
            emitter.values.forget()
        _emit(emitter, part, lambda n, first: None)


def _emit_steps(emitter: StatementEmitter, window: RegisterWindow) -> None:
    """All points in the order of the loops. A fence for the compiler alone keeps LLVM from holding what one step loads
    until the next one needs it again: there are no registers for that, it went to the stack and back."""
    env, step = emitter.bindings.env, [n for n, v in enumerate(window.loops) if v not in window.outputs]
    before: Point | None = None
    for point in sorted(window.points):
        here = tuple(point[n] for n in step)
        if before not in (None, here):
            emitter.writer.emit('fence syncscope("singlethread") acq_rel')
            emitter.values.forget()
        before = here
        env.update(zip(window.loops, point, strict=True))
        emitter.emit(window.inner)
    for var in window.loops:
        del env[var]


def _outside(window: RegisterWindow, addresses: Addresses) -> set[Point]:
    """The points at which a condition of the update surely does not hold, and which add nothing then."""
    store = window.inner.body
    assert isinstance(store, Store)
    selects = {e for value in store.values for e in subexpressions(value) if isinstance(e, Select)}
    found: set[Point] = set()
    for test in {c for s in selects for c in conjuncts(s.cond) if adds_nothing(store, c)}:
        moving = [n for n, v in enumerate(window.loops) if v in free_vars(test)]
        fails: dict[Point, bool] = {}
        for point in window.points:
            key = tuple(point[n] for n in moving)
            if key not in fails:
                known: dict[Expr, Expr] = {window.loops[n]: Const(point[n], INDEX) for n in moving}
                held = addresses.bindings.simplify(substitute(test, known))
                fails[key] = isinstance(held, Const) and not held.value
            if fails[key]:
                found.add(point)
    return found


def _vector_at(emitter: StatementEmitter, inner: For, loops: tuple[Var, ...], point: Point, first: int) -> None:
    """The vector from `first` on of one copy of the body, or what there is of it."""
    assert isinstance(inner.extent, Const)
    extent, width = int(inner.extent.value), emitter.width(inner)
    emitter.bindings.env.update(zip(loops, point, strict=True))
    if extent - first < width:
        emitter.vector_rest(inner, first, extent - first, width)
    else:
        emitter.vector(inner, LaneRange(first, width), None)
