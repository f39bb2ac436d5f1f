"""Block order of a grid: bands of rows (`ir/raster.py`), or persistent blocks that loop over all tiles.

    for (int tile = blockIdx.x; tile < 512; tile += 132)  { the work of block number `tile` of the grid }

The blocks of a cluster compute the blocks of one cluster of the grid at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autosched.codegen.c.tiles.clusters import BlockCluster, cluster_of
from autosched.errors import ScheduleError
from autosched.ir.expr import INDEX, Const, Expr, Var
from autosched.ir.raster import block_of
from autosched.ir.stmt import BLOCKS, For, ForKind, walk


@dataclass(frozen=True)
class BlockOrder:
    """The order of a grid's blocks, in bands of `group` rows.

    `number`: variable of a block's number in the order, or of its cluster's number for blocks in a `cluster`; `sizes`:
    blocks along x, y and z; `launched`: persistent blocks that loop over the grid, 0 without persistent blocks."""

    number: Var
    sizes: tuple[int, int, int]
    group: int
    launched: int
    cluster: BlockCluster | None = None

    @property
    def blocks_per_number(self) -> int:
        """The blocks that share one number: those of a cluster."""
        return 1 if self.cluster is None else self.cluster.size

    @property
    def count(self) -> int:
        """The count of numbers."""
        return math.prod(self.sizes) // self.blocks_per_number if self.launched else self.sizes[0] * self.sizes[1]

    @property
    def block_indices(self) -> dict[ForKind, Expr]:
        """The indices of block `number`, by kind of loop; without persistent blocks only those along x and y."""
        across, down, _ = self.sizes
        group, number = self.group, self.number
        if self.cluster is not None:
            across, down = across // self.cluster.across, down // self.cluster.down
            group = max(1, group // self.cluster.down)
        inside: Expr = number % (across * down) if self.launched else number
        if group > 1 and 1 not in (across, down):
            x, y = block_of(inside, across, down, group)
        else:
            x, y = inside % across, inside // across
        indices = {BLOCKS[0]: x, BLOCKS[1]: y}
        if self.cluster is not None:
            axis = BLOCKS[0] if self.cluster.across > 1 else BLOCKS[1]
            indices[axis] = indices[axis] * self.cluster.size + self.cluster.rank
        return {**indices, BLOCKS[2]: number // (across * down)} if self.launched else indices


def block_order(nest: For, name: str, resident: int, multiprocessors: int) -> BlockOrder | None:
    """Return the order of a kernel's blocks; None if it is the hardware's. `resident`: blocks on each of
    `multiprocessors`, which is 0 for a kernel without persistent blocks.

    Raises ScheduleError for clusters without persistent blocks, or of more blocks than are resident."""
    bounds = {s.kind: s.bound for s in walk(nest) if isinstance(s, For) and s.kind in BLOCKS}
    sizes = [bounds.get(kind, Const(1, INDEX)) for kind in BLOCKS]
    x, y, z = (e.number for e in sizes if isinstance(e, Const))
    group = int(nest.raster.value) if isinstance(nest.raster, Const) else 1
    launched, cluster = min(x * y * z, multiprocessors * resident) if multiprocessors else 0, cluster_of(nest)
    if cluster is not None:
        launched -= launched % cluster.size
        if not launched:
            raise ScheduleError(f"{name}: clusters need persistent blocks, as many resident ones as a cluster has")
    if not launched and (group == 1 or 1 in (x, y)):
        return None
    return BlockOrder(Var(f"{name}.block", INDEX), (x, y, z), group, launched, cluster)
