"""Loops over adjacent elements as vector accesses of 2 elements up to 16 bytes.

A loop is vectorised if its store, or one of its loads, accesses adjacent elements at aligned addresses: all other terms
of the address are multiples of the vector. A reduction loads vectors and combines their elements one by one. With types
of several sizes, the smallest type determines the elements of a step, and larger types take several accesses.
Conditions must be uniform over the lanes; a vector is loaded only where the conditions around the load hold, and is
zero elsewhere. Other accesses are made lane by lane: a store along a column, an operand of another layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autosched.ir.expr import INDEX, Binary, Const, Expr, Load, Select, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import For, If, Reducer, Stmt, Store
from autosched.ir.symbolic import common_divisor
from autosched.ir.visit import free_vars, loads, subexpressions, substitute

TRUE: Expr = Const(True, "bool")
VectorCandidate = tuple[Expr, Load, Expr]  # the node that a vector replaces, its load, the condition of all lanes


@dataclass(frozen=True)
class VectorLoad:
    """A vector load at `start`, zero where `inside` does not hold; the variable `lanes[n]` is element n of it."""

    start: Load
    inside: Expr | None
    lanes: tuple[Var, ...]


@dataclass(frozen=True)
class VectorStep:
    """A step of a vectorised loop: lane n writes `values[n]` to `buffer[indices[n]]`, or combines it with the old value
    by the `reducer`. `width`: elements of one store, 0 for a scalar store of each lane."""

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
    """Vectorisation of loops. `flat`: index of an element in memory; `lanes_of(buffer)`: vector widths in elements,
    none for registers; `copies`: whether the language has asynchronous copies."""

    flat: Callable[[str, tuple[Expr, ...]], Expr]
    lanes_of: Callable[[str], tuple[int, ...]]
    simplify: Simplifier
    copies: bool

    def steps(self, loop: For, extent: int) -> list[VectorStep]:
        """Return the loop over `extent` elements as vector operations; an empty list if it cannot be vectorised."""
        body: Stmt = loop.body
        condition: Expr | None = None
        while isinstance(body, If) and body.otherwise is None:
            condition, body = body.cond if condition is None else condition & body.cond, body.then
        if not isinstance(body, Store) or len(body.values) != 1 or not _can_have_vectors(body, loop.var):
            return []
        for lanes in self._step_sizes(body):
            if extent % lanes or not (condition is None or self._is_uniform(condition, loop.var, lanes)):
                continue
            candidates = self._vector_loads(body.values[0], loop.var, lanes)
            is_whole = body.reducer is None and self._is_vector(body.buffers[0], body.indices, loop.var, lanes)
            if not (is_whole or candidates):
                continue
            numbers = [range(n, n + lanes) for n in range(0, extent, lanes)]
            width = self._width(body.buffers[0], lanes) if is_whole else 0
            steps = [self._step(body, condition, loop.var, r, candidates, width) for r in numbers]
            # an asynchronous store must be a plain copy, as it bypasses the registers
            if steps[0].is_copy or not steps[0].asynchronous:
                return steps
        return []

    def _step_sizes(self, store: Store) -> list[int]:
        """Return the possible numbers of elements of a step, largest first."""
        buffers = {*store.buffers, *(x.buffer for x in loads(store.values[0]))}
        return sorted({n for b in buffers for n in self.lanes_of(b)}, reverse=True)

    def _width(self, buffer: str, lanes: int) -> int:
        """Return the widest access to the buffer in a step of `lanes` elements; 0 without vector accesses."""
        return max((n for n in self.lanes_of(buffer) if n <= lanes), default=0)

    def _step(
        self,
        store: Store,
        condition: Expr | None,
        lane: Var,
        numbers: range,
        candidates: list[VectorCandidate],
        width: int,
    ) -> VectorStep:
        def at_lane(e: Expr, n: int) -> Expr:
            return self.simplify(substitute(e, {lane: Const(n, INDEX)}))

        def start_condition(e: Expr) -> Expr | None:
            condition_at_start = at_lane(e, numbers[0])
            return None if isinstance(condition_at_start, Const) and condition_at_start.value else condition_at_start

        vector_loads: list[VectorLoad] = []
        replacements: list[dict[Expr, Expr]] = [{} for _ in numbers]
        for node, load, inside in candidates:
            lanes = tuple(Var(f"{load.buffer}.{len(vector_loads)}.{n}", load.dtype) for n in numbers)
            size = self._width(load.buffer, len(numbers))
            for n in range(0, len(numbers), size):
                start = Load(load.buffer, tuple(at_lane(i, numbers[n]) for i in load.indices), load.dtype)
                vector_loads.append(VectorLoad(start, start_condition(inside), lanes[n : n + size]))
            for table, element in zip(replacements, lanes, strict=True):
                table[node] = element
        return VectorStep(
            store.buffers[0],
            tuple(tuple(at_lane(i, n) for i in store.indices) for n in numbers),
            tuple(at_lane(substitute(store.values[0], t), n) for t, n in zip(replacements, numbers, strict=True)),
            width,
            start_condition(TRUE if condition is None else condition),
            tuple(vector_loads),
            store.asynchronous and self.copies,
            store.reducer,
        )

    def _vector_loads(self, value: Expr, lane: Var, lanes: int) -> list[VectorCandidate]:
        """Return the loads in `value` that become vectors; a load under several different conditions does not."""
        uses: dict[Expr, set[tuple[Load, Expr] | None]] = {}
        for node, use in self._replaceable_nodes(value, lane, lanes, TRUE):
            uses.setdefault(node, set()).add(use)
        alone = ((node, next(iter(use))) for node, use in uses.items() if len(use) == 1)
        return [(node, *use) for node, use in alone if use is not None]

    def _replaceable_nodes(
        self, e: Expr, lane: Var, lanes: int, inside: Expr | None
    ) -> Iterator[tuple[Expr, tuple[Load, Expr] | None]]:
        """Yield the nodes that a vector may replace, with load and condition, or None for a node that must stay scalar.

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
            yield from self._replaceable_nodes(e.cond, lane, lanes, inside)
            uniform = self._is_uniform(e.cond, lane, lanes)
            then = list(self._replaceable_nodes(e.a, lane, lanes, inside & e.cond if uniform else None))
            if uniform and _is_zero(e.b) and [node for node, _ in then] == [e.a]:
                yield e, then[0][1]  # a vector load is zero where its condition does not hold
            else:
                yield from then
                yield from self._replaceable_nodes(e.b, lane, lanes, None)
        else:
            for n, child in enumerate(e.children):
                skipped = n > 0 and isinstance(e, Binary) and e.op in ("and", "or")
                yield from self._replaceable_nodes(child, lane, lanes, None if skipped else inside)

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
    """Whether the store is no reduction, or a reduction of all lanes into one element without atomics."""
    return store.reducer is None or not (store.atomic or any(lane in free_vars(i) for i in store.indices))


def _is_zero(e: Expr) -> bool:
    """Whether the expression is a constant zero, other than -0.0."""
    return isinstance(e, Const) and str(e.value) in ("0", "0.0")


def _is_aligned(index: Expr, lane: Var, lanes: int, simplify: Simplifier) -> bool:
    """Whether the index is the lane plus a multiple of the number of lanes."""
    affine = simplify.affine(index)
    terms = dict(affine.terms)
    if terms.pop(lane, 0) != 1 or affine.constant % lanes:
        return False
    return all(c * _divisor(atom, simplify) % lanes == 0 and lane not in free_vars(atom) for atom, c in terms.items())


def is_multiple(index: Expr, count: int, simplify: Simplifier) -> bool:
    """Return whether the index is a multiple of `count` for all values of its variables."""
    affine = simplify.affine(index)
    return affine.constant % count == 0 and all(c * _divisor(atom, simplify) % count == 0 for atom, c in affine.terms)


def _divisor(atom: Expr, simplify: Simplifier) -> int:
    """Return a common divisor of all values of the atom; for x % f it is that of x and f."""
    if not (isinstance(atom, Binary) and atom.op == "mod" and isinstance(atom.b, Const)):
        return 1
    affine = simplify.affine(atom.a)
    return common_divisor(atom.b.number, affine.constant, *(c * _divisor(a, simplify) for a, c in affine.terms))
