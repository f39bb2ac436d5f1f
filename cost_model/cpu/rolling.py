"""Live rolling accumulators of a register tile over a window, in closed form.

A tile with its whole reduction written out goes along the input that its outputs share and writes each of them as soon
as it is complete (`lower/register_tiles/rolling.py`). Of an input that is swept along dimensions with extents
e_1 .. e_n of the tile, outermost first, an element belongs to r_i = ceil(taps / stride) outputs in each at most, and

    live_i = min((r_i - 1) e_i+1 .. e_n + live_i+1, e_i e_i+1 .. e_n),    live_n+1 = 1

outputs have begun and are not complete. That is where one element alone belongs to as many, as of 3 taps with stride 2;
of 4 taps neighbouring elements do, and all r_i e_i+1 .. e_n outputs are live. The input is swept in the order of its
elements or along one of the dimensions before the others, whichever takes least. Beside the outputs the other operands
of the window stay in registers. What fits, and where set conflicts count, are the rules of
`lower/register_tiles/rules.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from autosched.ir.expr import Const, Expr, ceildiv, imin, product, select
from autosched.ir.stmt import ForKind
from autosched.lower.register_tiles.rules import INPUT_REGISTERS, fits, reads_lines_in_parts
from autosched.target import Target
from cost_model.analysis.access import Access


@dataclass(frozen=True, eq=False)
class RollingTile:
    """A tile whose accumulators may roll: `serial` iterations of its reduction have to be one, integers all.

    Of the `outputs` of a vector `live_accumulators` are at a time. `is_window`, bool: outputs share elements of the
    input; `is_broadcast`: so do the lanes, and all vectors of a tile pass by at a time. `has_set_conflicts`, bool: the
    lines that the tile reads are too many for the sets that they share.
    """

    serial: Expr
    outputs: Expr
    live_accumulators: Expr
    is_window: Expr
    is_broadcast: bool
    operands: Expr
    has_set_conflicts: Expr

    def registers(self, accumulators: Expr, target: Target) -> Expr:
        """Registers for accumulators of a tile that has `accumulators` in all."""
        return select(self._may_roll(accumulators, target), imin(self.live_accumulators, accumulators), accumulators)

    def fits_rolling(self, target: Target) -> Expr:
        """Whether all of the window is in registers while it is needed, so that nothing is loaded twice; bool."""
        found = (self.serial <= 1) & self.is_window & self._fit(self.live_accumulators, target)
        return found & ~self.has_set_conflicts if reads_lines_in_parts(target) else found

    def rolls(self, accumulators: Expr, target: Target) -> Expr:
        """Whether outputs are written when they are complete because not all of them have a register; bool."""
        return self._may_roll(accumulators, target) & ~self._fit(accumulators, target)

    def _may_roll(self, accumulators: Expr, target: Target) -> Expr:
        fits_rolling = self.fits_rolling(target)
        return fits_rolling & (accumulators <= self.outputs) if self.is_broadcast else fits_rolling

    def _fit(self, accumulators: Expr, target: Target) -> Expr:
        return fits(accumulators, self.operands + INPUT_REGISTERS, target.n_vector_registers)


@dataclass(frozen=True, eq=False)
class TileLoop:
    """A loop of a register tile: its place among the statement's loops."""

    place: int
    bound: Expr
    kind: ForKind
    is_output: bool


def rolling_tile(loops: Sequence[TileLoop], reads: Sequence[Access]) -> RollingTile | None:
    """The tile of an update in these loops; None where its outputs share no elements of an input."""
    unrolled = [x for x in loops if x.kind is ForKind.UNROLL]
    outputs = [x for x in unrolled if x.is_output]
    steps = [x for x in unrolled if not x.is_output]
    for read in reads:
        swept = _reaches(read, outputs, steps)
        if not swept:
            continue
        orders = [swept, *([pair, *(p for p in swept if p is not pair)] for pair in swept[1:])]
        is_window = reduce(operator.or_, [(x.bound > 1) & (r.outputs > 1) for x, r in swept])
        live = select(is_window, reduce(imin, map(_live, orders)), product([x.bound for x in outputs]))
        is_broadcast = not any(read.moves(x.place) for x in loops if x.kind is ForKind.VECTORIZE)
        others = [product([x.bound for x in steps if r.moves(x.place)]) for r in reads if r is not read]
        serial = product([x.bound for x in loops if x.kind is ForKind.SERIAL])
        operands, has_set_conflicts = sum(others, Const(0)), read.has_set_conflicts(loops[0].place)
        every = product([x.bound for x in outputs])
        return RollingTile(serial, every, live, is_window, is_broadcast, operands, has_set_conflicts)
    return None


@dataclass(frozen=True, eq=False)
class _Reach:
    """Outputs along a loop that an element belongs to at most, and neighbouring elements that belong to the same."""

    outputs: Expr
    elements: Expr


def _live(swept: Sequence[tuple[TileLoop, _Reach]]) -> Expr:
    """Outputs that have begun and are not complete where these loops, outermost first, are swept."""
    live: Expr = Const(1)
    inner: Expr = Const(1)
    for loop, reach in reversed(swept):
        last = select(reach.elements > 1, inner, live)
        live = imin((reach.outputs - 1) * inner + last, loop.bound * inner)
        inner = inner * loop.bound
    return live


def _step(read: Access, loop: TileLoop) -> int:
    """Elements that the loop moves the access, 0 where that is no number."""
    stride = read.stride[loop.place]
    return int(stride.value) if isinstance(stride, Const) else 0


def _reaches(read: Access, outputs: Sequence[TileLoop], steps: Sequence[TileLoop]) -> list[tuple[TileLoop, _Reach]]:
    """Return the loops of the outputs with the reach of an element along each, those that move farthest first; none
    where no step of the reduction leads along one of them.

    Taps that go along an axis inside another, as along the rows of a channel, belong to the inner one.
    """
    found: list[tuple[TileLoop, _Reach]] = []
    used: list[TileLoop] = []
    for output in sorted(outputs, key=lambda x: _step(read, x)):
        by = _step(read, output)
        along = [x for x in steps if _step(read, x) and by and by % _step(read, x) == 0]
        if not along:
            return []
        nearest = max(along, key=lambda x: _step(read, x))
        taps, stride = nearest.bound, by // _step(read, nearest)
        n_outputs = ceildiv(taps, stride)
        elements = Const(1) if nearest in used else taps - (n_outputs - 1) * stride
        found.append((output, _Reach(n_outputs, elements)))
        used.append(nearest)
    return found[::-1]
