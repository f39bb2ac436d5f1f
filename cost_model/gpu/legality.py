"""Legality rules of GPU candidates, as boolean closed forms.

The limits of the device (threads, grid, shared memory, registers) must hold for every kernel: a launch or a compiler
refuses what breaks them. The others keep code small, vectors aligned and warps filled.

Registers are an estimate: a kernel that is said to fit may still spill, seldom (`tests/cost_model` has some).
"""

from __future__ import annotations

from functools import lru_cache

from autosched.ir.closed_forms.arithmetic import is_one
from autosched.ir.expr import INDEX, Binary, Const, Expr, binary, imax, imin
from autosched.ir.instructions.matrices import ACROSS, MATRICES, MOST_COLUMNS
from autosched.ir.instructions.tiles import MOST_BOX, SPANS
from autosched.ir.stmt import Scope
from autosched.lower.limits import MAX_WORKSPACE_BYTES
from cost_model.analysis.statements import KNOWN_NESTS, Analysis
from cost_model.cpu.legality import Rule, extents, summed
from cost_model.gpu import machine as g
from cost_model.gpu.clusters import cluster_rules
from cost_model.gpu.kernels import PRIVATE, KernelWork, Work, kernels, unrolls
from cost_model.gpu.latency import occupancy, register_estimate, register_room
from cost_model.gpu.machine import GpuMachine

MAX_UNROLLED = 2048  # copies of one statement
MAX_INSTRUCTIONS = 8192  # arithmetic and memory instructions of all unrolled statements of a kernel
SPARED = 4  # a block has fewer threads than a warp only where no more than so many warps are possible
UNLIMITED = 1 << 20  # threads, where nothing but parameters says how many
MOST_HELD = 16  # copies of a thread that wait in registers; the code for each is written out
MAX_REGISTER_LOOP = 16  # iterations of a loop over a thread's own array that is not unrolled by us


def gpu_rules(analysis: Analysis, machine: GpuMachine) -> tuple[Rule, ...]:
    """Return all limits of one sketch, without those that are always true."""
    found = kernels(analysis)
    workspace = summed([a.bytes for a in analysis.allocations if a.buffer.scope is Scope.GLOBAL])
    rules = [Rule("workspace bytes", workspace <= MAX_WORKSPACE_BYTES)]
    for n, kernel in enumerate(found):
        prefix = f"kernel {n}: " if len(found) > 1 else ""
        rules += [Rule(prefix + rule.name, rule.holds) for rule in _kernel_rules(kernel, machine)]
    rules += [Rule("extents", bound >= 1) for bound in extents(analysis)]
    return tuple(r for r in rules if not (isinstance(r.holds, Const) and r.holds.value))


@lru_cache(maxsize=KNOWN_NESTS)
def _kernel_rules(kernel: KernelWork, machine: GpuMachine) -> tuple[Rule, ...]:
    facts = machine.facts
    warp: Expr = Const(facts.warp, INDEX)
    rules = [
        Rule("threads", kernel.launched <= facts.max_threads_per_block),
        Rule("threads along z", kernel.block[2] <= g.MAX_THREADS_Z),
        Rule("at least a warp", kernel.threads >= imin(warp, Const(_needed_threads(kernel), INDEX))),
        Rule("shared bytes", kernel.shared <= facts.shared_per_block),
        Rule("registers", register_estimate(kernel, machine) <= register_room(kernel, machine)),
        Rule("instructions", summed([_instructions(w) for w in kernel.works]) <= MAX_INSTRUCTIONS),
    ]
    if not is_one(kernel.resident):
        enough = occupancy(kernel, register_estimate(kernel, machine), machine) >= kernel.resident
        rules.append(Rule("resident blocks", enough))
    if not is_one(kernel.raster):
        rules.append(Rule("rows together", kernel.raster <= imax(kernel.grid[1], Const(1, INDEX))))
    if kernel.sharing is not None:
        rules += [Rule(name, holds) for name, holds in cluster_rules(kernel, kernel.sharing).items()]
    rules += [
        Rule(f"grid {axis}", size <= limit)
        for axis, size, limit in zip("xyz", kernel.grid, facts.max_grid, strict=True)
    ]
    for work in kernel.works:
        stage = work.statement.stage
        rules.append(Rule(f"unrolled {stage}", work.copies <= MAX_UNROLLED))
        rules.append(Rule(f"registers of {stage} in loops", _rolled(work) <= MAX_REGISTER_LOOP))
        if work.fill is not None and work.pipeline is not None:
            stages = work.pipeline.stages
            rules.append(Rule(f"stages of {stage}", stages <= imax(work.pipeline.iterations, Const(1, INDEX))))
            few = (stages <= 1) | (work.fill.trips <= MOST_HELD)
            rules.append(Rule(f"copies of {stage} held", few | ~work.is_held))
        if work.is_tile:
            rules += _tile_rules(work)
        row = MATRICES.get(work.statement.store.matrix)
        if row is not None and row.warps > 1:
            rules.append(Rule(f"columns of {stage}", work.own[-2].bound * ACROSS <= MOST_COLUMNS))
        if work.fill is not None:
            one = binary("eq", work.fill.vector, Const(1, INDEX))
            rules.append(Rule(f"vectors of {stage}", one | work.fill.aligned))
            widest = g.VECTOR_BYTES // work.statement.itemsize
            rules.append(Rule(f"width of {stage}", work.fill.vector <= max(1, widest)))
    return tuple(rules)


def _tile_rules(work: Work) -> list[Rule]:
    """Limits of the copy engine's boxes, and of pipeline stages, which are no more than tiles."""
    stage, buffer = work.statement.stage, work.tile
    shape = buffer.shape[int(buffer.has_versions) :]
    whole = binary("eq", shape[-1] * buffer.itemsize % SPANS[-1], Const(0, INDEX))
    rules = [Rule(f"panels of {stage}", whole)]
    rules += [Rule(f"box of {stage}", extent <= MOST_BOX) for extent in shape[:-1]]
    if work.pipeline is not None:
        most = imax(work.pipeline.iterations, Const(2, INDEX))
        rules.append(Rule(f"stages of {stage}", work.pipeline.stages <= most))
    return rules


def _needed_threads(kernel: KernelWork) -> int:
    """A warp is filled where the axes that have threads are long enough to give each of them a few points."""
    reach = 1
    for threads in kernel.block:
        reach *= _ceiling(threads)
    return max(1, reach // SPARED)


def _ceiling(extent: Expr) -> int:
    """Return the upper bound of a thread loop's extent over all tile sizes."""
    match extent:
        case Const(value=value):
            return int(value)
        case Binary(op="min", a=a, b=b):
            return min(_ceiling(a), _ceiling(b))
        case Binary(op="ceildiv", a=a):
            return _ceiling(a)
    return UNLIMITED


def _instructions(work: Work) -> Expr:
    return work.copies * len(work.statement.accesses)


def _rolled(work: Work) -> Expr:
    """Iterations of the thread's loops that index its own arrays and are left to the compiler to unroll: an array
    with an index that is not constant is no register."""
    result: Expr = Const(1, INDEX)
    for i, loop in enumerate(work.own, work.first):
        if not unrolls(loop) and any(a.moves(i) for a in work.accesses(*PRIVATE)):
            result = result * loop.bound
    return result
