"""Padding analysis: the cost of padded reads' conditions in a register tile, and the share of its reduction that runs.

    tested    share of the steps of the reduction for which comparisons are evaluated, all of them or those of a tile
    inside    share of the reduction that is done

As `lower.passes.partition_interior` and `lower.passes.borders` have it: tiles away from the borders have no
comparisons. At a border those are settled outside of the reduction's inner loops if at most one unrolled loop moves
them, or nothing else inside the tile does, and what is outside is left out.

Points outside, where s a + d k < p: a runs over N points of the output, k over K points of the reduction, p is the
padding at either end. That is about p (p + d + s - 1) / (2 s d) of N K pairs, exactly where s = 1 and d divides p.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    absolute,
    add,
    divide,
    maximum,
    minimum,
    multiply,
    product_of,
    real,
    subtract,
    sum_of,
    where,
)
from autosched.ir.conditions import adds_nothing, comparisons
from autosched.ir.expr import Binary, Const, Expr
from autosched.ir.linear import ZERO as NO_STEP
from autosched.ir.linear import linear
from autosched.ir.stmt import ForKind, Store
from autosched.ir.visit import free_vars
from cost_model.analysis.trips import AnalysedLoop


@dataclass(frozen=True)
class Padding:
    tested: Expr
    inside: Expr


def padding_of(store: Store, loops: Sequence[AnalysedLoop], tile: int) -> Padding:
    """Return the padding costs of a store in a register tile inside the outer `tile` loops."""
    tested: list[Expr] = []
    outside: dict[frozenset[Expr], list[Expr]] = {}  # of each axis of the image: its two ends exclude each other
    for comparison in comparisons([store]):
        inner = loops[tile:]
        settled = _settled(store, comparison, inner)
        often = where(real(settled) > 0.5, divide(1.0, _steps_inside(comparison, inner)), 1.0)
        tested.append(multiply(_at_border(comparison, loops, tile), often))
        outside.setdefault(free_vars(comparison), []).append(multiply(_outside(comparison, loops), settled))
    shares = [maximum(0.0, subtract(1.0, sum_of(ends))) for ends in outside.values()]
    return Padding(minimum(1.0, sum_of(sorted(tested, key=str))), product_of(shares))


def _steps_inside(comparison: Expr, inner: Sequence[AnalysedLoop]) -> Expr:
    """Steps of the reduction for each time that a comparison is settled, in the innermost loop that moves it or outside
    of all."""
    running = [x for x in inner if x.kind is ForKind.SERIAL and x.reduce]
    last = max((n for n, x in enumerate(running) if x.var in free_vars(comparison)), default=-1)
    return product_of(x.trips for x in running[last + 1 :])


def _at_border(comparison: Expr, loops: Sequence[AnalysedLoop], tile: int) -> Expr:
    """Of n tiles in a row one lies at the border that a comparison is about.

    A single tile lies there as long as the reduction has loops that move the comparison; written out, it is decided.
    """
    moving = [x.var in free_vars(comparison) for x in loops]
    tiles = product_of(x.trips for x, moves in zip(loops[:tile], moving, strict=False) if moves)
    steps = product_of(
        x.trips for x, m in zip(loops[tile:], moving[tile:], strict=True) if m and x.kind is ForKind.SERIAL
    )
    return where(real(tiles) > 1.0, divide(1.0, tiles), where(real(steps) > 1.0, 1.0, 0.0))


def _settled(store: Store, comparison: Expr, inner: Sequence[AnalysedLoop]) -> Expr:
    """1.0 if the comparison is settled outside of the innermost loops of the reduction, else 0.0."""
    moving = [x for x in inner if x.var in free_vars(comparison)]
    if not adds_nothing(store, comparison) or any(x.kind is ForKind.VECTORIZE for x in moving):
        return ZERO
    unrolled, serial = (_longer(x for x in moving if x.kind is kind) for kind in (ForKind.UNROLL, ForKind.SERIAL))
    running = _longer(x for x in inner if x.kind is ForKind.SERIAL and x.reduce)
    few = (real(unrolled) < 1.5) | (real(serial) < 0.5)
    return where(few & (real(running) > 0.5), 1.0, 0.0)


def _longer(loops: Iterable[AnalysedLoop]) -> Expr:
    """How many of the loops have several iterations."""
    return sum_of(where(real(x.trips) > 1.0, 1.0, 0.0) for x in loops)


def _outside(comparison: Binary, loops: Sequence[AnalysedLoop]) -> Expr:
    """The share of all iterations in which the comparison does not hold; 0 where it is about several axes."""
    sign = 1 if comparison.op in ("ge", "gt") else -1
    form = linear((comparison.a - comparison.b) * sign)
    lowest = real(form.constant) if comparison.op in ("ge", "le") else subtract(form.constant, 1.0)
    steps: list[Expr] = []
    counts: list[Expr] = []
    several = False
    span: Expr = ZERO  # of all loops
    for reduce in (False, True):
        moving = [(x, c) for x in loops if x.reduce is reduce and (c := form.coefficient(x.var)) is not NO_STEP]
        numbers = [int(c.value) for _, c in moving if isinstance(c, Const)]
        count = product_of(x.trips for x, _ in moving)
        step = min(map(abs, numbers), default=0)
        smallest = sum(abs(n) == step for n in numbers)
        several |= len(set(numbers)) < len(numbers) or smallest > 1
        steps += [real(float(step or 1))] * max(1, smallest)
        counts.append(count)
        span = add(span, sum_of(multiply(absolute(c), subtract(x.trips, 1.0)) for x, c in moving))
        if step and min(numbers) < 0:
            spans = [multiply(absolute(c), subtract(x.last, 1.0)) for x, c in moving]
            lowest = subtract(lowest, sum_of(spans) if several else multiply(subtract(count, 1.0), float(step)))
    padded = subtract(0.0, lowest)
    corner, most_of_all = _corner(padded, steps), ONE
    if several:  # no simplex where it is higher than an axis is long: no more than if positions lay evenly
        most_of_all = divide(maximum(0.0, padded), add(span, 1.0))
    else:
        ends = [multiply(*along) for along in zip(counts, steps, strict=True)]
        corner = subtract(corner, sum_of(_corner(subtract(padded, end), steps) for end in ends))
    return minimum(minimum(1.0, most_of_all), divide(corner, multiply(*counts)))


def _corner(depth: Expr, steps: Sequence[Expr]) -> Expr:
    """Points of outputs and steps of the reduction in the triangle (or simplex), `depth` high, that is cut off."""
    high, n = maximum(0.0, depth), len(steps)
    apart = multiply(subtract(sum_of(steps), 1.0), 1.0 / (n - 1))
    points = product_of(add(high, multiply(apart, float(i))) for i in range(n))
    return divide(points, multiply(product_of(steps), float(math.factorial(n))))
