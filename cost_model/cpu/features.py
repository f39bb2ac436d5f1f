"""Features of a CPU candidate for the ranker: one table, one row of numbers for each candidate.

    FEATURES: (name, unit, formula)        symbolic(...) -> one closed form for each feature

Ansor describes a program by 164 numbers for each of its stores and lets the model add up a score for each
("pack-sum"). Here a program is one row: the features of its dominant statement, and sums over all statements. The model
sees a plain [n, F] matrix, prediction is one call for a population, and the loss is that of whole programs,
which is what is measured; what is lost, per-statement detail of minor statements, is in the sums and in the
analytic latency's components. The dominant statement is that with the most arithmetic when every parameter is 1, the
same for all rows of a sketch.

The accesses of the dominant statement have fixed roles: what it writes, then what it reads with the vector loop
running along it, then what stands still or strides, each in the order of the text. Sorting by traffic, candidate by
candidate, would change the meaning of a column between neighbours.

Every number x is stored as sign(x) log2(1 + |x|) but for those with the unit `log2`, which already are logarithms.
No name of an axis, a tensor or a parameter enters, so renaming changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from autosched.ir.closed_forms.arithmetic import (
    NEVER,
    ONE,
    ZERO,
    add,
    divide,
    is_one,
    is_zero,
    maximum,
    maximum_of,
    minimum,
    multiply,
    product_of,
    real,
    subtract,
    sum_of,
)
from autosched.ir.closed_forms.program import BLOCK_ROWS, Ints, Program
from autosched.ir.expr import Const, Expr, Param, call, product
from autosched.ir.stmt import ForKind, Scope
from autosched.ir.visit import subexpressions
from cost_model.analysis.access import Access, excess
from cost_model.analysis.operations import KINDS
from cost_model.analysis.statements import Analysis, Statement
from cost_model.analysis.traffic import moved_into
from cost_model.cpu.latency import AnalyticLatency, Cost
from cost_model.cpu.machine import Machine

N_ACCESSES = 5
CURVE_BYTES = tuple(1 << s for s in (10, 12, 14, 16, 18, 20, 22, 24, 26, 28))
LOG = "log2"
C = TypeVar("C")  # what the formulas of a table read


@dataclass(frozen=True)
class Feature:
    name: str
    unit: str
    formula: str


@dataclass(frozen=True, eq=False)
class FeatureContext:
    """The inputs of the formulas."""

    analysis: Analysis
    latency: AnalyticLatency
    machine: Machine
    main: Cost
    accesses: tuple[Access, ...]  # of the main statement, at most N_ACCESSES of them

    @property
    def costs(self) -> tuple[Cost, ...]:
        return self.latency.costs

    @cached_property
    def access_values(self) -> tuple[tuple[Expr, ...], ...]:
        """For each access of the main statement the columns of `ACCESS_FORMULAS`."""
        return tuple(_access_values(self, a) for a in self.accesses)

    @cached_property
    def bytes_per_flop(self) -> tuple[Expr, ...]:
        """At each depth of the main statement: bytes touched inside / operations done there."""
        s = self.main.statement
        size = self.machine.target.line_bytes / max(1, s.ops.flops)
        inside = list(accumulate((x.trips for x in reversed(s.loops)), multiply))[::-1]
        lines = [sum_of(a.lines[d] for a in s.accesses if not a.in_registers) for d in range(s.depth)]
        return tuple(divide(multiply(n, size), runs) for n, runs in zip(lines, inside, strict=True))


Value = Callable[[C], "Expr | float"]
Column = tuple[Feature, Callable[[C], Expr]]


def column(name: str, unit: str, formula: str, value: Value[C]) -> Column[C]:
    return Feature(name, unit, formula), lambda c: real(value(c))


def log_column(name: str, formula: str, value: Value[C]) -> Column[C]:
    return Feature(name, LOG, formula), lambda c: multiply(
        call("log", maximum(value(c), 1e-12)), float(1 / np.log(2.0))
    )


def columns_of(
    name: str, count: int, formulas: Sequence[tuple[str, str, str]], rows: Callable[[C], Sequence[Sequence[Expr]]]
) -> list[Column[C]]:
    """`count` times the columns of `formulas` (name, unit, formula), whose values are `rows` of the context; all zero
    where it has fewer."""

    def pick(place: int, field: int) -> Value[C]:
        return lambda c: rows(c)[place][field] if place < len(rows(c)) else ZERO

    return [
        column(f"{name}{place}_{n}", unit, text, pick(place, field))
        for place in range(count)
        for field, (n, unit, text) in enumerate(formulas)
    ]


Columns = list[Column[FeatureContext]]


def _sum(f: Callable[[Cost], Expr]) -> Value[FeatureContext]:
    return lambda c: sum_of(f(cost) for cost in c.costs)


def _computation() -> Columns:
    """Group 1: operations of the whole kernel and loop kinds of the main statement."""

    def count(kind: str) -> Value[FeatureContext]:
        return _sum(lambda cost: multiply(cost.statement.executions, float(cost.statement.ops.count(kind))))

    columns = [column(kind, "operations", "sum over statements of executions * count", count(kind)) for kind in KINDS]
    for kind in (ForKind.VECTORIZE, ForKind.UNROLL, ForKind.PARALLEL):
        columns += _loop_columns(kind)
    return columns


def _loop_columns(kind: ForKind) -> Columns:
    def bounds(c: FeatureContext) -> list[Expr]:
        return [x.bound for x in c.main.statement.loops if x.kind is kind]

    def innermost(c: FeatureContext) -> Expr:
        return bounds(c)[-1] if bounds(c) else ZERO

    def reduced(c: FeatureContext) -> Expr:
        return product([x.bound for x in c.main.statement.loops if x.kind is kind and x.reduce])

    name = kind.value
    return [
        column(f"{name}_product", "iterations", f"product of {name} trip counts", lambda c: product(bounds(c))),
        column(f"{name}_inner", "iterations", f"trip count of the innermost {name} loop", innermost),
        column(f"{name}_reduce", "iterations", f"product of {name} reduction trip counts", reduced),
    ]


ACCESS_FORMULAS: tuple[tuple[str, str, str], ...] = (
    ("is_read", "bool", "read only"),
    ("is_update", "bool", "read and written in place"),
    ("bytes", "bytes", "executions * itemsize * loads"),
    ("unique_bytes", "bytes", "elements touched at depth 0 * itemsize"),
    ("lines", "lines", "transfers into L1 / line"),
    ("unique_lines", "lines", "lines touched at depth 0"),
    ("from_l2", "bytes", "traffic into a cache of L1's size"),
    ("from_l3", "bytes", "traffic into a cache of L2's size"),
    ("from_memory", "bytes", "traffic into a cache of L3's size"),
    ("reuse_distance", "bytes", "working set inside the innermost outer loop that does not move it"),
    ("reuse_count", "iterations", "trip count of that loop"),
    ("bytes_per_reuse", "bytes", "bytes / reuse_count"),
    ("vector_stride", "elements", "step of the vector loop, or of the innermost one"),
    ("block_bytes", "bytes", "elements touched by one block * itemsize"),
)


def _access_values(c: FeatureContext, access: Access) -> tuple[Expr, ...]:
    s, size = c.main.statement, float(access.buffer.itemsize)
    caches = c.machine.cache_bytes
    into = [moved_into(s, access, caches, level, c.machine.comes_from(access.buffer)) for level in range(3)]
    moved = multiply(s.executions, size * access.count)
    still = next((i for i in range(s.block_depth - 1, -1, -1) if not access.moves(i)), None)
    distance = ZERO if still is None else s.working_set[still + 1]
    reuse = ZERO if still is None else s.loops[still].trips
    lane = s.vector_loop if s.vector_loop is not None else s.depth - 1
    return (
        real(float(access.kind == "read")),
        real(float(access.kind == "update")),
        moved,
        multiply(access.elements[0], size),
        multiply(into[0], 1.0 / access.line_bytes),
        access.lines[0] if not access.in_registers else ZERO,
        *into,
        distance,
        reuse,
        divide(moved, maximum(1.0, reuse)),
        real(access.stride[lane]) if s.depth else ZERO,
        multiply(access.elements[s.block_depth], size),
    )


def _curve_columns() -> Columns:
    """Group 3: arithmetic intensity of the main statement in caches of growing size (Ansor: at growing depth)."""

    def intensity(capacity: int) -> Value[FeatureContext]:
        def value(c: FeatureContext) -> Expr:
            best: Expr = real(64.0)  # bytes per operation when nothing fits: every access misses
            for d, per_flop in enumerate(c.bytes_per_flop):
                best = minimum(best, maximum(per_flop, excess(c.main.statement.working_set[d], float(capacity))))
            return divide(1.0, maximum(best, 1e-9))

        return value

    text = "largest flops / bytes touched over depths whose working set fits"
    return [column(f"intensity_{b >> 10}k", "flop/byte", text, intensity(b)) for b in CURVE_BYTES]


def _allocation_columns() -> Columns:
    """Group 4: buffers by scope, and how often they are filled."""

    def size(scope: Scope) -> Value[FeatureContext]:
        return lambda c: sum_of(a.bytes for a in c.analysis.allocations if a.buffer.scope is scope)

    def filled(c: FeatureContext) -> Expr:
        kept = [a for a in c.analysis.allocations if a.buffer.scope is not Scope.REGISTER]
        return sum_of(multiply(product_of(x.trips for x in a.loops), a.bytes) for a in kept)

    return [
        column("local_bytes", "bytes", "private buffers of a thread", size(Scope.LOCAL)),
        column("global_bytes", "bytes", "shared buffers", size(Scope.GLOBAL)),
        column("filled_bytes", "bytes", "sum over buffers of bytes * iterations around them", filled),
    ]


def _outer_columns() -> Columns:
    """Group 5: the nest as a whole."""

    def executions(c: FeatureContext) -> Expr:
        return c.main.statement.executions

    def loops(c: FeatureContext) -> Expr:
        return sum_of(minimum(1.0, subtract(x.bound, 1.0)) for x in c.main.statement.loops)

    all_executions = _sum(lambda x: x.statement.executions)
    return [
        column("executions", "iterations", "product of the main statement's mean trip counts", executions),
        column("all_executions", "iterations", "the same, summed over statements", all_executions),
        column("loops", "loops", "loops of the main statement with more than one iteration", loops),
        column("statements", "statements", "stores of the kernel", lambda c: float(len(c.costs))),
        column("threads", "threads", "threads", lambda c: float(c.machine.threads)),
    ]


def _block_columns() -> Columns:
    """The innermost block of the main statement: registers, instruction mix, waste."""

    def waste(c: FeatureContext) -> Expr:
        lanes = [x for x in c.main.statement.loops if x.kind is ForKind.VECTORIZE]
        return product_of(divide(multiply(c.main.block.chunks, float(c.main.block.lanes)), x.trips) for x in lanes)

    def tile_waste(c: FeatureContext) -> Expr:
        return product_of(
            divide(x.bound, maximum(x.trips, 1e-3)) for x in c.main.statement.loops if x.trips is not real(x.bound)
        )

    def instructions(c: FeatureContext) -> Expr:
        return maximum_of(x.block.instructions for x in c.costs)

    def overflow(c: FeatureContext) -> Expr:
        return subtract(add(c.main.block.registers, c.main.block.operands), float(c.machine.registers))

    def mix(c: FeatureContext) -> Expr:
        return divide(c.main.block.arithmetic, maximum(0.5, add(c.main.block.loads, c.main.block.stores)))

    def inner_trips(c: FeatureContext) -> Expr:
        s = c.main.statement
        return s.loops[s.block_depth - 1].trips if s.block_depth else ONE

    return [
        column("accumulators", "registers", "registers of register buffers", lambda c: c.main.block.registers),
        column("registers_over", "registers", "accumulators + operands - available", overflow),
        column("spills", "registers", "max(0, registers_over)", lambda c: c.main.block.spills),
        column("block_slots", "instructions", "arithmetic of one block", lambda c: c.main.block.arithmetic),
        column("block_loads", "instructions", "loads of one block", lambda c: c.main.block.loads),
        column("block_stores", "instructions", "stores of one block", lambda c: c.main.block.stores),
        column("slots_per_transfer", "ratio", "block_slots / (block_loads + block_stores)", mix),
        column("chains", "chains", "independent accumulations", lambda c: c.main.block.chains),
        column("chain_steps", "steps", "dependent accumulations in a block", lambda c: c.main.block.chain_length),
        column("instructions", "instructions", "largest block of any statement", instructions),
        column("lane_waste", "ratio", "lanes of the vectors / elements", waste),
        column("tile_waste", "ratio", "product of largest / mean trip counts", tile_waste),
        column("inner_trips", "iterations", "mean trip count of the loop around the block", inner_trips),
    ]  # fmt: skip


def _latency_columns() -> Columns:
    """The analytic latency and its terms; see `cost_model.cpu.latency`."""
    into = ("l1", "l2", "l3")

    def moved(i: int) -> Value[FeatureContext]:
        return _sum(lambda cost: cost.moved[i])

    def memory(i: int) -> Value[FeatureContext]:
        return _sum(lambda cost: cost.memory[i])

    def imbalance(c: FeatureContext) -> Expr:
        return multiply(c.main.share, float(c.machine.threads))

    def others(c: FeatureContext) -> Expr:
        return sum_of(x.cycles for x in c.costs if x is not c.main)

    return [
        *[column(f"into_{n}", "bytes", f"traffic into {n} of all statements", moved(i)) for i, n in enumerate(into)],
        *[log_column(f"cycles_{n}", f"cycles of that traffic into {n}", memory(i)) for i, n in enumerate(into)],
        column("tasks", "tasks", "product of the main statement's parallel trip counts", lambda c: c.main.tasks),
        column("imbalance", "ratio", "threads * ceil(tasks / threads) / tasks", imbalance),
        log_column("block_cycles", "cycles of one block", lambda c: c.main.block.cycles),
        column("latency_cycles", "cycles", "cycles of its longest chain", lambda c: c.main.block.latency),
        log_column("cycles_core", "cycles in the core, all statements", _sum(lambda x: x.core)),
        log_column("cycles_loops", "loop overhead, all statements", _sum(lambda x: x.loop_overhead)),
        log_column("cycles_main", "cycles of the main statement", lambda c: c.main.cycles),
        log_column("cycles_others", "cycles of the other statements", others),
        log_column("fork_join", "seconds of starting parallel regions", lambda c: c.latency.fork_join),
        log_column(ANALYTIC, "the analytic latency in seconds", lambda c: c.latency.seconds),
    ]


ANALYTIC = "analytic_latency"
_ACCESSES: Columns = columns_of("access", N_ACCESSES, ACCESS_FORMULAS, lambda c: c.access_values)
_ALL: tuple[Column[FeatureContext], ...] = (
    *_computation(),
    *_ACCESSES,
    *_curve_columns(),
    *_allocation_columns(),
    *_outer_columns(),
    *_block_columns(),
    *_latency_columns(),
)
# Logarithms last, so that squashing works on a slice.
COLUMNS: tuple[Column[FeatureContext], ...] = tuple(sorted(_ALL, key=lambda c: c[0].unit == LOG))
FEATURES: tuple[Feature, ...] = tuple(feature for feature, _ in COLUMNS)
ANALYTIC_COLUMN = -1  # here and in every other table
_ROWS = 128  # squashed and transposed together, so that they stay in the first two caches


def symbolic(analysis: Analysis, latency: AnalyticLatency, machine: Machine) -> tuple[Expr, ...]:
    """The closed form of every feature, before squashing."""
    main = dominant(latency.costs)
    context = FeatureContext(analysis, latency, machine, main, ordered(main.statement))
    return tuple(value(context) for _, value in COLUMNS)


def dominant(costs: Sequence[Cost]) -> Cost:
    """The statement with the most arithmetic."""
    return costs[heaviest([multiply(c.statement.executions, float(c.statement.ops.slots + 0.01)) for c in costs])]


def heaviest(work: Sequence[Expr]) -> int:
    """The number of the one with the most work when every parameter is 1; the first one where all are equal."""
    names = sorted({e.name for w in work for e in subexpressions(w) if isinstance(e, Param)})
    values = Program(work, names)(np.ones((1, len(names)), np.int64))[:, 0]
    return int(np.argmax(values))


def ordered(statement: Statement) -> tuple[Access, ...]:
    """The accesses in their roles, `N_ACCESSES` of them at most."""
    lane = statement.vector_loop

    def role(access: Access) -> int:
        if access is statement.write:
            return 0
        if lane is None or is_zero(access.stride[lane]):
            return 2
        return 1 if is_one(access.stride[lane]) or not isinstance(access.stride[lane], Const) else 3

    return tuple(sorted(statement.accesses, key=role)[:N_ACCESSES])


def evaluate(program: Program, matrix: Ints, table: Sequence[Feature] = FEATURES) -> npt.NDArray[np.float32]:
    """float32 `[n, F]`: the features of `table`, squashed, of a population; `program` computes their closed forms."""
    n = matrix.shape[0]
    result = np.empty((n, len(table)), np.float32)
    n_linear = sum(feature.unit != LOG for feature in table)
    for start in range(0, n, BLOCK_ROWS):
        raw = program(matrix[start : start + BLOCK_ROWS])
        block = result[start : start + BLOCK_ROWS]
        for at in range(0, len(block), _ROWS):
            part = np.clip(raw[:, at : at + _ROWS], -NEVER, NEVER).astype(np.float32)
            block[at : at + _ROWS] = squash(part, n_linear).T
    return result


def squash(raw: npt.NDArray[np.float32], n_linear: int) -> npt.NDArray[np.float32]:
    """sign(x) log2(1 + |x|) of the first rows of `raw` `[F, n]`, which are no logarithms yet, in place."""
    linear = raw[:n_linear]
    size = np.abs(linear)
    size += np.float32(1.0)
    np.log2(size, out=size)
    np.copysign(size, linear, out=linear)
    return raw
