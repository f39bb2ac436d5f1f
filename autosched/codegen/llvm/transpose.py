"""Tiles that are copied across: what is adjacent in the source lies in rows of the destination.

    for u unrolled, for v in vectors:  D[.., u, .., v] = S[.., v, .., u]       S contiguous along u, D along v

Lane by lane this is a load and an insertion for each element. Instead four neighbours along u are read at once, for
each v; row j of a block holds, in its q-th 128 bits, the four that belong to v = 4 q + j. Two rounds of shuffles within
128 bits transpose the 4 x 4 pieces, which every vector extension has instructions for.

Rows that lie SET_BYTES apart meet in one set of the first cache, where sixteen lines do not stay for four readings.
Where a vector is a line long, and as many neighbours are copied, such lines are read as a whole, once: the 4 x 4 pieces
are transposed first and then change places, as 128 bits each, in two more rounds. Transposes of such rows are
1.6 to 1.9 times as fast with it, some of other rows up to 3 % slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autosched.codegen.llvm.address import Access, Addresses, Lanes
from autosched.codegen.llvm.words import memory_type
from autosched.codegen.llvm.writer import Writer
from autosched.ir.expr import DTYPES, Const, Load, Var
from autosched.ir.stmt import For, Scope, Store
from autosched.ir.visit import vector_tile

BLOCK = 4  # elements of 128 bits
ITEMSIZE = 4
LINE = 16  # elements of a cache line
SET_BYTES = 4096  # 64 sets of lines of 64 bytes: what first level caches of 32 and 48 KB have
# One round: lanes of 128 bits of (a, b) side by side, 0..3 from a and 4..7 from b.
_LOW, _HIGH = (0, 4, 1, 5), (2, 6, 3, 7)
_FRONT, _BACK = (0, 1, 4, 5), (2, 3, 6, 7)


@dataclass(frozen=True)
class Tile:
    """The first `rows` (a multiple of BLOCK) of `points` and the `pieces` of `inner` are copied across."""

    outer: tuple[Var, ...]  # unrolled loops
    points: tuple[tuple[int, ...], ...]  # their values, in the order of the loops
    inner: For
    store: Store
    load: Load
    rows: int
    pieces: tuple[Lanes, ...]  # whole vectors, then halves of them down to BLOCK
    stride: int = 0  # elements of the source from lane to lane

    def at(self, row: int) -> Iterable[tuple[Var, int]]:
        """The values of the unrolled variables in a row."""
        return zip(self.outer, self.points[row], strict=True)


def find_tile(stmt: For, addresses: Addresses, vector_bytes: int) -> Tile | None:
    """The tile that the unrolled loops from `stmt` on copy, None where they do something else."""
    nest = vector_tile(stmt)
    if nest is None:
        return None
    unrolled, body = nest
    assert isinstance(body.extent, Const)
    store, lanes = body.body, vector_bytes // ITEMSIZE
    if not isinstance(store, Store) or store.reducer is not None or len(store.values) != 1 or lanes < BLOCK:
        return None
    load = store.values[0]
    if not isinstance(load, Load) or load.dtype == "bool" or DTYPES[load.dtype][1] != ITEMSIZE:
        return None
    if any(addresses.placed[name].buffer.scope is Scope.REGISTER for name in (store.buffers[0], load.buffer)):
        return None
    points = tuple(product(*(range(n) for _, n in unrolled)))
    rows, pieces = len(points) // BLOCK * BLOCK, tuple(_pieces(int(body.extent.value), lanes))
    tile = Tile(tuple(var for var, _ in unrolled), points, body, store, load, rows, pieces)
    stride = _stride_across(tile, addresses) if rows and pieces else None
    return None if stride is None else replace(tile, stride=stride)


def _pieces(extent: int, lanes: int) -> Iterator[Lanes]:
    """Vectors that cover an extent, up to a rest of less than BLOCK."""
    start = 0
    while lanes >= BLOCK:
        while start + lanes <= extent:
            yield Lanes(start, lanes)
            start += lanes
        lanes //= 2


def _stride_across(tile: Tile, addresses: Addresses) -> int | None:
    """The lanes' stride in the source, if row after row is adjacent there, and the lanes are in the destination."""
    env = addresses.env
    strides: set[int | None] = set()
    for piece in tile.pieces:
        env[tile.inner.var] = piece
        read, written = [], []
        for row in range(tile.rows):
            env.update(tile.at(row))
            read.append(addresses.access(tile.load.buffer, tile.load.indices))
            written.append(addresses.access(tile.store.buffers[0], tile.store.indices))
        first = read[0]
        adjacent = all(
            (x.pointer, x.offset, x.lane_stride) == (first.pointer, first.offset + n, first.lane_stride)
            for n, x in enumerate(read)
        )
        across = adjacent and first.lane_stride not in (0, 1) and all(w.lane_stride == 1 for w in written)
        strides.add(first.lane_stride if across else None)
    for var in (tile.inner.var, *tile.outer):
        del env[var]
    return strides.pop() if len(strides) == 1 else None


def blocks(tile: Tile, lanes: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of what is copied across at a time into vectors of `lanes`."""
    in_lines = lanes == LINE and tile.stride * ITEMSIZE % SET_BYTES == 0
    lines = tile.rows // LINE * LINE if in_lines else 0
    yield from ((first, LINE) for first in range(0, lines, LINE))
    yield from ((first, BLOCK) for first in range(lines, tile.rows, BLOCK))


def transposed_rows(writer: Writer, source: Access, dtype: str, lanes: int, n_rows: int) -> list[str]:
    """`n_rows` vectors: number n holds, for each lane v, the element at source + v * lane stride + n."""
    stride = source.lane_stride
    assert stride is not None
    scalar = memory_type(dtype)

    def part(v: int) -> str:
        at = (source.offset + v * stride) * ITEMSIZE
        pointer = writer.value(f"getelementptr inbounds i8, ptr {source.pointer}, i64 {at}", "p")
        return writer.value(f"load <{n_rows} x {scalar}>, ptr {pointer}, align {ITEMSIZE}")

    if n_rows == BLOCK:
        rows = [_joined(writer, [part(v) for v in range(j, lanes, BLOCK)], scalar) for j in range(BLOCK)]
        return _pieces_across(writer, rows, lanes, scalar)
    fours = [_pieces_across(writer, [part(v + j) for j in range(BLOCK)], lanes, scalar) for v in range(0, lanes, BLOCK)]
    columns = [_exchanged(writer, list(column), lanes, scalar) for column in zip(*fours, strict=True)]
    return [columns[n % BLOCK][n // BLOCK] for n in range(n_rows)]


def _pieces_across(writer: Writer, rows: Sequence[str], lanes: int, scalar: str) -> list[str]:
    """BLOCK rows of pieces of 128 bits, each 4 x 4 of them transposed."""

    def mixed(a: str, b: str, picks: Sequence[int]) -> str:
        order = [q * BLOCK + p % BLOCK + (lanes if p >= BLOCK else 0) for q in range(lanes // BLOCK) for p in picks]
        return _shuffled(writer, a, b, lanes, order, scalar)

    low, high = mixed(rows[0], rows[1], _LOW), mixed(rows[0], rows[1], _HIGH)
    low2, high2 = mixed(rows[2], rows[3], _LOW), mixed(rows[2], rows[3], _HIGH)
    return [mixed(a, b, picks) for a, b in ((low, low2), (high, high2)) for picks in (_FRONT, _BACK)]


def _exchanged(writer: Writer, vectors: list[str], lanes: int, scalar: str) -> list[str]:
    """As many vectors as each has pieces of 128 bits: number q has the pieces q of all, in their order."""
    if len(vectors) == 1:
        return vectors
    found = []
    for odd in (0, 1):
        pieces = range(odd, 2 * lanes // BLOCK, 2)
        order = [q * BLOCK + n for q in pieces for n in range(BLOCK)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        halves = [_shuffled(writer, a, b, lanes, order, scalar) for a, b in pairs]
        found.append(_exchanged(writer, halves, lanes, scalar))
    return [vector for pair in zip(*found, strict=True) for vector in pair]


def _joined(writer: Writer, parts: list[str], scalar: str) -> str:
    """The parts one after another in one vector."""
    lanes = BLOCK
    while len(parts) > 1:
        order = range(2 * lanes)
        parts = [_shuffled(writer, a, b, lanes, order, scalar) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        lanes *= 2
    return parts[0]


def _shuffled(writer: Writer, a: str, b: str, lanes: int, order: Sequence[int], scalar: str) -> str:
    kind = f"<{lanes} x {scalar}>"
    picks = ", ".join(f"i32 {n}" for n in order)
    return writer.value(f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> <{picks}>")
