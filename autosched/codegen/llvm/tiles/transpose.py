"""In-register transposes: tiles whose source is contiguous along another axis than their destination.

    for u unrolled, for v in vectors:  D[.., u, .., v] = f(S[.., v, .., u], ...)     S contiguous along u, D along v
                                       A[.., v] = max(A[.., v], S[.., v, u])         short rows that are reduced

Lane by lane this is a load and an insertion for each element. Instead as many neighbours along u as fill 128 bits (B:
four of 32 bits) are read at once, for each v; row j of a block holds, in its q-th 128 bits, the B that belong to
v = B q + j. log2 B rounds of shuffles within 128 bits transpose the B x B pieces, which every vector extension has
instructions for. What else is read and computed is as everywhere. Where B does not divide the neighbours the last
block begins earlier: what it has in common with the one before is read again, which is less than reading lane by lane.

Rows that lie a page apart meet in one set of the first cache, where sixteen lines do not stay for several readings.
Where a vector is a line long, and as many neighbours are read, such lines are read as a whole, once: the B x B pieces
are transposed first and then change places, as 128 bits each, in further rounds. Transposes of such rows are
1.6 to 1.9 times as fast with it, some of other rows up to 3 % slower.

    for u unrolled, for v in vectors:  D[.., v, .., u] = f(A[.., u, v], ...)     D contiguous along u

The same pieces, transposed before they are written, as 128 bits each: channels in lanes, pixels adjacent in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from autosched.codegen.llvm.address import Addresses, LaneAccess
from autosched.codegen.llvm.bindings import LaneRange
from autosched.codegen.llvm.emitters import RegisterTile, StatementEmitter
from autosched.codegen.llvm.vocabulary import memory_type
from autosched.codegen.llvm.writer import Writer
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const, Expr, Load, Select, Var
from autosched.ir.stmt import For, Scope, Store
from autosched.ir.visit import is_gathered, loads
from autosched.lower.limits import MAX_CHUNKS
from autosched.target import LINE_BYTES, LONGEST_STEP, PIECE_BYTES, microarchitecture


@dataclass(frozen=True)
class Tile:
    """All `points`, no fewer than `block`, and the `pieces` of `inner` read `sources` across."""

    outer: tuple[Var, ...]  # unrolled loops
    points: tuple[tuple[int, ...], ...]  # their values, in the order of the loops
    inner: For
    store: Store
    sources: tuple[Load, ...]
    block: int  # elements of 128 bits
    pieces: tuple[LaneRange, ...]  # whole vectors, then halves of them down to `block`
    strides: tuple[int, ...] = ()  # elements of each source from lane to lane

    def at(self, row: int) -> Iterable[tuple[Var, int]]:
        """The values of the unrolled variables in a row."""
        return zip(self.outer, self.points[row], strict=True)


def emit_transposed(emitter: StatementEmitter, tile: RegisterTile) -> bool:
    """Emits the tile if it reads or writes across: its vectors by shuffles, then
    what is left of each row."""
    unrolled, inner, width = tile.unrolled, tile.inner, emitter.width(tile.inner)
    rows = find_tile(unrolled, inner, emitter.addresses, width)
    columns = find_columns(unrolled, inner, emitter.addresses, width) if rows is None else None
    found = rows or columns
    if found is None:
        return False
    env, values = emitter.bindings.env, emitter.values
    for piece in found.pieces:
        env[inner.var], values.lanes = piece, piece.lanes
        (_read_across if columns is None else _write_across)(emitter, found, piece.lanes)
    values.lanes = 1
    del env[inner.var]
    assert isinstance(inner.extent, Const)
    done, extent = sum(piece.lanes for piece in found.pieces), int(inner.extent.value)
    for n in range(len(found.points)):
        env.update(found.at(n))
        emitter.vector_rest(inner, done, extent - done, found.block)
    for var in found.outer:
        del env[var]
    return True


def _read_across(emitter: StatementEmitter, tile: Tile, lanes: int) -> None:
    done, env = 0, emitter.bindings.env
    page = microarchitecture(emitter.target.mcpu).page_bytes
    for first, size in blocks(tile, lanes, page):
        env.update(tile.at(first))
        read = {x: transposed_rows(emitter.writer, emitter.addresses, x, lanes, size) for x in tile.sources}
        for n in range(done, first + size):
            env.update(tile.at(n))
            for load, vectors in read.items():
                emitter.values.know(load, vectors[n - first])
            emitter.emit(tile.store)
        done = first + size


def _write_across(emitter: StatementEmitter, tile: Tile, lanes: int) -> None:
    """A vector for each row and, once a block has all of its rows, what they hold of each lane. Rows that make no block
    are written by themselves."""
    env, values, name = emitter.bindings.env, emitter.values, tile.store.buffers[0]
    dtype = emitter.addresses.placed[name].buffer.dtype
    for run in _runs(tile, emitter.addresses):
        if len(run) < tile.block:
            for n in run:
                env.update(tile.at(n))
                emitter.emit(tile.store)
            continue
        rows: list[str] = []
        for start in range(0, len(run), tile.block):
            first = min(start, len(run) - tile.block)
            for n in run[len(rows) : first + tile.block]:
                env.update(tile.at(n))
                values.begin(tile.store)
                rows.append(values.arithmetic.broadcast(values.emit(tile.store.values[0]), lanes).name)
            env.update(tile.at(run[first]))
            _write_columns(emitter, tile.store, rows[first:], dtype, lanes)
        values.forget(name)


def _write_columns(emitter: StatementEmitter, store: Store, rows: Sequence[str], dtype: str, lanes: int) -> None:
    """A block of rows, transposed and written from the first row's place on."""
    writer, block, access = emitter.writer, len(rows), emitter.addresses.access(store.buffers[0], store.indices)
    scalar, itemsize = memory_type(dtype), DTYPES[dtype].nbytes
    for j, row in enumerate(_pieces_across(writer, rows, lanes, scalar)):
        for lane in range(j, lanes, block):
            part = _shuffled(writer, row, row, lanes, range(lane - j, lane - j + block), scalar)
            steps = access.offset + lane * (access.lane_stride or 0)
            place = emitter.addresses.at(access._replace(offset=steps), dtype)
            writer.emit(f"store <{block} x {scalar}> {part}, ptr {place}, align {itemsize}")


def _runs(tile: Tile, addresses: Addresses) -> list[list[int]]:
    """The rows, those together that follow each other in the destination, element by element, in all of their lanes,
    which are apart."""
    runs: list[list[int]] = []
    before: LaneAccess | None = None
    for n in range(len(tile.points)):
        addresses.bindings.env.update(tile.at(n))
        here = addresses.access(tile.store.buffers[0], tile.store.indices)
        following = None if before is None else (before.pointer, before.offset + 1, before.lane_stride)
        if _is_apart(here) and (here.pointer, here.offset, here.lane_stride) == following:
            runs[-1].append(n)
        else:
            runs.append([n])
        before = here
    return runs


def _is_apart(access: LaneAccess) -> bool:
    return access.lane_stride not in (0, 1, None)


def find_columns(unrolled: Sequence[tuple[Var, int]], body: For, addresses: Addresses, lanes: int) -> Tile | None:
    """The tile of `unrolled` loops around vectors of `lanes` as one that is written across, None where it is not."""
    assert isinstance(body.extent, Const)
    store = body.body
    if not isinstance(store, Store) or store.reducer is not None or len(store.buffers) > 1:
        return None
    buffer = addresses.placed[store.buffers[0]].buffer
    read = {x.buffer for x in loads(store.values[0])}
    if buffer.scope is Scope.REGISTER or buffer.dtype == "bool" or buffer.name in read:
        return None
    block, points = PIECE_BYTES // buffer.itemsize, tuple(product(*(range(n) for _, n in unrolled)))
    pieces = tuple(_pieces(int(body.extent.value), lanes, block))
    if len(points) < block or not 0 < len(pieces) <= MAX_CHUNKS:
        return None
    tile = Tile(tuple(var for var, _ in unrolled), points, body, store, (), block, pieces)
    addresses.bindings.env.update([(body.var, pieces[0]), *tile.at(0)])
    apart = _is_apart(addresses.access(buffer.name, store.indices))  # most tiles are not, which their first row says
    found = apart and any(len(run) >= block for run in _runs(tile, addresses))
    for var in (body.var, *tile.outer):
        del addresses.bindings.env[var]
    return tile if found else None


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
        plain = load.dtype != "bool" and load.buffer not in store.buffers and not is_gathered(load)
        if plain and addresses.placed[load.buffer].buffer.scope is not Scope.REGISTER:
            found.setdefault(PIECE_BYTES // DTYPES[load.dtype].nbytes, []).append(load)
    return dict(sorted(found.items()))


def _unconditional(value: Expr) -> Iterator[Load]:
    """Loads outside of the branches of a select, which may be out of bounds, and of indices."""
    if isinstance(value, Load):
        yield value
        return
    for child in (value.cond,) if isinstance(value, Select) else value.children:
        yield from _unconditional(child)


def _pieces(extent: int, lanes: int, block: int) -> Iterator[LaneRange]:
    """Vectors that cover an extent, up to a rest of less than `block`."""
    start = 0
    while lanes >= block:
        while start + lanes <= extent:
            yield LaneRange(start, lanes)
            start += lanes
        lanes //= 2


def _stride_across(tile: Tile, load: Load, addresses: Addresses) -> int | None:
    """The lanes' stride in the source, if row after row is adjacent there, and the lanes are in the destination."""
    strides: set[int | None] = set()
    for piece in tile.pieces:
        addresses.bindings.env[tile.inner.var] = piece
        strides.add(_stride_of_lanes(tile, load, addresses))
        if None in strides:
            break
    for var in (tile.inner.var, *tile.outer):
        del addresses.bindings.env[var]
    return strides.pop() if len(strides) == 1 else None


def _stride_of_lanes(tile: Tile, load: Load, addresses: Addresses) -> int | None:
    """`_stride_across` of one piece; most tiles are none, which their first row says. What a window reads is better
    picked from vectors where lanes are a few elements apart."""
    near = range(2 if tile.store.reducer is None else LONGEST_STEP + 1)
    first: LaneAccess | None = None
    for row in range(len(tile.points)):
        addresses.bindings.env.update(tile.at(row))
        read = addresses.access(load.buffer, load.indices)
        first = first or read
        expected = (first.pointer, first.offset + row, first.lane_stride)
        adjacent = (read.pointer, read.offset, read.lane_stride) == expected
        if not adjacent or read.lane_stride in near:
            return None
        if addresses.access(tile.store.buffers[0], tile.store.indices).lane_stride != 1:
            return None
    return None if first is None else first.lane_stride


def blocks(tile: Tile, lanes: int, page_bytes: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) read across at a time in vectors of `lanes`; the last may begin in the one before."""
    line, itemsize = LINE_BYTES * tile.block // PIECE_BYTES, PIECE_BYTES // tile.block
    in_sets = len(tile.strides) == 1 and tile.strides[0] * itemsize % page_bytes == 0
    rows = len(tile.points)
    lines = rows // line * line if in_sets and lanes == line else 0
    yield from ((first, line) for first in range(0, lines, line))
    yield from ((min(first, rows - tile.block), tile.block) for first in range(lines, rows, tile.block))


def transposed_rows(writer: Writer, addresses: Addresses, load: Load, lanes: int, n_rows: int) -> list[str]:
    """`n_rows` vectors: number n holds, for each lane v, the element that is v * lane stride + n behind the load's."""
    source, itemsize = addresses.access(load.buffer, load.indices), DTYPES[load.dtype].nbytes
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
