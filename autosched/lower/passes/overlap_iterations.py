"""Software pipelining of shared-memory fills: multi-stage buffering.

A loop of n iterations over `barrier; fill; barrier; compute`, whose buffers hold S stages, becomes

    fill 0 .. S - 2
    for i:  wait for fill i; barrier; start fill i + S - 1; compute i

Fill i + S - 1 overwrites the stage that iteration i - 1 read. The barrier of iteration i, which every thread reaches
after computing i - 1, makes this safe and publishes the fills that each thread has waited for. So one barrier an
iteration is enough.

Fills that only move elements are asynchronous copies, one group an iteration (an empty one where nothing remains to be
filled, so that the S - 2 latest groups may always be pending). Others pass through registers, loaded before the
computation and stored after it. Perfectly nested loops with the same overlap are one sequence of iterations: the
variables of the next iteration are digits of its number.

Needs canonical extents; runs before tails are specialised, which treats the new loop like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Const, Expr, Load, Var, binary
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import (
    BLOCKS,
    THREADS,
    Allocate,
    Barrier,
    Buffer,
    Commit,
    For,
    ForKind,
    If,
    Overlap,
    Scope,
    Seq,
    Stmt,
    Store,
    Wait,
    walk,
)
from autosched.ir.visit import bottom_up, is_copy, map_exprs, substitute
from autosched.lower.passes.instantiate import simplify_stmt

WORD_BYTES = 4  # the least bytes of an asynchronous copy
HELD = ".held"  # suffix of the registers that fills pass through
ZERO, ONE = Const(0, INDEX), Const(1, INDEX)


@dataclass(frozen=True)
class _Around:
    """The context of a statement: whether it is in a loop of the thread, and the thread's and block's buffers."""

    is_repeated: bool = False
    near: frozenset[str] = frozenset()


def overlap_iterations(stmt: Stmt, simplify: Simplifier, around: _Around | None = None) -> Stmt:
    """Return `stmt` with the loops that have an overlap rotated."""
    outside = around or _Around()

    def go(s: Stmt, inside: _Around = outside) -> Stmt:
        return overlap_iterations(s, simplify, inside)

    match stmt:
        case For(overlap=Overlap(by_tiles=True)):
            return stmt
        case For(overlap=Overlap()):
            nest = _nest(stmt, outside)
            return _plain(stmt) if nest is None else simplify_stmt(nest.rotated(), simplify) or Seq(())
        case For(kind=kind):
            is_own = kind not in BLOCKS and kind not in THREADS
            return replace(stmt, body=go(stmt.body, replace(outside, is_repeated=outside.is_repeated or is_own)))
        case Allocate(buffer=buffer):
            near = outside.near if buffer.scope is Scope.GLOBAL else outside.near | {buffer.name}
            return replace(stmt, body=go(stmt.body, replace(outside, near=near)))
        case Seq(stmts=stmts):
            return Seq(tuple(map(go, stmts)))
        case If(cond=c, then=t, otherwise=o):
            return If(c, go(t), None if o is None else go(o))
    return stmt


def _plain(stmt: Stmt) -> Stmt:
    """Return the nest without its overlap."""
    while isinstance(stmt, For) and stmt.overlap is not None:
        return replace(stmt, overlap=None, body=_plain(stmt.body))
    return stmt


def _nest(loop: For, around: _Around) -> _Nest | None:
    """Return the parts of a loop that can be rotated; None with one stage or iteration, or nothing to fill."""
    overlap, loops, body = loop.overlap, [loop], loop.body
    assert overlap is not None
    while isinstance(body, For) and body.overlap == overlap:
        loops.append(body)
        body = body.body
    buffers: list[Buffer] = []
    while isinstance(body, Allocate) and body.buffer.scope is Scope.SHARED:
        buffers.append(body.buffer)
        body = body.body
    stmts = body.stmts if isinstance(body, Seq) else ()
    barriers = [n for n, s in enumerate(stmts) if isinstance(s, Barrier)]
    if barriers[:1] != [0] or len(barriers) < 2:
        return None
    fills, compute = stmts[1 : barriers[1]], stmts[barriers[1] + 1 :]
    written = {b for s in fills for x in walk(s) if isinstance(x, Store) for b in x.buffers}
    if written != {b.name for b in buffers} or not all(isinstance(x.extent, Const) for x in loops[1:]):
        return None
    assert isinstance(overlap.stages, Const)
    stages, first = int(overlap.stages.value), loops[0].extent
    if isinstance(first, Const):
        count = first.number
        for x in loops[1:]:
            assert isinstance(x.extent, Const)
            count *= x.extent.number
        stages = stages if count >= stages else int(count)
    if stages == 1:
        return None
    return _Nest(tuple(loops), tuple(buffers), fills, compute, stages, overlap.asynchronous, around)


@dataclass(frozen=True)
class _Nest:
    """`loops` around  allocate `buffers`; barrier; `fills`; barrier; `compute`."""

    loops: tuple[For, ...]
    buffers: tuple[Buffer, ...]
    fills: tuple[Stmt, ...]
    compute: tuple[Stmt, ...]
    stages: int
    asynchronous: bool
    around: _Around

    def rotated(self) -> Stmt:
        number: Expr = ZERO
        count: Expr = ONE
        for loop in self.loops:
            number, count = number * loop.extent + loop.var, count * loop.extent
        started = [s for s in self.fills if self._is_copy(s)]
        held = [s for s in self.fills if not self._is_copy(s)]
        before: list[Stmt] = [Barrier()] if self.around.is_repeated else []  # threads may still read an earlier fill
        before.append(self._prologue(started, held, count))
        after = number + (self.stages - 1)
        go_on, chunk, place = binary("lt", after, count), self._chunk(after), after % self.stages
        body: list[Stmt] = [Barrier()]
        if started:
            fills = [self._moved(_starting(s), place, chunk) for s in started]
            body = [Wait(self.stages - 2), Barrier(), If(go_on, Seq(tuple(fills))), Commit()]
        parts = [_Held.of(s) for s in held]
        load, store = (
            If(go_on, Seq(tuple(self._moved(x, place, chunk) for x in half))) if half else Seq(())
            for half in ([x.load for x in parts], [x.store for x in parts])
        )
        inner: Stmt = Seq((load, *(map_exprs(s, lambda e: self._read(e, number)) for s in self.compute), store))
        for buffer in (b for x in reversed(parts) for b in x.buffers):
            inner = Allocate(buffer, inner)
        result: Stmt = Seq((*body, inner))
        for loop in reversed(self.loops):
            result = replace(loop, body=result, overlap=None)
        result = Seq((*before, result))
        for buffer in reversed(self.buffers):
            shape = (Const(self.stages, INDEX), *buffer.shape[1:])
            result = Allocate(replace(buffer, shape=shape), result)
        return result

    def _prologue(self, started: list[Stmt], held: list[Stmt], count: Expr) -> Stmt:
        """Return the fills of the first iterations."""
        ahead = Var(f"{self.loops[-1].var.name}.ahead")
        chunk, trips = self._chunk(ahead), Const(self.stages - 1, INDEX)
        fills = [self._moved(s, ahead, chunk) for s in (*map(_starting, started), *held)]
        body: Stmt = If(binary("lt", ahead, count), Seq(tuple(fills)))
        return For(ahead, trips, trips, ForKind.SERIAL, Seq((body, Commit())) if started else body)

    def _chunk(self, number: Expr) -> dict[Expr, Expr]:
        """Return the values of the loops' variables in the iteration of that number."""
        values: dict[Expr, Expr] = {}
        for n, loop in reversed(list(enumerate(self.loops))):
            values[loop.var] = number if n == 0 else number % loop.extent
            number = number // loop.extent
        return values

    def _moved(self, fill: Stmt, place: Expr, chunk: Mapping[Expr, Expr]) -> Stmt:
        """Return the fill of another iteration, into stage `place` of the buffers."""
        match fill:
            case For():
                return replace(fill, body=self._moved(fill.body, place, chunk))
            case If():
                return If(substitute(fill.cond, chunk), self._moved(fill.then, place, chunk))
        assert isinstance(fill, Store)
        store = map_exprs(fill, lambda e: substitute(e, chunk))
        assert isinstance(store, Store)
        is_shared = store.buffers[0] in {b.name for b in self.buffers}
        return replace(store, indices=(place, *store.indices[1:])) if is_shared else store

    def _read(self, expr: Expr, number: Expr) -> Expr:
        """Return `expr` of iteration `number` with its loads from the buffers' stage of that iteration."""
        names = {b.name for b in self.buffers}

        def copied(e: Expr) -> Expr:
            if isinstance(e, Load) and e.buffer in names:
                return Load(e.buffer, (number % self.stages, *e.indices[1:]), e.dtype)
            return e

        return bottom_up(expr, copied)

    def _is_copy(self, fill: Stmt) -> bool:
        stores = [s for s in walk(fill) if isinstance(s, Store)]
        if not self.asynchronous or any(_step_bytes(fill, s) < WORD_BYTES for s in stores):
            return False
        return all(is_copy(s, lambda name: name not in self.around.near) for s in stores)


@dataclass(frozen=True)
class _Held:
    """A fill in two halves: a load into registers, one for each store of a thread, and the stores."""

    buffers: tuple[Buffer, ...]
    load: Stmt
    store: Stmt

    @staticmethod
    def of(fill: Stmt) -> _Held:
        [store] = [s for s in walk(fill) if isinstance(s, Store)]
        loops = [s for s in walk(fill) if isinstance(s, For)]
        position: Expr = ZERO
        count: Expr = ONE
        for loop in loops:
            position, count = position * loop.bound + loop.var, count * loop.bound
        dtypes = [v.dtype for v in store.values]
        pairs = zip(store.buffers, dtypes, strict=True)
        buffers = tuple(Buffer(b + HELD, (count,), d, Scope.REGISTER) for b, d in pairs)
        names = tuple(b.name for b in buffers)
        load = replace(store, buffers=names, indices=(position,))
        values = tuple(Load(b.name, (position,), b.dtype) for b in buffers)
        return _Held(buffers, _unrolled(fill, load), _unrolled(fill, replace(store, values=values)))


def _step_bytes(fill: Stmt, store: Store) -> int:
    """Return the bytes of adjacent elements that a thread moves at a time."""
    lanes = [s.bound for s in walk(fill) if isinstance(s, For) and s.kind is ForKind.UNROLL]
    counts = [int(n.value) for n in lanes if isinstance(n, Const)]
    return math.prod(counts) * DTYPES[store.values[0].dtype].nbytes


def _unrolled(fill: Stmt, store: Store) -> Stmt:
    """Return the fill with another innermost store and all loops unrolled: registers have no addresses."""
    match fill:
        case For():
            return replace(fill, kind=ForKind.UNROLL, body=_unrolled(fill.body, store))
        case If():
            return replace(fill, then=_unrolled(fill.then, store))
    assert isinstance(fill, Store)
    return store


def _starting(fill: Stmt) -> Stmt:
    match fill:
        case For():
            return replace(fill, body=_starting(fill.body))
        case If():
            return replace(fill, then=_starting(fill.then))
    assert isinstance(fill, Store)
    return replace(fill, asynchronous=True)
