"""Loops over adjacent elements as vector accesses of 2 elements up to 16 bytes.

A loop becomes vector operations where what it stores, or something that it loads, are whole vectors: neighbours, and
aligned because everything else that moves the address does so in multiples of the vector. A reduction reads vectors,
and combines their elements one by one. Where types of several sizes
meet, the smallest says how many elements are a step, and the others take several accesses. Conditions must be the same
for all lanes; a vector is loaded only where the conditions around the load hold, and is zero elsewhere. What is no
vector stays an access of each lane: a store along a column, an operand of another layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Select, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import For, If, Reducer, Stmt, Store
from autosched.ir.visit import free_vars, loads, subexpressions, substitute

TRUE: Expr = Const(True, "bool")
Found = tuple[Expr, Load, Expr]  # what a vector replaces, the load in it, the condition of all lanes


@dataclass(frozen=True)
class VectorLoad:
    """`lanes[n]` stands for element n of the vector at `start`, zero where not `inside`."""

    start: Load
    inside: Expr | None
    lanes: tuple[Var, ...]


@dataclass(frozen=True)
class VectorStep:
    """Lane n writes `values[n]` to `buffer[indices[n]]`, `width` of them in one access, or each alone if that is 0; it
    combines it with what is there where there is a `reducer`."""

    buffer: str
    indices: tuple[tuple[Expr, ...], ...]
    values: tuple[Expr, ...]
    width: int
    condition: Expr | None
    loads: tuple[VectorLoad, ...]
    asynchronous: bool
    reducer: Reducer | None

    @property
    def is_copy(self) -> bool:
        moved = tuple(v for x in self.loads for v in x.lanes)
        return bool(moved) and self.values == moved and self.width == len(self.loads[0].lanes)


@dataclass(frozen=True)
class Vectors:
    """`flat`: index of an element in memory; `lanes_of(buffer)`: widths that its elements come in, none for what is not
    in memory; `copies`: whether the language has asynchronous copies."""

    flat: Callable[[str, tuple[Expr, ...]], Expr]
    lanes_of: Callable[[str], tuple[int, ...]]
    simplify: Simplifier
    copies: bool

    def steps(self, loop: For, extent: int) -> list[VectorStep]:
        """The loop over `extent` elements as vector operations, none if it is not made of them."""
        body: Stmt = loop.body
        condition: Expr | None = None
        while isinstance(body, If) and body.otherwise is None:
            condition, body = body.cond if condition is None else condition & body.cond, body.then
        if not isinstance(body, Store) or len(body.values) != 1 or not _can_have_vectors(body, loop.var):
            return []
        for lanes in self._counts(body):
            if extent % lanes or not (condition is None or self._is_uniform(condition, loop.var, lanes)):
                continue
            found = self._vector_loads(body.values[0], loop.var, lanes)
            is_whole = body.reducer is None and self._is_vector(body.buffers[0], body.indices, loop.var, lanes)
            if not (is_whole or found):
                continue
            numbers = [range(n, n + lanes) for n in range(0, extent, lanes)]
            width = self._width(body.buffers[0], lanes) if is_whole else 0
            steps = [self._step(body, condition, loop.var, r, found, width) for r in numbers]
            # an asynchronous copy moves what it is given, it does not pass through the thread
            if steps[0].is_copy or not steps[0].asynchronous:
                return steps
        return []

    def _counts(self, store: Store) -> list[int]:
        """Of the elements of a step, the most first."""
        buffers = {*store.buffers, *(x.buffer for x in loads(store.values[0]))}
        return sorted({n for b in buffers for n in self.lanes_of(b)}, reverse=True)

    def _width(self, buffer: str, lanes: int) -> int:
        """The most elements of one access to the buffer where `lanes` of them are a step; 0 where there is none."""
        return max((n for n in self.lanes_of(buffer) if n <= lanes), default=0)

    def _step(
        self, store: Store, condition: Expr | None, lane: Var, numbers: range, found: list[Found], width: int
    ) -> VectorStep:
        def at(e: Expr, n: int) -> Expr:
            return self.simplify(substitute(e, {lane: Const(n, INDEX)}))

        def first(e: Expr) -> Expr | None:
            placed = at(e, numbers[0])
            return None if isinstance(placed, Const) and placed.value else placed

        wide: list[VectorLoad] = []
        replaced: list[dict[Expr, Expr]] = [{} for _ in numbers]
        for node, load, inside in found:
            lanes = tuple(Var(f"{load.buffer}.{len(wide)}.{n}", load.dtype) for n in numbers)
            size = self._width(load.buffer, len(numbers))
            for n in range(0, len(numbers), size):
                start = Load(load.buffer, tuple(at(i, numbers[n]) for i in load.indices), load.dtype)
                wide.append(VectorLoad(start, first(inside), lanes[n : n + size]))
            for table, element in zip(replaced, lanes, strict=True):
                table[node] = element
        return VectorStep(
            store.buffers[0],
            tuple(tuple(at(i, n) for i in store.indices) for n in numbers),
            tuple(at(substitute(store.values[0], t), n) for t, n in zip(replaced, numbers, strict=True)),
            width,
            first(TRUE if condition is None else condition),
            tuple(wide),
            store.asynchronous and self.copies,
            store.reducer,
        )

    def _vector_loads(self, value: Expr, lane: Var, lanes: int) -> list[Found]:
        """Return the loads in `value` that become vectors; a load under several different conditions does not."""
        places: dict[Expr, set[tuple[Load, Expr] | None]] = {}
        for node, found in self._walk(value, lane, lanes, TRUE):
            places.setdefault(node, set()).add(found)
        alone = ((node, next(iter(found))) for node, found in places.items() if len(found) == 1)
        return [(node, *found) for node, found in alone if found is not None]

    def _walk(
        self, e: Expr, lane: Var, lanes: int, inside: Expr | None
    ) -> Iterator[tuple[Expr, tuple[Load, Expr] | None]]:
        """Every node that a vector may replace, with its load and condition; None where it must not be replaced.

        `inside`: the condition under which all lanes compute `e`, None where lanes differ.
        """
        if lane not in free_vars(e):
            return
        if inside is None:
            yield from ((x, None) for x in subexpressions(e) if isinstance(x, (Load, Select)))
        elif isinstance(e, Load):
            if self._is_vector(e.buffer, e.indices, lane, lanes):
                yield e, (e, inside)
        elif isinstance(e, Select):
            yield from self._walk(e.cond, lane, lanes, inside)
            uniform = self._is_uniform(e.cond, lane, lanes)
            then = list(self._walk(e.a, lane, lanes, inside & e.cond if uniform else None))
            if uniform and _is_zero(e.b) and [node for node, _ in then] == [e.a]:
                yield e, then[0][1]  # the vector is zero where this is
            else:
                yield from then
                yield from self._walk(e.b, lane, lanes, None)
        else:
            for n, child in enumerate(e.children):
                skipped = n > 0 and isinstance(e, Binary) and e.op in ("and", "or")
                yield from self._walk(child, lane, lanes, None if skipped else inside)

    def _is_vector(self, buffer: str, indices: tuple[Expr, ...], lane: Var, lanes: int) -> bool:
        return bool(self._width(buffer, lanes)) and _is_aligned(self.flat(buffer, indices), lane, lanes, self.simplify)

    def _is_uniform(self, cond: Expr, lane: Var, lanes: int) -> bool:
        """Whether the condition is the same for all lanes: both sides move in whole vectors."""
        if lane not in free_vars(cond):
            return True
        if not isinstance(cond, Binary):
            return False
        if cond.op == "and":
            return all(self._is_uniform(c, lane, lanes) for c in (cond.a, cond.b))
        if cond.op not in ("lt", "ge") or cond.a.dtype != INDEX:
            return False
        return _is_aligned(self.simplify(cond.a - cond.b), lane, lanes, self.simplify)


def _can_have_vectors(store: Store, lane: Var) -> bool:
    """Whether lanes write by themselves, or are all combined with one value."""
    return store.reducer is None or not (store.atomic or any(lane in free_vars(i) for i in store.indices))


def _is_zero(e: Expr) -> bool:
    """Zero, and not its negative."""
    return isinstance(e, Const) and str(e.value) in ("0", "0.0")


def _is_aligned(index: Expr, lane: Var, lanes: int, simplify: Simplifier) -> bool:
    """index = lane + a multiple of the number of lanes."""
    form = simplify.affine(index)
    terms = dict(form.terms)
    if terms.pop(lane, 0) != 1 or form.constant % lanes:
        return False
    return all(c * _grain(atom, simplify) % lanes == 0 and lane not in free_vars(atom) for atom, c in terms.items())


def is_multiple(index: Expr, count: int, simplify: Simplifier) -> bool:
    """Return whether the index is a multiple of `count` for all values of its variables."""
    form = simplify.affine(index)
    return form.constant % count == 0 and all(c * _grain(atom, simplify) % count == 0 for atom, c in form.terms)


def _grain(atom: Expr, simplify: Simplifier) -> int:
    """A number whose multiples are all the values that the atom takes: x % f moves like x where f does."""
    if not (isinstance(atom, Binary) and atom.op == "mod" and isinstance(atom.b, Const)):
        return 1
    form = simplify.affine(atom.a)
    return math.gcd(int(atom.b.value), form.constant, *(c * _grain(a, simplify) for a, c in form.terms))
