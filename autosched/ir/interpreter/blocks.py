"""The interpreter for loop nests of blocks and threads, as a GPU runs them.

Each statement at the root is a kernel. A block's threads are coroutines: one after the other runs to its next
barrier, then all go on; those of a warp exchange values at a shuffle. Undefined beyond what `interpret.py` beside this
file lists, and an `InterpretError`:

shared race   two threads of a block touch an element of shared memory, one writes, no barrier stands between
global race   two threads of a kernel touch an element of global memory and one writes; a barrier does not help, but
              atomic updates may meet
divergence    a thread waits at a barrier while another has ended, stands at another one or in another iteration;
              likewise the threads of a warp at a shuffle
under way     a thread touches an element that an asynchronous copy will write; the copy writes it twice, when it starts
              and when its thread waits for it, so that a barrier must stand before the one and after the other

What an element of shared memory held when a thread entered the allocation again is undefined as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, MutableMapping
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import numpy as np

from autosched.ir.expr import Const, Expr
from autosched.ir.interpreter.machine import Action, Address, InterpretError, InterpreterState, Order, unwritten
from autosched.ir.interpreter.memory import BufferMemory, Clock, ElementUse, index_text
from autosched.ir.interpreter.scalars import Value
from autosched.ir.stmt import (
    BLOCKS,
    THREADS,
    Allocate,
    Barrier,
    Buffer,
    Commit,
    For,
    ForKind,
    Func,
    If,
    Scope,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Wait,
    walk,
)
from autosched.ir.verify import PRIVATE

Received: TypeAlias = "tuple[Value, ...] | None"  # from the other lane; None where there is no such lane
Run: TypeAlias = Generator["_Stop", Received, None]
Steps: TypeAlias = Callable[[], Run]


MEETINGS = (Barrier, Shuffle)
OF_BLOCKS = (Scope.SHARED, Scope.WARP)  # one for each block


def runs_in_blocks(func: Func) -> bool:
    """Whether a function is for a GPU: it has bound loops, barriers, shuffles or shared memory."""
    return any(_is_bound(s) or isinstance(s, MEETINGS) or _is_shared(s) for s in walk(func.body))


def _is_bound(s: Stmt) -> bool:
    return isinstance(s, For) and (s.kind in BLOCKS or s.kind in THREADS)


def _is_shared(s: Stmt) -> bool:
    return isinstance(s, Allocate) and s.buffer.scope in OF_BLOCKS


@dataclass(frozen=True)
class _Offer:
    """The value that a thread offers to its warp, and the lane that it reads from."""

    values: tuple[Value, ...]
    lane: int
    warp: int


@dataclass(frozen=True)
class _Stop:
    """Where a thread waits: the barrier's number in the kernel, and the loops around it with their iterations.

    With an `offer` it is a shuffle, where only its warp waits.
    """

    number: int
    loops: tuple[str, ...]
    at: tuple[int, ...]
    offer: _Offer | None = field(default=None, compare=False)

    def __str__(self) -> str:
        place = ", ".join(f"{name} = {n}" for name, n in zip(self.loops, self.at, strict=True))
        what = "barrier" if self.offer is None else "shuffle"
        return f"waits at {what} {self.number}{f' ({place})' if place else ''}"


@dataclass
class _Shared:
    """A buffer in shared memory: in which entry of the allocation each element was written; `slot` counts entries."""

    memory: BufferMemory
    slot: int
    written: list[int]
    under_way: set[int] = field(default_factory=set)


@dataclass
class _Copy:
    """An asynchronous copy of `value` to an element."""

    shared: _Shared
    at: int
    value: Value


@dataclass
class _Thread:
    """A thread, numbered through the run and in its block; `env` and `private` keep its variables and buffers while it
    waits. `copies` are its groups of asynchronous copies under way, oldest first; the last one is open."""

    number: int
    place: int
    run: Run
    env: list[Value]
    private: list[list[Value]]
    stop: _Stop | None = None
    received: Received = None
    copies: list[list[_Copy]] = field(default_factory=lambda: [[]])


@dataclass
class _Kernel:
    """A nest at the root: its bound loops with the variables' slots, block loops first, and the buffers inside it."""

    bound: dict[int, For]
    steps: Steps
    shared: list[_Shared]
    private: list[BufferMemory]


class BlockMachine(InterpreterState):
    """Compiles statements with a barrier or a shuffle inside to generators that yield at it, all others to plain
    closures."""

    def __init__(self, order: Order | None, counts: MutableMapping[str, int] | None) -> None:
        super().__init__(order, counts)
        self.order_of: Order = order or range
        self.interval = Clock()  # counts threads between two barriers, as `clock` counts threads of kernels
        self.shared: dict[str, _Shared] = {}
        self.in_kernel: _Kernel = _Kernel({}, _in_order([]), [], [])
        self.n_stops = 0
        self.copies: list[list[_Copy]] = [[]]  # of the thread that runs

    def action(self, s: Stmt) -> Action:
        if isinstance(s, Commit):
            return lambda: self.copies.append([])
        if isinstance(s, Wait):
            return self.wait(s.pending)
        is_global = isinstance(s, Allocate) and s.buffer.scope is Scope.GLOBAL
        if self.in_region or is_global or isinstance(s, Seq):
            return super().action(s)
        return self.kernel(s)

    def kernel(self, s: Stmt) -> Action:
        bound: dict[int, For] = {}
        while isinstance(s, For) and _is_bound(s):
            bound[self.slot(s.var.name)] = s
            s = s.body
        bound = dict(sorted(bound.items(), key=lambda item: item[1].kind in THREADS))
        self.in_kernel = kernel = _Kernel(bound, _in_order([]), [], [])
        self.loops, self.in_region = tuple(x.var.name for x in bound.values()), True
        kernel.steps = self.steps(s)
        self.loops, self.in_region = (), False
        return lambda: self.launch(kernel)

    def memory(self, buffer: Buffer, data: list[Value] | None = None) -> BufferMemory:
        """A new buffer; copies of a nest within a kernel that allocate the same shared one use the same memory."""
        if any(x.memory.buffer.name == buffer.name for x in self.in_kernel.shared):
            return self.memories[buffer.name]
        memory = super().memory(buffer, data)
        if buffer.scope in OF_BLOCKS:
            shared = _Shared(memory, self.slot(f"entries of {buffer.name}"), [0] * len(memory.data))
            self.shared[buffer.name] = shared
            self.in_kernel.shared.append(shared)
        elif self.in_region:
            self.in_kernel.private.append(memory)
        return memory

    def entry(self, memory: BufferMemory) -> Action:
        if memory.buffer.scope not in OF_BLOCKS:
            return super().entry(memory)
        env, slot = self.env, self.shared[memory.buffer.name].slot

        def enter() -> None:
            env[slot] += 1

        return enter

    # asynchronous copies

    def store(self, s: Store) -> Action:
        if not s.asynchronous:
            return super().store(s)
        shared, value = self.shared[s.buffers[0]], self.expr(s.values[0])
        place = self.watched(shared.memory, s.indices, ElementUse.WRITE)

        def start() -> None:
            copy = _Copy(shared, place(), value())
            shared.memory.data[copy.at] = None
            shared.under_way.add(copy.at)
            self.copies[-1].append(copy)

        return start

    def wait(self, pending: int) -> Action:
        fail = self.fault()

        def land() -> None:
            while len(self.copies) > pending + 1:
                for copy in self.copies.pop(0):
                    memory = copy.shared.memory
                    if memory.races(ElementUse.WRITE)(copy.at, self.interval):
                        index = index_text(np.unravel_index(copy.at, memory.shape))
                        fail(
                            f"race: a copy to {memory.buffer.name}{index} ends, which another thread of the block uses,"
                        )
                    copy.shared.under_way.remove(copy.at)
                    memory.data[copy.at] = copy.value

        return land

    # statements with barriers or shuffles inside

    def steps(self, s: Stmt) -> Steps:
        if not any(isinstance(x, MEETINGS) for x in walk(s)):
            return _without_barrier(self.stmt(s))
        before, self.statement = self.statement, s
        steps = self.stepped(s)
        self.statement = before
        return steps

    def stepped(self, s: Stmt) -> Steps:
        match s:
            case Barrier():
                return self.barrier()
            case Shuffle():
                return self.shuffle(s)
            case Seq(stmts):
                return _in_order([self.steps(stmt) for stmt in stmts])
            case Allocate(buffer, body):
                return _in_order([_without_barrier(self.entry(self.memory(buffer))), self.steps(body)])
            case If(cond, then, otherwise):
                test, yes = self.expr(cond), self.steps(then)
                no = _in_order([]) if otherwise is None else self.steps(otherwise)
                return lambda: yes() if test() else no()
            case For():
                return self.stepped_loop(s)
        raise TypeError(f"{type(s).__name__} has no barrier inside")

    def stepped_loop(self, s: For) -> Steps:
        fail, extent, bound = self.fault(), self.expr(s.extent), self.expr(s.bound)()
        slot, env, outer = self.slot(s.var.name), self.env, self.loops
        self.loops = (*self.loops, s.var.name)
        body = self.steps(s.body)
        self.loops = outer

        def run() -> Run:
            n = extent()
            if n > bound:
                fail(f"the extent {n} exceeds the bound {bound}")
            for i in range(n):
                env[slot] = i
                yield from body()

        return run

    def stop(self) -> Callable[[_Offer | None], _Stop]:
        """Where a thread is, at the barrier or shuffle that is being compiled."""
        env, names, number = self.env, self.loops[len(self.in_kernel.bound) :], self.n_stops
        slots = [self.slots[name] for name in names]
        self.n_stops += 1
        return lambda offer: _Stop(number, names, tuple(env[slot] for slot in slots), offer)

    def barrier(self) -> Steps:
        here = self.stop()

        def wait() -> Run:
            yield here(None)

        return wait

    def shuffle(self, s: Shuffle) -> Steps:
        here, lane, values = self.stop(), self.expr(s.lane), [self.expr(v) for v in s.values]
        memories = [self.memories[name] for name in s.buffers]
        places = [self.watched(m, s.indices, ElementUse.WRITE) for m in memories]

        def exchange() -> Run:
            received = yield here(_Offer(tuple(value() for value in values), lane(), s.warp))
            for n, (memory, place) in enumerate(zip(memories, places, strict=True)):
                memory.data[place()] = None if received is None else received[n]

        return exchange

    def watched(self, memory: BufferMemory, indices: tuple[Expr, ...], use: ElementUse) -> Address:
        """The address of an element; raises where threads meet in memory that they share."""
        fail = self.fault()
        address, scope, name = self.address(memory, indices, fail), memory.buffer.scope, memory.buffer.name
        if memory.is_input or scope in PRIVATE:
            return address
        is_shared = scope in OF_BLOCKS
        clock = self.interval if is_shared else self.clock
        other = "the block uses with no barrier between" if is_shared else "the kernel uses"
        memory.track()
        races = memory.races(use)

        def watch() -> int:
            at = address()
            if races(at, clock):
                index = np.unravel_index(at, memory.shape)
                fail(f"race: a thread {use.value} {name}{index_text(index)}, which another thread of {other},")
            return at

        return self.fresh(memory, watch, use is not ElementUse.READ, fail) if is_shared else watch

    def fresh(self, memory: BufferMemory, watch: Address, is_write: bool, fail: Callable[[str], NoReturn]) -> Address:
        """`watch`, with what an earlier entry of the allocation left in shared memory taken as undefined."""
        env, data, shared = self.env, memory.data, self.shared[memory.buffer.name]
        slot, written, under_way = shared.slot, shared.written, shared.under_way

        def arrived() -> int:
            at = watch()
            if at in under_way:
                index = index_text(np.unravel_index(at, memory.shape))
                fail(f"{memory.buffer.name}{index} is used while an asynchronous copy to it is under way")
            return at

        def write() -> int:
            at = arrived()
            if written[at] != env[slot]:
                written[at] = env[slot]
                data[at] = None
            return at

        def read() -> int:
            at = arrived()
            return unwritten(memory, at, fail) if written[at] != env[slot] else at

        return write if is_write else read

    # running

    def launch(self, kernel: _Kernel) -> None:
        blocks, threads = (_points(kernel, kinds) for kinds in (BLOCKS, THREADS))
        self.clock.first = first = self.clock.task + 1
        for n in self.order_of(len(blocks)):
            for shared in kernel.shared:
                shared.memory.data[:] = [None] * len(shared.written)
                shared.written[:] = [0] * len(shared.written)
                shared.under_way.clear()
            self.block(kernel, blocks[n], threads, first + n * len(threads))
        self.clock.task = first + len(blocks) * len(threads)

    def block(self, kernel: _Kernel, block: tuple[int, ...], points: list[tuple[int, ...]], first: int) -> None:
        threads = []
        for number, point in enumerate(points):
            env = [0] * len(self.env)
            place = _place(kernel, point)
            for slot, value in zip(kernel.bound, (*block, *point), strict=True):
                env[slot] = value
            threads.append(_Thread(first + number, place, kernel.steps(), env, []))
        while threads:
            self.interval.first = self.interval.task + 1
            going = threads
            while going:  # up to the next barrier, with stops at shuffles
                for n in self.order_of(len(going)):
                    self.interval.task = self.interval.first + going[n].place
                    self.resume(kernel, going[n])
                going = _exchange(kernel, threads)
            self.interval.task = self.interval.first + len(points)
            if any(x.stop != threads[0].stop for x in threads):
                raise InterpretError(_divergence(kernel, threads, "barrier"))
            threads = [x for x in threads if x.stop is not None]

    def resume(self, kernel: _Kernel, thread: _Thread) -> None:
        """Run a thread up to its next barrier, shuffle or its end."""
        self.clock.task = thread.number
        self.env[:] = thread.env
        self.copies = thread.copies
        if thread.stop is not None:
            for memory, data in zip(kernel.private, thread.private, strict=True):
                memory.data[:] = data
        try:
            thread.stop = thread.run.send(thread.received)
        except StopIteration:
            thread.stop = None
        thread.env = self.env[:]
        if thread.stop is not None:
            thread.private = [memory.data[:] for memory in kernel.private]


def _exchange(kernel: _Kernel, threads: list[_Thread]) -> list[_Thread]:
    """The threads that stand at shuffles, all of whose warps do: each has got its value."""
    offers = {x.place: (x, x.stop.offer) for x in threads if x.stop is not None and x.stop.offer is not None}
    warps: dict[tuple[int, int], list[_Thread]] = {}
    for size in {offer.warp for _, offer in offers.values()}:
        for thread in threads:
            warps.setdefault((size, thread.place // size), []).append(thread)
    for thread, offer in offers.values():
        number = thread.place // offer.warp
        warp = warps[offer.warp, number]
        if any(x.stop != warp[0].stop for x in warp):
            raise InterpretError(_divergence(kernel, warp, "warp"))
        other = offers.get(number * offer.warp + offer.lane) if 0 <= offer.lane < offer.warp else None
        thread.received = None if other is None else other[1].values
    return [thread for thread, _ in offers.values()]


def _divergence(kernel: _Kernel, threads: list[_Thread], what: str) -> str:
    one = threads[0]
    other = next(x for x in threads if x.stop != one.stop)
    texts = []
    for thread in (one, other):
        place = ", ".join(f"{loop.var.name} = {thread.env[slot]}" for slot, loop in kernel.bound.items())
        texts.append(f"the thread {place} {thread.stop or 'has ended'}")
    return f"{what} divergence: {texts[0]}, but {texts[1]}"


def _points(kernel: _Kernel, kinds: tuple[ForKind, ...]) -> list[tuple[int, ...]]:
    """All values of the kernel's block or thread variables."""
    extents = [loop.extent for loop in kernel.bound.values() if loop.kind in kinds]
    return list(itertools.product(*(range(e.number) for e in extents if isinstance(e, Const))))


def _place(kernel: _Kernel, point: tuple[int, ...]) -> int:
    """The number of a thread in its block, x varying fastest."""
    loops = [loop for loop in kernel.bound.values() if loop.kind in THREADS]
    place = 0
    for loop, at in sorted(zip(loops, point, strict=True), key=lambda item: -THREADS.index(item[0].kind)):
        assert isinstance(loop.extent, Const)
        place = place * loop.extent.number + at
    return place


def _without_barrier(action: Action) -> Steps:
    def run() -> Run:
        action()
        yield from ()

    return run


def _in_order(parts: list[Steps]) -> Steps:
    def run() -> Run:
        for part in parts:
            yield from part()

    return run
