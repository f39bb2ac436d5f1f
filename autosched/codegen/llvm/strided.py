"""Strided loads: lanes a few elements apart, shuffled out of whole vectors.

    X[2 i] in 16 lanes:  elements 0..15 and 15..30, then every other one of the two

As many vectors as the step has elements, instead of a load and an insertion for each lane. The last vector ends with
the last lane, if what follows it may not exist. What lies between two lanes does, because they do. Where lanes may not
exist, the mask of each vector has those elements alone that are lanes.

With vectors of two pieces of 128 bits every other lane of two vectors is one instruction, but piece by piece; to put
these in order is another. What is computed of several of them is put in order instead, once (`Writer.reordered`).

Lanes may repeat and lie in a few places as well, as X[i // 2] and X[i % 2, i // 2] do: vectors that cover each place.

Windows overlap: what X[2 i + 1] needs lies in the vectors of X[2 i], if those are whole ones from element 0 on.

Numbers of few bits, several in a byte, W[i // 2] >> i % 2 * 4, are shifted out of words that several lanes share,
instead of bytes that each of them would have: one vector, without repeating and extending.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import index

from autosched.codegen.llvm.address import LaneAccess
from autosched.codegen.llvm.arithmetic import Val, has_avx512, shuffled_bits
from autosched.codegen.llvm.bindings import is_index
from autosched.codegen.llvm.emitters import ValueEmitter
from autosched.codegen.llvm.indices import literal_lanes
from autosched.codegen.llvm.vocabulary import memory_type
from autosched.codegen.llvm.writer import Writer
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Binary, Cast, Const, Expr, Load, binary, cast
from autosched.ir.stmt import Scope
from autosched.ir.symbolic import is_known
from autosched.ir.types import integer_bounds
from autosched.ir.visit import free_vars, is_gathered, subexpressions
from autosched.target import LONGEST_STEP, PIECE_BYTES, Target

FEWEST_LANES = 4
BYTE, BYTES = 8, 4  # bits, of a word
PICKED = {1: "avx512vbmi", 2: "avx512bw"}  # by bytes of an element: what picks any of those of two registers
BITS = ("shr", "bitand", "bitor", "bitxor")  # what leaves unsigned numbers no larger than their type


def vectors_of(values: ValueEmitter, load: Load, access: LaneAccess, used: int) -> tuple[int, list[int]]:
    """Elements of the vectors that hold the first `used` lanes of a load, and their first elements (`vector_starts`).

    Bytes and words that are half of a register, with AVX-512, are picked from whole registers, which hold whole groups
    of `step` elements: what is read of the same groups, as the colours of pixels, shares them."""
    step, lanes, dtype, target = access.lane_stride, values.lanes, load.dtype, values.arithmetic.target
    length, picks = target.vector_bytes // DTYPES[dtype].nbytes, PICKED.get(DTYPES[dtype].nbytes)
    is_half = values.mask is None and not values.in_window and 2 * lanes == length
    if step is None or not (
        is_half and 2 < step <= LONGEST_STEP and picks and has_avx512(target) and target.has(picks)
    ):
        return lanes, vector_starts(access, lanes, used)
    offset = access.offset % step if isinstance(access.offset, int) else 0
    before, behind = values.addresses.room(load.buffer, load.indices, lanes)
    if not (is_known("ge", before, offset) and is_known("ge", behind, step - 1 - offset)):
        return lanes, vector_starts(access, lanes, used)
    end = step * lanes - offset
    return length, [*range(-offset, end - length, length), end - length]


def vector_starts(access: LaneAccess, lanes: int, used: int) -> list[int]:
    """The first elements of the vectors that hold the first `used` lanes; none where lanes are better loaded one by
    one: far apart, or so few that a vector would reach beyond the last. All lanes backwards are one vector."""
    step = access.lane_stride
    if step == -1 and used == lanes >= FEWEST_LANES:
        return [1 - lanes]
    if step is None or not 1 < step <= LONGEST_STEP or lanes < FEWEST_LANES:
        return []
    end = (used - 1) * step + 1
    return [*range(0, end - lanes, lanes), end - lanes] if end >= lanes else []


def shared_starts(end: int, lanes: int, known: Iterable[int], room: tuple[int, int]) -> list[int]:
    """The first elements of vectors that hold elements 0 to `end` - 1, of which vectors are loaded already from the
    elements `known` on; `room`: elements that exist before and behind these. Few vectors, because each costs a shuffle,
    then few that are not loaded yet."""
    loaded = set(known)

    def plan(phase: int) -> list[int]:
        starts = []
        for start in range(phase - lanes if phase else 0, end, lanes):
            exists = start in loaded or (-start <= room[0] and start + lanes - end <= room[1])
            starts.append(start if exists else min(max(start, 0), end - lanes))
        return sorted(set(starts))

    plans = [plan(phase) for phase in sorted({0, *(s % lanes for s in loaded)})]
    return min(plans, key=lambda starts: (len(starts), len(set(starts) - loaded)))


def covering(steps: Collection[int], lanes: int, phase: int | None = None) -> list[tuple[int, int]]:
    """(first element, elements) of the vectors that hold the elements `steps`, of which others lie between two of these
    alone; none where lanes are better loaded one by one. With a `phase`, all of a whole vector exists where one of its
    elements does, if it begins at that element or whole vectors from it."""
    wanted = sorted(set(map(index, steps)))
    if not wanted:
        return []
    ends = [n for n, (a, b) in enumerate(pairwise(wanted), 1) if b - a > LONGEST_STEP]
    loads = []
    for begin, end in zip([0, *ends], [*ends, len(wanted)], strict=True):
        first, n = wanted[begin], wanted[end - 1] + 1 - wanted[begin]
        size = min(lanes, 1 << (n.bit_length() - 1))
        if phase is not None and n < lanes:
            start = first - (first - phase) % lanes
            if first + n <= start + lanes and n > size:
                loads.append((start, lanes))
                continue
        loads += [(first + at, size) for at in (*range(0, n - size, size), n - size)]
    return loads if 2 * len(loads) <= len(steps) else []


def placed(
    writer: Writer,
    vectors: Sequence[tuple[int, int]],
    steps: Mapping[int, int],
    kind: tuple[str, int],
    load: Callable[[int, int], str],
) -> str:
    """The vector of which lane n is element `steps[n]`, out of those at `vectors`; `kind`: type, lanes."""
    dtype, lanes = kind
    whole, result, where = memory_type(dtype, lanes), "", dict[int, int]()
    for start, size in vectors:
        vector = load(start, size)
        here = {n: index(at - start) for n, at in steps.items() if n not in where and 0 <= at - start < size}
        if size == 1:
            vector = writer.value(f"insertelement {whole} poison, {memory_type(dtype)} {vector}, i64 0")
        elif size < lanes and len(vectors) == 1:
            return _shuffled(writer, memory_type(dtype, size), vector, "poison", here, lanes)
        elif size < lanes:
            vector = _shuffled(writer, memory_type(dtype, size), vector, "poison", {n: n for n in range(size)}, lanes)
        if not result:
            result, where = vector, here
            continue
        picks = {**where, **{n: lanes + at for n, at in here.items()}}
        result, where = _shuffled(writer, whole, result, vector, picks, lanes), {n: n for n in picks}
    return result if len(vectors) > 1 else _shuffled(writer, whole, result, "poison", where, lanes)


def has_masked_loads(target: Target, dtype: str) -> bool:
    """Whether a vector load that leaves elements out is an instruction."""
    return target.arch == "x86_64" and target.vector_bytes >= 32 and DTYPES[dtype].nbytes >= 4


def piece_lanes(target: Target, dtype: str, lanes: int) -> int:
    """Lanes of 128 bits, where a vector is several of these, and lanes change to another in an instruction of its own;
    0 elsewhere."""
    piece = PIECE_BYTES // DTYPES[dtype].nbytes
    return piece if target.arch == "x86_64" and target.vector_bytes == 2 * PIECE_BYTES and lanes == 2 * piece else 0


def piece_mask(writer: Writer, mask: str, start: int, step: int, lanes: int) -> str:
    """The mask of the vector at `start`: elements that are lanes which `mask` has."""
    picks = {j: (start + j) // step for j in range(lanes) if (start + j) % step == 0}
    return _shuffled(writer, f"<{lanes} x i1>", mask, "zeroinitializer", picks, lanes, other=lanes)


def shuffled_load(
    writer: Writer,
    starts: Sequence[int],
    access: LaneAccess,
    kind: tuple[str, int, int],
    piece: int,
    load: Callable[[int, LaneAccess], str],
) -> str:
    """The vector of the lanes that the vectors at `starts` hold, undefined in the others; `kind`: type, lanes, elements
    of each vector; `load` gives the vector of a start. `piece`: lanes of which instructions that move them elsewhere
    take longer, or 0."""
    step, (dtype, lanes, length) = access.lane_stride, kind
    assert step is not None
    vectors = [load(start, LaneAccess(access.pointer, access.offset + start, 1)) for start in starts]
    whole, result, where = memory_type(dtype, length), "", dict[int, int]()
    for start, vector in zip(starts, vectors, strict=True):
        here = {n: n * step - start for n in range(lanes) if n not in where and 0 <= n * step - start < length}
        if not result:  # what the first vector holds is picked with the second one's
            result, where = vector, here
            continue
        picks = {**where, **{n: length + at for n, at in here.items()}}
        if len(starts) == 2 and piece:
            return _in_pieces(writer, whole, (vectors[0], vectors[1]), picks, lanes, piece)
        size = lanes if start == starts[-1] else length
        result, where = _shuffled(writer, whole, result, vector, picks, size), {n: n for n in picks}
    return result if len(starts) > 1 else _shuffled(writer, whole, result, "poison", where, lanes)


def _in_pieces(
    writer: Writer, whole: str, vectors: tuple[str, str], picks: dict[int, int], lanes: int, piece: int
) -> str:
    """Lanes of two vectors, those of each piece picked from the same pieces of both, if they are there, before they are
    put in order: as the writer knows, for what is computed of several such vectors to be put in order instead."""
    half = piece // 2
    order = [v * lanes // 2 + q * half + n for q in range(lanes // piece) for v in (0, 1) for n in range(half)]
    apart = {k: picks[n] for k, n in enumerate(order) if n in picks}
    if any((at // lanes, at % lanes // piece) != (k % piece // half, k // piece) for k, at in apart.items()):
        return _shuffled(writer, whole, *vectors, picks, lanes)
    name = _shuffled(writer, whole, *vectors, apart, lanes)
    return writer.reordered(whole, name, name, tuple(map(order.index, range(lanes))))


def _shuffled(
    writer: Writer, kind: str, a: str, b: str, picks: dict[int, int], lanes: int, other: int | None = None
) -> str:
    """`other`: the value of lanes that are not selected, undefined if None."""
    rest = "poison" if other is None else str(other)
    order = ", ".join(f"i32 {picks.get(n, rest)}" for n in range(lanes))
    return writer.value(f"shufflevector {kind} {a}, {kind} {b}, <{lanes} x i32> <{order}>")


def bits_of_bytes(values: ValueEmitter, number: Expr, places: Expr) -> Val | None:
    """A byte, in 32 bits, shifted by a number of places that is known for each lane, where lanes repeat bytes; None for
    anything else, or where lanes are not shifted each by a number of their own in one instruction."""
    load = number.a if isinstance(number, Cast) and number.dtype == "int32" else None
    if not isinstance(load, Load) or load.dtype != "uint8" or values.mask is not None or is_gathered(load):
        return None
    if values.addresses.placed[load.buffer].buffer.scope is Scope.REGISTER:
        return None
    access, lanes, write = values.addresses.access(load.buffer, load.indices), values.lanes, values.writer.value
    n_words, rest = divmod(max(access.steps, default=0) + 1, BYTES)
    repeated = not rest and min(access.steps) == 0 and 2 * BYTES * n_words <= lanes
    shifts = _shifts(values, places) if repeated and shuffled_bits(values.arithmetic.target) else None
    if shifts is None:
        return None

    def broadcast() -> Val:
        kind = memory_type("int32", n_words)
        words = write(f"load {kind}, ptr {values.addresses.at(access, load.dtype)}, align 1")
        if n_words == 1:
            return values.arithmetic.broadcast(Val(words, "int32", 1), lanes)
        picks = {n: a // BYTES for n, a in enumerate(access.steps)}
        return Val(_shuffled(values.writer, kind, words, "poison", picks, lanes), "int32", lanes)

    words = values.once(load.buffer, (access, "words", lanes), broadcast).name
    down = literal_lanes([BYTE * (at % BYTES) + n for at, n in zip(access.steps, shifts, strict=True)])
    moved = values.arithmetic.emitted(f"lshr <{lanes} x i32> {words}, {down.name}", down)
    return values.arithmetic.binary("bitand", moved, literal_lanes([(1 << BYTE) - 1 >> n for n in shifts]))


def bytes_in_words(e: Expr) -> Expr:
    """What is computed with the bits of unsigned bytes, in 32 bits: no processor shifts each byte of a vector by places
    of its own. Anything else as it is."""
    bits = isinstance(e, Binary) and e.dtype == "uint8" and e.op in BITS
    if not bits or not any(isinstance(x, Binary) and x.op == "shr" and free_vars(x.b) for x in subexpressions(e)):
        return e

    def wide(x: Expr) -> Expr:
        if isinstance(x, Binary) and x.op in BITS:
            return binary(x.op, wide(x.a), wide(x.b))
        places = x.a if isinstance(x, Cast) and is_index(x.a) else None
        fits = places is not None and integer_bounds(places)[0] >= 0 and integer_bounds(places)[1] < 1 << BYTE
        return cast(places if places is not None and fits else x, "int32")

    return wide(e)


def _shifts(values: ValueEmitter, places: Expr) -> tuple[int, ...] | None:
    """The places for each lane, where they are known and less than the bits of a byte."""
    if isinstance(places, Const):
        return (int(places.value),) * values.lanes if 0 <= int(places.value) < BYTE else None
    if not isinstance(places, Cast) or not is_index(places.a):
        return None
    known = values.bindings.pattern(places.a)
    return None if known is None or known[0] != 0 or not all(0 <= n < BYTE for n in known[1]) else known[1]
