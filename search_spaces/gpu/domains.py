"""Domains of the parameters of GPU sketches. Thread counts are powers of two: a loop never runs beyond its axis."""

from __future__ import annotations

import math

from autosched.ir.dtype import DTYPES
from autosched.ir.instructions.tiles import MOST_CLUSTER, MOST_TURNS
from autosched.schedule import Stage
from search_spaces.access import extent, last_digits
from search_spaces.space import SketchParam

MOST_X = 256  # threads along the contiguous axis
MOST_YZ = 32
MOST_TEAM = 1024  # threads that share a reduction
MOST_ROWS = 8  # of a block
SHORT_ROWS = 2048  # elements; longer rows keep a block busy
MOST_TILE = 8  # adjacent points of a thread along an axis
MOST_VTHREADS = 4
MOST_ROW_TILE = 4  # rows of a thread that computes all columns
MOST_ROW_WEIGHTS = 32  # weights of such a row in registers
MOST_WARPS = 8  # along an axis
MOST_MATRICES = 8  # of a warp along an axis
MOST_STEPS = 4  # instructions along a reduction between two fills of the shared buffers
END_STEP = 64  # points: rows of a warpgroup, or half of its columns
GROUP_COLUMNS = (2, 4, 8, 12, 16, 20, 24, 28, 32)  # units of 8 columns of a warpgroup's instruction
PIPELINE_STEPS = (2, 4, 8)
MOST_CHUNK = 32  # iterations of a reduction that a shared buffer holds
SMALL_REDUCTION = 8  # iterations up to which a reduction is one chunk, or each iteration is one, or all are unrolled
VECTORS = (1, 2, 4, 8, 16)
LEAST_VECTOR = 4  # adjacent elements that a thread may have even where they are more than one access
VECTOR_BYTES = 16


def next_power_of_two(extent: int) -> int:
    """Return the smallest power of two that is not less."""
    return 1 << max(0, extent - 1).bit_length()


def powers(most: int) -> tuple[int, ...]:
    """Return the powers of two up to `most`."""
    return tuple(1 << n for n in range(max(1, most).bit_length()))


def threads(name: str, extent: int, group: str, most: int) -> SketchParam:
    return SketchParam(name, powers(min(most, next_power_of_two(extent))), "thread", group, next_power_of_two(extent))


def vthreads(name: str, extent: int, group: str) -> SketchParam:
    return SketchParam(name, powers(min(MOST_VTHREADS, extent)), "vthread", group, next_power_of_two(extent))


def tile(name: str, extent: int, group: str, most: int = MOST_TILE) -> SketchParam:
    return SketchParam(name, tuple(range(1, min(extent, most) + 1)), "tile", group, next_power_of_two(extent))


def vector(name: str, extent: int, group: str, itemsize: int) -> SketchParam:
    """Adjacent elements of a thread: as many elements of `itemsize` bytes as one access moves."""
    most = min(next_power_of_two(extent), max(LEAST_VECTOR, VECTOR_BYTES // itemsize))
    return SketchParam(name, tuple(v for v in VECTORS if v <= most), "vector", group, next_power_of_two(extent))


def copied_vector(name: str, copy: Stage) -> SketchParam:
    """Elements that a thread copies at once: at most one access, and whole vectors fill a row, or each separately
    stored part of one."""
    itemsize = max(DTYPES[d].nbytes for d in copy.op.dtypes)
    row = extent(copy.op.axes[-1]) if len(copy.op.axes) > 1 else 0
    row = math.gcd(row, *(last_digits(copy, copy.op.axes[-1]) if row else ()))
    return SketchParam(name, tuple(v for v in VECTORS if v * itemsize <= VECTOR_BYTES and row % v == 0), "vector")


def row_vector(name: str, length: int, itemsize: int) -> SketchParam:
    """Adjacent elements of a row of `length` that a thread processes at once: whole vectors fill the row."""
    most = VECTOR_BYTES // itemsize
    return SketchParam(name, tuple(v for v in VECTORS if v <= most and length % v == 0), "vector")


def team(name: str, length: int) -> SketchParam:
    """Threads that share a reduction of `length`: whole warps, no more than twice its length."""
    counts = tuple(t for t in (32, 64, 128, 256, 512, MOST_TEAM) if t <= max(32, next_power_of_two(length)))
    return SketchParam(name, counts, "thread")


def rows(name: str, count: int, length: int, least: int = 1) -> SketchParam:
    """Rows, of `count` rows of `length`, that a block reduces at the same time: `least` or more."""
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
    """Chunks of a reduction that shared buffers hold; copies through registers need no more than two."""
    return SketchParam(name, (1, 2, 3, 4) if asynchronous else (1, 2), "stages", group, next_power_of_two(extent))


def row_weights(name: str, weights: int) -> SketchParam:
    """Weights of a row that a thread computes at a time."""
    return SketchParam(name, powers(min(MOST_ROW_WEIGHTS, next_power_of_two(weights))), "tile")


def warps(name: str, tiles: int, group: str) -> SketchParam:
    """Warps of a block along an axis of `tiles` tiles of matrices."""
    counts = powers(min(MOST_WARPS, next_power_of_two(tiles)))
    return SketchParam(name, counts, "thread", group, next_power_of_two(tiles))


def matrix_tiles(name: str, tiles: int, group: str) -> SketchParam:
    """Adjacent tiles of matrices of a warp."""
    counts = powers(min(MOST_MATRICES, next_power_of_two(tiles)))
    return SketchParam(name, counts, "tile", group, next_power_of_two(tiles))


def matrix_steps(name: str, steps: int) -> SketchParam:
    """Instructions along a reduction between two fills of the shared buffers."""
    return SketchParam(name, powers(min(MOST_STEPS, next_power_of_two(steps))), "tile")


def warpgroups(name: str, tiles: int, group: str) -> SketchParam:
    """Consumer warpgroups of a block, each with a multiple of 64 rows; one more warpgroup loads their tiles."""
    return SketchParam(name, (1, 2) if tiles > 1 else (1,), "thread", group, next_power_of_two(tiles))


def group_tiles(name: str, tiles: int, group: str) -> SketchParam:
    """Adjacent tiles of 64 rows of a warpgroup."""
    return SketchParam(name, (1, 2) if tiles > 1 else (1,), "tile", group, next_power_of_two(tiles))


def group_columns(name: str, units: int, group: str) -> SketchParam:
    """Units of 8 columns of a warpgroup's instruction, up to the first number that covers all columns."""
    enough = min((n for n in GROUP_COLUMNS if n >= units), default=GROUP_COLUMNS[-1])
    return SketchParam(name, tuple(n for n in GROUP_COLUMNS if n <= enough), "tile", group)


def store_parts(name: str, units: int, group: str) -> SketchParam:
    """Parts in which a warpgroup stores its columns one after another: smaller parts leave more shared memory for
    pipelines."""
    return SketchParam(name, (1, 2, 4) if units > GROUP_COLUMNS[0] else (1,), "tile", group)


def pipeline_steps(name: str, steps: int, together: int = 0, most: int = PIPELINE_STEPS[-1]) -> SketchParam:
    """Instructions along a reduction for each pipeline stage, `most` at most: rows of a tile have 32 bytes for each."""
    enough = min((n for n in PIPELINE_STEPS if n >= min(steps, most)), default=PIPELINE_STEPS[-1])
    return SketchParam(name, tuple(n for n in dividing_steps(together) if n <= enough), "tile")


def dividing_steps(together: int) -> tuple[int, ...]:
    """Return the numbers of instructions in which `together` of them can be cut; PIPELINE_STEPS where that is 0. Odd
    numbers have rows of 32 bytes, the only size that divides them."""
    if not together:
        return PIPELINE_STEPS
    return tuple(n for n in range(1, PIPELINE_STEPS[-1] + 1) if together % n == 0 and (n % 2 == 0 or together % 2))


def pipeline_stages(name: str) -> SketchParam:
    """Pipeline stages: tiles of each operand that are being loaded or read."""
    return SketchParam(name, (2, 3, 4, 5, 6, 7, 8), "stages")


def resident(name: str) -> SketchParam:
    """Blocks that are resident on a multiprocessor at a time."""
    return SketchParam(name, (1, 2, 3), "resident")


def part(name: str, length: int, step: int, most: int) -> SketchParam | None:
    """Length of the parts of a reduction in whole steps, for at most `most` parts. None where there is only one."""
    counts = {*range(2, 9), *(n * power for n in (5, 6, 7, 8) for power in powers(most // 5))}
    lengths = {-(-length // (n * step)) * step for n in counts if n <= most}
    chosen = tuple(sorted(n for n in lengths if n < length))
    return SketchParam(name, chosen, "tile") if chosen else None


def kernel_end(name: str, length: int) -> SketchParam:
    """Position along an axis where one kernel ends and the next begins: in its second half, in units of `END_STEP`."""
    return SketchParam(name, tuple(range(-(-length // (2 * END_STEP)) * END_STEP, length, END_STEP)), "end")


def raster(name: str) -> SketchParam:
    """Rows of blocks that are started together (raster order)."""
    return SketchParam(name, (1, 2, 4, 8, 16), "raster")


def cluster(name: str) -> SketchParam:
    """Blocks of a cluster, adjacent along an axis, that load tiles for each other."""
    return SketchParam(name, (1, MOST_CLUSTER), "cluster")


def turns(name: str) -> SketchParam:
    """Tiles of one persistent block, by a warpgroup each."""
    return SketchParam(name, (1, MOST_TURNS), "turns")


def pad(name: str) -> SketchParam:
    """Padding elements between the rows of a shared buffer, whose row length is most often a multiple of the 32 banks.

    A warp that fills a transposed buffer writes 32 / chunk columns of `chunk` rows: 32 / chunk elements between the
    rows put them all in different banks. Permuting whole vectors of a row instead (exclusive or with the row's number)
    saves the padding, but has the bank conflicts of a padding of one vector, which is not the best for most chunks.
    """
    return SketchParam(name, (0, 1, 2, 4, 8), "pad")


def vector_pad(name: str, copy: Stage, in_lines: bool = False) -> SketchParam:
    """As `pad`, where rows are copied and read as aligned vectors.

    `in_lines`: elements of 32 bits may be read one by one, 8 neighbours each by 4 threads of consecutive rows; these
    are in different banks if rows are a multiple of 32 plus 8 elements apart.
    """
    itemsize = min(DTYPES[d].nbytes for d in copy.op.dtypes)
    vector = max(LEAST_VECTOR, VECTOR_BYTES // itemsize)
    return SketchParam(name, (0, vector, 2 * vector) if in_lines and itemsize == 4 else (0, vector), "pad")
