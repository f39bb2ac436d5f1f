"""Trip counts of the loops around a statement, and of statements under conditions.

`For.bound` is the largest one and right for footprints. For work the mean is needed, because a loop
that runs over a tail stops early. With extent = min(B, X - sum c_v v), as tails are written, and N iterations of
the loops v together, all but the last run B times and the last one X - c (N - 1), c the smallest stride:

    mean = ((N - 1) B + min(B, X - c (N - 1))) / N

which is X / N when tiles partition (c = B), and counts the recomputed borders when they overlap (c < B). Where the
extent is a number of tiles, that of the last run is rounded up. What does not grow with the trip count, as vectors of
which one is not full and chains of sums do not, is asked of both sizes.

Sums of a GPU whose later blocks have more terms, c < 0, have as many as the first and the last one in the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    add,
    ceil,
    divide,
    maximum,
    minimum,
    multiply,
    product_of,
    real,
    subtract,
    where,
)
from autosched.ir.conditions import iteration_by_data
from autosched.ir.expr import INDEX, Binary, Const, Expr, Var, imax
from autosched.ir.linear import linear
from autosched.ir.stmt import BLOCKS, THREADS, For, ForKind, Overlap
from autosched.ir.visit import free_vars, is_closed
from cost_model.analysis.access import Free, width

ROUNDING = 1e-6  # that a quotient may be off by


@dataclass(frozen=True, eq=False)
class AnalysedLoop:
    """One loop around a statement; `key` is shared by all statements in the same loop."""

    key: int
    var: Var
    bound: Expr  # largest trip count, integer
    trips: Expr  # mean trip count, real
    kind: ForKind
    reduce: bool
    overlap: Overlap | None = None
    last: Expr = ZERO  # trip count of the last run, real
    share: Expr = ZERO  # of the last run among all, real; constant 0: all are alike
    by_data: bool = False  # the data say which one of its iterations runs
    clipped: Expr = ZERO  # 1.0 where the trip count is known at run time only, real

    @property
    def is_in_block(self) -> bool:
        """Whether code generation leaves no loop of it: a block has its iterations one after the other."""
        return self.by_data or self.kind in (ForKind.UNROLL, ForKind.VECTORIZE)


def in_time(loops: Sequence[AnalysedLoop]) -> tuple[AnalysedLoop, ...]:
    """Blocks, a thread's own loops, threads; as in the text where none is bound."""
    order = {kind: n for n, kind in enumerate((*reversed(BLOCKS), None, *reversed(THREADS)))}
    return tuple(sorted(loops, key=lambda loop: order.get(loop.kind, order[None])))


def runs_once_by_data(loop: For, outer: Sequence[AnalysedLoop]) -> bool:
    """Whether the data say which iteration of `loop` inside `outer` runs, as processors compute it."""
    return not _is_on_gpu(outer) and iteration_by_data(loop) is not None


def _is_on_gpu(outer: Sequence[AnalysedLoop]) -> bool:
    return any(x.kind in BLOCKS or x.kind in THREADS for x in outer)


def trips_of(loop: For, outer: Sequence[AnalysedLoop]) -> tuple[Expr, Expr, Expr]:
    """(mean trip count, that of the last run, the last run's share of all) of `loop` inside `outer`, real; see the
    module's text."""
    bound = real(loop.bound)
    tail = None if is_closed(loop.extent) else _tail(loop.extent)
    if tail is None:
        return bound, bound, ZERO
    limit, steps = tail
    counts = [_values(atom, outer) for atom, _ in steps]
    if not steps or any(c is None for c in counts):
        return bound, bound, ZERO
    place = {x.var: i for i, x in enumerate(outer)}
    innermost = max(steps, key=lambda s: max(place.get(v, -1) for v in free_vars(s[0])))
    times_run = product_of(c for c in counts if c is not None)
    before = subtract(times_run, 1.0)
    last = minimum(bound, maximum(0.0, _whole(subtract(limit, multiply(innermost[1], before)))))
    mean = divide(add(multiply(before, bound), last), times_run)
    if loop.reduce and _is_on_gpu(outer):
        grows = innermost[1] < real(0.0)
        half_way = multiply(add(minimum(bound, maximum(0.0, _whole(limit))), last), 0.5)
        return where(grows, half_way, mean), where(grows, bound, last), where(grows, 0.0, divide(1.0, times_run))
    return mean, last, divide(1.0, times_run)


def _whole(trips: Expr) -> Expr:
    """Trips of a loop whose extent is a quotient that may be rounded up."""
    return ceil(subtract(trips, ROUNDING))


def _tail(extent: Expr) -> tuple[Expr, list[tuple[Expr, Expr]]] | None:
    """(X, [(v, c_v)]), real, where `extent` contains X - sum c_v v; None where it does not look like that."""
    match extent:
        case Binary(op="min" | "max", a=a, b=b):
            return next((t for t in map(_tail, (b, a)) if t is not None), None)
        case Binary(op="ceildiv" | "floordiv", a=a, b=b) if is_closed(b):
            inner = _tail(a)
            return inner and (divide(inner[0], b), [(v, divide(c, b)) for v, c in inner[1]])
        case Binary(op="add", a=Binary(op="min") as a, b=b) if is_closed(b):  # of stages that slide, before the first
            inner = _tail(a)
            return inner and (add(inner[0], b), inner[1])
    form = linear(extent)
    limit, steps = real(form.constant), []
    for atom, coefficient in form.terms:
        if isinstance(atom, Binary) and atom.op == "min" and (is_closed(atom.a) or is_closed(atom.b)):
            limit = add(limit, atom.a if is_closed(atom.a) else atom.b)  # a region clipped at its tensor's border
        else:
            steps.append((atom, real(coefficient * -1)))
    return (limit, steps) if steps else None


def _values(atom: Expr, outer: Sequence[AnalysedLoop]) -> Expr | None:
    """How many values a loop variable, or a digit of a fused one, takes; real."""
    match atom:
        case Var():
            return next((x.trips for x in outer if x.var is atom), ONE)
        case Binary(op="floordiv" | "mod" as op, a=a, b=b) if is_closed(b):
            whole = _values(a, outer)
            if whole is None:
                return None
            return minimum(whole, b) if op == "mod" else maximum(1.0, divide(whole, b))
    return None


def beginning_at(loops: Sequence[AnalysedLoop], var: Var, first: Expr) -> tuple[AnalysedLoop, ...]:
    """The loops around a statement that runs from iteration `first` of the loop over `var` on.

    Fewer iterations also touch less: the condition is no share of a footprint that all iterations have.
    """

    def left(trips: Expr) -> Expr:
        return maximum(0.0, subtract(trips, first))

    def later(loop: AnalysedLoop) -> AnalysedLoop:
        return replace(
            loop, bound=imax(loop.bound - first, Const(0, INDEX)), trips=left(loop.trips), last=left(loop.last)
        )

    return tuple(later(loop) if loop.var is var else loop for loop in loops)


def share_of(cond: Expr, loops: Sequence[AnalysedLoop]) -> Expr:
    """The share of iterations in which `cond` holds: one of n for v == const; guards of borders count as true, but
    for those of GPUs, whose loops run over whole tiles."""
    bound = any(loop.kind in THREADS for loop in loops)
    match cond:
        case _ if is_closed(cond):
            return where(cond, 1.0, 0.0)
        case Binary(op="lt", a=a, b=b) if bound and is_closed(b):
            form = linear(a)
            values = width(a, [Free(x.var, x.bound) for x in loops]) + 1
            return minimum(1.0, divide(maximum(0.0, subtract(b, form.constant)), values))
        case Binary(op="and", a=a, b=b):
            return multiply(share_of(a, loops), share_of(b, loops))
        case Binary(op="eq" | "ne" as op, a=a, b=b) if len(free_vars(cond)) == 1:
            var = next(iter(free_vars(cond)))
            trips = next((x.trips for x in loops if x.var is var), ONE)
            once = divide(1.0, maximum(1.0, trips))
            return once if op == "eq" else subtract(1.0, once)
    return ONE
