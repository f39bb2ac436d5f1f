"""The C emitter: a concrete GPU loop nest as C text, with one kernel for each nest at the root."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autosched.codegen.c.atomics import atomic_update
from autosched.codegen.c.blocks import block_order
from autosched.codegen.c.bounds import Registers, is_unrolled
from autosched.codegen.c.dialects import DIALECTS, Dialect
from autosched.codegen.c.expressions import COMPARISON_OPERAND, INT_LIMIT, Expressions
from autosched.codegen.c.lanes import Lanes, vector_widths
from autosched.codegen.c.launch_overlap import KernelOrder, emit_launch_overlap, is_early, kernel_orders
from autosched.codegen.c.names import Text
from autosched.codegen.c.shared import VECTOR_BYTES, SharedMemory
from autosched.codegen.c.shuffle import emit_shuffle
from autosched.codegen.c.source import SIZES, GpuSource, Launch, TensorMap
from autosched.codegen.c.threads import Threads, triple
from autosched.codegen.c.tiles.pipelines import PipelineCode, pipeline_code, with_turns
from autosched.codegen.c.tiles.stage_index import carried_stages
from autosched.codegen.c.tiles.warp_matrices import emit_product, product_loops, warp_product
from autosched.codegen.c.tiles.zigzag import copy_sums_to_own_registers, emit_tile
from autosched.codegen.c.updates import assign, combine, compound
from autosched.codegen.c.vectors import VectorLoad, Vectors, VectorStep
from autosched.errors import ScheduleError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Const, Expr, Load
from autosched.ir.instructions.atomics import atomic_operation
from autosched.ir.instructions.dots import Dot, Word
from autosched.ir.instructions.matrices import MATRICES
from autosched.ir.instructions.tiles import ALIGNMENT, REGISTERS, WARPGROUP, WARPS, by_engine
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import (
    BLOCKS,
    THREADS,
    Allocate,
    Barrier,
    Buffer,
    Commit,
    For,
    Func,
    If,
    Prefetch,
    Scope,
    Seq,
    Shuffle,
    Stmt,
    Store,
    TileCopy,
    Wait,
    shared_and_nests,
    walk,
)
from autosched.ir.storage import element_count, versions_of
from autosched.ir.visit import exprs_of, is_number, loads, moved, subexpressions
from autosched.lower.passes.overlap_iterations import WORD_BYTES

MAP = "const __grid_constant__ TensorMap {name}"
VECTOR_SCOPES = (Scope.PARAM, Scope.GLOBAL, Scope.SHARED, Scope.WARP)  # whose buffers have vector accesses


def emit(func: Func, simplify: Simplifier, kind: str, head: str = "") -> GpuSource:
    """Return the source of a concrete function. `kind`: target kind, a key of DIALECTS; `head`: a comment at the
    top."""
    dialect = DIALECTS[kind]
    workspace, nests = shared_and_nests(func.body)
    outside = {b.name: b for b in (*func.params, *workspace)}
    parts, launches, helpers = [], [], dict[str, str]()
    is_large = any(element_count(b) >= INT_LIMIT for b in outside.values())
    index_type = dialect.integers[INDEX] if is_large else "int"
    table = dict[Expr, int]()
    for n, (nest, order) in enumerate(zip(nests, kernel_orders(nests, outside), strict=True)):
        c = Expressions(dialect, index_type, simplify, helpers, table=table)
        text, launch = _Kernel(f"{func.name}_{n}", nest, outside, c, order).build()
        parts.append(text)
        launches.append(launch)
    rows = tuple(sorted({s.matrix for s in walk(func.body) if isinstance(s, Store) and s.matrix}))
    lines = [*head.splitlines(), *(line for launch in launches for line in launch.description)]
    lines += [
        f"sums of {row} are added to float32 every {every} terms" for row in rows if (every := MATRICES[row].promoted)
    ]
    comment = "".join(f"// {line}".rstrip("\\ ") + "\n" for line in lines)
    inputs = tuple(b.name for b in func.params[: len(func.params) - func.n_outputs])
    outputs = tuple(b.name for b in func.params[len(func.params) - func.n_outputs :])
    scratch = tuple((b.name, element_count(b) * b.itemsize) for b in workspace)
    text = comment + dialect.prologue + "\n" + "\n\n".join([*helpers.values(), *parts]) + "\n"
    assert "⟦" not in text, [line for line in text.splitlines() if "⟦" in line]
    is_specific = any(MATRICES[row].warps > 1 for row in rows)
    sizes = tuple(table.values())
    return GpuSource(func.name, kind, text, tuple(launches), inputs, outputs, scratch, is_specific, rows, sizes)


@dataclass
class _Kernel:
    """Emits one root nest. `outside`: the buffers of the function and between its launches."""

    name: str
    nest: Stmt
    outside: dict[str, Buffer]
    c: Expressions
    order: KernelOrder
    text: Text = field(default_factory=Text)
    threads: Threads = field(default_factory=Threads)
    shared: SharedMemory = field(default_factory=SharedMemory)
    registers: Registers = field(default_factory=Registers)
    pipeline: PipelineCode | None = None

    def __post_init__(self) -> None:
        self.pipeline = pipeline_code(self.nest, self.c, self.text)

    @property
    def dialect(self) -> Dialect:
        return self.c.dialect

    @property
    def simplify(self) -> Simplifier:
        return self.c.simplify

    def build(self) -> tuple[str, Launch]:
        arguments = self._arguments()
        emit_launch_overlap(self.order, self.c, self.text)
        maps: list[TensorMap] = [] if self.pipeline is None else self.pipeline.tensor_maps()
        self._emit(self.nest)
        sizes = self.c.size_lines()
        types = [*(MAP.format(name=m.name) for m in maps), *(self._parameter(*x) for x in arguments)]
        types += [f"{self._pointer(SIZES, self.c.type(INDEX))} sizes_of_call"] if sizes else []
        count, block = self.threads.count, ", ".join(map(str, self.threads.block))
        has_async_copies = any(isinstance(s, Commit) for s in walk(self.nest))
        blocks = (
            self.registers.blocks(count, has_async_copies)
            if self.pipeline is None
            else self.registers.requested_blocks or 1
        )
        resident = "" if blocks is None else self.dialect.resident.format(blocks=blocks)
        cluster = "" if self.pipeline is None else self.pipeline.cluster_attribute
        declaration = self.dialect.kernel.format(threads=block, count=count, resident=resident, cluster=cluster)
        head = f"{declaration} {self.name}({', '.join(types)})"
        shared = self.shared.declarations(self.dialect, self.text.name("shared_memory"))
        text = "\n".join([head, "{", *(f"  {s}" for s in (*shared, *sizes)), *self.text.lines, "}"])
        names = (*maps, *(name for name, _ in arguments), *([SIZES] if sizes else ()))
        grid, threads = triple(self.threads.grid), triple(self.threads.block)
        writes = tuple(name for name in self.outside if name in self.order.writes)
        is_after = is_early(self.order, self.dialect)
        return text, Launch(self.name, grid, threads, names, self.shared.n_bytes, is_after, writes)

    def _arguments(self) -> list[tuple[str, bool]]:
        """Return the outside buffers that the nest accesses, and whether it writes them."""
        written = {b for s in walk(self.nest) if isinstance(s, Store) for b in s.buffers}
        read = {x.buffer for s in walk(self.nest) for e in exprs_of(s) for x in loads(e)}
        tiles = {s.outside for s in walk(self.nest) if isinstance(s, TileCopy)}
        read |= {name for name in tiles & self.outside.keys() if not by_engine(self.outside[name])}
        for name in self.outside:
            if name in read | written | tiles:
                self.c.buffers[name] = (self.outside[name], self.text.name(name))
        return [(name, name in written) for name in self.outside if name in read | written]

    def _parameter(self, name: str, written: bool) -> str:
        buffer, c_name = self.c.buffers[name]
        return f"{self._pointer(name, self.c.memory_type(buffer.dtype), written)} {c_name}"

    def _pointer(self, name: str, kind: str, written: bool = False) -> str:
        pointer = self.dialect.pointer_to_earlier if name in self.order.earlier else self.dialect.pointer
        return pointer.format(const="" if written else "const ", type=kind)

    # statements

    def line(self, text: str) -> None:
        self.text.line(text)

    def _emit(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts=stmts):
                for s in stmts:
                    self._emit(s)
            case For():
                self._for(stmt)
            case If():
                self._if(stmt)
            case Allocate():
                self._allocate(stmt)
            case Store():
                self._store(stmt)
            case Barrier():
                self._barrier(stmt)
            case TileCopy(back=True) if self.pipeline is not None:
                self.pipeline.emit_store(stmt)
            case Shuffle():
                emit_shuffle(stmt, self.c, self.text, self.threads, self.shared)
            case Commit():
                if self.dialect.copies:
                    self._call_copy_function("commit_copies()", "commit")
                else:  # redundant, but without it PoCL's optimiser miscompiles conditional copies next to computations
                    self.line(self.dialect.barrier)
            case Wait(pending=pending):
                self._call_copy_function(f"wait_for_all_copies_but_{pending}()", "wait", pending=pending)
            case Prefetch():
                pass  # GPUs ignore this hint
            case _:
                raise TypeError(f"no C for {type(stmt).__name__}")

    def _barrier(self, stmt: Barrier) -> None:
        if self.pipeline is not None:
            self.pipeline.emit_warpgroup_barrier()
        elif not stmt.of_warp:  # a barrier within a warp precedes an instruction on registers, which needs none
            self.line(self.dialect.barrier)

    def _for(self, stmt: For) -> None:
        if is_unrolled(stmt) and self.dialect.has_matrices and self._product(stmt):
            return
        name = self.c.variables[stmt.var] = self.text.name(stmt.var.name)
        kind = self.c.index_type
        if stmt.kind in BLOCKS or stmt.kind in THREADS:
            if isinstance(stmt.resident, Const):
                self.registers.requested_blocks = int(stmt.resident.value)
            if stmt is self.nest:
                self._emit_block_order(stmt)
            index = self.threads.bind(stmt, self.dialect)
            if stmt.kind in THREADS:
                self.c.lanes[stmt.var] = Const(0, INDEX)
            if index is None:
                self.c.variables[stmt.var] = "0"
            else:
                ordered = self.threads.block_indices.get(stmt.kind)
                line = f"const {kind} {name} = {index if ordered is None else self.c.text(ordered)};"
                if self.pipeline is not None and stmt.kind in BLOCKS:
                    self.pipeline.index_lines.append(line)
                else:
                    self.line(line)
            is_last = not (isinstance(stmt.body, For) and (stmt.body.kind in BLOCKS or stmt.body.kind in THREADS))
            if self.pipeline is not None and is_last:
                self._emit_roles(self.pipeline, stmt.body)
            else:
                self._emit(stmt.body)
            return
        if self.pipeline is not None and stmt is self.pipeline.pipeline.loop:
            self.pipeline.emit_consumer_loop(self._emit)
            return
        carried = carried_stages(stmt, self._n_stages, self.simplify)
        for carried_stage in carried:
            variable = self.c.stage_variables[carried_stage.expr] = self.text.name("place")
            self.line(f"int {variable} = {self.c.text(carried_stage.first)};")
        if is_unrolled(stmt) and is_number(stmt.extent):
            if self._vectors(stmt, stmt.extent.number):
                return
            self.line(self.dialect.unroll)
        elif (factor := self.registers.unroll_factor(stmt, self._is_shared)) is not None and self.dialect.unroll_by:
            self.line(self.dialect.unroll_by.format(times=factor))
        extent = self.c.text(stmt.extent, COMPARISON_OPERAND)
        with self.text.block(f"for ({kind} {name} = 0; {name} < {extent}; ++{name})"), self.registers.within(stmt):
            self._emit(stmt.body)
            for carried_stage in carried:
                variable = self.c.stage_variables.pop(carried_stage.expr)
                self.line(f"{variable} = {variable} == {carried_stage.count - 1} ? 0 : {variable} + 1;")

    def _emit_block_order(self, nest: For) -> None:
        """Emit the number of a block in the order of blocks, if that is not the hardware's."""
        multiprocessors = 0 if self.pipeline is None else self.pipeline.pipeline.multiprocessors
        order = block_order(nest, self.name, self.registers.requested_blocks or 1, multiprocessors)
        if order is None:
            return
        self.simplify.ranges[order.number] = (0, order.count - 1)
        self.threads.block_indices = {kind: self.simplify(index) for kind, index in order.block_indices.items()}
        name = self.c.variables[order.number] = self.text.name("tile" if order.launched else "block")
        if self.pipeline is not None and order.launched:
            self.pipeline.order = order
            return
        x, y = (self.dialect.block.format(axis="xy"[n], number=n) for n in (0, 1))
        across = self.c.literal(order.sizes[0], INDEX)
        self.line(f"const {self.c.index_type} {name} = {y} * {across} + {x};")

    def _emit_roles(self, pipeline: PipelineCode, body: Stmt) -> None:
        """Emit the code of the producer threads and of the consumer threads; `body`: the consumers' statements."""
        x, y, z = self.threads.numbers
        groups, rest = divmod(self.threads.count, WARPGROUP)
        if x is None or y is None or z is None or rest or groups not in REGISTERS:
            raise ScheduleError(f"{self.threads.block} threads are no warpgroups that multiply tiles")
        pipeline.emit_prologue((x, y, z), groups, self.registers.requested_blocks or 1, self.shared)
        self.threads.block[2] = (pipeline.groups + 1) * WARPS
        if pipeline.order is not None:
            self.threads.grid = [pipeline.order.launched, 1, 1]
        with pipeline.producer(), pipeline.block_loop():
            pipeline.emit_producer_loop()
        with pipeline.consumers(), pipeline.block_loop(in_turn=True):
            self._emit(body)

    def _product(self, stmt: For) -> bool:
        """Emit a matrix product, by matrix instructions or in zigzag order; return whether the loop is one's
        outermost."""
        if self.pipeline is not None and (loops := product_loops(stmt)) is not None:
            self.pipeline.emit_product(loops)
            return True
        across, down, _ = self.threads.numbers
        product = warp_product(stmt, (across, down), self.c)
        if product is None:
            return emit_tile(stmt, self.c, self.text, self.registers, self._store)
        self.registers.max_operand_bytes = max(self.registers.max_operand_bytes, product.fragment_bytes)
        emit_product(product, self.c, self.text)
        return True

    def _n_stages(self, buffer: str) -> int:
        """Return the stages of a buffer in a pipeline; 1 for other buffers."""
        entry = self.c.buffers.get(buffer)
        return 1 if entry is None else versions_of(entry[0])[0]

    def _is_shared(self, buffer: str) -> bool:
        entry = self.c.buffers.get(buffer)  # missing: a private array allocated further inside
        return entry is not None and entry[0].scope is Scope.SHARED

    def _vectors(self, stmt: For, extent: int) -> bool:
        """Emit a loop over adjacent, aligned elements as vector accesses; return whether that was possible."""
        vectors = Vectors(self._flat, self._vector_widths, self.simplify, bool(self.dialect.copies))
        steps = vectors.steps(stmt, extent)
        for step in steps:
            if step.condition is None:
                self._vector_step(step)
            else:
                with self.text.block(f"if ({self.c.text(step.condition)})"):
                    self._vector_step(step)
        return bool(steps)

    def _vector_step(self, step: VectorStep) -> None:
        if step.is_copy:
            for indices, load in zip(step.indices[:: step.width], step.loads, strict=True):
                self._vector_copy(self.c.element(step.buffer, indices), load, step.asynchronous)
            return
        for load in step.loads:
            vector = self._vector_type(load)
            name = self.text.name(f"{load.start.buffer}_{vector.count}")
            self.c.variables.update({v: vector.lane(name, n) for n, v in enumerate(load.lanes)})
            self.line(f"const {vector.type} {name} = {self._vector_load(load)};")
        if not step.width:
            for lane_indices, value in zip(step.indices, step.values, strict=True):
                self._store(Store((step.buffer,), lane_indices, (value,), step.reducer))
            return
        targets = [self.c.element(step.buffer, x) for x in step.indices]
        indent = "\n" + "  " * (self.text.depth + 1)
        vector = Lanes(self.c, self._buffer(step.buffer).dtype, step.width)
        for n in range(0, len(targets), step.width):
            values = step.values[n : n + step.width]
            components = copy_sums_to_own_registers(
                values, vector.components_of(values), self.registers.summed, self.dialect.own_register
            )
            self._vector_store(vector, targets[n], vector.vector([indent + x for x in components], ","))

    def _vector_copy(self, target: str, load: VectorLoad, asynchronous: bool) -> None:
        vector = self._vector_type(load)
        if not asynchronous:
            self._vector_store(vector, target, self._vector_load(load))
            return
        source = self.c.element(load.start.buffer, load.start.indices)
        kind = vector.type
        self._start_copy(
            kind, vector.nbytes, vector.zeros, f"({kind}*)&{target}", f"(const {kind}*)&{source}", load.inside
        )

    def _vector_store(self, vector: Lanes, target: str, value: str) -> None:
        self.line(self.dialect.vector_store.format(type=vector.type, lanes=vector.count, at=f"&{target}", value=value))

    def _vector_load(self, load: VectorLoad) -> str:
        vector, source = self._vector_type(load), self.c.element(load.start.buffer, load.start.indices)
        value = self.dialect.vector_load.format(type=vector.type, lanes=vector.count, at=f"&{source}")
        return value if load.inside is None else f"{self.c.text(load.inside, 4)} ? {value} : {vector.zeros}"

    def _vector_type(self, load: VectorLoad) -> Lanes:
        return Lanes(self.c, load.start.dtype, len(load.lanes))

    def _vector_widths(self, buffer: str) -> tuple[int, ...]:
        """Return the vector widths of the buffer's accesses in elements; empty for registers."""
        array = self._buffer(buffer)
        return vector_widths(array.dtype) if array.scope in VECTOR_SCOPES else ()

    def _buffer(self, buffer: str) -> Buffer:
        return self.c.buffers[buffer][0]

    def _flat(self, buffer: str, indices: tuple[Expr, ...]) -> Expr:
        return self.c.flat(self._buffer(buffer), indices)

    def _if(self, stmt: If) -> None:
        self.line(f"if ({self.c.text(stmt.cond)}) {{")
        with self.text.indented():
            self._emit(stmt.then)
        if stmt.otherwise is not None:
            self.line("} else {")
            with self.text.indented():
                self._emit(stmt.otherwise)
        self.line("}")

    def _allocate(self, stmt: Allocate) -> None:
        buffer = stmt.buffer
        if buffer.scope is Scope.REGISTER:
            buffer = replace(buffer, scope=Scope.LOCAL)  # without the padding to whole vectors
        outer = self.c.buffers.get(buffer.name)
        known = self.shared.names.get(buffer.name)  # in a copy of the nest that allocated it: a tail
        name = known or self.text.name(buffer.name)
        self.c.buffers[buffer.name] = (buffer, name)
        if buffer.scope is Scope.SHARED:
            if known is None:
                alignment = ALIGNMENT if buffer.layout is not None and buffer.layout.panels else VECTOR_BYTES
                turns = 1 if self.pipeline is None else self.pipeline.turns
                self.shared.declare(with_turns(buffer, turns), self.c.memory_type(buffer.dtype), name, alignment)
            if self.pipeline is not None:
                self.pipeline.select_copy_of_turn(buffer, name)
            self._emit(stmt.body)
        else:
            threads = self.threads.count if buffer.scope is Scope.WARP else 1
            size = max(1, int(element_count(buffer) // threads))
            self.line(f"{self.dialect.private}{self.c.memory_type(buffer.dtype)} {name}[{size}];")
            with self.registers.live_array(buffer, size):
                self._emit(stmt.body)
        if outer is not None:
            self.c.buffers[buffer.name] = outer

    def _call_copy_function(self, call: str, function: str, **fields: int | str) -> None:
        """Emit a call of one of the dialect's functions for asynchronous copies, if it has them."""
        if self.dialect.copies:
            self.c.helpers[call.partition("(")[0]] = self.dialect.copies[function].format(**fields)
            self.line(f"{call};")

    def _start_copy(self, c_type: str, nbytes: int, zero: str, to: str, source: str, inside: Expr | None) -> None:
        """Emit an asynchronous copy between pointers to the C type `kind`; zero where `inside` does not hold."""
        name = f"start_copy_{c_type.replace(' ', '_')}"
        condition = "true" if inside is None else self.c.text(inside)
        cache = "cg" if nbytes == 16 else "ca"
        self._call_copy_function(
            f"{name}({to}, {source}, {condition})",
            "start",
            type=c_type,
            name=name,
            bytes=nbytes,
            zero=zero,
            cache=cache,
        )

    def _start_element(self, load: Load, inside: Expr | None, target: str) -> None:
        kind = self.c.type(load.dtype)
        source = self.c.element(load.buffer, load.indices)
        self._start_copy(kind, DTYPES[load.dtype].nbytes, "0", f"&{target}", f"&{source}", inside)

    def _count_operands(self, stmt: Store) -> None:
        inside = {p for v in stmt.values for e in subexpressions(v) if isinstance(e, Word) for p in e.parts[1:]}
        read = dict.fromkeys(x for v in stmt.values for x in loads(v) if x not in inside)  # a word is one operand
        self.registers.count_operands(
            (self.simplify.affine(self._flat(x.buffer, x.indices)), self._buffer(x.buffer).itemsize) for x in read
        )

    def _store(self, stmt: Store) -> None:
        targets = [self.c.element(b, stmt.indices) for b in stmt.buffers]
        element = moved(stmt.values[0]) if stmt.asynchronous and self.dialect.copies else None
        if element is not None and DTYPES[element[0].dtype].nbytes >= WORD_BYTES:
            self._start_element(element[0], element[1], targets[0])
        elif stmt.reducer is None:
            assign(stmt, [self.c.text(v) for v in stmt.values], self.c, self.text)
        elif stmt.atomic:
            operation, value = atomic_operation(stmt.reducer), stmt.values[0]
            assert operation is not None
            text = self.c.text(value)
            self.line(atomic_update(operation, value.dtype, targets[0], text, self.c))
        elif stmt.reducer.is_sum and isinstance(stmt.values[0], Dot):
            self._count_operands(stmt)
            self.line(f"{targets[0]} = {self.c.dot(stmt.values[0], targets[0])};")
        elif (operator := compound(stmt.reducer)) is not None:
            self._count_operands(stmt)
            self.line(f"{targets[0]} {operator} {self.c.text(stmt.values[0])};")
        else:
            combine(stmt, stmt.reducer, self.c, self.text)
