"""Register tiles over windows, ordered by input element: each element is loaded once for all outputs that use it.

    for kh, kw, oh, ow unrolled, c in vectors:  A[oh, ow, c] += X[oh + kh, ow + kw, c] * W[kh, kw, c]

In the order of the loops an element of X is needed again when a whole tile of others has passed. Here the vectors are
outermost, and the copies go along X: each of its elements is read once, used by all outputs that it belongs to, and its
register is free. What must stay in registers are accumulators and W. Of a window that is too large for that, as one of
7 by 7 points is, the steps of one loop follow one another, each a window of its own: those along a row, where the lanes
lie along rows, since vectors of X that overlap are different ones. Where they do not fit either, the loops keep their
order. It is the same with lanes that are a few elements apart: what lies between them comes with the same vectors.
Where all lanes share an element of X, as those of output channels do, one load of it serves all vectors: each copy is
done for all of them before the next one, and W must stay in registers for all vectors at a time.

A tile that has the whole reduction written out needs no accumulator before the first and after the last element of X
that belongs to it, so that many more outputs than registers can pass (`rolling.py`). How many are needed at a time
depends on the axis that is swept last: of a tile of one row by seven it is seven in the order of X, row by row of the
window, and three in the order of its columns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from autosched.ir.expr import Expr, Var
from autosched.ir.size import value_of
from autosched.ir.stmt import For, Scope, Store
from autosched.ir.visit import free_vars, loads
from autosched.lower.register_tiles.context import Point, RegisterTile, TileContext
from autosched.lower.register_tiles.rules import INPUT_REGISTERS, fits, slides
from autosched.target import LONGEST_STEP, Target, microarchitecture

Steps = tuple[int, ...]  # elements that one step of each unrolled loop moves an address


@dataclass(frozen=True)
class RegisterWindow:
    """The unrolled loops, their values in the order of execution, and the vectorised loop inside them."""

    loops: tuple[Var, ...]
    points: tuple[Point, ...]
    inner: For
    outputs: tuple[Var, ...]  # the loops that move the accumulator
    shared: Steps  # of the access along which the copies go, X
    itemsize: int  # of X
    others: tuple[Steps, ...]  # of what the copies along X read besides it
    is_broadcast: bool  # whether all lanes share an element of X
    swept: Var | None = None  # the loop of the outputs whose axis is gone along before the others; None: X's order

    @property
    def store(self) -> Store:
        assert isinstance(self.inner.body, Store)
        return self.inner.body

    @cached_property
    def places(self) -> tuple[Point, ...]:
        """Of each point: the values of those loops that move its accumulator."""
        moving = [n for n, v in enumerate(self.loops) if v in self.outputs]
        return tuple(tuple(p[n] for n in moving) for p in self.points)

    @cached_property
    def accumulators(self) -> int:
        """Registers for a vector of all outputs."""
        return len(set(self.places))

    @cached_property
    def live_accumulators(self) -> int:
        """The same at a time, each from its first point to its last."""
        return _most_at_a_time(self.places)

    @cached_property
    def operands(self) -> int:
        """Registers for all that a vector's copies read besides X."""
        return sum(len({_offset(steps, p) for p in self.points}) for steps in self.others)

    def live_operands(self, vectors: int) -> int:
        """The same at a time, each from its first point to its last, or until the next of `vectors` needs it."""
        used = ([_offset(steps, p) for p in self.points] for steps in self.others)
        return sum(map(_most_at_a_time, used)) if vectors == 1 else self.operands

    def fits(self, vectors: int, registers: int) -> bool:
        """Whether everything has a register all the time; `vectors` of the inner loop."""
        operands = self.operands * (vectors if self.is_broadcast else 1)
        return fits(self.accumulators * vectors, operands + INPUT_REGISTERS, registers)

    def fits_rolling(self, vectors: int, registers: int) -> bool:
        """Whether it fits if each value is there from its first point to its last; `vectors` one by one."""
        return fits(self.live_accumulators, self.live_operands(vectors) + INPUT_REGISTERS, registers)

    def parts(self, vectors: int, registers: int) -> tuple[RegisterWindow, ...]:
        """A window for each step of one loop of the reduction, where each fits: of such loops the one that leaves the
        fewest elements of X to be read. None where it does not fit, or has an order of its own."""
        if len(self.store.values) > 1:
            return ()
        found: list[tuple[RegisterWindow, ...]] = []
        for n in (n for n, v in enumerate(self.loops) if v not in self.outputs):
            steps = sorted({p[n] for p in self.points})
            parts = tuple(replace(self, points=tuple(p for p in self.points if p[n] == step)) for step in steps)
            if all(part.fits(vectors, registers) for part in parts):
                found.append(parts)
        best = min(found, key=lambda parts: sum(part.elements for part in parts), default=())
        return best if sum(part.elements for part in best) < len(self.points) else ()

    def comes_apart(self, vectors: int, registers: int) -> bool:
        """Whether the steps of one loop are windows that fit and read no more of X than the whole."""
        parts = self.parts(vectors, registers)
        return bool(parts) and sum(part.elements for part in parts) == self.elements

    @cached_property
    def elements(self) -> int:
        """How many elements of X a vector's copies read."""
        return len({_offset(self.shared, p) for p in self.points})

    def sweeps(self) -> Iterator[RegisterWindow]:
        """The window, and the same in the order of each axis of the outputs before the others.

        What has an order of its own, as the first of equal ones has, keeps it.
        """
        yield self
        alone = len(self.store.values) == 1
        for n, loop in ((n, v) for n, v in enumerate(self.loops) if v in self.outputs):
            along = [n, *self._leads_along(n)]
            points = sorted(self.points, key=lambda p: value_of(sum(self.shared[i] * p[i] for i in along)))
            found = replace(self, points=tuple(points), swept=loop)
            if len(along) > 1 and (alone or _keeps_order(found.points, found.places)):
                yield found

    def _leads_along(self, output: int) -> list[int]:
        """The loop of the reduction that goes along the same axis as this one of the outputs."""
        shared = [value_of(step) for step in self.shared]  # an order, which is right for other sizes as well
        steps = [n for n, v in enumerate(self.loops) if v not in self.outputs and shared[n]]
        return sorted((n for n in steps if shared[output] % shared[n] == 0), key=lambda n: abs(shared[n]))[-1:]

    def has_set_conflicts(self, target: Target) -> bool:
        """Whether a vector's copies read more lines than the sets of a cache that they fall into have ways."""
        uarch, line_bytes = microarchitecture(target.mcpu), target.line_bytes
        lines = {value_of(_offset(self.shared, p)) * self.itemsize // line_bytes for p in self.points}
        sets = {line % (uarch.page_bytes // line_bytes) for line in lines}
        return len(lines) > len(sets) * uarch.l1_ways

    @property
    def last(self) -> dict[Point, int]:
        """The number of each accumulator's last point."""
        return {place: n for n, place in enumerate(self.places)}


def find_window(tile: RegisterTile, context: TileContext) -> RegisterWindow | None:
    """The window that the unrolled loops of a tile go over, None where they do something else."""
    store, loops, points = tile.store, tile.loops, tile.points
    if store.reducer is None:
        return None
    written = {v for i in store.indices for v in free_vars(i)}
    spatial = [v in written for v in loops]
    if all(spatial):
        return None
    read = _reads(store, loops, tile.inner.var, context)
    found = next(((s, lane, size) for s, lane, size in read or () if _shares(s, lane, spatial, points)), None)
    if read is None or found is None:
        return None
    shared, lane, itemsize = found
    ordered = tuple(sorted(points, key=lambda p: value_of(_offset(shared, p))))
    others = tuple(s for s, _, _ in read if s != shared)
    outputs = tuple(v for v, s in zip(loops, spatial, strict=True) if s)
    window = RegisterWindow(loops, ordered, tile.inner, outputs, shared, itemsize, others, not lane)
    return window if _keeps_order(window.points, window.places) else None


def _reads(
    store: Store, variables: tuple[Var, ...], lane: Var, context: TileContext
) -> list[tuple[Steps, int, int]] | None:
    """The steps of every load from memory, that from lane to lane and the bytes of an element, several from one place
    once; None where one is not linear."""
    found: dict[tuple[str, Expr], tuple[Steps, int, int]] = {}
    for load in (x for value in store.values for x in loads(value)):
        buffer = context.buffer(load.buffer)
        if buffer.scope is Scope.REGISTER:
            return None
        form = context.flat(load.buffer, load.indices)
        terms = dict(form.terms)
        if any(not isinstance(atom, Var) and free_vars(atom) & set(variables) for atom in terms):
            return None
        steps = tuple(terms.get(v, 0) for v in variables)
        found[load.buffer, form.expr()] = steps, terms.get(lane, 0), buffer.itemsize
    return list(found.values())


def _offset(steps: Steps, point: Point) -> int:
    return sum(a * b for a, b in zip(steps, point, strict=True))


def _most_at_a_time(used: Sequence[Hashable]) -> int:
    """How many values are needed at a time, each from the first to the last step that uses it."""
    first = {value: n for n, value in reversed(list(enumerate(used)))}
    last = {value: n for n, value in enumerate(used)}
    change = [0] * (len(used) + 1)
    for value, n in first.items():
        change[n] += 1
        change[last[value] + 1] -= 1
    return max(accumulate(change))


def _shares(steps: Steps, lane: int, spatial: list[bool], points: list[Point]) -> bool:
    """Whether copies share what is loaded: steps along the outputs lead where steps of the reduction led, or these lead
    between lanes that are picked from whole vectors."""
    if 1 < lane <= LONGEST_STEP and any(0 < abs(s) < lane for s, out in zip(steps, spatial, strict=True) if not out):
        return True
    moving = [n for n, s in enumerate(steps) if s]
    if not slides(spatial[n] for n in moving):
        return False
    apart = {tuple(p[n] for n in moving) for p in points}
    return len({_offset(steps, p) for p in points}) < len(apart)


def _keeps_order(points: tuple[Point, ...], target: tuple[Point, ...]) -> bool:
    """Whether each accumulator still adds up in the order of the loops: a tie goes to the first."""
    last: dict[Point, Point] = {}
    for point, place in zip(points, target, strict=True):
        if last.get(place, point) > point:
            return False
        last[place] = point
    return True
