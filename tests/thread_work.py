"""Work and cache lines of each thread of a kernel, counted from its lowered nests for any number of threads.

Nothing is compiled or run: the iterations of a nest are rows of arrays, one for each combination of those loops that
extents, conditions or addresses depend on; the other loops multiply the work of a row. Tasks become chunks as the code
generator makes them, and each thread owns consecutive chunks as the thread pool gives them (`autosched/runtime/pool.py`);
a thread without a chunk takes one of another thread's.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autosched.codegen.llvm.kernel import RootNest, split_nests, tasks_of_chunk
from autosched.ir.closed_forms.program import Program
from autosched.ir.expr import Expr, Load, Param, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, Buffer, For, Func, If, Seq, Stmt, Store, walk
from autosched.ir.storage import flat_index
from autosched.ir.visit import free_vars, subexpressions, substitute
from autosched.target import LINE_BYTES

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Iterations of the loops around a statement: the values of their variables, the task, and how often each runs."""

    values: Mapping[Var, Ints]
    task: Ints
    weight: Floats

    def of(self, expr: Expr) -> Ints:
        """The value of an integer expression in each row."""
        used = sorted(free_vars(expr), key=str)
        program = Program([substitute(expr, {v: Param(v.name) for v in used})], [v.name for v in used])
        columns = np.stack([self.values[v] for v in used], axis=1) if used else np.zeros((len(self.task), 0), np.int64)
        return np.asarray(program(columns)[0], np.int64)

    def where(self, kept: npt.NDArray[np.bool_]) -> Rows:
        return Rows({v: x[kept] for v, x in self.values.items()}, self.task[kept], self.weight[kept])

    def inside(self, loop: For, moves: bool) -> Rows:
        """The rows of the loop's body; `moves`: whether its rows depend on the loop's variable."""
        extent = np.maximum(self.of(loop.extent), 0)
        if not moves:
            return Rows(self.values, self.task, self.weight * extent).where(extent > 0)
        first = np.repeat(np.cumsum(extent) - extent, extent)
        values = {v: np.repeat(x, extent) for v, x in self.values.items()}
        values[loop.var] = np.arange(extent.sum()) - first
        return Rows(values, np.repeat(self.task, extent), np.repeat(self.weight, extent))


@dataclass(frozen=True)
class NestWork:
    """`work`: stores of each task; `lines`: of each shared buffer pairs (task, line) that are written, each once."""

    work: Floats
    lines: Mapping[str, tuple[Ints, Ints]]

    def imbalance(self, threads: int) -> float:
        """The time of the busiest thread over that of an even split, 1 at least."""
        owners = owner_of_tasks(len(self.work), threads)
        chunk = tasks_of_chunk(len(self.work), threads)
        chunks = np.add.reduceat(self.work, np.arange(0, len(self.work), chunk))
        return _busiest(chunks, owners[::chunk], threads) * threads / max(self.work.sum(), 1.0)

    def shared_lines(self, threads: int) -> dict[str, tuple[int, int]]:
        """Of each buffer the lines that several threads write, and all lines that are written."""
        owners = owner_of_tasks(len(self.work), threads)
        found = {}
        for name, (task, line) in self.lines.items():
            pairs = np.unique(np.stack([line, owners[task]]), axis=1)
            _, writers = np.unique(pairs[0], return_counts=True)
            found[name] = int((writers > 1).sum()), len(writers)
        return found


def owner_of_tasks(n_tasks: int, threads: int) -> Ints:
    """The thread that owns each task, before any is stolen."""
    chunk = tasks_of_chunk(n_tasks, threads)
    chunks = -(-n_tasks // chunk)
    present = min(threads, chunks)
    ends = np.arange(1, present + 1) * chunks // present
    return np.asarray(np.searchsorted(ends, np.arange(n_tasks) // chunk, side="right"), np.int64)


def _busiest(work: Floats, owner: Ints, threads: int) -> float:
    """Until when the chunks are done, where a thread takes its own first and then those of the threads after it."""
    present = int(owner.max()) + 1
    queues = [list(work[owner == t][::-1]) for t in range(present)]
    ready = [(0.0, t) for t in range(present)]
    end = 0.0
    while ready:
        now, t = heapq.heappop(ready)
        end = max(end, now)
        queue = next((queues[(t + k) % present] for k in range(present) if queues[(t + k) % present]), None)
        if queue:
            heapq.heappush(ready, (now + float(queue.pop()), t))
    return end


def nests_of(func: Func, simplify: Simplifier, with_lines: bool = True) -> list[NestWork]:
    """The nests of a concrete kernel. Conditions on data count as true."""
    shared, nests = split_nests(func.name, func.body)
    buffers = {b.name: b for b in (*func.params, *func.prepared, *shared)}
    return [_nest(nest, buffers, simplify, with_lines) for nest in nests]


def _nest(nest: RootNest, buffers: Mapping[str, Buffer], simplify: Simplifier, with_lines: bool) -> NestWork:
    n = nest.n_tasks
    task, rest, values = np.arange(n), np.arange(n), {}
    for loop in reversed(nest.parallel):
        values[loop.var], rest = rest % loop.bound.number, rest // loop.bound.number  # type: ignore[attr-defined]
    rows = Rows(values, task, np.ones(n))
    for loop in nest.parallel:
        rows = rows.where(rows.values[loop.var] < rows.of(loop.extent))
    work, lines = np.zeros(n), dict[str, list[tuple[Ints, Ints]]]()

    def address(store: Store) -> list[Expr]:
        if not with_lines:
            return []
        return [flat_index(buffers[b], store.indices, simplify) for b in store.buffers if b in buffers]

    def needed(stmt: Stmt) -> set[Var]:
        exprs = [x for s in walk(stmt) for x in _controls(s)]
        exprs += [x for s in walk(stmt) if isinstance(s, Store) for x in address(s) if not _reads(x)]
        return {v for x in exprs for v in free_vars(x)}

    def go(stmt: Stmt, rows: Rows) -> None:
        match stmt:
            case For():
                go(stmt.body, rows.inside(stmt, stmt.var in needed(stmt.body)))
            case If(cond=cond):
                holds = np.ones(len(rows.task), bool) if _reads(cond) else rows.of(cond) != 0
                go(stmt.then, rows.where(holds))
                if stmt.otherwise is not None:
                    go(stmt.otherwise, rows if _reads(cond) else rows.where(~holds))
            case Allocate() | Seq():
                for inner in stmt.body_stmts:
                    go(inner, rows)
            case Store():
                work[:] += np.bincount(rows.task, rows.weight, minlength=n)
                shared = [buffers[b] for b in stmt.buffers if b in buffers]
                for buffer, at in zip(shared, address(stmt), strict=False):
                    if not _reads(at):
                        line = rows.of(at) * buffer.itemsize // LINE_BYTES
                        found = np.unique(np.stack([rows.task, line]), axis=1)
                        lines.setdefault(buffer.name, []).append((found[0], found[1]))

    go(nest.body, rows)
    joined = {b: (np.concatenate([t for t, _ in x]), np.concatenate([i for _, i in x])) for b, x in lines.items()}
    return NestWork(work, joined)


def _controls(stmt: Stmt) -> Sequence[Expr]:
    match stmt:
        case For(extent=extent):
            return (extent,)
        case If(cond=cond) if not _reads(cond):
            return (cond,)
    return ()


def _reads(expr: Expr) -> bool:
    return any(isinstance(x, Load) for x in subexpressions(expr))
