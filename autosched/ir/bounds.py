"""Canonical comparisons of indices, which identify comparisons of the same expression."""

from __future__ import annotations

from autosched.ir.conditions import LIMITS, is_ordering
from autosched.ir.expr import Expr
from autosched.ir.simplify import Affine, Simplifier

Bound = tuple[bool, Affine]  # form >= 0, or form < 0


def bound_of(cond: Expr, simplify: Simplifier) -> Bound | None:
    """A comparison as a bound of a form; None of what is no comparison of indices."""
    if not is_ordering(cond):
        return None
    is_least, limit = LIMITS[cond.op]
    form = simplify.affine(cond.a - cond.b)
    return is_least, Affine(form.terms, form.constant - limit - (0 if is_least else 1))
