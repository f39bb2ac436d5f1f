"""Analytic latency of a candidate on a CPU: seconds, in closed form.

For every statement, in cycles of one core, over the whole kernel:

    core    = blocks * max(arithmetic, loads, stores, issue, latency) + loops + pages
    memory  = max(L2 -> L1, L3 -> L2, DRAM -> L3)   (bytes of `analysis.traffic` over bandwidths)
    cycles  = max(core, memory) + 0.15 * (the smaller ones)

A block is what stands inside the loops that are neither unrolled nor vectorised. Its instructions are counted as the
code generator emits them: a load for each distinct address, whole vectors where the vector loop steps by one, a
broadcast where it stands still, one lane at a time where it strides, and what asks for lines ahead of time. Of loads
that arithmetic hides some of the time shows where another hyperthread may have the core too. `latency` is what a chain
of dependent accumulations takes, or of operations from one position of a recurrence to the next: fewer than latency *
pipes independent accumulators leave the pipes idle, as those of the last tile of a row may even where the others have
enough. Accumulators and operands beyond the register file are spilled, a store and a load each in every step, which
nothing hides. Nor is the first line hidden of each page from which the second level cache is filled: fetching ahead
ends where a page does, and columns of a large matrix are on another page after a few rows (without a copy of the
weights in panels, convolutions took 1.4 to 2.1 times as long on Zen 3); nor finding again, for each tile, more pages
than address translation has at hand and rows that are many in each set. From beyond the second level whole rows come
faster than short parts of several rows in turn: a part counts with the adjacent lines fetched, and with what is read
beyond its end. Pages beyond the reach of address translation are walked to. What fits into a cache
together with all else is moved once for all calls, but for weights that the rest of a network pushes out between them
(`target.far_weights`). What neighbouring outputs of a window share is loaded once where everything else that the window
needs fits into registers (`lower/register_tiles/`). Parallel time is the share of the tasks that the busiest thread
gets; where cores are not equally fast at a time, the others wait for half a task in the mean, whatever can be divided.
Every parallel region costs one fork and join. The statements of a register tile overlap, as one tile's arithmetic does
with the next one's memory: their cores and their memory are added up before the larger is taken. Others follow one
another.

The roofline structure is that of Ansor's and Pruner's analytic models; what a core can do is its row in
`autosched.target.microarchitecture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    add,
    ceil,
    divide,
    is_zero,
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
from autosched.ir.expr import Expr, Var, product
from autosched.ir.stmt import ForKind
from autosched.target import Microarchitecture
from cost_model.analysis.access import Access
from cost_model.analysis.statements import Analysis, Statement
from cost_model.analysis.traffic import pages_walked, unless_all_fits, unless_all_pages_fit
from cost_model.analysis.trips import AnalysedLoop
from cost_model.cpu.chains import accumulation_chains
from cost_model.cpu.instructions import POLYNOMIAL_CONSTANTS, POLYNOMIAL_VALUES, TESTS
from cost_model.cpu.machine import CLOCK_HZ, FORK_JOIN_S, NEST_S, OVERLAP_LOSS, Machine
from cost_model.cpu.memory import Moved, moved, where_not_held
from cost_model.cpu.tile_products import TileWork, product_of_tiles, tile_work
from cost_model.cpu.transfers import (
    gathered_quotients,
    gathers_lanes,
    is_vectorised,
    moves_whole_vectors,
    tested_reads,
    transfers,
    vectors_of,
    window_loads,
)


@dataclass(frozen=True, eq=False)
class InnermostBlock:
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
    block: InnermostBlock
    blocks: Expr
    loop_overhead: Expr
    core: Expr
    moved: tuple[Expr, Expr, Expr]  # bytes into L1, L2, L3
    memory: tuple[Expr, Expr, Expr]  # cycles of the same
    tasks: Expr
    share: Expr  # of the work, done by the busiest thread
    cycles: Expr  # of the busiest thread


@dataclass(frozen=True, eq=False)
class AnalyticLatency:
    costs: tuple[Cost, ...]
    fork_join: Expr  # seconds
    seconds: Expr
    nests: Mapping[int, Expr]  # number of a nest -> its cycles, of the busiest thread


def analytic_latency(analysis: Analysis, machine: Machine) -> AnalyticLatency:
    """The latency of the kernel in closed form."""
    costs = tuple(statement_cost(s, machine) for s in analysis.statements)
    regions = {c.statement.nest: c.tasks for c in costs if c.statement.is_parallel}
    fork_join = sum_of(_beginning(tasks, machine) for tasks in regions.values())
    tiles: dict[tuple[object, ...], list[Cost]] = {}
    for cost in costs:
        registers = cost.statement.accumulators
        tiles.setdefault((cost.statement.nest, *(registers or (cost,))), []).append(cost)
    cycles = {key: _together(found) for key, found in tiles.items()}
    seconds = add(multiply(sum_of(cycles.values()), 1.0 / CLOCK_HZ), fork_join)
    numbers = dict.fromkeys(c.statement.nest for c in costs)
    nests = {n: sum_of(spent for (nest, *_), spent in cycles.items() if nest == n) for n in numbers}
    return AnalyticLatency(costs, fork_join, seconds, nests)


def _beginning(tasks: Expr, machine: Machine) -> Expr:
    """Seconds of starting and joining the threads of a nest; a nest of a single task runs on the calling thread."""
    return where(real(tasks) > 1.0, FORK_JOIN_S, NEST_S) if machine.threads > 1 else real(NEST_S)


def _together(costs: Sequence[Cost]) -> Expr:
    """Cycles of the busiest thread for the statements of one register tile."""
    core = sum_of(multiply(c.core, c.share) for c in costs)
    return _overlapped([core, *(sum_of(level) for level in zip(*(c.memory for c in costs), strict=True))])


def _overlapped(limits: Sequence[Expr]) -> Expr:
    return add(multiply(maximum_of(limits), 1.0 - OVERLAP_LOSS), multiply(sum_of(limits), OVERLAP_LOSS))


@dataclass(frozen=True, eq=False)
class _Own:
    """What a statement costs whatever other nests touch, as in `Cost`; `moved`, `memory`, and `visits` in cycles, where
    the caches do not hold everything, and of these `far`, what is moved nevertheless. `again`: cycles of beginning
    tiles, of waiting for what lanes make together and of finding what is read; `walked`: pages."""

    block: InnermostBlock
    blocks: Expr
    loop_overhead: Expr
    again: Expr
    walked: Expr
    near: Moved
    far: Moved
    tasks: Expr
    share: Expr


def _own(statement: Statement, machine: Machine) -> _Own:
    uarch = machine.uarch
    block = make_block(statement, machine)
    blocks = multiply(statement.iterations(statement.block_depth), statement.weight)
    accesses = statement.accesses if uarch.dtlb_miss or uarch.conflict_line else ()
    begun = [_begun(statement, block, machine), _awaited(statement, machine)]
    if statement.refilled and uarch.unaligned_forward:
        filled = multiply(statement.iterations(statement.refilled), statement.weight)
        begun.append(multiply(filled, uarch.unaligned_forward))
    again = sum_of([*begun, *(_found_again(statement, a, machine) for a in accesses)])
    paged = statement.accesses if uarch.page_walk else ()
    walked = sum_of(pages_walked(statement, a, uarch.stlb_reach) for a in paged)
    tasks, share = _parallel(statement, machine)
    near, far = (moved(statement, beyond, share, machine) for beyond in (False, True))
    return _Own(block, blocks, _loop_overhead(statement, uarch), again, walked, near, far, tasks, share)


def statement_cost(statement: Statement, machine: Machine) -> Cost:
    own, caches = statement.alone(_own, machine), machine.cache_bytes
    block, blocks, loops = own.block, own.blocks, own.loop_overhead
    near, far = own.near, own.far
    visits = add(unless_all_fits(statement, near.visits, caches, 1), far.visits)
    core = sum_of([multiply(blocks, block.cycles), loops, visits, own.again])
    in_l1, in_l2, in_l3 = (
        add(where_not_held(statement, x, n, machine), y)
        for n, (x, y) in enumerate(zip(near.bytes, far.bytes, strict=True))
    )
    l2, l3, dram = (
        add(where_not_held(statement, x, n, machine), y)
        for n, (x, y) in enumerate(zip(near.cycles, far.cycles, strict=True))
    )
    walked = unless_all_pages_fit(statement, own.walked, machine.uarch.stlb_reach)
    l3 = add(l3, multiply(multiply(walked, machine.uarch.page_walk), own.share))
    cycles = _overlapped([multiply(core, own.share), l2, l3, dram])
    moved, memory = (in_l1, in_l2, in_l3), (l2, l3, dram)
    return Cost(statement, block, blocks, loops, core, moved, memory, own.tasks, own.share, cycles)


def _begun(statement: Statement, block: InnermostBlock, machine: Machine) -> Expr:
    """Cycles in which register tiles of a product wait for the multiply-adds of earlier tiles."""
    if product_of_tiles(statement, machine) is not None:
        return multiply(
            multiply(machine.uarch.tile_latency, statement.iterations(statement.sweep + 1)), statement.weight
        )
    v = statement.vector_loop
    sums = statement.updates and statement.accumulators and not statement.ops.minima_and_maxima
    if not machine.uarch.tile_start or not sums or v is None or statement.block_depth == 0:
        return ZERO
    if all(a.moves(v) for a in statement.accesses if a.kind == "read"):  # a depthwise window: more loads than that
        return ZERO
    queue = where(block.chains > machine.uarch.fma_latency * machine.uarch.fma, machine.uarch.tile_start, 0.0)
    return multiply(multiply(queue, statement.iterations(statement.sweep + 1)), statement.weight)


def _awaited(statement: Statement, machine: Machine) -> Expr:
    """Cycles in which those that read what lanes make together wait for it: once for each time that its buffer, of one
    row or of several, is filled."""
    v, buffer = statement.vector_loop, statement.write.buffer
    if not machine.uarch.horizontal_reduction or v is None or not statement.updates or statement.write.moves(v):
        return ZERO
    if buffer not in statement.alive or statement.write.in_registers:
        return ZERO
    filled = divide(statement.iterations(statement.block_depth), real(product(list(buffer.shape))))
    return multiply(multiply(filled, machine.uarch.horizontal_reduction), statement.weight)


def _found_again(statement: Statement, access: Access, machine: Machine) -> Expr:
    """Cycles of DTLB and cache misses of tiles whose pages and lines are too many to be kept between tiles."""
    if access.in_registers or statement.block_depth == 0:
        return ZERO
    tile, uarch = statement.sweep + 1, machine.uarch
    pages, lines = access.pages[tile], access.lines[tile]
    visited = where(pages > uarch.dtlb_reach, multiply(pages, uarch.dtlb_miss), 0.0)
    crowded = where(access.has_set_conflicts(tile, uarch.conflict_ways), multiply(lines, uarch.conflict_line), 0.0)
    return multiply(multiply(add(visited, crowded), statement.iterations(tile)), statement.weight)


def make_block(statement: Statement, machine: Machine) -> InnermostBlock:
    """The innermost block's instructions and cycles; see the module's text."""
    by_tiles = product_of_tiles(statement, machine)
    if by_tiles is not None:
        return _block_of_tiles(statement, tile_work(statement, by_tiles, machine), machine)
    inner, uarch = statement.loops[statement.block_depth :], machine.uarch
    lanes = machine.lanes(statement.itemsize) if is_vectorised(inner) else 1
    unrolled = product_of(x.trips for x in inner if x.kind is ForKind.UNROLL)
    chunks = product_of(vectors_of(x, lanes)[0] for x in inner if x.kind is ForKind.VECTORIZE)
    copies = multiply(unrolled, chunks)
    reads = [a for a in statement.accesses if a.kind != "write" and not a.in_registers]
    writes = [a for a in statement.accesses if a.kind != "read" and not a.in_registers]
    whole = [a for a in reads if moves_whole_vectors(statement, a)]
    registers = real(statement.registers(machine.lanes(statement.itemsize), machine.target))
    operands, counts = window_loads(statement, reads, registers, chunks, machine)
    vectors = sum_of(counts[a] for a in whole)
    quotients = multiply(multiply(copies, float(lanes)), sum_of(gathered_quotients(statement, a) for a in reads))
    gathered = add(sum_of(counts[a] for a in reads if gathers_lanes(statement, a)), quotients)
    elements = add(sum_of(counts[a] for a in reads if a not in whole), quotients)
    stores = sum_of(transfers(statement, a, lanes) for a in writes)
    alive = add(registers, operands) if statement.accumulators else _values_of_functions(statement, chunks)
    spills = maximum(0.0, subtract(alive, float(machine.registers)))
    chains, length, latency = accumulation_chains(statement, chunks, machine)
    if statement.accumulators and statement.updates:  # LLVM spills accumulators as well as operands
        latency = add(latency, where(spills > 0.0, multiply(length, uarch.store_forward), 0.0))
    minima_and_maxima = multiply(copies, statement.ops.minima_and_maxima * uarch.nan_test)
    tested = (
        minimum(minima_and_maxima, multiply(add(vectors, elements), uarch.nan_test))
        if statement.updates
        else minima_and_maxima
    )
    arithmetic = add(sum_of(multiply(_copies(inner, lanes, v), slots) for v, slots in statement.ops.shared), tested)
    instructions = sum_of([arithmetic, minima_and_maxima, vectors, elements, stores, statement.asking, 2.0])
    width = where(real(instructions) > uarch.uop_cache, uarch.decode_width, uarch.issue_width)
    pipes = {
        "arithmetic": multiply(arithmetic, 1.0 / uarch.fma),
        "loads": sum_of(
            [
                multiply(vectors, 1.0 / uarch.load),
                multiply(elements, 1.0 / uarch.element_load),
                multiply(gathered, 1.0 / uarch.gathered_load - 1.0 / uarch.element_load),
            ]
        ),
        "stores": multiply(stores, 1.0 / uarch.store),
    }
    tests = multiply(tested_reads(statement, counts, chunks), TESTS)
    issue = divide(instructions, width)
    busy = maximum_of([*pipes.values(), issue])
    inside = maximum_of([busy, latency])
    at_border = maximum_of([*pipes.values(), latency, divide(add(instructions, tests), width)])
    cycles = add(inside, multiply(statement.border, subtract(at_border, inside)))
    cycles = add(cycles, _idle(statement, inner, busy, latency, lanes))
    spilled = multiply(multiply(spills, maximum(1.0, length)), uarch.spill)
    cycles = add(cycles, spilled)
    cycles = add(cycles, multiply(sum_of([vectors, elements, statement.asking]), uarch.smt_load_contention))
    limits = {**pipes, "issue": issue, "latency": latency, "spills": spilled}
    return InnermostBlock(
        unrolled, chunks, lanes, arithmetic, add(vectors, elements), stores, operands, registers, spills, instructions,
        chains, length, latency, limits, cycles,
    )  # fmt: skip


def _values_of_functions(statement: Statement, chunks: Expr) -> Expr:
    """Registers of a block that computes polynomials: LLVM computes each term for all vectors of the block in turn."""
    if not statement.ops.count("float_math"):
        return ZERO
    return add(multiply(chunks, POLYNOMIAL_VALUES), POLYNOMIAL_CONSTANTS)


def _block_of_tiles(statement: Statement, work: TileWork, machine: Machine) -> InnermostBlock:
    """A step of a product in tile registers, where loads of one step go on beside the products of another."""
    uarch = machine.uarch
    carried = statement.block_depth > 0 and not statement.write.moves(statement.block_depth - 1)
    limits = {
        "arithmetic": work.cycles,
        "loads": multiply(work.loads, 1.0 / uarch.load),
        "latency": real(uarch.tile_latency) if carried else ZERO,
    }
    slots = multiply(work.cycles, uarch.fma)
    instructions = multiply(work.products, 2.0)
    return InnermostBlock(
        work.products, ONE, machine.lanes(statement.itemsize), slots, work.loads, ZERO, ZERO, ZERO, ZERO, instructions,
        work.products, ONE, limits["latency"], limits, maximum_of(limits.values()),
    )  # fmt: skip


def _copies(inner: Sequence[AnalysedLoop], lanes: int, depends: frozenset[Var] | None) -> Expr:
    """How often a block computes what depends on these variables, which all copies that agree in them share; None: each
    copy by itself."""
    moving = [x for x in inner if depends is None or x.var in depends]
    return product_of(vectors_of(x, lanes)[0] if x.kind is ForKind.VECTORIZE else x.trips for x in moving)


def _idle(statement: Statement, inner: Sequence[AnalysedLoop], busy: Expr, latency: Expr, lanes: int) -> Expr:
    """Cycles of a block, in the mean, in which the pipes wait because the last tile of a row is short.

    A block takes the longer of `busy`, which grows with its copies, and `latency`, which does not: in the mean over
    full tiles and short ones that is more than in the mean tile."""
    if latency is ZERO:
        return ZERO
    mean, terms = maximum(busy, latency), []
    for place, loop in enumerate(inner, statement.block_depth):
        if is_zero(loop.share) or not statement.write.moves(place):
            continue
        vectors = loop.kind is ForKind.VECTORIZE
        copies, full, last = vectors_of(loop, lanes) if vectors else (loop.trips, real(loop.bound), loop.last)
        each = divide(busy, copies)
        whole, short = maximum(multiply(each, full), latency), maximum(multiply(each, last), latency)
        terms.append(subtract(add(whole, multiply(loop.share, subtract(short, whole))), mean))
    return sum_of(terms)


def _loop_overhead(statement: Statement, uarch: Microarchitecture) -> Expr:
    """Cycles of entering and stepping the loops outside the block, and of entering those inside whose extents are known
    at run time only; the innermost one's step is hidden in its block, and loops of a single iteration are not there."""
    terms = []
    for i, loop in enumerate(statement.loops):
        if i >= statement.block_depth:
            entered = multiply(loop.clipped, uarch.loop_entry)
        else:
            steps = multiply(loop.trips, uarch.loop_step) if i < statement.block_depth - 1 else ZERO
            entered = ZERO if loop.is_in_block else where(real(loop.bound) > 1.0, add(steps, uarch.loop_entry), 0.0)
        terms.append(multiply(statement.iterations(i), entered))
    return multiply(sum_of(terms), statement.weight)


def _parallel(statement: Statement, machine: Machine) -> tuple[Expr, Expr]:
    """(tasks of a parallel region, share of the work that the busiest thread does)."""
    bounds = [x.bound for x in statement.loops if x.kind is ForKind.PARALLEL]
    if not bounds:
        return ONE, ONE
    tasks = real(product(bounds))
    if machine.threads == 1:
        return tasks, ONE
    threads = float(machine.threads)
    waves = ceil(divide(tasks, threads))
    inner = [x for x in statement.loops if x.kind is not ForKind.PARALLEL and not is_zero(x.share)]
    whole = product_of(
        divide(real(x.bound), x.trips) for x in inner
    )  # work of a task away from the borders, in mean ones
    uneven = divide(
        add(tasks, multiply(whole, threads - 1.0)), threads
    )  # who has nothing left takes of the others' tasks
    half = maximum(
        whole, divide(add(tasks, multiply(whole, (threads - 1.0) / 2.0)), threads)
    )  # in the mean it is half of one
    share = machine.uarch.unequal_cores
    busiest = add(multiply(minimum(multiply(waves, whole), uneven), 1.0 - share), multiply(half, share))
    return tasks, minimum(1.0, divide(busiest, tasks))
