"""Border tiles of a stage that is computed in tiles of its readers: how many there are, and what they cost.

A tile whose region, with its halo, lies inside the tensor is computed in loops of constant extents, another one in
loops whose extents are clipped to the tensor (`lower/symbolic/nest.py`). The share of the first is the share of
tiles in which the guard's comparisons hold. A comparison is  constant + sum c_v v >= 0;  of the values of that sum,
taken as if they lay evenly from the lowest to the highest at the smallest stride s,

    ceil(-lowest / s)  of  (highest - lowest) / s + 1

are below zero. Comparisons about the same loops are about two ends of an axis, which exclude each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    absolute,
    add,
    ceil,
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
from autosched.ir.conditions import LIMITS, conjuncts, is_ordering
from autosched.ir.expr import Binary, Const, Expr, Var
from autosched.ir.linear import Linear, linear
from autosched.ir.visit import free_vars, is_closed, subexpressions
from cost_model.analysis.trips import AnalysedLoop, share_of

LONGEST = 1e9  # a stride where no loop has a second iteration


def share_of_whole_tiles(guard: Expr, loops: Sequence[AnalysedLoop]) -> Expr:
    """The share of iterations of `loops` in which a conjunction of comparisons holds, real."""
    below: dict[frozenset[Var], list[Expr]] = {}
    decided: list[Expr] = []
    for condition in conjuncts(guard):
        if is_closed(condition) or not is_ordering(condition):
            decided.append(share_of(condition, loops))
        else:
            is_least, limit = LIMITS[condition.op]
            least = condition.a - condition.b - limit if is_least else condition.b - condition.a + limit
            for form in _alternatives(least):
                below.setdefault(free_vars(form.expr()), []).append(_share_below_zero(form, loops))
    return product_of([*decided, *(maximum(0.0, subtract(1.0, sum_of(ends))) for ends in below.values())])


def _alternatives(least: Expr) -> Iterator[Linear]:
    """Linear forms that are at least 0, all of them, where `least` is: of a minimum both operands, as of minus a
    maximum."""
    form = linear(least)
    for atom, coefficient in form.terms:
        sign = {1: "min", -1: "max"}.get(int(coefficient.value)) if isinstance(coefficient, Const) else None
        if isinstance(atom, Binary) and atom.op == sign:
            rest = Linear(tuple(t for t in form.terms if t[0] is not atom), form.constant).expr()
            yield from _alternatives(rest + atom.a * coefficient)
            yield from _alternatives(rest + atom.b * coefficient)
            return
    yield form


def _share_below_zero(form: Linear, loops: Sequence[AnalysedLoop]) -> Expr:
    trips = {x.var: x.trips for x in loops}
    lowest, span, stride = real(form.constant), ZERO, real(LONGEST)
    for atom, coefficient in form.terms:
        if not isinstance(atom, Var):
            return ZERO
        more = subtract(trips.get(atom, ONE), 1.0)
        lowest = add(lowest, multiply(minimum(0.0, coefficient), more))
        span = add(span, multiply(absolute(coefficient), more))
        stride = minimum(stride, where(more > 0.0, absolute(coefficient), LONGEST))
    below = ceil(divide(maximum(0.0, subtract(0.0, lowest)), stride))
    return minimum(1.0, divide(below, add(divide(span, stride), 1.0)))


def is_clipped(extent: Expr, outer: Sequence[AnalysedLoop]) -> Expr:
    """1.0 where a loop's extent is known at run time only, because it is clipped to a tensor; else 0.0."""
    return _moves_with_border(list(_operands_of_minimum(extent)), outer)


def has_clipped_remainder(index: Expr, loops: Sequence[AnalysedLoop], lanes: Var) -> Expr:
    """1.0 where an index divides positions of which the first is clipped to a tensor, so that lanes have the same
    quotient in places that are known at run time only; else 0.0."""
    divided = (e.a for e in subexpressions(index) if isinstance(e, Binary) and e.op in ("floordiv", "mod"))
    return _moves_with_border([a for a in divided if lanes in free_vars(a)], loops)


def _moves_with_border(positions: Sequence[Expr], loops: Sequence[AnalysedLoop]) -> Expr:
    """1.0 where loops of several iterations move the clipped start that is added to a position; else 0.0."""
    atoms = [atom for position in positions for atom, _ in linear(position).terms if _is_clipped_start(atom)]
    moving = frozenset[Var]().union(*map(free_vars, atoms))
    clipping = product_of(x.trips for x in loops if x.var in moving)
    return where(real(clipping) > 1.0, 1.0, 0.0) if atoms else ZERO


def _operands_of_minimum(extent: Expr) -> Iterator[Expr]:
    if isinstance(extent, Binary) and extent.op == "min":
        yield from _operands_of_minimum(extent.a)
        yield from _operands_of_minimum(extent.b)
    else:
        yield extent


def _is_clipped_start(atom: Expr) -> bool:
    """Whether it is the first position of a clipped region; a minimum in an extent is the tail of a tile in tiles."""
    return isinstance(atom, Binary) and atom.op == "max"
