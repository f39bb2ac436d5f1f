"""Latency of products in tile registers (`instructions/tile_products.py`), in cycles of the tile unit."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.closed_forms.arithmetic import ONE, add, ceil, divide, maximum, multiply, product_of
from autosched.ir.expr import Expr
from autosched.ir.instructions.tile_products import SIDE, TileProduct, in_registers, tile_product
from cost_model.analysis.statements import Statement
from cost_model.cpu.machine import Machine


@dataclass(frozen=True)
class TileWork:
    """Of one step of the reduction: products of tiles, cycles of these, and vectors that are loaded for them."""

    products: Expr
    cycles: Expr
    loads: Expr


def product_of_tiles(statement: Statement, machine: Machine) -> TileProduct | None:
    """The product that is done in the processor's tiles; None where vectors do it."""
    found = None if statement.write.in_registers else tile_product(statement.store, statement.loops)
    tile = None if found is None else found.dot.row.tile
    return found if tile is not None and machine.target.has(tile[1]) else None


def tile_work(statement: Statement, found: TileProduct, machine: Machine) -> TileWork:
    loops = statement.loops
    rows, columns = loops[found.rows].trips, loops[found.columns].trips
    repeated = product_of(loops[n].trips for n in found.repeated)
    words = ONE if found.depth is None else loops[found.depth].trips
    along, across = (ceil(multiply(x, 1.0 / SIDE)) for x in (rows, columns))
    down = multiply(repeated, along)
    products, height = multiply(down, across), divide(rows, along)
    cycles = multiply(products, maximum(height, machine.uarch.tile_product))
    loads = add(multiply(down, height), multiply(across, words))
    return TileWork(products, cycles, loads)


def fits_tiles(statement: Statement, machine: Machine) -> Expr | None:
    """Return whether all tiles of a product are in registers at a time; None for any other statement."""
    found = product_of_tiles(statement, machine)
    if found is None:
        return None
    bounds = [x.bound for x in statement.loops]
    repeated = [bounds[n] for n in found.repeated]
    return in_registers(repeated, bounds[found.rows], bounds[found.columns])
