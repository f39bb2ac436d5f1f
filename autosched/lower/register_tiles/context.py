"""Register tiles and the facts that their plans depend on: target, buffers, vector widths, addresses of lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Cast, Const, Expr, Load, Var
from autosched.ir.simplify import Affine, Simplifier
from autosched.ir.stmt import Buffer, For, Stmt, Store, walk
from autosched.ir.storage import flat_form
from autosched.ir.types import lane_bytes
from autosched.ir.visit import elements, free_vars, loads, substitute
from autosched.target import Target

Point = tuple[int, ...]  # values of the unrolled loops


@dataclass(frozen=True)
class RegisterTile:
    """The `unrolled` loops, outermost first, with their extents, around the vectorised loop `inner` of one store.

    `before` and `after` are the statements beside the tile: `before` may clear its accumulators, `after` may write
    them. Each is None where there is none.
    """

    unrolled: Sequence[tuple[Var, int]]
    inner: For
    before: Stmt | None = None
    after: Stmt | None = None

    @property
    def store(self) -> Store:
        assert isinstance(self.inner.body, Store)
        return self.inner.body

    @cached_property
    def loops(self) -> tuple[Var, ...]:
        return loops_and_points(self.unrolled)[0]

    @cached_property
    def points(self) -> list[Point]:
        return loops_and_points(self.unrolled)[1]


class LaneAddress(NamedTuple):
    """The elements of a vector: `base`, terms that all lanes share, then `offset` + lane * `stride`.

    `stride` is None where the distances from lane to lane differ or are not known.
    """

    base: frozenset[tuple[Expr, int]]
    offset: int
    stride: int | None


@dataclass(frozen=True)
class TileContext:
    """`buffer`: the buffer of a name, where the tile is. `deinterleaved`: see `lane_pairs.py`."""

    target: Target
    simplify: Simplifier
    buffer: Callable[[str], Buffer]
    deinterleaved: frozenset[Var] = frozenset()
    # Copies of an unrolled body need a width again; by the identity of a statement that is kept with it.
    _widths: dict[int, tuple[Stmt, int]] = field(default_factory=dict, compare=False)

    def width(self, loop: For) -> int:
        """Return the lanes of a vector in a vectorised loop."""
        if loop.var in self.deinterleaved:
            return self.target.vector_bytes // 2
        body = loop.body
        known = self._widths.get(id(body))
        if known is None:
            known = self._widths[id(body)] = (body, max(1, self.target.vector_bytes // self._widest(body)))
        return known[1]

    def n_vectors(self, loop: For) -> int:
        """Return the vectors of a vectorised loop of constant extent, a partial one included."""
        return -(-number_of(loop.extent) // self.width(loop))

    def _widest(self, body: Stmt) -> int:
        """Return the bytes of the elements that fill one vector register: of the widest handled in the loop, but where
        it updates nothing, of those that most operations are in (`lane_bytes`)."""
        sizes = {1}
        for stmt in walk(body):
            if not isinstance(stmt, Store):
                continue
            if any(x.buffer in stmt.buffers for value in stmt.values for x in loads(value)):
                handled = (x for value in stmt.values for x in elements(value) if isinstance(x, Load | Cast))
                sizes |= {DTYPES[x.dtype].nbytes for x in handled if isinstance(x, Load) or x.dtype != INDEX}
                sizes |= {self.buffer(b).itemsize for b in stmt.buffers}
            else:
                sizes |= set(map(lane_bytes, stmt.values))
        return max(sizes)

    def flat(self, name: str, indices: tuple[Expr, ...]) -> Affine:
        """Return the element index of an access in storage order."""
        return flat_form(self.buffer(name), indices, self.simplify)

    def address(self, form: Affine, lane: Var, lanes: range, at: Mapping[Var, int]) -> LaneAddress:
        """Return the address of an access of element index `form`, with `lanes` as the values of the vectorised
        variable `lane` and the numbers `at` for unrolled ones."""
        base: dict[Expr, int] = {}
        offset, steps = form.constant, [0] * len(lanes)
        for atom, c in form.terms:
            if atom is lane:
                steps = [step + c * n for step, n in zip(steps, lanes, strict=True)]
                continue
            if isinstance(atom, Var) and atom in at:
                offset += c * at[atom]
                continue
            numbers: dict[Expr, Expr] = {v: Const(at[v], INDEX) for v in free_vars(atom) & at.keys()}
            shared = self.simplify(substitute(atom, numbers)) if numbers else atom
            if lane in free_vars(shared):
                split = self._split(shared, lane, lanes)
                if split is None:
                    return LaneAddress(frozenset(), 0, None)
                shared, apart = split
                steps = [step + c * n for step, n in zip(steps, apart, strict=True)]
            if isinstance(shared, Const):
                offset += c * shared.number
            else:
                base[shared] = base.get(shared, 0) + c
        stride = steps[1] - steps[0] if len(steps) > 1 else 0
        is_even = all(step == steps[0] + n * stride for n, step in enumerate(steps))
        return LaneAddress(frozenset(base.items()), offset + steps[0], stride if is_even else None)

    def _split(self, expr: Expr, lane: Var, lanes: range) -> tuple[Expr, list[int]] | None:
        """Return an index as what its lanes share and a number for each: (16 i + n) // 2 = 8 i + n // 2. None where
        the numbers depend on other loops."""
        forms = [self.simplify.affine(substitute(expr, {lane: Const(n, INDEX)})) for n in lanes]
        terms = forms[0].terms
        if any(form.terms != terms for form in forms):
            return None
        return self.simplify(Affine(terms, 0).expr()), [form.constant for form in forms]


def loops_and_points(unrolled: Sequence[tuple[Var, int]]) -> tuple[tuple[Var, ...], list[Point]]:
    """Return the variables of unrolled loops, and their values in the order of the loops."""
    return tuple(var for var, _ in unrolled), list(product(*(range(n) for _, n in unrolled)))


def next_power(n: int) -> int:
    """Return the least power of two that is `n` or more, which is at least 1."""
    return 1 << (n - 1).bit_length()


def number_of(extent: Expr) -> int:
    assert isinstance(extent, Const)
    return extent.number
