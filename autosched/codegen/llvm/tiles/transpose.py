"""Emission of in-register transposes (`lower/register_tiles/transpose.py`).

As many neighbours along u as fill 128 bits (B: four of 32 bits) are read at once, for each v; row j of a block holds,
in its q-th 128 bits, the B that belong to v = B q + j. log2 B rounds of shuffles within 128 bits transpose the B x B
pieces, which every vector extension has instructions for. Lines that are read as a whole are transposed as B x B pieces
first, which then change places, as 128 bits each, in further rounds. What is written across are the same pieces,
transposed before they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autosched.codegen.llvm.address import Addresses
from autosched.codegen.llvm.bindings import LaneRange
from autosched.codegen.llvm.emitters import StatementEmitter
from autosched.codegen.llvm.vocabulary import memory_type
from autosched.codegen.llvm.writer import Writer
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Load, Var
from autosched.ir.stmt import Store
from autosched.lower.register_tiles.context import number_of
from autosched.lower.register_tiles.transpose import TransposePlan
from autosched.target import PIECE_BYTES


def emit_transposed(emitter: StatementEmitter, plan: TransposePlan) -> None:
    """Emit a tile whose rows are read or written transposed: whole vectors by shuffles, then the last elements of each
    row, which fill no vector."""
    env, values, inner = emitter.bindings.env, emitter.values, plan.inner
    for lanes, rows in zip(plan.vectors, plan.rows, strict=True):
        env[inner.var], values.lanes = LaneRange(lanes.start, len(lanes)), len(lanes)
        (_read_across if plan.sources else _write_across)(emitter, plan, rows)
    values.lanes = 1
    del env[inner.var]
    done, extent = sum(map(len, plan.vectors)), number_of(inner.extent)
    for n in range(len(plan.points)):
        env.update(_at(plan, n))
        emitter.vector_rest(inner, done, extent - done, plan.block)
    for var in plan.loops:
        del env[var]


def _at(plan: TransposePlan, row: int) -> Iterable[tuple[Var, int]]:
    """Return the values of the unrolled variables in a row."""
    return zip(plan.loops, plan.points[row], strict=True)


def _read_across(emitter: StatementEmitter, plan: TransposePlan, blocks: Sequence[range]) -> None:
    done, env, lanes = 0, emitter.bindings.env, emitter.values.lanes
    for rows in blocks:
        env.update(_at(plan, rows.start))
        read = {x: transposed_rows(emitter.writer, emitter.addresses, x, lanes, len(rows)) for x in plan.sources}
        for n in range(done, rows.stop):
            env.update(_at(plan, n))
            for load, vectors in read.items():
                emitter.values.know(load, vectors[n - rows.start])
            emitter.emit(plan.store)
        done = rows.stop


def _write_across(emitter: StatementEmitter, plan: TransposePlan, runs: Sequence[range]) -> None:
    """Emit a vector for each row and, once a block has all of its rows, what they hold of each lane. Rows that make no
    block are written by themselves."""
    env, values, name, lanes = emitter.bindings.env, emitter.values, plan.store.buffers[0], emitter.values.lanes
    dtype = emitter.addresses.placed[name].buffer.dtype
    for run in runs:
        if len(run) < plan.block:
            for n in run:
                env.update(_at(plan, n))
                emitter.emit(plan.store)
            continue
        rows: list[str] = []
        for start in range(0, len(run), plan.block):
            first = min(start, len(run) - plan.block)
            for n in run[len(rows) : first + plan.block]:
                env.update(_at(plan, n))
                values.begin(plan.store)
                rows.append(values.arithmetic.broadcast(values.emit(plan.store.values[0]), lanes).name)
            env.update(_at(plan, run[first]))
            _write_columns(emitter, plan.store, rows[first:], dtype, lanes)
        values.forget(name)


def _write_columns(emitter: StatementEmitter, store: Store, rows: Sequence[str], dtype: str, lanes: int) -> None:
    """Emit the stores of a block of rows, transposed, from the first row's place on."""
    writer, block, access = emitter.writer, len(rows), emitter.addresses.access(store.buffers[0], store.indices)
    scalar, itemsize = memory_type(dtype), DTYPES[dtype].nbytes
    for j, row in enumerate(_pieces_across(writer, rows, lanes, scalar)):
        for lane in range(j, lanes, block):
            part = _shuffled(writer, row, row, lanes, range(lane - j, lane - j + block), scalar)
            steps = access.offset + lane * (access.lane_stride or 0)
            place = emitter.addresses.at(access._replace(offset=steps), dtype)
            writer.emit(f"store <{block} x {scalar}> {part}, ptr {place}, align {itemsize}")


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
    transposed = []
    for odd in (0, 1):
        pieces = range(odd, 2 * lanes // block, 2)
        order = [q * block + n for q in pieces for n in range(block)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        halves = [_shuffled(writer, a, b, lanes, order, scalar) for a, b in pairs]
        transposed.append(_exchanged(writer, halves, lanes, block, scalar))
    return [vector for pair in zip(*transposed, strict=True) for vector in pair]


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
