"""Prefix scans of a block of adjacent elements: log2(n) steps of shifted vectors instead of n.

    for k unrolled: for l in vectors: A[l] += select(k <= l, X[k], 0)

The tile is one unrolled loop around vectors of as many elements; what the condition compares, with which operator, says
in which direction the elements are combined, and whether each one is combined with itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autosched.ir.conditions import LIMITS, MIRRORED, is_ordering
from autosched.ir.expr import Expr, Select, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Store
from autosched.ir.visit import free_vars, is_gathered, loads, substitute
from autosched.lower.register_tiles.context import RegisterTile, TileContext, next_power, number_of
from autosched.lower.register_tiles.rules import LEAST_SCANNED


@dataclass(frozen=True)
class ScanPlan:
    """The elements `term` over the variable `lane`, from 0 to `extent`: element k is combined into all lanes l for
    which `k operator l` holds. `vectors`: the lanes of each; those from `extent` on do not exist."""

    store: Store
    lane: Var
    term: Expr
    extent: int
    operator: str
    vectors: tuple[range, ...]

    n_statements = 1

    def __str__(self) -> str:
        return f"prefix scan of {self.extent} elements in {len(self.vectors)} vectors"


def plan_scan(tile: RegisterTile, context: TileContext) -> ScanPlan | None:
    """Return the plan of a tile that is a prefix scan: one unrolled loop around vectors of as many elements."""
    unrolled, inner, store = tile.unrolled, tile.inner, tile.store
    (k, extent), lane = unrolled[0], inner.var
    if len(unrolled) != 1 or extent != number_of(inner.extent) or extent < LEAST_SCANNED:
        return None
    if store.reducer is None or len(store.values) != 1:
        return None
    value = store.values[0]
    if not isinstance(value, Select) or value.b is not store.reducer.identity[0]:
        return None
    operator, vectors = _operator(value.cond, k, lane, context.simplify), tuple(_vectors(extent, context.width(inner)))
    if operator is None or len(vectors[0]) == 1 or lane in free_vars(value.a):
        return None
    term = substitute(value.a, {k: lane})
    if not _is_adjacent(term, lane, vectors[0], context):
        return None
    return ScanPlan(store, lane, term, extent, operator, vectors)


def _vectors(extent: int, width: int) -> Iterator[range]:
    """Yield the lanes of the vectors of a loop; the last has as few as a power of two can."""
    lanes = min(width, next_power(extent))
    whole, rest = divmod(extent, lanes)
    yield from (range(n * lanes, (n + 1) * lanes) for n in range(whole))
    if rest:
        yield range(whole * lanes, whole * lanes + next_power(rest))


def _operator(cond: Expr, k: Var, lane: Var, simplify: Simplifier) -> str | None:
    """Return the operator of the comparison of `k` and `lane` that the condition is; None for all others."""
    if not is_ordering(cond):
        return None
    form = simplify.affine(cond.a - cond.b)
    steps, op, shift = dict(form.terms), cond.op, form.constant
    if steps == {k: -1, lane: 1}:
        op, shift = MIRRORED[op], -shift
    elif steps != {k: 1, lane: -1}:
        return None
    is_least, end = LIMITS[op]
    return next((o for o, limit in LIMITS.items() if limit == (is_least, end - shift)), None)


def _is_adjacent(term: Expr, lane: Var, lanes: range, context: TileContext) -> bool:
    """Return whether what the term reads follows each other lane by lane, or is the same in all of them."""
    if any(map(is_gathered, loads(term))):
        return False
    forms = (context.flat(x.buffer, x.indices) for x in loads(term))
    return all(context.address(form, lane, lanes, {}).stride in (0, 1) for form in forms)
