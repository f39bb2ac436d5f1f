"""Statements of the intermediate representation.

    Stmt = For(var, extent, bound, kind, body, reduce) | Seq(stmts) | If(cond, then, otherwise)
         | Allocate(buffer, body) | Store(buffers, indices, values, reducer) | Prefetch(buffer, indices)
         | Barrier() | Shuffle(buffers, indices, values, lane, warp) | Commit() | Wait(pending)
         | TileCopy(buffer, place, outside, origin, shape)

A `Func` is a body with its parameter buffers. Loops run from 0 to `extent` (exclusive). `extent` may
depend on outer loop variables (tails are loops that stop early, never guards); `bound` is its
largest value as a closed form over parameters. A `Store` with a reducer combines into what is there.
The same classes serve the symbolic nest (extents contain `Param`) and the concrete one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Const, Expr, Var


class ForKind(Enum):
    SERIAL = "serial"
    PARALLEL = "parallel"  # consecutive parallel loops are collapsed into one task index
    UNROLL = "unroll"
    VECTORIZE = "vectorize"
    BLOCK_X = "blockIdx.x"
    BLOCK_Y = "blockIdx.y"
    BLOCK_Z = "blockIdx.z"
    THREAD_X = "threadIdx.x"
    THREAD_Y = "threadIdx.y"
    THREAD_Z = "threadIdx.z"


BLOCKS = (ForKind.BLOCK_X, ForKind.BLOCK_Y, ForKind.BLOCK_Z)
THREADS = (ForKind.THREAD_X, ForKind.THREAD_Y, ForKind.THREAD_Z)


class Scope(Enum):
    PARAM = "param"  # the caller's memory
    GLOBAL = "global"  # workspace shared by all threads
    SHARED = "shared"  # one for each block of GPU threads
    WARP = "warp"  # the same, but each element is in a register of the thread that writes it: operands of products
    LOCAL = "local"  # private to a thread
    REGISTER = "register"  # accumulators; constant indices only, lanes padded to whole vectors


@dataclass(frozen=True)
class Layout:
    """How a buffer is stored: outer dimensions in `order`, then one inner tile for each (dim, factor) of `tiles`.

    A panel of B[k, j] with tile nr is Layout(order=(1, 0), tiles=((1, nr),)): [j // nr][k][j % nr]. The last stored
    dimension is followed by `pad` elements that nobody uses. One in `panels` is stored as `tiles.py` says.
    """

    order: tuple[int, ...]
    tiles: tuple[tuple[int, Expr], ...] = ()
    pad: Expr | None = None
    panels: bool = False


@dataclass(frozen=True)
class Buffer:
    """`shape` are closed forms; the last dimension is contiguous unless `layout` says otherwise. With `has_versions`,
    the first dimension is stored first: the copies that the iterations of a pipeline take in turn."""

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scope: Scope
    layout: Layout | None = None
    has_versions: bool = False

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].nbytes


@dataclass(frozen=True)
class Reducer:
    """An associative and commutative combination of `n` values: results[i] over lhs and rhs, starting at identity."""

    name: str
    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    results: tuple[Expr, ...]
    identity: tuple[Const, ...]

    @property
    def is_sum(self) -> bool:
        """Whether it adds up one value."""
        return self._is("add")

    @property
    def is_max(self) -> bool:
        """Whether it is the largest of one value."""
        return self._is("max")

    def _is(self, op: str) -> bool:
        if len(self.results) != 1:
            return False
        both = self.results[0]
        return isinstance(both, Binary) and both.op == op and {both.a, both.b} == {self.lhs[0], self.rhs[0]}


T = TypeVar("T")


def changed(node: T, **values: object) -> T:
    """The dataclass with these values in its fields, itself where it has them.

    As `dataclasses.replace`, in a tenth of its time: lowering does little else.
    """
    fields = node.__dict__
    for name, value in values.items():
        if fields[name] is not value:
            other = object.__new__(type(node))
            other.__dict__.update(fields, **values)
            return other
    return node


class Stmt:
    """Base of all statements."""

    @property
    def body_stmts(self) -> tuple[Stmt, ...]:
        return ()

    def __str__(self) -> str:
        from autosched.ir.printer import stmt_text

        return stmt_text(self)


@dataclass(frozen=True)
class Overlap:
    """Iterations overlap: the shared buffers that a loop fills first have one place for each of `stages` iterations.

    Loops directly inside one another with the same overlap count as one. `lower/passes/overlap_iterations.py` makes it
    so; until then the loop runs as written. `asynchronous`: copies are left to the memory system, if they only move
    elements. `by_tiles`: they are loads of whole tiles by a warp that does nothing else, see `tiles.py`; such a loop
    stays as written, its code has the rings. Of a GPU with so many `multiprocessors` each one's resident blocks then go
    through the work of all blocks, and load ahead for the next; with 0 each block has its own.
    """

    stages: Expr
    asynchronous: bool
    by_tiles: bool = False
    multiprocessors: int = 0


@dataclass(frozen=True)
class Sharing:
    """Of a kernel with a ring whose blocks go through the work of all: `down` by `across` of them, next to each other
    along blockIdx.y and blockIdx.x, are a cluster. What both read of a tile is loaded once, a half by each, and goes to
    both. One block does the work of `turns`, each by warpgroups of its own: while some multiply others store."""

    down: Expr
    across: Expr
    turns: Expr


@dataclass(frozen=True)
class For(Stmt):
    """`resident`, of a kernel's outermost loop: blocks that a multiprocessor should have registers for at a time;
    `raster`: rows of blocks that are started together, see `raster.py`; `sharing`: what blocks have in common."""

    var: Var
    extent: Expr
    bound: Expr
    kind: ForKind
    body: Stmt
    reduce: bool = False  # iterates over a reduction axis, or along a recurrence, in order
    overlap: Overlap | None = None
    resident: Expr | None = None
    raster: Expr | None = None
    sharing: Sharing | None = None

    @property
    def body_stmts(self) -> tuple[Stmt, ...]:
        return (self.body,)


@dataclass(frozen=True)
class Seq(Stmt):
    stmts: tuple[Stmt, ...]

    @property
    def body_stmts(self) -> tuple[Stmt, ...]:
        return self.stmts


@dataclass(frozen=True)
class If(Stmt):
    cond: Expr
    then: Stmt
    otherwise: Stmt | None = None

    @property
    def body_stmts(self) -> tuple[Stmt, ...]:
        return (self.then,) if self.otherwise is None else (self.then, self.otherwise)


@dataclass(frozen=True)
class Allocate(Stmt):
    """`buffer` exists inside `body`; its contents are undefined at entry."""

    buffer: Buffer
    body: Stmt

    @property
    def body_stmts(self) -> tuple[Stmt, ...]:
        return (self.body,)


@dataclass(frozen=True)
class Store(Stmt):
    """buffers[i][indices] = values[i], all values computed first; with `reducer`, = combine(old, value).

    An `asynchronous` one starts a copy from global to shared memory: nobody may touch the element until the thread
    that started it has waited for it, other threads not before the next barrier after that.

    A `non_temporal` one may go around the caches: what it writes is not read soon.

    With `atomic` that is one step, also where other threads update the element (see `ir/instructions/atomics.py`).

    With `matrix`, a row of `matrices.py`, warps do it together with the loops directly around it. `by_engine`: it is
    one element of a tile that the copy engine moves.
    """

    buffers: tuple[str, ...]
    indices: tuple[Expr, ...]
    values: tuple[Expr, ...]
    reducer: Reducer | None = None
    stage: str = ""
    asynchronous: bool = False
    atomic: bool = False
    non_temporal: bool = False
    matrix: str = ""
    by_engine: bool = False


@dataclass(frozen=True)
class Prefetch(Stmt):
    """A hint to bring the line of buffer[indices] into the cache of `level`, 1 or 2; no effect on results.

    One that `writes` brings it to be written there.
    """

    buffer: str
    indices: tuple[Expr, ...]
    level: int = 1
    writes: bool = False


@dataclass(frozen=True)
class Barrier(Stmt):
    """All threads of a block arrive before any goes on; what they wrote to shared memory is visible after it.

    Where only the threads of each warp need what they wrote it is `of_warp`, and instructions of warps take its place.
    """

    of_warp: bool = False


@dataclass(frozen=True)
class Shuffle(Stmt):
    """buffers[i][indices] = values[i] of the thread that is number `lane` in the same warp.

    A warp is `warp` neighbouring threads of a block (a power of two; x varies fastest; the last warp may be short).
    All its threads come by together and read all values before any is written; memory that others see is not
    synchronised. What is written is undefined where the warp has no such thread.
    """

    buffers: tuple[str, ...]
    indices: tuple[Expr, ...]
    values: tuple[Expr, ...]
    lane: Expr
    warp: int


@dataclass(frozen=True)
class Commit(Stmt):
    """The asynchronous copies that the thread has started since its last Commit, perhaps none, become a group."""


@dataclass(frozen=True)
class Wait(Stmt):
    """The thread waits until at most `pending` of its latest groups are under way."""

    pending: int


@dataclass(frozen=True)
class Pixels:
    """Rows of a tile that are pixels of an image, one after another, the last spatial dimension fastest.

    Along each of these `counts` pixels are taken, `steps` elements apart, the first at `lower`; then comes the next
    row of pixels, and so on to the next image.
    """

    counts: tuple[int, ...]
    steps: tuple[int, ...]
    lower: tuple[int, ...]


@dataclass(frozen=True)
class TileCopy(Stmt):
    """buffer[(*place, *p)] = outside[origin + p] for all p in `shape`, and zero where that is outside of the tensor.

    `dims`: the source's dimension along which each of p goes, where these are not all in order; -1 of one that is 0.
    With `pixels` the tile is rows by channels, after what is 0: row p is the p-th pixel from the one at the origin,
    which has the offsets that are its last numbers added.

    One instruction of the thread that comes by, from global to shared memory; `tiles.py` says how it is stored there,
    and `as_loops` what it means element by element. A `back` one is the other way round: what is in the tensor is
    written to it.
    """

    buffer: str
    place: tuple[Expr, ...]
    outside: str
    origin: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    dtype: str
    dims: tuple[int, ...] = ()
    pixels: Pixels | None = None
    back: bool = False

    @property
    def rank(self) -> int:
        """Of the source."""
        return len(self.origin) - (len(self.pixels.counts) if self.pixels is not None else 0)


@dataclass(frozen=True)
class Func:
    """A kernel: `params` are inputs in order, then outputs in order (`n_outputs` of them).

    Where inputs are declared constant, `prepare` runs once and fills `prepared` from them; `body` reads these.
    """

    name: str
    params: tuple[Buffer, ...]
    n_outputs: int
    body: Stmt
    prepared: tuple[Buffer, ...] = ()
    prepare: Stmt | None = None


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """All statements, outermost first. Iterative: lowering walks often, and recursive generators pass on every item."""
    stack = [stmt]
    while stack:
        here = stack.pop()
        yield here
        stack += here.body_stmts[::-1]


def only_fetches(stmt: Stmt) -> bool:
    """Whether the statement changes nothing and asks for data that come later."""
    return not any(isinstance(s, Store) for s in walk(stmt))


def shared_and_nests(body: Stmt) -> tuple[list[Buffer], tuple[Stmt, ...]]:
    """The global buffers around a function's nests, and the nests in order."""
    buffers = []
    while isinstance(body, Allocate) and body.buffer.scope is Scope.GLOBAL:
        buffers.append(body.buffer)
        body = body.body
    return buffers, body.stmts if isinstance(body, Seq) else (body,)
