"""What a maximum and a sum that run along with a weighted sum do in one iteration (`schedule/steps/online.py`).

    for rows of a thread:
      new = peak, X of the thread's columns, X of the other lanes' columns: the largest
      grown = exp(peak - new);  peak = new;  total *= grown
    for its points:  terms = exp(X - peak)
    for its points:  total += terms

The weights are stored from `terms` then, and what is added up so far is multiplied by `grown`. A thread adds up its own
columns in `total`; the lanes meet when all is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosched.ir.expr import INDEX, Call, Const, Expr, Load, Var, binary
from autosched.ir.linear import ZERO
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, Reducer, Scope, Seq, Stmt, Store
from autosched.lower.symbolic.cross_thread import Crossing, ThreadTeam, across_threads
from autosched.schedule.steps.online import finite

WARP = 32
Counted = tuple[Var, Expr]  # a loop's variable and its bound


@dataclass(frozen=True)
class OnlineRows:
    """The rows of a thread: loops over them and over its columns; `place`: where a row is in the buffers of rows.

    `score` and `term` are X and its exponential at a point, the least where there is no point.
    """

    peak: Buffer
    total: Buffer
    grown: Buffer
    terms: Buffer
    rows: tuple[Counted, ...]
    columns: tuple[Counted, ...]
    place: tuple[Expr, ...]
    score: Expr
    term: Expr
    largest: Reducer
    team: ThreadTeam

    def update(self, then: Stmt) -> Stmt:
        """`then` after the rows have taken in the columns of this iteration."""
        total, point, each = self.total.name, self.point, (*self.rows, *self.columns)
        made = Store((self.terms.name,), point, (self.term,), None, total)
        added = Store((total,), self.place, (self.read(self.terms, point),), _plus(self.total), total)
        steps = (_looped(self.rows, self._row()), _looped(each, made), _looped(each, added), then)
        return Allocate(self.terms, Seq(steps))

    @property
    def point(self) -> tuple[Expr, ...]:
        return tuple(var for var, _ in (*self.rows, *self.columns))

    @staticmethod
    def read(buffer: Buffer, place: tuple[Expr, ...]) -> Expr:
        return Load(buffer.name, place, buffer.dtype)

    def _row(self) -> Stmt:
        name = self.peak.name
        old, total = (self.read(b, self.place) for b in (self.peak, self.total))
        new = Buffer(f"{name}.new", (Const(1, INDEX),), self.peak.dtype, Scope.REGISTER)
        grows = Call("exp_negative", (binary("sub", old, finite(self.read(new, (ZERO,)))),))
        scan = Store((new.name,), (ZERO,), (self.score,), self.largest, name)
        crossing = Crossing(name, self.largest, (new,), self.team, True)
        return Allocate(
            new,
            Seq(
                (
                    Store((new.name,), (ZERO,), (old,), None, name),
                    _looped(self.columns, scan),
                    across_threads(crossing, WARP),
                    Store((self.grown.name,), self.place, (grows,), None, name),
                    Store((name,), self.place, (self.read(new, (ZERO,)),), None, name),
                    Store((self.total.name,), self.place, (total * self.read(self.grown, self.place),), None, name),
                )
            ),
        )


def started(rows: Buffer, loops: Sequence[Counted], reducer: Reducer | None) -> Stmt:
    """The start values of what runs along."""
    assert reducer is not None
    place = tuple(var for var, _ in loops)
    return _looped(loops, Store((rows.name,), place, reducer.identity, None, f"{rows.name}.init"))


def rescaled(sums: Buffer, grown: Buffer, loops: Sequence[Counted]) -> Stmt:
    """What is added up so far, by what the maximum of its row has grown by; columns are the last loop."""
    place = tuple(var for var, _ in loops)
    by = Load(grown.name, place[:-1], grown.dtype)
    value = Load(sums.name, place, sums.dtype) * by
    return _looped(loops, Store((sums.name,), place, (value,), None, f"{sums.name}.grown"))


def joined(total: Buffer, loops: Sequence[Counted], team: ThreadTeam) -> Stmt:
    """The lanes' parts of a sum added up, row by row."""
    place = tuple(var for var, _ in loops)
    own = Buffer(f"{total.name}.own", (Const(1, INDEX),), total.dtype, Scope.REGISTER)
    crossing = Crossing(total.name, _plus(total), (own,), team, True)
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
