"""Argmax and argmin: reducers that keep the first best value and its index, built in or a user's own.

    (i, v), (j, w)  ->  (i, v) if v > w or (v == w and i < j) else (j, w)        < for argmin

Of floats NaN is better than any number, if built in (`reducers.is_first_best`); a user's own may have just the above.

Their places may be kept in fewer bits, for they are only compared and passed on. Where j comes after i, the condition
is  v >= w,  or v is NaN where that is the best:  what `in_order` returns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TypeVar

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Const, Expr, Var, binary, call, select
from autosched.ir.stmt import Reducer
from autosched.te.reducers import is_first_best, largest, smallest

T = TypeVar("T")

_WORSE = {"gt": smallest, "lt": largest}  # the value that none is worse than
_OR_EQUAL = {"gt": "ge", "lt": "le"}


@dataclass(frozen=True)
class FirstBest:
    """`place` and `value` are the positions in the reducer's tuple, `op` says what is better; `knows_nan`: of floats,
    NaN is better than any number."""

    reducer: Reducer
    place: int
    value: int
    op: str
    knows_nan: bool

    def in_order(self) -> Reducer:
        """The same where the right side's place is the greater one."""
        r = self.reducer
        best = r.lhs[self.value]
        better = call("not", binary(_OR_EQUAL[self.op], best, r.rhs[self.value]))  # NaN is
        if self.knows_nan:
            better = better & best.equal(best)
        return replace(r, results=tuple(select(better, b, a) for a, b in zip(r.lhs, r.rhs, strict=True)))

    def starts_anywhere(self) -> bool:
        """Whether its start value is none that an element could be worse than, so that any place will do with it."""
        start = self.reducer.identity[self.value]
        return start is _WORSE[self.op](start.dtype)

    def with_places(self, dtype: str) -> Reducer:
        """The same with places of another type; they have to be less than its greatest number."""
        r, n = self.reducer, self.place
        low, high = DTYPES[dtype].integer_range
        start = Const(min(max(r.identity[n].number, low), high), dtype)
        lhs, rhs = (_put(side, n, Var(side[n].name, dtype)) for side in (r.lhs, r.rhs))
        new = replace(r, lhs=lhs, rhs=rhs, identity=_put(r.identity, n, start))
        return replace(new, results=_picks(new, _condition(new, n, self.value, self.op, self.knows_nan)))


@lru_cache(maxsize=256)
def first_best(reducer: Reducer) -> FirstBest | None:
    """What the reducer keeps, if it keeps the first of the best; None for all others."""
    if len(reducer.results) != 2:
        return None
    for place, value in ((0, 1), (1, 0)):
        if reducer.lhs[place].dtype not in (INDEX, "int32"):
            continue
        for op, knows_nan in product(_WORSE, (True, False)):
            picks = _picks(reducer, _condition(reducer, place, value, op, knows_nan))
            if all(a is b for a, b in zip(reducer.results, picks, strict=True)):
                return FirstBest(reducer, place, value, op, knows_nan and DTYPES[reducer.lhs[value].dtype].is_float)
    return None


def _condition(r: Reducer, place: int, value: int, op: str, knows_nan: bool) -> Expr:
    v, w = r.lhs[value], r.rhs[value]
    if knows_nan:
        return is_first_best(op, r.lhs[place], v, r.rhs[place], w)
    return binary(op, v, w) | (v.equal(w) & (r.lhs[place] < r.rhs[place]))


def _picks(r: Reducer, first: Expr) -> tuple[Expr, ...]:
    return tuple(select(first, a, b) for a, b in zip(r.lhs, r.rhs, strict=True))


def _put(items: tuple[T, ...], n: int, item: T) -> tuple[T, ...]:
    return (*items[:n], item, *items[n + 1 :])
