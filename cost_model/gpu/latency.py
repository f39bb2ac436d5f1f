"""Analytic latency of a candidate on a GPU: seconds, in closed form.

For every kernel, with cycles of one multiprocessor:

    occupancy   blocks that are resident together: limited by threads, shared memory, registers, and their number
    rounds      ceil(blocks of the busiest multiprocessor / occupancy)
    path        sum over the statements of a block of max(latency of one warp, work of all its warps), and barriers;
                in a pipeline of S stages max(computation, work of fills, their latency / (S - 1)), and the first fill
                and shuffles; what passes through registers is loaded and stored in the same iteration, and between
                borders one element after the other
    work        blocks of the busiest multiprocessor * max over pipes (arithmetic, issue, memory instructions, L2 port)
    on chip     max(work, rounds * path)
    seconds     launch + max(on chip / clock, L2 bytes / L2 rate, DRAM bytes / DRAM rate) + 0.15 * (the others)

`path` is what warps cannot hide: when only one block is resident, its fills and its arithmetic take turns; with more
of them `work` is the limit. A warp alone takes as long as its instructions (with a gap after each that no other warp
fills), its chain of dependent accumulations and the loads it waits for, once for each iteration of the unrolled code:
a few at a time where a loop is short, more often where an unrolled reduction reads global memory.

What comes from L2 and from DRAM: `cost_model.gpu.traffic`.

The terms are those of the analytic models in Pruner (Qiao et al., ASPLOS 2025: wave efficiency, memory transactions,
compute and memory penalties) and of Ansor-AF (Canesche et al., ICS 2024: intensity at block and thread level,
instruction- and warp-level parallelism, occupancy). Constants are in `cost_model.gpu.constants` and `machine`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    add,
    ceil,
    divide,
    in_pairs,
    maximum,
    maximum_of,
    minimum,
    multiply,
    product_of,
    real,
    subtract,
    sum_of,
    where,
)
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Cast, Const, Expr, Load, binary, ceildiv, imax, imin, product, select
from autosched.ir.instructions.dots import Dot
from autosched.ir.instructions.matrices import MATRICES
from autosched.ir.instructions.tiles import PIECES, REGISTERS, REGISTERS_OF_COPIES, SPARE_REGISTERS, WARPGROUP, WARPS
from autosched.ir.stmt import Scope
from autosched.ir.visit import free_vars, loads, subexpressions
from cost_model.analysis.access import Access
from cost_model.analysis.operations import kind_of, recurrence_chain
from cost_model.analysis.statements import KNOWN_NESTS, Analysis
from cost_model.gpu import machine as g
from cost_model.gpu import matrices
from cost_model.gpu.clusters import loaded_together, waiting_for_cluster
from cost_model.gpu.constants import CardConstants, Constant
from cost_model.gpu.fills import FALSE, OUTSIDE, Fill, divides
from cost_model.gpu.kernels import (
    PRIVATE,
    KernelWork,
    Work,
    elements,
    is_product,
    kernels,
    sectors,
    transfers,
    unrolls,
    wavefronts,
)
from cost_model.gpu.machine import GpuMachine
from cost_model.gpu.registers import accumulators, held, operand_waits, operands
from cost_model.gpu.traffic import Traffic, dram_bytes, l1_room, l2_bytes, tile_traffic, traffic_of, ways

BASE_REGISTERS = 24  # addresses, counters, numbers of thread and block


@dataclass(frozen=True, eq=False)
class WorkCost:
    """One statement. `arithmetic`, `issue`, `memory`, `port`: cycles of a block; `latency`: cycles of a warp alone."""

    work: Work
    slots: Expr  # of a thread
    instructions: Expr  # of a thread
    arithmetic: Expr
    issue: Expr
    shared: Expr  # wavefronts of a block
    requests: Expr  # the same of global memory
    traffic: tuple[Traffic, ...]
    port: Expr
    chains: Expr
    latency: Expr

    @property
    def l2(self) -> Expr:
        """Bytes, all blocks."""
        return sum_of(t.l2 for t in self.traffic)

    @property
    def memory(self) -> Expr:
        return add(self.shared, self.requests)

    @property
    def flow(self) -> Expr:
        """Cycles of a block where nothing has to be waited for."""
        return maximum_of([self.arithmetic, self.issue, self.memory, self.port])

    @property
    def cycles(self) -> Expr:
        """Of a block that has the multiprocessor for itself."""
        return maximum_of([self.arithmetic, self.issue, self.memory, self.port, self.latency])


@dataclass(frozen=True, eq=False)
class KernelCost:
    """One kernel; `registers`, `occupancy` are integer, all else is real."""

    kernel: KernelWork
    costs: tuple[WorkCost, ...]
    registers: Expr  # of a thread
    occupancy: Expr  # blocks
    per_multiprocessor: Expr  # blocks that the busiest one runs
    path: Expr
    pipes: tuple[Expr, Expr, Expr, Expr]  # arithmetic, issue, memory, port: cycles of a block
    on_chip: Expr  # seconds
    l2: Expr  # seconds
    dram: Expr  # seconds
    seconds: Expr


@dataclass(frozen=True, eq=False)
class GpuAnalyticLatency:
    kernels: tuple[KernelCost, ...]
    seconds: Expr


def gpu_analytic_latency(analysis: Analysis, machine: GpuMachine) -> GpuAnalyticLatency:
    """The latency of all kernels, one after another, in closed form."""
    costs = tuple(kernel_cost(k, machine) for k in kernels(analysis))
    return GpuAnalyticLatency(costs, sum_of(c.seconds for c in costs))


@lru_cache(maxsize=KNOWN_NESTS)
def kernel_cost(kernel: KernelWork, machine: GpuMachine) -> KernelCost:
    """The latency of one kernel, in closed form; looked at once for all sketches that have it."""
    facts, k = machine.facts, machine.constants
    registers = register_estimate(kernel, machine)
    resident = occupancy(kernel, registers, machine)
    costs = tuple(_work_cost(kernel, w, resident, machine) for w in kernel.works)
    share = real(ceildiv(kernel.blocks, facts.multiprocessors))
    moved = [t for c in costs for t in c.traffic]
    from_l2 = l2_bytes(moved, l1_room(kernel, resident, facts))
    exchanged = multiply(kernel.shuffles, kernel.warps(facts.warp))  # each takes a cycle of the pipe of shared memory
    pipes = (
        sum_of(c.arithmetic for c in costs),
        add(sum_of(c.issue for c in costs), multiply(exchanged, divide(k.issue, float(g.SCHEDULERS)))),
        add(sum_of(c.memory for c in costs), exchanged),
        divide(from_l2, multiply(k.l2_port, real(kernel.blocks))),
    )
    meetings = add(multiply(kernel.barriers, k.barrier_latency), multiply(kernel.shuffles, k.shuffle_latency))
    rounds = ceil(divide(share, multiply(resident, real(kernel.turns))))
    turns = rounds if kernel.is_persistent else ONE
    begun = add(k.block_latency, multiply(2.0, waiting_for_cluster(kernel, k)))  # and ended, where blocks meet again
    alone, ring = _path(kernel, costs, k, turns)
    path = add(add(alone, meetings), divide(begun, turns))
    busy = multiply(share, maximum(maximum_of([*pipes, where(kernel.turns > 1, ring, 0.0)]), k.block_cycles))
    on_chip = divide(_overlapped([busy, multiply(rounds, path)], k.overlap_loss), machine.clock_hz)
    l2 = divide(from_l2, machine.l2_bytes_s(kernel.has_tile_pipeline))
    dram = divide(dram_bytes(moved, facts.l2_bytes), machine.dram_bytes_s)
    seconds = add(_overlapped([on_chip, l2, dram], k.overlap_loss), k.launch_s)
    return KernelCost(kernel, costs, registers, resident, share, path, pipes, on_chip, l2, dram, seconds)


def _path(
    kernel: KernelWork, costs: tuple[WorkCost, ...], constants: CardConstants, together: Expr
) -> tuple[Expr, Expr]:
    """Cycles of a block alone, and of these what it uses a ring in: statements take turns, but the fills of a pipeline
    go on beside what is computed. So many blocks' work `together` waits for one first fill."""
    piped = [c for c in costs if c.work.pipeline is not None]
    fills, computed = [c for c in piped if c.work.is_fill], [c for c in piped if not c.work.is_fill]
    in_turns = sum_of(c.cycles for c in costs)
    pipeline = fills[0].work.pipeline if fills else None
    if pipeline is None:
        return in_turns, ZERO
    flow, work = sum_of(c.flow for c in fills), sum_of(c.cycles for c in computed)
    # all loads of an iteration are on their way together
    by_tiles = kernel.has_tile_pipeline and not kernel.has_copies
    latency: Expr = real(constants.tile_latency if by_tiles else constants.global_latency)
    latency = add(latency, waiting_for_cluster(kernel, constants))  # both blocks have to be done with a place
    waiting = add(flow, multiply(pipeline.rounds, latency))
    if (
        kernel.has_tile_pipeline
    ):  # a place is loaded, computed with, and free again: as many of them take turns as there are
        shared = multiply(sum_of(c.port for c in fills), divide(constants.l2_port, constants.l2_tiles))
        loaded = add(shared, multiply(pipeline.rounds, latency))
        ahead = divide(add(loaded, work), maximum(1.0, pipeline.stages))
    else:
        # Copies of several iterations are on their way; what passes through registers is loaded in one, stored in it.
        is_held = in_pairs(operator.or_, [c.work.is_held for c in fills], FALSE)
        ahead = divide(waiting, where(is_held, 1.0, maximum(1.0, subtract(pipeline.stages, 1.0))))
    beside = [add(work, sum_of(map(_beside, fills))), flow, ahead]
    first = divide(waiting, multiply(maximum(1.0, pipeline.iterations), together))  # nothing to do meanwhile
    others = sum_of(c.cycles for c in costs if c.work.pipeline is None and not c.work.is_tile)
    return where(pipeline.stages > 1, add(add(maximum_of(beside), first), others), in_turns), maximum_of(beside)


def _beside(fill: WorkCost) -> Expr:
    """Cycles of a block that a pipeline's fill takes from what is computed: its instructions. One that passes through
    registers and looks at borders has branches, in which a thread waits for one load after the other, as ever."""
    if fill.work.fill is None:
        return fill.issue
    waits = fill.work.is_held & (fill.work.fill.borders >= 1)
    return where(waits, fill.cycles, fill.issue)


def _overlapped(limits: list[Expr], loss: Constant) -> Expr:
    return add(multiply(maximum_of(limits), subtract(1.0, loss)), multiply(sum_of(limits), loss))


def register_estimate(kernel: KernelWork, machine: GpuMachine) -> Expr:
    """32-bit registers that a thread needs without spilling, integer."""
    result = in_pairs(imax, [accumulators(work) + operands(work) for work in kernel.works], Const(0, INDEX))
    return result + held(kernel) + (SPARE_REGISTERS if kernel.has_tile_pipeline else BASE_REGISTERS)


def register_room(kernel: KernelWork, machine: GpuMachine) -> Expr:
    """Registers that a thread may have so that as many blocks fit into a multiprocessor as should, integer."""
    facts = machine.facts
    threads = ceildiv(kernel.launched, facts.warp) * facts.warp
    share = Const(facts.registers_per_multiprocessor, INDEX) // (threads * kernel.resident)
    room = imin(share // g.REGISTER_UNIT * g.REGISTER_UNIT, Const(facts.max_registers_per_thread, INDEX))
    if kernel.has_tile_pipeline:  # a block that is alone gives out anew what those that load do not need
        alone = binary("eq", kernel.resident, Const(1, INDEX))
        for groups, (count, _) in (REGISTERS_OF_COPIES if kernel.has_copies else REGISTERS).items():
            here = alone & binary("eq", kernel.threads * kernel.turns, Const(groups * WARPGROUP, INDEX))
            room = select(here, Const(count, INDEX), room)
    return room


def occupancy(kernel: KernelWork, registers: Expr, machine: GpuMachine) -> Expr:
    """Blocks that a multiprocessor keeps at a time, at least one, integer."""
    facts = machine.facts
    warps = ceildiv(kernel.launched, facts.warp)
    given = ceildiv(imin(registers, register_room(kernel, machine)), g.REGISTER_UNIT) * g.REGISTER_UNIT
    limits = [
        Const(facts.max_blocks_per_multiprocessor, INDEX),
        Const(facts.max_threads_per_multiprocessor, INDEX) // (warps * facts.warp),
        Const(facts.shared_per_multiprocessor, INDEX) // (kernel.shared + g.SHARED_RESERVED),
        # each scheduler has a part of the registers for the warps that it starts
        Const(facts.registers_per_multiprocessor // g.SCHEDULERS, INDEX)
        // (imax(given, Const(1, INDEX)) * facts.warp)
        * g.SCHEDULERS
        // warps,
    ]
    result = limits[0]
    for limit in limits[1:]:
        result = imin(result, limit)
    result = imax(result, Const(1, INDEX))
    return imin(result, kernel.resident) if kernel.is_persistent else result


def _work_cost(kernel: KernelWork, work: Work, resident: Expr, machine: GpuMachine) -> WorkCost:
    if work.is_tile:
        return _tile_cost(kernel, work, resident, machine)
    facts, k = machine.facts, machine.constants
    warps = real(kernel.warps(facts.warp))
    outside, shared = work.accesses(*OUTSIDE), work.accesses(Scope.SHARED)
    slots, arithmetic = _arithmetic(kernel, work, machine)
    moved = {id(a): multiply(transfers(work, a), ways(a)) for a in (*outside, *shared)}
    overhead = multiply(work.steps, k.step_instructions)
    if work.fill is not None:
        overhead = add(overhead, _filling(kernel, work, work.fill, k))
        if work.pipeline is not None:  # an asynchronous copy is one instruction, others a load and a store
            by_thread = where(work.is_held | (work.pipeline.stages <= 1), 1.0, 0.0)
            stored = sum_of(moved[id(a)] for a in shared)
            overhead = subtract(overhead, multiply(stored, subtract(1.0, by_thread)))
    instructions = add(add(slots, overhead), sum_of(moved.values()))
    lanes = facts.fma_per_cycle_per_multiprocessor / facts.warp
    issue = multiply(multiply(instructions, warps), divide(k.issue, float(g.SCHEDULERS)))
    bank_waits = multiply(
        warps, sum_of(multiply(moved[id(a)], wavefronts(kernel, work, a, facts.warp)) for a in shared)
    )
    asked = (multiply(moved[id(a)], _request(kernel, work, a, facts.warp)) for a in outside)
    requests = multiply(multiply(warps, k.global_wavefronts), sum_of(asked))
    moved_outside = tuple(traffic_of(kernel, work, a, resident, facts) for a in outside)
    chains, chain_cycles = _chains(work, machine)
    waiting = multiply(_waits(work, instructions, k), _longest_load(work, k))
    latency = add(maximum(multiply(instructions, multiply(k.alone, 4.0 / lanes)), chain_cycles), waiting)
    port = multiply(sum_of(t.l2 for t in moved_outside), divide(divide(1.0, k.l2_port), kernel.blocks))
    return WorkCost(
        work, slots, instructions, arithmetic, issue, bank_waits, requests, moved_outside, port, chains, latency
    )


def _request(kernel: KernelWork, work: Work, access: Access, warp: int) -> Expr:
    """Wavefronts of a warp's access to global memory, real. The results of a warpgroup are in eight rows for each warp:
    a H200 takes a wavefront for every line, and 1.4 times as long for a product of 1024 terms as with tiles."""
    found = maximum(1.0, multiply(sectors(kernel, work, access, warp), g.SECTOR / g.WAVEFRONT))
    return maximum(found, sectors(kernel, work, access, warp, g.WAVEFRONT)) if kernel.has_tile_pipeline else found


def _tile_cost(kernel: KernelWork, work: Work, resident: Expr, machine: GpuMachine) -> WorkCost:
    """Of tiles that the copy engine loads: no thread's instructions, but shared memory and the way from L2. Where a
    warpgroup copies them each of its warps has a scheduler, but nobody who fills the gaps between instructions."""
    element = float(work.statement.itemsize)
    moved = multiply(multiply(work.executions, real(kernel.threads)), element)  # one thread of the block executes it
    [outside] = work.accesses(*OUTSIDE)
    fetched = multiply(moved, where(loaded_together(kernel, work), machine.constants.multicast_share, 1.0))
    traffic = tile_traffic(kernel, work, outside, multiply(fetched, real(kernel.blocks)), resident, machine.facts)
    port = divide(fetched, machine.constants.l2_port)
    written = multiply(moved, 1.0 / g.WAVEFRONT)
    if not work.piece:
        return WorkCost(work, ZERO, ZERO, ZERO, ZERO, written, ZERO, (traffic,), port, ONE, ZERO)
    k, pieces = machine.constants, multiply(moved, 1.0 / (work.piece * WARPGROUP))  # of a thread
    each = add(k.fill_instructions, g.BORDER_INSTRUCTIONS + (1.0 if work.piece in PIECES else 2.0))
    instructions = multiply(pieces, each)
    issue = multiply(instructions, k.alone)
    of_warp = multiply(pieces, WARPS * max(1.0, work.piece * machine.facts.warp / g.WAVEFRONT))  # wavefronts
    written, asked = maximum(written, of_warp), multiply(of_warp, k.global_wavefronts)
    return WorkCost(work, ZERO, instructions, ZERO, issue, written, asked, (traffic,), port, ONE, ZERO)


def _filling(kernel: KernelWork, work: Work, fill: Fill, constants: CardConstants) -> Expr:
    """Instructions of a thread that a fill takes beside loads and stores."""
    walked = kernel.threads * fill.vector
    each: Expr = real(constants.fill_instructions)
    for n in range(1, len(fill.shape)):
        first = binary("eq", product(list(fill.shape[:n])), Const(1, INDEX))  # there is nothing to divide
        fixed = first | divides(product(list(fill.shape[n:])), walked) | (fill.trips <= 1)
        each = add(each, where(fixed, 0.0, g.DIVISION_INSTRUCTIONS))
    each = add(each, multiply(fill.borders, g.BORDER_INSTRUCTIONS))
    copies = multiply(divide(work.executions, fill.vector), each)
    if work.pipeline is None:
        return copies
    rounds = multiply(work.pipeline.rounds, constants.iteration_instructions)
    return add(copies, rounds)


def _slots(work: Work, machine: GpuMachine) -> float:
    statement = work.statement
    counted = [(k, n) for k, n in statement.ops.counts if work.fill is None or k.startswith("float")]
    added_up = any(isinstance(e, Dot) for value in statement.store.values for e in subexpressions(value))
    share = {"int_mad": g.DOT_SHARE} if added_up else {}
    slots = sum(g.SLOTS[kind] * share.get(kind, 1.0) * n for kind, n in counted)
    slots -= _hoisted(work)
    return slots * (machine.double_slots if statement.itemsize == 8 else 1.0)


def _hoisted(work: Work) -> float:
    """Slots of what is the same in all that the thread does and is computed before; a division by such a number, which
    the block has stored, is a product (`autosched.lower.passes.divide_once`)."""
    own = {x.var for x in work.own}
    near = {a.buffer.name for a in work.accesses(*PRIVATE, Scope.SHARED)} - set(work.statement.store.buffers)

    def is_still(e: Expr) -> bool:
        return bool(loads(e)) and not free_vars(e) & own and all(x.buffer in near for x in loads(e))

    found = 0.0
    for e in dict.fromkeys(e for value in work.statement.store.values for e in subexpressions(value)) if own else ():
        kind = kind_of(e)
        if kind.startswith("float") and is_still(e):
            found += g.SLOTS[kind]
        elif kind == "float_divmod" and is_still(e.children[1]):
            found += g.SLOTS[kind] - g.SLOTS["float_mul"]
    return found


def _conversions(work: Work) -> tuple[Expr, float]:
    """(slots of a thread for elements that it converts as it loads them, what the operations count for that at each
    execution): an element that several unrolled copies use is loaded and converted once."""
    if work.fill is not None:
        return ZERO, 0.0
    nodes = dict.fromkeys(e for value in work.statement.store.values for e in subexpressions(value))
    slots: dict[str, float] = {}
    for node in nodes:
        if isinstance(node, Cast) and isinstance(node.a, Load):
            kind = "float_other" if DTYPES[node.dtype].is_float else "int_other"
            slots[node.a.buffer] = slots.get(node.a.buffer, 0.0) + g.SLOTS[kind]
    read = [a for a in work.accesses(*OUTSIDE, Scope.SHARED, *PRIVATE) if a.kind != "write" and a.buffer.name in slots]
    total = sum_of(multiply(elements(work, a), slots[a.buffer.name] / a.count) for a in read)
    return total, sum(slots.values())


def _arithmetic(kernel: KernelWork, work: Work, machine: GpuMachine) -> tuple[Expr, Expr]:
    """(slots of a thread, cycles of a block)."""
    facts = machine.facts
    row = MATRICES.get(work.statement.store.matrix)
    if row is not None:
        cycles = matrices.tensor_cycles(work.executions, real(kernel.threads), machine.matrix_rate(row))
        converted = matrices.conversions(work.own, work.executions, row)
        return add(multiply(work.executions, matrices.issued(work.statement, work.own)), converted), cycles
    converted, every_time = _conversions(work)
    slots = add(multiply(work.executions, _slots(work, machine) - every_time), converted)
    slots = multiply(slots, operand_waits(work))
    lanes = facts.fma_per_cycle_per_multiprocessor / facts.warp
    return slots, multiply(multiply(slots, real(kernel.warps(facts.warp))), 1.0 / lanes)


def _chains(work: Work, machine: GpuMachine) -> tuple[Expr, Expr]:
    """(independent accumulations, or lines of a recurrence, of a thread; cycles of the dependent ones)."""
    if is_product(work):
        return matrices.product_chains(work.statement, work.own, work.executions, machine)
    write, along = work.statement.write, recurrence_chain(work.statement.store)
    chains = product_of(x.trips for x in work.moving(write) if unrolls(x))
    if along:
        return chains, multiply(divide(work.executions, chains), real(along * g.ARITHMETIC_LATENCY))
    if not work.statement.updates or work.statement.store.atomic:  # nobody waits for an atomic update
        return ONE, ZERO
    step, k = real(g.ARITHMETIC_LATENCY), machine.constants
    if write.buffer.scope not in PRIVATE:
        step = add(step, k.shared_latency if write.buffer.scope is Scope.SHARED else k.global_latency)
    return chains, multiply(divide(work.executions, chains), step)


def _waits(work: Work, instructions: Expr, constants: CardConstants) -> Expr:
    """How often a thread waits for loads: for each iteration of the unrolled code, several at a time where that is
    short and its loop goes on; more often where an unrolled reduction reads global memory, since registers cannot hold
    what all its steps will need, and for each copy of a fill with borders, which are branches."""
    looped = [x for x in work.own if not unrolls(x)]
    if work.fill is not None:
        together = where(work.fill.borders >= 1, 1.0, minimum(g.LOADS_IN_FLIGHT, work.fill.trips))
        return divide(divide(work.executions, work.fill.vector), together)
    if work.statement.updates and work.accesses(*OUTSIDE):
        unrolled = product_of(x.trips for x in work.own if unrolls(x) and x.reduce)
        return multiply(work.steps, maximum(1.0, divide(unrolled, constants.loads_ahead)))
    if not looped:
        return work.steps
    together = minimum(g.LOADS_IN_FLIGHT, looped[-1].trips)
    short = divide(instructions, maximum(1.0, work.steps)) <= real(96.0)
    return divide(work.steps, where(short, together, 1.0))


def _longest_load(work: Work, constants: CardConstants) -> Constant:
    statement = work.statement
    waited_for = statement.accesses[1:] if statement.store.atomic else statement.accesses
    scopes = {a.buffer.scope for a in waited_for if a.kind != "write"}
    if scopes & set(OUTSIDE):
        return constants.global_latency
    return constants.shared_latency if Scope.SHARED in scopes else 0.0
