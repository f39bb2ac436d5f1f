"""The analytic latency of a candidate on a CPU: seconds, in closed form.

For every statement, in cycles of one core, over the whole kernel:

    core    = blocks * max(arithmetic, loads, stores, issue, latency) + loops + pages
    memory  = max(L2 -> L1, L3 -> L2, DRAM -> L3)   (bytes of `analysis.traffic` over bandwidths)
    cycles  = max(core, memory) + 0.15 * (the smaller ones)

A block is what stands inside the loops that are neither unrolled nor vectorised. Its instructions are counted as the
code generator emits them: a load for each distinct address, whole vectors where the vector loop steps by one, a
broadcast where it stands still, one lane at a time where it strides, and what asks for lines ahead of time. Of loads
that arithmetic hides some of the time shows where another hyperthread may have the core too. `latency` is what a chain
of dependent accumulations takes: fewer than latency * pipes independent accumulators leave the pipes idle, as those of
the last tile of a row may even where the others have enough. Accumulators and operands beyond the register file are
spilled, a store and a load each in every step, which nothing hides. Nor is the first line hidden of each page from
which the second level cache is filled: fetching ahead ends where a page does, and columns of a large matrix are on
another page after a few rows (without a copy of the weights in panels, convolutions took 1.4 to 2.1 times as long on
Zen 3); nor finding again, for each tile, more pages than address translation has at hand and rows that are many in each
set. From beyond the second level whole rows come faster than pieces, one of each row in turn: a piece counts with what
lies beside it. What neighbouring outputs of a window share is loaded once where everything else that the window needs
fits into registers (`codegen/llvm/windows.py`). Parallel time is the share of the tasks that the busiest thread gets;
where cores are not equally fast at a time, the others wait for half a task in the mean, whatever can be divided. Every
parallel region costs one fork and join. The statements of a register tile overlap, as one tile's arithmetic does with
the next one's memory: their cores and their memory are added up before the larger is taken. Others follow one another.

The roofline structure is that of Ansor's and Pruner's analytic models; what a core can do is its row in
`autosched.target.microarchitecture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    factor,
    is_one,
    is_zero,
    largest,
    least,
    minus,
    most,
    over,
    plus,
    real,
    round_up,
    times,
    total,
    where,
)
from autosched.ir.expr import Const, Expr, Select, Var, ceildiv, product
from autosched.ir.stmt import ForKind
from autosched.ir.visit import free_vars, loads, subexpressions
from autosched.target import LONGEST_STEP, PIECE_BYTES, Microarchitecture
from cost_model.analysis.access import Access
from cost_model.analysis.statements import Analysis, Statement, page_visits, traffic, unless_all_fits
from cost_model.analysis.trips import Loop
from cost_model.cpu.instructions import ACROSS, TESTS
from cost_model.cpu.machine import CLOCK_HZ, FORK_JOIN_S, NEST_S, OVERLAP_LOSS, Machine


@dataclass(frozen=True, eq=False)
class Block:
    """One innermost block, real: instructions by kind, and the cycles each limit would take."""

    unrolled: Expr  # copies of the statement by unrolling
    chunks: Expr  # vectors of a copy
    lanes: int
    arithmetic: Expr  # slots of the arithmetic pipes
    loads: Expr
    stores: Expr
    operands: Expr  # registers for loaded values
    registers: Expr  # accumulators
    spills: Expr
    instructions: Expr
    chains: Expr  # independent accumulations
    chain_length: Expr  # dependent accumulations in the block
    latency: Expr  # cycles
    limits: Mapping[str, Expr]  # cycles that each resource would take, were it the only one
    cycles: Expr


@dataclass(frozen=True, eq=False)
class Cost:
    """One statement over the whole kernel, real; cycles of one core unless said otherwise."""

    statement: Statement
    block: Block
    blocks: Expr
    loop_overhead: Expr
    core: Expr
    moved: tuple[Expr, Expr, Expr]  # bytes into L1, L2, L3
    memory: tuple[Expr, Expr, Expr]  # cycles of the same
    tasks: Expr
    share: Expr  # of the work, done by the busiest thread
    cycles: Expr  # of the busiest thread


@dataclass(frozen=True, eq=False)
class Draft:
    costs: tuple[Cost, ...]
    fork_join: Expr  # seconds
    seconds: Expr
    nests: Mapping[int, Expr]  # number of a nest -> its cycles, of the busiest thread


def draft(analysis: Analysis, machine: Machine) -> Draft:
    """The latency of the kernel in closed form."""
    costs = tuple(statement_cost(s, machine) for s in analysis.statements)
    regions = {c.statement.nest: c.tasks for c in costs if c.statement.is_parallel}
    fork_join = total(_beginning(tasks, machine) for tasks in regions.values())
    tiles: dict[tuple[object, ...], list[Cost]] = {}
    for cost in costs:
        registers = cost.statement.accumulators
        tiles.setdefault((cost.statement.nest, *(registers or (cost,))), []).append(cost)
    cycles = {key: _together(found) for key, found in tiles.items()}
    seconds = plus(times(total(cycles.values()), 1.0 / CLOCK_HZ), fork_join)
    numbers = dict.fromkeys(c.statement.nest for c in costs)
    nests = {n: total(spent for (nest, *_), spent in cycles.items() if nest == n) for n in numbers}
    return Draft(costs, fork_join, seconds, nests)


def _beginning(tasks: Expr, machine: Machine) -> Expr:
    """Seconds of beginning and ending a nest; one of a single task is on the calling thread, nobody else is asked."""
    return where(real(tasks) > 1.0, FORK_JOIN_S, NEST_S) if machine.threads > 1 else real(NEST_S)


def _together(costs: Sequence[Cost]) -> Expr:
    """Cycles of the busiest thread for the statements of one register tile."""
    core = total(times(c.core, c.share) for c in costs)
    return _overlapped([core, *(total(level) for level in zip(*(c.memory for c in costs), strict=True))])


def _overlapped(limits: Sequence[Expr]) -> Expr:
    return plus(times(largest(limits), 1.0 - OVERLAP_LOSS), times(total(limits), OVERLAP_LOSS))


@dataclass(frozen=True, eq=False)
class _Own:
    """What a statement costs whatever other nests touch, as in `Cost`; `moved`, `memory`, and `visits` in cycles, where
    the caches do not hold everything. `again`: cycles of beginning tiles, of waiting for what lanes make together and
    of finding what is read."""

    block: Block
    blocks: Expr
    loop_overhead: Expr
    visits: Expr
    again: Expr
    moved: tuple[Expr, ...]
    memory: tuple[Expr, ...]
    tasks: Expr
    share: Expr


def _own(statement: Statement, machine: Machine) -> _Own:
    uarch, caches = machine.uarch, machine.cache_bytes
    block = make_block(statement, machine)
    blocks = times(statement.iterations(statement.block), statement.weight)
    visits = total(page_visits(statement, a, caches, 1) for a in statement.accesses if uarch.prefetch_restart)
    accesses = statement.accesses if uarch.dtlb_miss or uarch.conflict_line else ()
    begun = plus(_begun(statement, block, machine), _awaited(statement, machine))
    again = total([begun, *(_found_again(statement, a, machine) for a in accesses)])
    tasks, share = _parallel(statement, machine)
    moved = tuple(total(traffic(statement, a, caches, n) for a in statement.accesses) for n in range(3))
    ahead = [total(_fetched_ahead(statement, a, n, machine) for a in statement.accesses) for n in (1, 2)]
    dram_share = most(share, uarch.dram_bandwidth / max(uarch.dram_shared, uarch.dram_bandwidth))
    fetched = total(_fetched(statement, a, machine) for a in statement.accesses)
    memory = (
        times(times(fetched, 1.0 / uarch.l2_bandwidth), share),
        times(times(ahead[0], 1.0 / uarch.l3_bandwidth), share),
        times(times(ahead[1], 1.0 / uarch.dram_bandwidth), dram_share),
    )
    visits = times(visits, uarch.prefetch_restart)
    return _Own(block, blocks, _loop_overhead(statement, uarch), visits, again, moved, memory, tasks, share)


def statement_cost(statement: Statement, machine: Machine) -> Cost:
    own, caches = statement.alone(_own, machine), machine.cache_bytes
    block, blocks, loops = own.block, own.blocks, own.loop_overhead
    visits = unless_all_fits(statement, own.visits, caches, 1)
    core = total([times(blocks, block.cycles), loops, visits, own.again])
    in_l1, in_l2, in_l3 = (unless_all_fits(statement, x, caches, n) for n, x in enumerate(own.moved))
    l2, l3, dram = (unless_all_fits(statement, x, caches, n) for n, x in enumerate(own.memory))
    cycles = _overlapped([times(core, own.share), l2, l3, dram])
    moved, memory = (in_l1, in_l2, in_l3), (l2, l3, dram)
    return Cost(statement, block, blocks, loops, core, moved, memory, own.tasks, own.share, cycles)


def _begun(statement: Statement, block: Block, machine: Machine) -> Expr:
    """Cycles in which register tiles of a product wait behind the multiply-adds of those before them."""
    v = statement.vector_loop
    sums = statement.updates and statement.accumulators and not statement.ops.extremes
    if not machine.uarch.tile_start or not sums or v is None or statement.block == 0:
        return ZERO
    if all(a.moves(v) for a in statement.accesses if a.kind == "read"):  # a depthwise window: more loads than that
        return ZERO
    queue = where(block.chains > machine.uarch.fma_latency * machine.uarch.fma, machine.uarch.tile_start, 0.0)
    return times(times(queue, statement.iterations(statement.sweep + 1)), statement.weight)


def _awaited(statement: Statement, machine: Machine) -> Expr:
    """Cycles in which those that read what lanes make together wait for it: once for each time that its buffer, of one
    row or of several, is filled."""
    v, buffer = statement.vector_loop, statement.write.buffer
    if not machine.uarch.horizontal_reduction or v is None or not statement.updates or statement.write.moves(v):
        return ZERO
    if buffer not in statement.alive or statement.write.in_registers:
        return ZERO
    filled = over(statement.iterations(statement.block), real(product(list(buffer.shape))))
    return times(times(filled, machine.uarch.horizontal_reduction), statement.weight)


def _found_again(statement: Statement, access: Access, machine: Machine) -> Expr:
    """Cycles of finding pages and lines that tile after tile reads, where those of one are too many to be kept."""
    if access.in_registers or statement.block == 0:
        return ZERO
    tile, uarch = statement.sweep + 1, machine.uarch
    pages, lines = access.pages[tile], access.lines[tile]
    visited = where(pages > uarch.dtlb_reach, times(pages, uarch.dtlb_miss), 0.0)
    crowded = where(access.crowds(tile, uarch.conflict_ways), times(lines, uarch.conflict_line), 0.0)
    return times(times(plus(visited, crowded), statement.iterations(tile)), statement.weight)


def _fetched(statement: Statement, access: Access, machine: Machine) -> Expr:
    """Bytes into the first level, more of them where vectors of one block lie in lines that crowd in a few sets; no
    line twice where a window passes by, or where pieces of lines are transposed in registers."""
    moved, block = traffic(statement, access, machine.cache_bytes, 0), statement.block
    passing = statement.passing if access.kind == "read" and not access.in_registers else None
    if passing is not None or _is_across(statement, access):
        once = least(moved, times(times(access.lines[block], access.line_bytes), statement.iterations(block)))
        moved = once if passing is None else where(passing.fits(machine.target), once, moved)
    if access.resident[block] is access.lines[block] or not _is_whole(statement, access):
        return moved
    return times(moved, where(access.crowds(block), machine.uarch.conflict_fetch, 1.0))


def _fetched_ahead(statement: Statement, access: Access, level: int, machine: Machine) -> Expr:
    """Bytes into a cache beyond the first level, with what lies beside the pieces that tile after tile reads."""
    moved, beside = traffic(statement, access, machine.cache_bytes, level), machine.uarch.adjacent_line_bytes
    return times(moved, access.with_beside(statement.sweep, beside)) if beside else moved


def make_block(statement: Statement, machine: Machine) -> Block:
    """The innermost block's instructions and cycles; see the module's text."""
    inner, uarch = statement.loops[statement.block :], machine.uarch
    lanes = machine.lanes(statement.itemsize) if _vectorised(inner) else 1
    unrolled = factor(x.trips for x in inner if x.kind is ForKind.UNROLL)
    chunks = factor(_vectors(x, lanes)[0] for x in inner if x.kind is ForKind.VECTORIZE)
    copies = times(unrolled, chunks)
    reads = [a for a in statement.accesses if a.kind != "write" and not a.in_registers]
    writes = [a for a in statement.accesses if a.kind != "read" and not a.in_registers]
    whole = [a for a in reads if _is_whole(statement, a)]
    registers = real(statement.registers(machine.lanes(statement.itemsize), machine.target))
    operands, counts = _window(statement, reads, registers, chunks, machine)
    vectors = total(counts[a] for a in whole)
    elements = total(counts[a] for a in reads if a not in whole)
    stores = total(_transfers(statement, a, lanes) for a in writes)
    spills = most(0.0, minus(plus(registers, operands), machine.registers)) if statement.accumulators else ZERO
    extremes = times(copies, statement.ops.extremes * uarch.nan_test)
    tested = least(extremes, times(plus(vectors, elements), uarch.nan_test)) if statement.updates else extremes
    arithmetic = plus(total(times(_copies(inner, lanes, v), slots) for v, slots in statement.ops.shared), tested)
    instructions = total([arithmetic, extremes, vectors, elements, stores, statement.asking, 2.0])
    width = where(real(instructions) > uarch.uop_cache, uarch.decode_width, uarch.issue_width)
    chains, length, latency = _chains(statement, inner, chunks, machine)
    pipes = {
        "arithmetic": times(arithmetic, 1.0 / uarch.fma),
        "loads": plus(times(vectors, 1.0 / uarch.load), times(elements, 1.0 / uarch.element_load)),
        "stores": times(stores, 1.0 / uarch.store),
    }
    tests = times(_tested(statement, counts, chunks), TESTS)
    issue = over(instructions, width)
    busy = largest([*pipes.values(), issue])
    inside = largest([busy, latency])
    at_border = largest([*pipes.values(), latency, over(plus(instructions, tests), width)])
    cycles = plus(inside, times(statement.border, minus(at_border, inside)))
    cycles = plus(cycles, _idle(statement, inner, busy, latency, lanes))
    spilled = times(times(spills, most(1.0, length)), uarch.spill)
    cycles = plus(cycles, spilled)
    cycles = plus(cycles, times(total([vectors, elements, statement.asking]), uarch.smt_load_contention))
    limits = {**pipes, "issue": issue, "latency": latency, "spills": spilled}
    return Block(
        unrolled, chunks, lanes, arithmetic, plus(vectors, elements), stores, operands, registers, spills, instructions,
        chains, length, latency, limits, cycles,
    )  # fmt: skip


def _copies(inner: Sequence[Loop], lanes: int, depends: frozenset[Var] | None) -> Expr:
    """How often a block computes what depends on these variables, which all copies that agree in them share; None: each
    copy by itself."""
    moving = [x for x in inner if depends is None or x.var in depends]
    return factor(_vectors(x, lanes)[0] if x.kind is ForKind.VECTORIZE else x.trips for x in moving)


def _vectors(loop: Loop, lanes: int) -> tuple[Expr, Expr, Expr]:
    """Vectors of a vectorised loop, real: in the mean over its runs, in a full run and in the last one."""
    full = real(ceildiv(loop.bound, lanes))
    if is_zero(loop.share):
        return full, full, full
    last = round_up(times(loop.last, 1.0 / lanes))
    return plus(full, times(loop.share, minus(last, full))), full, last


def _idle(statement: Statement, inner: Sequence[Loop], busy: Expr, latency: Expr, lanes: int) -> Expr:
    """Cycles of a block, in the mean, in which the pipes wait because the last tile of a row is short.

    A block takes the longer of `busy`, which grows with its copies, and `latency`, which does not: in the mean over
    full tiles and short ones that is more than in the mean tile."""
    if latency is ZERO:
        return ZERO
    mean, terms = most(busy, latency), []
    for place, loop in enumerate(inner, statement.block):
        if is_zero(loop.share) or not statement.write.moves(place):
            continue
        vectors = loop.kind is ForKind.VECTORIZE
        copies, full, last = _vectors(loop, lanes) if vectors else (loop.trips, real(loop.bound), loop.last)
        each = over(busy, copies)
        whole, short = most(times(each, full), latency), most(times(each, last), latency)
        terms.append(minus(plus(whole, times(loop.share, minus(short, whole))), mean))
    return total(terms)


def _vectorised(loops: Sequence[Loop]) -> bool:
    return any(x.kind is ForKind.VECTORIZE for x in loops)


def _is_whole(statement: Statement, access: Access) -> bool:
    """Whether the access moves whole vectors; else one element at a time, which may be spread over the lanes."""
    v = statement.vector_loop
    stride = ZERO if v is None else access.stride[v]
    if isinstance(stride, Const) and not is_one(stride):
        return _is_picked(access, stride)
    return not is_zero(stride)


def _is_far(statement: Statement, access: Access) -> bool:
    """Whether lanes are so far apart that they are not picked from vectors."""
    v = statement.vector_loop
    stride = ZERO if v is None else access.stride[v]
    return isinstance(stride, Const) and stride.value > LONGEST_STEP


def _is_picked(access: Access, stride: Expr) -> bool:
    """Whether lanes that are apart are picked from whole vectors (`codegen/llvm/strided.py`)."""
    return access.kind == "read" and isinstance(stride, Const) and 1 < stride.value <= LONGEST_STEP


def _tested(statement: Statement, counts: Mapping[Access, Expr], chunks: Expr) -> Expr:
    """Reads whose conditions are tested and address chosen: the vectors of one together, where no lane matters."""
    selects = {e for v in statement.store.values for e in subexpressions(v) if isinstance(e, Select)}
    guarded = {load.buffer for select in selects for load in loads(select)}
    v = statement.vector_loop
    together = v is not None and all(statement.loops[v].var not in free_vars(s.cond) for s in selects)
    tested = [a for a in counts if a.buffer.name in guarded]
    return total(over(counts[a], chunks) if together and _is_whole(statement, a) else counts[a] for a in tested)


def _window(
    statement: Statement, reads: Sequence[Access], registers: Expr, chunks: Expr, machine: Machine
) -> tuple[Expr, dict[Access, Expr]]:
    """Registers for operands, and the loads of each access.

    A window's outputs share elements of an access that moves along outputs and along the reduction. Where all other
    operands of a vector fit beside the accumulators, each element is loaded once; else each time it is used.
    """
    lanes = machine.lanes(statement.itemsize) if _vectorised(statement.loops[statement.block :]) else 1
    counts = {a: _transfers(statement, a, lanes) for a in reads}
    if not statement.accumulators:
        return ZERO, counts
    rows = over(registers, chunks)
    usual = where(plus(registers, chunks) < machine.registers, plus(chunks, 1.0), plus(least(chunks, rows), 1.0))
    shared = {a: _transfers(statement, a, lanes, distinct=False) for a in reads if _slides(statement, a)}
    if not shared:
        return usual, counts
    others = (over(counts[a], chunks) if _is_whole(statement, a) else counts[a] for a in reads if a not in shared)
    operands = plus(total(others), 1.0)
    fits = real(plus(registers, operands)) <= float(machine.registers)
    overlap = total(shared.values()) > times(total(counts[a] for a in shared), 1.001)
    found = {a: where(fits, counts[a], shared[a]) if a in shared else counts[a] for a in reads}
    return where(fits & overlap, operands, usual), found


def _slides(statement: Statement, access: Access) -> bool:
    """Whether the access moves along unrolled loops of the outputs and of the reduction."""
    unrolled = [i for i in range(statement.block, statement.depth) if statement.loops[i].kind is ForKind.UNROLL]
    return {statement.write.moves(i) for i in unrolled if access.moves(i)} == {True, False}


def _transfers(statement: Statement, access: Access, lanes: int, distinct: bool = True) -> Expr:
    """Load (or store) instructions of the access in one block: one for each address if `distinct`, or one a copy."""
    result: Expr = real(access.count)
    different: Expr = real(access.elements[statement.block])
    for i in range(statement.block, statement.depth):
        loop, stride = statement.loops[i], access.stride[i]
        if is_zero(stride):
            continue
        if loop.kind is ForKind.UNROLL:
            result = times(result, loop.trips)
        else:
            whole = _vectors(loop, lanes)[0]
            result = times(result, whole if is_one(stride) else _strided(access, loop, stride, whole))
            different = times(different, over(whole, loop.trips)) if is_one(stride) else different
    return times(least(result, different) if distinct else result, _across(statement, access, lanes))


def _across(statement: Statement, access: Access, lanes: int) -> Expr:
    """What is contiguous along unrolled loops and not along its lanes is transposed by shuffles: as many lanes as fill
    128 bits; lanes that are fewer are read one by one."""
    inner, block = statement.loops[statement.block :], PIECE_BYTES // access.buffer.itemsize
    if lanes < block or not _is_across(statement, access):
        return ONE
    rows = factor(x.trips for x in inner if x.kind is ForKind.UNROLL)
    row = product([x.bound for x in inner if x.kind is ForKind.VECTORIZE])
    pieces = over(real(row // block * block), real(row))
    return where(rows >= float(block), minus(1.0, times(pieces, 1.0 - ACROSS / block)), 1.0)


def _is_across(statement: Statement, access: Access) -> bool:
    """Whether the access is contiguous along unrolled loops and not along its lanes."""
    store, inner = statement.store, range(statement.block, statement.depth)
    if access.kind != "read" or (store.reducer is None and len(store.values) > 1):
        return False
    if store.reducer is not None and not (statement.accumulators and _is_far(statement, access)):
        return False
    vectors = [access.stride[i] for i in inner if statement.loops[i].kind is ForKind.VECTORIZE]
    rows = [access.stride[i] for i in inner if statement.loops[i].kind is ForKind.UNROLL]
    return bool(vectors) and not any(is_one(s) or is_zero(s) for s in vectors) and any(map(is_one, rows))


def _strided(access: Access, loop: Loop, stride: Expr, whole: Expr) -> Expr:
    """Vectors for steps of one (or none, where a symbolic step says so), single lanes for longer ones. Of a few
    elements: as many vectors, most of them on two lines, and the shuffles."""
    if not isinstance(stride, Const):
        return where(real(stride) > 1.0, loop.trips, whole)
    return times(whole, 2.0 * float(stride.value)) if _is_picked(access, stride) else loop.trips


def _chains(statement: Statement, inner: Sequence[Loop], chunks: Expr, machine: Machine) -> tuple[Expr, Expr, Expr]:
    """(independent chains, dependent steps of each, cycles) of the accumulations in one block.

    Steps of the loop just outside depend on each other when they update the same place; otherwise blocks overlap.
    """
    if not statement.updates:
        return ONE, ZERO, ZERO
    write, first = statement.write, statement.block
    chains, length = ONE, ONE
    for i, loop in enumerate(inner, first):
        if write.moves(i):
            chains = times(chains, chunks if loop.kind is ForKind.VECTORIZE else loop.trips)
        elif loop.kind is ForKind.UNROLL:
            length = times(length, loop.trips)
        else:  # a reduction over lanes is a tree of shuffles at the end; the chunks are added up one by one
            length = times(length, chunks)
    carried = first > 0 and not write.moves(first - 1)
    step = machine.uarch.min_max_latency if statement.ops.extremes else machine.uarch.accumulator_step
    step += 0.0 if write.in_registers else machine.uarch.store_forward
    cycles = times(length, step) if carried else times(minus(length, 1.0), step)
    return chains, length, cycles


def _loop_overhead(statement: Statement, uarch: Microarchitecture) -> Expr:
    """Cycles of entering and stepping the loops outside the block; the innermost one's step is hidden in its block, and
    loops of a single iteration are not there."""
    terms = []
    for i in range(statement.block):
        loop = statement.loops[i]
        if loop.kind in (ForKind.UNROLL, ForKind.VECTORIZE):
            continue
        steps = times(loop.trips, uarch.loop_step) if i < statement.block - 1 else ZERO
        entered = where(real(loop.bound) > 1.0, plus(steps, uarch.loop_entry), 0.0)
        terms.append(times(statement.iterations(i), entered))
    return times(total(terms), statement.weight)


def _parallel(statement: Statement, machine: Machine) -> tuple[Expr, Expr]:
    """(tasks of a parallel region, share of the work that the busiest thread does)."""
    bounds = [x.bound for x in statement.loops if x.kind is ForKind.PARALLEL]
    if not bounds:
        return ONE, ONE
    tasks = real(product(bounds))
    if machine.threads == 1:
        return tasks, ONE
    threads = float(machine.threads)
    waves = round_up(over(tasks, threads))
    inner = [x for x in statement.loops if x.kind is not ForKind.PARALLEL and x.trips is not real(x.bound)]
    whole = factor(over(real(x.bound), x.trips) for x in inner)  # work of a task away from the borders, in mean ones
    uneven = over(plus(tasks, times(whole, threads - 1.0)), threads)  # who has nothing left takes of the others' tasks
    half = most(whole, over(plus(tasks, times(whole, (threads - 1.0) / 2.0)), threads))  # in the mean it is half of one
    share = machine.uarch.unequal_cores
    busiest = plus(times(least(times(waves, whole), uneven), 1.0 - share), times(half, share))
    return tasks, least(1.0, over(busiest, tasks))
