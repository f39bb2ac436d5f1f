"""Tile-product instructions (AMX): 16 rows of 16 words by 16 words of as many columns, in tile registers.

    for k .. reduce:                                            loops outside of a tile's
      for k < 16, unrolled:                                     words of both operands
        for others, unrolled:                                   several tiles
          for i, unrolled:                                      rows, in tiles of up to 16
            for j, vectorised:                                  columns, the same
              C[i, j] += tdpbusd(A[i, k], B[k, j])

Such loops mean what they say, as any others do: a `Dot` whose row of INTRINSICS names an instruction for tiles says
how they are done, as a whole. What one looks like is decided here, for the emitter and for the cost model.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autosched.ir.expr import Expr, Load, Var, ceildiv, imin, product
from autosched.ir.instructions.dots import Dot, Word, is_whole_word
from autosched.ir.stmt import ForKind, Store
from autosched.ir.visit import free_vars

SIDE = 16  # rows of a tile, words of a row
REGISTERS = 8  # tiles
CONFIG_BYTES = 64  # what a processor is told of the tiles' sizes


class Loop(Protocol):
    """What a loop is, wherever it is looked at."""

    @property
    def var(self) -> Var: ...

    @property
    def kind(self) -> ForKind: ...

    @property
    def reduce(self) -> bool: ...


@dataclass(frozen=True)
class TileProduct:
    """Places among the loops: `first` of the tile's own, those that repeat it, that of its rows, of the words along the
    reduction (None: one word), of its columns. `left` and `right` are words of the operands, or the first part of one.
    """

    dot: Dot
    left: Load
    right: Load
    first: int
    repeated: tuple[int, ...]
    rows: int
    depth: int | None
    columns: int


def tile_product(store: Store, loops: Sequence[Loop]) -> TileProduct | None:
    """How the loops around a store, outermost first, are one product of tiles; None where they are not."""
    dot = store.values[0]
    if not isinstance(dot, Dot) or dot.row.tile is None or store.reducer is None or not store.reducer.is_sum:
        return None
    left, right = _first(dot.a), _first(dot.b)
    first = len(loops)
    while first > 0 and loops[first - 1].kind in (ForKind.UNROLL, ForKind.VECTORIZE):
        first -= 1
    if left is None or right is None or len(loops) - first < 2 or loops[-1].kind is not ForKind.VECTORIZE:
        return None
    moved = [frozenset[Var]().union(*map(free_vars, x)) for x in (left.indices, right.indices, store.indices)]
    sides = [tuple(x.var in variables for variables in moved) for x in loops]
    inner = range(first, len(loops) - 1)
    depth = [n for n in inner if loops[n].reduce]
    over = [n for n in inner if not loops[n].reduce]
    is_product = sides[-1] == (False, True, True) and all(sides[n] == (True, False, True) for n in over)
    if not is_product or not over or len(depth) > 1 or any(sides[n] != (True, True, False) for n in depth):
        return None
    if any(x.reduce and x.kind is not ForKind.SERIAL for x in loops[:first]):
        return None
    return TileProduct(dot, left, right, first, tuple(over[:-1]), over[-1], depth[0] if depth else None, len(loops) - 1)


def _first(words: Expr) -> Load | None:
    """An operand's words, or the first part of one that lies in memory as a whole."""
    if isinstance(words, Word) and is_whole_word(words):
        words = words.parts[0]
    return words if isinstance(words, Load) else None


def parts(extent: Expr) -> Expr:
    """Tiles along rows or columns, all of one size where that divides the extent."""
    return ceildiv(extent, SIDE)


def registers(down: Expr, across: Expr) -> Expr:
    """Tile registers for the sums of so many tiles, for one operand's and for one of the other, which are loaded in
    turn."""
    return down * across + imin(down, across) + 1


def in_registers(repeated: Sequence[Expr], rows: Expr, columns: Expr) -> Expr:
    """Whether all tiles of such loops are in registers at a time."""
    down, across = product([*repeated, parts(rows)]), parts(columns)
    are_whole = (rows % parts(rows) < 1) & (columns % parts(columns) < 1)
    return are_whole & (registers(down, across) <= REGISTERS)
