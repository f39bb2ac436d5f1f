"""Thread binding: loops of a root stage as blocks, virtual threads, threads and tiles of a thread.

An axis is split into blocks, virtual threads (strided points of a thread), threads, and a tile of adjacent points:

    for blocks: for threads: unrolled virtual threads of every axis: unrolled tiles of every axis
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.expr import Const
from autosched.schedule import Bind, Fuse, Reorder, Split, Step, Unroll
from autosched.schedule.stage import StageAxis
from search_spaces.gpu import domains
from search_spaces.partial_sketch import PartialSketch
from search_spaces.space import SketchParam

WARP = 32  # threads of a warp
SMALL_AXIS = 4  # extent up to which an axis has no threads
LONG_AXIS = 16  # extent above which an axis has virtual threads
MOST_TILES = (domains.MOST_TILE, domains.MOST_TILE, 4, 2)  # for the axes of a tiled reduction, from the last one
MOST_BLOCKS_YZ = 65535  # CUDA C++ Programming Guide, table of technical specifications
PLACES = "xyz"


def size(axis: StageAxis) -> int:
    """Return the extent; a large number where it depends on parameters."""
    return int(axis.extent.value) if isinstance(axis.extent, Const) else 1 << 30


@dataclass(frozen=True)
class TileLevels:
    """The levels of one axis; `dimension`: its thread index (0 is x), or None if it has no threads. A thread goes
    through all of an axis that `is_inner`."""

    stage: str
    axis: StageAxis
    dimension: int | None = None
    vthread: bool = False
    tile: int = 0  # the most points of a tile; 0 for no tile
    is_inner: bool = False

    @property
    def group(self) -> str:
        return f"{self.stage}.{self.axis.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the letters of the inner levels, outermost first."""
        return tuple("v" * self.vthread + "t" * (self.dimension is not None) + "s" * (self.tile > 0))

    @property
    def block_loop(self) -> str:
        return f"{self.axis.name}.0" if self.names else self.axis.name

    def loop(self, letter: str) -> str:
        return f"{self.axis.name}.{self.names.index(letter) + 1}"

    def params(self) -> list[SketchParam]:
        extent = size(self.axis)
        most = domains.MOST_X if self.dimension == 0 else domains.MOST_YZ
        result: list[SketchParam] = []
        if self.vthread:
            result.append(domains.vthreads(f"{self.group}.v", extent, self.group))
        if self.dimension is not None:
            result.append(domains.threads(f"{self.group}.t", extent, self.group, most))
        if self.tile:
            result.append(domains.tile(f"{self.group}.s", extent, self.group, self.tile))
        return result


def tiled_levels(
    stage: str, axes: tuple[StageAxis, ...], batch: frozenset[str], uniform: frozenset[str]
) -> tuple[TileLevels, ...]:
    """Return the levels for a reduction with reuse: tiles along every axis but those in `batch`, which share no data.

    Axes in `batch` have threads where the axes inside are too short for a warp, unless all threads of a block must be
    at the same point (`uniform`).

    The last axis, contiguous in memory, is thread dimension x; the longer of the others are y and z. The more axes are
    tiled, the smaller the tiles of the outer ones: a thread's points are the product, and must fit into registers.
    """
    levels: list[TileLevels] = []
    free = [1, 2]
    tiles = list(MOST_TILES)
    inside = 1  # adjacent points that threads may have
    for n, axis in enumerate(reversed(axes)):
        extent = size(axis)
        if n > 0 and (axis.name in batch or extent == 1):
            is_short = free and extent > 1 and inside < WARP and axis.name not in uniform
            levels.append(TileLevels(stage, axis, free.pop(0) if is_short else None))
            inside *= extent
            continue
        inside *= extent
        most = (tiles.pop(0) if len(tiles) > 1 else tiles[0]) if extent > 1 else 0
        if n == 0:
            levels.append(TileLevels(stage, axis, 0, extent > LONG_AXIS, most))
        elif extent <= SMALL_AXIS or not free:
            levels.append(TileLevels(stage, axis, tile=most))
        else:
            levels.append(TileLevels(stage, axis, free.pop(0), extent > LONG_AXIS, most))
    return tuple(reversed(levels))


def plain_levels(stage: str, axes: tuple[StageAxis, ...]) -> tuple[TileLevels, ...]:
    """Return the levels without reuse: a thread has one point, or a few, strided along x and adjacent along y."""
    levels: list[TileLevels] = []
    for n, axis in enumerate(reversed(axes)):
        extent = size(axis)
        if n == 0:
            levels.append(TileLevels(stage, axis, 0, vthread=extent > LONG_AXIS))
        elif n == 1 and extent > 1:
            levels.append(TileLevels(stage, axis, 1, tile=domains.MOST_TILE))
        else:
            levels.append(TileLevels(stage, axis))
    return tuple(reversed(levels))


def bind_levels(sketch: PartialSketch, levels: tuple[TileLevels, ...]) -> PartialSketch:
    """Split, order and bind the loops of an unscheduled root stage; unrolled loops come last."""
    stage = levels[0].stage
    steps: list[Step] = []
    for level in levels:
        if level.names:
            sketch = sketch.with_params(level.params())
            steps.append(Split(stage, level.axis.name, tuple(f"{level.group}.{n}" for n in level.names)))
    outer, whole = [x for x in levels if not x.is_inner], [x.axis for x in levels if x.is_inner]
    threads = [x.loop("t") for x in sorted(levels, key=lambda x: -(x.dimension or 0)) if x.dimension is not None]
    inner = [x.loop(letter) for letter in "vs" for x in levels if letter in x.names]
    blocks = [x.block_loop for x in outer]
    steps.append(Reorder(stage, (*blocks, *threads, *(a.name for a in whole), *inner)))
    steps += bind_blocks(stage, blocks, [size(x.axis) for x in outer])
    steps += bind_threads(stage, threads)
    steps += [Unroll(stage, name) for name in (*(a.name for a in whole if size(a) <= SMALL_AXIS), *inner)]
    return sketch.apply(*steps)


def last_thread_loop(sketch: PartialSketch, stage: str) -> str:
    return [x.name for x in sketch.state.stage(stage).loops if x.kind.value.startswith("threadIdx")][-1]


def bind_blocks(stage: str, loops: list[str], extents: list[int]) -> list[Step]:
    """Bind the outermost loops to the grid, the last one to x; fused where too many, or too long for y and z."""
    steps: list[Step] = []
    points = 1
    for extent in extents[:-1]:
        points *= extent
    if points > MOST_BLOCKS_YZ:
        steps, loops = [Fuse(stage, tuple(loops))], ["@".join(loops)]
    elif len(loops) > len(PLACES):
        outer = loops[: 1 - len(PLACES)]
        steps, loops = [Fuse(stage, tuple(outer))], ["@".join(outer), *loops[len(outer) :]]
    return steps + _bind_each(stage, loops, "blockIdx")


def bind_threads(stage: str, loops: list[str]) -> list[Step]:
    """Bind adjacent loops to the threads of a block, the last one to x."""
    return _bind_each(stage, loops, "threadIdx")


def _bind_each(stage: str, loops: list[str], index: str) -> list[Step]:
    dimensions = PLACES[: len(loops)][::-1]
    return [Bind(stage, x, f"{index}.{dimension}") for x, dimension in zip(loops, dimensions, strict=True)]
