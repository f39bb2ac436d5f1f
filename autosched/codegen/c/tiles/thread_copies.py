"""Tiles that threads copy into a pipeline, where the copy engine cannot load the rows (`ir/instructions/tiles.py`).

    for n: copy piece number 128 n + thread of the tile; zeros for a piece outside of the tensor

A piece is the largest of 16, 8 and 4 bytes that divides a row, copied asynchronously, else one element copied through
registers; so each piece is either inside or outside of the tensor. Adjacent threads copy adjacent pieces.

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

MAX_UNROLLED = 8  # pieces of a thread; bounds the registers of synchronous copies


def emit_thread_index(first: int, c: Expressions, text: Text) -> Var:
    """Emit and return the variable of a thread's index in its warpgroup, whose first warp has index `first` along z."""
    x, y, z = (c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xyz"))
    thread = Var("thread.of.loads", INDEX)
    c.simplify.ranges[thread] = (0, WARPGROUP - 1)
    name = c.variables[thread] = text.name("thread")
    text.line(f"const int {name} = ({z} - {first}) * {ACROSS * DOWN} + {y} * {ACROSS} + {x};")
    return thread


def emit_tile_copy(copy: TileCopy, tile: str, thread: Var, c: Expressions, text: Text) -> None:
    """Emit the loop over a thread's pieces of a tile; `tile`: C expression of the stage's first element."""
    outside = c.buffers[copy.outside][0]
    shape, itemsize = panels_of(c.buffers[copy.buffer][0]).shape, outside.itemsize
    begin = c.simplify.affine(copy.origin[copy.rank - 1])
    width = piece_bytes(outside, (begin.constant, *(n for _, n in begin.terms)))
    count = width // itemsize
    pieces_per_row = shape[-1] // count
    n_pieces = math.prod(shape[:-1]) * pieces_per_row
    number = Var(f"{copy.buffer}.piece", INDEX)
    times = -(-n_pieces // WARPGROUP)
    c.simplify.ranges[number] = (0, times - 1)
    name = c.variables[number] = text.name("n")
    piece: Expr = number * WARPGROUP + thread
    coordinates = _digits(piece, (*shape[:-1], pieces_per_row))
    coordinates[-1] = coordinates[-1] * count
    indices, inside = element_outside(copy, outside, coordinates)
    source = c.element(copy.outside, tuple(indices))
    target = c.text(c.simplify(place_in_panels(shape, itemsize, coordinates)))
    condition = c.text(c.simplify(inside))
    text.line(c.dialect.unroll_by.format(times=min(times, MAX_UNROLLED)))
    with text.block(f"for (int {name} = 0; {name} < {times}; ++{name})"):
        if n_pieces % WARPGROUP:
            text.line(f"if ({c.text(c.simplify(piece))} >= {n_pieces}) break;")
        if width not in PIECES:
            text.line(f"({tile})[{target}] = {condition} ? {source} : {c.literal(0, outside.dtype)};")
            return
        vector = Lanes(c, outside.dtype, count) if count > 1 else None
        kind, zero = (c.memory_type(outside.dtype), "0") if vector is None else (vector.type, vector.zeros)
        helper, cache = f"start_copy_{kind.replace(' ', '_')}", "cg" if width == PIECES[0] else "ca"
        c.helpers[helper] = c.dialect.copies["start"].format(
            type=kind, name=helper, bytes=width, zero=zero, cache=cache
        )
        text.line(f"{helper}(({kind}*)({tile} + {target}), (const {kind}*)&{source}, {condition});")


def emit_commit(c: Expressions, text: Text) -> None:
    """Emit the commit of the copies since the last commit as one group."""
    c.helpers["commit_copies"] = c.dialect.copies["commit"].format()
    text.line("commit_copies();")


def emit_wait(pending: int, c: Expressions, text: Text) -> None:
    """Emit the wait until at most the latest `pending` groups are incomplete."""
    name = f"wait_for_all_copies_but_{pending}"
    c.helpers[name] = c.dialect.copies["wait"].format(pending=pending)
    text.line(f"{name}();")


def _digits(number: Expr, shape: tuple[int, ...]) -> list[Expr]:
    """Return the coordinates of a linear index, the last dimension fastest."""
    points: list[Expr] = []
    for n, extent in reversed(list(enumerate(shape))):
        points.insert(0, number % Const(extent, INDEX) if n else number)
        number = number // Const(extent, INDEX)
    return points
