"""Pairs of lanes: vectorised loops whose bfloat16 lanes are de-interleaved.

    for l in vectors:  A[l] += f(X[.., l])        for l in vectors:  Y[.., l] = g(X[.., l], W[l])     X, W, Y bfloat16

Such a loop does not depend on which lane is which, so a register of bfloat16 becomes two of float32, the even lanes and
the odd ones (`codegen/llvm/small_floats.py`). Buffers of a nest that only such loops use (A) hold their lanes
de-interleaved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autosched.ir.expr import Cast, Const, Expr, Load, Var
from autosched.ir.instructions.dots import Dot, Word
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, Stmt, Store, walk
from autosched.ir.storage import flat_form
from autosched.ir.visit import exprs_of, free_vars, is_gathered, loads, reduces_lanes
from autosched.target import Target


@dataclass
class _Lanes:
    """The use of lanes by the vectorised loops of one variable."""

    converts: bool = False  # bfloat16 to float32 or back
    fits: bool = True  # any order of lanes will do, if what the `buffers` of the nest hold is in the same
    buffers: set[str] = field(default_factory=set)


def deinterleaved_loops(
    body: Stmt, params: Mapping[str, Buffer], simplify: Simplifier, target: Target
) -> frozenset[Var]:
    """Return the variables of the vectorised loops whose lanes are de-interleaved: loops that convert bfloat16, and
    loops that use the same buffers of the nest."""
    buffers = {**params, **{s.buffer.name: s.buffer for s in walk(body) if isinstance(s, Allocate)}}
    if target.arch != "x86_64":
        return frozenset()
    if not any(b.dtype == "bfloat16" for b in buffers.values()):
        return frozenset()
    own = frozenset(name for name, b in buffers.items() if name not in params and b.dtype == "float32")
    pairs = _Pairs(buffers, own, simplify, target.vector_bytes // 2)
    pairs.visit(body, ())
    return pairs.found()


@dataclass
class _Pairs:
    buffers: Mapping[str, Buffer]
    own: frozenset[str]  # float32 of the nest
    simplify: Simplifier
    lanes: int
    loops: dict[Var, _Lanes] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)  # buffers that something needs in their own order

    def found(self) -> frozenset[Var]:
        size = -1
        while size != len(self.ordered):
            size = len(self.ordered)
            for lanes in self.loops.values():
                if not lanes.fits or lanes.buffers & self.ordered:
                    lanes.fits = False
                    self.ordered |= lanes.buffers
        fitting = {var: lanes for var, lanes in self.loops.items() if lanes.fits}
        held = {n for lanes in fitting.values() if lanes.converts for n in lanes.buffers}
        return frozenset(var for var, lanes in fitting.items() if lanes.converts or lanes.buffers & held)

    def visit(self, stmt: Stmt, unrolled: tuple[Var, ...]) -> None:
        if isinstance(stmt, For) and stmt.kind is ForKind.VECTORIZE:
            self._loop(stmt, unrolled)
            return
        self.ordered |= {load.buffer for load in _loads(stmt)} & self.own
        inside = (*unrolled, stmt.var) if isinstance(stmt, For) and stmt.kind is ForKind.UNROLL else ()
        for part in stmt.body_stmts:
            self.visit(part, inside)

    def _loop(self, loop: For, unrolled: tuple[Var, ...]) -> None:
        lanes, used = self.loops.setdefault(loop.var, _Lanes()), [x for s in walk(loop.body) for x in _loads(s)]
        shared = {x.buffer for x in used if not any(loop.var in free_vars(i) for i in x.indices)}
        self.ordered |= shared & self.own
        lanes.buffers |= {x.buffer for x in used} & self.own - shared
        whole = isinstance(loop.extent, Const) and loop.extent.value % self.lanes == 0
        lanes.fits &= whole and isinstance(loop.body, Store) and self._fits(loop, loop.body, unrolled, lanes)

    def _fits(self, loop: For, store: Store, unrolled: tuple[Var, ...], lanes: _Lanes) -> bool:
        if len(store.buffers) > 1 or (store.reducer is not None and not _moves(store, unrolled)):
            return False
        if not reduces_lanes(loop) and not self._is_element(store.buffers[0], store.indices, loop.var):
            return False
        return self._fits_value(store.values[0], loop.var, lanes)

    def _fits_value(self, e: Expr, lane: Var, lanes: _Lanes) -> bool:
        if lane not in free_vars(e):
            return True
        if isinstance(e, Word | Dot):
            return False
        if isinstance(e, Load):
            return not is_gathered(e) and self._is_element(e.buffer, e.indices, lane)
        if isinstance(e, Cast) and {e.dtype, e.a.dtype} == {"float32", "bfloat16"}:
            lanes.converts = True
        elif e.dtype not in ("float32", "bool"):
            return False
        return bool(e.children) and all(self._fits_value(c, lane, lanes) for c in e.children)

    def _is_element(self, name: str, indices: tuple[Expr, ...], lane: Var) -> bool:
        """Whether the lanes are adjacent: bfloat16 anywhere, or float32 of the nest, whole groups of lanes."""
        buffer = self.buffers[name]
        form = flat_form(buffer, indices, self.simplify)
        terms = dict(form.terms)
        if terms.pop(lane, 0) != 1 or any(lane in free_vars(atom) for atom in terms):
            return False
        aligned = form.constant % self.lanes == 0 and not any(c % self.lanes for c in terms.values())
        return buffer.dtype == "bfloat16" or (name in self.own and aligned)


def _loads(stmt: Stmt) -> list[Load]:
    """Return the elements that a statement itself reads or writes."""
    found = [x for e in exprs_of(stmt) for x in loads(e)]
    return [*found, *(Load(b, stmt.indices, "float32") for b in stmt.buffers)] if isinstance(stmt, Store) else found


def _moves(store: Store, unrolled: tuple[Var, ...]) -> bool:
    """Whether copies of an update have no operand in common: those have orders that count registers."""
    written = {v for i in store.indices for v in free_vars(i)}
    if len(written & {*unrolled}) not in (0, len(unrolled)):
        return False
    return all({*unrolled} <= {v for i in x.indices for v in free_vars(i)} for e in store.values for x in loads(e))
