"""Blocked reductions: panels of both operands stay in the caches while K runs in blocks (Goto and van de Geijn, 2008).

    parallel a.0 for every axis                                   one task: a tile of m x r points an axis
      k.o over blocks of K                                        <- panels of both operands are packed here
        v.0, a.0 of the tile
          accumulators in registers over the block:  k.i, register tile
          added to the task's tile
      the consumer writes the tile

Blocking is Rfactor over the outer part of K, with the partial sums in registers.

Skinny products have few rows. For them K runs in short blocks. A long operand that is read once or a few times then
streams in through a few streams, each along its memory, while the sums stay in the cache. In whole columns each step of
K would be on another page.

With more rows, each register tile reads the block again. Rows whose distance is a power of two conflict in a few sets
of the first level cache; a panel of the block, packed for each tile of columns, stays in it. On Zen 3 a product of
32 x 1024 x 2048 takes 5.4 million cycles with panels and 8.3 without; one of 8 rows 2.1 and 1.6.

With panels, the loops over a window's taps are outside of the blocks, so that weights stream in once in memory order.
A strip of columns of all taps together is some hundred lines of a few sets of the second level cache, in which
prefetched lines evict each other. On Zen 3 the same tiles are 1.19 and 1.35 times as fast with taps outside for
convolutions of 5 x 5 and 7 x 7 pixels with 512 channels; the best tiles of each variant 1.09 and 1.08 times.

Weights are packed in panels at load time and stream in order whatever the tiles are, so several rows of them have no
skinny alternative: on Sapphire Rapids one of 32 x 1024 x 1024 is 1.37 times as fast in panels, a 3x3 convolution of
7 x 7 x 512 twice.

A sum of columns reads each element once. If the data exceed the second level cache, it always streams in by rows: 24 MB
of rows of 3 KB take a third of the time of strips of columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from autosched.ir.dtype import DTYPES
from autosched.ir.stmt import Scope
from autosched.schedule import ComputeAt, Pack, Parallel, Reorder, Rfactor, Split, Stage, Step, Unroll, Vectorize
from autosched.schedule.stage import StageAxis
from search_spaces.access import Read, buffer_shape, column_dim, extent, has_reuse, panel_dim, reads_of, row_tiles
from search_spaces.cpu.accumulate import unroll_name, unrolled_accumulator
from search_spaces.cpu.domains import (
    few_streams,
    panel_block,
    reduction_block,
    register_tile,
    short_block,
    tile_count,
    vector_width,
)
from search_spaces.cpu.packing import pack_panels, pack_rows
from search_spaces.cpu.prefetch import prefetch_sums
from search_spaces.partial_sketch import PartialSketch, SketchContext, fuse_consumer
from search_spaces.space import SketchParam

MIN_REDUCTION = 256  # iterations; shorter reductions need no blocks
MIN_CHANNELS = 64  # least extent of a window's last axis to be cut in blocks where the whole window is MIN_REDUCTION
LONG_ROW = 8192  # bytes; contiguous parts of a row of this length are read as fast as a whole row
FEW_ROWS = 64  # the most rows that use an element of the vectorised operand of a skinny product
ROWS_TO_COPY = 16  # the least rows that use an element for packing a panel of the block to pay


def blocked_reduction(
    sketch: PartialSketch, stage: Stage, v: StageAxis, context: SketchContext
) -> PartialSketch | None:
    """Return the blocked alternative of a tiled reduction; None where K is short or no operand can be packed."""
    k = stage.op.reduce_axes[-1]
    reads = reads_of(sketch.state, stage)
    panels = {r.load.buffer: panel for r in reads if (panel := _panel(r, stage, v)) is not None}
    if extent(k) < MIN_REDUCTION or not panels or stage.op.guards:
        return None
    sketch, tiles, acc = _blocks(sketch, stage, v, context, reduction_block)
    partial = f"{acc}.rf"
    for read in {r.load.buffer: r for r in reads if r.load.buffer in panels}.values():
        axis, dim = panels[read.load.buffer]
        at = None if read.load.buffer in sketch.state.constants else (acc, f"{k.name}.o")
        width, tiled = tiles.width(stage.op.axes.index(axis)), row_tiles(read, stage, v)
        if tiled is not None and tiled.axis is axis:
            widths = width, unroll_name(partial, f"{k.name}.i")
            sketch = pack_rows(sketch, read.load.buffer, partial, tiled.dims, widths, at)
        else:
            sketch = pack_panels(sketch, read.load.buffer, partial, dim, width, at)
    sketch = prefetch_sums(sketch, sketch.state.stage(partial), context)
    return tiles.finish(sketch, acc, partial, f"{stage.name}:v{tiles.v}-blocked")


def skinny_reductions(sketch: PartialSketch, stage: Stage, v: StageAxis, context: SketchContext) -> list[PartialSketch]:
    """Return the alternatives for skinny products; none where rows are many or not contiguous, K is short, or several
    rows use weights."""
    k = stage.op.reduce_axes[-1]
    wide = [r for r in reads_of(sketch.state, stage) if r.moves(v.name)]
    users = [math.prod(extent(a) for a in stage.op.axes if not r.moves(a.name)) for r in wide]
    far = [r for r in wide if r.strides[v.name] == 1 and (r.strides[k.name] or 0) >= extent(v)]
    if not _is_long(stage) or max(users, default=0) > FEW_ROWS or len(far) < len(wide) or stage.op.guards:
        return []
    if has_reuse(stage, reads_of(sketch.state, stage)) and {r.load.buffer for r in wide} <= sketch.state.constants:
        return []
    in_rows = is_streaming_reduction(sketch, stage, v, context)
    dims = {r.load.buffer: d for r in wide if (d := column_dim(r, stage, v)) is not None}
    pays = min(users, default=0) >= ROWS_TO_COPY and len(dims) == len(wide) and not dims.keys() & sketch.state.constants
    alternatives = [_skinny(sketch, stage, v, context, few_streams if in_rows else short_block, in_rows, {})]
    return [*alternatives, _skinny(sketch, stage, v, context, panel_block, in_rows, dims)] if pays else alternatives


def _skinny(
    sketch: PartialSketch,
    stage: Stage,
    v: StageAxis,
    context: SketchContext,
    domain: Callable[[str, int], SketchParam],
    in_rows: bool,
    panels: dict[str, int],
) -> PartialSketch:
    """Run K in short blocks. `panels`: the buffers to copy for each tile of columns, with the dimension of the panels.

    With panels, the loops over a window's taps are the outermost ones.
    """
    taps = tuple(a.name for a in stage.op.reduce_axes[:-1]) if panels else ()
    sketch, tiles, acc = _blocks(sketch, stage, v, context, domain, in_rows, taps)
    columns = f"{sketch.state.stage(acc).op.axes[tiles.v].name}.0"
    for name, dim in panels.items():
        sketch = pack_panels(sketch, name, f"{acc}.rf", dim, tiles.width(tiles.v), (acc, columns))
    note = "-".join([f"{stage.name}:v{tiles.v}-thin", *(f"{name}@panel" for name in panels)])
    return tiles.finish(sketch, acc, f"{acc}.rf", note)


def _is_long(stage: Stage) -> bool:
    """Whether the reduction is long enough for blocks, a window's taps counted."""
    *taps, k = (extent(a) for a in stage.op.reduce_axes)
    return k >= MIN_REDUCTION or (k >= MIN_CHANNELS and k * math.prod(taps) >= MIN_REDUCTION)


def is_streaming_reduction(sketch: PartialSketch, stage: Stage, v: StageAxis, context: SketchContext) -> bool:
    """Whether the stage reads each element once, in rows along `v`, and exceeds the second level cache.

    Rows must be longer than a register tile.
    """
    reads, lanes = reads_of(sketch.state, stage), context.lanes_of(stage)
    n_bytes = sum(math.prod(buffer_shape(sketch.state, r.load.buffer)) * DTYPES[r.load.dtype].nbytes for r in reads)
    is_wide = extent(v) > vector_width("", extent(v), lanes, "").domain[-1]
    return is_wide and not has_reuse(stage, reads) and n_bytes > context.target.l2_bytes


def _blocks(
    sketch: PartialSketch,
    stage: Stage,
    v: StageAxis,
    context: SketchContext,
    domain: Callable[[str, int], SketchParam],
    in_rows: bool = False,
    taps: tuple[str, ...] = (),
) -> tuple[PartialSketch, _Tiles, str]:
    """Split K in blocks of `domain` around a task's register tiles; return the sketch, tiles and accumulating stage.

    Nothing is packed yet. `in_rows`: tasks are whole rows along `v`, or long parts of them.
    """
    k = stage.op.reduce_axes[-1]
    sketch, consumer, acc = fuse_consumer(sketch, stage)
    partial = f"{acc}.rf"
    block = domain(f"{acc}.{k.name}.b", extent(k))
    sketch = sketch.with_params([block]).apply(Rfactor(acc, k.name, block.name, "outer", taps))
    wide = [r for r in reads_of(sketch.state, stage) if r.moves(v.name)]
    held = tuple(a.name for a in stage.op.axes if not any(r.moves(a.name) for r in wide))
    tiles = _Tiles(sketch.state.stage(consumer), stage.op.axes.index(v), context, in_rows, held)
    sketch = tiles.split_consumer(sketch)
    sketch = sketch.apply(ComputeAt(acc, consumer, tiles.task_loop))
    sketch = tiles.split_tile(sketch, acc, (*taps, f"{k.name}.o"))
    middle = [x.name for x in sketch.state.stage(acc).loops if x.name.endswith(".0")][-1]
    sketch = sketch.apply(ComputeAt(partial, acc, middle, Scope.REGISTER.value))
    v_name = sketch.state.stage(acc).op.axes[tiles.v].name
    return unrolled_accumulator(sketch, sketch.state.stage(partial), v_name), tiles, acc


def _panel(read: Read, stage: Stage, v: StageAxis) -> tuple[StageAxis, int] | None:
    """Return axis and dimension of the operand's panels: `v` if the operand moves along it, else an axis of rows."""
    moving = [a for a in stage.op.axes if read.moves(a.name)]
    if v in moving:
        dim = panel_dim(read, stage, v)
        return None if dim is None else (v, dim)
    plain = [(a, d) for a in moving if (d := panel_dim(read, stage, a)) is not None]
    return plain[-1] if plain and len(plain) == len(moving) else None


class _Tiles:
    """The splits of the consumer: a.0 over tasks, a.1 and a.2 inside. The tile in memory has the same register tiles.

    `held`: axes along which the vectorised operand has stride 0. Consecutive register tiles along them find it in the
    first level cache.
    """

    def __init__(
        self, consumer: Stage, v: int, context: SketchContext, in_rows: bool = False, held: tuple[str, ...] = ()
    ) -> None:
        self.consumer = consumer
        self.held = held
        self.in_rows = in_rows
        self.v = v
        self.context = context
        self.task_loop = f"{consumer.op.axes[-1].name}.0"

    def width(self, n: int) -> str:
        return f"{self.consumer.name}.{self.consumer.op.axes[n].name}.r"

    def finish(self, sketch: PartialSketch, acc: str, partial: str, note: str) -> PartialSketch:
        return sketch.finish(self.consumer.name, acc, partial, note=note).with_row_loop(
            self.consumer.name, self.task_loop
        )

    def split_consumer(self, sketch: PartialSketch) -> PartialSketch:
        consumer = self.consumer
        itemsize = max(DTYPES[d].nbytes for d in consumer.op.dtypes)
        lanes = self.context.lanes(itemsize)
        steps: list[Step] = []
        for n, axis in enumerate(consumer.op.axes):
            group = f"{consumer.name}.{axis.name}"
            count = tile_count(f"{group}.m", extent(axis), group)
            tile = register_tile(self.width(n), extent(axis), group)
            if n == self.v:
                tile = vector_width(self.width(n), extent(axis), lanes, group)
                count, tile = self._long(count, tile, itemsize) if self.in_rows else (count, tile)
            sketch = sketch.with_params([count, tile])
            steps.append(Split(consumer.name, axis.name, (count.name, tile.name)))
        names = [a.name for a in consumer.op.axes]
        v = names[self.v]
        others = [n for n in names if n != v]
        inner = [f"{n}.{level}" for n in (*others, v) for level in (1, 2)]
        steps.append(Reorder(consumer.name, (*(f"{n}.0" for n in names), *inner)))
        if consumer.at is None:
            steps.append(Parallel(consumer.name, tuple(f"{n}.0" for n in names)))
        steps.append(Vectorize(consumer.name, f"{v}.2"))
        return sketch.apply(*steps)

    def _long(self, count: SketchParam, tile: SketchParam, itemsize: int) -> tuple[SketchParam, SketchParam]:
        """Return the widest tiles, and enough of them for a thread's share of a row or for `LONG_ROW` bytes."""
        widths = tile.domain[len(tile.domain) // 2 :]
        share = -(-tile.extent // self.context.threads)
        least = min(-(-share // widths[-1]), -(-LONG_ROW // (widths[-1] * itemsize)))
        counts = tuple(n for n in count.domain if n >= least)
        return replace(count, domain=counts or count.domain[-1:]), replace(tile, domain=widths)

    def split_tile(self, sketch: PartialSketch, acc: str, block_loops: tuple[str, ...]) -> PartialSketch:
        """Split the task's tile in memory: loops over blocks of K outside, then register tiles."""
        names = [a.name for a in sketch.state.stage(acc).op.axes]
        v = names[self.v]
        others = [n for n in names if n != v]
        steps: list[Step] = [Split(acc, n, (self.width(i),)) for i, n in enumerate(names)]
        outer = [f"{n}.0" for n in (v, *sorted(others, key=lambda n: n in self.held))]
        steps.append(Reorder(acc, (*block_loops, *outer, *(f"{n}.1" for n in others), f"{v}.1")))
        steps += [Unroll(acc, f"{n}.1") for n in others]
        steps.append(Vectorize(acc, f"{v}.1"))
        if self.v != len(names) - 1:
            order = [n for n in range(len(names)) if n != self.v]
            steps.append(Pack(acc, (*order, self.v)))
        return sketch.apply(*steps)
