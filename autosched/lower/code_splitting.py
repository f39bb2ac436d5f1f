"""Code splitting: a kernel as pieces with code of their own, one that runs and others that prepare weights.

Kernels of one schedule for other sizes often differ only in their outermost extent, such as the batch. This is the
number of tasks, which the code of a task does not depend on. So a piece is compiled for an arbitrary small extent, and
kernels of all batch sizes share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from autosched.ir.expr import INDEX, Const, Expr, Load, Var
from autosched.ir.simplify import Affine, Simplifier
from autosched.ir.stmt import Buffer, For, ForKind, Func, Prefetch, Scope, Stmt, Store, changed, shared_and_nests, walk
from autosched.ir.storage import element_count
from autosched.ir.visit import exprs_of, free_vars, loads
from autosched.lower.limits import check_nest
from autosched.lower.passes.instantiate import instantiate

ANY_EXTENT = 3  # more than one, and odd, so that no row is a whole number of vectors
MOST_BYTES = 1 << 31  # of a buffer, as offsets in it may be numbers of 32 bits


@dataclass(frozen=True)
class Piece:
    """A part of a kernel that is compiled by itself.

    `func`: its body with the buffers that it uses, before any pass. `ahead`: whether it prepares weights. `extent`: the
    extent of the outermost loop, for which the body has ANY_EXTENT; None where the body has its own extents. `exact`:
    the same piece with its own extents.
    """

    func: Func
    ahead: bool
    extent: int | None = None
    exact: Piece | None = None

    @cached_property
    def digest(self) -> str:
        """A hash that is equal for pieces of the same code."""
        return _Digests().of((self.func, self.ahead, self.extent is None))


def pieces_of(func: Func, values: Mapping[str, int]) -> tuple[Func, tuple[Piece, ...]]:
    """Return the concrete nest of a lowered schedule with values for its parameters, and its pieces, the running first.

    Raises ScheduleError where the nest exceeds the limits of a kernel.
    """
    concrete, simplify = instantiate(func, values)
    check_nest(concrete.name, concrete.params, concrete.body)
    pieces = [_piece(concrete, concrete.body, False, simplify)]
    if concrete.prepare is not None:
        check_nest(concrete.name, concrete.params, concrete.prepare)
        pieces.append(_piece(concrete, concrete.prepare, True, simplify))
    return concrete, tuple(pieces)


def _piece(func: Func, body: Stmt, ahead: bool, simplify: Simplifier) -> Piece:
    used = {name for stmt in walk(body) for name in _named(stmt)}
    first = len(func.params) - func.n_outputs
    inputs, outputs = (tuple(b for b in each if b.name in used) for each in (func.params[:first], func.params[first:]))
    prepared = tuple(b for b in func.prepared if b.name in used)
    exact = Piece(Func("piece", (*inputs, *outputs), len(outputs), body, prepared), ahead)
    return _with_any_extent(exact, simplify) or exact


def _named(stmt: Stmt) -> Iterator[str]:
    """Yield the buffers that a statement reads or writes."""
    if isinstance(stmt, Store):
        yield from stmt.buffers
    elif isinstance(stmt, Prefetch):
        yield stmt.buffer
    for expr in exprs_of(stmt):
        yield from (load.buffer for load in loads(expr))


def _with_any_extent(exact: Piece, simplify: Simplifier) -> Piece | None:
    """Return the piece of a single nest whose tasks do not depend on their number; None for other nests."""
    func = exact.func
    shared, nests = shared_and_nests(func.body)
    if shared or len(nests) != 1:  # without elements there is none
        return None
    loop = nests[0]
    if not isinstance(loop, For) or loop.kind is not ForKind.PARALLEL:
        return None
    if not isinstance(loop.extent, Const) or loop.bound is not loop.extent or loop.extent.value < 2:
        return None
    outermost = _Outermost(loop.var, loop.extent.number, {b.name: b for b in func.params}, simplify)
    steps = outermost.steps(loop.body)
    if steps is None:
        return None
    extent = Const(ANY_EXTENT, INDEX)
    shapes = {
        name: (Const(ANY_EXTENT * step, INDEX), *outermost.params[name].shape[1:]) for name, step in steps.items()
    }
    params = tuple(changed(b, shape=shapes[b.name]) if b.name in shapes else b for b in func.params)
    body = changed(loop, extent=extent, bound=extent)
    return Piece(replace(func, params=params, body=body), exact.ahead, outermost.extent, exact)


@dataclass(frozen=True)
class _Outermost:
    """A loop whose iteration may only select a block of rows in the buffers of `params`."""

    var: Var
    extent: int
    params: Mapping[str, Buffer]
    simplify: Simplifier

    def steps(self, body: Stmt) -> dict[str, int] | None:
        """Return the rows of each buffer that only one iteration accesses; None if an iteration has any other use."""
        rows: dict[str, int] = {}
        elsewhere = set[str]()  # buffers with accesses that do not depend on the iteration
        for name, indices in _accesses(body):
            if not any(self._is_in(index) for index in indices):
                elsewhere.add(name)
                continue
            step = self._step(name, indices, True)
            if step is None or rows.setdefault(name, step) != step:
                return None
        if not rows or not elsewhere.isdisjoint(rows) or any(self._is_in(e) for e in _others(body)):
            return None
        hints = [s for s in walk(body) if isinstance(s, Prefetch) and any(map(self._is_in, s.indices))]
        return rows if all(self._step(s.buffer, s.indices, False) == rows.get(s.buffer) for s in hints) else None

    def _is_in(self, expr: Expr) -> bool:
        return self.var in free_vars(expr)

    def _step(self, name: str, indices: tuple[Expr, ...], inside: bool) -> int | None:
        """Return the rows of an iteration; with `inside` it must access no others. Prefetches may be of later rows."""
        buffer, first = self.params.get(name), indices[0]
        if buffer is None or buffer.scope is not Scope.PARAM or buffer.layout is not None:
            return None
        if any(map(self._is_in, indices[1:])) or loads(first) or element_count(buffer) * buffer.itemsize >= MOST_BYTES:
            return None
        form = self.simplify.affine(self.simplify(first))
        steps = [c for atom, c in form.terms if atom is self.var]
        rest = Affine(tuple(term for term in form.terms if term[0] is not self.var), form.constant)
        if len(steps) != 1 or steps[0] < 1 or any(self._is_in(atom) for atom, _ in rest.terms):
            return None
        low, high = self.simplify.bounds(rest.expr())
        rows = buffer.shape[0]
        is_whole = isinstance(rows, Const) and rows.value == steps[0] * self.extent
        is_inside = is_whole and low >= 0 and high < steps[0]
        return steps[0] if is_inside or not inside else None


def _accesses(body: Stmt) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    """Yield the buffers and indices of all reads and writes."""
    for stmt in walk(body):
        if isinstance(stmt, Store):
            yield from ((name, stmt.indices) for name in stmt.buffers)
        for expr in exprs_of(stmt):
            yield from ((load.buffer, load.indices) for load in loads(expr))


def _others(body: Stmt) -> Iterator[Expr]:
    """Yield loop variables and all computed values but indices of buffers."""
    for stmt in walk(body):
        if isinstance(stmt, For):
            yield stmt.bound
        roots = stmt.values if isinstance(stmt, Store) else () if isinstance(stmt, Prefetch) else exprs_of(stmt)
        for root in roots:
            yield from _outside_of_loads(root)


def _outside_of_loads(root: Expr) -> Iterator[Expr]:
    """Yield the variables of a value outside of indices."""
    seen, stack = {root}, [root]
    while stack:
        expr = stack.pop()
        if isinstance(expr, Var):
            yield expr
        if not isinstance(expr, Load):
            stack.extend(child for child in expr.children if child not in seen)
            seen.update(expr.children)


class _Digests:
    """Hashes of frozen dataclasses and their fields by value; each shared expression is hashed once."""

    def __init__(self) -> None:
        self._known: dict[Expr, str] = {}

    def of(self, value: Any) -> str:
        if isinstance(value, Expr):
            if value not in self._known:
                self._known[value] = self._taken(value)
            return self._known[value]
        return self._taken(value)

    def _taken(self, value: Any) -> str:
        if is_dataclass(value):
            texts = [type(value).__name__, *(self.of(getattr(value, each.name)) for each in fields(value))]
        elif isinstance(value, tuple):
            texts = ["tuple", *map(self.of, value)]
        elif isinstance(value, Enum):
            texts = [type(value).__name__, value.name]
        elif value is None or isinstance(value, bool | int | float | str):
            return f"{type(value).__name__} {value!r}"
        else:
            raise TypeError(f"{type(value).__name__} is no part of a piece")
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()
