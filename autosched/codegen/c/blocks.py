"""Which block of a grid does what: in bands of rows (`ir/raster.py`), or few blocks that go through all of it.

for (int tile = blockIdx.x; tile < 512; tile += 132)  { what block number `tile` of the grid does }
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autosched.ir.expr import INDEX, Const, Expr, Var
from autosched.ir.raster import block_of
from autosched.ir.stmt import BLOCKS, For, ForKind, walk


@dataclass(frozen=True)
class BlockOrder:
    """The blocks of a grid of `sizes` along x, y and z by `number`, in bands of `group` rows; `launched`: blocks that
    go through all of it, 0 where each has its own."""

    number: Var
    sizes: tuple[int, int, int]
    group: int
    launched: int

    @property
    def count(self) -> int:
        return math.prod(self.sizes) if self.launched else self.sizes[0] * self.sizes[1]

    @property
    def places(self) -> dict[ForKind, Expr]:
        """The indices of the block of that number; of a grid that is launched whole, along x and y."""
        across, down, _ = self.sizes
        number: Expr = self.number
        inside = number % (across * down) if self.launched else number
        if self.group > 1 and 1 not in (across, down):
            x, y = block_of(inside, across, down, self.group)
        else:
            x, y = inside % across, inside // across
        found = {BLOCKS[0]: x, BLOCKS[1]: y}
        return {**found, BLOCKS[2]: number // (across * down)} if self.launched else found


def block_order(nest: For, name: str, resident: int, multiprocessors: int) -> BlockOrder | None:
    """That of a kernel with so many resident blocks on each of `multiprocessors`, 0 where all blocks are launched; None
    where blocks are as a device starts them."""
    bounds = {s.kind: s.bound for s in walk(nest) if isinstance(s, For) and s.kind in BLOCKS}
    sizes = [bounds.get(kind, Const(1, INDEX)) for kind in BLOCKS]
    x, y, z = (int(e.value) for e in sizes if isinstance(e, Const))
    group = int(nest.raster.value) if isinstance(nest.raster, Const) else 1
    launched = min(x * y * z, multiprocessors * resident)
    if not launched and (group == 1 or 1 in (x, y)):
        return None
    return BlockOrder(Var(f"{name}.block", INDEX), (x, y, z), group, launched)
