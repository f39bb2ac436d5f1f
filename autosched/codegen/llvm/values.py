"""Emission of expressions: scalars as long as lanes agree, vectors from there on.

A load whose lanes are adjacent is a vector load (masked where the loop ends or a condition differs by lane), one whose
lanes agree is a scalar load that is spread. Lanes that are a few elements apart are picked from vectors, anything else
is gathered. Within straight code a load is emitted once. a*b + c is one fused instruction where the target has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import index

from autosched.codegen.llvm import dots, masks, strided
from autosched.codegen.llvm.address import Addresses, LaneAccess, is_adjacent
from autosched.codegen.llvm.arithmetic import Arithmetic, Val
from autosched.codegen.llvm.bindings import LaneRange, fits_32, is_index
from autosched.codegen.llvm.gather import gathered, gathered_pair, known_indices
from autosched.codegen.llvm.indices import Indices
from autosched.codegen.llvm.table_floats import from_table
from autosched.codegen.llvm.vocabulary import fill_name, literal, memory_type, splat, suffix, value_type
from autosched.codegen.llvm.writer import Writer
from autosched.ir.bitcast import Bitcast
from autosched.ir.conditions import ORDERINGS, conjuncts, every, is_ordering
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import COMPARISON, INDEX, STEPS, Binary, Call, Cast, Const, Expr, Load, Select, Var
from autosched.ir.instructions.dots import WORD_BITS, Dot, Word
from autosched.ir.size import has_size
from autosched.ir.stmt import Scope, Store
from autosched.ir.visit import free_vars, is_gathered, loads, subexpressions

Exprs = tuple[Expr, ...]


@dataclass
class Values:
    """Emits the value of an expression at the current point."""

    writer: Writer
    addresses: Addresses
    arithmetic: Arithmetic
    bound: dict[Var, Val] = field(default_factory=dict)  # a reducer's operands
    mask: str | None = None  # lanes that exist
    counts: dict[str, str] = field(default_factory=dict)  # mask -> how many lanes, the first ones, it has at run time
    lanes: int = 1
    guarded: bool = False  # the mask comes from a condition, so even a uniform address may be out of bounds
    in_window: bool = False  # what is loaded is soon needed again
    _loaded: dict[str, dict[tuple[object, ...], Val]] = field(default_factory=dict)  # by buffer
    _memo: dict[Expr, Val] = field(default_factory=dict)
    _store: Store | None = None  # that is emitted

    def __post_init__(self) -> None:
        self.bindings = self.addresses.bindings
        self.indices = Indices(self.arithmetic, self.bindings)

    def forget(self, buffer: str | None = None) -> None:
        """Loads of `buffer` (of all) are emitted anew from here on."""
        if buffer is None:
            self._loaded.clear()
        else:
            self._loaded.pop(buffer, None)

    def once(self, buffer: str, key: tuple[object, ...], load: Callable[[], Val]) -> Val:
        """What `load` emits, or what it emitted before where the buffer has not changed since; `key`: what it loads."""
        known = self._loaded.setdefault(buffer, {})
        if key not in known:
            known[key] = load()
        return known[key]

    def begin(self, store: Store | None = None) -> None:
        """Begin a new statement, `store` if it is one: no subexpression has been emitted yet."""
        self._memo.clear()
        self._store = store

    def emit(self, expr: Expr) -> Val:
        """The value of `expr`; within a statement each subexpression is emitted once."""
        if isinstance(expr, Const):
            if has_size(expr):
                return self.arithmetic.cast(Val(str(expr.value), INDEX, 1), expr.dtype)
            return Val(literal(expr.value, expr.dtype), expr.dtype, 1)
        if isinstance(expr, Load) and not is_gathered(expr):
            return self._load(expr)
        value = self._memo.get(expr)
        if value is None:
            made = self._load_gathered(expr) if isinstance(expr, Load) else from_table(self, expr) or self._emit(expr)
            value = self._memo[expr] = made
        return value

    def _converted(self, a: Expr, dtype: str) -> Val:
        if is_index(a) and not free_vars(a) & self.bound.keys():
            return self._converted_index(a, dtype)
        if isinstance(a, Call) and a.fn == "round" and (a.dtype, dtype) == ("float32", "int32"):
            value = self._stepped(a.args[0])
            if value.lanes > 1:
                return self.arithmetic.rounded(value)
        value = self._stepped(a) if DTYPES[dtype].is_integer else self.emit(strided.bytes_in_words(a))
        return self.arithmetic.cast(value, dtype)

    def _stepped(self, expr: Expr) -> Val:
        """What a step follows: a quotient is rounded once, for by a reciprocal a whole number may come out below."""
        if not (isinstance(expr, Binary) and expr.op == "div" and DTYPES[expr.dtype].is_float):
            return self.emit(strided.bytes_in_words(expr))
        a, b = self.emit(expr.a), self.emit(expr.b)
        return self.arithmetic.binary("div", a, self.arithmetic.broadcast(b, a.lanes))

    def _emit(self, expr: Expr) -> Val:
        if isinstance(expr, Binary) and DTYPES[expr.dtype].is_float:  # as most are
            return self._binary(expr)
        match expr:
            case Var() if expr in self.bound:
                return self.bound[expr]
            case Select():
                return self._select(expr)
            case Cast(a=a, dtype=dtype):
                return self._converted(a, dtype)
            case Bitcast(a=a, dtype=dtype):
                return self.arithmetic.bitcast(self.emit(a), dtype)
            case Call(fn="not", args=(Binary(op=op, a=a, b=b),)) if op in ORDERINGS and DTYPES[a.dtype].is_float:
                return self.arithmetic.fails(op, self.emit(a), self.emit(b))
            case Call(fn=fn, args=(a,)):
                return self.arithmetic.call(fn, self._stepped(a) if fn in STEPS else self.emit(a))
            case Word():
                return self._word(expr)
            case Dot(row=row, a=a, b=b):
                return dots.dot(self.arithmetic, row, self.emit(a), self.emit(b), None)
        if not loads(expr) and not free_vars(expr) & self.bound.keys():
            if is_index(expr):
                return self.indices.emit(expr, self.lanes)
            if isinstance(expr, Binary) and expr.op in COMPARISON and expr.a.dtype == INDEX:
                fixed = self.bindings.fixed(expr)
                if isinstance(fixed, Const):  # decided by unrolled variables or by the loops' ranges
                    return Val(literal(fixed.value, "bool"), "bool", 1)
                if isinstance(fixed, Binary) and (lanes := self.indices.compared(fixed, self.lanes)):
                    return lanes
        assert isinstance(expr, Binary), f"no code for {type(expr).__name__}"
        return self._binary(expr)

    def _binary(self, expr: Binary) -> Val:
        a, b = expr.a, expr.b
        if expr.op == "shr" and (bits := strided.bits_of_bytes(self, a, b)) is not None:
            return bits
        if expr.op == "add" and isinstance(b, Dot):
            return dots.dot(self.arithmetic, b.row, self.emit(b.a), self.emit(b.b), self.emit(a))
        if expr.op in ("add", "sub") and DTYPES[expr.dtype].is_float and self.arithmetic.target.has_fma:
            if _is_product(b):
                assert isinstance(b, Binary)
                x, y, z = self.emit(b.a), self.emit(b.b), self.emit(a)
                return self.arithmetic.fma(self.arithmetic.negate(x) if expr.op == "sub" else x, y, z)
            if _is_product(a):
                assert isinstance(a, Binary)
                x, y, z = self.emit(a.a), self.emit(a.b), self.emit(b)
                return self.arithmetic.fma(x, y, self.arithmetic.negate(z) if expr.op == "sub" else z)
        if expr.op == "sub" and self.lanes > 1 and self._is_of_rows(a, b):
            return self.arithmetic.less(self.emit(a), self.emit(b))
        return self.arithmetic.binary(expr.op, self.emit(a), self.emit(b))

    def _is_of_rows(self, a: Expr, b: Expr) -> bool:
        """Whether `a` is a float in memory and `b` the same for four vectors of that or more, and surely in a register:
        not beside a function of each element, whose constants take them, nor where a stage that is written to the stack
        might be `b`, for all that LLVM knows."""
        fixed = free_vars(b)
        if not isinstance(a, Load) or isinstance(b, Const) or not DTYPES[a.dtype].is_float or not fixed <= free_vars(a):
            return False
        names, values = ((), ()) if self._store is None else (self._store.buffers, self._store.values)
        scopes = [self.addresses.placed[x].buffer.scope for x in (a.buffer, *names)]
        if scopes[0] is Scope.REGISTER or Scope.LOCAL in scopes[1:]:
            return False
        if any(isinstance(e, Call) and not free_vars(e) <= fixed for v in values for e in subexpressions(v)):
            return False
        ranges = map(self.addresses.bindings.simplify.bounds, free_vars(a) - fixed)
        return prod(high - low + 1 for low, high in ranges) >= 4 * self.lanes

    def _converted_index(self, a: Expr, dtype: str) -> Val:
        """By way of 32 bits where it fits: vectors of 64 bits are no floats in one instruction before AVX-512."""
        if not fits_32(*self.bindings.interval(a, self.lanes)):
            return self.arithmetic.cast(self.emit(a), dtype)
        narrow = self.indices.narrow(a, self.lanes) or self.arithmetic.cast(self.emit(a), "int32")
        return self.arithmetic.cast(narrow, dtype)

    # loads

    def know(self, load: Load, name: str) -> None:
        """Record that the vector `name` holds the memory of `load` at this point."""
        access = self.addresses.access(load.buffer, load.indices)
        value = Val(name, load.dtype, self.lanes)
        self._loaded.setdefault(load.buffer, {})[(access, self.mask, self.lanes, load.dtype)] = value

    def _load(self, load: Load) -> Val:
        access = self.addresses.access(load.buffer, load.indices)
        if access.pointer in self.addresses.slots and access.lane_stride == 1 and load.dtype != "bool":
            return Val(self.addresses.read(access, load.dtype, self.lanes), load.dtype, self.lanes)
        lanes = self._lane_binding() if access.lane_stride is None else self.lanes if access.lane_stride else 1
        return self.once(load.buffer, (access, self.mask, lanes, load.dtype), lambda: self._emit_load(load, access))

    def _load_gathered(self, load: Load) -> Val:
        """A load at indices that are data: these become variables, each with what is loaded for it here."""
        if self._store is not None and (both := gathered_pair(self, self._store.values, load)):
            self._memo |= both
            return both[load]
        known: Load = Load(load.buffer, known_indices(self, load.indices), load.dtype)
        return self._emit_load(known, self.addresses.access(known.buffer, known.indices))

    def _emit_load(self, load: Load, access: LaneAccess) -> Val:
        dtype = load.dtype
        register = self.addresses.placed[load.buffer].buffer.scope is Scope.REGISTER
        if access.lane_stride == 0 and not (register and self.guarded):
            at = self._somewhere(access, dtype) if self.mask and self.guarded else access
            return self._from_memory(self.addresses.read(at, dtype, 1), dtype, 1)
        if access.lane_stride == 1 and (self.mask is None or register):
            return self._from_memory(self.addresses.read(access, dtype, self.lanes), dtype, self.lanes)
        if access.lane_stride == 1:
            return self._from_memory(self._masked_load(access, dtype), dtype, self.lanes)
        if register:
            return self._gather(load, access)
        return (self._placed if access.steps else self._strided)(load, access) or self._gather(load, access)

    def _somewhere(self, access: LaneAccess, dtype: str) -> LaneAccess:
        """Of an element that all lanes share: itself where there is a lane that reads it, else a constant 1."""
        read, place = masks.some(self.writer, str(self.mask), self.lanes), self.addresses.at(access, dtype)
        constant = fill_name(1, "uint8" if dtype == "bool" else dtype)
        return LaneAccess(self.writer.value(f"select i1 {read}, ptr {place}, ptr {constant}", "p"), 0, 0)

    def _strided(self, load: Load, access: LaneAccess) -> Val | None:
        """Load lanes a few elements apart; None where loading them one by one is best."""
        dtype = load.dtype
        lanes, step, (first, used) = self.lanes, access.lane_stride, masks.run(self.mask, self.lanes)
        masked = not used and strided.has_masked_loads(self.arithmetic.target, dtype)
        size, found = strided.vectors_of(self, load, access, lanes if masked else used)
        starts = [first * (step or 0) + n for n in found]
        if not starts or step is None:
            return None
        step, starts = index(step), [*map(index, starts)]  # lanes of shuffles are constants
        access = access._replace(lane_stride=step)
        if self.in_window and not masked and step > 0 and not first:
            taken = [key[0] for key in self._loaded.get(load.buffer, {}) if key[1:] == ("whole", lanes)]
            beside = [at for at in taken if isinstance(at, LaneAccess) and at.pointer == access.pointer]
            near = [at.offset - access.offset for at in beside]
            room = self.addresses.room(load.buffer, load.indices, used)
            starts = strided.shared_starts((used - 1) * step + 1, lanes, near, room)

        def vector(start: int, at: LaneAccess) -> str:
            if not masked:
                return self._whole(load.buffer, at, dtype, size).name
            return self._masked_load(at, dtype, strided.piece_mask(self.writer, str(self.mask), start, step, lanes))

        piece = strided.piece_lanes(self.arithmetic.target, dtype, lanes)
        name = strided.shuffled_load(self.writer, starts, access, (dtype, lanes, size), piece, vector)
        return self._from_memory(name, dtype, lanes)

    def _placed(self, load: Load, access: LaneAccess) -> Val | None:
        """Lanes of which each is known to be some elements behind the first; None where one by one is better."""
        dtype, lanes = load.dtype, self.lanes
        steps = {n: access.steps[n] for n in masks.lanes_of(self.mask, lanes)}
        whole = access.base % lanes == 0 and self.addresses.is_multiple(load.buffer, lanes)
        vectors = strided.covering(steps.values(), lanes, -access.offset % lanes if whole else None)
        if not vectors:
            return None

        def vector(start: int, size: int) -> str:
            return self._whole(load.buffer, LaneAccess(access.pointer, access.offset + start, 1), dtype, size).name

        return self._from_memory(strided.placed(self.writer, vectors, steps, (dtype, lanes), vector), dtype, lanes)

    def _whole(self, buffer: str, at: LaneAccess, dtype: str, lanes: int) -> Val:
        """A vector of neighbours of which some are lanes."""
        return self.once(buffer, (at, "whole", lanes), lambda: Val(self.addresses.read(at, dtype, lanes), dtype, lanes))

    def _leading_lanes(self) -> int:
        """Return the number of active lanes if they are known to be the first ones, else 0."""
        if self.mask is None:
            return self.lanes
        known = masks.lanes_of(self.mask, self.lanes)
        return len(known) if known == list(range(len(known))) else 0

    def _word(self, word: Word) -> Val:
        """Load adjacent elements at once; others are combined from their bits."""
        places = [
            self.addresses.access(p.buffer, known_indices(self, p.indices)) for p in word.parts if isinstance(p, Load)
        ]
        first = places[0] if len(places) == len(word.parts) else None
        everywhere = first is not None and (first.lane_stride or self.mask is None or not self.guarded)
        extends = first is not None and len(places) * DTYPES[word.parts[0].dtype].bits < WORD_BITS
        if first is not None and everywhere and not (extends and self.mask) and is_adjacent(places):
            buffer, dtype = word.parts[0].buffer, word.parts[0].dtype  # type: ignore[attr-defined]
            key = (first, self.mask, f"word of {len(places)}")
            return self.once(buffer, key, lambda: self._whole_word(first, dtype, extends))
        return dots.assemble(self.arithmetic, [self.emit(p) for p in word.parts])

    def _whole_word(self, access: LaneAccess, dtype: str, extends: bool) -> Val:
        """The words that lie at `access`; `extends`: as bytes, which become the numbers of 16 bits of a word."""
        lanes = self.lanes if access.lane_stride else 1
        if extends:
            kind, pointer = memory_type(dtype, 2 * lanes), self.addresses.at(access, dtype)
            loaded = self.writer.value(f"load {kind}, ptr {pointer}, align 1")
            return dots.extend(self.arithmetic, Val(loaded, dtype, 2 * lanes))
        kind, pointer, align = memory_type("int32", lanes), self.addresses.at(access, dtype), DTYPES[dtype].nbytes
        if self.mask is None or lanes == 1:
            return Val(self.writer.value(f"load {kind}, ptr {pointer}, align {align}"), "int32", lanes)
        name = self.writer.value(
            f"call {kind} @llvm.masked.load.{suffix('int32', lanes)}.p0(ptr align {align} {pointer}, "
            f"<{lanes} x i1> {self.mask}, {kind} zeroinitializer)"
        )
        return Val(name, "int32", lanes)

    def _lane_binding(self) -> LaneRange | None:
        """Where the vectorised variable stands: an index that is not linear in it has no other trace of that."""
        return next((b for b in self.bindings.env.values() if isinstance(b, LaneRange)), None)

    def _masked_load(self, access: LaneAccess, dtype: str, mask: str | None = None, fill: str | None = None) -> str:
        kind = memory_type(dtype, self.lanes)
        filler = fill or (splat("1", dtype, self.lanes) if DTYPES[dtype].is_integer else "zeroinitializer")
        return self.writer.value(
            f"call {kind} @llvm.masked.load.{suffix(dtype, self.lanes)}.p0(ptr align {DTYPES[dtype].nbytes} "
            f"{self.addresses.at(access, dtype)}, <{self.lanes} x i1> {mask or self.mask}, {kind} {filler})"
        )

    def _from_memory(self, name: str, dtype: str, lanes: int) -> Val:
        if dtype == "bool":
            zero = "zeroinitializer" if lanes > 1 else "0"
            name = self.writer.value(f"icmp ne {memory_type(dtype, lanes)} {name}, {zero}")
        return Val(name, dtype, lanes)

    def _gather(self, load: Load, access: LaneAccess) -> Val:
        """Load lanes from arbitrary addresses: one scalar load each, or a masked gather where lanes may be inactive."""
        dtype = load.dtype
        if self.mask is None and access.lane_index is None:
            result = "poison"
            kind = memory_type(dtype, self.lanes)
            for n, step in enumerate(access.lane_steps(self.lanes)):
                element = self.addresses.read(LaneAccess(access.pointer, access.offset + step, 0), dtype, 1)
                result = self.writer.value(f"insertelement {kind} {result}, {memory_type(dtype)} {element}, i64 {n}")
            return self._from_memory(result, dtype, self.lanes)
        return self._from_memory(gathered(self, access, dtype), dtype, self.lanes)

    # select

    def _select(self, expr: Select) -> Val:
        left = self._undecided(expr.cond)
        if left is None:
            return self.emit(expr.a)
        expr = Select(left, expr.a, expr.b)
        cond = self.emit(left)
        if cond.name in ("true", "false"):
            return self.emit(expr.a if cond.name == "true" else expr.b)
        if not loads(expr.a) and not loads(expr.b):
            return self.arithmetic.select(cond, self.emit(expr.a), self.emit(expr.b))
        if cond.lanes == 1:
            return self._filled(cond, expr) or self._branch(cond, expr)
        read = [(x.indices, self._shape(x.buffer)) for x in loads(expr.cond)]
        there = read if self._store is None else [*read, (self._store.indices, self._shape(self._store.buffers[0]))]
        with self.bindings.anywhere():
            is_harmless = self._is_harmless(expr.a, there)
        if not is_harmless and (filled := self._filled_lanes(left, expr.a, expr.b)):
            return filled
        with nullcontext() if is_harmless or self._is_harmless(expr.a, there) else self._under(cond.name):
            a = self.emit(expr.a)
        if self._is_harmless(expr.b, there):
            return self.arithmetic.select(cond, a, self.emit(expr.b))
        with self._under(masks.inverse(self.writer, cond.name, cond.lanes)):
            b = self.emit(expr.b)
        return self.arithmetic.select(cond, a, b)

    def _is_harmless(self, arm: Expr, there: list[tuple[Exprs, Exprs]]) -> bool:
        """Whether all that a select's arm loads exists whatever the condition, and none of its operations traps.
        `there`: indices, and shapes of tensors, that are read or written in any case."""
        if not all(self._exists(load, there) for load in loads(arm)):
            return False
        divisions = (e for e in subexpressions(arm) if isinstance(e, Binary) and e.op in ("div", "floordiv", "mod"))
        return not any(DTYPES[e.dtype].is_integer and not is_index(e) for e in divisions)

    def _exists(self, load: Load, there: list[tuple[Exprs, Exprs]]) -> bool:
        shape = self._shape(load.buffer)
        if any(load.indices == indices and shape == other for indices, other in there):
            return True
        return self.addresses.has_all(load.buffer, load.indices, self._leading_lanes() or self.lanes)

    def _shape(self, name: str) -> Exprs:
        return self.addresses.placed[name].buffer.shape

    def _undecided(self, cond: Expr) -> Expr | None:
        """What is left of a condition without the comparisons that hold in all lanes of these very vectors, which are
        away from the border; None if nothing is."""
        used = self._leading_lanes()
        if not used or not any(isinstance(self.bindings.env.get(v), LaneRange) for v in free_vars(cond)):
            return cond
        left = [p for p in conjuncts(cond) if not self._holds(p, used)]
        return reduce(lambda a, b: a & b, left) if left else None

    def _holds(self, part: Expr, used: int) -> bool:
        """Whether a comparison of indices is known to hold in the first `used` lanes."""
        if not is_ordering(part):
            return False
        low, high = self.bindings.interval(part.a - part.b, used)
        return {"ge": low >= 0, "gt": low > 0, "le": high <= 0, "lt": high < 0}[part.op]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """What all lanes share is emitted where nothing is known of what has been emitted here."""
        state = (self.mask, self.lanes, self.guarded, self._loaded, self._memo)
        self.mask, self.lanes, self.guarded, self._loaded, self._memo = None, 1, False, {}, {}
        try:
            yield
        finally:
            self.mask, self.lanes, self.guarded, self._loaded, self._memo = state

    def may_load(self, expr: Expr, depth: int) -> bool:
        """Whether `expr` is emitted in every iteration of the loop of that depth, or does no harm in any."""
        sometimes = self.guarded or any(f.conditions for f in self.writer.frames[depth:])
        with self.bindings.anywhere():
            return not sometimes or self._is_harmless(expr, [])

    @contextmanager
    def _under(self, cond: str) -> Iterator[None]:
        """Loads happen only in the lanes where `cond` holds."""
        mask, guarded, memo = self.mask, self.guarded, dict(self._memo)
        self.mask = cond if mask is None else masks.both(self.writer, mask, cond, self.lanes)
        self.guarded = True
        try:
            yield
        finally:
            self.mask, self.guarded, self._memo = mask, guarded, memo

    def _filled(self, cond: Val, expr: Select) -> Val | None:
        """Padding: reads beyond the border go to a constant, without a branch; None for other selects."""
        load, fill = expr.a, expr.b
        if not (isinstance(load, Load) and isinstance(fill, Const)) or load.dtype == "bool" or is_gathered(load):
            return None
        access = self.addresses.access(load.buffer, load.indices)
        register = self.addresses.placed[load.buffer].buffer.scope is Scope.REGISTER
        everywhere = self.mask is None or not self.guarded
        if register or access.lane_stride not in (0, 1) or not (access.lane_stride or everywhere):
            return None
        lanes = self.lanes if access.lane_stride else 1

        def chosen() -> Val:
            constant, place = fill_name(fill.value, fill.dtype), self.addresses.at(access, load.dtype)
            either = self.writer.value(f"select i1 {cond.name}, ptr {place}, ptr {constant}", "p")
            return self._emit_load(load, LaneAccess(either, 0, access.lane_stride))

        return self.once(load.buffer, (access, self.mask, lanes, self.bindings.fixed(expr.cond), fill), chosen)

    def _filled_lanes(self, cond: Expr, load: Expr, fill: Expr) -> Val | None:
        """Padding in some lanes: the load leaves them out and fills them itself; None for other selects. What all lanes
        share of the condition chooses the address instead, which costs no mask."""
        if not (isinstance(load, Load) and isinstance(fill, Const)) or is_gathered(load):
            return None
        access = self.addresses.access(load.buffer, load.indices)
        register = self.addresses.placed[load.buffer].buffer.scope is Scope.REGISTER
        if register or access.lane_stride != 1 or load.dtype not in ("float32", "float64"):
            return None
        parts = list(conjuncts(cond))
        shared, own = (self.emit(every(p for p in parts if self._has_lanes(p) is lanes)) for lanes in (False, True))
        if shared.lanes > 1 or own.lanes == 1:
            return None
        mask = own.name if self.mask is None else masks.both(self.writer, self.mask, own.name, self.lanes)
        filler = splat(literal(fill.value, fill.dtype), fill.dtype, self.lanes)

        def loaded() -> Val:
            place = access
            if shared.name != "true":
                constant, there = fill_name(fill.value, fill.dtype), self.addresses.at(access, load.dtype)
                either = self.writer.value(f"select i1 {shared.name}, ptr {there}, ptr {constant}", "p")
                place = LaneAccess(either, 0, 1)
            return Val(self._masked_load(place, load.dtype, mask, filler), load.dtype, self.lanes)

        return self.once(load.buffer, (access, shared.name, mask, self.lanes, load.dtype, fill), loaded)

    def _branch(self, cond: Val, expr: Select) -> Val:
        """A condition that is the same in all lanes: only the branch taken is evaluated."""
        then, other, join = (self.writer.new_label(x) for x in ("then", "else", "join"))
        loaded, memo = self._loaded, self._memo
        self.writer.branch(f"i1 {cond.name}, label %{then}, label %{other}")
        arms: list[tuple[Val, str]] = []
        needs_lanes = self._has_lanes(expr)
        for label, arm in ((then, expr.a), (other, expr.b)):
            self.writer.label(label)
            self._loaded, self._memo = {name: dict(known) for name, known in loaded.items()}, dict(memo)
            with self.writer.conditional():
                value = self.emit(arm)
            value = self.arithmetic.broadcast(value, self.lanes) if needs_lanes else value
            arms.append((value, self.writer.block))
            self.writer.branch(f"label %{join}")
        self.writer.label(join)
        self._loaded, self._memo = loaded, memo
        (a, at_a), (b, at_b) = arms
        kind = value_type(a.dtype, a.lanes)
        name = self.writer.value(f"phi {kind} [ {a.name}, %{at_a} ], [ {b.name}, %{at_b} ]")
        return Val(name, a.dtype, a.lanes)

    def _has_lanes(self, expr: Expr) -> bool:
        if any(v.lanes > 1 for k, v in self.bound.items() if k in free_vars(expr)):
            return True
        return any(isinstance(self.bindings.env.get(v), LaneRange) for v in free_vars(expr))


def _is_product(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op == "mul"
