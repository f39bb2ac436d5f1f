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
    """Return the conditions that must all hold, in their order, with both bounds of a number at the first of them."""
    found = list(conjuncts(cond))
    bounds = [bound_of(c, simplify) for c in found]
    used: set[int] = set()
    for n, (c, own) in enumerate(zip(found, bounds, strict=True)):
        if n in used:
            continue
        other = next((m for m in range(n + 1, len(found)) if m not in used and _meet(own, bounds[m])), None)
        if own is None or other is None:
            yield c
            continue
        used.add(other)
        low, high = sorted((own, bounds[other]), key=lambda b: b is not None and not b[0])
        assert low is not None
        assert high is not None
        yield Range(low[1].expr(), low[1].constant - high[1].constant)


def _meet(a: Bound | None, b: Bound | None) -> bool:
    """Whether these are the two bounds of one number, with something between them."""
    if a is None or b is None or a[0] is b[0] or a[1].terms != b[1].terms:
        return False
    low, high = (a, b) if a[0] else (b, a)
    return high[1].constant < low[1].constant
