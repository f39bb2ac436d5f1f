"""In-register transposes: tiles whose source is contiguous along another axis than their destination.

    for u unrolled, for v in vectors:  D[.., u, .., v] = f(S[.., v, .., u], ...)     S contiguous along u, D along v
                                       A[.., v] = max(A[.., v], S[.., v, u])         short rows that are reduced

Lane by lane this is a load and an insertion for each element. Instead as many neighbours along u as fill 128 bits (B:
four of 32 bits) are read at once, for each v, and transposed by shuffles. What else is read and computed is as
everywhere. Where B does not divide the neighbours the last block begins earlier: what it has in common with the one
before is read again, which is less than reading lane by lane.

Rows that lie a page apart meet in one set of the first cache, where sixteen lines do not stay for several readings.
Where a vector is a line long, and as many neighbours are read, such lines are read as a whole, once. Transposes of such
rows are 1.6 to 1.9 times as fast with it, some of other rows up to 3 % slower.

    for u unrolled, for v in vectors:  D[.., v, .., u] = f(A[.., u, v], ...)     D contiguous along u

The same blocks, transposed before they are written: channels in lanes, pixels adjacent in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr, Load, Select, Var
from autosched.ir.simplify import Affine
from autosched.ir.stmt import For, Scope, Store
from autosched.ir.symbolic import is_known
from autosched.ir.visit import is_data, is_gathered, loads
from autosched.lower.limits import MAX_CHUNKS
from autosched.lower.register_tiles.context import LaneAddress, Point, RegisterTile, TileContext, number_of
from autosched.lower.register_tiles.rules import is_across, transposed_block
from autosched.target import LINE_BYTES, PIECE_BYTES, microarchitecture


@dataclass(frozen=True)
class TransposePlan:
    """All `points` of the unrolled loops, the rows, no fewer than `block`, in vectors of these lanes of `inner`.

    `sources` are read across; where there are none, the store writes across. `rows`, for each of the vectors: those
    rows that are read at a time, or that follow each other in the destination.
    """

    loops: tuple[Var, ...]
    points: tuple[Point, ...]
    inner: For
    store: Store
    sources: tuple[Load, ...]
    block: int  # elements of 128 bits
    vectors: tuple[range, ...]  # whole vectors, then halves of them down to `block`
    rows: tuple[tuple[range, ...], ...]

    n_statements = 1

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(x.buffer for x in self.sources))
        across = f"{names} read" if self.sources else f"{self.store.buffers[0]} written"
        most = max(len(rows) for rows in self.rows[0])
        return f"transpose, {across} across, {len(self.points)} rows, {most if self.sources else self.block} at a time"


def plan_transpose(tile: RegisterTile, context: TileContext) -> TransposePlan | None:
    """Return the plan of a tile that reads or writes across; None where it does neither."""
    return _plan_reads(tile, context) or _plan_writes(tile, context)


def _plan_reads(tile: RegisterTile, context: TileContext) -> TransposePlan | None:
    store = tile.store
    if store.reducer is None and len(store.values) != 1:
        return None
    points, extent = tuple(tile.points), number_of(tile.inner.extent)
    for block, candidates in _candidates(store, context).items():
        vectors = tuple(_vectors(extent, context.width(tile.inner), block))
        if len(points) < block or not vectors:
            continue
        strides = ((x, _stride_across(tile, x, vectors, context)) for x in candidates)
        found = {load: stride for load, stride in strides if stride is not None}
        if found:
            page = microarchitecture(context.target.mcpu).page_bytes
            in_one_set = len(found) == 1 and all(
                is_known("eq", s * PIECE_BYTES // block % page, 0) for s in found.values()
            )
            line = LINE_BYTES * block // PIECE_BYTES if in_one_set else 0
            rows = tuple(tuple(_blocks(len(points), block, line if len(v) == line else 0)) for v in vectors)
            return TransposePlan(tile.loops, points, tile.inner, store, tuple(found), block, vectors, rows)
    return None


def _candidates(store: Store, context: TileContext) -> dict[int, list[Load]]:
    """Return the loads from memory that are made in any case, by the elements of 128 bits; the fewest first."""
    found: dict[int, list[Load]] = {}
    if (context.buffer(store.buffers[0]).scope is Scope.REGISTER) != (store.reducer is not None):
        return found
    for load in dict.fromkeys(x for value in store.values for x in _unconditional(value)):
        plain = load.dtype != "bool" and load.buffer not in store.buffers and not is_gathered(load)
        if plain and context.buffer(load.buffer).scope is not Scope.REGISTER:
            found.setdefault(transposed_block(DTYPES[load.dtype].nbytes), []).append(load)
    return dict(sorted(found.items()))


def _unconditional(value: Expr) -> Iterator[Load]:
    """Yield loads outside of the branches of a select, which may be out of bounds, and of indices."""
    if isinstance(value, Load):
        yield value
        return
    for child in (value.cond,) if isinstance(value, Select) else value.children:
        yield from _unconditional(child)


def _vectors(extent: int, lanes: int, block: int) -> Iterator[range]:
    """Yield the lanes of vectors that cover an extent, up to a rest of less than `block`."""
    start = 0
    while lanes >= block:
        while start + lanes <= extent:
            yield range(start, start + lanes)
            start += lanes
        lanes //= 2


def _stride_across(tile: RegisterTile, load: Load, vectors: Sequence[range], context: TileContext) -> int | None:
    """Return the lanes' stride in the source, if row after row is adjacent there, and the lanes are in the destination.

    Most tiles are no transposes, which the first row of the first vector says.
    """
    store = tile.store
    source, target = context.flat(load.buffer, load.indices), context.flat(store.buffers[0], store.indices)
    strides: set[int] = set()
    for lanes in vectors:
        first: LaneAddress | None = None
        for row, read in enumerate(_addresses(tile, source, lanes, context)):
            first = first or read
            if read != first._replace(offset=first.offset + row) or read.stride is None:
                return None
            if not is_across(read.stride, store.reducer is not None):
                return None
            if _address(tile, target, row, lanes, context).stride != 1:
                return None
            strides.add(read.stride)
    return strides.pop() if len(strides) == 1 else None


def _address(tile: RegisterTile, form: Affine, row: int, lanes: range, context: TileContext) -> LaneAddress:
    return context.address(form, tile.inner.var, lanes, dict(zip(tile.loops, tile.points[row], strict=True)))


def _addresses(tile: RegisterTile, form: Affine, lanes: range, context: TileContext) -> Iterator[LaneAddress]:
    """Yield the address of an access in each row."""
    return (_address(tile, form, row, lanes, context) for row in range(len(tile.points)))


def _blocks(rows: int, block: int, line: int) -> Iterator[range]:
    """Yield the rows that are read at a time, as many as a `line` has lanes while there are, then blocks of them; the
    last may begin in the one before."""
    lines = rows // line * line if line else 0
    yield from (range(first, first + line) for first in range(0, lines, line or 1))
    starts = (min(first, rows - block) for first in range(lines, rows, block))
    yield from (range(start, start + block) for start in starts)


def _plan_writes(tile: RegisterTile, context: TileContext) -> TransposePlan | None:
    store = tile.store
    if store.reducer is not None or len(store.buffers) > 1 or any(map(is_data, store.indices)):
        return None
    buffer, points = context.buffer(store.buffers[0]), tuple(tile.points)
    read = {x.buffer for x in loads(store.values[0])}
    if buffer.scope is Scope.REGISTER or buffer.dtype == "bool" or buffer.name in read:
        return None
    block, extent = transposed_block(buffer.itemsize), number_of(tile.inner.extent)
    vectors = tuple(_vectors(extent, context.width(tile.inner), block))
    if len(points) < block or not 0 < len(vectors) <= MAX_CHUNKS:
        return None
    form = context.flat(buffer.name, store.indices)
    if not _is_apart(_address(tile, form, 0, vectors[0], context)):  # most tiles are not, which their first row says
        return None
    rows = tuple(tuple(_runs(_addresses(tile, form, lanes, context))) for lanes in vectors)
    if not any(len(run) >= block for run in rows[0]):
        return None
    return TransposePlan(tile.loops, points, tile.inner, store, (), block, vectors, rows)


def _runs(addresses: Iterator[LaneAddress]) -> list[range]:
    """Return the rows, those together that follow each other in the destination, element by element, in all of their
    lanes, which are apart."""
    runs: list[range] = []
    before: LaneAddress | None = None
    for n, here in enumerate(addresses):
        follows = before is not None and _is_apart(here) and here == before._replace(offset=before.offset + 1)
        start = runs.pop().start if follows else n
        runs.append(range(start, n + 1))
        before = here
    return runs


def _is_apart(address: LaneAddress) -> bool:
    return address.stride not in (0, 1, None)
