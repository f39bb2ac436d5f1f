"""Averages whose weights are exponentials of what a reduction still makes, in one pass: Average, Spread and Online.

    peak[i]  = max over k of X[i, k]                                  X: an expression of any stages
    total[i] = sum over k of exp(X[i, k] - peak[i])
    Y[i, j]  = sum over k of dtype(exp(X[i, k] - peak[i]) / total[i]) * V[k, j]

`Average` divides when all is added up, which rounds neither more nor coarser:

    Y.weights[i, k] = dtype(exp(X[i, k] - peak[i]))
    Y.acc[i, j]     = sum over k of Y.weights[i, k] * V[k, j]
    Y[i, j]         = Y.acc[i, j] / total[i]

`Online` lets peak and total run along with Y.acc, some steps of k at a time. exp(x - new) is exp(x - old) times
exp(old - new), so what was added up under a smaller maximum is multiplied by that.

    for blocks of k:
      X of the block, in registers of the threads that have its points (`Spread`)
      old = peak;  peak = max(peak, X of the block);  total, Y.acc *= exp(old - peak)
      Y.weights = exp(X - peak);  total += Y.weights;  Y.acc += Y.weights * V

A row of which nothing counts yet has the peak -inf: its weights are zeros. Blocks in which no row has anything, since a
condition hides what comes after the diagonal, are left out (`ir/reach.py`), what they would multiply too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autosched.ir.expr import Binary, Call, Cast, Const, Expr, Load, binary, select
from autosched.ir.stmt import THREADS, ForKind, Scope
from autosched.ir.visit import bottom_up, loads, substitute
from autosched.schedule.stage import Stage, StageOp, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.gpu import INDICES
from autosched.schedule.steps.loops import check, check_order
from autosched.schedule.steps.stages import check_readers, check_untouched, places_in


@dataclass(frozen=True)
class WeightedSum:
    """A sum over one axis whose weights are shares of a softmax: their maximum, their sum, each weight before it is
    divided (over the axes of `weights`), and the stage that they were read from."""

    peak: Stage
    total: Stage
    weights: Stage
    value: Expr
    load: Load


def weighted_sum(state: State, stage: Stage) -> WeightedSum | None:
    """None where the stage is something else, or others read its weights as well."""
    op = stage.op
    if op.reducer is None or not op.reducer.is_sum or len(op.reduce_axes) != 1 or len(op.body) != 1 or op.guards:
        return None
    place = (*(a.var for a in op.axes[:-1]), op.reduce_axes[0].var)
    read = [x for x in loads(op.body[0]) if x.indices == place]
    weights = state.producer(read[0].buffer) if len(read) == 1 and len(op.loads) == 2 else None
    if weights is None or not weights.op.is_elementwise or len(weights.op.body) != 1 or weights.at is not None:
        return None
    if state.is_output(weights) or [s.name for s in state.consumers(weights)] != [stage.name]:
        return None
    whole = expanded(state, weights.op.body[0])
    share = whole.a if isinstance(whole, Cast) else whole
    if not isinstance(share, Binary) or share.op != "div" or not isinstance(share.b, Load):
        return None
    total = state.producer(share.b.buffer)
    peak = _peak(state, share.a)
    if total is None or peak is None or _as_row(state, total, weights) is not share.a or not total.op.reducer:
        return None
    argument = share.a.children[0].children[0]  # what the maximum is subtracted from
    if not total.op.reducer.is_sum or _as_row(state, peak, weights) is not argument or share.b.indices != _row(weights):
        return None
    value = share.a if share is whole else Cast(share.a, whole.dtype)
    return WeightedSum(peak, total, weights, value, read[0])


def expanded(state: State, value: Expr) -> Expr:
    """`value` of inputs and reductions alone: elementwise stages at the root are computed where they are read."""

    def go(e: Expr) -> Expr:
        producer = state.producer(e.buffer) if isinstance(e, Load) else None
        if producer is None or not producer.op.is_elementwise or len(producer.op.body) != 1 or producer.at is not None:
            return e
        assert isinstance(e, Load)
        places: dict[Expr, Expr] = {a.var: i for a, i in zip(producer.op.axes, e.indices, strict=True)}
        return substitute(expanded(state, producer.op.body[0]), places)

    return bottom_up(value, go)


def _peak(state: State, weight: Expr) -> Stage | None:
    """The maximum that is subtracted in an exponential."""
    if not isinstance(weight, Call) or weight.fn not in ("exp", "exp_negative"):
        return None
    difference = weight.children[0]
    if not isinstance(difference, Binary) or difference.op != "sub" or not isinstance(difference.b, Load):
        return None
    peak = state.producer(difference.b.buffer)
    return peak if peak is not None and peak.op.reducer is not None and peak.op.reducer.is_max else None


def _row(weights: Stage) -> tuple[Expr, ...]:
    return tuple(a.var for a in weights.op.axes[:-1])


def _as_row(state: State, stage: Stage, weights: Stage) -> Expr | None:
    """What `stage` reduces over the last axis of `weights`, in axes of these; None where it has other axes."""
    op, own = stage.op, weights.op.axes
    axes = (*op.axes, *op.reduce_axes)
    if len(op.reduce_axes) != 1 or len(axes) != len(own) or len(op.body) != 1 or op.guards or stage.at is not None:
        return None
    if any(a.extent is not b.extent for a, b in zip(axes, own, strict=True)) or state.is_output(stage):
        return None
    places: dict[Expr, Expr] = {a.var: b.var for a, b in zip(axes, own, strict=True)}
    return substitute(expanded(state, op.body[0]), places)


def checked_weighted_sum(where: str, state: State, stage: Stage) -> WeightedSum:
    """`weighted_sum` of a stage as it came. Raises ScheduleError where it is none."""
    check_untouched(where, state, stage)
    found = weighted_sum(state, stage)
    check(found is not None, f"{where}: its weights are no exponentials that are divided by their sum")
    assert found is not None
    return found


@dataclass(frozen=True)
class Average:
    """The sum `stage` adds up weights that are not divided by their total yet; what it adds up to is."""

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"average({self.stage})"
        found = checked_weighted_sum(where, state, stage)
        names = f"{self.stage}.weights", f"{self.stage}.acc"
        check(not any(map(state.taken, names)), f"{where}: {names[0]} or {names[1]} exists already")
        op = stage.op
        weights = StageOp(names[0], found.weights.op.axes, (), (_guarded(found),), None, names[:1], (found.load.dtype,))
        read: dict[Expr, Expr] = {found.load: Load(names[0], found.load.indices, found.load.dtype)}
        added = tuple(substitute(v, read) for v in op.body)
        acc = replace(op, name=names[1], buffers=names[1:], body=added)
        made = divided_by_total(stage, found.total, names[1])
        wholes = {found.peak.name, found.total.name}
        stages: list[Stage] = []
        for s in state.stages:
            if s.name == self.stage:
                stages += [default_stage(weights), default_stage(acc), made]
            elif s.name in wholes:
                body = tuple(expanded(state, v) for v in s.op.body)
                if s.name == found.total.name:
                    body = tuple(_nothing_yet(v, found.peak) for v in body)
                stages.append(replace(s, op=replace(s.op, body=body)))
            else:
                stages.append(s)
        return _without_unread(replace(state, stages=tuple(stages)))


def divided_by_total(stage: Stage, total: Stage, sums: str) -> Stage:
    """In the place of the sum `stage`: what is added up in the buffer `sums`, divided by the `total` of its row."""
    op = stage.op
    place = tuple(a.var for a in op.axes)
    dtype = op.dtypes[0]
    divided = binary("div", Load(sums, place, dtype), Load(total.op.buffers[0], place[:-1], dtype))
    return default_stage(replace(op, reduce_axes=(), body=(divided,), reducer=None), stage.scope)


def _guarded(found: WeightedSum) -> Expr:
    return _nothing_yet(found.value, found.peak)


def _nothing_yet(value: Expr, peak: Stage) -> Expr:
    """`value` with 0 for a maximum of -inf: so exp(-inf - 0) is 0, where all is lost in the end anyway."""
    return bottom_up(value, lambda e: finite(e) if isinstance(e, Load) and e.buffer in peak.op.buffers else e)


def finite(peak: Expr) -> Expr:
    least: Expr = Const(-math.inf, peak.dtype)
    return select(binary("eq", peak, least), Const(0.0, peak.dtype), peak)


def _without_unread(state: State) -> State:
    """Elementwise stages that nothing reads any more are gone."""
    while True:
        kept = tuple(s for s in state.stages if s.op.reducer is not None or state.is_output(s) or state.consumers(s))
        if len(kept) == len(state.stages):
            return state
        state = replace(state, stages=kept)


@dataclass(frozen=True)
class Spread:
    """The iterations of a loop of a stage that is computed inside a kernel are those of the kernel's threads along
    `index`, as many; each thread has its points of the stage. Thread loops come first."""

    stage: str
    loop: str
    index: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"spread({self.stage}, {self.loop}, {self.index})"
        kind = INDICES.get(self.index)
        check(kind in THREADS, f"{where}: the index must be one of {', '.join(k.value for k in THREADS)}")
        assert kind is not None
        loop = stage.loop(self.loop)
        is_inside = stage.at is not None and stage.scope is Scope.WARP
        check(is_inside, f"{where}: compute it inside, with scope 'warp', first")
        check(loop.kind is ForKind.SERIAL, f"{where}: the loop is {loop.kind.value} already")
        check(stage.op.is_elementwise, f"{where}: the threads would all reduce")
        check(all(x.kind is not kind for x in stage.loops), f"{where}: another loop is along it")
        own = [x for x in state.root(stage).loops if x.kind is kind]
        check(len(own) == 1, f"{where}: the kernel has no threads along it")
        check(len(loop.parts) == len(own[0].parts) == 1, f"{where}: it or the kernel's loop is fused")
        (axis, level), (theirs, depth) = loop.parts[0], own[0].parts[0]
        same = stage.factors(axis)[level - 1 : level] == state.root(stage).factors(theirs)[depth - 1 : depth]
        check(min(level, depth) > 0 and same, f"{where}: the kernel has another number of threads along it")
        loops = tuple(replace(x, kind=kind) if x is loop else x for x in stage.loops)
        return state.with_stage(check_order("spread", replace(stage, loops=loops)))


@dataclass(frozen=True)
class Online:
    """In each iteration of the loop of `stage` in which `weights` are made, `peak` and `total` take in those of the
    iteration; what was added up before is multiplied by what the maximum has grown by.

    `stage` is in registers of a kernel. Every thread has points of `weights` in the rows that it has of `stage`: with a
    product by matrices some that others need as well (`Spread`), else all, in registers. Refused for anything that
    `Average` has not made.
    """

    stage: str
    weights: str
    peak: str
    total: str

    def apply(self, state: State) -> State:
        stage, weights = state.stage(self.stage), state.stage(self.weights)
        peak, total = state.stage(self.peak), state.stage(self.total)
        where = f"online({self.stage}, {self.weights}, {self.peak}, {self.total})"
        root = state.root(stage)
        is_inside = stage.scope is Scope.REGISTER and stage.at is not None and stage.at.stage == root.name
        check(is_inside, f"{where}: compute {self.stage} in registers of a kernel first")
        first = next((x.name for x in stage.loops if x.reduce), "")
        is_there = weights.at is not None and (weights.at.stage, weights.at.loop) == (self.stage, first)
        check(is_there, f"{where}: compute {self.weights} in loop {first} of {self.stage} first")
        check([s.name for s in state.consumers(weights)] == [self.stage], f"{where}: others read {self.weights}")
        _check_values(where, stage, weights, peak, total)
        for one in (peak, total):
            check_untouched(where, state, one)
            readers = {s.name for s in state.consumers(one)}
            check(readers <= {root.name, self.weights, self.total}, f"{where}: others read {one.name}")
            check(not state.is_output(one), f"{where}: {one.name} is an output")
        if weights.scope is Scope.REGISTER:
            whole = all(not weights.factors(a.name) for a in weights.op.axes)
            check(whole and not stage.matrix, f"{where}: {self.weights} in registers are split, or for matrices")
            state = state.with_stage(replace(stage, whole=((stage.op.reduce_axes[0].name, 1),)))
        else:
            _check_rows(where, root, stage, weights)
        for one in (peak, total):
            state = state.with_stage(replace(one, at=stage.at, scope=Scope.REGISTER, running=self.weights))
        return check_readers(where, state)


def _check_values(where: str, stage: Stage, weights: Stage, peak: Stage, total: Stage) -> None:
    op = stage.op
    check(op.reducer is not None and op.reducer.is_sum and len(op.reduce_axes) == 1, f"{where}: no sum over one axis")
    place = (*(a.var for a in op.axes[:-1]), op.reduce_axes[0].var)
    reads = op.loads_from(*weights.op.buffers)
    check([x.indices for x in reads] == [place], f"{where}: the rows of {weights.name} are not those of {stage.name}")
    value = weights.op.body[0]
    term = value.a if isinstance(value, Cast) else value
    axes = weights.op.axes
    kinds = (peak.op.reducer is not None and peak.op.reducer.is_max, total.op.reducer is not None)
    check(all(kinds) and total.op.reducer is not None and total.op.reducer.is_sum, f"{where}: no maximum, or no sum")
    for one in (peak, total):
        check(len((*one.op.axes, *one.op.reduce_axes)) == len(axes), f"{where}: {one.name} has other axes")
    moved = [
        substitute(s.op.body[0], {a.var: b.var for a, b in zip((*s.op.axes, *s.op.reduce_axes), axes, strict=True)})
        for s in (peak, total)
    ]
    lowered = finite(Load(peak.op.buffers[0], tuple(a.var for a in axes[:-1]), peak.op.dtypes[0]))
    wanted = [Call(fn, (binary("sub", moved[0], lowered),)) for fn in ("exp", "exp_negative")]
    check(term in wanted and moved[1] is term, f"{where}: {weights.name} are no exponentials of what {peak.name} is of")


def _check_rows(where: str, root: Stage, stage: Stage, weights: Stage) -> None:
    """A thread has the same rows of the weights as of the kernel's results, in loops of the same numbers; all along an
    axis where it has no threads."""
    bound = {(x.kind, x.parts) for x in root.loops if x.kind in THREADS}
    spread = [x for x in weights.loops if x.kind in THREADS]
    name = weights.name
    check({x.kind for x in spread} == {k for k, _ in bound}, f"{where}: spread {name} over all threads")
    check(all(len(x.parts) == 1 for x in weights.loops), f"{where}: loops of {name} are fused")
    places = places_in(root, stage)
    check(len(places) == len(stage.op.axes) == len(weights.op.axes), f"{where}: the kernel has other axes")
    for own, theirs in zip(weights.op.axes[:-1], places[:-1], strict=True):
        same = weights.factors(own.name) == root.factors(theirs.name)
        check(same, f"{where}: split {own.name} of {name} as {theirs.name} of {root.name}")
        for loop in (x for x in spread if x.parts[0][0] == own.name):
            place = (loop.kind, ((theirs.name, loop.parts[0][1]),))
            check(place in bound, f"{where}: {loop.name} of {name} is spread over other threads than in {root.name}")
