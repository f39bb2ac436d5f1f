"""Overlapped tiling by blocks of threads: a stage in tiles, the stages that it reads in shared memory for each tile.

    blocks i.0, j.0:  threads i.1, j.1:
      A[tile and larger halo], by all threads; barrier; B[tile and halo], by all threads; barrier
      Y[a thread's points, unrolled] from B

An intermediate value that is in shared memory costs no traffic to global memory; values of halos are computed once for
each tile that reads them. What a thread reads only at its own points is in its registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

import numpy as np

from autosched.ir.closed_forms.program import Program
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr, product
from autosched.ir.size import is_sized
from autosched.ir.stmt import Scope
from autosched.lower.symbolic.domains import infer_domains
from autosched.schedule import ComputeAt, Cooperate, Stage, State, Unroll
from search_spaces.fusion import switch_axes
from search_spaces.gpu import domains
from search_spaces.gpu.thread_binding import (
    LONG_AXIS,
    SMALL_AXIS,
    WARP,
    TileLevels,
    bind_levels,
    last_thread_loop,
    size,
)
from search_spaces.partial_sketch import PartialSketch, SketchContext
from search_spaces.pipelines import tile_axes, tile_producers
from search_spaces.space import SketchParam

TILES = "tiles"  # in notes, before the number of producers in each tile
SHARES = (1, 2, 4)  # all producers are computed in tiles, or the nearest half or quarter of them
WIDTHS = (1, 2, 4)  # adjacent elements that a thread computes of buffers that are computed from others of the block
ROWS = 8  # threads along y and z, beside WARP along x, of the block in whose shared memory producers must fit


def overlapped_tiles(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
    """Return the stage in tiles in which its producers are computed: as many as shared memory has room for, half and a
    quarter of them; the others get kernels of their own. Empty where no producer can be computed in a tile."""
    is_transform = not stage.op.axes or switch_axes(stage)  # whose short axes are unrolled in threads of its own
    producers = [] if is_transform else tile_producers(sketch.state, stage, sketch.done)
    producers = list(takewhile(lambda p: not switch_axes(p), producers))
    made = dict[int, PartialSketch]()
    for share in SHARES:
        for count in range(len(producers) // share, 0, -1):
            tiled = made.get(count) or _in_tiles(sketch, stage, producers[:count], context)
            if tiled is not None:
                made[count] = tiled
                break
    return list(made.values())


def has_tiles(sketch: PartialSketch) -> bool:
    """Whether stages are computed in tiles of others."""
    return any(f":{TILES}" in note for note in sketch.notes)


def _in_tiles(
    sketch: PartialSketch, stage: Stage, producers: list[Stage], context: SketchContext
) -> PartialSketch | None:
    """Return the stage in tiles in which these producers are computed; None where they do not fit into a block."""
    name, levels = stage.name, _levels(stage, producers)
    sketch = bind_levels(sketch, levels)
    loop, width = last_thread_loop(sketch, name), SketchParam(f"{name}.w", WIDTHS, "vector")
    written = {b for p in producers for b in p.op.buffers}
    for producer in producers:
        if _is_own_point(sketch.state, producer, stage):
            sketch = sketch.apply(ComputeAt(producer.name, name, loop, Scope.REGISTER.value))
            sketch = sketch.apply(*(Unroll(producer.name, a.name) for a in producer.op.axes))
            continue
        sketch = sketch.apply(ComputeAt(producer.name, name, loop, Scope.SHARED.value))
        is_inner = producer.op.reads <= written
        sketch = sketch.apply(Cooperate(producer.name, width.name if is_inner else 1))
        sketch = sketch.with_params([width] if is_inner and width not in sketch.params else [])
    sizes = {f"{x.group}.t": WARP if x.dimension == 0 else ROWS for x in levels if x.dimension is not None}
    if not _fits(sketch, stage, sizes, context):
        return None
    return sketch.finish(name, *(p.name for p in producers), note=f"{name}:{TILES}{len(producers)}")


def _levels(stage: Stage, producers: list[Stage]) -> tuple[TileLevels, ...]:
    """Return threads x along the last axis, with strided points; y and z along the axes before it, with adjacent points
    whose neighbours in shared memory are then read once. A thread computes all points along axes along which producers
    do not vary, also along the last one where it is short."""
    name, axes = stage.name, tile_axes(stage, producers, stage.op.axes)
    *others, last = stage.op.axes
    along_x = others[-1] if others and last in axes.inner and size(last) <= SMALL_AXIS else last
    levels, free = list[TileLevels](), [1, 2]
    for axis in reversed(stage.op.axes):
        if axis is along_x:
            levels.append(TileLevels(name, axis, 0, vthread=size(axis) > LONG_AXIS))
        elif axis in axes.inner:
            levels.append(TileLevels(name, axis, is_inner=True))
        elif size(axis) > 1 and free and (axis in axes.tiled or free[0] == 1):
            dimension = free.pop(0)
            most = domains.MOST_TILE if dimension == 1 else domains.MOST_VTHREADS
            levels.append(TileLevels(name, axis, dimension, tile=most))
        else:
            levels.append(TileLevels(name, axis))
    return tuple(reversed(levels))


def _is_own_point(state: State, producer: Stage, stage: Stage) -> bool:
    """Whether `stage` alone reads the producer, and each of its points one value, by its own axes."""
    read = {x.indices for x in stage.op.loads_from(*producer.op.buffers)}
    own = {a.var for a in stage.op.axes}
    alone = [s.name for s in state.consumers(producer)] == [stage.name]
    return alone and len(read) == 1 and all(i in own for i in read.pop())


def _fits(sketch: PartialSketch, stage: Stage, threads: Mapping[str, int], context: SketchContext) -> bool:
    """Whether a block of so many threads (parameter -> number), a point each, has room for what the stage's tile needs
    in shared memory. Legality rejects larger tiles that have not."""
    gpu, inferred, needed = context.target.gpu, infer_domains(sketch.state), list[Expr]()
    for producer in sketch.state.attached(stage.name):
        if producer.scope is Scope.SHARED:
            regions, itemsize = inferred[producer.name].regions, sum(DTYPES[d].nbytes for d in producer.op.dtypes)
            needed.append(product([regions[a.name].extent for a in producer.op.axes]) * itemsize)
    if gpu is None or any(map(is_sized, needed)):
        return False
    row = [max(v for v in p.domain if v <= threads.get(p.name, min(p.domain))) for p in sketch.params]
    total = Program(needed, [p.name for p in sketch.params])(np.array([row], np.int64)).sum() if needed else 0
    return bool(total <= gpu.shared_per_block)
