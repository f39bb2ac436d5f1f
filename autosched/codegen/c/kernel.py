"""A concrete GPU loop nest as C text: readable loops, the user's names, one kernel for each nest at the root."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autosched.codegen.c.atomics import atomic_update
from autosched.codegen.c.bounds import HELD_ADDRESSES, is_unrolled, operand_bytes, resident_blocks, unrolling
from autosched.codegen.c.expressions import COMPARED, INT_LIMIT, Addresser, Expressions
from autosched.codegen.c.names import RESERVED, identifier
from autosched.codegen.c.shared import SharedArray, declarations, total_bytes
from autosched.codegen.c.shuffle import source_lane
from autosched.codegen.c.source import GpuSource, Launch, Triple
from autosched.codegen.c.vectors import VectorLoad, Vectors, VectorStep
from autosched.codegen.c.words import DIALECTS, Words
from autosched.codegen.storage import element_count, flat_index, places_of
from autosched.ir.atomics import atomic_operation
from autosched.ir.expr import DTYPES, INDEX, Binary, Const, Expr, Load, Var, binary, select
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
    Reducer,
    Scope,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Wait,
    walk,
)
from autosched.ir.visit import exprs_of, loads, moved, substitute
from autosched.lower.pipelining import HELD

WARP = 32  # threads that exchange values unless a shuffle says how many


def emit(func: Func, simplify: Simplifier, dialect: str, head: str = "") -> GpuSource:
    """The text and launches of a concrete function; `head` goes into a comment at the top."""
    words = DIALECTS[dialect]
    workspace: list[Buffer] = []
    body = func.body
    while isinstance(body, Allocate) and body.buffer.scope is Scope.GLOBAL:
        workspace.append(body.buffer)
        body = body.body
    nests = body.stmts if isinstance(body, Seq) else (body,)
    outside = {b.name: b for b in (*func.params, *workspace)}
    parts, launches, helpers = [], [], dict[str, str]()
    for n, nest in enumerate(nests):
        text, launch = _Kernel(f"{func.name}_{n}", nest, outside, simplify, words, helpers).build()
        parts.append(text)
        launches.append(launch)
    lines = [*head.splitlines(), *(_launch_text(launch) for launch in launches)]
    comment = "".join(f"// {line}".rstrip("\\ ") + "\n" for line in lines)
    inputs = tuple(b.name for b in func.params[: len(func.params) - func.n_outputs])
    outputs = tuple(b.name for b in func.params[len(func.params) - func.n_outputs :])
    scratch = tuple((b.name, element_count(b) * b.itemsize) for b in workspace)
    text = comment + words.prologue + "\n" + "\n\n".join([*helpers.values(), *parts]) + "\n"
    return GpuSource(func.name, dialect, text, tuple(launches), inputs, outputs, scratch)


def _launch_text(launch: Launch) -> str:
    """How a caller starts the kernel, for the comment at the top."""
    sizes = f"grid {launch.grid}, block {launch.block}, {launch.shared_bytes} shared bytes"
    names = ", ".join(launch.arguments).encode("ascii", "backslashreplace").decode()  # not all compilers know others
    return f"launch {launch.kernel}({names}): {sizes}"


@dataclass
class _Kernel(Addresser):
    """Emits one root nest."""

    name: str
    nest: Stmt
    outside: dict[str, Buffer]
    simplify: Simplifier
    words: Words
    helpers: dict[str, str]
    lines: list[str] = field(default_factory=list)
    shared: list[SharedArray] = field(default_factory=list)
    shared_names: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, tuple[Buffer, str]] = field(default_factory=dict)
    variables: dict[Var, str] = field(default_factory=dict)
    grid: list[int] = field(default_factory=lambda: [1, 1, 1])
    block: list[int] = field(default_factory=lambda: [1, 1, 1])
    resident: str = ""
    threads: list[Var | None] = field(default_factory=lambda: [None, None, None])
    private_bytes: int = 0  # of a thread's arrays that are alive
    most_private_bytes: int = 0
    most_operand_bytes: int = 0  # of one step of an unrolled reduction
    unrolled: list[For] = field(default_factory=list)  # loops around
    depth: int = 1
    taken: set[str] = field(default_factory=lambda: set(RESERVED))

    def build(self) -> tuple[str, Launch]:
        arguments = self._arguments()
        largest = max([element_count(b) for b in self.outside.values()] or [0])
        self.c = Expressions(
            self.words, self.variables, self.words.long if largest >= INT_LIMIT else "int", self.helpers
        )
        self._emit(self.nest)
        types = ", ".join(self._parameter(name, written) for name, written in arguments)
        threads = ", ".join(map(str, self.block))
        count = self.block[0] * self.block[1] * self.block[2]
        ahead = any(isinstance(s, Commit) for s in walk(self.nest))
        blocks = resident_blocks(count, self.most_private_bytes, self.most_operand_bytes, ahead)
        if not self.resident and blocks is not None:
            self.resident = self.words.resident.format(blocks=blocks)
        head = f"{self.words.kernel.format(threads=threads, count=count, resident=self.resident)} {self.name}({types})"
        shared = declarations(self.shared, self.words, identifier("shared_memory", self.taken))
        text = "\n".join([head, "{", *(f"  {s}" for s in shared), *self.lines, "}"])
        names = tuple(name for name, _ in arguments)
        return text, Launch(self.name, _triple(self.grid), _triple(self.block), names, total_bytes(self.shared))

    def _arguments(self) -> list[tuple[str, bool]]:
        """The outside buffers that the nest touches, and whether it writes them."""
        written = {b for s in walk(self.nest) if isinstance(s, Store) for b in s.buffers}
        read = {x.buffer for s in walk(self.nest) for e in exprs_of(s) for x in loads(e)}
        used = [name for name in self.outside if name in read | written]
        for name in used:
            self.buffers[name] = (self.outside[name], identifier(name, self.taken))
        return [(name, name in written) for name in used]

    def _parameter(self, name: str, written: bool) -> str:
        buffer, c_name = self.buffers[name]
        kind = self.words.pointer.format(const="" if written else "const ", type=self._memory_type(buffer.dtype))
        return f"{kind} {c_name}"

    def _memory_type(self, dtype: str) -> str:
        return self.words.unsigned_byte if dtype == "bool" else self.c.type(dtype)

    # statements

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

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
                self.line(self.words.barrier)
            case Shuffle():
                self._shuffle(stmt)
            case Commit():
                if self.words.copies:
                    self._copies("commit_copies()", "commit")
                else:  # not needed; but PoCL's optimiser goes wrong on copies under a condition beside what is computed
                    self.line(self.words.barrier)
            case Wait(pending=pending):
                self._copies(f"wait_for_all_copies_but_{pending}()", "wait", pending=pending)
            case Prefetch():
                pass  # a hint that GPUs do not take
            case _:
                raise TypeError(f"no C for {type(stmt).__name__}")

    def _for(self, stmt: For) -> None:
        name = identifier(stmt.var.name, self.taken)
        self.variables[stmt.var] = name
        kind = self.c.index_type
        if stmt.kind in BLOCKS or stmt.kind in THREADS:
            table, sizes = (self.words.block, self.grid) if stmt.kind in BLOCKS else (self.words.thread, self.block)
            number = (BLOCKS if stmt.kind in BLOCKS else THREADS).index(stmt.kind)
            assert isinstance(stmt.bound, Const)
            sizes[number] = int(stmt.bound.value)
            if isinstance(stmt.resident, Const):
                self.resident = self.words.resident.format(blocks=stmt.resident.value)
            if stmt.kind in THREADS:
                self.threads[number] = stmt.var
            if stmt.bound.value == 1:
                self.variables[stmt.var] = "0"
            else:
                self.line(f"const {kind} {name} = {table.format(axis='xyz'[number], number=number)};")
            self._emit(stmt.body)
            return
        if is_unrolled(stmt) and isinstance(stmt.extent, Const):
            if self._vectors(stmt, int(stmt.extent.value)):
                return
            self.line(self.words.unroll)
        elif (times := unrolling(stmt, self._is_shared)) is not None and self.words.unroll_by:
            self.line(self.words.unroll_by.format(times=times))
        extent = self.c.text(stmt.extent, self, COMPARED)
        self.line(f"for ({kind} {name} = 0; {name} < {extent}; ++{name}) {{")
        around = self.unrolled
        self.unrolled = [*around, stmt] if is_unrolled(stmt) else []
        self._block(stmt.body)
        self.unrolled = around
        self.line("}")

    def _is_shared(self, buffer: str) -> bool:
        known = self.buffers.get(buffer)  # none yet of what is allocated further inside, for each thread by itself
        return known is not None and known[0].scope is Scope.SHARED

    def _vectors(self, stmt: For, extent: int) -> bool:
        """A loop over adjacent, aligned elements becomes vector accesses; whether it did."""
        vectors = Vectors(self._flat, self._lanes_of, self.simplify, bool(self.words.copies))
        steps = vectors.steps(stmt, extent)
        for step in steps:
            if step.condition is not None:
                self.line(f"if ({self.c.text(step.condition, self)}) {{")
                self.depth += 1
            self._vector_step(step)
            if step.condition is not None:
                self.depth -= 1
                self.line("}")
        return bool(steps)

    def _vector_step(self, step: VectorStep) -> None:
        lanes = len(step.values)
        buffer = self.buffers[step.buffer][0]
        kind = self.words.vector_type(buffer.dtype, lanes) if step.is_whole else ""
        target = self.element(step.buffer, step.indices[0])
        if step.is_copy and step.asynchronous:
            load, nbytes = step.loads[0], lanes * buffer.itemsize
            source = self.element(load.start.buffer, load.start.indices)
            zero = self._zeros(load.start.dtype, lanes)
            self._start_copy(kind, nbytes, zero, f"({kind}*)&{target}", f"(const {kind}*)&{source}", load.inside)
            return
        if step.is_copy:
            value = self._vector_load(step.loads[0])
            self.line(self.words.vector_store.format(type=kind, lanes=lanes, at=f"&{target}", value=value))
            return
        for load in step.loads:
            name = identifier(f"{load.start.buffer}_{len(load.lanes)}", self.taken)
            self.variables |= {v: f"{name}.{part}" for v, part in zip(load.lanes, "xyzw", strict=False)}
            self.line(f"const {self.words.vector_type(load.start.dtype, lanes)} {name} = {self._vector_load(load)};")
        texts = [self.c.text(v, self) for v in step.values]
        if not step.is_whole:
            for indices, text in zip(step.indices, texts, strict=True):
                self.line(f"{self.element(step.buffer, indices)} = {text};")
            return
        indent = "\n" + "  " * (self.depth + 1)
        value = self.words.vector_of.format(type=kind, elements=indent + f",{indent}".join(texts))
        self.line(self.words.vector_store.format(type=kind, lanes=lanes, at=f"&{target}", value=value))

    def _vector_load(self, load: VectorLoad) -> str:
        kind, lanes = self.words.vector_type(load.start.dtype, len(load.lanes)), len(load.lanes)
        source = self.element(load.start.buffer, load.start.indices)
        value = self.words.vector_load.format(type=kind, lanes=lanes, at=f"&{source}")
        if load.inside is None:
            return value
        return f"{self.c.text(load.inside, self, 4)} ? {value} : {self._zeros(load.start.dtype, lanes)}"

    def _zeros(self, dtype: str, lanes: int) -> str:
        elements = ", ".join([self.c.literal(0, dtype)] * lanes)
        return self.words.vector_of.format(type=self.words.vector_type(dtype, lanes), elements=elements)

    def _lanes_of(self, buffer: str) -> tuple[int, ...]:
        """Elements that move together, up to 16 bytes."""
        placed = self.buffers[buffer][0]
        if placed.scope not in (Scope.PARAM, Scope.GLOBAL, Scope.SHARED):
            return ()
        return {"float32": (2, 4), "int32": (2, 4), "float64": (2,)}.get(placed.dtype, ())

    def _flat(self, buffer: str, indices: tuple[Expr, ...]) -> Expr:
        return flat_index(self.buffers[buffer][0], indices, self.simplify)

    def _block(self, body: Stmt) -> None:
        self.depth += 1
        self._emit(body)
        self.depth -= 1

    def _if(self, stmt: If) -> None:
        self.line(f"if ({self.c.text(stmt.cond, self)}) {{")
        self._block(stmt.then)
        if stmt.otherwise is not None:
            self.line("} else {")
            self._block(stmt.otherwise)
        self.line("}")

    def _allocate(self, stmt: Allocate) -> None:
        buffer = stmt.buffer
        if buffer.scope is Scope.REGISTER:
            buffer = replace(buffer, scope=Scope.LOCAL)  # without the padding to whole vectors
        is_known = buffer.name in self.shared_names  # a copy of the nest that allocated it: a tail
        name = self.shared_names[buffer.name] if is_known else identifier(buffer.name, self.taken)
        outer = self.buffers.get(buffer.name)
        self.buffers[buffer.name] = (buffer, name)
        if buffer.scope is Scope.SHARED and not is_known:
            self._declare_shared(buffer, name)
        elif not is_known:
            size = max(1, element_count(buffer))
            self.line(f"{self.words.private}{self._memory_type(buffer.dtype)} {name}[{size}];")
            private_bytes = size * (buffer.itemsize + 4 * HELD_ADDRESSES * buffer.name.endswith(HELD))
            self.private_bytes += private_bytes
            self.most_private_bytes = max(self.most_private_bytes, self.private_bytes)
        self._emit(stmt.body)
        if buffer.scope is not Scope.SHARED and not is_known:
            self.private_bytes -= private_bytes
        if outer is not None:
            self.buffers[buffer.name] = outer

    def _copies(self, call: str, what: str, **facts: int | str) -> None:
        """A call of one of the words' functions for asynchronous copies, where there are any."""
        if self.words.copies:
            self.helpers[call.partition("(")[0]] = self.words.copies[what].format(**facts)
            self.line(f"{call};")

    def _start_copy(self, kind: str, nbytes: int, zero: str, to: str, source: str, inside: Expr | None) -> None:
        """An asynchronous copy between pointers to `kind`; zero where not `inside`."""
        name = f"start_copy_{kind.replace(' ', '_')}"
        condition = "true" if inside is None else self.c.text(inside, self)
        cache = "cg" if nbytes == 16 else "ca"
        self._copies(
            f"{name}({to}, {source}, {condition})", "start", type=kind, name=name, bytes=nbytes, zero=zero, cache=cache
        )

    def _start_element(self, load: Load, inside: Expr | None, target: str) -> None:
        kind = self.c.type(load.dtype)
        source = self.element(load.buffer, load.indices)
        self._start_copy(kind, DTYPES[load.dtype][1], "0", f"&{target}", f"&{source}", inside)

    def _count_operands(self, stmt: Store) -> None:
        read = dict.fromkeys(x for v in stmt.values for x in loads(v))
        sizes = [
            operand_bytes(
                self.simplify.affine(self._flat(x.buffer, x.indices)), self.buffers[x.buffer][0].itemsize, self.unrolled
            )
            for x in read
        ]
        self.most_operand_bytes = max(self.most_operand_bytes, sum(sizes))

    def _store(self, stmt: Store) -> None:
        targets = [self.element(b, stmt.indices) for b in stmt.buffers]
        element = moved(stmt.values[0]) if stmt.asynchronous and self.words.copies else None
        if element is not None:
            self._start_element(element[0], element[1], targets[0])
        elif stmt.reducer is None:
            self._assign(stmt, [self.c.text(v, self) for v in stmt.values])
        elif stmt.atomic:
            operation, value = atomic_operation(stmt.reducer), stmt.values[0]
            assert operation is not None
            text = self.c.text(value, self)
            self.line(atomic_update(operation, value.dtype, targets[0], text, self.c, self.helpers))
        elif (operator := _compound(stmt.reducer)) is not None:
            self._count_operands(stmt)
            self.line(f"{targets[0]} {operator} {self.c.text(stmt.values[0], self)};")
        else:
            self._combine(stmt, stmt.reducer, targets)

    def _assign(self, stmt: Store | Shuffle, values: list[str]) -> None:
        """The values to the statement's buffers, all computed before any is written."""
        targets = [self.element(b, stmt.indices) for b in stmt.buffers]
        if len(targets) == 1:
            self.line(f"{targets[0]} = {values[0]};")
            return
        self.line("{")
        self.depth += 1
        names = [identifier("t", self.taken) for _ in values]
        for buffer, name, value in zip(stmt.buffers, names, values, strict=True):
            self.line(f"const {self.c.type(self.buffers[buffer][0].dtype)} {name} = {value};")
        for target, name in zip(targets, names, strict=True):
            self.line(f"{target} = {name};")
        self.depth -= 1
        self.line("}")

    def _shuffle(self, stmt: Shuffle) -> None:
        """By the language's own words, or through shared memory where it has none."""
        values = [self.c.text(v, self) for v in stmt.values]
        if self.words.shuffles:
            kind, number = source_lane(stmt, self._thread(), self.simplify)
            width = "" if stmt.warp == WARP else f", {stmt.warp}"
            text, where = self.words.shuffles[kind], self.c.text(number, self)
            self._assign(stmt, [text.format(value=v, number=where, width=width) for v in values])
            return
        thread, count = self._thread(), self.block[0] * self.block[1] * self.block[2]
        places = [self._exchange(v.dtype, count, n) for n, v in enumerate(stmt.values)]
        self.line(self.words.barrier)  # others may still read what was exchanged before
        for place, value in zip(places, values, strict=True):
            self.line(f"{place}[{self.c.text(thread, self)}] = {value};")
        self.line(self.words.barrier)
        other = self.simplify(thread - thread % stmt.warp + stmt.lane)
        exists = binary("lt", stmt.lane, Const(stmt.warp, INDEX)) & binary("lt", other, Const(count, INDEX))
        safe = self.c.text(self.simplify(select(exists, other, thread)), self)
        self._assign(stmt, [f"{place}[{safe}]" for place in places])

    def _exchange(self, dtype: str, count: int, number: int) -> str:
        """Shared memory with a place for each thread: value `number` of the shuffles of a kernel."""
        key = f"exchange {number} of {dtype}"
        if key not in self.shared_names:
            buffer = Buffer(key, (Const(count, INDEX),), dtype, Scope.SHARED)
            self._declare_shared(buffer, identifier(f"exchange_{dtype}", self.taken))
        return self.shared_names[key]

    def _thread(self) -> Expr:
        """The number of the thread in its block."""
        number: Expr = Const(0, INDEX)
        for var, size in zip(reversed(self.threads), reversed(self.block), strict=True):
            number = number * size if var is None else number * size + var
        return self.simplify(number)

    def _declare_shared(self, buffer: Buffer, name: str) -> None:
        self.shared_names[buffer.name] = name
        places, one = places_of(buffer)
        count, kind = max(1, element_count(one)), self._memory_type(buffer.dtype)
        self.shared.append(SharedArray(kind, name, places, count, total_bytes(self.shared), buffer.itemsize))

    def _combine(self, stmt: Store, reducer: Reducer, targets: list[str]) -> None:
        """The reducer's results over old values and new ones, all computed before any is written."""
        if len(targets) == 1 and _is_plain(reducer) and isinstance(stmt.values[0], (Load, Var)):
            old = Load(stmt.buffers[0], stmt.indices, stmt.values[0].dtype)
            operands: dict[Expr, Expr] = {reducer.lhs[0]: old, reducer.rhs[0]: stmt.values[0]}
            self.line(f"{targets[0]} = {self.c.text(substitute(reducer.results[0], operands), self)};")
            return
        self.line("{")
        self.depth += 1
        for side, texts in (
            (reducer.lhs, targets),
            (reducer.rhs, [self.c.text(v, self) for v in stmt.values]),
        ):
            for var, text in zip(side, texts, strict=True):
                self.variables[var] = identifier(var.name, self.taken)
                self.line(f"const {self.c.type(var.dtype)} {self.variables[var]} = {text};")
        results = [self.c.text(r, self) for r in reducer.results]
        for target, result in zip(targets, results, strict=True):
            self.line(f"{target} = {result};")
        self.depth -= 1
        self.line("}")

    # addresses

    def element(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        placed, name = self.buffers[buffer]
        places, one = places_of(placed)
        if places > 1:
            name, placed, indices = f"{name}[{self.c.text(self.simplify(indices[0]), self)}]", one, indices[1:]
        flat = flat_index(placed, indices, self.simplify)
        return f"{name}[{self.c.text(flat, self)}]"

    def is_nonnegative(self, expr: Expr) -> bool:
        return expr.dtype == INDEX and not loads(expr) and self.bounds(expr)[0] >= 0

    def bounds(self, expr: Expr) -> tuple[int, int]:
        return self.simplify.bounds(expr)


def _compound(reducer: Reducer) -> str | None:
    """`+=` and the like for reducers that are one operation."""
    result = reducer.results[0]
    return {"add": "+=", "mul": "*="}.get(result.op) if _is_plain(reducer) and isinstance(result, Binary) else None


def _is_plain(reducer: Reducer) -> bool:
    """Whether the reducer is one operation on its two operands."""
    result = reducer.results[0]
    return len(reducer.results) == 1 and set(result.children) == {reducer.lhs[0], reducer.rhs[0]}


def _triple(values: list[int]) -> Triple:
    return values[0], values[1], values[2]
