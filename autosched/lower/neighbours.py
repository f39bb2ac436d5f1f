"""Neighbours among gathered elements: A[i, clamp(n)] and A[i, clamp(n + 1)], which a load of twice the size reads both.

Such a load begins at clamp(n), or one before the last element of the row. Where a clamp acts, an element of the two is
the other one: at n < 0 the second is A[i, 0], and at the end of the row the first is the last element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Cast, Const, Expr, Load, binary
from autosched.ir.types import Interval, integer_bounds
from autosched.ir.visit import is_data, is_number, loads

KNOWN = 4096  # statements
LARGEST = 4  # bytes of an element, of which two are loaded at once


@dataclass(frozen=True)
class Neighbours:
    """Two loads whose elements are `begin` and the one after it, or the same of these.

    `is_at_end`: a condition under which the first load's element is the one after `begin`; `is_at_start`: one under
    which the second load's element is `begin`; None where that never is.
    """

    first: Load
    second: Load
    begin: Load
    is_at_end: Expr | None
    is_at_start: Expr | None


@dataclass(frozen=True)
class _Clamped:
    """The index min(max(number + offset, low), high), with `type_` as the type of its arithmetic."""

    number: Expr
    offset: int
    low: int | None
    high: int | None
    type_: str

    @property
    def unclamped(self) -> Expr:
        return binary("add", self.number, Const(self.offset, self.type_)) if self.offset else self.number


@lru_cache(maxsize=KNOWN)
def neighbours(values: tuple[Expr, ...]) -> Mapping[Load, Neighbours]:
    """The pairs of neighbours along last dimensions among what `values` load, by both loads of each."""
    rows = dict[tuple[object, ...], dict[int, tuple[Load, _Clamped]]]()
    for load in dict.fromkeys(x for value in values for x in loads(value)):
        is_small = DTYPES[load.dtype].nbytes <= LARGEST and load.dtype != "bool"
        is_candidate = is_small and bool(load.indices) and is_data(load.indices[-1])
        index = _clamped(load.indices[-1]) if is_candidate else None
        if index is not None:
            row = (load.buffer, load.dtype, load.indices[:-1], index.number, index.low, index.high)
            rows.setdefault(row, {})[index.offset] = load, index
    pairs = dict[Load, Neighbours]()
    for row_loads in rows.values():
        for pair in _pairs(row_loads):
            pairs[pair.first] = pairs[pair.second] = pair
    return pairs


def _pairs(row: Mapping[int, tuple[Load, _Clamped]]) -> Iterator[Neighbours]:
    """Loads of a row, by their offsets, each in one pair at most."""
    taken = None
    for offset in sorted(row):
        if offset == taken or offset + 1 not in row or not _is_exact(row[offset][1]):
            continue
        taken = offset + 1
        (first, index), (second, _) = row[offset], row[taken]
        number, begin = index.unclamped, index.unclamped
        if index.low is not None:
            begin = binary("max", begin, Const(index.low, index.type_))
        if index.high is not None:
            begin = binary("min", begin, Const(index.high - 1, index.type_))
        begin = begin if index.type_ == INDEX else Cast(begin, INDEX)
        yield Neighbours(
            first, second, Load(first.buffer, (*first.indices[:-1], begin), first.dtype),
            None if index.high is None else binary("ge", number, Const(index.high, index.type_)),
            None if index.low is None else binary("lt", number, Const(index.low, index.type_)),
        )  # fmt: skip


def _clamped(index: Expr) -> _Clamped | None:
    """An index that is data with a constant added, and then clamped to two elements at least; None for others."""
    e = index.a if isinstance(index, Cast) and DTYPES[index.a.dtype].is_integer else index
    ends: dict[str, list[int]] = {"max": [], "min": []}
    while isinstance(e, Binary) and e.op in ends and is_number(e.b):
        ends[e.op].append(e.b.number)
        e = e.a
    low, high = max(ends["max"], default=None), min(ends["min"], default=None)
    if high is not None and high <= max(low or 0, 0):  # a row of one element
        return None
    if isinstance(e, Binary) and e.op in ("add", "sub") and is_number(e.b):
        return _Clamped(e.a, e.b.number if e.op == "add" else -e.b.number, low, high, e.dtype)
    return _Clamped(e, 0, low, high, e.dtype)


def _is_exact(index: _Clamped) -> bool:
    """Whether neither number + offset nor the number after it wraps around."""
    low, high = _bounds(index.number)
    least, most = DTYPES[index.type_].integer_range
    return least <= low + index.offset and high + index.offset + 1 <= most


def _bounds(number: Expr) -> Interval:
    """The least and the greatest value. Of a cast float it is that of the floats that fit: others become any number."""
    low, high = integer_bounds(number)
    if isinstance(number, Cast) and DTYPES[number.a.dtype].is_float:
        exact = DTYPES[number.a.dtype].fraction_bits + 1
        high -= (1 << max(high.bit_length() - exact, 0)) - 1
    return low, high
