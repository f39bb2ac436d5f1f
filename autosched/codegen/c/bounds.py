"""Launch bounds and unroll pragmas: the registers that the compiler may use.

Without a word on that, ptxas rounds registers down to a number at which another block or two fit, and spills what is
left over. A kernel that holds its results in registers wants them all: the bounds leave room for these, for the
operands of a step and the next, and for addresses. Kernels with few registers of their own are left to ptxas.
CUDA C++ Programming Guide, "Launch Bounds".

How far loops are unrolled is a parameter of the search. The compiler would unroll the loops around such a body again,
as often as it likes, and need registers for all the loads that it moves up. It would also unroll the copies to shared
memory, however many they are, and keep the addresses of all in registers; a few at a time are enough to have loads on
their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from autosched.ir.expr import Binary, Const
from autosched.ir.simplify import Affine
from autosched.ir.stmt import Barrier, Buffer, For, ForKind, Stmt, Store, walk
from autosched.ir.visit import exprs_of, free_vars, subexpressions
from autosched.lower.passes.overlap_iterations import HELD

PARTITIONS = 4  # of a multiprocessor, each with its own registers and warps (compute capability 5.0 and later)
REGISTERS = 1 << 14  # of a partition
UNIT = 8  # registers are given to a thread in multiples of this
MOST = 255  # of a thread
WARP = 32
SPARE = 32  # addresses, counters, loads on their way
AHEAD = 16  # the same once more, of copies that are started ahead
WIDEST = 16  # bytes of one load
FEW = 16  # results and operands up to this number leave ptxas free
RESIDENT_THREADS, RESIDENT_BLOCKS = 1024, 16  # that every device keeps on a multiprocessor
MOST_COPIES = 32  # of statements that the compiler may make of an unrolled body
FEW_COPIES = 4  # bodies smaller than this are left to the compiler
HELD_ADDRESSES = 2  # registers beside an element that is held for the next iteration of a pipeline: where it goes
TOGETHER = 4  # copies to shared memory that are unrolled
STARTED = 16  # the same, of asynchronous ones of an element each, which need no registers but an address for all
MOST_APART = 8  # that are unrolled where each has its own divisions


@dataclass
class Registers:
    """The registers of a kernel's thread in bytes, tracked while its statements are emitted."""

    private: int = 0  # its own arrays that are alive
    most_private: int = 0
    most_operands: int = 0  # of one step of an unrolled reduction
    unrolled: tuple[For, ...] = ()  # loops around, up to the first that is not unrolled
    asked: int | None = None  # resident blocks that the schedule asks for
    most_apart: int = 0  # copies with places of their own that are written out one after the other
    summed: set[str] = field(default_factory=set)  # arrays that tiles of products are added to

    @contextmanager
    def holding(self, buffer: Buffer, count: int) -> Iterator[None]:
        """Inside, an array of `count` elements is alive."""
        size = count * (buffer.itemsize + 4 * HELD_ADDRESSES * buffer.name.endswith(HELD))
        self.private += size
        self.most_private = max(self.most_private, self.private)
        yield
        self.private -= size

    @contextmanager
    def within(self, loop: For) -> Iterator[None]:
        around = self.unrolled
        self.unrolled = (*around, loop) if is_unrolled(loop) else ()
        yield
        self.unrolled = around

    def read(self, operands: Iterable[tuple[Affine, int]]) -> None:
        """A step of a reduction reads elements at these places, with these sizes."""
        size = sum(operand_bytes(index, itemsize, self.unrolled) for index, itemsize in operands)
        self.most_operands = max(self.most_operands, size)

    def unrolling(self, loop: For, is_shared: Callable[[str], bool]) -> int | None:
        """As the function `unrolling` says; copies that are written out are held."""
        self.most_apart = max(self.most_apart, _held_copies(loop, is_shared))
        return unrolling(loop, is_shared)

    def blocks(self, threads: int, ahead: bool) -> int | None:
        """Blocks that a multiprocessor shall keep, for the launch bounds; None where the compiler may choose."""
        if self.asked is not None:
            return self.asked
        operands = self.most_operands + 4 * HELD_ADDRESSES * self.most_apart
        return resident_blocks(threads, self.most_private, operands, ahead)


def resident_blocks(threads: int, private_bytes: int, operand_bytes: int, ahead: bool = False) -> int | None:
    """Return the blocks on a multiprocessor that leave each thread its registers; None if the compiler may choose."""
    held = -(-(private_bytes + operand_bytes) // 4)
    if held <= FEW:
        return None
    wanted = min(MOST + 1, -(-(held + SPARE + AHEAD * ahead) // UNIT) * UNIT)
    warps = -(-threads // WARP)
    blocks = min(REGISTERS // (WARP * wanted) * PARTITIONS // warps, RESIDENT_THREADS // (WARP * warps))
    return max(1, min(blocks, RESIDENT_BLOCKS))


def operand_bytes(index: Affine, itemsize: int, loops: Sequence[For]) -> int:
    """What a thread holds of an operand while it works on one step of a reduction: an element for each of the unrolled
    points that it differs in, or the whole of a wide load where the steps of the reduction are neighbours."""
    elements, wide = 1, 1
    for loop in loops:
        step = dict(index.terms).get(loop.var)
        assert isinstance(loop.bound, Const)
        if not loop.reduce and any(loop.var in free_vars(atom) for atom, _ in index.terms):
            elements *= int(loop.bound.value)
        elif loop.reduce and step == 1:
            wide = min(int(loop.bound.value), WIDEST // itemsize)
    return elements * max(1, wide) * itemsize


def unrolling(loop: For, is_shared: Callable[[str], bool]) -> int | None:
    """Return the compiler's unroll factor of a loop that the schedule does not unroll; None for its own choice."""
    stores = [s for s in walk(loop.body) if isinstance(s, Store)]
    nested = any(isinstance(s, (Barrier, For)) and not is_unrolled(s) for s in walk(loop.body))
    if stores and not nested and _fills(stores, is_shared):
        is_single = all(s.asynchronous for s in stores) and not any(isinstance(s, For) for s in walk(loop.body))
        return _apart(loop, stores) or (STARTED if is_single else TOGETHER)
    copies = _copies(loop.body)
    if copies < FEW_COPIES:
        return None
    return 1 if nested else max(1, MOST_COPIES // copies)


def _held_copies(loop: For, is_shared: Callable[[str], bool]) -> int:
    """Copies of a loop that is written out for their places, each of which registers hold; 0 of another loop."""
    stores = [s for s in walk(loop.body) if isinstance(s, Store)]
    return (_apart(loop, stores) or 0) if stores and _fills(stores, is_shared) else 0


def _fills(stores: Sequence[Store], is_shared: Callable[[str], bool]) -> bool:
    return all(is_shared(b) for s in stores for b in s.buffers)


def _apart(loop: For, stores: Sequence[Store]) -> int | None:
    """The iterations of a short loop whose places need divisions; None of another. Written out, all that does not move
    with the loops around is computed before these: the places of a padded image, and which of them are inside."""
    if not isinstance(loop.bound, Const) or loop.bound.value > MOST_APART:
        return None
    nodes = (x for s in stores for e in exprs_of(s) for x in subexpressions(e))
    divided = (x for x in nodes if isinstance(x, Binary) and x.op in ("floordiv", "mod"))
    return int(loop.bound.value) if any(loop.var in free_vars(x) for x in divided) else None


def is_unrolled(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind in (ForKind.UNROLL, ForKind.VECTORIZE)


def _copies(stmt: Stmt) -> int:
    """Stores in the code when the loops that say so are unrolled."""
    if isinstance(stmt, Store):
        return 1
    copies = sum(map(_copies, stmt.body_stmts))
    if isinstance(stmt, For) and is_unrolled(stmt) and isinstance(stmt.bound, Const):
        copies *= int(stmt.bound.value)
    return copies
