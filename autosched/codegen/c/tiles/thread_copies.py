"""Tiles that threads copy into a pipeline, where the copy engine cannot load the rows (`ir/instructions/tiles.py`).

    for n: piece number 128 n + thread of the tile; zero where it is outside of the tensor

Pieces are of 16, 8 or 4 bytes, which are on their way while the thread goes on, or one element that passes by its
registers: whatever divides a row, so that a piece is inside of the tensor or outside. Neighbours copy neighbours.

Source: PTX ISA, "cp.async".
"""

from __future__ import annotations

import math

from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.lanes import Lanes
from autosched.codegen.c.names import Text
from autosched.ir.expr import INDEX, Const, Expr, Var
from autosched.ir.instructions.matrices import ACROSS, DOWN
from autosched.ir.instructions.tiles import PIECES, WARPGROUP, element_outside, panels_of, piece_bytes, place_in_panels
from autosched.ir.stmt import TileCopy

MOST_UNROLLED = 8  # pieces of a thread; what registers hold at a time where it is one element


def number_of_thread(first: int, c: Expressions, text: Text) -> Var:
    """Return the variable of a thread's number in the warpgroup whose first warp has that number along z."""
    x, y, z = (c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xyz"))
    thread = Var("thread.of.loads", INDEX)
    c.simplify.ranges[thread] = (0, WARPGROUP - 1)
    name = c.variables[thread] = text.name("thread")
    text.line(f"const int {name} = ({z} - {first}) * {ACROSS * DOWN} + {y} * {ACROSS} + {x};")
    return thread


def copy_tile(copy: TileCopy, tile: str, thread: Var, c: Expressions, text: Text) -> None:
    """Return the loop over a thread's pieces of a tile; `tile`: the C expression of the stage's start."""
    outside = c.buffers[copy.outside][0]
    shape, itemsize = panels_of(c.buffers[copy.buffer][0]).shape, outside.itemsize
    begin = c.simplify.affine(copy.origin[copy.rank - 1])
    width = piece_bytes(outside, (begin.constant, *(n for _, n in begin.terms)))
    count = width // itemsize
    row = shape[-1] // count
    total = math.prod(shape[:-1]) * row
    number = Var(f"{copy.buffer}.piece", INDEX)
    times = -(-total // WARPGROUP)
    c.simplify.ranges[number] = (0, times - 1)
    name = c.variables[number] = text.name("n")
    piece: Expr = number * WARPGROUP + thread
    points = _points(piece, (*shape[:-1], row))
    points[-1] = points[-1] * count
    indices, inside = element_outside(copy, outside, points)
    source = c.element(copy.outside, tuple(indices))
    place = c.text(c.simplify(place_in_panels(shape, itemsize, points)))
    condition = c.text(c.simplify(inside))
    text.line(c.dialect.unroll_by.format(times=min(times, MOST_UNROLLED)))
    with text.block(f"for (int {name} = 0; {name} < {times}; ++{name})"):
        if total % WARPGROUP:
            text.line(f"if ({c.text(c.simplify(piece))} >= {total}) break;")
        if width not in PIECES:
            text.line(f"({tile})[{place}] = {condition} ? {source} : {c.literal(0, outside.dtype)};")
            return
        form = Lanes(c, outside.dtype, count) if count > 1 else None
        kind, zero = (c.memory_type(outside.dtype), "0") if form is None else (form.type, form.zeros)
        helper, cache = f"start_copy_{kind.replace(' ', '_')}", "cg" if width == PIECES[0] else "ca"
        c.helpers[helper] = c.dialect.copies["start"].format(
            type=kind, name=helper, bytes=width, zero=zero, cache=cache
        )
        text.line(f"{helper}(({kind}*)({tile} + {place}), (const {kind}*)&{source}, {condition});")


def start_group(c: Expressions, text: Text) -> None:
    """Commit the copies since the last call as one group."""
    c.helpers["commit_copies"] = c.dialect.copies["commit"].format()
    text.line("commit_copies();")


def wait_for_groups(pending: int, c: Expressions, text: Text) -> None:
    """Until no more than the latest ones are under way."""
    name = f"wait_for_all_copies_but_{pending}"
    c.helpers[name] = c.dialect.copies["wait"].format(pending=pending)
    text.line(f"{name}();")


def _points(number: Expr, shape: tuple[int, ...]) -> list[Expr]:
    """The digits of a number, the last dimension fastest."""
    points: list[Expr] = []
    for n, extent in reversed(list(enumerate(shape))):
        points.insert(0, number % Const(extent, INDEX) if n else number)
        number = number // Const(extent, INDEX)
    return points
