"""Kernel analysis of a GPU nest: blocks, threads, and the memory requests of a warp's instructions, in closed form.

Each nest at the root is one kernel. Its threads run the same statements; a warp is the `warp` threads that are
neighbours with x varying fastest, so it is w_x by w_y by w_z threads with

    w_x = min(T_x, warp)    w_y = min(T_y, ceil(warp / T_x))    w_z = min(T_z, ceil(warp / (T_x T_y)))

An access moves by s_d elements from thread to thread along d. In global memory the warp touches

    sectors = min(product over d with s_d != 0 of min(w_d, max(1, w_d s_d size / 32)),
                  1 + (sum of s_d (w_d - 1)) size / 32)

sectors of 32 bytes. In shared memory, whose 32 banks are 4 bytes wide, w threads with a stride of s words meet in
32 / gcd(s, 32) banks, hence wait for ceil(w gcd(s, 32) / 32) wavefronts; equal addresses are one. Rows of threads
(y, z) that start in the same bank multiply that.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    add,
    ceil,
    divide,
    in_pairs,
    is_one,
    is_zero,
    maximum,
    minimum,
    multiply,
    product_of,
    real,
    sum_of,
    where,
)
from autosched.ir.expr import INDEX, Binary, Const, Expr, Var, binary, ceildiv, imax, imin, product, select
from autosched.ir.instructions.matrices import MATRICES
from autosched.ir.instructions.tiles import ALIGNMENT, BARRIER_BYTES, WARPGROUP, by_engine, piece_bytes
from autosched.ir.linear import linear
from autosched.ir.stmt import BLOCKS, THREADS, Buffer, ForKind, Scope, Sharing
from autosched.ir.visit import free_vars, is_copy
from cost_model.analysis.access import KNOWN, Access, stored
from cost_model.analysis.statements import KNOWN_NESTS, Analysis, Nest, Statement, Synchronisation
from cost_model.analysis.trips import AnalysedLoop
from cost_model.gpu import machine as g
from cost_model.gpu import matrices
from cost_model.gpu.fills import FALSE, NONE, OUTSIDE, TRUE, UNIT, Fill, divides, fill_of

Triple = tuple[Expr, Expr, Expr]
PRIVATE = (Scope.REGISTER, Scope.LOCAL)


@dataclass(frozen=True, eq=False)
class CopyPipeline:
    """Loops whose shared buffers are filled ahead, if `stages` > 1. Integer closed forms; `rounds`: of all iterations,
    that a thread goes through, real."""

    stages: Expr
    iterations: Expr
    rounds: Expr


@dataclass(frozen=True, eq=False)
class Work:
    """A statement as one thread executes it; real closed forms unless said otherwise."""

    statement: Statement
    first: int  # of its loops that the thread has for itself
    last: int  # the loop after them
    fill: Fill | None

    @property
    def own(self) -> tuple[AnalysedLoop, ...]:
        return self.statement.loops[self.first : self.last]

    @cached_property
    def pipeline(self) -> CopyPipeline | None:
        loops = [x for x in self.own if x.overlap is not None]
        if not loops or loops[0].overlap is None:
            return None
        around = self.own[: self.own.index(loops[-1]) + 1]
        return CopyPipeline(
            loops[0].overlap.stages, product([x.bound for x in loops]), product_of(x.trips for x in around)
        )

    @property
    def is_held(self) -> Expr:
        """Whether a fill of a pipeline passes through registers, bool."""
        if self.fill is None:
            return FALSE
        loops = [x for x in self.own if x.overlap is not None]
        outside = {a.buffer.name for a in self.accesses(*OUTSIDE)}
        copied = loops and loops[0].overlap is not None and loops[0].overlap.asynchronous
        if not (copied and is_copy(self.statement.store, lambda name: name in outside)):
            return TRUE
        return binary("lt", self.fill.vector * self.statement.itemsize, Const(g.COPIED_BYTES, INDEX))

    @property
    def is_tile(self) -> bool:
        """Whether the copy engine does it."""
        return self.statement.store.by_engine

    @property
    def tile(self) -> Buffer:
        """The shared buffer of a tile copy, with all its stages."""
        [found] = [a.buffer for a in self.statement.accesses if a.buffer.scope is Scope.SHARED]
        return found

    @property
    def piece(self) -> int:
        """Bytes of a tile that a thread copies at a time; 0 where the engine loads it."""
        outside = [a.buffer for a in self.accesses(*OUTSIDE)] if self.is_tile and self.is_fill else []
        return 0 if not outside or by_engine(outside[0]) else piece_bytes(outside[0])

    @property
    def is_fill(self) -> bool:
        """Whether the statement fills shared memory for the block."""
        return self.fill is not None or (self.is_tile and self.statement.write.buffer.scope is Scope.SHARED)

    @cached_property
    def executions(self) -> Expr:
        return multiply(product_of(loop.trips for loop in self.own), self.statement.weight)

    @cached_property
    def unrolled(self) -> Expr:
        """Copies of the statement in the code."""
        return product_of(loop.trips for loop in self.own if unrolls(loop))

    @cached_property
    def copies(self) -> Expr:
        """The same, integer; a product of matrices by warps counts for what one instruction does."""
        written = product([loop.bound for loop in self.own if unrolls(loop)])
        row = MATRICES.get(self.statement.store.matrix)
        return written if row is None else written // row.updates

    @cached_property
    def steps(self) -> Expr:
        """How often the unrolled code runs."""
        return multiply(product_of(loop.trips for loop in self.own if not unrolls(loop)), self.statement.weight)

    def accesses(self, *scopes: Scope) -> list[Access]:
        return [a for a in self.statement.accesses if a.buffer.scope in scopes]

    def strides(self, access: Access) -> Triple:
        """Elements from thread to thread along x, y and z; of an access that is no vector of a fill."""
        found = {x.kind: access.stride[i] for i, x in enumerate(self.statement.loops) if x.kind in THREADS}
        return (found.get(THREADS[0], NONE), found.get(THREADS[1], NONE), found.get(THREADS[2], NONE))

    def moving(self, access: Access) -> list[AnalysedLoop]:
        """The thread's own loops that move the access."""
        return [x for i, x in enumerate(self.own, self.first) if access.moves(i)]


@dataclass(frozen=True, eq=False)
class KernelWork:
    """`grid` and `block` are (x, y, z), `shared` bytes; all integer."""

    works: tuple[Work, ...]
    grid: Triple
    block: Triple
    shared: Expr
    barriers: Expr  # that a thread passes, real
    shuffles: Expr = ZERO  # values that a thread gets from others, real
    has_tile_pipeline: bool = False  # one more warpgroup loads tiles
    is_persistent: bool = False  # a multiprocessor's resident blocks go through the work of all
    resident: Expr = UNIT  # blocks that a multiprocessor should keep, integer
    raster: Expr = UNIT  # rows of blocks that are started together, integer
    sharing: Sharing | None = None

    @property
    def has_copies(self) -> bool:
        """Whether threads copy tiles into a ring."""
        return any(w.piece for w in self.works)

    @property
    def blocks(self) -> Expr:
        return product(list(self.grid))

    @property
    def threads(self) -> Expr:
        return product(list(self.block))

    @property
    def cluster(self) -> Expr:
        """Blocks that load tiles for each other, integer."""
        return UNIT if self.sharing is None else self.sharing.down * self.sharing.across

    @property
    def turns(self) -> Expr:
        """Blocks whose work one persistent block does, integer; other quantities of a block are of one turn."""
        return UNIT if self.sharing is None else self.sharing.turns

    @property
    def launched(self) -> Expr:
        """Threads of a block, the producer warpgroup included."""
        return self.threads * self.turns + WARPGROUP if self.has_tile_pipeline else self.threads

    def warps(self, warp: int) -> Expr:
        return ceildiv(self.threads, warp)

    def warp_shape(self, warp: int) -> Triple:
        x, y, z = self.block
        return (
            imin(x, Const(warp, INDEX)),
            imin(y, ceildiv(Const(warp, INDEX), x)),
            imin(z, ceildiv(Const(warp, INDEX), x * y)),
        )


def is_product(work: Work) -> bool:
    """Whether warps do it, by instructions for products of matrices."""
    return bool(work.statement.store.matrix)


def unrolls(loop: AnalysedLoop) -> bool:
    return loop.kind in (ForKind.UNROLL, ForKind.VECTORIZE)


def kernels(analysis: Analysis) -> tuple[KernelWork, ...]:
    """One for each nest at the root, in order."""
    return tuple(_kernel(nest) for nest in analysis.nests if nest.statements)


@lru_cache(maxsize=KNOWN_NESTS)
def _kernel(nest: Nest) -> KernelWork:
    """Analyse one kernel independently of the others, so that kernels of several sketches are analysed once."""
    statements = nest.statements
    bounds = {x.kind: x.bound for s in statements for x in s.loops}
    grid = [bounds.get(kind, UNIT) for kind in BLOCKS]
    block = [bounds.get(kind, UNIT) for kind in THREADS]
    works = tuple(_work(s) for s in statements)
    arrays = [a.buffer for a in nest.allocations if a.buffer.scope is Scope.SHARED]
    rings = [w.pipeline.stages for w in works if w.is_tile and w.is_fill and w.pipeline is not None][:1]
    unit = ALIGNMENT if rings else g.VECTOR_BYTES
    head = nest.head
    turns = UNIT if head is None or head.sharing is None else head.sharing.turns
    common = {w.tile.name for w in works if w.is_tile and w.is_fill}  # of all turns
    shared = [_shared_bytes(b, unit) * (UNIT if b.name in common else turns) for b in arrays]
    shared += [n * BARRIER_BYTES for n in rings]
    passed = (_times_met(b) for b in nest.barriers)
    shuffled = (multiply(_times_met(s), float(s.values)) for s in nest.shuffles)
    return KernelWork(
        works,
        (grid[0], grid[1], grid[2]),
        (block[0], block[1], block[2]),
        in_pairs(operator.add, shared, NONE),
        sum_of(passed),
        sum_of(shuffled),
        bool(rings),
        any(x.overlap is not None and x.overlap.multiprocessors > 0 for w in works for x in w.own),
        UNIT if head is None or head.resident is None else head.resident,
        UNIT if head is None or head.raster is None else head.raster,
        None if head is None else head.sharing,
    )


def _times_met(meeting: Synchronisation) -> Expr:
    """How often a thread comes by. An iteration of a pipeline has one barrier, not two."""
    passed = multiply(product_of(x.trips for x in meeting.loops if x.kind not in (*BLOCKS, *THREADS)), meeting.weight)
    overlap = meeting.loops[-1].overlap if meeting.loops else None
    return passed if overlap is None else multiply(passed, where(overlap.stages > 1, 0.5, 1.0))


def _shared_bytes(buffer: Buffer, alignment: int) -> Expr:
    _, shape = stored(buffer, (NONE,) * len(buffer.shape))
    return ceildiv(product(shape) * buffer.itemsize, alignment) * alignment


def _work(statement: Statement) -> Work:
    first = sum(x.kind in BLOCKS for x in statement.loops)
    last = statement.depth - sum(x.kind in THREADS for x in statement.loops)
    return Work(statement, first, last, fill_of(statement))


# what a warp asks of memory


def contiguous(work: Work, access: Access) -> Expr:
    """Elements that a thread reads or writes one after another in unrolled code, integer."""
    if not access.index:
        return UNIT
    result = UNIT
    for atom, coefficient in linear(access.index[-1]).terms:
        if not is_one(coefficient):
            continue
        loop = next((x for x in work.own if x.var in free_vars(atom) and unrolls(x)), None)
        if loop is None:
            continue
        if isinstance(atom, Var):
            result = loop.bound
        elif isinstance(atom, Binary) and atom.op == "mod" and atom.a is loop.var:
            result = imin(atom.b, loop.bound)
    return result


def merged(work: Work, access: Access) -> Expr:
    """Elements of one instruction: neighbours, up to 16 bytes, where everything else keeps them aligned; integer.

    In shared memory the compiler finds them, whose arrays it knows how to align. In global memory it does not know the
    caller's: there they are the innermost unrolled loop of a statement that writes each element once, which the
    emitter makes a vector (see `codegen.c.vectors`).
    """
    if work.fill is not None:
        return work.fill.width if access.buffer.scope in (*OUTSIDE, Scope.SHARED) else UNIT
    if access.buffer.scope is not Scope.SHARED and not _emitted_as_vector(work, access):
        return UNIT
    _, shape = stored(access.buffer, (NONE,) * len(access.buffer.shape))
    run, row = contiguous(work, access), product(shape[-1:])
    size, result = access.buffer.itemsize, UNIT
    for width in [n for n in (2, 4, 8, 16) if g.COPIED_BYTES <= n * size <= g.VECTOR_BYTES]:
        wide: Expr = Const(width, INDEX)
        even = divides(wide, run) & divides(wide, row)
        for stride in work.strides(access):
            even = even & divides(wide, stride)
        result = select(even, wide, result)
    return result


def _emitted_as_vector(work: Work, access: Access) -> bool:
    if access.buffer.scope not in OUTSIDE or not work.own:
        return False
    if work.statement.updates and (access is work.statement.write or work.statement.write.moves(work.last - 1)):
        return False
    return bool(work.own) and unrolls(work.own[-1]) and is_one(access.stride[work.last - 1])


def elements(work: Work, access: Access) -> Expr:
    """Elements that a thread loads or stores; copies of an unrolled loop at one address count once; real."""
    result: Expr = multiply(work.statement.weight, float(access.count))
    for i, loop in enumerate(work.own, work.first):
        if not unrolls(loop) or access.moves(i):
            result = multiply(result, loop.trips)
    return result


def transfers(work: Work, access: Access) -> Expr:
    """Load or store instructions of a thread, real."""
    if is_product(work):
        return multiply(matrices.loads_of(work.statement, access, work.own, work.first), work.executions)
    return divide(elements(work, access), merged(work, access) if work.fill is None else work.fill.width)


def sectors(kernel: KernelWork, work: Work, access: Access, warp: int, nbytes: int = g.SECTOR) -> Expr:
    """Sectors, or other units of `nbytes`, that one instruction of a warp accesses in global memory, real."""
    size = access.buffer.itemsize / nbytes
    if work.fill is not None:
        walked = multiply(work.fill.vector, float(warp))
        run = minimum(work.fill.run(access.buffer.name), walked)
        return minimum(
            multiply(work.fill.width, float(warp)), multiply(divide(walked, run), maximum(1.0, multiply(run, size)))
        )
    shape, span, result = kernel.warp_shape(warp), ZERO, ONE
    for stride, count in zip(work.strides(access), shape, strict=True):
        if is_zero(stride):
            continue
        length = real(binary("max", stride, stride * -1))
        span = add(span, multiply(length, count - 1))
        touched = minimum(count, maximum(1.0, multiply(multiply(length, count), size)))
        result = multiply(result, where(binary("eq", stride, NONE), 1.0, touched))
    return minimum(result, add(1.0, multiply(span, size)))


def wavefronts(kernel: KernelWork, work: Work, access: Access, warp: int) -> Expr:
    """Cycles of shared memory for one instruction of a warp, real."""
    if is_product(work):
        return matrices.load_cycles(work.statement, access, work.own, work.first)
    if access.buffer.layout is not None and access.buffer.layout.panels:  # whose rows are in different banks
        return maximum(1.0, multiply(merged(work, access), warp * access.buffer.itemsize / g.WAVEFRONT))
    words = access.buffer.itemsize / g.BANK_BYTES
    if work.fill is None:
        return _in_turns(kernel, work, access, warp)
    # neighbours in the walk: along the last dimension, then along the one before
    row = imax(work.fill.shape[-1] // work.fill.vector, UNIT)
    across = imin(row, Const(warp, INDEX))
    steps = (NONE, *work.fill.steps)[-2:]
    return bank_cycles((steps[1] * work.fill.vector, steps[0]), (across, ceildiv(Const(warp, INDEX), across)), words)


def _in_turns(kernel: KernelWork, work: Work, access: Access, warp: int) -> Expr:
    """Wavefronts where all banks serve 32 threads of 4 bytes, 16 of 8 and 8 of 16 at a time, half of a warp where
    neighbours, or every second thread, have the same addresses."""
    x, y, _ = kernel.block
    along_x, along_y, _ = work.strides(access)
    still_x, still_y = binary("eq", along_x, NONE), binary("eq", along_y, NONE)
    pairs = select(x >= 4, still_x, select(x >= 2, still_x | still_y, still_y & (y >= 2)))
    words, width = access.buffer.itemsize / g.BANK_BYTES, merged(work, access)

    def at_a_time(threads: int) -> Expr:
        cycles = bank_cycles(work.strides(access), kernel.warp_shape(threads), words)
        return multiply(cycles, float(warp // threads))

    result = at_a_time(warp)
    for n in (2, 4):
        is_wide = binary("eq", width * access.buffer.itemsize, Const(n * g.BANK_BYTES, INDEX))
        result = where(is_wide, where(pairs, at_a_time(2 * warp // n), at_a_time(warp // n)), result)
    return result


def bank_cycles(strides: Sequence[Expr], counts: Sequence[Expr], words: float) -> Expr:
    """Wavefronts of counts[0] * counts[1] * .. threads, whose elements of `words` 4-byte words lie strides[d] elements
    apart along d, real; see the module's text."""
    rows: Expr = ONE
    everything: Expr = ONE
    finest: Expr = real(float(g.BANKS))
    for stride, count in zip(strides, counts, strict=True):
        if is_zero(stride):
            continue
        still = binary("eq", stride, NONE)
        shared = _common_banks(stride, words)
        rows = multiply(rows, where(still, 1.0, ceil(divide(multiply(count, shared), float(g.BANKS)))))
        everything = multiply(everything, where(still, 1.0, count))
        finest = where(still, finest, minimum(finest, shared))
    apart = ceil(divide(multiply(everything, finest), float(g.BANKS)))
    return maximum(1.0, maximum(rows, apart))


@lru_cache(maxsize=KNOWN)
def _common_banks(stride: Expr, words: float) -> Expr:
    """gcd(stride in words, banks), real; less than a word counts as one."""
    distance = stride * int(words) if words >= 1 else ceildiv(stride, round(1 / words))
    result: Expr = ONE
    power = 2
    while power <= g.BANKS:
        result = where(binary("eq", distance % power, NONE), float(power), result)
        power *= 2
    return result
