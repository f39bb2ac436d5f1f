"""Launch dimensions: the blocks and threads of a launch, and the loops that are bound to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autosched.codegen.c.dialects import Dialect
from autosched.codegen.c.source import Triple
from autosched.ir.expr import INDEX, Const, Expr, Var
from autosched.ir.stmt import BLOCKS, THREADS, For, ForKind
from autosched.ir.symbolic import is_known


@dataclass
class Threads:
    """Launch dimensions along x, y, z; those of the grid may be sizes. `numbers`: variables of the loops bound to
    threads; `block_indices`: indices of a block where the order of blocks is not the hardware's."""

    grid: list[int] = field(default_factory=lambda: [1, 1, 1])
    block: list[int] = field(default_factory=lambda: [1, 1, 1])
    numbers: list[Var | None] = field(default_factory=lambda: [None, None, None])
    block_indices: dict[ForKind, Expr] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The threads of a block."""
        return math.prod(self.block)

    def bind(self, loop: For, dialect: Dialect) -> str | None:
        """Bind the loop to blocks or threads; return the C text of their index, None if there is a single one."""
        is_block = loop.kind in BLOCKS
        n = (BLOCKS if is_block else THREADS).index(loop.kind)
        assert isinstance(loop.bound, Const)
        extent = loop.bound.number if is_block else int(loop.bound.number)
        (self.grid if is_block else self.block)[n] = extent
        if not is_block:
            self.numbers[n] = loop.var
        if is_known("eq", extent, 1):
            return None
        return (dialect.block if is_block else dialect.thread).format(axis="xyz"[n], number=n)

    def number(self) -> Expr:
        """Return the linear index of a thread in its block."""
        number: Expr = Const(0, INDEX)
        for var, size in zip(reversed(self.numbers), reversed(self.block), strict=True):
            number = number * size if var is None else number * size + var
        return number


def triple(sizes: list[int]) -> Triple:
    return sizes[0], sizes[1], sizes[2]
