"""Launch bounds and unroll pragmas: the registers that the compiler may use.

Without launch bounds, ptxas limits the registers of a thread so that another block or two fit on the multiprocessor,
and spills the rest. A kernel that keeps its results in registers needs them all: the bounds leave enough for the
results, the operands of a step and of the next, and addresses. Kernels with few private values are left to ptxas.
CUDA C++ Programming Guide, "Launch Bounds".

How far loops are unrolled is a parameter of the search. Without pragmas the compiler would unroll the loops around an
unrolled body again, and need registers for all the loads that it hoists. It would also unroll all copies to shared
memory and keep their addresses in registers, though a few loads in flight suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from autosched.ir.expr import Binary, Const
from autosched.ir.simplify import Affine
from autosched.ir.stmt import Barrier, Buffer, For, ForKind, Stmt, Store, walk
from autosched.ir.visit import exprs_of, free_vars, is_number, subexpressions
from autosched.lower.passes.overlap_iterations import HELD

PARTITIONS = 4  # of a multiprocessor, each with its own registers and warps (compute capability 5.0 and later)
REGISTERS = 1 << 14  # of a partition
UNIT = 8  # registers are given to a thread in multiples of this
MAX_REGISTERS = 255  # of a thread
WARP = 32
ADDRESS_REGISTERS = 32  # for addresses, counters and loads in flight
ASYNC_COPY_REGISTERS = 16  # the same for asynchronous copies
WIDEST_LOAD_BYTES = 16  # bytes of one load
NEGLIGIBLE_REGISTERS = 16  # up to this number for results and operands there are no bounds
RESIDENT_THREADS, RESIDENT_BLOCKS = 1024, 16  # that fit on a multiprocessor of every device
MAX_UNROLLED_STORES = 32  # copies of statements after the compiler has unrolled a loop
MIN_LIMITED_STORES = 4  # unrolling of loops with fewer stores is left to the compiler
HELD_ADDRESSES = 2  # of an element that is prefetched into a register for the next iteration: registers of its address
UNROLLED_FILLS = 4  # unroll factor of loops that copy to shared memory
UNROLLED_ASYNC_FILLS = 16  # the same for asynchronous copies of one element each, which need a single address register
MAX_FULLY_UNROLLED = 8  # iterations of a loop with divisions that is unrolled completely


@dataclass
class Registers:
    """The registers of a kernel's thread in bytes, tracked while its statements are emitted."""

    private: int = 0  # live private arrays
    max_private_bytes: int = 0
    max_operand_bytes: int = 0  # of one step of an unrolled reduction
    unrolled: tuple[For, ...] = ()  # enclosing loops, up to the first that is not unrolled
    requested_blocks: int | None = None  # resident blocks that the schedule requests
    max_unrolled_fills: int = 0  # copies to shared memory in a completely unrolled loop
    summed: set[str] = field(default_factory=set)  # accumulators of tiles of products

    @contextmanager
    def live_array(self, buffer: Buffer, count: int) -> Iterator[None]:
        """Count a private array of `count` elements as live inside the context."""
        size = count * (buffer.itemsize + 4 * HELD_ADDRESSES * buffer.name.endswith(HELD))
        self.private += size
        self.max_private_bytes = max(self.max_private_bytes, self.private)
        yield
        self.private -= size

    @contextmanager
    def within(self, loop: For) -> Iterator[None]:
        """Track the loop as enclosing inside the context."""
        outer = self.unrolled
        self.unrolled = (*outer, loop) if is_unrolled(loop) else ()
        yield
        self.unrolled = outer

    def count_operands(self, operands: Iterable[tuple[Affine, int]]) -> None:
        """Count the operands of a step of a reduction: (index in memory, bytes of an element)."""
        size = sum(operand_bytes(index, itemsize, self.unrolled) for index, itemsize in operands)
        self.max_operand_bytes = max(self.max_operand_bytes, size)

    def unroll_factor(self, loop: For, is_shared: Callable[[str], bool]) -> int | None:
        """Return the unroll factor as the function of this name does; count copies in completely unrolled loops."""
        self.max_unrolled_fills = max(self.max_unrolled_fills, _unrolled_fills(loop, is_shared))
        return unroll_factor(loop, is_shared)

    def blocks(self, threads: int, has_async_copies: bool) -> int | None:
        """Return the resident blocks for the launch bounds; None for the compiler's choice."""
        if self.requested_blocks is not None:
            return self.requested_blocks
        operands = self.max_operand_bytes + 4 * HELD_ADDRESSES * self.max_unrolled_fills
        return resident_blocks(threads, self.max_private_bytes, operands, has_async_copies)


def resident_blocks(threads: int, private_bytes: int, operand_bytes: int, has_async_copies: bool = False) -> int | None:
    """Return the blocks on a multiprocessor that leave each thread its registers; None if the compiler may choose."""
    used = -(-(private_bytes + operand_bytes) // 4)
    if used <= NEGLIGIBLE_REGISTERS:
        return None
    registers = min(
        MAX_REGISTERS + 1, -(-(used + ADDRESS_REGISTERS + ASYNC_COPY_REGISTERS * has_async_copies) // UNIT) * UNIT
    )
    warps = -(-threads // WARP)
    blocks = min(REGISTERS // (WARP * registers) * PARTITIONS // warps, RESIDENT_THREADS // (WARP * warps))
    return max(1, min(blocks, RESIDENT_BLOCKS))


def operand_bytes(index: Affine, itemsize: int, loops: Sequence[For]) -> int:
    """Return the register bytes of an operand in one step of a reduction: an element for each iteration of unrolled
    loops that it depends on; times a vector where the steps of the reduction are adjacent."""
    elements, wide = 1, 1
    for loop in loops:
        step = dict(index.terms).get(loop.var)
        assert isinstance(loop.bound, Const)
        if not loop.reduce and any(loop.var in free_vars(atom) for atom, _ in index.terms):
            elements *= int(loop.bound.value)
        elif loop.reduce and step == 1:
            wide = min(int(loop.bound.value), WIDEST_LOAD_BYTES // itemsize)
    return elements * max(1, wide) * itemsize


def unroll_factor(loop: For, is_shared: Callable[[str], bool]) -> int | None:
    """Return the compiler's unroll factor of a loop that the schedule does not unroll; None for its own choice."""
    stores = [s for s in walk(loop.body) if isinstance(s, Store)]
    nested = any(isinstance(s, (Barrier, For)) and not is_unrolled(s) for s in walk(loop.body))
    if stores and not nested and _fill_shared_memory(stores, is_shared):
        is_single = all(s.asynchronous for s in stores) and not any(isinstance(s, For) for s in walk(loop.body))
        return _full_unroll_factor(loop, stores) or (UNROLLED_ASYNC_FILLS if is_single else UNROLLED_FILLS)
    copies = _count_stores(loop.body)
    if copies < MIN_LIMITED_STORES:
        return None
    return 1 if nested else max(1, MAX_UNROLLED_STORES // copies)


def _unrolled_fills(loop: For, is_shared: Callable[[str], bool]) -> int:
    """Return the iterations of a completely unrolled loop that copies to shared memory; 0 for another loop."""
    stores = [s for s in walk(loop.body) if isinstance(s, Store)]
    return (_full_unroll_factor(loop, stores) or 0) if stores and _fill_shared_memory(stores, is_shared) else 0


def _fill_shared_memory(stores: Sequence[Store], is_shared: Callable[[str], bool]) -> bool:
    return all(is_shared(b) for s in stores for b in s.buffers)


def _full_unroll_factor(loop: For, stores: Sequence[Store]) -> int | None:
    """Return the iterations of a short loop with divisions in its indices; None for another loop. Complete unrolling
    lets the compiler hoist the divisions out of enclosing loops: indices into a padded image, and their range
    checks."""
    if not is_number(loop.bound) or loop.bound.number > MAX_FULLY_UNROLLED:
        return None
    nodes = (x for s in stores for e in exprs_of(s) for x in subexpressions(e))
    divided = (x for x in nodes if isinstance(x, Binary) and x.op in ("floordiv", "mod"))
    return loop.bound.number if any(loop.var in free_vars(x) for x in divided) else None


def is_unrolled(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind in (ForKind.UNROLL, ForKind.VECTORIZE)


def _count_stores(stmt: Stmt) -> int:
    """Return the stores in the code after the unrolled loops are unrolled."""
    if isinstance(stmt, Store):
        return 1
    copies = sum(map(_count_stores, stmt.body_stmts))
    if isinstance(stmt, For) and is_unrolled(stmt) and isinstance(stmt.bound, Const):
        copies *= int(stmt.bound.value)
    return copies
