"""Block order of a grid: bands of rows (`ir/raster.py`), or persistent blocks that loop over all tiles.

for (int tile = blockIdx.x; tile < 512; tile += 132)  { what block number `tile` of the grid does }

Blocks of a cluster go side by side through the clusters of the grid.
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
    """The blocks of a grid of `sizes` along x, y and z by `number`, that of a `cluster` where they are in clusters, in
    bands of `group` rows; `launched`: blocks that go through all of it, 0 where each has its own."""

    number: Var
    sizes: tuple[int, int, int]
    group: int
    launched: int
    cluster: BlockCluster | None = None

    @property
    def together(self) -> int:
        """Blocks that have one number."""
        return 1 if self.cluster is None else self.cluster.size

    @property
    def count(self) -> int:
        """Of numbers."""
        return math.prod(self.sizes) // self.together if self.launched else self.sizes[0] * self.sizes[1]

    @property
    def places(self) -> dict[ForKind, Expr]:
        """The indices of the block of that number; of a grid that is launched whole, along x and y."""
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
        found = {BLOCKS[0]: x, BLOCKS[1]: y}
        if self.cluster is not None:
            side = BLOCKS[0] if self.cluster.across > 1 else BLOCKS[1]
            found[side] = found[side] * self.cluster.size + self.cluster.rank
        return {**found, BLOCKS[2]: number // (across * down)} if self.launched else found


def block_order(nest: For, name: str, resident: int, multiprocessors: int) -> BlockOrder | None:
    """That of a kernel with so many resident blocks on each of `multiprocessors`, 0 where all blocks are launched; None
    where blocks are as a device starts them."""
    bounds = {s.kind: s.bound for s in walk(nest) if isinstance(s, For) and s.kind in BLOCKS}
    sizes = [bounds.get(kind, Const(1, INDEX)) for kind in BLOCKS]
    x, y, z = (int(e.value) for e in sizes if isinstance(e, Const))
    group = int(nest.raster.value) if isinstance(nest.raster, Const) else 1
    launched, cluster = min(x * y * z, multiprocessors * resident), cluster_of(nest)
    if cluster is not None:
        launched -= launched % cluster.size
        if not launched:
            raise ScheduleError(f"{name}: clusters need blocks that go through the work of all, on several processors")
    if not launched and (group == 1 or 1 in (x, y)):
        return None
    return BlockOrder(Var(f"{name}.block", INDEX), (x, y, z), group, launched, cluster)
