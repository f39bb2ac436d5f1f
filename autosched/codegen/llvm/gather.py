"""Gathers: indices that are data become variables, so that address computation has linear forms only.

    E[ids[b], d]    ->   n = clamp(ids[b]), in the innermost loop that moves it;  E[n, d] in vectors along d
    T[w[i]]         ->   n = clamp(w[i]), a number for each lane;  a gather, or shuffles of a short table's vectors
    T[n], T[n + 1]  ->   both by one load of twice the size for each lane, from which shuffles make two vectors

A number that lanes share leaves the loops that it does not depend on, where nothing that is stored meanwhile is read
for it and it is loaded there in any case, or may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from autosched.codegen.llvm.address import LaneAccess
from autosched.codegen.llvm.arithmetic import Val, has_avx512, shuffled_bits
from autosched.codegen.llvm.bindings import HERE, LANE, LaneRange, Numbers, Runtime, fits_32
from autosched.codegen.llvm.emitters import ValueEmitter
from autosched.codegen.llvm.masks import has_stores, lanes_of
from autosched.codegen.llvm.vocabulary import fill_name, memory_type, splat, suffix, value_type
from autosched.codegen.llvm.writer import Writer
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Binary, Cast, Expr, Load, Select, Var, binary
from autosched.ir.types import integer_bounds
from autosched.ir.visit import free_vars, is_data, loads, subexpressions
from autosched.lower.neighbours import neighbours
from autosched.target import PIECE_BYTES, Target, microarchitecture

REGISTERS = 2  # vectors of a table that lanes are picked from
SMALLEST_GATHERED = 4  # bytes of an element that the hardware gathers
PIECES_OF_BYTES = 2  # of 128 bits, in the longest vector that bytes are picked from
FEWEST_PAIRED = 4  # lanes for which neighbours are loaded together
TWICE = {1: "int16", 2: "int32", 4: "float64"}  # what two elements of so many bytes are loaded as
BYTES = 64  # of a register, where one instruction picks from two of them
PAIRS_OF_BYTES = 8  # of registers of the longest table of bytes: more are slower than a load for each lane


def known_indices(values: ValueEmitter, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The indices, each with variables in place of data."""
    return tuple(_known_index(values, index) for index in indices)


def _known_index(values: ValueEmitter, index: Expr) -> Expr:
    """The index with a variable in place of each part that is data, bound to its value."""
    if not is_data(index):
        return index
    if isinstance(index, Binary) and index.op in ("add", "sub", "mul"):
        return binary(index.op, _known_index(values, index.a), _known_index(values, index.b))
    bindings = values.bindings
    var = bindings.data.get(index)
    if var is None:
        var = bindings.data[index] = Var(f"data {len(bindings.data)}", INDEX)
        bindings.simplify.ranges[var] = integer_bounds(index)
    outer = _outside(values, index)
    if outer is not None:
        bindings.env[var] = outer
        return var
    value = values.emit(index.a if isinstance(index, Cast) else index)
    if value.lanes == 1:
        bindings.env[var] = Runtime(values.arithmetic.cast(value, INDEX).name, HERE)
    else:
        bindings.env[var] = Numbers(*values.arithmetic.cast(value, "int32" if _is_small(index) else INDEX))
    return var


def _is_small(index: Expr) -> bool:
    return fits_32(*integer_bounds(index))


def _outside(values: ValueEmitter, index: Expr) -> Runtime | None:
    """The index as a number that is known in the innermost loop which moves it; None where it has to stay here."""
    writer, bound = values.writer, [values.bindings.env[v] for v in free_vars(index)]
    steady = all(x.buffer in values.addresses.steady for x in loads(index))
    if not steady or any(isinstance(b, LaneRange | Numbers) for b in bound):
        return None
    depth = max((b.depth for b in bound if isinstance(b, Runtime)), default=0)
    branches = any(isinstance(e, Select) for e in subexpressions(index))
    if depth == HERE or branches or not values.may_load(index, depth):
        return None
    fixed = values.bindings.fixed(index)
    memo = writer.frames[depth].memo
    key = ("data", fixed, *(b.name for b in bound if isinstance(b, Runtime)))
    if key not in memo:
        with writer.hoisted(depth), values.alone():
            memo[key] = values.arithmetic.cast(values.emit(fixed), INDEX).name
    return Runtime(memo[key], depth)


def _in_32_bits(values: ValueEmitter, index: Expr) -> Val | None:
    """An index of lanes in half the registers; None where it may be negative, does not fit, or is no sum of data."""
    total, simplify = None, values.bindings.simplify
    form = simplify.affine(index)
    bounds = [(c * low, c * high) for atom, c in form.terms for low, high in [simplify.bounds(atom)]]
    if sum(map(min, bounds)) < 0 or not fits_32(*(n for pair in bounds for n in pair), sum(map(max, bounds))):
        return None
    for atom, c in form.terms:
        bound = values.bindings.env.get(atom) if isinstance(atom, Var) else None
        if not isinstance(bound, Numbers) or bound.dtype == INDEX:
            return None
        part = (
            Val(*bound)
            if c == 1
            else values.arithmetic.binary("mul", Val(*bound), Val(values.bindings.narrowed(c), "int32", 1))
        )
        total = part if total is None else values.arithmetic.binary("add", total, part)
    return total


def gathered(values: ValueEmitter, access: LaneAccess, dtype: str) -> str:
    """The vector of lanes from different places: picked from a short table, by the hardware's gather, or lane by lane;
    a masked gather where lanes may not exist, if the hardware may have one for elements of that size."""
    lanes, kind = values.lanes, memory_type(dtype, values.lanes)
    base, index = values.addresses.at(access, dtype), access.lane_index
    exists = index is not None and not values.guarded and (values.mask is None or LANE not in free_vars(index))
    own = _in_32_bits(values, index) if index is not None and exists else None
    if own is not None and own.lanes == lanes:  # data are clamped, also those of lanes that do not exist
        from_table = _from_short_table(values, access, own, dtype) or _from_bytes(values, access, own, dtype)
        if from_table is not None:
            return from_table
        if not _has_gathers(values.arithmetic.target, dtype):
            return _one_by_one(values, base, own, dtype)
    filler = splat("1", dtype, lanes) if DTYPES[dtype].is_integer else "zeroinitializer"
    if values.mask is not None and DTYPES[dtype].nbytes < SMALLEST_GATHERED:
        return _where_they_exist(values, access, dtype, values.mask, filler)
    mask = f"<{lanes} x i1> " + (values.mask or splat("true", "bool", lanes))
    return values.writer.value(
        f"call {kind} @llvm.masked.gather.{suffix(dtype, lanes)}.v{lanes}p0(<{lanes} x ptr> align "
        f"{DTYPES[dtype].nbytes} {lane_pointers(values, access, dtype)}, {mask}, {kind} {filler})"
    )


def _has_gathers(target: Target, dtype: str) -> bool:
    """Whether lanes at indices of 32 bits are loaded by an instruction, which is faster than one by one."""
    is_faster = has_avx512(target) and microarchitecture(target.mcpu).gather > 0.0
    return is_faster and DTYPES[dtype].nbytes >= SMALLEST_GATHERED


def gathered_pair(values: ValueEmitter, of: tuple[Expr, ...], load: Load) -> dict[Expr, Val] | None:
    """The lanes of `load` and of its neighbour in the expressions `of`, two elements by each load of twice the size.
    None where single elements are loaded: without a neighbour, of short tables, or where lanes may not exist."""
    dtype, lanes, size = load.dtype, values.lanes, DTYPES[load.dtype].nbytes
    pair = neighbours(of).get(load) if lanes >= FEWEST_PAIRED else None
    if pair is None or values.guarded:
        return None
    index = _begin(values, pair.begin)
    if index is None:
        return None
    piece = min(lanes, PIECE_BYTES // size)  # both halves of a piece of the result are one shuffle of two pieces
    order = sorted(range(lanes), key=lambda n: n % piece >= piece // 2)
    kind, twice, write = memory_type(dtype, lanes), memory_type(TWICE[size], lanes // 2), values.writer.value
    halves = _pairs_of_lanes(values, *index, dtype, order)
    vectors = ", ".join(f"{kind} {write(f'bitcast {twice} {half} to {kind}')}" for half in halves)
    places, elements = {n: 2 * at for at, n in enumerate(order)}, list[Val]()
    for second in range(2):
        shuffle = ", ".join(f"i32 {places[n] + second}" for n in range(lanes))
        elements.append(Val(write(f"shufflevector {vectors}, <{lanes} x i32> <{shuffle}>"), dtype, lanes))
    first, after = elements
    choose, emit = values.arithmetic.select, values.emit
    at_end, at_start = pair.is_at_end, pair.is_at_start
    return {
        pair.first: first if at_end is None else choose(emit(at_end), after, first),
        pair.second: after if at_start is None else choose(emit(at_start), first, after),
    }


def _begin(values: ValueEmitter, load: Load) -> tuple[str, Val] | None:
    """A pointer, and each lane's number of elements behind it where `load` and the element after it are adjacent; None
    where they are not, for lanes that may not exist, and for short tables, which shuffles pick from."""
    simplify, indices = values.bindings.simplify, known_indices(values, load.indices)
    access = values.addresses.access(load.buffer, indices)
    before, behind = values.addresses.room(load.buffer, indices, values.lanes)
    own = access.lane_index
    if own is None or before < 0 or behind < 1 or simplify.bounds(own)[1] < REGISTERS * values.lanes:
        return None
    is_adjacent = [c for atom, c in simplify.affine(own).terms if indices[-1] in free_vars(atom)] == [1]
    index = None if values.mask is not None and LANE in free_vars(own) else _in_32_bits(values, own)
    if index is None or index.lanes != values.lanes or not is_adjacent:
        return None
    return values.addresses.at(access, load.dtype), index


def _pairs_of_lanes(values: ValueEmitter, base: str, index: Val, dtype: str, order: list[int]) -> tuple[str, str]:
    """Two vectors of pairs of elements that begin at `index`, with the lanes in the given order."""
    lanes, size, write = index.lanes, DTYPES[dtype].nbytes, values.writer.value
    half, scalar, wide = lanes // 2, memory_type(dtype), TWICE[size]
    kind, halves = memory_type(wide, half), ["poison", "poison"]
    if _has_gathers(values.arithmetic.target, wide):
        for n in range(2):
            chosen = ", ".join(f"i32 {lane}" for lane in order[n * half : (n + 1) * half])
            own = write(
                f"shufflevector <{lanes} x i32> {index.name}, <{lanes} x i32> poison, <{half} x i32> <{chosen}>"
            )
            pointers = write(f"getelementptr {scalar}, ptr {base}, <{half} x i32> {own}")
            halves[n] = write(
                f"call {kind} @llvm.masked.gather.{suffix(wide, half)}.v{half}p0(<{half} x ptr> align {size} "
                f"{pointers}, <{half} x i1> {splat('true', 'bool', half)}, {kind} zeroinitializer)"
            )
        return halves[0], halves[1]
    at = {lane: divmod(n, half) for n, lane in enumerate(order)}
    for lane, number in enumerate(_numbers(values.writer, index, values.arithmetic.target)):
        place = write(f"getelementptr inbounds {scalar}, ptr {base}, i64 {number}", "p")
        element = write(f"load {memory_type(wide)}, ptr {place}, align {size}")
        n, position = at[lane]
        halves[n] = write(f"insertelement {kind} {halves[n]}, {memory_type(wide)} {element}, i64 {position}")
    return halves[0], halves[1]


def lane_pointers(values: ValueEmitter, access: LaneAccess, dtype: str) -> str:
    """A vector of pointers, one for each lane."""
    base, lanes = values.addresses.at(access, dtype), values.lanes
    own = access.lane_index
    if own is not None:
        narrow = _in_32_bits(values, own) or values.indices.narrow(own, lanes)
        index = values.arithmetic.broadcast(narrow or values.indices.emit(own, lanes), lanes)
    elif isinstance(access.lane_stride, int) or access.steps:
        steps = ", ".join(f"i64 {step}" for step in access.lane_steps(lanes))
        index = Val(f"<{steps}>", INDEX, lanes)
    else:  # a size
        numbers = Val(f"<{', '.join(f'i64 {n}' for n in range(lanes))}>", INDEX, lanes)
        index = values.arithmetic.binary("mul", numbers, Val(str(access.lane_stride), INDEX, 1))
    kind = value_type(index.dtype, lanes)
    return values.writer.value(f"getelementptr {memory_type(dtype)}, ptr {base}, {kind} {index.name}")


def scatter(values: ValueEmitter, access: LaneAccess, dtype: str, text: str) -> None:
    """Writes the lanes of `text`, which lie apart, where the mask has them. What has no instruction for it writes each
    known lane at a constant distance: LLVM would bring every pointer out of a vector first, 22 instructions for eight
    lanes instead of nine."""
    lanes, kind, scalar = values.lanes, memory_type(dtype, values.lanes), memory_type(dtype)
    chosen, align = lanes_of(values.mask, lanes), DTYPES[dtype].nbytes
    if chosen and access.lane_index is None and not has_stores(values.arithmetic.target):
        steps = access.lane_steps(lanes)
        for n in chosen:
            element = values.writer.value(f"extractelement {kind} {text}, i64 {n}")
            place = values.addresses.at(access._replace(offset=access.offset + steps[n]), dtype)
            values.writer.emit(f"store {scalar} {element}, ptr {place}, align {align}")
        return
    pointers, mask = lane_pointers(values, access, dtype), values.mask or splat("true", "bool", lanes)
    values.writer.emit(
        f"call void @llvm.masked.scatter.{suffix(dtype, lanes)}.v{lanes}p0({kind} {text}, "
        f"<{lanes} x ptr> align {align} {pointers}, <{lanes} x i1> {mask})"
    )


def _one_by_one(values: ValueEmitter, base: str, index: Val, dtype: str) -> str:
    """Each lane's element by a load of its own, at an index that is not negative."""
    write, kind, scalar, vector = values.writer.value, memory_type(dtype, index.lanes), memory_type(dtype), "poison"
    for n, number in enumerate(_numbers(values.writer, index, values.arithmetic.target)):
        place = write(f"getelementptr inbounds {scalar}, ptr {base}, i64 {number}", "p")
        element = write(f"load {scalar}, ptr {place}, align {DTYPES[dtype].nbytes}")
        vector = write(f"insertelement {kind} {vector}, {scalar} {element}, i64 {n}")
    return vector


def _where_they_exist(values: ValueEmitter, access: LaneAccess, dtype: str, mask: str, filler: str) -> str:
    """Each lane's element by a load of its own, from a constant in lanes that the mask leaves out. A masked gather of
    short elements becomes a branch for each lane, which LLVM takes some 20 times as long for."""
    write, lanes, scalar, vector = values.writer.value, values.lanes, memory_type(dtype), filler
    pointers = lane_pointers(values, access, dtype)
    constant = fill_name(DTYPES[dtype].is_integer, "uint8" if dtype == "bool" else dtype)
    chosen = lanes_of(mask, lanes) if mask.startswith("<") else range(lanes)
    for n in chosen:
        place = write(f"extractelement <{lanes} x ptr> {pointers}, i64 {n}", "p")
        if not mask.startswith("<"):
            exists = write(f"extractelement <{lanes} x i1> {mask}, i64 {n}")
            place = write(f"select i1 {exists}, ptr {place}, ptr {constant}", "p")
        element = write(f"load {scalar}, ptr {place}, align {DTYPES[dtype].nbytes}")
        vector = write(f"insertelement <{lanes} x {scalar}> {vector}, {scalar} {element}, i64 {n}")
    return vector


def _numbers(writer: Writer, index: Val, target: Target) -> Iterator[str]:
    """The lanes in 64 bits. Two leave the vector together: on Zen 3 an element then takes 1.2 cycles, with one after
    another 1.5, with pointers in vectors 1.6, by the hardware's gather 1.7. That a pair is a register, of which nothing
    more is known, keeps LLVM 22 from taking all of it for its first half."""
    lanes = index.lanes
    if target.arch != "x86_64" or lanes * DTYPES[index.dtype].nbytes < PIECE_BYTES:
        for n in range(lanes):
            yield writer.value(
                f"zext i32 {writer.value(f'extractelement <{lanes} x i32> {index.name}, i64 {n}')} to i64"
            )
        return
    pairs = writer.value(f"bitcast <{lanes} x i32> {index.name} to <{lanes // 2} x i64>")
    for n in range(lanes // 2):
        pair = writer.value(f"extractelement <{lanes // 2} x i64> {pairs}, i64 {n}")
        held = writer.value(f'call i64 asm "", "=r,0"(i64 {pair})')
        yield writer.value(f"and i64 {held}, {(1 << 32) - 1}")
        yield writer.value(f"lshr i64 {held}, 32")


def _from_short_table(values: ValueEmitter, access: LaneAccess, index: Val, dtype: str) -> str | None:
    """The lanes out of a table that is a register or two, all of which exists; None for another one. What is written
    lane by lane is one shuffle for each register (LLVM's "variable permute")."""
    lanes, write, size = values.lanes, values.writer.value, DTYPES[dtype].nbytes
    assert access.lane_index is not None
    low, high = values.bindings.simplify.bounds(access.lane_index)
    register = shuffled_bits(values.arithmetic.target) // 8
    longest = {1: min(register, PIECES_OF_BYTES * PIECE_BYTES), 4: register}.get(size, 0)
    if (
        low != 0
        or LANE in free_vars(access.lane_index)
        or high >= REGISTERS * lanes
        or not PIECE_BYTES <= size * lanes <= longest
    ):
        return None
    kind, scalar, result = memory_type(dtype, lanes), memory_type(dtype), ""
    word = f"i{8 * size}"  # indices of another size are no operands of a shuffle
    at = index.name if size == 4 else write(f"trunc <{lanes} x i32> {index.name} to <{lanes} x {word}>")
    own = write(f"and <{lanes} x {word}> {at}, splat ({word} {lanes - 1})") if high >= lanes else at
    places = [write(f"extractelement <{lanes} x {word}> {own}, i64 {n}") for n in range(lanes)]
    for first in range(0, high + 1, lanes):
        table = _table(values, access, first, high, dtype)
        vector = "poison"
        for n, place in enumerate(places):
            element = write(f"extractelement {kind} {table}, {word} {place}")
            vector = write(f"insertelement {kind} {vector}, {scalar} {element}, i64 {n}")
        if result:
            vector = write(
                f"select <{lanes} x i1> {_is_second(values, at, lanes, word)}, {kind} {vector}, {kind} {result}"
            )
        result = vector
    return result


def _table(values: ValueEmitter, access: LaneAccess, first: int, last: int, dtype: str) -> str:
    """A vector of the elements from `first` on, of which those up to `last` exist."""
    lanes, write, kind = values.lanes, values.writer.value, memory_type(dtype, values.lanes)
    some = min(lanes, last + 1 - first)
    part, short = access._replace(offset=access.offset + first), memory_type(dtype, some)
    table = write(f"load {short}, ptr {values.addresses.at(part, dtype)}, align {DTYPES[dtype].nbytes}")
    if some == 1:
        return write(f"insertelement {kind} poison, {memory_type(dtype)} {table}, i64 0")
    if some == lanes:
        return table
    order = ", ".join(f"i32 {n if n < some else 'poison'}" for n in range(lanes))
    return write(f"shufflevector {short} {table}, {short} poison, <{lanes} x i32> <{order}>")


def _from_bytes(values: ValueEmitter, access: LaneAccess, index: Val, dtype: str) -> str | None:
    """The lanes out of a table of bytes, all of which exists: each is picked from every two registers of it, and then
    chosen by the upper bits of its index. None for another table, or where no instruction picks from two registers."""
    assert access.lane_index is not None
    low, high = values.bindings.simplify.bounds(access.lane_index)
    is_long = low != 0 or not isinstance(high, int) or high >= 2 * BYTES * PAIRS_OF_BYTES
    if is_long or DTYPES[dtype].nbytes > 1 or index.lanes != BYTES or not values.arithmetic.target.has("avx512vbmi"):
        return None
    write, kind, wide = values.writer.value, memory_type(dtype, BYTES), f"<{BYTES} x i32>"
    at = write(f"trunc {wide} {index.name} to {kind}")
    upper = write(f"lshr {wide} {index.name}, splat (i32 {(2 * BYTES).bit_length() - 1})")
    pair_of = write(f"trunc {wide} {upper} to {kind}")
    registers = [_table(values, access, first, high, dtype) for first in range(0, high + 1, BYTES)]
    pairs = [(a, b) for a, b in zip_longest(registers[::2], registers[1::2], fillvalue=registers[0])]
    picked = [
        write(f"call {kind} @llvm.x86.avx512.vpermi2var.qi.512({kind} {a}, {kind} {at}, {kind} {b})") for a, b in pairs
    ]
    bit = 1
    while len(picked) > 1:
        chosen = write(f"and {kind} {pair_of}, splat (i8 {bit})")
        is_odd = write(f"icmp ne {kind} {chosen}, zeroinitializer")
        picked = [
            a if b is None else write(f"select <{BYTES} x i1> {is_odd}, {kind} {b}, {kind} {a}")
            for a, b in zip_longest(picked[::2], picked[1::2])
        ]
        bit *= 2
    return picked[0]


def _is_second(values: ValueEmitter, at: str, lanes: int, word: str) -> str:
    """Of numbers below twice the lanes, which are a power of two, those that are not below the lanes. Vectors that
    choose do so by signs: the bit is moved there, and what was masked to get the number is not masked for it."""
    write, kind = values.writer.value, f"<{lanes} x {word}>"
    if not values.arithmetic.target.masks_are_vectors or word != "i32":
        return write(f"icmp uge {kind} {at}, splat ({word} {lanes})")
    sign = write(f"shl {kind} {at}, splat ({word} {int(word[1:]) - lanes.bit_length()})")
    return write(f"icmp slt {kind} {sign}, zeroinitializer")
