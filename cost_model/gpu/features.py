"""Features of a GPU candidate for the ranker: a table like that of `cost_model.cpu.features`, with its own columns.

One row for each candidate: the kernel and the statement with the most arithmetic, the fills of that kernel's shared
buffers, sums over all kernels, and what the analytic latency is made of. What is squashed and how is told there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    add,
    divide,
    maximum,
    maximum_of,
    multiply,
    real,
    sum_of,
    where,
)
from autosched.ir.expr import Const, Expr, product
from autosched.ir.linear import linear
from autosched.ir.stmt import BLOCKS, THREADS, Scope
from cost_model.analysis.access import Access
from cost_model.analysis.operations import KINDS
from cost_model.cpu.features import ANALYTIC, LOG, Column, Feature, Value, column, columns_of, heaviest, log_column
from cost_model.gpu import machine as g
from cost_model.gpu.fills import OUTSIDE, UNIT
from cost_model.gpu.kernels import (
    PRIVATE,
    KernelWork,
    Work,
    contiguous,
    merged,
    sectors,
    transfers,
    unrolls,
    wavefronts,
)
from cost_model.gpu.latency import GpuAnalyticLatency, KernelCost, WorkCost
from cost_model.gpu.machine import GpuMachine
from cost_model.gpu.registers import accumulators, held, operands

N_ACCESSES = 4  # of the main statement: what it writes, then what it reads, in the order of the text
N_FILLS = 3  # of the main kernel, in the order of the text


@dataclass(frozen=True, eq=False)
class FeatureContext:
    """The inputs of the formulas: `main` is the kernel with the dominant statement `cost`."""

    latency: GpuAnalyticLatency
    machine: GpuMachine
    main: KernelCost
    cost: WorkCost

    @property
    def kernel(self) -> KernelWork:
        return self.main.kernel

    @property
    def work(self) -> Work:
        return self.cost.work

    @property
    def warp(self) -> int:
        return self.machine.facts.warp

    @cached_property
    def all_costs(self) -> tuple[WorkCost, ...]:
        return tuple(c for k in self.latency.kernels for c in k.costs)

    @cached_property
    def flops(self) -> Expr:
        return sum_of(multiply(c.work.statement.executions, float(c.work.statement.ops.flops)) for c in self.all_costs)

    @cached_property
    def result(self) -> Work:
        """The last statement of the main kernel that writes to global memory."""
        found = [w for w in self.kernel.works if w.statement.write.buffer.scope in OUTSIDE]
        return found[-1] if found else self.work

    @cached_property
    def accesses(self) -> tuple[tuple[Expr, ...], ...]:
        found = [a for a in self.work.statement.accesses if a.buffer.scope not in PRIVATE][:N_ACCESSES]
        return tuple(_access_values(self, a) for a in found)

    @cached_property
    def fills(self) -> tuple[tuple[Expr, ...], ...]:
        found = [c for c in self.main.costs if c.work.fill is not None][:N_FILLS]
        return tuple(_fill_values(self, c) for c in found)


Columns = list[Column[FeatureContext]]


def _operation_columns() -> Columns:
    def count(kind: str) -> Value[FeatureContext]:
        return lambda c: sum_of(
            multiply(x.work.statement.executions, float(x.work.statement.ops.count(kind))) for x in c.all_costs
        )

    return [column(kind, "operations", "sum over statements of executions * count", count(kind)) for kind in KINDS]


def _kernel_columns() -> Columns:
    """Blocks, threads and resident blocks and warps of the main kernel."""

    def resident_warps(c: FeatureContext) -> Expr:
        return multiply(multiply(c.main.occupancy, real(c.kernel.turns)), c.kernel.warps(c.warp))

    def lane_waste(c: FeatureContext) -> Expr:
        return divide(c.kernel.warps(c.warp) * c.warp, c.kernel.threads)

    def share(c: FeatureContext) -> Expr:
        threads = multiply(resident_warps(c), float(c.warp))
        return divide(threads, float(c.machine.facts.max_threads_per_multiprocessor))

    def waves(c: FeatureContext) -> Expr:
        at_a_time = multiply(c.main.occupancy, real(c.kernel.turns))
        return divide(c.kernel.blocks, multiply(at_a_time, float(c.machine.facts.multiprocessors)))

    def efficiency(c: FeatureContext) -> Expr:
        return divide(c.kernel.blocks, multiply(c.main.per_multiprocessor, float(c.machine.facts.multiprocessors)))

    grid = [column(k.value, "blocks", f"loop bound to {k.value}", _bound(k, "grid")) for k in BLOCKS]
    block = [column(k.value, "threads", f"loop bound to {k.value}", _bound(k, "block")) for k in THREADS]
    return [
        *grid,
        *block,
        column("blocks", "blocks", "product over the grid", lambda c: c.kernel.blocks),
        column("threads", "threads", "product over the block", lambda c: c.kernel.threads),
        column("lane_waste", "ratio", "threads of whole warps / threads", lane_waste),
        column("vthreads", "threads", "strided pieces of a thread's tile", _vthreads),
        column("stages", "iterations", "for which the shared buffers of a pipeline have room", _stages),
        column("held", "registers", "of what the next iteration of a pipeline needs", lambda c: held(c.kernel)),
        column("registers", "registers", "estimate for a thread", lambda c: c.main.registers),
        column("shared_bytes", "bytes", "shared arrays of a block", lambda c: c.kernel.shared),
        column("occupancy", "blocks", "resident on a multiprocessor", lambda c: c.main.occupancy),
        column("resident_blocks", "blocks", "that the compiler is to keep registers for", lambda c: c.kernel.resident),
        column("cluster", "blocks", "that load tiles for each other", lambda c: c.kernel.cluster),
        column("turns", "blocks", "whose work one does, by a warpgroup each", lambda c: c.kernel.turns),
        column("resident_warps", "warps", "occupancy * turns * warps of a block", resident_warps),
        column("occupancy_share", "ratio", "resident threads / the most that a multiprocessor keeps", share),
        column("waves", "waves", "blocks / (multiprocessors * occupancy * turns)", waves),
        column("wave_efficiency", "ratio", "blocks / (multiprocessors * blocks of the busiest one)", efficiency),
        column("barriers", "barriers", "passed by a thread", lambda c: c.kernel.barriers),
        column("shuffles", "values", "that a thread gets from others of its warp", lambda c: c.kernel.shuffles),
        column("waste", "ratio", "points that threads compute / points of the result", _waste),
    ]  # fmt: skip


def _bound(kind: object, side: str) -> Value[FeatureContext]:
    kinds: tuple[object, ...] = BLOCKS if side == "grid" else THREADS
    place = kinds.index(kind)
    return lambda c: (c.kernel.grid if side == "grid" else c.kernel.block)[place]


def _stages(c: FeatureContext) -> Expr:
    pipelines = (w.pipeline for w in c.kernel.works)
    return next((p.stages for p in pipelines if p is not None), UNIT)


def _vthreads(c: FeatureContext) -> Expr:
    """Unrolled loops of the result that step further along a dimension than its threads do."""
    work = c.result
    threads = [x.var for x in work.statement.loops if x.kind in THREADS]
    result: Expr = ONE
    for index in work.statement.write.index:
        form = linear(index)
        steps = [form.coefficient(v) for v in threads if form.coefficient(v) is not Const(0)]
        for loop in work.own:
            step = form.coefficient(loop.var)
            if unrolls(loop) and steps and not (isinstance(step, Const) and step.value == 0):
                result = multiply(result, where(real(step) > real(steps[0]), loop.bound, 1.0))
    return result


def _waste(c: FeatureContext) -> Expr:
    s = c.result.statement
    return divide(product([x.bound for x in s.loops]), maximum(1.0, product(list(s.write.buffer.shape))))


def _work_columns() -> Columns:
    """The main statement, as a thread executes it."""

    def reduce_steps(c: FeatureContext) -> Expr:
        return product([x.bound for x in c.work.own if unrolls(x) and x.reduce])

    def reuse(c: FeatureContext) -> Expr:
        return divide(accumulators(c.work), maximum(1.0, operands(c.work)))

    def arithmetic_share(c: FeatureContext) -> Expr:
        return divide(c.cost.slots, maximum(1.0, c.cost.instructions))

    return [
        column("executions", "iterations", "of the main statement by a thread", lambda c: c.work.executions),
        column("unrolled", "copies", "of it in the code", lambda c: c.work.unrolled),
        column("steps", "iterations", "executions / unrolled", lambda c: c.work.steps),
        column("unrolled_reduction", "steps", "of the reduction in the unrolled code", reduce_steps),
        column("accumulators", "registers", "of a thread's own arrays", lambda c: accumulators(c.work)),
        column("operands", "registers", "read by a step of the reduction", lambda c: operands(c.work)),
        column("reuse", "ratio", "accumulators / operands, the intensity of a thread", reuse),
        column("chains", "chains", "independent accumulations of a thread", lambda c: c.cost.chains),
        column("slots", "slots", "arithmetic of a thread", lambda c: c.cost.slots),
        column("instructions", "instructions", "of a thread", lambda c: c.cost.instructions),
        column("arithmetic_share", "ratio", "slots / instructions", arithmetic_share),
        column("all_copies", "copies", "in the code of the kernel", lambda c: sum_of(w.copies for w in c.kernel.works)),
    ]


ACCESS_FORMULAS: tuple[tuple[str, str, str], ...] = (
    ("is_shared", "bool", "in shared memory"),
    ("is_write", "bool", "written"),
    ("transfers", "instructions", "of a thread"),
    ("width", "elements", "of one instruction"),
    ("stride_x", "elements", "from thread to thread along x"),
    ("stride_y", "elements", "from thread to thread along y"),
    ("contiguous", "elements", "that a thread touches in unrolled code"),
    ("sectors", "sectors", "of an instruction of a warp, 0 in shared memory"),
    ("wavefronts", "cycles", "of an instruction of a warp, 0 in global memory"),
    ("unique_bytes", "bytes", "touched by the kernel"),
    ("block_bytes", "bytes", "touched by a block"),
)


def _access_values(c: FeatureContext, access: Access) -> tuple[Expr, ...]:
    work, size = c.work, float(access.buffer.itemsize)
    stride_x, stride_y, _ = work.strides(access)
    is_shared = access.buffer.scope is Scope.SHARED
    return (
        real(float(is_shared)),
        real(float(access.kind != "read")),
        transfers(work, access),
        real(merged(work, access)),
        real(stride_x),
        real(stride_y),
        real(contiguous(work, access)),
        ZERO if is_shared else sectors(c.kernel, work, access, c.warp),
        wavefronts(c.kernel, work, access, c.warp) if is_shared else ZERO,
        ZERO if is_shared else multiply(access.elements[0], size),
        multiply(access.elements[work.first], size),
    )


FILL_FORMULAS: tuple[tuple[str, str, str], ...] = (
    ("elements", "elements", "of the shared buffer"),
    ("vector", "elements", "that a thread moves at a time"),
    ("width", "elements", "of one instruction"),
    ("trips", "iterations", "of a fill"),
    ("run", "elements", "contiguous in global memory"),
    ("sectors", "sectors", "of a load of a warp"),
    ("wavefronts", "cycles", "of a store of a warp"),
    ("from_l2", "bytes", "by all blocks"),
    ("row", "elements", "last extent of the shared buffer"),
)


def _fill_values(c: FeatureContext, cost: WorkCost) -> tuple[Expr, ...]:
    work, fill = cost.work, cost.work.fill
    assert fill is not None
    outside = [a for a in work.accesses(*OUTSIDE) if a.kind == "read"]
    run = fill.run(outside[0].buffer.name) if outside else UNIT
    return (
        real(product(list(fill.shape))),
        real(fill.vector),
        real(fill.width),
        real(fill.trips),
        real(run),
        sectors(c.kernel, work, outside[0], c.warp) if outside else ZERO,
        wavefronts(c.kernel, work, work.statement.write, c.warp),
        cost.l2,
        real(fill.shape[-1]) if fill.shape else ONE,
    )


def _traffic_columns() -> Columns:
    """Arithmetic intensity at the levels of memory, over all kernels."""

    def l2(c: FeatureContext) -> Expr:
        return sum_of(x.l2 for x in c.all_costs)

    def dram(c: FeatureContext) -> Expr:
        return multiply(sum_of(k.dram for k in c.latency.kernels), c.machine.dram_bytes_s)

    def shared(c: FeatureContext) -> Expr:
        wavefront = float(g.WAVEFRONT)
        return sum_of(
            multiply(multiply(x.shared, k.kernel.blocks), wavefront) for k in c.latency.kernels for x in k.costs
        )

    def requests(c: FeatureContext) -> Expr:
        return sum_of(multiply(x.requests, k.kernel.blocks) for k in c.latency.kernels for x in k.costs)

    return [
        column("l2_bytes", "bytes", "between L2 and the multiprocessors", l2),
        column("dram_bytes", "bytes", "between DRAM and L2", dram),
        column("shared_traffic", "bytes", "shared memory's wavefronts * 128", shared),
        column("requests", "cycles", "wavefronts of global memory", requests),
        column("l2_intensity", "flop/byte", "flops / l2_bytes", lambda c: divide(c.flops, maximum(1.0, l2(c)))),
        column("dram_intensity", "flop/byte", "flops / dram_bytes", lambda c: divide(c.flops, maximum(1.0, dram(c)))),
        column(
            "shared_intensity", "flop/byte", "flops / shared_traffic", lambda c: divide(c.flops, add(1.0, shared(c)))
        ),
    ]


def _latency_columns() -> Columns:
    """The analytic latency and its terms; see `cost_model.gpu.latency`."""

    def pipe(n: int) -> Callable[[FeatureContext], Expr]:
        return lambda c: multiply(c.main.pipes[n], c.main.per_multiprocessor)

    def others(c: FeatureContext) -> Expr:
        return sum_of(k.seconds for k in c.latency.kernels if k is not c.main)

    def fills(c: FeatureContext) -> Expr:
        return sum_of(x.cycles for x in c.main.costs if x.work.fill is not None)

    def waiting(c: FeatureContext) -> Expr:
        return maximum_of(x.latency for x in c.main.costs)

    names = ("arithmetic", "issue", "memory", "port")
    return [
        column("kernels", "kernels", "launched one after another", lambda c: float(len(c.latency.kernels))),
        column("statements", "statements", "stores of all kernels", lambda c: float(len(c.all_costs))),
        *[
            log_column(f"cycles_{n}", f"cycles of the busiest multiprocessor's {n}", pipe(i))
            for i, n in enumerate(names)
        ],
        log_column("cycles_path", "cycles of a block that is alone", lambda c: c.main.path),
        log_column("cycles_waiting", "cycles of the statement whose warp takes longest", waiting),
        log_column("cycles_main", "cycles of the main statement in a block", lambda c: c.cost.cycles),
        log_column("cycles_fills", "cycles of the fills in a block", fills),
        log_column("seconds_on_chip", "of the main kernel", lambda c: c.main.on_chip),
        log_column("seconds_l2", "of the main kernel", lambda c: c.main.l2),
        log_column("seconds_dram", "of the main kernel", lambda c: c.main.dram),
        log_column("seconds_others", "of the other kernels", others),
        log_column(ANALYTIC, "the analytic latency in seconds", lambda c: c.latency.seconds),
    ]


_ACCESSES: Columns = columns_of("access", N_ACCESSES, ACCESS_FORMULAS, lambda c: c.accesses)
_FILLS: Columns = columns_of("fill", N_FILLS, FILL_FORMULAS, lambda c: c.fills)
_ALL: tuple[Column[FeatureContext], ...] = (
    *_operation_columns(),
    *_kernel_columns(),
    *_work_columns(),
    *_ACCESSES,
    *_FILLS,
    *_traffic_columns(),
    *_latency_columns(),
)
# Logarithms last, as `features.evaluate` wants it, and the analytic latency the last of them.
COLUMNS: tuple[Column[FeatureContext], ...] = tuple(sorted(_ALL, key=lambda c: c[0].unit == LOG))
GPU_FEATURES: tuple[Feature, ...] = tuple(feature for feature, _ in COLUMNS)


def gpu_symbolic(latency: GpuAnalyticLatency, machine: GpuMachine) -> tuple[Expr, ...]:
    """The closed form of every feature, before squashing."""
    main, cost = dominant(latency)
    context = FeatureContext(latency, machine, main, cost)
    return tuple(value(context) for _, value in COLUMNS)


def dominant(latency: GpuAnalyticLatency) -> tuple[KernelCost, WorkCost]:
    """The statement with the most arithmetic, and its kernel."""
    pairs = [(k, c) for k in latency.kernels for c in k.costs]
    return pairs[heaviest([multiply(c.work.statement.executions, _weight(c)) for _, c in pairs])]


def _weight(cost: WorkCost) -> float:
    """Arithmetic of one execution; a fill counts for what it computes, not for its addresses."""
    counts: Sequence[tuple[str, int]] = cost.work.statement.ops.counts
    slots = sum(g.SLOTS[kind] * n for kind, n in counts if cost.work.fill is None or kind.startswith("float"))
    return slots + 0.01
