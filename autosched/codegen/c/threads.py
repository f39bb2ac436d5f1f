"""Launch dimensions: the blocks and threads of a launch, and the loops that are bound to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autosched.codegen.c.dialects import Dialect
from autosched.codegen.c.source import Triple
from autosched.ir.expr import INDEX, Const, Expr, Var
from autosched.ir.stmt import BLOCKS, THREADS, For, ForKind


@dataclass
class Threads:
    """Sizes along x, y, z, the variables of the loops that a block's threads stand for, and the `places` of blocks that
    are not started row by row."""

    grid: list[int] = field(default_factory=lambda: [1, 1, 1])
    block: list[int] = field(default_factory=lambda: [1, 1, 1])
    numbers: list[Var | None] = field(default_factory=lambda: [None, None, None])
    places: dict[ForKind, Expr] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)

    def bind(self, loop: For, dialect: Dialect) -> str | None:
        """Gives the loop's iterations to blocks or threads; the C text of their number, None where there is one."""
        is_block = loop.kind in BLOCKS
        n = (BLOCKS if is_block else THREADS).index(loop.kind)
        assert isinstance(loop.bound, Const)
        extent = int(loop.bound.value)
        (self.grid if is_block else self.block)[n] = extent
        if not is_block:
            self.numbers[n] = loop.var
        return None if extent == 1 else (dialect.block if is_block else dialect.thread).format(axis="xyz"[n], number=n)

    def number(self) -> Expr:
        """Of the thread in its block."""
        number: Expr = Const(0, INDEX)
        for var, size in zip(reversed(self.numbers), reversed(self.block), strict=True):
            number = number * size if var is None else number * size + var
        return number


def triple(sizes: list[int]) -> Triple:
    return sizes[0], sizes[1], sizes[2]
