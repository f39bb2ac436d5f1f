"""Recurrences in registers: what the positions before have computed is kept, not read from memory again.

    for i: Y[i] = select(i >= 1, Y[i - 1], s) * a + X[i]

    held[1] = s
    for i:
        held[0] = held[1] * a + X[i]
        Y[i] = held[0]
        held[1] = held[0]

The loop along the recurrence has to be directly around the lanes and unrolled loops whose values are kept. What is read
before the beginning is put into the registers ahead of the loop, where it is the other branch of a condition on the
position alone; otherwise the condition stays. Without this, each position waits until a store has reached the first
cache, on GPUs the second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from autosched.ir.conditions import is_ordering
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Const, Expr, Load, Select, Var
from autosched.ir.linear import ONE, ZERO, linear
from autosched.ir.recurrence import steps_from
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, If, Scope, Seq, Stmt, Store, changed, walk
from autosched.ir.storage import REGISTER_PAD
from autosched.ir.visit import free_vars, is_number, loads, rebuild, subexpressions, substitute
from autosched.lower.passes.instantiate import simplify_stmt
from autosched.lower.register_tiles.context import number_of
from autosched.te.tensor import zero

WIDEST_VECTOR = 64  # bytes
MOST_HELD = 256  # elements of a value and its earlier ones: half of the vector registers of AVX-512, in float32


def carry_states(stmt: Stmt, params: Iterable[Buffer], simplify: Simplifier) -> Stmt:
    """Return `stmt`, concrete and canonical, with recurrences in registers where their loops allow it.

    `params`: the buffers that it does not allocate itself.
    """
    allocated = (s.buffer for s in walk(stmt) if isinstance(s, Allocate))
    return _carried(stmt, {b.name: b for b in (*params, *allocated)}, simplify)


def _carried(stmt: Stmt, buffers: Mapping[str, Buffer], simplify: Simplifier) -> Stmt:
    match stmt:
        case For(kind=ForKind.SERIAL, reduce=True):
            nest = _Nest.of(stmt)
            done = None if nest is None else nest.carried(buffers, simplify)
            return done or changed(stmt, body=_carried(stmt.body, buffers, simplify))
        case For(body=body) | Allocate(body=body):
            return changed(stmt, body=_carried(body, buffers, simplify))
        case Seq(stmts=stmts):
            return Seq(tuple(_carried(s, buffers, simplify) for s in stmts))
        case If(cond=cond, then=then, otherwise=other):
            rest = None if other is None else _carried(other, buffers, simplify)
            return If(cond, _carried(then, buffers, simplify), rest)
    return stmt


@dataclass(frozen=True)
class _Nest:
    """A loop along a recurrence around `inner` loops and conditions with one store; `back`: how many iterations before
    each of the elements that the store reads of its own was written."""

    loop: For
    inner: tuple[For | If, ...]
    store: Store
    back: Mapping[Expr, int]

    @staticmethod
    def of(loop: For) -> _Nest | None:
        """Return the nest of a loop; None where its values cannot be held in registers."""
        inner: list[For | If] = []
        stmt = loop.body
        while isinstance(stmt, If | For):
            is_fixed = _is_written_out(stmt) if isinstance(stmt, For) else _is_fixed(stmt, loop.var)
            if not is_fixed:
                return None
            inner.append(stmt)
            stmt = stmt.body if isinstance(stmt, For) else stmt.then
        if not isinstance(stmt, Store) or stmt.reducer is not None:
            return None
        back = _own_reads(stmt, loop.var)
        if not back:
            return None
        nest = _Nest(loop, tuple(inner), stmt, back)
        return nest if (nest.depth + 1) * prod(number_of(x.extent) for x in nest.tile) <= MOST_HELD else None

    @property
    def tile(self) -> list[For]:
        return [x for x in self.inner if isinstance(x, For)]

    @property
    def depth(self) -> int:
        """How many earlier positions are held."""
        return max(self.back.values())

    def carried(self, known: Mapping[str, Buffer], simplify: Simplifier) -> Stmt | None:
        """Return the loop with its values in registers: at 0 that of a position, at n that of n positions before; None
        where another loop may have computed earlier positions."""
        buffers, values = self.store.buffers, self.store.values
        suffix = ".".join(["held", *(str(x.extent) for x in self.tile)])  # copies of the loop differ in their tiles
        held = {b: self._registers(f"{b}.{suffix}", v.dtype) for b, v in zip(buffers, values, strict=True)}
        first = self._before_the_loop(simplify)
        if first is None and not all(b in known and self._begins(known[b]) for b in buffers):
            return None
        chosen = {} if first is None else {e: load for e, load, _ in self._choices(simplify)}

        def value(e: Expr) -> Expr:
            e = chosen.get(e, e)
            if isinstance(e, Load) and e in self.back:
                return self._at(held[e.buffer], self.back[e])
            return rebuild(e, value) if e.children else e

        def kept(n: int, new: tuple[Expr, ...]) -> Stmt:
            names = tuple(held[b].name for b in buffers)
            return self._inside(Store(names, self._place(n), new, None, self.store.stage if n == 0 else ""))

        def of(n: int) -> tuple[Expr, ...]:
            return tuple(self._at(held[b], n) for b in buffers)

        steps = [kept(0, tuple(map(value, values))), self._inside(changed(self.store, values=of(0), stage=""))]
        steps += [kept(n, of(n - 1)) for n in range(self.depth, 0, -1)]
        unread = {(n, b): zero(v.dtype) for b, v in zip(buffers, values, strict=True) for n in range(1, self.depth)}
        starts = [
            self._inside(Store((held[b].name,), self._place(n), (start,), None, f"{self.store.stage}.init"))
            for (n, b), start in {**unread, **(first or {})}.items()
        ]
        result = simplify_stmt(Seq((*starts, changed(self.loop, body=Seq(tuple(steps))))), simplify)
        assert result is not None, "a loop with a store remains"
        for buffer in held.values():
            result = Allocate(buffer, result)
        return result

    def _registers(self, name: str, dtype: str) -> Buffer:
        """Return a buffer with a row of lanes for each of the positions. The last vector of a row, which may be masked,
        is written as a whole: a row that is longer than all rows are padded to is padded to whole vectors."""
        extents, lanes = [number_of(x.extent) for x in self.tile], WIDEST_VECTOR // DTYPES[dtype].nbytes
        if extents and extents[-1] > REGISTER_PAD:
            extents[-1] = -(-extents[-1] // lanes) * lanes
        shape = tuple(Const(n, INDEX) for n in (self.depth + 1, *extents))
        return Buffer(name, shape, dtype, Scope.REGISTER)

    def _begins(self, buffer: Buffer) -> bool:
        """Whether the first iteration is at the end of the buffer where the recurrence begins."""
        dim = next(d for d, i in enumerate(self.store.indices) if self.loop.var in free_vars(i))
        form, end = linear(self.store.indices[dim]), buffer.shape[dim] - 1
        return form.constant is (ZERO if form.coefficient(self.loop.var) is ONE else end)

    def _place(self, n: int) -> tuple[Expr, ...]:
        return (Const(n, INDEX), *(x.var for x in self.tile))

    def _at(self, buffer: Buffer, n: int) -> Load:
        return Load(buffer.name, self._place(n), buffer.dtype)

    def _inside(self, store: Stmt) -> Stmt:
        for x in reversed(self.inner):
            store = changed(x, body=store) if isinstance(x, For) else changed(x, then=store)
        return store

    def _choices(self, simplify: Simplifier) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Yield the selects that decide by the position alone whether an element was written, or is another value."""
        var, last = self.loop.var, self.loop.extent
        assert is_number(last)

        def truth(cond: Expr, n: int) -> bool | None:
            there = simplify(substitute(cond, {var: Const(n, INDEX)}))
            return bool(there.value) if isinstance(there, Const) else None

        for e in dict.fromkeys(x for value in self.store.values for x in subexpressions(value)):
            if not isinstance(e, Select) or not is_ordering(e.cond):
                continue
            for load, other, wanted in ((e.a, e.b, True), (e.b, e.a, False)):
                back = self.back.get(load, last.number)
                before = all(truth(e.cond, n) is (not wanted) for n in range(back))
                if back < last.number and before and all(truth(e.cond, n) is wanted for n in (back, last.number - 1)):
                    yield e, load, other

    def _before_the_loop(self, simplify: Simplifier) -> dict[tuple[int, str], Expr] | None:
        """Return what is read of each buffer so many positions before the first; None where the reads do not agree, or
        are under other conditions."""
        if not is_number(self.loop.extent):
            return None
        found: dict[tuple[int, str], Expr] = {}
        choices = list(self._choices(simplify))
        for _, load, other in choices:
            assert isinstance(load, Load)
            for n in range(self.back[load]):
                value = simplify(substitute(other, {self.loop.var: Const(n, INDEX)}))
                if found.setdefault((self.back[load] - n, load.buffer), value) is not value:
                    return None
        known = {e for e, _, _ in choices}
        return None if any(_is_read(v, known, self.back) for v in (*self.store.values, *found.values())) else found


def _is_read(value: Expr, known: set[Expr], back: Mapping[Expr, int]) -> bool:
    """Whether an element of `back` is read elsewhere than in one of the selects `known`."""
    return value in back or (value not in known and any(_is_read(x, known, back) for x in value.children))


def _is_written_out(loop: For) -> bool:
    return loop.kind in (ForKind.UNROLL, ForKind.VECTORIZE) and is_number(loop.extent)


def _is_fixed(guard: If, var: Var) -> bool:
    """Whether a condition is the same at all positions."""
    return guard.otherwise is None and var not in free_vars(guard.cond) and not loads(guard.cond)


def _own_reads(store: Store, var: Var) -> dict[Expr, int]:
    """Return the elements that the store reads of its own, with how many iterations of the loop over `var` before each
    was written; none where other loops move along the recurrence as well."""
    back: dict[Expr, int] = {}
    for load in dict.fromkeys(x for v in store.values for x in loads(v) if x.buffer in store.buffers):
        steps = [(d, step) for d, step in enumerate(steps_from(store.indices, load.indices)) if step != 0]
        if len(steps) != 1 or any(d != steps[0][0] and var in free_vars(i) for d, i in enumerate(store.indices)):
            return {}
        ((dim, step),) = steps
        form = linear(store.indices[dim])
        c = form.coefficient(var)
        if step is None or len(form.terms) != 1 or c not in (Const(1, INDEX), Const(-1, INDEX)) or step * c.number > 0:
            return {}
        back[load] = abs(step)
    return back
