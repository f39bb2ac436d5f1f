"""Emission of register tiles: each plan of `lower/register_tiles/` by what carries it out."""

from __future__ import annotations

from autosched.codegen.llvm.emitters import StatementEmitter
from autosched.codegen.llvm.tiles.prefix_scan import emit_prefix_scan
from autosched.codegen.llvm.tiles.tile_products import emit_product
from autosched.codegen.llvm.tiles.transpose import emit_transposed
from autosched.codegen.llvm.tiles.windows import emit_reordered, emit_window
from autosched.lower.register_tiles.order import OrderPlan
from autosched.lower.register_tiles.plan import TilePlan
from autosched.lower.register_tiles.rolling import WindowPlan
from autosched.lower.register_tiles.scan import ScanPlan
from autosched.lower.register_tiles.tile_product import ProductPlan
from autosched.lower.register_tiles.transpose import TransposePlan


def emit_tile(emitter: StatementEmitter, plan: TilePlan) -> None:
    """Emit the statements that a plan covers."""
    match plan:
        case WindowPlan():
            emit_window(emitter, plan)
        case ScanPlan():
            emit_prefix_scan(emitter, plan)
        case TransposePlan():
            emit_transposed(emitter, plan)
        case OrderPlan():
            emit_reordered(emitter, plan)
        case ProductPlan():
            emit_product(emitter, plan)
