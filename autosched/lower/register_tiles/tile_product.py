"""Plans of tile products (`ir/instructions/tile_products.py`): a whole reduction with its sums in tile registers.

Where all tiles of sums, and the operands that they share, fit into tile registers, all are computed at a time. Loops
whose extents are known when they run, or with more tiles than registers, take one tile after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const, Expr, Load, Var
from autosched.ir.instructions.tile_products import SIDE, TileProduct, in_registers, tile_product
from autosched.ir.stmt import For, Seq, Stmt, Store, only_fetches
from autosched.ir.visit import free_vars
from autosched.lower.register_tiles.context import TileContext, number_of


@dataclass(frozen=True)
class ProductNest:
    """The loops of a product, outermost first, and what they are. `ahead`: what is asked for ahead of time, by the
    number of loops around it."""

    loops: tuple[For, ...]
    store: Store
    product: TileProduct
    ahead: Mapping[int, tuple[Stmt, ...]]

    @property
    def outer(self) -> tuple[For, ...]:
        return self.loops[: self.product.first]

    @property
    def depth(self) -> int:
        """Words of a step."""
        place = self.product.depth
        return 1 if place is None else number_of(self.loops[place].extent)

    def extents(self) -> tuple[list[Expr], Expr, Expr]:
        """Of the loops that repeat a tile, of its rows and of its columns."""
        p = self.product
        return [self.loops[n].extent for n in p.repeated], self.loops[p.rows].extent, self.loops[p.columns].extent


@dataclass(frozen=True)
class TileOperand:
    """`load` with the bytes from a row of a tile to the next."""

    load: Load
    step: int


@dataclass(frozen=True)
class ProductPlan:
    """A product in tile registers. `fetches`: prefetches between the statement that clears the sums and the product,
    None where no statement clears them, so that they are loaded. `is_whole`: whether all tiles are in registers at a
    time."""

    nest: ProductNest
    sums: TileOperand
    left: TileOperand
    right: TileOperand
    is_whole: bool
    fetches: tuple[Stmt, ...] | None = None

    @property
    def is_cleared(self) -> bool:
        return self.fetches is not None

    @property
    def n_statements(self) -> int:
        return 1 if self.fetches is None else 2 + len(self.fetches)

    def __str__(self) -> str:
        return f"tile product, {'all tiles in registers' if self.is_whole else 'one tile after the other'}"


def plan_product(stmt: Stmt, context: TileContext, fetches: tuple[Stmt, ...] | None = None) -> ProductPlan | None:
    """Return the plan of a statement that is a product on a processor with tiles; None where it is not, or where its
    elements do not lie in rows."""
    nest = _find_nest(stmt, context)
    if nest is None:
        return None
    found, loops = nest.product, nest.loops
    rows, columns = loops[found.rows].var, loops[found.columns].var
    depth = None if found.depth is None else loops[found.depth].var
    sums = Load(nest.store.buffers[0], nest.store.indices, found.dot.dtype)
    words = 1 if found.left.dtype == "int32" else found.dot.row.depth
    total, left = _operand(sums, rows, context), _operand(found.left, rows, context)
    right = _operand(found.right, depth, context)
    beside = _step(found.left, depth, context)
    near = [_step(sums, columns, context), _step(found.right, columns, context)]
    if total is None or left is None or right is None:
        return None
    if near != [1, 1] or beside not in (words, 0) or not _are_neighbours(found, context):
        return None
    repeated, down, across = nest.extents()
    is_whole = False
    if all(isinstance(e, Const) for e in (*repeated, down, across)):
        fits = in_registers(repeated, down, across)
        is_whole = isinstance(fits, Const) and bool(fits.value)
    return ProductPlan(nest, total, left, right, is_whole, fetches)


def plan_cleared_product(stmts: Sequence[Stmt], context: TileContext) -> ProductPlan | None:
    """Return the plan of statements that begin with one that clears sums, and the product that adds them up, perhaps
    after prefetches."""
    fetches = tuple(takewhile(only_fetches, stmts[1:]))
    following = stmts[1 + len(fetches) :]
    plan = plan_product(following[0], context, fetches) if following else None
    return plan if plan is not None and _clears(stmts[0], plan.nest.store.buffers[0]) else None


def _find_nest(stmt: Stmt, context: TileContext) -> ProductNest | None:
    """Return the product that a statement is, on a processor with tiles."""
    loops: list[For] = []
    ahead: dict[int, tuple[Stmt, ...]] = {}
    while isinstance(stmt, For) or (loops and isinstance(stmt, Seq)):
        if isinstance(stmt, For):
            loops.append(stmt)
            stmt = stmt.body
        else:
            *before, stmt = stmt.stmts
            ahead[len(loops)] = tuple(before)
            if isinstance(stmt, Seq) or not all(map(only_fetches, before)):
                return None
    if not loops or not isinstance(stmt, Store) or len(stmt.values) > 1:
        return None
    found = tile_product(stmt, loops)
    if found is None or any(not x.reduce for x in loops[: found.first]) or any(n > found.first for n in ahead):
        return None
    tile = found.dot.row.tile
    nest = ProductNest(tuple(loops), stmt, found, ahead)
    is_known = found.depth is None or isinstance(loops[found.depth].extent, Const)
    return nest if tile is not None and context.target.has(tile[1]) and is_known and nest.depth <= SIDE else None


def _clears(stmt: Stmt, buffer: str) -> bool:
    """Return whether a statement sets sums to zero."""
    while isinstance(stmt, For):
        stmt = stmt.body
    if not isinstance(stmt, Store) or stmt.buffers != (buffer,) or stmt.reducer is not None:
        return False
    start = stmt.values[0]
    return isinstance(start, Const) and start.value == 0


def _operand(load: Load, rows: Var | None, context: TileContext) -> TileOperand | None:
    step = _step(load, rows, context)
    return None if step is None else TileOperand(load, step * DTYPES[load.dtype].nbytes)


def _step(load: Load, var: Var | None, context: TileContext) -> int | None:
    """Return the elements that a step of the loop moves an element; None where that differs."""
    if var is None:
        return 0
    terms = dict(context.flat(load.buffer, load.indices).terms)
    is_plain = all(isinstance(atom, Var) or var not in free_vars(atom) for atom in terms)
    return terms.get(var, 0) if is_plain else None


def _are_neighbours(found: TileProduct, context: TileContext) -> bool:
    """Return whether the parts of a word are adjacent in memory."""
    words = found.dot.a
    if isinstance(words, Load):
        return True
    forms = [context.flat(found.left.buffer, x.indices) for x in words.children if isinstance(x, Load)]
    return all(f.terms == forms[0].terms and f.constant == forms[0].constant + n for n, f in enumerate(forms))
