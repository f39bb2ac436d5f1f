"""Statements to LLVM: loops, branches, stores, private buffers.

Serial loops test at the bottom; an unrolled loop binds its variable to numbers; a vectorised loop is
whole vectors and one masked rest. Register buffers are stack slots with constant addresses, which
LLVM's SROA pass turns into values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autosched.codegen.llvm import masks
from autosched.codegen.llvm.address import Access, Addresses, Lanes, Placed, Runtime, vector_lanes
from autosched.codegen.llvm.arithmetic import Arithmetic, Val
from autosched.codegen.llvm.lookup import scatter
from autosched.codegen.llvm.passing import emit_ordered, emit_passing, emit_window
from autosched.codegen.llvm.transpose import emit_across
from autosched.codegen.llvm.values import Values
from autosched.codegen.llvm.windows import MAX_CHUNKS
from autosched.codegen.llvm.words import literal, memory_type, suffix, value_type
from autosched.codegen.llvm.writer import Writer
from autosched.codegen.storage import REGISTER_PAD, element_count
from autosched.ir.conditions import is_left_out
from autosched.ir.expr import DTYPES, INDEX, Const, Expr, Load, Var
from autosched.ir.stmt import Allocate, For, ForKind, If, Prefetch, Scope, Seq, Stmt, Store, walk
from autosched.ir.visit import free_vars, reduces_lanes, substitute, vector_tile
from autosched.target import Target
from autosched.te.first_best import FirstBest, first_best
from autosched.te.reducers import largest

STACK_BYTES = 16 << 10  # private buffers up to this size are on the stack, others in the workspace
ALIGN = 64
LOCALITY = {1: 3, 2: 2}  # of LLVM's prefetches, by the level of the cache that a line is brought to
AROUND = " ; around the caches"  # a comment behind the store of a whole vector that may be one, see `streamed`


@dataclass
class LocalMemory:
    """The thread's part of the workspace, used like a stack."""

    pointer: str
    used: int = 0
    peak: int = 0

    def take(self, nbytes: int) -> int:
        at = self.used
        self.used += -(-nbytes // ALIGN) * ALIGN
        self.peak = max(self.peak, self.used)
        return at


class Statements:
    """Emits statements at the writer's current point."""

    def __init__(
        self, writer: Writer, addresses: Addresses, target: Target, local: LocalMemory, paired: frozenset[Var]
    ) -> None:
        self.writer = writer
        self.addresses = addresses
        self.target = target
        self.local = local
        self.paired = paired  # variables of loops, see `halves.py`
        self.arithmetic = Arithmetic(writer, target)
        self.values = Values(writer, addresses, self.arithmetic)
        # What copies of an unrolled body ask again, by the identity of a statement that is kept with it.
        self._widths: dict[int, tuple[Stmt, int]] = {}
        self._results: dict[int, tuple[Stmt, tuple[Expr, ...] | None]] = {}
        self._horizontals: dict[int, tuple[Stmt, bool]] = {}
        self._in_order: dict[int, Stmt] = {}

    def emit(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts=stmts):
                self._sequence(stmts)
            case For():
                self._for(stmt)
            case If():
                self._if(stmt)
            case Allocate():
                self._allocate(stmt)
            case Store():
                self._store(stmt)
            case Prefetch():
                self._prefetch(stmt)
            case _:
                raise TypeError(f"no code for {type(stmt).__name__}")

    def _sequence(self, stmts: Sequence[Stmt]) -> None:
        rest = deque(stmts)
        before: Stmt | None = None
        while rest:
            stmt = rest.popleft()
            if rest and emit_passing(self, before, stmt, rest[0]):
                stmt = rest.popleft()
            elif not emit_window(self, before, stmt):
                self.emit(stmt)
            before = before if _only_fetches(stmt) else stmt

    # loops

    def _for(self, stmt: For) -> None:
        if stmt.kind is ForKind.VECTORIZE:
            self._vector_loop(stmt)
        elif stmt.kind is ForKind.UNROLL and isinstance(stmt.extent, Const):
            if id(stmt) not in self._in_order and self._tile(stmt):
                return
            self._in_order[id(stmt)] = stmt
            for n in range(int(stmt.extent.value)):
                self.addresses.env[stmt.var] = n
                self.emit(stmt.body)
            del self.addresses.env[stmt.var]
        else:

            def body(var: Runtime) -> None:
                self.addresses.env[stmt.var] = var
                self.emit(stmt.body)
                del self.addresses.env[stmt.var]

            self.serial_loop(stmt.extent, body)

    def _tile(self, stmt: For) -> bool:
        """Emits unrolled loops that have a better order than their own."""
        nest = vector_tile(stmt)
        if nest is not None and emit_across(self, *nest):
            return True
        return emit_window(self, None, stmt) or (nest is not None and emit_ordered(self, *nest))

    def serial_loop(self, extent: Expr, body: Callable[[Runtime], None]) -> None:
        """A loop of `extent` iterations; skipped when that may be zero and is."""
        count = self.addresses.scalar(extent)
        may_skip = self.addresses.simplify.bounds(extent)[0] < 1
        self._counted(str(count) if isinstance(count, int) else count.name, may_skip, body)

    def _counted(self, count: str, may_skip: bool, body: Callable[[Runtime], None], stem: str = "L") -> None:
        w = self.writer
        head, done = w.new_label(stem), w.new_label(f"{stem}end")
        if may_skip:
            test = w.value(f"icmp sgt i64 {count}, 0")
            w.branch(f"i1 {test}, label %{head}, label %{done}")
        else:
            w.branch(f"label %{head}")
        before = w.block
        w.label(head)
        name, following = w.fresh("i"), w.fresh("n")
        phi = w.gap()
        self.values.forget()
        with w.conditional(may_skip), w.frame() as depth:
            body(Runtime(name, depth))
            phi.append(f"  {name} = phi i64 [ 0, %{before} ], [ {following}, %{w.block} ]")
            w.emit(f"{following} = add nuw nsw i64 {name}, 1")
            again = w.value(f"icmp slt i64 {following}, {count}")
            w.branch(f"i1 {again}, label %{head}, label %{done}")
        w.label(done)
        self.values.forget()

    def width(self, loop: For) -> int:
        """Lanes of a vector in a vectorised loop."""
        if loop.var in self.paired:
            return self.target.vector_bytes // 2
        body = loop.body
        known = self._widths.get(id(body))
        if known is None:
            known = self._widths[id(body)] = (body, vector_lanes(body, self.addresses, self.target))
        return known[1]

    def _vector_loop(self, stmt: For) -> None:
        extent = stmt.extent
        width = self.width(stmt)
        if isinstance(extent, Const):
            n = int(extent.value)
            lanes = min(width, _next_power(n))
            whole, rest = divmod(n, lanes)
            most = MAX_CHUNKS // 2 if stmt.var in self.paired else MAX_CHUNKS
            if 1 < whole <= most and reduces_lanes(stmt):
                self._reduced_chunks(stmt, whole, lanes)
            elif whole <= most:
                self.writer.single = whole + bool(rest) == 1
                for chunk in range(whole):
                    self.vector(stmt, Lanes(chunk * lanes, lanes), None)
            else:
                self._vector_chunks(stmt, str(whole), lanes, may_skip=False)
            self.vector_rest(stmt, whole * lanes, rest, width)
            self.writer.single = False
            return
        count = self.addresses.scalar(extent)
        name = str(count) if isinstance(count, int) else count.name
        self._dynamic_vectors(stmt, name, width)

    def vector_rest(self, stmt: For, first: int, rest: int, width: int) -> None:
        """The last `rest` iterations, fewer than a vector has lanes."""
        if not rest:
            return
        tail = min(width, _next_power(rest))
        bits = ", ".join(f"i1 {'true' if i < rest else 'false'}" for i in range(tail))
        self.vector(stmt, Lanes(first, tail), None if rest == tail else f"<{bits}>")

    def _reduced_chunks(self, loop: For, whole: int, lanes: int) -> None:
        """Whole vectors are combined with each other first, so that lanes are combined only once."""
        store = loop.body
        assert isinstance(store, Store)
        chunks: list[list[Val]] = []
        self.values.lanes, self.writer.paired = lanes, loop.var in self.paired
        for chunk in range(whole):
            self.addresses.env[loop.var] = Lanes(chunk * lanes, lanes)
            self.values.begin()
            chunks.append([self.arithmetic.spread(self.values.emit(v), lanes) for v in store.values])
        del self.addresses.env[loop.var]
        self.writer.paired = False
        results, self.values.lanes = self._horizontal(store, chunks, lanes), 1
        for name, value in zip(store.buffers, results, strict=True):
            self._write(name, store.indices, value, blend=True)

    def _vector_chunks(self, stmt: For, count: str, lanes: int, may_skip: bool) -> None:
        def body(var: Runtime) -> None:
            self.vector(stmt, Lanes(0, lanes, var), None)

        self._counted(count, may_skip, body, "V")

    def _dynamic_vectors(self, stmt: For, extent: str, lanes: int) -> None:
        """Whole vectors, then one masked vector for what is left."""
        w = self.writer
        if lanes == 1:
            self._vector_chunks(stmt, extent, 1, may_skip=True)
            return
        whole = w.value(f"sdiv i64 {extent}, {lanes}")
        self._vector_chunks(stmt, whole, lanes, may_skip=True)
        rest = w.value(f"srem i64 {extent}, {lanes}")
        some, done = w.new_label("rest"), w.new_label("restend")
        w.branch(f"i1 {w.value(f'icmp sgt i64 {rest}, 0')}, label %{some}, label %{done}")
        w.label(some)
        self.values.forget()
        numbers = ", ".join(f"i64 {n}" for n in range(lanes))
        spread = self.arithmetic.spread(Val(rest, INDEX, 1), lanes)
        mask = w.value(f"icmp slt <{lanes} x i64> <{numbers}>, {spread.name}")
        with w.conditional(), w.frame() as depth:  # hoisted arithmetic stays inside this block
            self.vector(stmt, Lanes(0, lanes, Runtime(whole, depth)), mask)
        w.branch(f"label %{done}")
        w.label(done)
        self.values.forget()

    def vector(self, stmt: For, lanes: Lanes, mask: str | None) -> None:
        if lanes.lanes == 1:
            self.addresses.env[stmt.var] = lanes.base if lanes.chunk is None else lanes.chunk
        else:
            self.addresses.env[stmt.var] = lanes
        self.values.mask, self.values.lanes, self.writer.paired = mask, lanes.lanes, stmt.var in self.paired
        self.emit(stmt.body)
        self.values.mask, self.values.lanes, self.writer.paired = None, 1, False
        del self.addresses.env[stmt.var]

    # branches and memory

    def _if(self, stmt: If) -> None:
        w = self.writer
        self.values.begin()  # what an earlier condition has computed may stand in a branch not taken
        cond = self.values.emit(stmt.cond)
        then, other, done = (w.new_label(x) for x in ("full", "tail", "endif"))
        w.branch(f"i1 {cond.name}, label %{then}, label %{other if stmt.otherwise else done}")
        for label, body in ((then, stmt.then), (other, stmt.otherwise)):
            if body is None:
                continue
            w.label(label)
            self.values.forget()
            with w.conditional():
                self.emit(body)
            w.branch(f"label %{done}")
        w.label(done)
        self.values.forget()

    def _allocate(self, stmt: Allocate) -> None:
        buffer = stmt.buffer
        nbytes = element_count(buffer) * buffer.itemsize
        used = self.local.used
        if buffer.scope is Scope.REGISTER or nbytes <= STACK_BYTES:
            with self.writer.hoisted(0):
                pointer = self.writer.value(f"alloca [{nbytes + ALIGN} x i8], align {ALIGN}", "a")
        else:
            offset = self.local.take(nbytes + ALIGN)
            with self.writer.hoisted(0):
                pointer = self.writer.value(f"getelementptr inbounds i8, ptr {self.local.pointer}, i64 {offset}", "a")
        if buffer.scope is Scope.REGISTER:
            self.addresses.slots.add(pointer)
        outer = self.addresses.placed.get(buffer.name)
        blends = buffer.scope is not Scope.REGISTER or not masks.leaves_lanes_alone(stmt)
        self.addresses.placed[buffer.name] = Placed(buffer, pointer, blends=blends)
        self.emit(stmt.body)
        self.writer.slots.pop(pointer, None)  # nobody reads it again
        self.local.used = used
        if outer is not None:
            self.addresses.placed[buffer.name] = outer

    def _prefetch(self, stmt: Prefetch) -> None:
        access = self.addresses.access(stmt.buffer, stmt.indices)
        pointer = self.addresses.at(access, self.addresses.placed[stmt.buffer].buffer.dtype)
        hint = f"i32 {int(stmt.writes)}, i32 {LOCALITY[stmt.level]}, i32 1"
        self.writer.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, {hint})")

    # stores

    def _store(self, stmt: Store) -> None:
        if is_left_out(stmt, self.addresses.fixed):
            return
        self.values.begin(stmt)
        if stmt.reducer is not None and self._is_horizontal(stmt):
            parts = [self.arithmetic.spread(self.values.emit(v), self.values.lanes) for v in stmt.values]
            results = self._horizontal(stmt, [parts], self.values.lanes)
        elif (written := self._written(stmt)) is not None:
            results = [self.values.emit(v) for v in written]
        else:
            results = self._combine(
                stmt, [self.values.emit(e) for e in self._old(stmt)], [self.values.emit(v) for v in stmt.values]
            )
        for name, value in zip(stmt.buffers, results, strict=True):
            self._write(name, stmt.indices, value, stmt.reducer is not None, stmt.streamed)

    def _written(self, stmt: Store) -> tuple[Expr, ...] | None:
        """What is stored, an update as one expression; None where that would compute a value twice."""
        known = self._results.get(id(stmt))
        if known is None:
            known = self._results[id(stmt)] = (stmt, self._combined(stmt))
        return known[1]

    def _combined(self, stmt: Store) -> tuple[Expr, ...] | None:
        reducer = stmt.reducer
        if reducer is None:
            return stmt.values
        if len(stmt.values) > 1 or _uses(reducer.results[0], reducer.rhs[0]) != 1:
            return None
        table: dict[Expr, Expr] = {reducer.lhs[0]: self._old(stmt)[0], reducer.rhs[0]: stmt.values[0]}
        return (substitute(reducer.results[0], table),)

    def _old(self, stmt: Store) -> list[Load]:
        return [Load(b, stmt.indices, self.addresses.placed[b].buffer.dtype) for b in stmt.buffers]

    def _combine(self, stmt: Store, lhs: list[Val], rhs: list[Val]) -> list[Val]:
        assert stmt.reducer is not None
        self.values.bound.update(zip(stmt.reducer.lhs, lhs, strict=True))
        self.values.bound.update(zip(stmt.reducer.rhs, rhs, strict=True))
        self.values.begin()
        results = [self.values.emit(r) for r in stmt.reducer.results]
        self.values.bound.clear()
        self.values.begin()
        return results

    def _is_horizontal(self, stmt: Store) -> bool:
        if self.values.lanes == 1:
            return False
        known = self._horizontals.get(id(stmt))
        if known is None:
            lanes = {v for v, b in self.addresses.env.items() if isinstance(b, Lanes)}
            known = self._horizontals[id(stmt)] = (stmt, not any(free_vars(i) & lanes for i in stmt.indices))
        return known[1]

    def _horizontal(self, stmt: Store, chunks: list[list[Val]], lanes: int) -> list[Val]:
        """The vectors of `chunks` are combined pairwise, then the lanes of the last, by halves, then with memory."""
        assert stmt.reducer is not None
        if self.values.mask is not None:
            mask = Val(self.values.mask, "bool", lanes)
            starts = [Val(literal(c.value, c.dtype), c.dtype, 1) for c in stmt.reducer.identity]
            chunks = [[self.arithmetic.select(mask, p, s) for p, s in zip(c, starts, strict=True)] for c in chunks]
        self.values.mask = None
        found = first_best(stmt.reducer)
        if found is not None and lanes > 2:
            chunks, lanes = [self._first_of_lanes(found, chunks)], 1
        while len(chunks) > 1:
            odd = chunks[len(chunks) // 2 * 2 :]
            chunks = [self._combine(stmt, a, b) for a, b in zip(chunks[::2], chunks[1::2], strict=False)] + odd
        (parts,) = chunks
        while lanes > 1:
            lanes //= 2
            low = [self._half(p, 0, lanes) for p in parts]
            high = [self._half(p, lanes, lanes) for p in parts]
            parts = self._combine(stmt, low, high)
        old = [self.values.emit(e) for e in self._old(stmt)]
        return self._combine(stmt, old, parts)

    def _first_of_lanes(self, found: FirstBest, chunks: list[list[Val]]) -> list[Val]:
        """The best value of all lanes, then the least place of those that have it: half the work of carrying both."""
        values, places = ([c[n] for c in chunks] for n in (found.value, found.place))
        best = self._extreme(found.op, values)
        beyond = self.arithmetic.number(largest(places[0].dtype).value, places[0].dtype)
        having = [self.arithmetic.is_same(v, best) for v in values]
        first = self._extreme("lt", [self.arithmetic.select(h, p, beyond) for h, p in zip(having, places, strict=True)])
        return [first, best] if found.place == 0 else [best, first]

    def _extreme(self, op: str, values: list[Val]) -> Val:
        """The one among all lanes of the vectors that is `op` than the others."""
        while len(values) > 1 or values[0].lanes > 1:
            if len(values) == 1:
                half = values[0].lanes // 2
                values = [self._half(values[0], 0, half), self._half(values[0], half, half)]
            pairs = zip(values[::2], values[1::2], strict=False)
            odd = values[len(values) // 2 * 2 :]
            values = [self.arithmetic.select(self.arithmetic.binary(op, a, b), a, b) for a, b in pairs] + odd
        return values[0]

    def _half(self, value: Val, start: int, lanes: int) -> Val:
        kind = value_type(value.dtype, value.lanes)
        if lanes == 1:
            return Val(self.writer.value(f"extractelement {kind} {value.name}, i64 {start}"), value.dtype, 1)
        picks = ", ".join(f"i32 {start + n}" for n in range(lanes))
        name = self.writer.value(f"shufflevector {kind} {value.name}, {kind} poison, <{lanes} x i32> <{picks}>")
        return Val(name, value.dtype, lanes)

    def _write(self, name: str, indices: tuple[Expr, ...], value: Val, blend: bool, stream: bool = False) -> None:
        access = self.addresses.access(name, indices)
        buffer = self.addresses.placed[name].buffer
        lanes = 1 if access.lane_stride == 0 else self.values.lanes
        value = value if value.lanes == lanes else self.arithmetic.spread(value, lanes)
        mask = self.values.mask if lanes > 1 else None
        if mask is not None and buffer.scope is Scope.REGISTER and access.lane_stride == 1:
            if blend and (self.addresses.placed[name].blends or lanes > REGISTER_PAD):  # longer ones reach the next row
                old = self.values.emit(Load(name, indices, buffer.dtype))
                value = self.arithmetic.select(Val(mask, "bool", lanes), value, old)
            mask = None
        self.values.forget(name)
        text = value.name if value.dtype != "bool" else self._to_memory(value)
        kind, align = memory_type(buffer.dtype, lanes), DTYPES[buffer.dtype][1]
        if lanes == 1 or (access.lane_stride == 1 and mask is None):
            whole = lanes * align == self.target.vector_bytes and access.multiple % lanes == 0
            self.addresses.write(access, buffer.dtype, lanes, text, AROUND * (stream and whole))
        elif access.lane_stride == 1 and (count := masks.leading(mask)) and not masks.has_stores(self.target):
            self._write_leading(access, buffer.dtype, text, lanes, count)
        elif access.lane_stride == 1:
            pointer = self.addresses.at(access, buffer.dtype)
            self.writer.emit(
                f"call void @llvm.masked.store.{suffix(buffer.dtype, lanes)}.p0({kind} {text}, ptr align {align} "
                f"{pointer}, <{lanes} x i1> {mask})"
            )
        else:
            scatter(self.values, access, buffer.dtype, text)

    def _write_leading(self, access: Access, dtype: str, text: str, lanes: int, count: int) -> None:
        """The first `count` of the lanes, in vectors as long as the powers of two that it is the sum of."""
        whole, start = memory_type(dtype, lanes), 0
        for size in (1 << n for n in reversed(range(count.bit_length())) if count >> n & 1):
            picks = ", ".join(f"i32 {start + n}" for n in range(size))
            part = f"shufflevector {whole} {text}, {whole} poison, <{size} x i32> <{picks}>"
            name = self.writer.value(part if size > 1 else f"extractelement {whole} {text}, i64 {start}")
            pointer = self.addresses.at(access._replace(offset=access.offset + start), dtype)
            self.writer.emit(f"store {memory_type(dtype, size)} {name}, ptr {pointer}, align {DTYPES[dtype][1]}")
            start += size

    def _to_memory(self, value: Val) -> str:
        """Truth values, a byte each."""
        old, new = value_type("bool", value.lanes), memory_type("bool", value.lanes)
        return self.writer.value(f"zext {old} {value.name} to {new}")


def streamed(text: str, vector_bytes: int) -> str:
    """The code of a nest whose outputs begin at whole lines: what may be stored around the caches is."""
    for size in sorted({size for _, size in DTYPES.values()}):
        text = text.replace(f"align {size}{AROUND}", f"align {vector_bytes}, !nontemporal !0")
    return text


def plain(text: str) -> str:
    """The code of a nest whose outputs begin anywhere."""
    return text.replace(AROUND, "")


def _next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


@lru_cache(maxsize=256)
def _uses(expr: Expr, var: Var) -> int:
    """How often `var` occurs as an operand; combiners are small trees."""
    return (expr is var) + sum(_uses(c, var) for c in expr.children)


def _only_fetches(stmt: Stmt) -> bool:
    """Whether the statement changes nothing and asks for data that come later."""
    return not any(isinstance(s, Store) for s in walk(stmt))
