"""Traffic of one access: bytes into each cache, and pages that address translation has to find again.

Second-level address translation is a cache whose lines are pages: it holds so many, whatever their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosched.ir.closed_forms.arithmetic import ZERO, maximum, minimum, multiply
from autosched.ir.expr import Expr
from cost_model.analysis.access import Access, excess, transferred
from cost_model.analysis.statements import Statement


def traffic(statement: Statement, access: Access, caches: Sequence[float], level: int) -> Expr:
    """Bytes that the access moves into the `level`th of caches of so many bytes, real, where it does not hold
    all that the function touches."""
    if access.in_registers:
        return ZERO
    per_line = float(access.line_bytes * access.traffic_factor)
    return _moved(statement, tuple([multiply(n, per_line) for n in access.moved_lines]), caches, level)


def moved_into(statement: Statement, access: Access, caches: Sequence[float], level: int, comes_from: int = 0) -> Expr:
    """Bytes that the access moves into the `level`th of the caches, real; `comes_from`: how many of them its buffer is
    beyond at each call."""
    moved = traffic(statement, access, caches, level)
    return moved if level < comes_from else unless_all_fits(statement, moved, caches, level)


def pages_fetched(statement: Statement, access: Access, caches: Sequence[float], level: int) -> Expr:
    """Pages, counted again for each time, from which the access fills the `level`th of the caches, real, where it
    does not hold all that the function touches."""
    return ZERO if access.in_registers else _moved(statement, access.pages, caches, level)


def _moved(statement: Statement, footprint: tuple[Expr, ...], caches: Sequence[float], level: int) -> Expr:
    return multiply(transferred(footprint, statement.runs, statement.sets(level), caches[level]), statement.weight)


def unless_all_fits(statement: Statement, moved: Expr, caches: Sequence[float], level: int) -> Expr:
    """What is moved into the `level`th of the caches: nothing where it holds all that the function touches, because a
    kernel is called again and again."""
    return moved if moved is ZERO else minimum(moved, maximum(0.0, excess(statement.sets(level)[0], caches[level])))


def pages_walked(statement: Statement, access: Access, reach: float) -> Expr:
    """Pages, counted again for each time, that the access finds beyond a translation cache of `reach` pages, real,
    where that does not hold all that the function touches."""
    if access.in_registers:
        return ZERO
    return multiply(transferred(access.pages, statement.runs, statement.paged_set, reach), statement.weight)


def unless_all_pages_fit(statement: Statement, walked: Expr, reach: float) -> Expr:
    """Pages that are found again and again: none where all pages that the function touches are in reach."""
    return minimum(walked, maximum(0.0, excess(statement.paged_set[0], reach)))
