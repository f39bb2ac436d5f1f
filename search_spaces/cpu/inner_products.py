"""Inner products in tiles: lanes along the reduction, and a vector of partial sums for each output of a register tile.

    parallel a.0 for every axis                                  one task: m tiles of r points an axis
      a.0 of the tile
        accumulators in registers, a vector for each point:  reduction loops, points unrolled, lanes of k
        the lanes of each are added up
      the consumer writes the task's points, in vectors

For operands that are contiguous along the reduction and that few outputs use: y = x W^T of a few rows, a tall matrix by
a skinny one. A packed or transposed copy of such an operand would cost as much for each element as its multiply-adds. A
small operand that is not contiguous along the reduction is transposed once. Small integers are multiplied in packed
words, as they are stored.
"""

from __future__ import annotations

import math

from autosched.ir.stmt import Scope
from autosched.schedule import ComputeAt, Parallel, Reorder, Rfactor, Split, Stage, State, Step, Unroll, Vectorize
from autosched.schedule.stage import StageAxis
from search_spaces.access import Read, buffer_shape, extent, reads_of, reuse_count, transposable_dim
from search_spaces.cpu.domains import points_of_dots, tile_count
from search_spaces.cpu.intrinsics import sums_along, words_along
from search_spaces.cpu.packing import pack_transposed
from search_spaces.fusion import has_condition
from search_spaces.partial_sketch import PartialSketch, SketchContext, fuse_consumer

FEW_USERS = 32  # the most outputs that use an element of the largest operand
MIN_VECTORS = 4  # vectors of the reduction; adding up the lanes takes as long as some multiply-adds
SMALLER = 4  # the least ratio of the largest operand's elements to those of an operand that is transposed


def inner_products(sketch: PartialSketch, stage: Stage, context: SketchContext) -> PartialSketch | None:
    """Return the alternative with lanes along the reduction; None where no operand profits from it."""
    lanes = context.lanes_of(stage)
    reads = reads_of(sketch.state, stage)
    k = _lane_axis(sketch.state, stage, reads, lanes)
    if k is None or stage.op.guards or has_condition(stage):
        return None
    far = {r.load.buffer: r for r in reads if not r.is_unit(k.name)}
    sketch, consumer_name, acc = fuse_consumer(sketch, stage)
    consumer = sketch.state.stage(consumer_name)
    words = words_along(sketch.state, sketch.state.stage(acc), k, context)
    sketch = sketch if words is None else sums_along(sketch.apply(words), sketch.state, context)
    sketch = _split_consumer(sketch.apply(Rfactor(acc, k.name, lanes, "inner")), consumer, context)
    sketch = sketch.apply(ComputeAt(acc, consumer_name, f"{consumer.op.axes[-1].name}.0"))
    sketch = _split_tile(sketch, consumer, acc, f"{k.name}.i")
    for read in far.values():
        dim = transposable_dim(read, stage, k)
        assert dim is not None
        sketch = pack_transposed(sketch, read.load.buffer, f"{acc}.rf", dim, None, context)
    task = f"{consumer.op.axes[-1].name}.0"
    return sketch.finish(consumer_name, acc, f"{acc}.rf", note=f"{stage.name}:dots").with_row_loop(consumer_name, task)


def _lane_axis(state: State, stage: Stage, reads: tuple[Read, ...], lanes: int) -> StageAxis | None:
    """Return the longest reduction axis along which the largest operand is contiguous, if few outputs use it."""

    def size(read: Read) -> int:
        return math.prod(buffer_shape(state, read.load.buffer))

    total = math.prod(map(extent, stage.op.reduce_axes))

    def fits(k: StageAxis) -> bool:
        along = [r for r in reads if r.strides[k.name] == 1]
        whole = extent(k) % lanes == 0  # lanes of other reduction axes' iterations are added up in the same vectors
        vectors = (total if whole else extent(k)) // lanes
        if vectors < MIN_VECTORS or not along:
            return False
        most = max(map(size, along))
        few = min(reuse_count(r, stage) for r in along if size(r) == most) <= FEW_USERS
        far = [r for r in reads if not r.is_unit(k.name)]
        small = all(transposable_dim(r, stage, k) is not None and SMALLER * size(r) <= most for r in far)
        return few and small

    return max(filter(fits, stage.op.reduce_axes), key=extent, default=None)


def _tile(consumer: Stage, n: int) -> str:
    return f"{consumer.name}.{consumer.op.axes[n].name}.r"


def _split_consumer(sketch: PartialSketch, consumer: Stage, context: SketchContext) -> PartialSketch:
    """Split the consumer in parallel tasks, and in vectors of the last axis inside a task."""
    lanes = context.lanes_of(consumer)
    steps: list[Step] = []
    *others, last = consumer.op.axes
    for n, axis in enumerate(others):
        group = f"{consumer.name}.{axis.name}"
        params = tile_count(f"{group}.m", extent(axis), group), points_of_dots(_tile(consumer, n), extent(axis), group)
        sketch = sketch.with_params(params)
        steps.append(Split(consumer.name, axis.name, (params[0].name, params[1].name)))
    count = tile_count(f"{consumer.name}.{last.name}.m", -(-extent(last) // lanes), f"{consumer.name}.{last.name}")
    sketch = sketch.with_params([count, points_of_dots(_tile(consumer, len(others)), extent(last))])
    steps.append(Split(consumer.name, last.name, (count.name, lanes)))
    names = [a.name for a in consumer.op.axes]
    steps.append(Reorder(consumer.name, (*(f"{n}.0" for n in names), *(f"{n}.{i}" for n in names for i in (1, 2)))))
    if consumer.at is None:
        steps.append(Parallel(consumer.name, tuple(f"{n}.0" for n in names)))
    return sketch.apply(*steps, Vectorize(consumer.name, f"{names[-1]}.2"))


def _split_tile(sketch: PartialSketch, consumer: Stage, acc: str, lane: str) -> PartialSketch:
    """Split the task's points in register tiles, and schedule the stage that accumulates them."""
    names = [a.name for a in sketch.state.stage(acc).op.axes]
    steps: list[Step] = [Split(acc, name, (_tile(consumer, n),)) for n, name in enumerate(names)]
    steps.append(Reorder(acc, (*(f"{n}.0" for n in names), *(f"{n}.1" for n in names), lane)))
    steps += [*(Unroll(acc, f"{n}.1") for n in names), Vectorize(acc, lane)]
    sketch = sketch.apply(*steps, ComputeAt(f"{acc}.rf", acc, f"{names[-1]}.0", Scope.REGISTER.value))
    partial = sketch.state.stage(f"{acc}.rf")
    points = [a.name for a in partial.op.axes[:-1]]
    inside = (*(a.name for a in partial.op.reduce_axes), *points, lane)
    return sketch.apply(
        Reorder(partial.name, inside), *(Unroll(partial.name, x) for x in points), Vectorize(partial.name, lane)
    )
