"""Online softmax statements: the running maximum and sum of a weighted sum in one step (`schedule/steps/online.py`).

    for points of a thread:  terms = X
    for its rows:
      new = peak, terms of the thread's columns, terms of the other lanes' columns: the largest
      grown = exp(peak - new);  peak = new;  total *= grown
    for its points:  terms = exp(terms - peak)
    for its points:  total += terms

The weights are then stored from `terms`, and the accumulators are multiplied by `grown`. A thread adds up its own
columns in `total`; the lanes' sums are combined at the end.

Where weights are rounded to 16 bits, exp(x - p) is computed as 2 ** (c x - c p) with c = log2(e): one multiply-add and
one instruction. c p is rounded, but to the same value in the whole row, and a common factor of all weights cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosched.ir.expr import INDEX, Call, Const, Expr, Load, Var, binary, const
from autosched.ir.linear import ONE, ZERO
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, If, Reducer, Scope, Seq, Stmt, Store
from autosched.lower.symbolic.cross_thread import CrossThreadReduction, ThreadTeam, across_threads
from autosched.schedule.steps.online import finite

WARP = 32
Counted = tuple[Var, Expr]  # a loop's variable and its bound


@dataclass(frozen=True)
class OnlineRows:
    """The rows of a thread: loops over them and over its columns; `place`: where a row is in the buffers of rows.

    `terms` holds X at a thread's points and then the weights: `point` is where, `in_place` says that they take the
    place of what X is made of. `score`: X at a point; `cut_score`: the same, -inf where there are no columns, which may
    be so unless `is_whole`. `is_coarse`: what the weights are rounded to is.
    """

    peak: Buffer
    total: Buffer
    grown: Buffer
    terms: Buffer
    rows: tuple[Counted, ...]
    columns: tuple[Counted, ...]
    place: tuple[Expr, ...]
    point: tuple[Expr, ...]
    in_place: bool
    score: Expr
    cut_score: Expr
    is_whole: Expr
    largest: Reducer
    team: ThreadTeam
    is_coarse: bool

    def update(self, then: Stmt) -> Stmt:
        """Return `then` after the rows' maxima and sums are updated by the columns of this iteration."""
        terms, total, point = self.terms.name, self.total.name, self.point
        each = (*self.rows, *self.columns)
        power = self._power(self.read(self.terms, point), self.read(self.level, self.place))
        steps = (
            self._scored(each),
            _looped(self.rows, self._row()),
            _looped(each, Store((terms,), point, (power,), None, terms)),
            _looped(each, Store((total,), self.place, (self.read(self.terms, point),), _plus(self.total), total)),
            then,
        )
        found = Allocate(self.level, Seq(steps))
        return found if self.in_place else Allocate(self.terms, found)

    @property
    def level(self) -> Buffer:
        """Return the value that is subtracted in the exponentials of a row."""
        return replace(self.peak, name=f"{self.peak.name}.level")

    @staticmethod
    def read(buffer: Buffer, place: tuple[Expr, ...]) -> Expr:
        return Load(buffer.name, place, buffer.dtype)

    def _scored(self, each: tuple[Counted, ...]) -> Stmt:
        """X at all points: most blocks of columns are whole."""
        whole, cut = (
            _looped(each, Store((self.terms.name,), self.point, (x,), None, self.terms.name))
            for x in (self.score, self.cut_score)
        )
        return whole if self.score is self.cut_score else If(self.is_whole, whole, cut)

    def _level(self, peak: Expr) -> Expr:
        return finite(peak) * self._base(peak) if self.is_coarse else finite(peak)

    def _power(self, x: Expr, level: Expr) -> Expr:
        if self.is_coarse:
            return Call("exp2", (binary("sub", x * self._base(x), level),))
        return Call("exp_negative", (binary("sub", x, level),))

    @staticmethod
    def _base(x: Expr) -> Expr:
        return const(math.log2(math.e), x.dtype)

    def _row(self) -> Stmt:
        name = self.peak.name
        old, total, grown = (self.read(b, self.place) for b in (self.peak, self.total, self.grown))
        new = Buffer(f"{name}.new", (Const(1, INDEX),), self.peak.dtype, Scope.REGISTER)
        found = self.read(new, (ZERO,))
        scan = Store((new.name,), (ZERO,), (self.read(self.terms, self.point),), self.largest, name)
        crossing = CrossThreadReduction(name, self.largest, (new,), self.team, True)
        steps = (
            Store((new.name,), (ZERO,), (old,), None, name),
            _looped(self.columns, scan),
            *(() if self.team.members is ONE else (across_threads(crossing, WARP),)),
            Store((self.level.name,), self.place, (self._level(found),), None, name),
            Store((self.grown.name,), self.place, (self._power(old, self.read(self.level, self.place)),), None, name),
            Store((name,), self.place, (found,), None, name),
            Store((self.total.name,), self.place, (total * grown,), None, name),
        )
        return Allocate(new, Seq(steps))


def started(rows: Buffer, loops: Sequence[Counted], reducer: Reducer | None) -> Stmt:
    """Initialise the running maximum and sum."""
    assert reducer is not None
    place = tuple(var for var, _ in loops)
    return _looped(loops, Store((rows.name,), place, reducer.identity, None, f"{rows.name}.init"))


def rescaled(sums: Buffer, grown: Buffer, loops: Sequence[Counted]) -> Stmt:
    """Rescale the accumulators by the growth of their row's maximum; columns are the last loop."""
    place = tuple(var for var, _ in loops)
    by = Load(grown.name, place[:-1], grown.dtype)
    value = Load(sums.name, place, sums.dtype) * by
    return _looped(loops, Store((sums.name,), place, (value,), None, f"{sums.name}.grown"))


def joined(total: Buffer, loops: Sequence[Counted], team: ThreadTeam) -> Stmt:
    """Add up the lanes' sums, row by row."""
    place = tuple(var for var, _ in loops)
    own = Buffer(f"{total.name}.own", (Const(1, INDEX),), total.dtype, Scope.REGISTER)
    crossing = CrossThreadReduction(total.name, _plus(total), (own,), team, True)
    take = Store((own.name,), (ZERO,), (Load(total.name, place, total.dtype),), None, total.name)
    put = Store((total.name,), place, crossing.values, None, total.name)
    return _looped(loops, Allocate(own, Seq((take, across_threads(crossing, WARP), put))))


def _looped(loops: Sequence[Counted], body: Stmt) -> Stmt:
    for var, bound in reversed(loops):
        body = For(var, bound, bound, ForKind.UNROLL, body)
    return body


def _plus(of: Buffer) -> Reducer:
    a, b = Var("lhs0", of.dtype), Var("rhs0", of.dtype)
    return Reducer("sum", (a,), (b,), (binary("add", a, b),), (Const(0.0, of.dtype),))
