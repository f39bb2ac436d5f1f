"""Primitives that change stages: ComputeAt, ComputeInline, CacheRead, Reindex, CacheWrite, Pack, Rfactor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autosched.ir.expr import INDEX, Const, Expr, Load, Select, Var, ceildiv
from autosched.ir.stmt import BLOCKS, THREADS, ForKind, Layout, Scope
from autosched.ir.visit import bottom_up, free_vars, subexpressions, substitute
from autosched.schedule.stage import At, Num, Stage, StageAxis, StageOp, closed, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check, check_factor, check_own_loops, check_parallel

_SCOPES = (Scope.LOCAL.value, Scope.REGISTER.value, Scope.SHARED.value, Scope.WARP.value)


def _reading(body: tuple[Expr, ...], buffer: str, new: str, order: tuple[int, ...]) -> tuple[Expr, ...]:
    def renamed(e: Expr) -> Expr:
        is_it = isinstance(e, Load) and e.buffer == buffer
        return Load(new, tuple(e.children[d] for d in order), e.dtype) if is_it else e

    return tuple(bottom_up(v, renamed) for v in body)


def insert(state: State, stage: Stage, before: str | None) -> State:
    """Insert a new stage before the named one (at the front if None)."""
    at = next((i for i, s in enumerate(state.stages) if s.name == before), 0)
    return replace(state, stages=(*state.stages[:at], stage, *state.stages[at:]))


def check_readers(where: str, state: State) -> State:
    """Raise ScheduleError unless every stage computed inside a loop is read only there, and by stages that run along
    with its readers.
    """
    for stage in state.stages:
        if stage.at is None:
            continue
        for reader in (s for s in state.consumers(stage) if not s.running):
            place = f"loop {stage.at.loop} of {stage.at.stage}, in which {stage.name} is computed"
            check(state.inside(reader, stage.at), f"{where}: {reader.name} reads {stage.name} outside of {place}")
    return state


def check_untouched(where: str, state: State, stage: Stage) -> None:
    """Raise ScheduleError if the loops were changed: a step that replaces the stage would lose the changes."""
    plain = replace(default_stage(stage.op, stage.scope), at=stage.at)
    check(stage == plain and not state.attached(stage.name), f"{where}: do it before any other change of its loops")


@dataclass(frozen=True)
class ComputeAt:
    """Compute `stage` inside loop `loop` of `consumer`: just the region that is read there, into a private buffer.

    Refused if a reader of the stage is outside that loop, if the stage is an output, or if the loop is vectorised.
    """

    stage: str
    consumer: str
    loop: str
    scope: str = Scope.LOCAL.value

    def apply(self, state: State) -> State:
        stage, consumer = state.stage(self.stage), state.stage(self.consumer)
        where = f"compute_at({self.stage}, {self.consumer}, {self.loop})"
        loop = consumer.loop(self.loop)
        check(self.scope in _SCOPES, f"{where}: scope must be one of {', '.join(_SCOPES)}, got {self.scope!r}")
        check(stage is not consumer, f"{where}: a stage cannot be computed inside itself")
        check(not state.is_output(stage), f"{where}: {self.stage} is an output; cache_write it first")
        is_own = self.scope == Scope.LOCAL.value or stage.op.recurrence is None
        check(is_own, f"{where}: a recurrence is computed by one thread, with scope 'local'")
        check(loop.kind is not ForKind.VECTORIZE, f"{where}: the loop is vectorised")
        check(all(x.kind is not ForKind.PARALLEL for x in stage.loops), f"{where}: {self.stage} has parallel loops")
        check(
            all(at.stage != self.stage for at in state.chain(consumer)),
            f"{where}: {self.consumer} is computed inside {self.stage}",
        )
        check(bool(state.consumers(stage)), f"{where}: nothing reads {self.stage}")
        check(not stage.is_across_lanes, f"{where}: threads share the reduction of {self.stage}")
        is_there = not consumer.is_across_lanes or loop.kind in (*BLOCKS, *THREADS)
        check(is_there, f"{where}: threads share the reduction of {self.consumer}; compute it around that")
        check_own_loops(where, consumer)
        is_late = consumer.pipeline is not None and consumer.pipeline.loop == self.loop
        check(not is_late, f"{where}: the loop is a pipeline already; compute {self.stage} there before")
        state = state.with_stage(replace(stage, at=At(self.consumer, self.loop), scope=Scope(self.scope), slides=False))
        check_parallel(where, state, state.stage(self.consumer))
        return check_readers(where, state)


@dataclass(frozen=True)
class ComputeInline:
    """Replace every read of `stage` by its expression; refused for reductions, recurrences and outputs."""

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"compute_inline({self.stage})"
        check(stage.op.reducer is None, f"{where}: a reduction cannot be inlined")
        check(stage.op.recurrence is None, f"{where}: a recurrence cannot be inlined")
        check(not state.is_output(stage), f"{where}: it is an output")
        check(not state.attached(self.stage), f"{where}: a stage is computed inside it")
        table = dict(zip(stage.op.buffers, stage.op.body, strict=True))
        stages = tuple(replace(s, op=_inline(s.op, stage.op, table)) for s in state.stages if s is not stage)
        return replace(state, stages=stages)


def _inline(op: StageOp, producer: StageOp, table: dict[str, Expr]) -> StageOp:
    def value(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in table:
            mapping: dict[Expr, Expr] = {a.var: i for a, i in zip(producer.axes, e.indices, strict=True)}
            return substitute(table[e.buffer], mapping)
        return e

    return replace(op, body=tuple(bottom_up(v, value) for v in op.body)) if op.reads & table.keys() else op


@dataclass(frozen=True)
class CacheRead:
    """A copy `buffer.tag` of what `consumer` reads of `buffer`; place it with ComputeAt, store it with Pack.

    `order`: the dimensions of `buffer` in the order that the copy has them; as they are where it is empty.
    """

    buffer: str
    consumer: str
    tag: str = "cache"
    order: tuple[int, ...] = ()

    def apply(self, state: State) -> State:
        consumer = state.stage(self.consumer)
        where = f"cache_read({self.buffer}, {self.consumer})"
        found = consumer.op.loads_from(self.buffer)
        check(bool(found), f"{where}: {self.consumer} does not read {self.buffer}")
        check(self.buffer not in consumer.op.buffers, f"{where}: the stage reads what it has written itself")
        name, shape = f"{self.buffer}.{self.tag}", shape_of_buffer(state, self.buffer)
        order = self.order or tuple(range(len(shape)))
        check(sorted(order) == list(range(len(shape))), f"{where}: {order} is not an order of {len(shape)} dimensions")
        axes = dimensions(shape[d] for d in order)
        value = Load(self.buffer, tuple(axes[order.index(d)].var for d in range(len(shape))), found[0].dtype)
        body = _reading(consumer.op.body, self.buffer, name, order)
        return check_readers(where, read_from(where, state, consumer, body, name, axes, value))


@dataclass(frozen=True)
class Reindex:
    """A copy `buffer.tag` as CacheRead makes it, but with a dimension for each axis of `consumer` that the read moves
    with, in their order: X[g * 4 + c] is copied to X.tag[g, c], which can be stored in panels along c.

    Refused where the buffer is read at several places, or where not every point is read: the copy reads them all.
    """

    buffer: str
    consumer: str
    tag: str = "cache"

    def apply(self, state: State) -> State:
        consumer = state.stage(self.consumer)
        op = consumer.op
        where = f"reindex({self.buffer}, {self.consumer})"
        found = op.loads_from(self.buffer)
        check(len(found) == 1, f"{where}: {self.consumer} reads {self.buffer} at {len(found)} places instead of one")
        check(self.buffer not in op.buffers, f"{where}: the stage reads what it has written itself")
        whole = not op.guards and not any(isinstance(e, Select) for v in op.body for e in subexpressions(v))
        check(whole, f"{where}: {self.consumer} does not read every point")
        (load,), name = found, f"{self.buffer}.{self.tag}"
        used = {v for i in load.indices for v in free_vars(i)}
        moving = [a for a in op.all_axes if a.var in used]
        axes = dimensions(a.extent for a in moving)
        values: dict[Expr, Expr] = {a.var: d.var for a, d in zip(moving, axes, strict=True)}
        value = Load(self.buffer, tuple(substitute(i, values) for i in load.indices), load.dtype)
        read: dict[Expr, Expr] = {load: Load(name, tuple(a.var for a in moving), load.dtype)}
        body = tuple(substitute(v, read) for v in op.body)
        return check_readers(where, read_from(where, state, consumer, body, name, axes, value))


def dimensions(extents: Iterable[Expr]) -> tuple[StageAxis, ...]:
    """Return the axes of a copy."""
    return tuple(StageAxis(Var(f"d{n}"), extent) for n, extent in enumerate(extents))


def read_from(
    where: str, state: State, stage: Stage, body: tuple[Expr, ...], name: str, axes: tuple[StageAxis, ...], value: Expr
) -> State:
    """`stage` with another `body`, which reads a new stage `name`: `value` at each point of `axes`."""
    check(not state.taken(name), f"{where}: {name} exists already; choose another tag")
    op = StageOp(name, axes, (), (value,), None, (name,), (value.dtype,))
    state = state.with_stage(replace(stage, op=replace(stage.op, body=body)))
    return insert(state, default_stage(op), stage.name)


def shape_of_buffer(state: State, buffer: str) -> tuple[Expr, ...]:
    producer = state.producer(buffer)
    if producer is not None:
        return tuple(a.extent for a in producer.op.axes)
    tensor = next(t for t in (*state.inputs, *state.outputs) if t.name == buffer)
    return tuple(Const(e, INDEX) for e in tensor.shape)


@dataclass(frozen=True)
class CacheWrite:
    """The stage is computed into `stage.acc`; the stage itself becomes the copy out of it."""

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"cache_write({self.stage})"
        check_untouched(where, state, stage)
        name = f"{self.stage}.acc"
        buffers = tuple(f"{b}.acc" for b in stage.op.buffers)
        check(not any(map(state.taken, (name, *buffers))), f"{where}: {name} exists already")
        value = stage.op.body
        for old, new in zip(stage.op.buffers, buffers, strict=True):  # a recurrence reads its own
            value = _reading(value, old, new, tuple(range(len(stage.op.axes))))
        inner = replace(stage.op, name=name, body=value, buffers=buffers)
        index: tuple[Expr, ...] = tuple(a.var for a in stage.op.axes)
        body = tuple(Load(b, index, d) for b, d in zip(buffers, stage.op.dtypes, strict=True))
        copy = replace(stage.op, reduce_axes=(), body=body, reducer=None, guards=())
        state = state.with_stage(replace(default_stage(copy, stage.scope), at=stage.at))
        return check_readers(where, insert(state, default_stage(inner), self.stage))


@dataclass(frozen=True)
class Pack:
    """Store the stage's buffer with outer dimensions in `order` and inner tiles (dimension, factor) last."""

    stage: str
    order: tuple[int, ...]
    tiles: tuple[tuple[int, Num], ...] = ()

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"pack({self.stage})"
        rank = len(stage.op.axes)
        check(not state.is_output(stage), f"{where}: an output keeps its layout")
        check(sorted(self.order) == list(range(rank)), f"{where}: {self.order} is not an order of {rank} dimensions")
        for dim, factor in self.tiles:
            check(0 <= dim < rank, f"{where}: there is no dimension {dim}")
            check_factor(where, factor)
        check(len({d for d, _ in self.tiles}) == len(self.tiles), f"{where}: a dimension is tiled twice")
        layout = Layout(self.order, tuple((d, closed(f)) for d, f in self.tiles))
        return state.with_stage(replace(stage, layout=layout))


@dataclass(frozen=True)
class Rfactor:
    """C = reduce_k body  ->  C.rf[k.x] = reduce over the rest of k,  C = reduce_(k.x) C.rf.

    k = k.o * factor + k.i with k.i < factor; `keep` says which part C.rf keeps as an axis: "inner"
    (vector lanes; last dimension) or "outer" (blocks of K; first dimension). C.rf also keeps all of the reduction axes
    `whole`, as its first dimensions.
    """

    stage: str
    axis: str
    factor: Num
    keep: str = "inner"
    whole: tuple[str, ...] = ()

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"rfactor({self.stage}, {self.axis})"
        axis = stage.op.axis(self.axis)
        check(axis.reduce, f"{where}: it is not a reduction axis")
        check_untouched(where, state, stage)
        check(self.keep in ("inner", "outer"), f"{where}: keep must be 'inner' or 'outer', got {self.keep!r}")
        check_factor(where, self.factor)
        name = f"{self.stage}.rf"
        buffers = tuple(f"{b}.rf" for b in stage.op.buffers)
        check(not any(map(state.taken, (name, *buffers))), f"{where}: {name} exists already; rfactor that one")
        whole = tuple(stage.op.axis(n) for n in self.whole)
        check(axis not in whole and all(a.reduce for a in whole), f"{where}: {self.whole} are no other reduction axes")
        inner, outer = self._factor(stage.op, axis, whole, name, buffers)
        state = state.with_stage(replace(default_stage(outer, stage.scope), at=stage.at))
        return check_readers(where, insert(state, default_stage(inner), self.stage))

    def _factor(
        self, op: StageOp, axis: StageAxis, whole: tuple[StageAxis, ...], name: str, buffers: tuple[str, ...]
    ) -> tuple[StageOp, StageOp]:
        factor = closed(self.factor)
        k_o = StageAxis(Var(f"{axis.name}.o"), ceildiv(axis.extent, factor), self.keep == "inner")
        k_i = StageAxis(Var(f"{axis.name}.i"), factor, self.keep == "outer")
        kept, reduced = (k_i, k_o) if self.keep == "inner" else (k_o, k_i)
        value = k_o.var * factor + k_i.var
        points = (*op.axes, kept) if self.keep == "inner" else (kept, *op.axes)
        axes = (*(replace(a, reduce=False) for a in whole), *points)
        rest = tuple(a for a in op.reduce_axes if a is not axis and a not in whole)
        guards = (*((substitute(f, {axis.var: value}), n) for f, n in op.guards), (value, axis.extent))
        inner = StageOp(
            name,
            axes,
            (*rest, reduced),
            tuple(substitute(v, {axis.var: value}) for v in op.body),
            op.reducer,
            buffers,
            op.dtypes,
            guards,
        )
        index: tuple[Expr, ...] = tuple(a.var for a in axes)
        body = tuple(Load(b, index, d) for b, d in zip(buffers, op.dtypes, strict=True))
        return inner, replace(op, reduce_axes=(*whole, replace(kept, reduce=True)), body=body, guards=())


def places_in(root: Stage, stage: Stage) -> tuple[StageAxis, ...]:
    """The axes of the stage that writes, in the order of those of `stage`, whose sums it reads at its own places; none
    where it has others."""
    read = {x.indices for x in root.op.loads_from(*stage.op.buffers)}
    own: dict[Expr, StageAxis] = {a.var: a for a in root.op.axes}
    place = read.pop() if len(read) == 1 else ()
    is_whole = len(set(place)) == len(own) and all(i in own for i in place)
    return tuple(own[i] for i in place) if is_whole else ()
