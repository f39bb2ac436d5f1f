"""Raster order: the order in which the blocks of a kernel are started, for locality in the shared cache.

A device starts blocks row by row. Those that run at a time then read all columns of one operand of a product and few
rows of the other. In bands of `group` rows, column by column inside, they are nearer to a square:

    group = 1    0 1 2 3      group = 2    0 2 4 6
                 4 5 6 7                   1 3 5 7
"""

from __future__ import annotations

from autosched.ir.closed_forms.arithmetic import divide, maximum, minimum, multiply, real
from autosched.ir.expr import Expr, imin


def block_of(number: Expr, across: int, down: int, group: int) -> tuple[Expr, Expr]:
    """(column, row) of the block that is started as number `number` of a grid; the last band may have fewer rows."""
    band = number // (across * group)
    first, rest = band * group, number % (across * group)
    rows = imin(down - first, group)
    return rest // rows, first + rest % rows


def side_by_side(blocks: Expr, across: Expr, down: Expr, group: Expr) -> tuple[Expr, Expr]:
    """(columns, rows) of `blocks` that are started one after the other, real."""
    rows = minimum(real(group), down)
    columns = minimum(maximum(1.0, divide(blocks, rows)), across)
    bands = minimum(maximum(1.0, divide(blocks, multiply(rows, columns))), divide(down, rows))
    return columns, multiply(rows, bands)
