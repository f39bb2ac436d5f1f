"""Path conditions: bounds of indices in the branches and loops of a statement where sizes decide (`ir.size`).

Constants need none: the ranges of loops say all of them. Of a size n a loop of tiles `for t: if n - 4 t >= 4` says more
than its range, namely that 4 t + 3 is below n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autosched.ir.conditions import LIMITS, NEGATED, conjuncts, ends_of, is_ordering
from autosched.ir.expr import INDEX, Binary, Expr
from autosched.ir.simplify import Simplifier
from autosched.ir.size import has_size, is_sized
from autosched.ir.stmt import For
from autosched.ir.symbolic import is_known
from autosched.ir.visit import substitute


@dataclass(frozen=True)
class PathConditions:
    """A simplifier, with the ranges of loops, and forms of sizes that are 0 or more where a statement runs."""

    simplify: Simplifier
    positive: tuple[Expr, ...] = ()

    def where(self, cond: Expr, is_true: bool = True) -> PathConditions:
        """Return the conditions of a branch that is taken where `cond` holds, or where it does not."""
        parts = list(conjuncts(cond))
        if not is_sized(cond) or not (is_true or len(parts) == 1):
            return self
        known = []
        for part in parts:
            if isinstance(part, Binary) and part.op == "eq" and is_true and part.a.dtype == INDEX:
                known += [part.a - part.b, part.b - part.a]
            elif is_ordering(part):
                known.append(_slack(part if is_true else Binary(NEGATED[part.op], part.a, part.b)))
        return replace(self, positive=(*self.positive, *map(self.simplify, known)))

    def inside(self, loop: For) -> PathConditions:
        """Return the conditions of the body of a loop."""
        known = self
        for end in ends_of(loop):
            known = known.where(Binary("lt", loop.var, end))
        return known

    def at(self, values: Mapping[Expr, Expr]) -> PathConditions:
        """Return the conditions for values of some variables."""
        return replace(self, positive=tuple(self.simplify(substitute(form, values)) for form in self.positive))

    def decide(self, cond: Expr) -> bool | None:
        """Return whether a comparison holds; None where it does for some iterations only, or that is not known."""
        if not is_ordering(cond):
            return None
        if self.is_at_least(_slack(cond), 0):
            return True
        return False if self.is_at_least(_slack(Binary(NEGATED[cond.op], cond.a, cond.b)), 0) else None

    def is_at_least(self, form: Expr, number: int) -> bool:
        """Whether the form is known to be `number` or more."""
        match self.simplify(form):
            case Binary(op="max", a=a, b=b):
                return self.is_at_least(a, number) or self.is_at_least(b, number)
            case Binary(op="min", a=a, b=b):
                return self.is_at_least(a, number) and self.is_at_least(b, number)
        terms = dict(self.simplify.affine(form).terms)
        differences = (form, *(form - known * self._multiple(terms, known) for known in self.positive))
        return any(is_known("ge", self.simplify.bounds(d)[0], number) for d in differences)

    def _multiple(self, terms: Mapping[Expr, int], known: Expr) -> int:
        """Return how many times a known form may be subtracted so that one of the terms goes; at least once."""
        ratios = ((terms[atom], c) for atom, c in self.simplify.affine(known).terms if atom in terms)
        return next((a // c for a, c in ratios if not has_size((a, c)) and a % c == 0 and a // c > 0), 1)

    def is_at_most(self, form: Expr, number: int) -> bool:
        """Whether the form is known to be `number` or less."""
        match self.simplify(form):
            case Binary(op="max", a=a, b=b):
                return self.is_at_most(a, number) and self.is_at_most(b, number)
            case Binary(op="min", a=a, b=b):
                return self.is_at_most(a, number) or self.is_at_most(b, number)
        return self.is_at_least(form * -1, -number)

    def interval(self, form: Expr, extent: int) -> range:
        """Return the values between 0 and `extent` that the form may have when it is clamped to them."""
        low = next((n for n in range(extent, 0, -1) if self.is_at_least(form, n)), 0)
        high = next((n for n in range(low, extent) if self.is_at_most(form, n)), extent)
        return range(low, high + 1)


def _slack(comparison: Binary) -> Expr:
    """Return the form that is 0 or more where the comparison holds."""
    at_least, limit = LIMITS[comparison.op]
    difference = comparison.a - comparison.b
    return difference - limit if at_least else difference * -1 + limit
