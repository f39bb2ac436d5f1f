"""Tiles that read across: what is adjacent in a source lies in rows of the destination.

    for u unrolled, for v in vectors:  D[.., u, .., v] = f(S[.., v, .., u], ...)     S contiguous along u, D along v
                                       A[.., v] = max(A[.., v], S[.., v, u])         short rows that are reduced

Lane by lane this is a load and an insertion for each element. Instead as many neighbours along u as fill 128 bits (B:
four of 32 bits) are read at once, for each v; row j of a block holds, in its q-th 128 bits, the B that belong to
v = B q + j. log2 B rounds of shuffles within 128 bits transpose the B x B pieces, which every vector extension has
instructions for. What else is read and computed is as everywhere. Where B does not divide the neighbours the last
block begins earlier: what it has in common with the one before is read again, which is less than reading lane by lane.

Rows that lie PAGE_BYTES apart meet in one set of the first cache, where sixteen lines do not stay for several readings.
Where a vector is a line long, and as many neighbours are read, such lines are read as a whole, once: the B x B pieces
are transposed first and then change places, as 128 bits each, in further rounds. Transposes of such rows are
1.6 to 1.9 times as fast with it, some of other rows up to 3 % slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autosched.codegen.llvm.address import Access, Addresses, Lanes
from autosched.codegen.llvm.strided import LONGEST_STEP
from autosched.codegen.llvm.words import memory_type
from autosched.codegen.llvm.writer import Writer
from autosched.ir.expr import DTYPES, Const, Expr, Load, Select, Var
from autosched.ir.stmt import For, Scope, Store
from autosched.ir.visit import is_looked_up
from autosched.target import PAGE_BYTES, PIECE_BYTES

LINE_BYTES = 64


@dataclass(frozen=True)
class Tile:
    """All `points`, no fewer than `block`, and the `pieces` of `inner` read `sources` across."""

    outer: tuple[Var, ...]  # unrolled loops
    points: tuple[tuple[int, ...], ...]  # their values, in the order of the loops
    inner: For
    store: Store
    sources: tuple[Load, ...]
    block: int  # elements of 128 bits
    pieces: tuple[Lanes, ...]  # whole vectors, then halves of them down to `block`
    strides: tuple[int, ...] = ()  # elements of each source from lane to lane

    def at(self, row: int) -> Iterable[tuple[Var, int]]:
        """The values of the unrolled variables in a row."""
        return zip(self.outer, self.points[row], strict=True)


def find_tile(unrolled: Sequence[tuple[Var, int]], body: For, addresses: Addresses, lanes: int) -> Tile | None:
    """The tile of `unrolled` loops around vectors of `lanes`, None where nothing is read across."""
    assert isinstance(body.extent, Const)
    store = body.body
    if not isinstance(store, Store) or (store.reducer is None and len(store.values) != 1):
        return None
    points = tuple(product(*(range(n) for _, n in unrolled)))
    for block, sources in _candidates(store, addresses).items():
        pieces = tuple(_pieces(int(body.extent.value), lanes, block))
        if len(points) >= block and pieces:
            tile = Tile(tuple(var for var, _ in unrolled), points, body, store, (), block, pieces)
            found = {load: stride for load in sources if (stride := _stride_across(tile, load, addresses)) is not None}
            if found:
                return replace(tile, sources=tuple(found), strides=tuple(found.values()))
    return None


def _candidates(store: Store, addresses: Addresses) -> dict[int, list[Load]]:
    """The loads from memory that are made in any case, by the elements of 128 bits; the fewest first."""
    found: dict[int, list[Load]] = {}
    if (addresses.placed[store.buffers[0]].buffer.scope is Scope.REGISTER) != (store.reducer is not None):
        return found
    for load in dict.fromkeys(x for value in store.values for x in _unconditional(value)):
        plain = load.dtype != "bool" and load.buffer not in store.buffers and not is_looked_up(load)
        if plain and addresses.placed[load.buffer].buffer.scope is not Scope.REGISTER:
            found.setdefault(PIECE_BYTES // DTYPES[load.dtype][1], []).append(load)
    return dict(sorted(found.items()))


def _unconditional(value: Expr) -> Iterator[Load]:
    """Loads outside of the branches of a select, which may be out of bounds, and of indices."""
    if isinstance(value, Load):
        yield value
        return
    for child in (value.cond,) if isinstance(value, Select) else value.children:
        yield from _unconditional(child)


def _pieces(extent: int, lanes: int, block: int) -> Iterator[Lanes]:
    """Vectors that cover an extent, up to a rest of less than `block`."""
    start = 0
    while lanes >= block:
        while start + lanes <= extent:
            yield Lanes(start, lanes)
            start += lanes
        lanes //= 2


def _stride_across(tile: Tile, load: Load, addresses: Addresses) -> int | None:
    """The lanes' stride in the source, if row after row is adjacent there, and the lanes are in the destination."""
    strides: set[int | None] = set()
    for piece in tile.pieces:
        addresses.env[tile.inner.var] = piece
        strides.add(_stride_of_lanes(tile, load, addresses))
        if None in strides:
            break
    for var in (tile.inner.var, *tile.outer):
        del addresses.env[var]
    return strides.pop() if len(strides) == 1 else None


def _stride_of_lanes(tile: Tile, load: Load, addresses: Addresses) -> int | None:
    """`_stride_across` of one piece; most tiles are none, which their first row says. What a window reads is better
    picked from vectors where lanes are a few elements apart."""
    near = range(2 if tile.store.reducer is None else LONGEST_STEP + 1)
    first: Access | None = None
    for row in range(len(tile.points)):
        addresses.env.update(tile.at(row))
        read = addresses.access(load.buffer, load.indices)
        first = first or read
        expected = (first.pointer, first.offset + row, first.lane_stride)
        adjacent = (read.pointer, read.offset, read.lane_stride) == expected
        if not adjacent or read.lane_stride in near:
            return None
        if addresses.access(tile.store.buffers[0], tile.store.indices).lane_stride != 1:
            return None
    return None if first is None else first.lane_stride


def blocks(tile: Tile, lanes: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) read across at a time in vectors of `lanes`; the last may begin in the one before."""
    line, itemsize = LINE_BYTES * tile.block // PIECE_BYTES, PIECE_BYTES // tile.block
    in_sets = len(tile.strides) == 1 and tile.strides[0] * itemsize % PAGE_BYTES == 0
    rows = len(tile.points)
    lines = rows // line * line if in_sets and lanes == line else 0
    yield from ((first, line) for first in range(0, lines, line))
    yield from ((min(first, rows - tile.block), tile.block) for first in range(lines, rows, tile.block))


def transposed_rows(writer: Writer, addresses: Addresses, load: Load, lanes: int, n_rows: int) -> list[str]:
    """`n_rows` vectors: number n holds, for each lane v, the element that is v * lane stride + n behind the load's."""
    source, itemsize = addresses.access(load.buffer, load.indices), DTYPES[load.dtype][1]
    stride, scalar = source.lane_stride, memory_type(load.dtype)
    assert stride is not None
    block = PIECE_BYTES // itemsize

    def part(v: int) -> str:
        at = (source.offset + v * stride) * itemsize
        pointer = writer.value(f"getelementptr inbounds i8, ptr {source.pointer}, i64 {at}", "p")
        return writer.value(f"load <{n_rows} x {scalar}>, ptr {pointer}, align {itemsize}")

    if n_rows == block:
        rows = [_joined(writer, [part(v) for v in range(j, lanes, block)], block, scalar) for j in range(block)]
        return _pieces_across(writer, rows, lanes, scalar)
    some = [_pieces_across(writer, [part(v + j) for j in range(block)], lanes, scalar) for v in range(0, lanes, block)]
    columns = [_exchanged(writer, list(column), lanes, block, scalar) for column in zip(*some, strict=True)]
    return [columns[n % block][n // block] for n in range(n_rows)]


def _pieces_across(writer: Writer, rows: Sequence[str], lanes: int, scalar: str) -> list[str]:
    """B rows of pieces of 128 bits, each B x B of them transposed: each round takes every other element from the first
    half of the rows, the others from the second."""
    block = len(rows)
    for _ in range(block.bit_length() - 1):
        mixed = []
        for a, b in zip(rows[: block // 2], rows[block // 2 :], strict=True):
            for half in range(2):
                within = range(half * block // 2, (half + 1) * block // 2)
                order = [q + n + of for q in range(0, lanes, block) for n in within for of in (0, lanes)]
                mixed.append(_shuffled(writer, a, b, lanes, order, scalar))
        rows = mixed
    return list(rows)


def _exchanged(writer: Writer, vectors: list[str], lanes: int, block: int, scalar: str) -> list[str]:
    """As many vectors as each has pieces of 128 bits: number q has the pieces q of all, in their order."""
    if len(vectors) == 1:
        return vectors
    found = []
    for odd in (0, 1):
        pieces = range(odd, 2 * lanes // block, 2)
        order = [q * block + n for q in pieces for n in range(block)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        halves = [_shuffled(writer, a, b, lanes, order, scalar) for a, b in pairs]
        found.append(_exchanged(writer, halves, lanes, block, scalar))
    return [vector for pair in zip(*found, strict=True) for vector in pair]


def _joined(writer: Writer, parts: list[str], lanes: int, scalar: str) -> str:
    """The parts, of `lanes` each, one after another in one vector."""
    while len(parts) > 1:
        order = range(2 * lanes)
        parts = [_shuffled(writer, a, b, lanes, order, scalar) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        lanes *= 2
    return parts[0]


def _shuffled(writer: Writer, a: str, b: str, lanes: int, order: Sequence[int], scalar: str) -> str:
    kind = f"<{lanes} x {scalar}>"
    picks = ", ".join(f"i32 {n}" for n in order)
    return writer.value(f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> <{picks}>")
