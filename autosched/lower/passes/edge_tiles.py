"""Edge tiles: reductions of unrolled windows, specialised for the tile positions that touch a border.

    for ci:  for kw, ow unrolled:  acc[ow, co] += select(0 <= w + ow + kw - 1 < W, X[..], 0) * Y[..]

Each comparison depends on two unrolled loops, so neither is restricted to an interval. But few values of w, which the
outer loops determine, touch a border: those of the first and last tile of a row. For each of them the reduction is
copied with w as a constant, so that unrolled terms beyond the border are dropped. Of an image whose W is a size
(`ir.size`) the last tile is that where w - W is a constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from autosched.ir.closed_forms.program import Program
from autosched.ir.conditions import LIMITS, given
from autosched.ir.expr import INDEX, Binary, Const, Expr, Param, Var, binary
from autosched.ir.simplify import Simplifier
from autosched.ir.size import has_size, is_sized
from autosched.ir.stmt import For, ForKind, Stmt, walk
from autosched.ir.symbolic import common_divisor, is_known
from autosched.ir.visit import free_vars, map_exprs, substitute
from autosched.lower.passes.path_conditions import PathConditions

MOST_UNROLLED = 64  # iterations of a loop
MOST_PLACES = 8  # of a tile at a border of an image, from some size on


@dataclass(frozen=True)
class EdgeCase:
    """A position that touches a border, as a condition over the outer loops.

    `tests`: the values of the comparisons that do not hold everywhere there; None where one of them never holds."""

    condition: Expr
    tests: dict[Expr, Expr] | None


@dataclass(frozen=True)
class Edge:
    """The positions of a tile over the outer loops that touch a border, and all comparisons that they decide.

    `has_inside`: other positions touch none; without them the first case applies where the others do not.
    """

    all_tests: frozenset[Expr]
    cases: tuple[EdgeCase, ...]
    has_inside: bool = True

    def inside(self, body: Stmt) -> Stmt:
        """Return `body` for interior positions."""
        return map_exprs(body, lambda e: given(e, set(self.all_tests)))

    def at(self, body: Stmt, tests: dict[Expr, Expr] | None) -> Stmt | None:
        """Return `body` at one of the border positions; None if nothing remains."""
        if tests is None:
            return None
        hold = set(self.all_tests - tests.keys())
        return map_exprs(body, lambda e: substitute(given(e, hold), tests))


@dataclass(frozen=True)
class _Moved:
    """A comparison as position + inner `op` 0, with the least and the largest value of the unrolled part."""

    test: Binary
    place: Expr
    inner: Expr
    least: int
    most: int

    def is_met(self, value: int) -> bool:
        """Whether the comparison holds for all unrolled iterations at a position."""
        at_least, limit = LIMITS[self.test.op]
        return value + self.least >= limit if at_least else value + self.most <= limit

    def fails(self, value: int) -> bool:
        """Whether the comparison holds for no unrolled iteration at a position."""
        at_least, limit = LIMITS[self.test.op]
        return value + self.most < limit if at_least else value + self.least > limit

    def at(self, value: int) -> Expr:
        return binary(self.test.op, self.inner + value, Const(0, INDEX))


def find_edge(tests: Iterable[Binary], body: Stmt, path: PathConditions, most_points: int) -> Edge | None:
    """Return the first tile position that decides comparisons with several unrolled loops of `body`; None if there is
    none, or if the outer loops have more than `most_points` points."""
    loops = [s for s in walk(body) if isinstance(s, For)]
    unrolled = {s.var for s in loops if s.kind is ForKind.UNROLL and isinstance(s.extent, Const)}
    unrolled -= {s.var for s in loops if s.kind is not ForKind.UNROLL}
    inner = {s.var for s in loops}
    moved = [m for t in tests if (m := _moved(t, inner, unrolled, path.simplify)) is not None]
    for position in dict.fromkeys(m.place for m in moved):
        tests_here = [m for m in moved if m.place is position]
        values = _values(position, path.simplify, most_points)
        if values is not None:
            bordered = [v for v in values if not all(m.is_met(v) for m in tests_here)]
            cases = tuple(EdgeCase(_is_at(position, v), _at(v, tests_here)) for v in bordered)
            return Edge(frozenset(m.test for m in tests_here), cases)
    return _edge_of_sizes(moved, path)


def _edge_of_sizes(moved: Sequence[_Moved], path: PathConditions) -> Edge | None:
    """Return the edge of a window over an image whose extent is a size.

    The position of the first tile is a number, and that of the last one its distance from the end of the image. None if
    many positions may touch a border. Whether one tile touches both borders is decided by a guard.
    """
    sides: dict[bool, list[_Moved]] = {}
    for m in moved:
        sides.setdefault(LIMITS[m.test.op][0], []).append(m)
    if not moved or any(len({m.place for m in side}) > 1 for side in sides.values()):
        return None
    touching = {at_least: _touching(side, path) for at_least, side in sides.items()}
    first, last = touching.get(True, []), touching.get(False, [])
    if first is None or last is None:
        return None
    if first and last:
        distance = path.simplify(sides[False][0].place - sides[True][0].place)
        if not isinstance(distance, Const) or not distance.number < min(last) - max(first):
            return None
    cases = [EdgeCase(_is_at(s[0].place, v), _at(v, s)) for side, s in sides.items() for v in touching[side] or ()]
    has_inside = not any(_always_touches(side[0], touching[at_least] or (), path) for at_least, side in sides.items())
    return Edge(frozenset(m.test for m in moved), tuple(cases), has_inside)


def _touching(side: Sequence[_Moved], path: PathConditions) -> list[int] | None:
    """Return the positions for which one of the comparisons does not hold everywhere, the innermost one first; None if
    they are not known to be few."""
    at_least = LIMITS[side[0].test.op][0]
    if at_least:
        last = max(LIMITS[m.test.op][1] - m.least for m in side) - 1
        values = range(last, last - MOST_PLACES, -1)
        end = next((n for n, v in enumerate(values) if path.is_at_least(side[0].place, v + 1)), None)
    else:
        last = min(LIMITS[m.test.op][1] - m.most for m in side) + 1
        values = range(last, last + MOST_PLACES)
        end = next((n for n, v in enumerate(values) if path.is_at_most(side[0].place, v - 1)), None)
    if end is None:
        return None
    form = path.simplify.affine(side[0].place)
    grain = common_divisor(*(c for _, c in form.terms))
    return [v for v in values[:end] if has_size(form.constant) or (v - form.constant) % grain == 0]


def _always_touches(side: _Moved, values: Sequence[int], path: PathConditions) -> bool:
    if not values:
        return False
    return (
        path.is_at_most(side.place, max(values))
        if LIMITS[side.test.op][0]
        else path.is_at_least(side.place, min(values))
    )


def _is_at(place: Expr, value: int) -> Expr:
    return Binary("eq", place, Const(value, INDEX))


def _at(value: int, moved: Sequence[_Moved]) -> dict[Expr, Expr] | None:
    if any(m.fails(value) for m in moved):
        return None
    return {m.test: m.at(value) for m in moved if not m.is_met(value)}


def _moved(test: Binary, inner: set[Var], unrolled: set[Var], simplify: Simplifier) -> _Moved | None:
    moving = free_vars(test) & inner
    if len(moving) < 2 or not moving <= unrolled:
        return None
    difference = simplify.affine(test.a - test.b)
    own, other = (0, difference.constant) if has_size(difference.constant) else (difference.constant, 0)
    position: Expr = Const(other, INDEX)
    inside: Expr = Const(own, INDEX)
    least = most = own
    for atom, factor in difference.terms:
        if free_vars(atom) & inner:
            low, last = simplify.bounds(atom)
            high = _largest(last) if has_size(last) else last
            if high is None:
                return None
            inside = inside + atom * factor
            least, most = least + min(low * factor, high * factor), most + max(low * factor, high * factor)
        else:
            position = position + atom * factor
    return _Moved(test, position, inside, least, most) if free_vars(position) or has_size(position) else None


def _largest(last: int) -> int | None:
    """Return a number that the last iteration of a loop, which is a size, does not exceed; None if there is none."""
    return next((n for n in range(MOST_UNROLLED) if is_known("le", last, n)), None)


def _values(place: Expr, simplify: Simplifier, most_points: int) -> Sequence[int] | None:
    """Return all values of the position, ascending."""
    outer = sorted(free_vars(place), key=str)
    bounds = [simplify.bounds(v) for v in outer]
    if is_sized(place) or has_size(tuple(n for pair in bounds for n in pair)):
        return None
    if math.prod(high - low + 1 for low, high in bounds) > most_points:
        return None
    number: dict[Expr, Expr] = {v: Param(v.name) for v in outer}
    points = np.array(list(product(*(range(low, high + 1) for low, high in bounds))), dtype=np.int64)
    values = Program([substitute(place, number)], [v.name for v in outer])(points)[0]
    return sorted({int(x) for x in values})
