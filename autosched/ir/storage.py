"""Storage order: the flat index of an element of a buffer."""

from __future__ import annotations

from dataclasses import replace

from autosched.ir.expr import Const, Expr
from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, NEIGHBOURS
from autosched.ir.instructions.tiles import constant_shape, place_in_panels
from autosched.ir.simplify import Affine, Simplifier
from autosched.ir.stmt import Buffer, Scope

REGISTER_PAD = 16  # lanes of a register buffer are padded to whole vectors of any width


def stored_shape(buffer: Buffer) -> list[tuple[int, int]]:
    """(dimension, extent) as stored, outermost first: inner tiles come last, a register buffer is padded."""
    shape = [e.number for e in buffer.shape if isinstance(e, Const)]
    assert len(shape) == len(buffer.shape), f"buffer {buffer.name} has no constant shape"
    tiles = {} if buffer.layout is None else {d: f.number for d, f in buffer.layout.tiles if isinstance(f, Const)}
    order = tuple(range(len(shape))) if buffer.layout is None else buffer.layout.order
    stored = [(d, -(-shape[d] // tiles.get(d, 1))) for d in order] + list(tiles.items())
    if buffer.layout is not None and isinstance(buffer.layout.pad, Const) and stored:
        dim, extent = stored[-1]
        stored[-1] = (dim, extent + buffer.layout.pad.number)
    if buffer.scope is Scope.REGISTER and stored:
        dim, extent = stored[-1]
        stored[-1] = (dim, -(-extent // REGISTER_PAD) * REGISTER_PAD)
    return stored


def versions_of(buffer: Buffer) -> tuple[int, Buffer]:
    """How many copies a buffer has that the iterations of a pipeline take in turn, and one of them."""
    if not buffer.has_versions:
        return 1, buffer
    layout = buffer.layout
    if layout is not None:
        order = tuple(d - 1 for d in layout.order if d > 0)
        layout = replace(layout, order=order, tiles=tuple((d - 1, f) for d, f in layout.tiles))
    [(_, places), *_] = stored_shape(buffer)
    if places == 1:
        return 1, buffer
    return places, replace(buffer, shape=buffer.shape[1:], layout=layout, has_versions=False)


def element_count(buffer: Buffer) -> int:
    count = 1
    for _, extent in stored_shape(buffer):
        count *= extent
    return count


def held_index(buffer: Buffer, indices: tuple[Expr, ...], simplify: Simplifier) -> Expr:
    """Where a thread has an element that a warp holds, counted from its own first one: whole tiles of rows, of each the
    pairs of columns next to each other for as many columns as a row of lanes has, and of these the halves of the rows
    (`matrices.py`, of which this is what an instruction takes as A)."""
    (_, across), (*_, row, column) = stored_shape(buffer)[-1], indices
    lane = ACROSS * NEIGHBOURS
    tile = row // (HALVES * DOWN) * (across // lane) + column // lane
    return simplify((tile * HALVES + row // DOWN % HALVES) * NEIGHBOURS + column % NEIGHBOURS)


def flat_index(buffer: Buffer, indices: tuple[Expr, ...], simplify: Simplifier) -> Expr:
    """The element index in storage order, canonical."""
    return flat_form(buffer, indices, simplify).expr()


def flat_form(buffer: Buffer, indices: tuple[Expr, ...], simplify: Simplifier) -> Affine:
    """The element index in storage order: each step of the nest of products is canonical."""
    if buffer.layout is not None and buffer.layout.panels:
        return simplify.affine(simplify(place_in_panels(constant_shape(buffer), buffer.itemsize, indices)))
    tiles = {} if buffer.layout is None else dict(buffer.layout.tiles)
    n_outer = len(indices)
    form = Affine((), 0)
    for n, (dim, extent) in enumerate(stored_shape(buffer)):
        index = indices[dim]
        if dim in tiles:
            index = index // tiles[dim] if n < n_outer else index % tiles[dim]
        form = simplify.place_value(form, extent, index)
    return form
