"""The LLVM module of a kernel: one function for each nest at the root, one entry that runs them in order.

    i32 @kernel(ptr args, ptr workspace, i64 nthreads)
      for each nest:  serial:    @kernel.run<n>(args, workspace, first, last, thread)
                      parallel:  @autosched_parallel(@kernel.task<n>, env, chunks)
    void @kernel.run<n>    loads the pointers, calls the nest once for each task from first to last
    void @kernel.nest<n>   the loops; all pointers are noalias arguments

A nest with streamed stores exists twice: the one with them runs where the outputs begin at whole vectors.

Workspace: shared buffers first, then one private part for each thread.

Weights: a second entry @kernel.prepare with nests of its own; what it leaves for the kernel lies in one block, whose
pointer is the last of `args`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosched.codegen.llvm.address import Addresses, Placed
from autosched.codegen.llvm.bindings import Bindings, Runtime
from autosched.codegen.llvm.dots import declarations
from autosched.codegen.llvm.math import rare_cases
from autosched.codegen.llvm.statements import ALIGN, LocalMemory, Statements
from autosched.codegen.llvm.stores import non_temporal, plain
from autosched.codegen.llvm.tiles import tile_products
from autosched.codegen.llvm.vocabulary import LOADS, fill_constants, load_sizes, reads_sizes, table_lines
from autosched.codegen.llvm.writer import Writer
from autosched.codegen.source import KernelSource, NestCode, function_attributes
from autosched.ir.expr import Const, binary
from autosched.ir.simplify import Simplifier
from autosched.ir.size import has_size
from autosched.ir.stmt import Buffer, For, ForKind, Func, If, Stmt, Store, shared_and_nests, walk
from autosched.ir.storage import element_count
from autosched.ir.symbolic import is_known
from autosched.lower.limits import check_workspace
from autosched.lower.register_tiles.plan import non_temporal_outputs, plan_nest
from autosched.target import Target

CHUNKS_PER_THREAD = 32  # many small tasks are handed out in chunks


@dataclass(frozen=True)
class RootNest:
    """One root nest: its parallel loops (collapsed into a task number) and their body."""

    name: str
    parallel: tuple[For, ...]
    body: Stmt

    @property
    def n_tasks(self) -> int:
        return _n_iterations(self.parallel)


def _n_iterations(loops: Sequence[For]) -> int:
    count = 1
    for loop in loops:
        assert isinstance(loop.bound, Const)
        count *= loop.bound.number
    return count


def tasks_of_chunk(n_tasks: int, threads: int) -> int:
    """The tasks that a thread takes at a time; a number that is known at run time only may be any."""
    tasks = n_tasks // (CHUNKS_PER_THREAD * threads)
    return tasks + 1 if has_size(tasks) else max(1, tasks)


def emit(func: Func, simplify: Simplifier, target: Target, threads: int) -> KernelSource:
    """LLVM IR text of a concrete function for `threads` threads."""
    packed, packed_bytes = offsets_of(func.prepared)
    run, workspace_bytes = _program(func.name, func.body, func, packed, simplify, target, threads)
    parts = run
    if func.prepare is not None:
        prepare, needed = _program(f"{func.name}.prepare", func.prepare, func, packed, simplify, target, threads)
        parts = [*run, *prepare]
        workspace_bytes = max(workspace_bytes, needed)
    parts, sizes = load_sizes(parts)
    ir = f"; autosched kernel {func.name}: {target.mcpu}, {threads} thread(s)\n" + module_text(parts, target)
    return KernelSource(func.name, ir, workspace_bytes, threads, packed_bytes, sizes=sizes)


def module_text(functions: Sequence[str], target: Target) -> str:
    """Return a module of functions, with the declarations that they need."""
    declared = (*declarations(functions), *tile_products.declarations(functions))
    parts = [_header(target), *declared, *fill_constants(functions, target.vector_bytes)]
    parts += [*rare_cases.definitions(functions), *functions]
    return "\n\n".join(parts) + "\n"


def _header(target: Target) -> str:
    return (
        "declare void @autosched_parallel(ptr, ptr, i64)\n"
        f"attributes #0 = {{ {function_attributes(target)} }}\n"
        "!0 = !{i32 1}"
    )


def offsets_of(buffers: Sequence[Buffer]) -> tuple[dict[str, int], int]:
    """Where each buffer lies in one block, and the size of that; a vector may be read from behind the last element."""
    offsets: dict[str, int] = {}
    used = 0
    for buffer in buffers:
        offsets[buffer.name] = used
        used += -(-(element_count(buffer) * buffer.itemsize + ALIGN) // ALIGN) * ALIGN
    return offsets, used


def _program(
    name: str, body: Stmt, func: Func, packed: Mapping[str, int], simplify: Simplifier, target: Target, threads: int
) -> tuple[list[str], int]:
    """The functions of one entry point, that one last, and the bytes of workspace that it needs."""
    shared, nests = split_nests(name, body)
    offsets, used = offsets_of(shared)
    buffers = (*func.params, *func.prepared, *shared)
    bodies, codes, private = emit_nests(nests, buffers, simplify, target)
    numbers = {b.name: n for n, b in enumerate(func.params)}
    names = tuple(b.name for b in buffers)
    entry = EntryPoint(name, names, numbers, packed, offsets, used, private, threads, target)
    check_workspace(name, func.params, entry.workspace_bytes)
    return [*bodies, *entry.parts(codes)], entry.workspace_bytes


def emit_nests(
    nests: Sequence[RootNest], buffers: Sequence[Buffer], simplify: Simplifier, target: Target
) -> tuple[list[str], list[NestCode], int]:
    """The functions of nests, what entry points know of them, and the private bytes that they need."""
    bodies, codes, private = list[str](), list[NestCode](), 0
    for nest in nests:
        text, peak = _nest_function(nest, buffers, simplify, target)
        bodies.append(plain(text))
        around = non_temporal_outputs(nest.body, target)
        if around:
            renamed = text.replace(f"@{nest.name}(", f"@{nest.name}.stream(", 1)
            bodies.append(non_temporal(renamed, target.vector_bytes))
        codes.append(NestCode(nest.name, nest.n_tasks, around, reads_sizes(text)))
        private = max(private, peak)
    return bodies, codes, private


def split_nests(name: str, body: Stmt) -> tuple[list[Buffer], list[RootNest]]:
    """Shared buffers and root nests, in order."""
    shared, stmts = shared_and_nests(body)
    nests = []
    for n, stmt in enumerate(stmts):
        loops: list[For] = []
        while isinstance(stmt, For) and stmt.kind is ForKind.PARALLEL:
            loops.append(stmt)
            stmt = stmt.body
        nests.append(RootNest(f"{name}.nest{n}", tuple(loops), stmt))
    return shared, nests


def _names(buffers: Sequence[str]) -> list[tuple[str, str]]:
    return [(b, f"%b{n}") for n, b in enumerate(buffers)]


def _nest_function(nest: RootNest, buffers: Sequence[Buffer], simplify: Simplifier, target: Target) -> tuple[str, int]:
    """The nest's text, stores around the caches marked, and the private bytes it needs."""
    writer = Writer()
    names = _names([b.name for b in buffers])
    placed = {b.name: Placed(b, name) for b, (_, name) in zip(buffers, names, strict=True)}
    written = {b for s in walk(nest.body) if isinstance(s, Store) for b in s.buffers}
    steady = frozenset(placed.keys() - written)
    addresses = Addresses(writer, Bindings(writer, simplify), placed, target.reduces_strength, steady=steady)
    local = LocalMemory("%local")
    body, planner = plan_nest(nest.body, buffers, lambda name: placed[name].buffer, simplify, target)
    statements = Statements(writer, addresses, planner, local)
    for n, loop in enumerate(nest.parallel):
        assert isinstance(loop.bound, Const)
        size = loop.bound.number
        inner = _n_iterations(nest.parallel[n + 1 :])
        value = "%task" if is_known("le", inner, 1) else writer.value(f"udiv i64 %task, {inner}")
        if loop is not nest.parallel[0]:
            value = writer.value(f"urem i64 {value}, {size}")
        addresses.bindings.env[loop.var] = Runtime(value, 0)
        if not isinstance(loop.extent, Const):
            body = If(binary("lt", loop.var, loop.extent), body)
    _hoist_task_decode(writer)
    statements.emit(body)
    tile_products.release(writer)
    arguments = ", ".join([*(f"ptr noalias {name}" for _, name in names), "ptr noalias %local", "i64 %task"])
    body_text = writer.text()
    if reads_sizes(body_text):
        arguments, body_text = f"{arguments}, ptr noalias %sizes", f"{LOADS}\n{body_text}"
    text = f"define internal void @{nest.name}({arguments}) noinline #0 {{\nentry:\n{body_text}\n  ret void\n}}"
    return text, local.peak


def _hoist_task_decode(writer: Writer) -> None:
    """Make the code emitted so far (the task's loop variables) the header of the entry frame."""
    entry, lines = writer.top
    assert isinstance(entry, list)
    assert isinstance(lines, list)
    entry.extend(lines)
    lines.clear()


def _task_loop(function: str, arguments: str, label: str, done: str) -> list[str]:
    """Calls `function` for each task, then goes to `done`."""
    return [
        f"{label}:",
        f"  %task.{label} = phi i64 [ %first, %entry ], [ %next.{label}, %{label} ]",
        f"  call void @{function}({arguments.format(task=f'%task.{label}')})",
        f"  %next.{label} = add i64 %task.{label}, 1",
        f"  %more.{label} = icmp slt i64 %next.{label}, %last",
        f"  br i1 %more.{label}, label %{label}, label %{done}",
    ]


@dataclass(frozen=True)
class EntryPoint:
    """An entry point: it calls nests with `buffers`, by their names, which are parameters by `numbers`, or lie in the
    block of weights or the workspace."""

    name: str
    buffers: tuple[str, ...]
    numbers: Mapping[str, int]
    packed: Mapping[str, int]  # offsets in the block
    offsets: Mapping[str, int]  # in the workspace
    shared_bytes: int
    private_bytes: int
    threads: int
    target: Target

    @property
    def workspace_bytes(self) -> int:
        return self.shared_bytes + self.private_bytes * self.threads + ALIGN

    def parts(self, nests: Sequence[NestCode]) -> list[str]:
        """Its functions, that one last."""
        parts = [self._runner(n) for n in nests]
        parts += [self._task(n) for n in nests if self._is_parallel(n)]
        return [*parts, self._entry(nests)]

    def _runner(self, nest: NestCode) -> str:
        lines = [
            f"define internal void @{nest.name}.run(ptr %args, ptr %ws, i64 %first, i64 %last, i64 %tid) #0 {{",
            "entry:",
        ]
        n_before = len(lines)
        if self.packed:
            lines.append(f"  %packed.at = getelementptr inbounds ptr, ptr %args, i64 {len(self.numbers)}")
            lines.append("  %packed = load ptr, ptr %packed.at, align 8")
        for n, (buffer, name) in enumerate(_names(self.buffers)):
            if buffer in self.packed:
                lines.append(f"  {name} = getelementptr inbounds i8, ptr %packed, i64 {self.packed[buffer]}")
            elif buffer in self.offsets:
                lines.append(f"  {name} = getelementptr inbounds i8, ptr %ws, i64 {self.offsets[buffer]}")
            else:
                lines.append(f"  %s{n} = getelementptr inbounds ptr, ptr %args, i64 {self.numbers[buffer]}")
                lines.append(f"  {name} = load ptr, ptr %s{n}, align 8")
        arguments = ", ".join([*(f"ptr {name}" for _, name in _names(self.buffers)), "ptr %local, i64 {task}"])
        arguments += ", ptr %sizes" if nest.reads_sizes else ""
        lines += [
            f"  %skip = mul i64 %tid, {self.private_bytes}",
            f"  %at = add i64 %skip, {self.shared_bytes}",
            "  %local = getelementptr inbounds i8, ptr %ws, i64 %at",
        ]
        if nest.non_temporal:
            lines += [*self._test_alignment(nest.non_temporal), "  br i1 %whole, label %stream, label %loop"]
            lines += [*_task_loop(f"{nest.name}.stream", arguments, "stream", "fence"), "fence:"]
            lines += ["  call void @llvm.x86.sse.sfence()", "  ret void"]
        else:
            lines.append("  br label %loop")
        lines += [*_task_loop(nest.name, arguments, "loop", "done"), "done:", "  ret void", "}"]
        lines[n_before:n_before] = self._table(nest.reads_sizes or reads_sizes("\n".join(lines)))
        return "\n".join(lines)

    def _test_alignment(self, buffers: tuple[str, ...]) -> list[str]:
        """%whole: whether all these buffers begin at a line, so that their vectors fill lines."""
        names = [name for buffer, name in _names(self.buffers) if buffer in buffers]
        lines = ["  %bits0 = or i64 0, 0"]
        for n, name in enumerate(names):
            lines.append(f"  %bits{n}.a = ptrtoint ptr {name} to i64")
            lines.append(f"  %bits{n + 1} = or i64 %bits{n}, %bits{n}.a")
        lines.append(f"  %rest = and i64 %bits{len(names)}, {self.target.line_bytes - 1}")
        return [*lines, "  %whole = icmp eq i64 %rest, 0"]

    def _table(self, is_needed: bool) -> list[str]:
        return [*table_lines(len(self.numbers) + bool(self.packed)), LOADS] if is_needed else []

    def _is_parallel(self, nest: NestCode) -> bool:
        return self.threads > 1 and not is_known("le", nest.n_tasks, 1)

    def _task(self, nest: NestCode) -> str:
        size = tasks_of_chunk(nest.n_tasks, self.threads)
        loads = "".join(f"{line}\n" for line in self._table(has_size((size, nest.n_tasks))))
        return f"""define internal void @{nest.name}.task(ptr %env, i64 %chunk, i64 %tid) #0 {{
entry:
  %args = load ptr, ptr %env, align 8
  %slot = getelementptr inbounds ptr, ptr %env, i64 1
  %ws = load ptr, ptr %slot, align 8
{loads}  %first = mul i64 %chunk, {size}
  %stop = add i64 %first, {size}
  %last = call i64 @llvm.smin.i64(i64 %stop, i64 {nest.n_tasks})
  call void @{nest.name}.run(ptr %args, ptr %ws, i64 %first, i64 %last, i64 %tid)
  ret void
}}"""

    def _entry(self, nests: Sequence[NestCode]) -> str:
        lines = [f"define i32 @{self.name}(ptr %args, ptr %ws, i64 %nthreads) #0 {{", "entry:"]
        n_before = len(lines)
        lines += ["  %env = alloca [2 x ptr], align 8", "  store ptr %args, ptr %env, align 8"]
        lines += ["  %slot = getelementptr inbounds ptr, ptr %env, i64 1", "  store ptr %ws, ptr %slot, align 8"]
        for nest in nests:
            if self._is_parallel(nest):
                chunks = -(-nest.n_tasks // tasks_of_chunk(nest.n_tasks, self.threads))
                lines.append(f"  call void @autosched_parallel(ptr @{nest.name}.task, ptr %env, i64 {chunks})")
            else:
                lines.append(f"  call void @{nest.name}.run(ptr %args, ptr %ws, i64 0, i64 {nest.n_tasks}, i64 0)")
        lines += ["  ret i32 0", "}"]
        lines[n_before:n_before] = self._table(reads_sizes("\n".join(lines)))
        return "\n".join(lines)
