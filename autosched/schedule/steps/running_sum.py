"""Step RunningSum: the sums over a sliding window of integers as a recurrence, two additions for each element.

    S[i, j] = sum over w < 31 of X[i + w, j]

    S[i, j] = S[i - 1, j] + (X[i + 30, j] - X[i - 1, j])            X[i, j] + .. + X[i + 30, j] where i < 1

Integers wrap around, so that what is subtracted leaves nothing; a sum of floats would keep the rounding errors of all
elements before. A window may be made of shorter ones in several stages (`te/rewrites/windows.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import prod

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Const, Expr, Load, Var, const, select
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import substitute
from autosched.schedule.stage import Stage, StageOp, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import check_untouched

MOST_TERMS = 64  # of a window, which are written out for the first element


@dataclass(frozen=True)
class RunningSum:
    """The sums of `stage` follow from each other along `axis`; stages of shorter windows that nobody reads any more are
    dropped. Refused for all but a `running_window`."""

    stage: str
    axis: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"running_sum({self.stage}, {self.axis})"
        check_untouched(where, state, stage)
        op, i = stage.op, stage.op.axis(self.axis)
        window = running_window(state, stage, self.axis)
        check(window is not None, f"{where}: it is no sum of integers over neighbours along this axis")
        assert window is not None
        before = Load(op.buffers[0], tuple(a.var - 1 if a is i else a.var for a in op.axes), op.dtypes[0])
        change = window.at(i.var, window.length - 1) - window.at(i.var, -1)
        whole = reduce(operator.add, (window.at(i.var, n) for n in range(window.length)))  # reads what `change` does
        running = replace(op, reduce_axes=(), reducer=None, body=(select(i.var >= 1, before + change, whole),))
        state = state.with_stage(default_stage(running, stage.scope))
        for part in map(state.stage, window.parts):
            if not state.consumers(part):
                state = replace(state, stages=tuple(s for s in state.stages if s is not part))
        return state


@dataclass(frozen=True)
class RunningWindow:
    """Sums of `length` neighbours along an axis, of which `term` is the first. `parts`: the stages of shorter windows
    that make it, the last one first."""

    term: Expr
    length: int
    parts: tuple[str, ...]

    def at(self, axis: Var, step: int) -> Expr:
        """Return the neighbour so many elements behind the first."""
        return Simplifier()(substitute(self.term, {axis: axis + step}))


def running_window(state: State, stage: Stage, axis: str) -> RunningWindow | None:
    """Return the window of integers over which `stage` is a sum that moves by one of its terms for each element of
    `axis`; None if there is none. Stages that it reads are looked into, the last one first, until there is one."""
    op, parts = stage.op, list[str]()
    if len(op.body) != 1 or not DTYPES[op.dtypes[0]].is_integer or op.recurrence is not None:
        return None
    simplify, var = Simplifier(), op.axis(axis).var  # whatever the ranges of the axes are
    terms = _terms(op, simplify)
    while 1 < len(terms) <= MOST_TERMS:
        first = _first_of_window(terms, var, simplify)
        if first is not None:
            return RunningWindow(first, len(terms), tuple(parts)) if first.dtype == op.dtypes[0] else None
        read = {x.buffer for term in terms if isinstance(x := term, Load)}
        part = next((s for s in reversed(state.stages) if read & set(s.op.buffers) and s is not stage), None)
        inside = [] if part is None or not _is_plain(state, part) else _terms(part.op, simplify)
        if part is None or not inside:
            return None
        terms = [x for term in terms for x in _expanded(term, part.op, inside, simplify)]
        parts.append(part.name)
    return None


def _is_plain(state: State, part: Stage) -> bool:
    """Whether elements of the stage can be replaced by what they are computed from."""
    own_value = len(part.op.body) == 1 and part.op.recurrence is None
    return own_value and part == default_stage(part.op) and not state.is_output(part)


def _first_of_window(terms: list[Expr], axis: Var, simplify: Simplifier) -> Expr | None:
    """Return the term of which the others are the next ones along `axis`, one of each."""
    following = {term: simplify(substitute(term, {axis: axis + 1})) for term in terms}
    first = set(terms) - set(following.values())
    if len(first) != 1 or len(following) < len(terms):
        return None
    (start,) = (term,) = first
    for _ in range(len(terms) - 1):
        term = following[term]
        if term not in following:
            return None
    return start


def _terms(op: StageOp, simplify: Simplifier) -> list[Expr]:
    """Return what is added up at each point of a stage; [] where it is no sum, or one of too many terms."""
    if op.guards or (op.reducer is not None and not op.reducer.is_sum):
        return []
    if not all(isinstance(a.extent, Const) and type(a.extent.value) is int for a in op.reduce_axes):
        return []
    ranges = [range(a.extent.number) for a in op.reduce_axes if isinstance(a.extent, Const)]
    if prod(map(len, ranges)) > MOST_TERMS:
        return []
    added = list(_addends(op.body[0]))
    places = (zip(op.reduce_axes, at, strict=True) for at in product(*ranges))
    values: list[dict[Expr, Expr]] = [{a.var: const(n) for a, n in place} for place in places]
    return [simplify(substitute(e, at)) for at in values for e in added]


def _addends(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Binary) and e.op == "add":
        yield from _addends(e.a)
        yield from _addends(e.b)
    else:
        yield e


def _expanded(term: Expr, part: StageOp, inside: list[Expr], simplify: Simplifier) -> list[Expr]:
    """Return the terms of the element of the stage `part` that `term` is; `term` itself where it is none."""
    if not isinstance(term, Load) or term.buffer not in part.buffers:
        return [term]
    at: dict[Expr, Expr] = {a.var: i for a, i in zip(part.axes, term.indices, strict=True)}
    return [simplify(substitute(e, at)) for e in inside]
