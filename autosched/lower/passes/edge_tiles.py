"""Edge tiles: reductions of unrolled windows, specialised for the tile positions that touch a border.

    for ci:  for kw, ow unrolled:  acc[ow, co] += select(0 <= w + ow + kw - 1 < W, X[..], 0) * Y[..]

Each comparison depends on two unrolled loops, so neither is restricted to an interval. But few values of w, which the
outer loops determine, touch a border: those of the first and last tile of a row. For each of them the reduction is
copied with w as a constant, so that unrolled terms beyond the border are dropped.
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
    """A tile position over the outer loops, and what it decides.

    `tests`: for each of its values that touch a border, the values of the comparisons that do not hold everywhere; None
    where one of them never holds. `all_tests`: all comparisons that the position decides.
    """

    place: Expr
    all_tests: frozenset[Expr]
    tests: tuple[tuple[int, dict[Expr, Expr] | None], ...]

    def condition(self, value: int) -> Expr:
        return binary("eq", self.place, Const(value, INDEX))

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


def find_edge(tests: Iterable[Binary], body: Stmt, simplify: Simplifier, most_points: int) -> Edge | None:
    """Return the first tile position that decides comparisons with several unrolled loops of `body`; None if there is
    none, or if the outer loops have more than `most_points` points."""
    loops = [s for s in walk(body) if isinstance(s, For)]
    unrolled = {s.var for s in loops if s.kind is ForKind.UNROLL and isinstance(s.extent, Const)}
    unrolled -= {s.var for s in loops if s.kind is not ForKind.UNROLL}
    inner = {s.var for s in loops}
    moved = [m for t in tests if (m := _moved(t, inner, unrolled, simplify)) is not None]
    for position in dict.fromkeys(m.place for m in moved):
        tests_here = [m for m in moved if m.place is position]
        values = _values(position, simplify, most_points)
        if values is not None:
            bordered = [v for v in values if not all(m.is_met(v) for m in tests_here)]
            return Edge(
                position, frozenset(m.test for m in tests_here), tuple((v, _at(v, tests_here)) for v in bordered)
            )
    return None


def _at(value: int, moved: Sequence[_Moved]) -> dict[Expr, Expr] | None:
    if any(m.fails(value) for m in moved):
        return None
    return {m.test: m.at(value) for m in moved if not m.is_met(value)}


def _moved(test: Binary, inner: set[Var], unrolled: set[Var], simplify: Simplifier) -> _Moved | None:
    moving = free_vars(test) & inner
    if len(moving) < 2 or not moving <= unrolled:
        return None
    difference = simplify.affine(test.a - test.b)
    position: Expr = Const(0, INDEX)
    inside: Expr = Const(difference.constant, INDEX)
    least = most = difference.constant
    for atom, factor in difference.terms:
        if free_vars(atom) & inner:
            low, high = simplify.bounds(atom)
            inside = inside + atom * factor
            least, most = least + min(low * factor, high * factor), most + max(low * factor, high * factor)
        else:
            position = position + atom * factor
    return _Moved(test, position, inside, least, most) if free_vars(position) else None


def _values(place: Expr, simplify: Simplifier, most_points: int) -> Sequence[int] | None:
    """Return all values of the position, ascending."""
    outer = sorted(free_vars(place), key=str)
    bounds = [simplify.bounds(v) for v in outer]
    if math.prod(high - low + 1 for low, high in bounds) > most_points:
        return None
    number: dict[Expr, Expr] = {v: Param(v.name) for v in outer}
    points = np.array(list(product(*(range(low, high + 1) for low, high in bounds))), dtype=np.int64)
    values = Program([substitute(place, number)], [v.name for v in outer])(points)[0]
    return sorted({int(x) for x in values})
