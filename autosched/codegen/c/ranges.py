"""Range checks: two bounds of one number as one unsigned comparison.

y + r >= 1 && y + r < 15    ->    (unsigned)(y + r - 1) < 14
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autosched.ir.bounds import Bound, bound_of
from autosched.ir.conditions import conjuncts
from autosched.ir.expr import Expr
from autosched.ir.simplify import Simplifier


@dataclass(frozen=True)
class Range:
    """0 <= `number` < `size`."""

    number: Expr
    size: int


def in_ranges(cond: Expr, simplify: Simplifier) -> Iterator[Expr | Range]:
    """Yield the conditions of the conjunction in order; a Range replaces both bounds of a number, at the first one."""
    conditions = list(conjuncts(cond))
    bounds = [bound_of(condition, simplify) for condition in conditions]
    used: set[int] = set()
    for i, (condition, bound) in enumerate(zip(conditions, bounds, strict=True)):
        if i in used:
            continue
        other = next(
            (j for j in range(i + 1, len(conditions)) if j not in used and _are_bounds_of_one_range(bound, bounds[j])),
            None,
        )
        if bound is None or other is None:
            yield condition
            continue
        used.add(other)
        low, high = sorted((bound, bounds[other]), key=lambda b: b is not None and not b[0])
        assert low is not None
        assert high is not None
        yield Range(low[1].expr(), low[1].constant - high[1].constant)


def _are_bounds_of_one_range(a: Bound | None, b: Bound | None) -> bool:
    """Whether these are the two bounds of one number, of a range that is not empty."""
    if a is None or b is None or a[0] is b[0] or a[1].terms != b[1].terms:
        return False
    low, high = (a, b) if a[0] else (b, a)
    return high[1].constant < low[1].constant
