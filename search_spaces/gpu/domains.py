"""The values a parameter may take on a GPU. Thread counts are powers of two: a loop never runs longer than its axis."""

from __future__ import annotations

import math

from autosched.ir.dtype import DTYPES
from autosched.ir.instructions.tiles import MOST_CLUSTER, MOST_TURNS
from autosched.schedule import Stage
from search_spaces.access import extent, last_digits
from search_spaces.space import SketchParam

MOST_X = 256  # threads along the contiguous axis
MOST_YZ = 32
MOST_TEAM = 1024
MOST_ROWS = 8
SHORT_ROWS = 2048  # longer ones keep a block busy
MOST_TILE = 8  # points of an axis that a thread has next to each other
MOST_VTHREADS = 4
MOST_ROW_TILE = 4  # rows of a thread that has all columns
MOST_PLACES = 32  # weights of such a row
MOST_WARPS = 8  # along an axis
MOST_MATRICES = 8  # of a warp along an axis
MOST_STEPS = 4  # of products of matrices along a reduction, between two fills
END_STEP = 64  # points: rows of a warpgroup, or half of its columns
GROUP_COLUMNS = (2, 4, 8, 12, 16, 20, 24, 28, 32)  # units of 8 that a warpgroup multiplies at once
RING_STEPS = (2, 4, 8)
MOST_CHUNK = 32  # iterations of a reduction that a shared buffer holds
SMALL_REDUCTION = 8  # up to this length a reduction is one chunk, or each iteration is one; it may be unrolled whole
VECTORS = (1, 2, 4, 8, 16)
LEAST_VECTOR = 4  # elements that a thread may have next to each other even where that is more than one access
VECTOR_BYTES = 16


def next_power_of_two(extent: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, extent - 1).bit_length()


def powers(most: int) -> tuple[int, ...]:
    """The powers of two up to `most`."""
    return tuple(1 << n for n in range(max(1, most).bit_length()))


def threads(name: str, extent: int, group: str, most: int) -> SketchParam:
    return SketchParam(name, powers(min(most, next_power_of_two(extent))), "thread", group, next_power_of_two(extent))


def vthreads(name: str, extent: int, group: str) -> SketchParam:
    return SketchParam(name, powers(min(MOST_VTHREADS, extent)), "vthread", group, next_power_of_two(extent))


def tile(name: str, extent: int, group: str, most: int = MOST_TILE) -> SketchParam:
    return SketchParam(name, tuple(range(1, min(extent, most) + 1)), "tile", group, next_power_of_two(extent))


def vector(name: str, extent: int, group: str, itemsize: int) -> SketchParam:
    """Adjacent elements of a thread, as many as one access moves of those of `itemsize` bytes."""
    most = min(next_power_of_two(extent), max(LEAST_VECTOR, VECTOR_BYTES // itemsize))
    return SketchParam(name, tuple(v for v in VECTORS if v <= most), "vector", group, next_power_of_two(extent))


def copied_vector(name: str, copy: Stage) -> SketchParam:
    """Elements that a thread copies at once: no more than an access can move, and whole vectors fill a row, or each
    part of one that lies by itself."""
    itemsize = max(DTYPES[d].nbytes for d in copy.op.dtypes)
    row = extent(copy.op.axes[-1]) if len(copy.op.axes) > 1 else 0
    row = math.gcd(row, *(last_digits(copy, copy.op.axes[-1]) if row else ()))
    return SketchParam(name, tuple(v for v in VECTORS if v * itemsize <= VECTOR_BYTES and row % v == 0), "vector")


def row_vector(name: str, length: int, itemsize: int) -> SketchParam:
    """Adjacent elements of a row of `length` that a thread takes at once: whole vectors fill the row."""
    most = VECTOR_BYTES // itemsize
    return SketchParam(name, tuple(v for v in VECTORS if v <= most and length % v == 0), "vector")


def team(name: str, length: int) -> SketchParam:
    """Threads that share a reduction of `length`: whole warps, no more than twice its length."""
    counts = tuple(t for t in (32, 64, 128, 256, 512, MOST_TEAM) if t <= max(32, next_power_of_two(length)))
    return SketchParam(name, counts, "thread")


def rows(name: str, count: int, length: int, least: int = 1) -> SketchParam:
    """How many of `count` rows of `length` a block reduces at the same time: `least` or more."""
    most = MOST_ROWS if length <= SHORT_ROWS else 1
    counts = tuple(r for r in powers(min(most, next_power_of_two(count))) if r >= least)
    return SketchParam(name, counts or (least,), "thread")


def chunk(name: str, extent: int, group: str) -> SketchParam:
    """Iterations of a reduction between two fills of the shared buffers."""
    if extent <= SMALL_REDUCTION:
        return SketchParam(name, tuple(sorted({1, extent})), "tile", group, extent)
    return SketchParam(name, powers(min(MOST_CHUNK, extent)), "tile", group, next_power_of_two(extent))


def unroll(name: str, extent: int, group: str) -> SketchParam:
    counts = {u for u in (1, 2, 4, 8) if u <= extent} | ({extent} if extent <= SMALL_REDUCTION else set())
    return SketchParam(name, tuple(sorted(counts)), "unroll", group, next_power_of_two(extent))


def stages(name: str, extent: int, group: str, asynchronous: bool) -> SketchParam:
    """How many chunks of a reduction shared buffers have room for; copies through registers need no more than two."""
    return SketchParam(name, (1, 2, 3, 4) if asynchronous else (1, 2), "stages", group, next_power_of_two(extent))


def row_places(name: str, places: int) -> SketchParam:
    """Weights that a thread makes of a row at a time."""
    return SketchParam(name, powers(min(MOST_PLACES, next_power_of_two(places))), "tile")


def warps(name: str, tiles: int, group: str) -> SketchParam:
    """Warps of a block along an axis of so many tiles of matrices."""
    counts = powers(min(MOST_WARPS, next_power_of_two(tiles)))
    return SketchParam(name, counts, "thread", group, next_power_of_two(tiles))


def matrix_tiles(name: str, tiles: int, group: str) -> SketchParam:
    """Tiles of matrices that a warp has next to each other."""
    counts = powers(min(MOST_MATRICES, next_power_of_two(tiles)))
    return SketchParam(name, counts, "tile", group, next_power_of_two(tiles))


def matrix_steps(name: str, steps: int) -> SketchParam:
    """Instructions along a reduction between two fills of the shared buffers."""
    return SketchParam(name, powers(min(MOST_STEPS, next_power_of_two(steps))), "tile")


def warpgroups(name: str, tiles: int, group: str) -> SketchParam:
    """Warpgroups of a block, of which each has 64 rows or several times that; another one loads their tiles."""
    return SketchParam(name, (1, 2) if tiles > 1 else (1,), "thread", group, next_power_of_two(tiles))


def group_tiles(name: str, tiles: int, group: str) -> SketchParam:
    """Tiles of 64 rows that a warpgroup has next to each other."""
    return SketchParam(name, (1, 2) if tiles > 1 else (1,), "tile", group, next_power_of_two(tiles))


def group_columns(name: str, units: int, group: str) -> SketchParam:
    """Units of 8 columns that a warpgroup multiplies at once, up to the first number that has all."""
    enough = min((n for n in GROUP_COLUMNS if n >= units), default=GROUP_COLUMNS[-1])
    return SketchParam(name, tuple(n for n in GROUP_COLUMNS if n <= enough), "tile", group)


def staged_parts(name: str, units: int, group: str) -> SketchParam:
    """In how many parts a warpgroup's columns go out, one after another: the fewer at a time, the more room for
    rings."""
    return SketchParam(name, (1, 2, 4) if units > GROUP_COLUMNS[0] else (1,), "tile", group)


def ring_steps(name: str, steps: int, together: int = 0) -> SketchParam:
    """Instructions along a reduction for each place of a ring: rows of a tile have 32 bytes for each."""
    enough = min((n for n in RING_STEPS if n >= steps), default=RING_STEPS[-1])
    return SketchParam(name, tuple(n for n in parts_together(together) if n <= enough), "tile")


def parts_together(together: int) -> tuple[int, ...]:
    """Into pieces of how many instructions so many may be cut; RING_STEPS where that is 0. Odd numbers have rows of 32
    bytes, for nothing else is a part of them."""
    if not together:
        return RING_STEPS
    return tuple(n for n in range(1, RING_STEPS[-1] + 1) if together % n == 0 and (n % 2 == 0 or together % 2))


def ring_places(name: str) -> SketchParam:
    """Tiles of each operand that are on their way or being read."""
    return SketchParam(name, (2, 3, 4, 5, 6, 7, 8), "stages")


def resident(name: str) -> SketchParam:
    """Blocks that a multiprocessor keeps at a time."""
    return SketchParam(name, (1, 2, 3), "resident")


def part(name: str, length: int, step: int, most: int) -> SketchParam | None:
    """How long the parts of a reduction are, whole steps: `most` of them or fewer. None where it has one only."""
    counts = {*range(2, 9), *(n * power for n in (5, 6, 7, 8) for power in powers(most // 5))}
    lengths = {-(-length // (n * step)) * step for n in counts if n <= most}
    chosen = tuple(sorted(n for n in lengths if n < length))
    return SketchParam(name, chosen, "tile") if chosen else None


def kernel_end(name: str, length: int) -> SketchParam:
    """Where along an axis one kernel ends and the next one begins: in its second half, at multiples of `END_STEP`."""
    return SketchParam(name, tuple(range(-(-length // (2 * END_STEP)) * END_STEP, length, END_STEP)), "end")


def raster(name: str) -> SketchParam:
    """Rows of blocks that are started together."""
    return SketchParam(name, (1, 2, 4, 8, 16), "raster")


def cluster(name: str) -> SketchParam:
    """Blocks next to each other along an axis that load tiles for each other."""
    return SketchParam(name, (1, MOST_CLUSTER), "cluster")


def turns(name: str) -> SketchParam:
    """Blocks whose work one block does, by a warpgroup each."""
    return SketchParam(name, (1, MOST_TURNS), "turns")


def pad(name: str) -> SketchParam:
    """Elements between the rows of a shared buffer, whose number of columns is most often a multiple of the 32 banks.

    A warp that fills a transposed buffer writes 32 / chunk columns of `chunk` rows: 32 / chunk elements between the
    rows put them all in different banks. Permuting whole vectors of a row instead (exclusive or with the row's number)
    saves the elements, but its banks are those of a gap of one vector, which is not the best for most chunks.
    """
    return SketchParam(name, (0, 1, 2, 4, 8), "pad")


def vector_pad(name: str, copy: Stage, in_lines: bool = False) -> SketchParam:
    """The same where rows are copied and read as vectors: these stay aligned.

    Of `in_lines`, elements of 32 bits may be read one by one: by 4 threads from rows below each other, 8 neighbours
    each, which are in different banks at a distance of 8 more than 32.
    """
    itemsize = min(DTYPES[d].nbytes for d in copy.op.dtypes)
    vector = max(LEAST_VECTOR, VECTOR_BYTES // itemsize)
    return SketchParam(name, (0, vector, 2 * vector) if in_lines and itemsize == 4 else (0, vector), "pad")
