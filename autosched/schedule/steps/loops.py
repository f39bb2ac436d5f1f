"""Primitives that change the loops of one stage: Split, Reorder, Fuse, Parallel, Vectorize, Unroll; and prefetches:
Prefetch, FetchAhead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autosched.errors import ScheduleError
from autosched.ir.stmt import BLOCKS, THREADS, ForKind, changed
from autosched.ir.symbolic import INTEGERS
from autosched.schedule.limits import MAX_DISTANCE, MAX_FACTOR, MAX_FACTORS, MAX_TILED
from autosched.schedule.stage import AheadHint, Loop, Num, PrefetchHint, Stage
from autosched.schedule.state import State


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ScheduleError(message)


def check_factor(where: str, factor: Num) -> None:
    ok = isinstance(factor, str) or (
        isinstance(factor, INTEGERS) and not isinstance(factor, bool) and 1 <= factor <= MAX_FACTOR
    )
    check(ok, f"{where}: factor {factor!r} is not an integer from 1 to {MAX_FACTOR} nor the name of a parameter")


def check_distance(where: str, distance: int) -> None:
    check(1 <= distance <= MAX_DISTANCE, f"{where}: distance {distance} is not between 1 and {MAX_DISTANCE}")


def check_own_loops(where: str, stage: Stage) -> None:
    """Raise ScheduleError for stages shared by the threads of a block: their loops are generated."""
    is_shared = stage.cooperate is not None or stage.cross is not None
    check(not is_shared, f"{where}: the threads of the block share {stage.name} already; change its loops before")


def check_order(step: str, stage: Stage) -> Stage:
    """Parallel loops outermost and not over a reduction, a vectorised loop innermost and alone; bound loops first;
    loops along a recurrence serial, outer levels outside."""
    check_own_loops(f"{step}({stage.name})", stage)
    ranks = [0 if x.kind in BLOCKS else 1 if x.kind in THREADS else 2 for x in stage.loops]
    check(
        ranks == sorted(ranks),
        f"{step}({stage.name}): block loops must be outermost, then thread loops, then the others",
    )
    kinds = [loop.kind for loop in stage.loops]
    parallel = [k is ForKind.PARALLEL for k in kinds]
    check(
        parallel == sorted(parallel, reverse=True), f"{step}({stage.name}): parallel loops must be the outermost ones"
    )
    for loop in stage.loops:
        check(
            not (loop.reduce and loop.kind is ForKind.PARALLEL),
            f"{step}({stage.name}, {loop.name}): a reduction loop cannot be parallel; rfactor it first",
        )
    vector = [loop for loop in stage.loops if loop.kind is ForKind.VECTORIZE]
    check(len(vector) <= 1, f"{step}({stage.name}): only one loop can be vectorised")
    if vector:
        check(
            stage.loops[-1] is vector[0],
            f"{step}({stage.name}, {vector[0].name}): a vectorised loop must be the innermost one",
        )
    if stage.op.ordered_axis is not None:
        along = [loop for loop in stage.loops if loop.reduce]
        for loop in along:
            where = f"{step}({stage.name}, {loop.name})"
            check(loop.kind is ForKind.SERIAL, f"{where}: a loop along a recurrence runs in order; leave it serial")
        levels = [level for loop in along for _, level in loop.parts]
        check(levels == sorted(levels), f"{step}({stage.name}): the loops along a recurrence keep their order")
    return stage


def check_parallel(where: str, state: State, stage: Stage) -> None:
    """Raise ScheduleError unless parallel loops are adjacent, as they are one task index, and so loops of blocks and
    threads.
    """
    parallel = [x.name for x in stage.loops if x.kind is ForKind.PARALLEL]
    bound = [x.name for x in stage.loops if x.kind in BLOCKS or x.kind in THREADS]
    for kind, loops in (("parallel", parallel), ("bound", bound)):
        for loop in loops[:-1]:
            between = f"at {loop}, between the {kind} loops of {stage.name}"
            check(not state.attached(stage.name, loop), f"{where}: a stage is computed {between}")
            check(not _prefetching(stage, (loop,)), f"{where}: a prefetch stands {between}")


def _annotate(state: State, step: str, stage_name: str, loop_name: str, kind: ForKind) -> State:
    stage = state.stage(stage_name)
    loop = stage.loop(loop_name)
    check(loop.kind is ForKind.SERIAL, f"{step}({stage_name}, {loop_name}): the loop is {loop.kind.value} already")
    loops = tuple(changed(x, kind=kind) if x is loop else x for x in stage.loops)
    return state.with_stage(check_order(step, changed(stage, loops=loops)))


def _prefetching(stage: Stage, loops: tuple[str, ...]) -> bool:
    return not {h.loop for h in stage.prefetches}.union(h.loop for h in stage.ahead).isdisjoint(loops)


@dataclass(frozen=True)
class Split:
    """for i in N  ->  for i.0 in ceil(N / (f1*..*fn)), for i.1 in f1, .., for i.n in fn.

    i = ((i.0 * f1 + i.1) * f2 + ..) + i.n; a tail that does not divide makes the loops stop early.
    Refused if the axis is split already: give all factors at once.
    """

    stage: str
    axis: str
    factors: tuple[Num, ...]

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"split({self.stage}, {self.axis})"
        stage.op.axis(self.axis)
        check_own_loops(where, stage)
        check(not stage.factors(self.axis), f"{where}: the axis is split already; give all factors at once")
        check(bool(self.factors), f"{where}: no factors given")
        n = len(self.factors)
        check(n <= MAX_FACTORS, f"{where}: {n} factors are more than the {MAX_FACTORS} allowed")
        for factor in self.factors:
            check_factor(where, factor)
        tile = prod(f for f in self.factors if isinstance(f, INTEGERS))
        check(tile <= MAX_TILED, f"{where}: the factors make a tile of {tile}, more than the {MAX_TILED} allowed")
        old = stage.loop(self.axis)
        check(
            len(old.parts) == 1 and old.kind is ForKind.SERIAL,
            f"{where}: the loop is fused or annotated; split it before",
        )
        check(not state.attached(self.stage, self.axis), f"{where}: a stage is computed at this loop; split it before")
        check(not _prefetching(stage, (self.axis,)), f"{where}: the loop prefetches; split it before")
        levels = tuple(Loop(f"{self.axis}.{n}", ((self.axis, n),), old.reduce) for n in range(len(self.factors) + 1))
        at = stage.position(self.axis)
        loops = stage.loops[:at] + levels + stage.loops[at + 1 :]
        return state.with_stage(changed(stage, loops=loops, splits=(*stage.splits, (self.axis, self.factors))))


@dataclass(frozen=True)
class Reorder:
    """The named loops take, in the order given, the places they occupy together; the others stay."""

    stage: str
    loops: tuple[str, ...]

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        check(
            len(set(self.loops)) == len(self.loops),
            f"reorder({self.stage}): a loop is named twice in {', '.join(self.loops)}",
        )
        chosen = [stage.loop(name) for name in self.loops]
        check(
            not state.attached(self.stage), f"reorder({self.stage}): a stage is computed inside already; reorder before"
        )
        queue = iter(chosen)
        loops = tuple(next(queue) if loop in chosen else loop for loop in stage.loops)
        stage = check_order("reorder", changed(stage, loops=loops))
        check_parallel(f"reorder({self.stage})", state, stage)
        return state.with_stage(stage)


@dataclass(frozen=True)
class Fuse:
    """for i in N, for j in M  ->  for i@j in N*M  with  i = i@j // M, j = i@j % M; the loops must be adjacent."""

    stage: str
    loops: tuple[str, ...]

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        check_own_loops(f"fuse({self.stage})", stage)
        check(len(self.loops) >= 2, f"fuse({self.stage}): at least two loops are needed, got {len(self.loops)}")
        at = stage.position(self.loops[0])
        old = stage.loops[at : at + len(self.loops)]
        names = tuple(x.name for x in old)
        check(names == self.loops, f"fuse({self.stage}): {', '.join(self.loops)} are not adjacent loops in this order")
        check(len({x.reduce for x in old}) == 1, f"fuse({self.stage}): spatial and reduction loops cannot be fused")
        check(all(x.kind is ForKind.SERIAL for x in old), f"fuse({self.stage}): fuse before annotating")
        attached = any(state.attached(self.stage, x) for x in names[:-1])
        check(not attached, f"fuse({self.stage}): a stage is computed between the loops")
        check(
            not state.attached(self.stage, names[-1]),
            f"fuse({self.stage}): a stage is computed at {names[-1]}; fuse before",
        )
        check(not _prefetching(stage, names), f"fuse({self.stage}): a loop prefetches; fuse before")
        fused = Loop("@".join(names), tuple(p for x in old for p in x.parts), old[0].reduce)
        loops = (*stage.loops[:at], fused, *stage.loops[at + len(old) :])
        return state.with_stage(changed(stage, loops=loops))


@dataclass(frozen=True)
class Parallel:
    """The outermost loops are distributed over threads, collapsed into one task index."""

    stage: str
    loops: tuple[str, ...]

    def apply(self, state: State) -> State:
        check(state.stage(self.stage).at is None, f"parallel({self.stage}): only a stage at the root can be parallel")
        for name in self.loops:
            state = _annotate(state, "parallel", self.stage, name, ForKind.PARALLEL)
        check_parallel(f"parallel({self.stage})", state, state.stage(self.stage))
        return state


@dataclass(frozen=True)
class Vectorize:
    """The innermost loop becomes vectors (masked at the end); over a reduction axis it ends in a horizontal combine."""

    stage: str
    loop: str

    def apply(self, state: State) -> State:
        loop = state.stage(self.stage).loop(self.loop)
        check(len(loop.parts) == 1, f"vectorize({self.stage}, {self.loop}): a fused loop cannot be vectorised")
        check(
            not state.attached(self.stage, self.loop),
            f"vectorize({self.stage}, {self.loop}): a stage is computed inside",
        )
        return _annotate(state, "vectorize", self.stage, self.loop, ForKind.VECTORIZE)


@dataclass(frozen=True)
class Unroll:
    """The loop is written out, iteration by iteration."""

    stage: str
    loop: str

    def apply(self, state: State) -> State:
        return _annotate(state, "unroll", self.stage, self.loop, ForKind.UNROLL)


@dataclass(frozen=True)
class Stream:
    """An output's values go around the caches: for outputs that no cache holds until they are read."""

    stage: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"stream({self.stage})"
        check(state.is_output(stage), f"{where}: only outputs are streamed")
        check(stage.op.is_elementwise, f"{where}: a reduction or a recurrence reads what it has written")
        return state.with_stage(changed(stage, non_temporal=True))


@dataclass(frozen=True)
class Prefetch:
    """In loop `loop`, ask for what `buffer` will be read at `distance` iterations later, all lines of it, to be in the
    cache of `level`, 1 or 2."""

    stage: str
    buffer: str
    loop: str
    distance: int
    level: int = 1

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"prefetch({self.stage}, {self.buffer})"
        stage.loop(self.loop)
        check(self.buffer in stage.op.reads, f"{where}: the stage does not read {self.buffer}")
        check_distance(where, self.distance)
        check(self.level in (1, 2), f"{where}: nothing is asked for to be in level {self.level} of the caches")
        hint = PrefetchHint(self.buffer, self.loop, self.distance, self.level)
        stage = changed(stage, prefetches=(*stage.prefetches, hint))
        check_parallel(where, state, stage)
        return state.with_stage(stage)


@dataclass(frozen=True)
class FetchAhead:
    """While one tile is computed, ask for what the next one reads of `buffer`, an input or a copy made at the root, to
    be in the cache of `level`, 1 or 2; or, where only the stage that `reader` is computed in has to do with the buffer,
    for what that one writes of it, or reads of it as an input, with the next tile.

    `reader` is computed inside a loop, once a tile; `distance` iterations of that loop later, or of the innermost one
    around it that moves what it reads, it reads other lines of `buffer`. Before every iteration of `loop` of stage
    `stage` a share of them is asked for, so that the last iteration has asked for all: a loop inside the one that the
    reader is computed in, the reader's own and those of other stages that are computed there among them, or that loop
    itself.
    """

    stage: str
    loop: str
    reader: str
    buffer: str
    distance: int
    level: int = 1

    def apply(self, state: State) -> State:
        stage, reader = state.stage(self.stage), state.stage(self.reader)
        where = f"fetch_ahead({self.reader}, {self.buffer})"
        host = None if reader.at is None else state.stage(reader.at.stage)
        around = () if host is None else (*host.op.buffers, *host.op.reads.intersection(t.name for t in state.inputs))
        if self.buffer not in around:
            check(self.buffer in reader.op.reads, f"{where}: the stage does not read {self.buffer}")
            producer = state.producer(self.buffer)
            there = producer is None or producer.at is None
            check(there, f"{where}: {self.buffer} is neither an input nor computed at the root")
        check(reader.at is not None, f"{where}: it is not computed in a loop")
        assert reader.at is not None
        inside = state.loops_between(reader, stage, stage.loop(self.loop)) is not None
        check(inside, f"{where}: {self.loop} is not inside {reader.at.loop}, where it is computed")
        check(stage.loop(self.loop).kind is ForKind.SERIAL, f"{where}: {self.loop} is not a plain loop")
        check_distance(where, self.distance)
        check(self.level in (1, 2), f"{where}: nothing is asked for to be in level {self.level} of the caches")
        hint = AheadHint(self.reader, self.buffer, self.loop, self.distance, self.level)
        return state.with_stage(changed(stage, ahead=(*stage.ahead, hint)))
