"""Tile copies by a GPU's copy engine (TMA), and the pipelines of shared-memory stages that they fill.

A tile is stored in panels: `span` bytes of its last dimension, for all points of the others. In a panel 16 bytes change
places with others of the row, so that 8 rows of a matrix lie in different banks; the engine that writes them and the
tensor cores that read them know how, and nobody else reads them.

The engine reads zeros outside of a tensor. It wants rows of a multiple of 16 bytes and boxes of at most 256 elements
along a dimension. Tiles of other tensors are copied to the same places by the threads of the warpgroup that loads, as
many bytes at a time as divide their rows.

A ring has a place for each iteration that is under way, with two barriers: full, by which the engine says that its
bytes have arrived, and empty, by which each warpgroup says that it has read them. One more warpgroup loads tiles.

Two blocks that are a cluster may each load a half of a tile that both read: the engine writes it to the same place of
both and tells both. A place is empty then when the warpgroups of both have read it.

Where a block does the work of two, each of two warpgroups has a tile of results for itself. All that one of them
multiplies for it comes before what the other one does, from the same ring, and while it stores its results, the other
one multiplies.

Source: CUDA driver API, "cuTensorMapEncodeTiled"; PTX ISA, "Asynchronous Warpgroup Level Matrix Operations".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosched.errors import ScheduleError
from autosched.ir.expr import INDEX, Const, Expr, Load, Var, binary, const, product, select
from autosched.ir.stmt import Buffer, For, ForKind, If, Pixels, Stmt, Store, TileCopy

SPANS = (128, 64, 32)  # bytes of a row of a panel
ROW_BYTES = 16  # that divide the distance of rows in global memory
MOST_BOX = 256  # elements of a box along a dimension
MOST_DIMENSIONS = 5
ALIGNMENT = 1024  # bytes, of 8 rows of the widest panel
BARRIER_BYTES = 16  # of a place's two barriers
PIECES = (16, 8, 4)  # bytes that a thread copies with one instruction, of which it does not wait for the end
WARPGROUP = 128  # threads
WARPS = 4  # of them
# Warpgroups that multiply -> registers of their threads, and of those of the warpgroup that loads; what a block has is
# given out evenly at first, in multiples of 8: 255, 168, 128.
MOST_REGISTERS = 255
REGISTERS = {1: (MOST_REGISTERS, MOST_REGISTERS), 2: (232, 40), 3: (160, 32)}
REGISTERS_OF_COPIES = {**REGISTERS, 2: (216, 80), 3: (152, 56)}  # the same where its threads copy
SPARE_REGISTERS = 32  # of a thread that multiplies, beside its results
MOST_CLUSTER = 2  # blocks: a larger one takes longer to gather than its loads save
MOST_TURNS = 2  # blocks whose work is done by one
PATTERN = 8  # rows in which parts of 16 bytes change places
ZERO = Const(0, INDEX)


def span_of(row_bytes: int) -> int | None:
    """Bytes of a panel's rows for a tile with so many along its last dimension; None where there are no such panels."""
    return next((s for s in SPANS if row_bytes % s == 0), None)


def has_maps(shape: Sequence[int], itemsize: int) -> bool:
    """Whether the engine can read tiles of a tensor."""
    return 1 <= len(shape) <= MOST_DIMENSIONS and shape[-1] * itemsize % ROW_BYTES == 0


def by_engine(outside: Buffer) -> bool:
    """Whether the engine loads its tiles, or else threads do."""
    return has_maps(constant_shape(outside), outside.itemsize)


def piece_bytes(outside: Buffer, begins: Sequence[int] = ()) -> int:
    """Bytes that a thread copies at a time: they divide a row and the elements at which tiles begin in it; one element
    where that is less than the least of PIECES."""
    common = math.gcd(constant_shape(outside)[-1], *begins) * outside.itemsize
    return next((n for n in PIECES if common % n == 0), outside.itemsize)


@dataclass(frozen=True)
class Panels:
    """The layout of a tile in one pipeline stage: consecutive panels with rows of `span` bytes."""

    shape: tuple[int, ...]
    itemsize: int

    @property
    def span(self) -> int:
        span = span_of(self.shape[-1] * self.itemsize)
        if span is None:
            raise ScheduleError(
                f"a tile of {self.shape} elements of {self.itemsize} bytes has rows of no multiple of {SPANS[-1]} bytes"
            )
        return span

    @property
    def count(self) -> int:
        return self.shape[-1] * self.itemsize // self.span

    @property
    def box(self) -> tuple[int, ...]:
        """Elements of a panel along each dimension, innermost first."""
        box = (self.span // self.itemsize, *reversed(self.shape[:-1]))
        if max(box) > MOST_BOX:
            raise ScheduleError(f"a tile of {self.shape} elements takes more than {MOST_BOX} along a dimension at once")
        return box

    @property
    def elements(self) -> int:
        """Of a panel."""
        return math.prod(self.box)

    @property
    def nbytes(self) -> int:
        """Of a panel."""
        return self.elements * self.itemsize


def panels_of(buffer: Buffer) -> Panels:
    """Return the panels of a pipeline's buffer, whose first dimension is the stage."""
    return Panels(constant_shape(buffer)[1:], buffer.itemsize)


def constant_shape(buffer: Buffer) -> tuple[int, ...]:
    return tuple(e.number for e in buffer.shape if isinstance(e, Const))


def in_panels(shape: Sequence[Expr], itemsize: int) -> bool:
    """Whether a tile of closed forms may be stored in panels; where it is known to have no whole ones it may not."""
    last = shape[-1]
    return not isinstance(last, Const) or span_of(last.number * itemsize) is not None


def has_half_panels(shape: Sequence[Expr], itemsize: int) -> Expr:
    """Whether a tile has an even number of panels, so that half of them are a half of it; bool."""
    return binary("eq", shape[-1] * itemsize % (2 * SPANS[0]), ZERO)


def halved_dim(shape: Sequence[Expr]) -> int:
    """The dimension whose halves are halves of each panel of a tile: the first that is more than one element."""
    return next((n for n, e in enumerate(shape[:-1]) if not (isinstance(e, Const) and e.value == 1)), 0)


def has_half_rows(shape: Sequence[Expr], itemsize: int) -> Expr:
    """Whether the panels of a tile can be halved, so that halves begin where the engine's pattern does; bool."""
    if len(shape) < 2:
        return Const(False, "bool")
    even = binary("eq", shape[halved_dim(shape)] % 2, ZERO)
    return even & binary("eq", product(list(shape[:-1])) % (2 * PATTERN), ZERO)


def as_loops(copy: TileCopy, outside: Buffer) -> Stmt:
    """What a copy does, element by element."""
    points = [Var(f"{copy.buffer}.{n}", INDEX) for n in range(len(copy.shape))]
    indices, inside = element_outside(copy, outside, points)
    here, there = (*copy.place, *points), Load(copy.outside, tuple(indices), copy.dtype)
    if copy.back:
        value: Expr = Load(copy.buffer, here, copy.dtype)
        body: Stmt = If(inside, Store((copy.outside,), tuple(indices), (value,), None, copy.buffer, by_engine=True))
    else:
        value = select(inside, there, const(0, copy.dtype))
        body = Store((copy.buffer,), here, (value,), None, copy.buffer, by_engine=True)
    for point, extent in reversed(list(zip(points, copy.shape, strict=True))):
        body = For(point, extent, extent, ForKind.SERIAL, body)
    return body


def element_outside(copy: TileCopy, outside: Buffer, points: Sequence[Expr]) -> tuple[list[Expr], Expr]:
    """(indices in the tensor of a point of the tile, whether it is in there)."""
    inside: Expr = Const(True, "bool")
    indices = _box_indices(copy, points) if copy.pixels is None else _pixel_indices(copy, copy.pixels, points)
    if len(indices) > len(outside.shape):  # no dimension for images: there is one
        inside = inside & binary("lt", indices.pop(0), Const(1, INDEX))
    for index, extent in zip(indices, outside.shape, strict=True):
        inside = inside & binary("lt", index, extent) & binary("ge", index, ZERO)
    return indices, inside


def _box_indices(load: TileCopy, points: Sequence[Expr]) -> list[Expr]:
    dims = load.dims or tuple(range(len(load.origin)))
    return [at + points[dims.index(d)] if d in dims else at for d, at in enumerate(load.origin)]


def _pixel_indices(load: TileCopy, pixels: Pixels, points: Sequence[Expr]) -> list[Expr]:
    """Of the image, those along the spatial dimensions, of the channel."""
    *_, row, channel = points  # those before are of a batch: a tile has one of each
    spatial, rank = len(pixels.counts), load.rank
    first = rank - 1 - spatial
    number: Expr = load.origin[0] if first else ZERO
    places = [
        (at - low) // step for at, low, step in zip(load.origin[first:], pixels.lower, pixels.steps, strict=False)
    ]
    for place, count in zip(places, pixels.counts, strict=True):
        number = number * count + place
    number, offsets = number + row, load.origin[rank:]
    indices: list[Expr] = [load.origin[rank - 1] + channel]
    for n in reversed(range(spatial)):
        at = number % pixels.counts[n] * pixels.steps[n] + pixels.lower[n] + offsets[n]
        number = number // pixels.counts[n]
        indices.insert(0, at)
    return [number, *indices]


def place_in_panels(shape: tuple[int, ...], itemsize: int, indices: Sequence[Expr]) -> Expr:
    """The element's place in a tile: parts of 16 bytes change places as bits 7 and on of their address say."""
    panels = Panels(shape, itemsize)
    wide, part = panels.span // itemsize, ROW_BYTES // itemsize
    row: Expr = ZERO
    for extent, index in zip(shape[:-1], indices[:-1], strict=True):
        row = row * extent + index
    column = indices[-1]
    turn = row // (SPANS[0] // panels.span) % (panels.span // ROW_BYTES)
    chunk = binary("bitxor", column % wide // part, turn)
    return column // wide * panels.elements + row * wide + chunk * part + column % part
