"""Padding removal: reductions skip the padding of windows as soon as the outer loops determine it.

    for kh, kw, ci:  for oh:  acc[oh, co] += select(0 <= h + oh + kh - 1 < H and 0 <= w + kw - 1 < W, X[..], 0) * Y[..]

    for kh:                                                       the rows oh inside of the image, one of a few cases
        for kw:  if 0 <= w + kw - 1 < W:
            for ci:  for these oh:  acc[oh, co] += X[..] * Y[..]

A comparison without variables of inner loops becomes one test. A comparison with the variable of an unrolled loop of
the register tile restricts this loop to an interval; the code has a copy for every interval that occurs, so that
accumulators stay in registers. A comparison with several unrolled variables is decided by the position of the tile
(`edge_tiles.py`). Skipped terms are the reducer's identity: zeros in a sum, even where they would be multiplied by
infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from autosched.ir.closed_forms.program import Program
from autosched.ir.conditions import adds_nothing, comparisons, given
from autosched.ir.expr import INDEX, Binary, Const, Expr, Param, Var, binary, imax, imin
from autosched.ir.simplify import Simplifier
from autosched.ir.size import has_size, is_sized
from autosched.ir.stmt import Allocate, For, ForKind, If, Prefetch, Seq, Stmt, Store, changed, walk
from autosched.ir.visit import free_vars, map_exprs, substitute
from autosched.lower.passes.edge_tiles import find_edge
from autosched.lower.passes.instantiate import simplify_stmt
from autosched.lower.passes.path_conditions import PathConditions

MAX_COPIES = 16  # of the body of a reduction, for the intervals of its unrolled loops
MAX_POINTS = 256  # of the outer loops that are enumerated to find these intervals
_AS_GE = {"ge": (1, 0), "gt": (1, -1), "le": (-1, 0), "lt": (-1, -1)}  # a op b is sign * (a - b) + constant >= 0
TRUE = Const(True, "bool")


@dataclass(frozen=True)
class BorderCase:
    """The iterations low <= i < high, under a condition over the outer loops."""

    condition: Expr
    low: int
    high: int


@dataclass(frozen=True)
class Cut:
    """The remaining iterations lo <= i < hi of an unrolled loop of `extent` iterations."""

    extent: int
    lo: Expr
    hi: Expr

    def cases(self, path: PathConditions) -> list[BorderCase]:
        """Return all intervals that occur, longest first; the first whose condition holds applies."""
        pairs = sorted(self._pairs(path), key=lambda p: (p[0] - p[1], p))
        return [BorderCase(TRUE if p is pairs[-1] else self._contains(*p), *p) for p in pairs]

    def _contains(self, low: int, high: int) -> Expr:
        return binary("le", self.lo, Const(low, INDEX)) & binary("ge", self.hi, Const(high, INDEX))

    def _pairs(self, path: PathConditions) -> set[tuple[int, int]]:
        outer = sorted(free_vars(self.lo) | free_vars(self.hi), key=str)
        bounds = [path.simplify.bounds(v) for v in outer]
        if has_size(tuple(n for pair in bounds for n in pair)) or is_sized(self.lo) or is_sized(self.hi):
            return self._pairs_of_sizes(dict(zip(outer, bounds, strict=True)), path)
        if math.prod(high - low + 1 for low, high in bounds) > MAX_POINTS:
            lows, highs = self._between(self.lo, path.simplify), self._between(self.hi, path.simplify)
            return {_interval(low, high) for low in lows for high in highs}
        number: dict[Expr, Expr] = {v: Param(v.name) for v in outer}
        ends = Program([substitute(end, number) for end in (self.lo, self.hi)], [v.name for v in outer])
        points = list(product(*(range(low, high + 1) for low, high in bounds)))
        found = ends(np.array(points, dtype=np.int64).reshape(len(points), len(outer))).astype(np.int64).T.tolist()
        return {_interval(max(low, 0), min(high, self.extent)) for low, high in found}

    def _pairs_of_sizes(self, bounds: Mapping[Expr, tuple[int, int]], path: PathConditions) -> set[tuple[int, int]]:
        """Return all intervals that may occur: for each point of the loops without sizes what the path allows."""
        near = {v: range(low, high + 1) for v, (low, high) in bounds.items() if not has_size((low, high))}
        if math.prod(map(len, near.values())) > MAX_POINTS:
            near = {}
        pairs: set[tuple[int, int]] = set()
        for point in product(*near.values()):
            values: dict[Expr, Expr] = {v: Const(n, INDEX) for v, n in zip(near, point, strict=True)}
            here = path.at(values)
            lows, highs = (here.interval(substitute(end, values), self.extent) for end in (self.lo, self.hi))
            pairs |= {_interval(low, high) for low in lows for high in highs}
        return pairs

    def _between(self, end: Expr, simplify: Simplifier) -> range:
        least, most = simplify.bounds(end)
        return range(min(max(least, 0), self.extent), min(max(most, 0), self.extent) + 1)


def _interval(low: int, high: int) -> tuple[int, int]:
    return (low, high) if low < high else (0, 0)


def settle_borders(stmt: Stmt, path: PathConditions, copies: int = MAX_COPIES) -> Stmt:
    """Return the register tile `stmt` with reductions that skip padding, each with at most `copies` copies."""
    match stmt:
        case For(kind=ForKind.SERIAL, reduce=True):
            return _settled(stmt, path, copies) or Seq(())
        case Allocate() | For(kind=ForKind.SERIAL):
            return changed(stmt, body=settle_borders(stmt.body, path, copies))
        case Seq(stmts=stmts):
            return Seq(tuple(settle_borders(s, path, copies) for s in stmts))
        case If(cond=cond, then=then, otherwise=other):
            other = None if other is None else settle_borders(other, path, copies)
            return If(cond, settle_borders(then, path, copies), other)
    return stmt


def _inside(stmt: Stmt, path: PathConditions, copies: int) -> Stmt | None:
    """Return `stmt`, all of whose tests are decided outside; None if nothing remains."""
    if not (isinstance(stmt, For) and stmt.kind is ForKind.SERIAL and stmt.reduce):
        return settle_borders(stmt, path, copies)
    body = _settled(stmt.body, path, copies)
    return None if body is None else changed(stmt, body=body)


def _settled(body: Stmt, path: PathConditions, copies: int) -> Stmt | None:
    """Return a reduction loop, or the body of one, under the tests that are decided here; None if nothing remains."""
    candidates = [c for c in comparisons(s for s in walk(body) if isinstance(s, Store)) if _is_left_out(body, c)]
    edge = find_edge(candidates, body, path, MAX_POINTS)
    if edge is not None and (count := len(edge.cases)) < copies:
        copies //= count + 1
        bodies = [(case.condition, edge.at(body, case.tests)) for case in edge.cases]
        first = edge.inside(body) if edge.has_inside else bodies.pop(0)[1]
        settled = None if first is None else _settled(first, path, copies)
        for place, edge_body in bodies:
            edge_case = None if edge_body is None else _settled(edge_body, path, copies)
            settled = If(place, edge_case or Seq(()), settled)
        return settled
    inner = {s.var for s in walk(body) if isinstance(s, For)}
    decided: set[Expr] = set()
    condition: Expr = TRUE
    for comparison in candidates:
        if not free_vars(comparison) & inner:
            decided.add(comparison)
            condition = condition & comparison
    chosen: list[tuple[Var, list[BorderCase]]] = []
    for var in sorted(inner, key=str):
        moved = [c for c in candidates if free_vars(c) & inner == {var}]
        cut = _cut(moved, var, body, path.simplify) if moved else None
        cases = [] if cut is None else cut.cases(path)
        if cases and (count := sum(c.low < c.high for c in cases)) <= copies:
            copies //= max(1, count)
            decided.update(moved)
            chosen.append((var, cases))
    if not decided:
        return _inside(body, path, copies)
    inside = _in_cases(map_exprs(body, lambda e: given(e, decided)), chosen, path, copies)
    return inside if condition is TRUE or inside is None else If(condition, inside)


def _in_cases(
    body: Stmt, cuts: Sequence[tuple[Var, list[BorderCase]]], path: PathConditions, copies: int
) -> Stmt | None:
    if not cuts:
        done = simplify_stmt(body, path.simplify)
        return None if done is None else _inside(done, path, copies)
    (var, cases), *others = cuts
    result: Stmt | None = None
    for case in reversed(cases):
        case_body = _shortened(body, var, case.low, case.high)
        inside = _in_cases(case_body, others, path, copies) if case.low < case.high else None
        if case.condition is TRUE:
            result = inside
        elif inside is not None or result is not None:
            result = If(case.condition, inside or Seq(()), result)
    return result


def _shortened(stmt: Stmt, var: Var, low: int, high: int) -> Stmt:
    """Return `stmt` with the loop over `var` restricted to low <= var < high."""
    match stmt:
        case For() if stmt.var is var:
            number = Const(high - low, INDEX)
            body = stmt.body if low == 0 else map_exprs(stmt.body, lambda e: substitute(e, {var: var + low}))
            return changed(stmt, extent=number, bound=number, body=body)
        case For():
            return changed(stmt, body=_shortened(stmt.body, var, low, high))
        case Seq(stmts=stmts):
            return Seq(tuple(_shortened(s, var, low, high) for s in stmts))
        case If(cond=cond, then=then, otherwise=other):
            other = None if other is None else _shortened(other, var, low, high)
            return If(cond, _shortened(then, var, low, high), other)
    return stmt


def _cut(comparisons: Sequence[Binary], var: Var, body: Stmt, simplify: Simplifier) -> Cut | None:
    """Return the interval of the unrolled loop over `var` in which the comparisons hold; None if not in closed form."""
    extents = {
        s.extent if s.kind is ForKind.UNROLL else None for s in walk(body) if isinstance(s, For) and s.var is var
    }
    extent = extents.pop()
    if extents or not isinstance(extent, Const):
        return None
    low: Expr = Const(0, INDEX)
    high: Expr = extent
    for comparison in comparisons:
        sign, constant = _AS_GE[comparison.op]
        form = simplify.affine((comparison.a - comparison.b) * sign + constant)
        step = dict(form.terms).get(var, 0)
        rest = form.expr() - var * step
        if step == 0 or var in free_vars(simplify(rest)):
            return None
        if step > 0:
            low = imax(low, (rest // step) * -1)
        else:
            high = imin(high, rest // -step + 1)
    return Cut(extent.number, simplify(low), simplify(high))


def _is_left_out(body: Stmt, comparison: Expr) -> bool:
    """Whether the body has no effect where the comparison is false; prefetches do not count."""
    return all(
        isinstance(s, (For, Seq, If, Prefetch)) or (isinstance(s, Store) and adds_nothing(s, comparison))
        for s in walk(body)
    )
