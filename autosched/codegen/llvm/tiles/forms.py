"""Forms of register tiles, in the order in which they are tried. The first that accepts the tile emits it.

A tile that no form takes is written out in the order of its loops (`statements.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autosched.codegen.llvm.emitters import RegisterTile, StatementEmitter
from autosched.codegen.llvm.tiles.prefix_scan import emit_prefix_scan
from autosched.codegen.llvm.tiles.rolling import emit_reordered, emit_rolling, emit_window
from autosched.codegen.llvm.tiles.transpose import emit_transposed


@dataclass(frozen=True)
class TileForm:
    """`emit` returns whether it has emitted the tile; it then stands for so many `statements`, from the tile's on."""

    name: str
    emit: Callable[[StatementEmitter, RegisterTile], bool]
    statements: int = 1


FORMS = (
    # A window with more outputs than registers: each is written as soon as it is complete.
    TileForm("rolling accumulators", emit_rolling, statements=2),
    # A sliding window: copies that read the same element stand next to each other.
    TileForm("window", emit_window),
    # The prefix scan of a block: log2(n) steps of shifted vectors.
    TileForm("prefix scan", emit_prefix_scan),
    # Rows that are read or written across: whole vectors, transposed in registers.
    TileForm("transpose", emit_transposed),
    # Independent outputs with more operands than registers: the order that holds the fewest.
    TileForm("reordered loops", emit_reordered),
)


def emit_tile(emitter: StatementEmitter, tile: RegisterTile) -> int:
    """Emit the tile in the first form that accepts it; return the number of statements that it covers, 0 for none."""
    return next((form.statements for form in FORMS if form.emit(emitter, tile)), 0)
