"""Statements as nested Python closures over one list of loop variables: the interpreter's engine.

Buffers are flat lists in logical row-major order whatever their layout, `None` where nothing was written
yet. Every fault is an `InterpretError` that names the statement and the loop variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, MutableMapping
from typing import NoReturn, TypeAlias

import numpy as np

from autosched.ir.bitcast import Bitcast
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Call, Cast, Const, Expr, Load, Select, Var
from autosched.ir.instructions.dots import Dot, Word, packed, unpacked
from autosched.ir.instructions.tiles import as_loops
from autosched.ir.interpreter.memory import BufferMemory, Clock, ElementUse, index_text, shape_of
from autosched.ir.interpreter.scalars import (
    Function,
    Operation,
    Value,
    conversion,
    is_partial,
    operation,
    reinterpretation,
    scalar_function,
    wrapping,
)
from autosched.ir.printer import headline
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, If, Prefetch, Reducer, Seq, Stmt, Store, TileCopy
from autosched.ir.verify import PRIVATE, IRError

Thunk: TypeAlias = Callable[[], Value]
Address: TypeAlias = Callable[[], int]
Action: TypeAlias = Callable[[], None]
Fault: TypeAlias = Callable[[str], NoReturn]
Order: TypeAlias = Callable[[int], Iterable[int]]


class InterpretError(IRError):
    """A function that does something the IR gives no meaning to."""


class InterpreterState:
    """Compiles statements to closures; `env` holds the loop variables' values while they run."""

    def __init__(self, order: Order | None, counts: MutableMapping[str, int] | None) -> None:
        self.order = order
        self.counts = counts
        self.env: list[Value] = []
        self.slots: dict[str, int] = {}
        self.memories: dict[str, BufferMemory] = {}
        self.clock = Clock()
        self.in_region = False
        self.statement: Stmt | None = None
        self.loops: tuple[str, ...] = ()

    def memory(self, buffer: Buffer, data: list[Value] | None = None) -> BufferMemory:
        shape = shape_of(buffer)
        blank: list[Value] = [None] * math.prod(shape)
        memory = BufferMemory(buffer, shape, blank if data is None else data, data is not None, self.in_region)
        self.memories[buffer.name] = memory
        return memory

    def slot(self, name: str) -> int:
        self.slots[name] = len(self.env)
        self.env.append(0)
        return self.slots[name]

    def fault(self) -> Fault:
        """Raises with the statement that is being compiled now and the loop variables as they are when it raises."""
        env, statement, slots = self.env, self.statement, {name: self.slots[name] for name in self.loops}

        def fail(text: str) -> NoReturn:
            where = "" if statement is None else f" in  {headline(statement)}"
            values = ", ".join(f"{name} = {env[slot]}" for name, slot in slots.items())
            raise InterpretError(f"{text}{where}{f'  at {values}' if values else ''}")

        return fail

    def stmt(self, s: Stmt) -> Action:
        before, self.statement = self.statement, s
        action = self.action(s)
        self.statement = before
        return action

    def action(self, s: Stmt) -> Action:
        match s:
            case For():
                return self.loop(s)
            case Seq(stmts):
                return _sequence([self.stmt(stmt) for stmt in stmts if not isinstance(stmt, Prefetch)])
            case If(cond, then, otherwise):
                test, yes = self.expr(cond), self.stmt(then)
                no = _nothing if otherwise is None else self.stmt(otherwise)
                return lambda: yes() if test() else no()
            case Allocate(buffer, body):
                return _sequence([self.entry(self.memory(buffer)), self.stmt(body)])
            case Store():
                return self.counted(s.stage, self.store(s))
            case Prefetch():
                return _nothing
            case TileCopy():
                return self.stmt(as_loops(s, self.memories[s.outside].buffer))
        raise TypeError(f"{type(s).__name__} is not a statement")

    def entry(self, memory: BufferMemory) -> Action:
        """Enter an allocation: the contents are undefined from then on."""
        data, blank = memory.data, [None] * len(memory.data)

        def enter() -> None:
            data[:] = blank

        return enter

    def loop(self, s: For) -> Action:
        fail, extent, bound = self.fault(), self.expr(s.extent), self.expr(s.bound)()
        slot, env, outer = self.slot(s.var.name), self.env, (self.loops, self.in_region)
        is_parallel = s.kind is ForKind.PARALLEL
        self.loops, self.in_region = (*self.loops, s.var.name), self.in_region or is_parallel
        body = self.stmt(s.body)
        self.loops, self.in_region = outer
        order: Order = range
        if is_parallel and self.order is not None:
            order = self.order
            is_innermost = not (isinstance(s.body, For) and s.body.kind is ForKind.PARALLEL)
            body = _task(body, self.clock) if is_innermost else body

        def run() -> None:
            n = extent()
            if n > bound:
                fail(f"the extent {n} exceeds the bound {bound}")
            for env[slot] in order(n):
                body()

        return run if self.in_region or not is_parallel else _region(run, self.clock)

    def counted(self, stage: str, run: Action) -> Action:
        if self.counts is None or not stage:
            return run
        counts = self.counts

        def count() -> None:
            counts[stage] = counts.get(stage, 0) + 1
            run()

        return count

    def store(self, s: Store) -> Action:
        values = [self.expr(v) for v in s.values]
        memories = [self.memories[name] for name in s.buffers]
        use = ElementUse.UPDATE if s.atomic else ElementUse.WRITE
        places = [self.watched(m, s.indices, use) for m in memories]
        old = [_element(m, at, self.fault()) for m, at in zip(memories, places, strict=True)]
        if len(values) > 1:
            combine = None if s.reducer is None else self.combination(s.reducer)
            return _store_many([m.data for m in memories], places, old, values, combine)
        data, place, value = memories[0].data, places[0], values[0]
        if s.reducer is None:

            def write() -> None:
                data[place()] = value()

            return write
        return _update(memories[0], place, value, self.reduction(s.reducer), self.fault())

    def reduction(self, r: Reducer) -> Operation:
        """A reducer of one value as a function of two."""
        match r.results[0]:
            case Binary(op, a, b) if a is r.lhs[0] and b is r.rhs[0]:
                return self.operation(op, a.dtype)
        combine = self.combination(r)
        return lambda x, y: combine([x], [y])[0]

    def combination(self, r: Reducer) -> Callable[[list[Value], list[Value]], list[Value]]:
        env, slots = self.env, self.slots
        self.slots = dict(slots)
        operands = [self.slot(v.name) for v in (*r.lhs, *r.rhs)]
        results = [self.expr(e) for e in r.results]
        self.slots = slots

        def combine(old: list[Value], new: list[Value]) -> list[Value]:
            for slot, value in zip(operands, (*old, *new), strict=True):
                env[slot] = value
            return [result() for result in results]

        return combine

    def watched(self, memory: BufferMemory, indices: tuple[Expr, ...], use: ElementUse) -> Address:
        """The address of an element; with race detection, raises where tasks meet in shared memory."""
        fail = self.fault()
        address, name, clock = self.address(memory, indices, fail), memory.buffer.name, self.clock
        is_private = memory.buffer.scope in PRIVATE and memory.in_region
        if self.order is None or not self.in_region or is_private or memory.is_input:
            return address
        memory.track()
        races = memory.races(use)

        def watch() -> int:
            at = address()
            if races(at, clock):
                index = np.unravel_index(at, memory.shape)
                fail(
                    f"race: a task {use.value} {name}{index_text(index)}, which another task of the parallel loop uses"
                )
            return at

        return watch

    def address(self, memory: BufferMemory, indices: tuple[Expr, ...], fail: Fault) -> Address:
        """The row-major position of an element, each index checked against the shape."""
        thunks, name, shape = [self.expr(e) for e in indices], memory.buffer.name, memory.shape

        def outside() -> NoReturn:
            fail(f"index {index_text(t() for t in thunks)} is outside {name}, whose shape is {index_text(shape)},")

        address: Address | None = None
        for e, thunk, n in zip(indices, thunks, shape, strict=True):
            if isinstance(e, Var):
                address = _variable_index(address, self.env, self.slots[e.name], n, outside)
            else:
                address = _index(address, thunk, n, outside)
        return address or _origin

    def expr(self, e: Expr) -> Thunk:
        env = self.env
        match e:
            case Const(value, dtype):
                constant = np.float32(value) if DTYPES[dtype].computes_in == "float32" else value
                return lambda: constant
            case Var(name, _):
                slot = self.slots[name]
                return lambda: env[slot]
            case Load(name, indices, _):
                memory = self.memories[name]
                return _element(memory, self.watched(memory, indices, ElementUse.READ), self.fault())
            case Select(cond, a, b):
                test, yes, no = self.expr(cond), self.expr(a), self.expr(b)
                return lambda: yes() if test() else no()
            case Cast(a, dtype):
                convert, operand = self.conversion(a.dtype, dtype), self.expr(a)
                return lambda: convert(operand())
            case Bitcast(a, dtype):
                convert, operand = reinterpretation(a.dtype, dtype), self.expr(a)
                return lambda: convert(operand())
            case Call(fn, args):
                function, operand = scalar_function(fn, e.dtype), self.expr(args[0])
                return lambda: function(operand())
            case Word(parts):
                fields, kind = [self.expr(p) for p in parts], parts[0].dtype
                return lambda: packed([f() for f in fields], kind)
            case Dot():
                return self.dot(e)
            case Binary():
                terms = self.affine(e)
                return self.binary(e) if terms is None else _linear(env, *terms)
        raise TypeError(f"{type(e).__name__} has no value")

    def dot(self, e: Dot) -> Thunk:
        row, a, b = e.row, self.expr(e.a), self.expr(e.b)
        convert = conversion("float64" if row.accumulator == "float32" else "int64", row.accumulator)

        def value() -> Value:
            x, y = unpacked(a(), row.a, row.depth), unpacked(b(), row.b, row.depth)
            total = convert(x[0] * y[0])
            for p, q in zip(x[1:], y[1:], strict=True):
                total = convert(total + p * q)
            return total

        return value

    def binary(self, e: Binary) -> Thunk:
        a, b = self.expr(e.a), self.expr(e.b)
        is_float = DTYPES[e.a.dtype].is_float
        if is_float and e.op == "add":
            return lambda: a() + b()
        if is_float and e.op == "mul":
            return lambda: a() * b()
        operation = self.operation(e.op, e.a.dtype)
        return lambda: operation(a(), b())

    def affine(self, e: Expr) -> tuple[dict[int, int], int] | None:
        """An int64 sum of variables times constants, as coefficients by slot and a constant; None for all else.

        Wrapping once at the end is the same as wrapping after each operation, which is exact modulo 2^64.
        """
        match e:
            case Const(value, "int64"):
                return {}, int(value)
            case Var(name, "int64"):
                return {self.slots[name]: 1}, 0
            case Binary("add" | "sub" | "mul" as op, x, y) if e.dtype == INDEX:
                a, b = self.affine(x), self.affine(y)
                if a is None or b is None or (op == "mul" and a[0] and b[0]):
                    return None
                if op == "mul":
                    (terms, constant), factor = (a, b[1]) if a[0] else (b, a[1])
                    return {slot: c * factor for slot, c in terms.items()}, constant * factor
                sign = 1 if op == "add" else -1
                total = {slot: a[0].get(slot, 0) + sign * b[0].get(slot, 0) for slot in {**a[0], **b[0]}}
                return total, a[1] + sign * b[1]
        return None

    def operation(self, op: str, dtype: str) -> Operation:
        function = operation(op, dtype)
        return self.guarded(function, f"{op} of {dtype}") if is_partial(op) else function

    def conversion(self, source: str, dtype: str) -> Function:
        convert = conversion(source, dtype)
        is_truncation = DTYPES[source].is_float and DTYPES[dtype].is_integer
        return self.guarded(convert, f"the cast to {dtype}") if is_truncation else convert

    def guarded(self, function: Callable[..., Value], what: str) -> Callable[..., Value]:
        fail = self.fault()

        def run(*operands: Value) -> Value:
            try:
                return function(*operands)
            except ArithmeticError as error:
                fail(f"{what} has no value for {', '.join(map(str, operands))}: {error},")

        return run


def _nothing() -> None:
    return None


def _sequence(actions: list[Action]) -> Action:
    if len(actions) == 1:
        return actions[0]

    def run() -> None:
        for action in actions:
            action()

    return run


def _region(run: Action, clock: Clock) -> Action:
    """A parallel loop that no other surrounds: what its tasks did is settled when it ends."""

    def region() -> None:
        clock.first = clock.task + 1
        run()

    return region


def _task(run: Action, clock: Clock) -> Action:
    def task() -> None:
        clock.task += 1
        run()

    return task


def _origin() -> int:
    return 0


def _index(outer: Address | None, index: Thunk, n: int, outside: Callable[[], NoReturn]) -> Address:
    """One more dimension of an address: outer * n + index."""
    before = outer or _origin

    def first() -> int:
        i: int = index()
        return i if 0 <= i < n else outside()

    def inner() -> int:
        i: int = index()
        return before() * n + i if 0 <= i < n else outside()

    return first if outer is None else inner


def _variable_index(
    outer: Address | None, env: list[Value], slot: int, n: int, outside: Callable[[], NoReturn]
) -> Address:
    """`_index` of a loop variable, without a call for it."""
    before = outer or _origin

    def first() -> int:
        i: int = env[slot]
        return i if 0 <= i < n else outside()

    def inner() -> int:
        i: int = env[slot]
        return before() * n + i if 0 <= i < n else outside()

    return first if outer is None else inner


def _linear(env: list[Value], terms: dict[int, int], constant: int) -> Thunk:
    """constant + sum of coefficient * variable in int64."""
    items = [(slot, c) for slot, c in terms.items() if c]
    wrap = wrapping(INDEX)
    if len(items) == 1:
        [(s, c)] = items
        return lambda: wrap(c * env[s] + constant)
    if len(items) == 2:
        (s, c), (t, d) = items
        return lambda: wrap(c * env[s] + d * env[t] + constant)

    def total() -> int:
        value = constant
        for slot, coefficient in items:
            value += coefficient * env[slot]
        return wrap(value)

    return total


def _element(memory: BufferMemory, place: Address, fail: Fault) -> Thunk:
    data = memory.data

    def read() -> Value:
        at = place()
        value = data[at]
        return unwritten(memory, at, fail) if value is None else value

    return read


def unwritten(memory: BufferMemory, at: int, fail: Fault) -> NoReturn:
    index = index_text(np.unravel_index(at, memory.shape))
    fail(f"{memory.buffer.name}{index} is read before it is written")


def _update(memory: BufferMemory, place: Address, value: Thunk, combine: Operation, fail: Fault) -> Action:
    data = memory.data

    def update() -> None:
        new = value()
        at = place()
        old = data[at]
        data[at] = combine(unwritten(memory, at, fail) if old is None else old, new)

    return update


def _store_many(
    data: list[list[Value]],
    places: list[Address],
    old: list[Thunk],
    values: list[Thunk],
    combine: Callable[[list[Value], list[Value]], list[Value]] | None,
) -> Action:
    def store() -> None:
        new = [value() for value in values]
        if combine is not None:
            new = combine([element() for element in old], new)
        for elements, place, value in zip(data, places, new, strict=True):
            elements[place()] = value

    return store
