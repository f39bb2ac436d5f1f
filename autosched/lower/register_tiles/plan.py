"""The plan of register tiles: which one takes which form, decided before code is generated.

    a product on a processor with tile registers    `tile_product.py`
    PLANS, in this order                            of unrolled loops around a vectorised one; the first that applies

A tile that takes none is written out in the order of its loops, the vectorised one by `vectors.py`. LLVM code
generation carries the plans out (`codegen/llvm/tiles/`), `autosched show ID --as passes` prints them (`tiles_text`),
and the cost model asks the same rules about registers (`rules.py`) in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from autosched.ir.expr import Const
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import (
    Allocate,
    Buffer,
    For,
    ForKind,
    Func,
    Seq,
    Stmt,
    Store,
    only_fetches,
    shared_and_nests,
    walk,
)
from autosched.ir.visit import exprs_of, loads, vector_tile
from autosched.lower.register_tiles.byte_moves import moves_as_bytes
from autosched.lower.register_tiles.context import RegisterTile, TileContext
from autosched.lower.register_tiles.lane_pairs import deinterleaved_loops
from autosched.lower.register_tiles.order import OrderPlan, plan_order
from autosched.lower.register_tiles.rolling import WindowPlan, plan_window
from autosched.lower.register_tiles.scan import ScanPlan, plan_scan
from autosched.lower.register_tiles.tile_product import ProductPlan, plan_cleared_product, plan_product
from autosched.lower.register_tiles.transpose import TransposePlan, plan_transpose
from autosched.lower.register_tiles.vectors import VectorPlan, plan_vectors
from autosched.target import Target

TilePlan: TypeAlias = WindowPlan | ScanPlan | TransposePlan | OrderPlan | ProductPlan

PLANS: tuple[Callable[[RegisterTile, TileContext], TilePlan | None], ...] = (
    # A sliding window: copies that read the same element stand next to each other, and where it has more outputs than
    # registers each is written as soon as it is complete.
    plan_window,
    # The prefix scan of a block: log2(n) steps of shifted vectors.
    plan_scan,
    # Rows that are read or written across: whole vectors, transposed in registers.
    plan_transpose,
    # Independent outputs with more operands than registers: the order that holds the fewest.
    plan_order,
)


class _Planned(NamedTuple):
    """A plan, the tile with the statements beside it, whose identities it is found by, and the buffers that it uses."""

    stmts: tuple[Stmt | None, ...]
    buffers: tuple[Buffer, ...]
    plan: TilePlan | None


@dataclass(frozen=True)
class TilePlanner:
    """Plans the register tiles of one nest. Copies of an unrolled body have the plan of the first one."""

    context: TileContext
    _planned: dict[tuple[int, ...], _Planned] = field(default_factory=dict, compare=False)

    def sequence(self, stmts: Sequence[Stmt]) -> Iterator[tuple[TilePlan | None, Stmt]]:
        """Yield the plans of statements that follow each other, each with the first statement that it covers; without
        a plan a statement stands for itself, and what is in it has plans of its own."""
        before: Stmt | None = None
        n = 0
        while n < len(stmts):
            stmt = stmts[n]
            plan = self._with_neighbours(before, stmts[n:]) if isinstance(stmt, For) else None
            yield plan, stmt
            covered = stmts[n : n + (1 if plan is None else plan.n_statements)]
            before = next((s for s in reversed(covered) if not only_fetches(s)), before)
            n += len(covered)

    def loop(self, stmt: For) -> TilePlan | None:
        """Return the plan of a loop by itself."""
        return plan_product(stmt, self.context) or self._tile(None, stmt, None)

    def _with_neighbours(self, before: Stmt | None, stmts: Sequence[Stmt]) -> TilePlan | None:
        after = stmts[1] if len(stmts) > 1 else None
        return plan_cleared_product(stmts, self.context) or self._tile(before, stmts[0], after)

    def _tile(self, before: Stmt | None, stmt: Stmt, after: Stmt | None) -> TilePlan | None:
        nest = vector_tile(stmt) if isinstance(stmt, For) and stmt.kind is ForKind.UNROLL else None
        if nest is None or not isinstance(nest[1].body, Store):
            return None
        stmts = before, stmt, after
        key = tuple(map(id, stmts))
        known = self._planned.get(key)
        if known is None or any(self.context.buffer(b.name) != b for b in known.buffers):
            tile = RegisterTile(*nest, before, after)
            plan = next((p for make in PLANS if (p := make(tile, self.context)) is not None), None)
            names = {*tile.store.buffers, *(x.buffer for e in exprs_of(tile.store) for x in loads(e))}
            known = self._planned[key] = _Planned(stmts, tuple(map(self.context.buffer, names)), plan)
        return known.plan


def plan_nest(
    nest: Stmt, buffers: Sequence[Buffer], buffer: Callable[[str], Buffer], simplify: Simplifier, target: Target
) -> tuple[Stmt, TilePlanner]:
    """Return a root nest as its tiles are computed, and what plans them; `buffer` has the `buffers` outside of the nest
    and those that it allocates."""
    nest = moves_as_bytes(nest)
    pairs = deinterleaved_loops(nest, {b.name: b for b in buffers}, simplify, target)
    return nest, TilePlanner(TileContext(target, simplify, buffer, pairs))


def non_temporal_outputs(nest: Stmt, target: Target) -> tuple[str, ...]:
    """Return the outputs of a root nest whose whole vectors are stored around the caches, where all of these outputs
    begin at a line of the cache; none on a processor without these stores."""
    if target.arch != "x86_64":
        return ()
    stores = (s for s in walk(nest) if isinstance(s, Store) and s.non_temporal)
    return tuple(dict.fromkeys(b for s in stores for b in s.buffers))


def tiles_text(func: Func, simplify: Simplifier, target: Target) -> str:
    """Return a line for each register tile of a concrete nest for a processor, in the order of execution, and for each
    loop whose vectors are packed to bytes and each output that is stored around the caches."""
    lines: list[str] = []
    for body in (func.body, func.prepare):
        shared, nests = ([], []) if body is None else shared_and_nests(body)
        buffers = {b.name: b for b in (*func.params, *func.prepared, *shared)}
        for nest in nests:
            nest, planner = plan_nest(nest, tuple(buffers.values()), buffers.__getitem__, simplify, target)
            lines += [_line(first, plan) for first, plan in _plans(nest, planner, buffers)]
            lines += [f"{name}: stored around the caches" for name in non_temporal_outputs(nest, target)]
    return "\n".join(lines) or "none"


def _plans(
    stmt: Stmt, planner: TilePlanner, buffers: dict[str, Buffer]
) -> Iterator[tuple[Stmt, TilePlan | VectorPlan | None]]:
    """Yield each plan with its first statement, and the tiles without one; buffers that are allocated are added."""
    if isinstance(stmt, Seq):
        for plan, first in planner.sequence(stmt.stmts):
            yield from _plans(first, planner, buffers) if plan is None else [(first, plan)]
        return
    plan = planner.loop(stmt) if isinstance(stmt, For) else None
    if plan is not None:
        yield stmt, plan
        return
    if isinstance(stmt, For) and stmt.kind is ForKind.VECTORIZE and isinstance(stmt.extent, Const):
        vectors = plan_vectors(stmt, planner.context)
        yield from [(stmt, vectors)] if vectors.packing else []
        return
    if isinstance(stmt, Allocate):
        buffers[stmt.buffer.name] = stmt.buffer
    inside = [found for inner in stmt.body_stmts for found in _plans(inner, planner, buffers)]
    is_tile = isinstance(stmt, For) and stmt.kind is ForKind.UNROLL and vector_tile(stmt) is not None
    yield from [(stmt, None)] if is_tile and not any(plan for _, plan in inside) else inside


def _line(stmt: Stmt, plan: TilePlan | VectorPlan | None) -> str:
    loops = [s for s in walk(stmt) if isinstance(s, For)]
    stage = next(s.stage or s.buffers[0] for s in walk(stmt) if isinstance(s, Store))
    around = " ".join(f"{s.var.name}={s.extent}" for s in loops)
    together = (
        ""
        if plan is None or isinstance(plan, VectorPlan) or plan.n_statements == 1
        else f", {plan.n_statements} statements"
    )
    return f"{stage} [{around}]: {'loops in their order' if plan is None else plan}{together}"
