"""Emission of statements: loops, branches, private buffers; `stores.py` has stores.

Serial loops test at the bottom; an unrolled loop binds its variable to numbers; a vectorised loop is
whole vectors and one masked rest. Register buffers are stack slots with constant addresses, which
LLVM's SROA pass turns into values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import index

from autosched.codegen.llvm import masks
from autosched.codegen.llvm.address import Addresses, Placed
from autosched.codegen.llvm.arithmetic import Arithmetic, Val
from autosched.codegen.llvm.bindings import LaneRange, Runtime
from autosched.codegen.llvm.stores import Stores
from autosched.codegen.llvm.tiles.forms import emit_tile
from autosched.codegen.llvm.tiles.packed_bytes import emit_packed
from autosched.codegen.llvm.values import Values
from autosched.codegen.llvm.writer import Writer
from autosched.ir.conditions import limits, limits_of_loop
from autosched.ir.expr import INDEX, Expr
from autosched.ir.size import has_size
from autosched.ir.stmt import Allocate, For, ForKind, If, Prefetch, Scope, Seq, Stmt, Store, changed, walk
from autosched.ir.storage import element_count
from autosched.ir.symbolic import INTEGERS, is_known
from autosched.ir.visit import exprs_of, free_vars, is_number, loads, subexpressions
from autosched.lower.limits import is_on_stack
from autosched.lower.register_tiles.context import next_power, number_of
from autosched.lower.register_tiles.plan import TilePlanner
from autosched.lower.register_tiles.vectors import VectorPlan, plan_vectors

ALIGN = 64
LOCALITY = {1: 3, 2: 2}  # of LLVM's prefetches, by the level of the cache that a line is brought to


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

    def __init__(self, writer: Writer, addresses: Addresses, planner: TilePlanner, local: LocalMemory) -> None:
        self.writer = writer
        self.addresses, self.bindings = addresses, addresses.bindings
        self.context, self.planner = planner.context, planner
        self.local = local
        self.arithmetic = Arithmetic(writer, self.context.target)
        self.values = Values(writer, addresses, self.arithmetic)
        self.stores = Stores(self.values, self.context.target)

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
                self.stores.emit(stmt)
            case Prefetch():
                self._prefetch(stmt)
            case _:
                raise TypeError(f"no code for {type(stmt).__name__}")

    def _sequence(self, stmts: Sequence[Stmt]) -> None:
        for plan, stmt in self.planner.sequence(stmts):
            if plan is None:
                self.emit(stmt)
            else:
                emit_tile(self, plan)

    # loops

    def _for(self, stmt: For) -> None:
        plan = self.planner.loop(stmt)
        if plan is not None:
            emit_tile(self, plan)
        elif stmt.kind is ForKind.VECTORIZE:
            self._vector_loop(stmt)
        elif stmt.kind is ForKind.UNROLL and is_number(stmt.extent):
            self._unrolled(stmt, stmt.extent.number)
        else:

            def body(var: Runtime) -> None:
                self.bindings.env[stmt.var] = var
                with self.bindings.within(limits_of_loop(stmt)):
                    self.emit(stmt.body)
                del self.bindings.env[stmt.var]

            self.serial_loop(stmt.extent, body)

    def _unrolled(self, stmt: For, count: int) -> None:
        """Emit the copies of a body; those of a plain store first compute their values, as rows share what they read.
        Rows of vectors are emitted vector by vector for that."""
        vectors = stmt.body
        if isinstance(vectors, For) and self._can_interchange(stmt, vectors):
            self._vector_loop(changed(vectors, body=changed(stmt, body=vectors.body)))
            return
        with self.writer.late_stores() if self._is_plain(stmt.body) else nullcontext():
            for n in range(count):
                self.bindings.env[stmt.var] = n
                self.emit(stmt.body)
        self.bindings.env.pop(stmt.var, None)

    def _can_interchange(self, rows: For, vectors: For) -> bool:
        """Whether all rows can be stored vector by vector: their stores are plain ones, and bytes are not packed."""
        if (
            vectors.kind is not ForKind.VECTORIZE
            or not self._is_plain(vectors.body)
            or rows.var in free_vars(vectors.extent)
        ):
            return False
        return not is_number(vectors.extent) or plan_vectors(vectors, self.context).packing is None

    def _is_plain(self, stmt: Stmt) -> bool:
        """Whether the statement is a store of what it reads in memory, combined with nothing that it writes."""
        if not isinstance(stmt, Store) or stmt.reducer is not None:
            return False
        read = {x.buffer for v in stmt.values for x in loads(v)}
        in_memory = all(self.addresses.placed[b].buffer.scope is not Scope.REGISTER for b in read)
        return bool(read) and in_memory and read.isdisjoint(stmt.buffers)

    def serial_loop(self, extent: Expr, body: Callable[[Runtime], None]) -> None:
        """A loop of `extent` iterations; skipped when that may be zero and is."""
        count = self.bindings.scalar(extent)
        may_skip = not is_known("ge", self.bindings.simplify.bounds(extent)[0], 1)
        self._counted(str(count) if isinstance(count, INTEGERS) else count.name, may_skip, body)

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

    def _vector_loop(self, stmt: For) -> None:
        width = self.context.width(stmt)
        if is_number(stmt.extent):
            self._vectors(stmt, plan_vectors(stmt, self.context), width)
            return
        has_sizes = any(map(has_size, subexpressions(stmt.extent)))
        count = self.bindings.scalar(stmt.extent, is_rare=has_sizes)
        if has_sizes and is_number(stmt.bound) and (stmt.bound.number <= width or self._is_in_registers(stmt)):
            self._masked_vectors(stmt, count, stmt.bound.number, width)
            return
        self._dynamic_vectors(stmt, str(count) if isinstance(count, INTEGERS) else count.name, width, has_sizes)

    def _is_in_registers(self, loop: For) -> bool:
        """Whether the lanes of the loop are those of a register buffer, so that their places have to be constants."""
        used = {(b, s.indices) for s in walk(loop.body) if isinstance(s, Store) for b in s.buffers}
        used |= {(x.buffer, x.indices) for s in walk(loop.body) for e in exprs_of(s) for x in loads(e)}
        registers = (at for b, at in used if self.addresses.placed[b].buffer.scope is Scope.REGISTER)
        return any(loop.var in free_vars(index) for at in registers for index in at)

    def _masked_vectors(self, stmt: For, count: int | Runtime, most: int, lanes: int) -> None:
        """Emit vectors for `most` iterations, of which those from `count` on are masked."""
        number = Val(count.name if isinstance(count, Runtime) else str(count), INDEX, 1)
        depth = count.depth if isinstance(count, Runtime) else 0
        for first in range(0, most, lanes):
            memo, key = self.writer.frames[depth].memo, ("first", number.name, first, lanes)
            mask = memo.get(key)
            if mask is None and depth == len(self.writer.frames) - 1:  # not for the iterations that do without
                mask = self._first_lanes(number, first, lanes)
            elif mask is None:
                with self.writer.hoisted(depth):
                    mask = memo[key] = self._first_lanes(number, first, lanes)
            self.vector(stmt, LaneRange(first, lanes), mask)

    def _first_lanes(self, number: Val, first: int, lanes: int) -> str:
        """Emit the mask of a vector that begins with iteration `first` of `number`."""
        rest = self.arithmetic.binary("sub", number, Val(str(first), INDEX, 1)) if first else number
        for bound, op in ((0, "max"), (lanes, "min")):
            rest = self.arithmetic.binary(op, rest, Val(str(bound), INDEX, 1))
        return self._counted_lanes(rest.name, lanes)

    def _counted_lanes(self, count: str, lanes: int) -> str:
        """Emit the mask of the first `count` lanes, a number that is known at run time and not above `lanes`."""
        narrow = Val(self.writer.value(f"trunc i64 {count} to i32"), "int32", 1)
        numbers = ", ".join(f"i32 {n}" for n in range(lanes))
        spread = self.arithmetic.broadcast(narrow, lanes)
        mask = self.writer.value(f"icmp slt <{lanes} x i32> <{numbers}>, {spread.name}")
        self.values.counts[mask] = count
        return mask

    def _vectors(self, stmt: For, plan: VectorPlan, width: int) -> None:
        if plan.combines_vectors:
            self._combined_vectors(stmt, plan.whole, plan.lanes)
        elif plan.is_unrolled:
            self.writer.single = plan.whole + bool(plan.rest) == 1
            if plan.packing is not None:
                emit_packed(self, stmt, plan.lanes, plan.packing)
            first = 0 if plan.packing is None else plan.packing.vectors
            rows, together = self._lines_around_caches(stmt, plan)
            for group in range(first, plan.whole, together):
                with self.writer.late_stores(rows) if together > 1 else nullcontext():
                    for chunk in range(group, min(group + together, plan.whole)):
                        self.vector(stmt, LaneRange(chunk * plan.lanes, plan.lanes), None)
        else:
            self._vector_chunks(stmt, str(plan.whole), plan.lanes, may_skip=False)
        self.vector_rest(stmt, plan.whole * plan.lanes, plan.rest, width)
        self.writer.single = False

    def _lines_around_caches(self, stmt: For, plan: VectorPlan) -> tuple[int, int]:
        """Return the number of unrolled rows whose vectors go around the caches, and how many vectors of each are
        stored one after another: those of a line; (1, 1) for other stores.

        A processor collects the parts of such lines in a few buffers, and writes a line at once only if all of it
        arrives before parts of too many others.
        """
        rows = stmt.body
        if not (isinstance(rows, For) and rows.kind is ForKind.UNROLL and is_number(rows.extent)):
            return 1, 1
        store = rows.body
        if not (isinstance(store, Store) and store.non_temporal and self._is_plain(store)):
            return 1, 1
        widest = max(self.addresses.placed[b].buffer.itemsize for b in store.buffers)
        return number_of(rows.extent), max(1, self.context.target.line_bytes // (plan.lanes * widest))

    def vector_rest(self, stmt: For, first: int, rest: int, width: int) -> None:
        """The last `rest` iterations, fewer than a vector has lanes."""
        if not rest:
            return
        tail = min(width, next_power(rest))
        bits = ", ".join(f"i1 {'true' if i < rest else 'false'}" for i in range(tail))
        self.vector(stmt, LaneRange(first, tail), None if rest == tail else f"<{bits}>")

    def _combined_vectors(self, loop: For, whole: int, lanes: int) -> None:
        """Whole vectors are combined with each other first, so that lanes are combined only once."""
        store = loop.body
        assert isinstance(store, Store)
        chunks: list[list[Val]] = []
        self.values.lanes, self.writer.deinterleaved = lanes, loop.var in self.context.deinterleaved
        for chunk in range(whole):
            self.bindings.env[loop.var] = LaneRange(chunk * lanes, lanes)
            self.values.begin()
            chunks.append([self.arithmetic.broadcast(self.values.emit(v), lanes) for v in store.values])
        del self.bindings.env[loop.var]
        self.writer.deinterleaved = False
        self.stores.reduce(store, chunks, lanes)

    def _vector_chunks(self, stmt: For, count: str, lanes: int, may_skip: bool) -> None:
        def body(var: Runtime) -> None:
            self.vector(stmt, LaneRange(0, lanes, var), None)

        self._counted(count, may_skip, body, "V")

    def _dynamic_vectors(self, stmt: For, extent: str, lanes: int, has_sizes: bool = False) -> None:
        """Emit whole vectors, then one masked vector for the remainder."""
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
        if has_sizes:
            mask = self._counted_lanes(rest, lanes)
        else:
            numbers = ", ".join(f"i64 {n}" for n in range(lanes))
            broadcast = self.arithmetic.broadcast(Val(rest, INDEX, 1), lanes)
            mask = w.value(f"icmp slt <{lanes} x i64> <{numbers}>, {broadcast.name}")
        with w.conditional(), w.frame() as depth:  # hoisted arithmetic stays inside this block
            self.vector(stmt, LaneRange(0, lanes, Runtime(whole, depth)), mask)
        w.branch(f"label %{done}")
        w.label(done)
        self.values.forget()

    def vector(self, stmt: For, lanes: LaneRange, mask: str | None) -> None:
        if lanes.lanes == 1:
            self.bindings.env[stmt.var] = lanes.base if lanes.chunk is None else lanes.chunk
        else:
            self.bindings.env[stmt.var] = lanes
        self.values.mask, self.values.lanes, self.writer.deinterleaved = (
            mask,
            lanes.lanes,
            stmt.var in self.context.deinterleaved,
        )
        self.emit(stmt.body)
        self.values.mask, self.values.lanes, self.writer.deinterleaved = None, 1, False
        del self.bindings.env[stmt.var]

    # branches and memory

    def _if(self, stmt: If) -> None:
        w = self.writer
        self.values.begin()  # what an earlier condition has computed may stand in a branch not taken
        cond = self.values.emit(stmt.cond)
        then, other, done = (w.new_label(x) for x in ("full", "tail", "endif"))
        w.branch(f"i1 {cond.name}, label %{then}, label %{other if stmt.otherwise else done}")
        for label, body, holds in ((then, stmt.then, True), (other, stmt.otherwise, False)):
            if body is None:
                continue
            w.label(label)
            self.values.forget()
            with w.conditional(), self.bindings.within(limits(stmt.cond, holds)):
                self.emit(body)
            w.branch(f"label %{done}")
        w.label(done)
        self.values.forget()

    def _allocate(self, stmt: Allocate) -> None:
        buffer = stmt.buffer
        nbytes = element_count(buffer) * buffer.itemsize
        used = self.local.used
        if is_on_stack(buffer):
            nbytes = index(nbytes)
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
