"""Emission of stores and reduction updates: values, horizontal combination of lanes, masks."""

from __future__ import annotations

from functools import lru_cache

from autosched.codegen.llvm import masks
from autosched.codegen.llvm.address import LaneAccess
from autosched.codegen.llvm.arithmetic import Val
from autosched.codegen.llvm.bindings import LaneRange
from autosched.codegen.llvm.gather import known_indices, scatter
from autosched.codegen.llvm.values import Values
from autosched.codegen.llvm.vocabulary import literal, memory_type, suffix, value_type
from autosched.ir.conditions import is_left_out
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr, Load, Var
from autosched.ir.stmt import Scope, Stmt, Store, changed
from autosched.ir.storage import REGISTER_PAD
from autosched.ir.visit import free_vars, is_data, substitute
from autosched.target import Target
from autosched.te.reducers import largest
from autosched.te.rewrites.first_best import FirstBest, first_best

AROUND = " ; around the caches"  # a comment behind the store of a whole vector that may be one, see `non_temporal`


class Stores:
    """Emits stores at the writer's current point."""

    def __init__(self, values: Values, target: Target) -> None:
        self.values, self.target = values, target
        self.writer, self.arithmetic = values.writer, values.arithmetic
        self.addresses, self.bindings = values.addresses, values.bindings
        # What copies of an unrolled body ask again, by the identity of a statement that is kept with it.
        self._results: dict[int, tuple[Stmt, tuple[Expr, ...] | None]] = {}
        self._horizontals: dict[int, tuple[Stmt, bool]] = {}

    def emit(self, stmt: Store) -> None:
        if is_left_out(stmt, self.bindings.fixed):
            return
        self.values.begin(stmt)
        if any(map(is_data, stmt.indices)):
            stmt = changed(stmt, indices=known_indices(self.values, stmt.indices))
        if stmt.reducer is not None and self._is_horizontal(stmt):
            parts = [self.arithmetic.broadcast(self.values.emit(v), self.values.lanes) for v in stmt.values]
            results = self._horizontal(stmt, [parts], self.values.lanes)
        elif (written := self._written(stmt)) is not None:
            results = [self.values.emit(v) for v in written]
        else:
            results = self._combine(
                stmt, [self.values.emit(e) for e in self._old(stmt)], [self.values.emit(v) for v in stmt.values]
            )
        for name, value in zip(stmt.buffers, results, strict=True):
            self._write(name, stmt.indices, value, stmt.reducer is not None, stmt.non_temporal)

    def reduce(self, stmt: Store, chunks: list[list[Val]], lanes: int) -> None:
        """An update of one element with the values of all lanes of `chunks`."""
        results, self.values.lanes = self._horizontal(stmt, chunks, lanes), 1
        for name, value in zip(stmt.buffers, results, strict=True):
            self._write(name, stmt.indices, value, blend=True)

    def combined(self, stmt: Store, a: Val, b: Val) -> Val:
        """Apply the reducer of an update with one operand to two values; either may be a scalar."""
        lanes = max(a.lanes, b.lanes)
        a, b = (self.arithmetic.broadcast(x, lanes) for x in (a, b))
        return self._combine(stmt, [a], [b])[0]

    def update(self, stmt: Store, value: Val) -> None:
        """An update of the lanes' elements with a value for each of them."""
        (result,) = self._combine(stmt, [self.values.emit(e) for e in self._old(stmt)], [value])
        self._write(stmt.buffers[0], stmt.indices, result, blend=True)

    def are_neighbours(self, stmt: Store) -> bool:
        """Whether the lanes of an unmasked store are adjacent in memory."""
        is_register = self.addresses.placed[stmt.buffers[0]].buffer.scope is Scope.REGISTER
        return (
            not (is_register or any(map(is_data, stmt.indices)))
            and self.addresses.access(stmt.buffers[0], stmt.indices).lane_stride == 1
        )

    def write(self, stmt: Store, value: Val) -> None:
        """The values for all lanes of a store with one buffer."""
        self._write(stmt.buffers[0], stmt.indices, value, blend=False, stream=stmt.non_temporal)

    def _written(self, stmt: Store) -> tuple[Expr, ...] | None:
        """Return the stored value, with an update as one expression; None where that would compute a value twice."""
        known = self._results.get(id(stmt))
        if known is None:
            known = self._results[id(stmt)] = (stmt, self._combined(stmt))
        return known[1]

    def _combined(self, stmt: Store) -> tuple[Expr, ...] | None:
        reducer = stmt.reducer
        if reducer is None:
            return stmt.values
        if len(stmt.values) > 1 or _uses(reducer.results[0], reducer.rhs[0]) != 1:
            return None
        table: dict[Expr, Expr] = {reducer.lhs[0]: self._old(stmt)[0], reducer.rhs[0]: stmt.values[0]}
        return (substitute(reducer.results[0], table),)

    def _old(self, stmt: Store) -> list[Load]:
        return [Load(b, stmt.indices, self.addresses.placed[b].buffer.dtype) for b in stmt.buffers]

    def _combine(self, stmt: Store, lhs: list[Val], rhs: list[Val]) -> list[Val]:
        assert stmt.reducer is not None
        self.values.bound.update(zip(stmt.reducer.lhs, lhs, strict=True))
        self.values.bound.update(zip(stmt.reducer.rhs, rhs, strict=True))
        self.values.begin()
        results = [self.values.emit(r) for r in stmt.reducer.results]
        self.values.bound.clear()
        self.values.begin()
        return results

    def _is_horizontal(self, stmt: Store) -> bool:
        if self.values.lanes == 1:
            return False
        known = self._horizontals.get(id(stmt))
        if known is None:
            lanes = {v for v, b in self.bindings.env.items() if isinstance(b, LaneRange)}
            known = self._horizontals[id(stmt)] = (stmt, not any(free_vars(i) & lanes for i in stmt.indices))
        return known[1]

    def _horizontal(self, stmt: Store, chunks: list[list[Val]], lanes: int) -> list[Val]:
        """The vectors of `chunks` are combined pairwise, then the lanes of the last, by halves, then with memory."""
        assert stmt.reducer is not None
        if self.values.mask is not None:
            mask = Val(self.values.mask, "bool", lanes)
            starts = [Val(literal(c.value, c.dtype), c.dtype, 1) for c in stmt.reducer.identity]
            chunks = [[self.arithmetic.select(mask, p, s) for p, s in zip(c, starts, strict=True)] for c in chunks]
        self.values.mask = None
        comparison = first_best(stmt.reducer)
        if comparison is not None and lanes > 2:
            chunks, lanes = [self._first_of_lanes(comparison, chunks)], 1
        while len(chunks) > 1:
            odd = chunks[len(chunks) // 2 * 2 :]
            chunks = [self._combine(stmt, a, b) for a, b in zip(chunks[::2], chunks[1::2], strict=False)] + odd
        (parts,) = chunks
        while lanes > 1:
            lanes //= 2
            low = [self._half(p, 0, lanes) for p in parts]
            high = [self._half(p, lanes, lanes) for p in parts]
            parts = self._combine(stmt, low, high)
        old = [self.values.emit(e) for e in self._old(stmt)]
        return self._combine(stmt, old, parts)

    def _first_of_lanes(self, pattern: FirstBest, chunks: list[list[Val]]) -> list[Val]:
        """The best value of all lanes, then the least place of those that have it: half the work of carrying both.
        Of floats, the value at that place: 0.0 and -0.0 are equally good."""
        values, places = ([c[n] for c in chunks] for n in (pattern.value, pattern.place))
        best = self._min_or_max(pattern.op, values, pattern.knows_nan)
        beyond = self.arithmetic.number(largest(places[0].dtype).value, places[0].dtype)
        having = [self._is_best(pattern, v, best) for v in values]
        first = self._min_or_max(
            "lt", [self.arithmetic.select(h, p, beyond) for h, p in zip(having, places, strict=True)]
        )
        if DTYPES[best.dtype].is_float:
            best = self._at_place(first, values, places, having)
        return [first, best] if pattern.place == 0 else [best, first]

    def _is_best(self, pattern: FirstBest, value: Val, best: Val) -> Val:
        """Which lanes have the best value; where NaN is, it is `best` if any lane has it."""
        if not pattern.knows_nan:
            return self.arithmetic.is_same(value, best)
        equal, nan = self.arithmetic.binary("eq", value, best), self.arithmetic.binary("ne", value, value)
        return self.arithmetic.binary("or", equal, nan)

    def _at_place(self, first: Val, values: list[Val], places: list[Val], having: list[Val]) -> Val:
        """The value of a lane that has the best and its place."""
        earlier: tuple[Val, Val] | None = None
        for value, place, has in zip(values, places, having, strict=True):
            here = self.arithmetic.binary("and", has, self.arithmetic.binary("eq", place, first))
            if earlier is not None:
                value = self.arithmetic.select(here, value, earlier[0])
                here = self.arithmetic.binary("or", here, earlier[1])
            earlier = value, here
        assert earlier is not None
        value, here = earlier
        bits = f"i{here.lanes}"
        word = self.writer.value(f"bitcast {value_type('bool', here.lanes)} {here.name} to {bits}")
        lane = self.writer.value(f"call {bits} @llvm.cttz.{bits}({bits} {word}, i1 true)")
        kind = value_type(value.dtype, value.lanes)
        return Val(self.writer.value(f"extractelement {kind} {value.name}, {bits} {lane}"), value.dtype, 1)

    def _min_or_max(self, op: str, values: list[Val], knows_nan: bool = False) -> Val:
        """The one among all lanes of the vectors that is `op` than the others; `knows_nan`: NaN where one is."""
        while len(values) > 1 or values[0].lanes > 1:
            if len(values) == 1:
                half = values[0].lanes // 2
                values = [self._half(values[0], 0, half), self._half(values[0], half, half)]
            pairs = zip(values[::2], values[1::2], strict=False)
            odd = values[len(values) // 2 * 2 :]
            values = [self._better(op, a, b, knows_nan) for a, b in pairs] + odd
        return values[0]

    def _better(self, op: str, a: Val, b: Val, knows_nan: bool) -> Val:
        if knows_nan:
            return self.arithmetic.binary("max" if op == "gt" else "min", a, b)
        return self.arithmetic.select(self.arithmetic.binary(op, a, b), a, b)

    def _half(self, value: Val, start: int, lanes: int) -> Val:
        kind = value_type(value.dtype, value.lanes)
        if lanes == 1:
            return Val(self.writer.value(f"extractelement {kind} {value.name}, i64 {start}"), value.dtype, 1)
        picks = ", ".join(f"i32 {start + n}" for n in range(lanes))
        name = self.writer.value(f"shufflevector {kind} {value.name}, {kind} poison, <{lanes} x i32> <{picks}>")
        return Val(name, value.dtype, lanes)

    def _write(self, name: str, indices: tuple[Expr, ...], value: Val, blend: bool, stream: bool = False) -> None:
        access = self.addresses.access(name, indices)
        buffer = self.addresses.placed[name].buffer
        lanes = 1 if access.lane_stride == 0 else self.values.lanes
        value = value if value.lanes == lanes else self.arithmetic.broadcast(value, lanes)
        mask = self.values.mask if lanes > 1 else None
        if mask is not None and buffer.scope is Scope.REGISTER and access.lane_stride == 1:
            if blend and (self.addresses.placed[name].blends or lanes > REGISTER_PAD):  # longer ones reach the next row
                old = self.values.emit(Load(name, indices, buffer.dtype))
                value = self.arithmetic.select(Val(mask, "bool", lanes), value, old)
            mask = None
        self.values.forget(name)
        text = value.name if value.dtype != "bool" else self._to_memory(value)
        kind, align = memory_type(buffer.dtype, lanes), DTYPES[buffer.dtype].nbytes
        if lanes == 1 or (access.lane_stride == 1 and mask is None):
            whole = lanes * align % self.target.vector_bytes == 0 and access.multiple % lanes == 0
            self.addresses.write(access, buffer.dtype, lanes, text, AROUND * (stream and whole))
        elif access.lane_stride == 1 and (count := masks.leading(mask)) and not masks.has_stores(self.target):
            self._write_leading(access, buffer.dtype, text, lanes, count)
        elif access.lane_stride == 1 and mask in self.values.counts and not masks.has_stores(self.target):
            self._write_counted(access, buffer.dtype, text, lanes, self.values.counts[mask])
        elif access.lane_stride == 1:
            pointer = self.addresses.at(access, buffer.dtype)
            self.writer.emit(
                f"call void @llvm.masked.store.{suffix(buffer.dtype, lanes)}.p0({kind} {text}, ptr align {align} "
                f"{pointer}, <{lanes} x i1> {mask})"
            )
        else:
            scatter(self.values, access, buffer.dtype, text)

    def _write_leading(self, access: LaneAccess, dtype: str, text: str, lanes: int, count: int) -> None:
        """The first `count` of the lanes, in vectors as long as the powers of two that it is the sum of."""
        whole, start = memory_type(dtype, lanes), 0
        for size in (1 << n for n in reversed(range(count.bit_length())) if count >> n & 1):
            picks = ", ".join(f"i32 {start + n}" for n in range(size))
            part = f"shufflevector {whole} {text}, {whole} poison, <{size} x i32> <{picks}>"
            name = self.writer.value(part if size > 1 else f"extractelement {whole} {text}, i64 {start}")
            pointer = self.addresses.at(access._replace(offset=access.offset + start), dtype)
            self.writer.emit(f"store {memory_type(dtype, size)} {name}, ptr {pointer}, align {DTYPES[dtype].nbytes}")
            start += size

    def _write_counted(self, access: LaneAccess, dtype: str, text: str, lanes: int, count: str) -> None:
        """As `_write_leading`, for a number of lanes that is known at run time."""
        w, pointer = self.writer, self.addresses.at(access, dtype)
        for size in (1 << n for n in reversed(range(lanes.bit_length()))):
            some, done = w.new_label("lanes"), w.new_label("lanesend")
            bit = w.value(f"and i64 {count}, {size}")
            has = w.value(f"icmp ne i64 {bit}, 0")
            held = memory_type(dtype, min(lanes, 2 * size))
            low, high = (
                text
                if size == lanes
                else w.value(f"shufflevector {held} {text}, {held} poison, <{size} x i32> <{picks}>")
                for start in (0, size)
                if (picks := ", ".join(f"i32 {start + n}" for n in range(size)))
            )
            w.branch(f"i1 {has}, label %{some}, label %{done}")
            w.label(some)
            w.emit(f"store <{size} x {memory_type(dtype)}> {low}, ptr {pointer}, align {DTYPES[dtype].nbytes}")
            w.branch(f"label %{done}")
            w.label(done)
            if size > 1:
                text = w.value(f"select i1 {has}, {memory_type(dtype, size)} {high}, {memory_type(dtype, size)} {low}")
                pointer = w.value(f"getelementptr inbounds {memory_type(dtype)}, ptr {pointer}, i64 {bit}", "p")

    def _to_memory(self, value: Val) -> str:
        """Truth values, a byte each."""
        old, new = value_type("bool", value.lanes), memory_type("bool", value.lanes)
        return self.writer.value(f"zext {old} {value.name} to {new}")


def non_temporal(text: str, vector_bytes: int) -> str:
    """Emit the version of a nest for outputs that begin at whole lines, with non-temporal stores."""
    for size in sorted({row.nbytes for row in DTYPES.values()}):
        text = text.replace(f"align {size}{AROUND}", f"align {vector_bytes}, !nontemporal !0")
    return text


def plain(text: str) -> str:
    """The code of a nest whose outputs begin anywhere."""
    return text.replace(AROUND, "")


@lru_cache(maxsize=256)
def _uses(expr: Expr, var: Var) -> int:
    """How often `var` occurs as an operand; combiners are small trees."""
    return (expr is var) + sum(_uses(c, var) for c in expr.children)
