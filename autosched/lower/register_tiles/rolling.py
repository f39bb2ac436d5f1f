"""Plans of register windows: all accumulators in registers, rolling accumulators, or step by step.

    A[oh, ow, c] = 0;   A[oh, ow, c] += X[oh + kh, ow + kw, c] * W[kh, kw, c];   Y[oh, ow, c] = f(A[oh, ow, c])

With all of kh and kw in one tile, an accumulator is needed from the first to the last element of X that it adds up.
In the order of X (`window.py`) these are the outputs of a few rows, whatever the tile's height: an image of 7 x 7 is
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosched.ir.conditions import adds_nothing, conjuncts
from autosched.ir.expr import INDEX, Const, Expr, Load, Select, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import For, ForKind, Scope, Stmt, Store
from autosched.ir.visit import free_vars, loads, reduces_lanes, subexpressions, substitute, vector_tile
from autosched.lower.limits import MAX_CHUNKS
from autosched.lower.register_tiles.context import Point, RegisterTile, TileContext, loops_and_points
from autosched.lower.register_tiles.rules import SPARE, reads_lines_in_parts
from autosched.lower.register_tiles.window import RegisterWindow, find_window


@dataclass(frozen=True)
class WindowResult:
    """What writes a window's accumulators: its unrolled loops, and their values for each accumulator."""

    loops: tuple[Var, ...]
    inner: For
    points: Mapping[Point, Point]


@dataclass(frozen=True)
class WindowPlan:
    """Windows, one after another, with nothing held in registers from one to the next.

    `keeps_loop_order`: the points of the only one stay in the order of the loops, and each step of the reduction loads
    anew what it reads. `is_cleared`: the statement before the tile clears the accumulators, so that the first product
    is stored. `outside`: points that add nothing, as a condition fails there. `result`: the statement after the tile,
    of which each output is written when its accumulator is complete; None where that statement stands for itself.
    """

    windows: tuple[RegisterWindow, ...]
    outside: frozenset[Point] = frozenset()
    is_cleared: bool = False
    keeps_loop_order: bool = False
    result: WindowResult | None = None

    @property
    def n_statements(self) -> int:
        return 1 if self.result is None else 2

    def __str__(self) -> str:
        first = self.windows[0]
        if self.result is not None:
            order = "in the order of the input" if first.swept is None else f"along {first.swept.name}"
            return f"rolling accumulators, {first.live_accumulators} of {first.accumulators} at a time, {order}"
        if self.keeps_loop_order:
            return "window, each step of the reduction by itself"
        parts = "" if len(self.windows) == 1 else f"in {len(self.windows)} parts, "
        return f"window, {parts}{first.accumulators} accumulators and {first.operands} operands"


def plan_window(tile: RegisterTile, context: TileContext) -> WindowPlan | None:
    """Return the plan of a tile that is a window.

    In the order of what it reads where accumulators and operands fit into registers, all of them, or those at a time
    with outputs that are written when they are complete, or those of the steps of one loop. Else step by step of its
    reduction; None where that would load for each vector what all share.
    """
    window = find_window(tile, context)
    if window is None or reduces_lanes(tile.inner) or context.n_vectors(tile.inner) > MAX_CHUNKS:
        return None
    vectors, registers = context.n_vectors(tile.inner), context.target.n_vector_registers
    outside = _outside(window, context.simplify)
    if window.fits(vectors, registers):
        return WindowPlan((window,), outside, _is_cleared(tile.before, window, context))
    rolling = _rolling(window, vectors, context)
    result = None if rolling is None else _find_result(rolling, tile.after, context)
    if rolling is not None and result is not None:
        return WindowPlan((rolling,), outside, _is_cleared(tile.before, rolling, context), result=result)
    if parts := window.parts(vectors, registers):
        return WindowPlan(parts, outside)
    return None if window.is_broadcast and vectors > 1 else WindowPlan((window,), keeps_loop_order=True)


def _rolling(window: RegisterWindow, vectors: int, context: TileContext) -> RegisterWindow | None:
    """Return a window that does not fit in an order in which its live values do; None where that costs more."""
    target = context.target
    registers = target.n_vector_registers
    if window.is_broadcast and vectors > 1:  # all vectors pass by at a time
        return None
    found = next((w for w in window.sweeps() if w.fits_rolling(vectors, registers)), None)
    if found is None or (reads_lines_in_parts(target) and found.has_set_conflicts(target)):
        return None
    is_tight = not found.fits_rolling(vectors, registers - SPARE)
    return None if is_tight and window.comes_apart(vectors, registers) else found


def _find_result(window: RegisterWindow, stmt: Stmt | None, context: TileContext) -> WindowResult | None:
    """Return a statement as what writes the window's accumulators, each once and in the same lanes; else None."""
    nest = vector_tile(stmt) if isinstance(stmt, For) and stmt.kind is ForKind.UNROLL else None
    update, buffers = window.store, window.store.buffers
    if nest is None or len(buffers) > 1:
        return None
    unrolled, inner = nest
    store = inner.body
    if not isinstance(store, Store) or store.reducer is not None or inner.extent != window.inner.extent:
        return None
    read = {x for value in store.values for x in loads(value) if x.buffer == buffers[0]}
    if len(read) != 1 or {x.buffer for value in update.values for x in loads(value)} & {*store.buffers}:
        return None
    if context.buffer(buffers[0]).scope is not Scope.REGISTER:
        return None
    loops, points = loops_and_points(unrolled)
    theirs = _accumulator_offsets(window, context)
    ours = _offsets(read.pop(), loops, points, inner.var, context)
    if theirs is None or ours is None or len(ours) != len(points) or set(ours) != set(theirs):
        return None
    if context.width(inner) != context.width(window.inner):
        return None
    written = {place: ours[offset] for offset, place in theirs.items()}
    return WindowResult(loops, inner, written)


def _is_cleared(stmt: Stmt | None, window: RegisterWindow, context: TileContext) -> bool:
    """Return whether a statement sets the window's accumulators to what changes nothing in the update's reducer."""
    nest, update = None if stmt is None else vector_tile(stmt), window.store
    if nest is None or update.reducer is None:
        return False
    unrolled, inner = nest
    store = inner.body
    if not isinstance(store, Store) or store.reducer is not None or store.buffers != update.buffers:
        return False
    start, identity = store.values[0], [c.value for c in update.reducer.identity]
    if not isinstance(start, Const) or [start.value] != identity or inner.extent != window.inner.extent:
        return False
    ours = _offsets(_target(store, context), *loops_and_points(unrolled), inner.var, context)
    theirs = _accumulator_offsets(window, context)
    return ours is not None and theirs is not None and set(theirs) <= set(ours)


def _accumulator_offsets(window: RegisterWindow, context: TileContext) -> dict[int, Point] | None:
    """Return `_offsets` of the window's accumulators."""
    places = sorted(set(window.places))
    return _offsets(_target(window.store, context), window.outputs, places, window.inner.var, context)


def _target(store: Store, context: TileContext) -> Load:
    """Return the element that a store writes."""
    return Load(store.buffers[0], store.indices, context.buffer(store.buffers[0]).dtype)


def _offsets(
    element: Load, loops: tuple[Var, ...], points: Sequence[Point], lane: Var, context: TileContext
) -> dict[int, Point] | None:
    """Return the points by the index of the element in their first lane; None where anything else moves it."""
    form = context.flat(element.buffer, element.indices)
    steps = dict(form.terms)
    if steps.pop(lane, 0) != 1 or not set(steps) <= set(loops):
        return None
    return {form.constant + sum(steps.get(v, 0) * x for v, x in zip(loops, p, strict=True)): p for p in points}


def _outside(window: RegisterWindow, simplify: Simplifier) -> frozenset[Point]:
    """Return the points at which a condition of the update surely does not hold, and which add nothing then."""
    selects = {e for value in window.store.values for e in subexpressions(value) if isinstance(e, Select)}
    found: set[Point] = set()
    for test in {c for s in selects for c in conjuncts(s.cond) if adds_nothing(window.store, c)}:
        moving = [n for n, v in enumerate(window.loops) if v in free_vars(test)]
        fails: dict[Point, bool] = {}
        for point in window.points:
            key = tuple(point[n] for n in moving)
            if key not in fails:
                known: dict[Expr, Expr] = {window.loops[n]: Const(point[n], INDEX) for n in moving}
                held = simplify(substitute(test, known))
                fails[key] = isinstance(held, Const) and not held.value
            if fails[key]:
                found.add(point)
    return frozenset(found)
