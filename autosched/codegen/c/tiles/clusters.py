"""Thread block clusters that load tiles for each other (`instructions/tiles.py`): a block's rank and its loads.

A tile that both blocks read is loaded in halves, each by one block and multicast to both: every other panel, or half of
the rows of each panel. A tile that only one block reads is loaded by that block.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.errors import ScheduleError
from autosched.ir.expr import INDEX, Const, Expr, Var
from autosched.ir.instructions.tiles import Panels, halved_dim, has_half_panels, has_half_rows
from autosched.ir.stmt import BLOCKS, For, Stmt, TileCopy, walk
from autosched.ir.visit import exprs_of, free_vars

ZERO = Const(0, INDEX)


@dataclass(frozen=True)
class TileSlice:
    """The slice of a tile that one block loads: `count` panels from `panel` on, of each of them 1 / `share` of the rows
    along dimension `dim`, from `row` on; `half`: the index of these rows among the shares. `is_multicast`: the slice is
    loaded into all blocks of the cluster."""

    count: int
    panel: Expr = ZERO
    dim: int = 0
    share: int = 1
    row: Expr = ZERO
    half: Expr = ZERO
    is_multicast: bool = False


@dataclass(frozen=True)
class BlockCluster:
    """A cluster of `down` by `across` blocks; `rank`: variable of a block's index in it, `along`: that of the loop over
    its blocks."""

    down: int
    across: int
    rank: Var
    along: Var

    @property
    def size(self) -> int:
        return self.down * self.across

    @property
    def mask(self) -> int:
        """The multicast mask of all blocks."""
        return (1 << self.size) - 1

    def slice_of(self, copy: TileCopy, panels: Panels) -> TileSlice:
        """Return the slice of a tile that a block loads."""
        shape, is_distinct = [Const(n, INDEX) for n in panels.shape], self.along in _variables_of(copy)
        if not is_distinct and _is_true(has_half_panels(shape, panels.itemsize)):
            count = panels.count // self.size
            return TileSlice(count, self.rank * count, is_multicast=True)
        if is_distinct or copy.pixels is not None or not _is_true(has_half_rows(shape, panels.itemsize)):
            return TileSlice(panels.count)
        dim = halved_dim(shape)
        row = self.rank * (panels.shape[dim] // self.size)
        return TileSlice(panels.count, ZERO, dim, self.size, row, self.rank, True)


def cluster_of(nest: Stmt) -> BlockCluster | None:
    """Return the cluster of a kernel's blocks; None without one. Raises ScheduleError for an impossible cluster."""
    sharing = nest.sharing if isinstance(nest, For) else None
    if sharing is None:
        return None
    down, across = (int(n.value) for n in (sharing.down, sharing.across) if isinstance(n, Const))
    if down * across == 1:
        return None
    loops = {s.kind: s for s in walk(nest) if isinstance(s, For) and s.kind in BLOCKS}
    for kind, count in ((BLOCKS[1], down), (BLOCKS[0], across)):
        loop = loops.get(kind)
        blocks = int(loop.bound.value) if loop is not None and isinstance(loop.bound, Const) else 1
        if blocks % count:
            raise ScheduleError(f"clusters of {down} by {across} blocks do not divide the {blocks} along {kind.value}")
    along = loops[BLOCKS[1] if down > 1 else BLOCKS[0]].var
    return BlockCluster(down, across, Var(f"{along.name}.rank", INDEX), along)


def turns_of(nest: Stmt) -> int:
    """Return the tiles that one persistent block computes at a time, by a warpgroup each in turns (ping-pong)."""
    turns = nest.sharing.turns if isinstance(nest, For) and nest.sharing is not None else None
    return int(turns.value) if isinstance(turns, Const) else 1


def _variables_of(copy: TileCopy) -> frozenset[Var]:
    return frozenset[Var]().union(*(free_vars(e) for e in exprs_of(copy)))


def _is_true(condition: Expr) -> bool:
    return isinstance(condition, Const) and bool(condition.value)
