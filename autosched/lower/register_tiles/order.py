"""Reordered loops: the order of a register tile that holds the fewest operands.

    for i, j unrolled, l in vectors:  A[i, j, l] += X[i, l] * W[j, l]

An operand that a loop does not move waits in a register until that loop has come round, with all that the loops inside
go through. Where the operands of the order of the loops have no room beside the accumulators, another order may: vector
by vector, or with a loop that moves both operands outside. If none has, each operand is loaded again for each vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod

from autosched.ir.expr import Var
from autosched.ir.stmt import For
from autosched.ir.visit import free_vars, loads, reduces_lanes
from autosched.lower.limits import MAX_CHUNKS
from autosched.lower.register_tiles.context import RegisterTile, TileContext
from autosched.lower.register_tiles.rules import fits

LEAST_OPERANDS = 2  # of a product: one register for each factor


@dataclass(frozen=True)
class OrderPlan:
    """The `loops` of a tile around vectors of `width` lanes; `order`: these loops and that of the vectors, outermost
    first, with their extents; `has_room`: whether the operands of this order have registers."""

    loops: tuple[Var, ...]
    inner: For
    width: int
    order: tuple[tuple[Var, int], ...]
    has_room: bool

    n_statements = 1

    def __str__(self) -> str:
        again = "" if self.has_room else ", operands loaded for each vector"
        return f"loops in the order {', '.join(var.name for var, _ in self.order)}{again}"


def plan_order(tile: RegisterTile, context: TileContext) -> OrderPlan | None:
    """Return the order of a tile whose operands have no room beside the accumulators in the order of its loops."""
    store, inner, loops = tile.store, tile.inner, tile.loops
    if store.reducer is None or reduces_lanes(inner):
        return None
    vectors = context.n_vectors(inner)
    sizes = {**dict(tile.unrolled), inner.var: vectors}
    accumulators, registers = prod(sizes.values()), context.target.n_vector_registers
    written = {v for i in store.indices for v in free_vars(i)}
    if accumulators + LEAST_OPERANDS > registers or vectors > MAX_CHUNKS or not written.issuperset(loops):
        return None
    read = dict.fromkeys(x for value in store.values for x in loads(value))
    operands = [frozenset(v for i in x.indices for v in free_vars(i) if sizes.get(v, 1) > 1) for x in read]
    if fits(accumulators, _waiting((*loops, inner.var), sizes, operands), registers):
        return None
    columns = (inner.var, *loops)
    order = min((columns, *permutations(columns)), key=lambda o: _waiting(o, sizes, operands))
    has_room = fits(accumulators, _waiting(order, sizes, operands), registers)
    if not has_room and accumulators + vectors < registers:
        return None
    order = order if has_room else columns
    return OrderPlan(loops, inner, context.width(inner), tuple((v, sizes[v]) for v in order), has_room)


def _waiting(order: Sequence[Var], sizes: Mapping[Var, int], operands: Sequence[frozenset[Var]]) -> int:
    """Return the registers of operands that move with these loops of `sizes`, in an order, outermost first.

    What is used again in a loop that does not move it waits for that, all that the loops inside go through.
    """
    wide = [v for v in order if sizes[v] > 1]
    again = (next((n for n, v in enumerate(wide) if v not in moving), len(wide)) for moving in operands)
    return sum(prod(sizes[v] for v in wide[n:] if v in moving) for n, moving in zip(again, operands, strict=True))
