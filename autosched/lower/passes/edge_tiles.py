"""Tiles at a border of which their place decides what lies beyond it: those of a window that is written out.

    for ci:  for kw, ow unrolled:  acc[ow, co] += select(0 <= w + ow + kw - 1 < W, X[..], 0) * Y[..]

Two loops move the comparisons, so that what is left of either is no interval. But w, which the loops outside decide,
has few values at which anything is beyond the border: those of the first tile of a row and of the last one. For each
of them the reduction is written out with w as a number, so that copies beyond the border are known to be there.
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
from autosched.ir.stmt import For, ForKind, Stmt, walk
from autosched.ir.visit import free_vars, map_exprs, substitute


@dataclass(frozen=True)
class Edge:
    """`place`: over the loops outside. `tests`: for each of its values at which not all comparisons hold, those that do
    not hold everywhere, with what they are there; None where one is met nowhere. `all_tests`: all that it decides."""

    place: Expr
    all_tests: frozenset[Expr]
    tests: tuple[tuple[int, dict[Expr, Expr] | None], ...]

    def condition(self, value: int) -> Expr:
        return binary("eq", self.place, Const(value, INDEX))

    def inside(self, body: Stmt) -> Stmt:
        """`body` where the place is none of the values."""
        return map_exprs(body, lambda e: given(e, set(self.all_tests)))

    def at(self, body: Stmt, tests: dict[Expr, Expr] | None) -> Stmt | None:
        """`body` at one of the values; None if nothing is left of it."""
        if tests is None:
            return None
        hold = set(self.all_tests - tests.keys())
        return map_exprs(body, lambda e: substitute(given(e, hold), tests))


@dataclass(frozen=True)
class _Moved:
    """A comparison as place + inner `op` 0, with the least and the largest value of what unrolled loops move."""

    test: Binary
    place: Expr
    inner: Expr
    least: int
    most: int

    def is_met(self, value: int) -> bool:
        """Everywhere, at a place."""
        at_least, limit = LIMITS[self.test.op]
        return value + self.least >= limit if at_least else value + self.most <= limit

    def fails(self, value: int) -> bool:
        """Likewise."""
        at_least, limit = LIMITS[self.test.op]
        return value + self.most < limit if at_least else value + self.least > limit

    def at(self, value: int) -> Expr:
        return binary(self.test.op, self.inner + value, Const(0, INDEX))


def find_edge(tests: Iterable[Binary], body: Stmt, simplify: Simplifier, most_points: int) -> Edge | None:
    """The first place on which comparisons depend that several unrolled loops of `body` move; None where there is none,
    or where the loops outside have more points than are looked at."""
    loops = [s for s in walk(body) if isinstance(s, For)]
    unrolled = {s.var for s in loops if s.kind is ForKind.UNROLL and isinstance(s.extent, Const)}
    unrolled -= {s.var for s in loops if s.kind is not ForKind.UNROLL}
    inner = {s.var for s in loops}
    moved = [m for t in tests if (m := _moved(t, inner, unrolled, simplify)) is not None]
    for place in dict.fromkeys(m.place for m in moved):
        here = [m for m in moved if m.place is place]
        values = _values(place, simplify, most_points)
        if values is not None:
            bordered = [v for v in values if not all(m.is_met(v) for m in here)]
            return Edge(place, frozenset(m.test for m in here), tuple((v, _at(v, here)) for v in bordered))
    return None


def _at(value: int, moved: Sequence[_Moved]) -> dict[Expr, Expr] | None:
    if any(m.fails(value) for m in moved):
        return None
    return {m.test: m.at(value) for m in moved if not m.is_met(value)}


def _moved(test: Binary, inner: set[Var], unrolled: set[Var], simplify: Simplifier) -> _Moved | None:
    moving = free_vars(test) & inner
    if len(moving) < 2 or not moving <= unrolled:
        return None
    form = simplify.affine(test.a - test.b)
    place: Expr = Const(0, INDEX)
    inside: Expr = Const(form.constant, INDEX)
    least = most = form.constant
    for atom, factor in form.terms:
        if free_vars(atom) & inner:
            low, high = simplify.bounds(atom)
            inside = inside + atom * factor
            least, most = least + min(low * factor, high * factor), most + max(low * factor, high * factor)
        else:
            place = place + atom * factor
    return _Moved(test, place, inside, least, most) if free_vars(place) else None


def _values(place: Expr, simplify: Simplifier, most_points: int) -> Sequence[int] | None:
    """All values that the place has, ascending."""
    outer = sorted(free_vars(place), key=str)
    bounds = [simplify.bounds(v) for v in outer]
    if math.prod(high - low + 1 for low, high in bounds) > most_points:
        return None
    number: dict[Expr, Expr] = {v: Param(v.name) for v in outer}
    points = np.array(list(product(*(range(low, high + 1) for low, high in bounds))), dtype=np.int64)
    found = Program([substitute(place, number)], [v.name for v in outer])(points)[0]
    return sorted({int(x) for x in found})
