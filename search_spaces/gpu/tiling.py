"""Multi-level tiling for blocks of threads (Ansor's SSSRRSRS with R4 and R5 in one rule).

    blocks a.0:  threads of up to three dimensions:
      accumulators in registers
        r.0                                            <- operands are copied to shared memory here, or ahead
          r.1:  r.2 unrolled:  a thread's points, unrolled: virtual threads times tile
      the consumer (the fused one, or the copy out) writes the points

Alternatives: which operands go through shared memory, whether what makes them is computed in that copy, and whether
the operand that is contiguous along the reduction is stored transposed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from autosched.ir.dtype import DTYPES
from autosched.ir.stmt import ForKind, Scope
from autosched.ir.visit import free_vars
from autosched.schedule import ComputeAt, ComputeInline, Raster, Reorder, Split, Stage, State, Step, Unroll
from autosched.schedule.stage import StageAxis
from search_spaces.access import Read, buffer_shape, has_reuse, reads_of
from search_spaces.gpu import domains
from search_spaces.gpu.dots import in_dots
from search_spaces.gpu.shared import (
    copy_to_shared,
    pipeline,
    private_producer,
    private_producers,
    reused_operands,
    transposed_dimension,
)
from search_spaces.gpu.thread_binding import SMALL_AXIS, bind_levels, last_thread_loop, plain_levels, size, tiled_levels
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer

MOST_DOTS = 4  # alternatives with a dot-product instruction


@dataclass(frozen=True)
class Plan:
    """One alternative of a tiled reduction.

    `shared`: the buffers that are copied to shared memory. `fold`: whether the stages that compute operands are inlined
    into these copies. `dots`: whether a dot-product instruction adds up products. `transposed`: buffers that are stored
    transposed, with their innermost dimension.
    """

    shared: tuple[str, ...] = ()
    fold: bool = True
    dots: bool = False
    transposed: tuple[tuple[str, int], ...] = ()

    @property
    def note(self) -> str:
        words = [f"{b}@shared{'.T' * (b in dict(self.transposed))}" for b in self.shared] or ["direct"]
        return "-".join([*words, *["unfolded"] * (not self.fold), *["dots"] * self.dots])


class MultiLevelTiling:
    """Reductions whose operands are read for several points."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return can_tile(sketch.state, stage)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        return tiled_alternatives(sketch, stage, context)


def can_tile(state: State, stage: Stage) -> bool:
    """Whether the stage is a reduction whose operands are read for several points."""
    return stage.op.reducer is not None and has_reuse(stage, reads_of(state, stage))


def tiled_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
    """Return the reduction in tiles, for each plan. Beside dot-product instructions one plan remains for shapes where
    these do not pay."""
    every: list[Alternative] = [partial(tile_reduction, sketch, stage, p, context) for p in plans(sketch, stage)]
    dots = in_dots(sketch, stage)
    if dots is None:
        return every
    added = dots.state.stage(stage.name)
    chosen = plans(dots, added)[:MOST_DOTS]
    return [*(partial(tile_reduction, dots, added, replace(plan, dots=True), context) for plan in chosen), every[0]]


def plans(sketch: PartialSketch, stage: Stage) -> list[Plan]:
    reads = reads_of(sketch.state, stage)
    shared = reused_operands(stage, reads)
    batch = batch_axes(stage, reads)
    dims = {b: transposed_dimension(stage, [r for r in reads if r.load.buffer == b], batch) for b in shared}
    along_k = tuple((b, dim) for b, dim in dims.items() if dim is not None)
    fed = any(private_producer(sketch, stage, r.load.buffer) is not None for r in reads)
    result: list[Plan] = []
    if shared:
        result.append(Plan(shared))
        if along_k:
            result.append(Plan(shared, transposed=along_k))
        if fed:
            result.append(Plan(shared, fold=False))
    if len(shared) > 1:
        result += [Plan((b,)) for b in shared]
    return [*result, Plan()]


def batch_axes(stage: Stage, reads: tuple[Read, ...]) -> frozenset[str]:
    """Return the output axes along which every read moves."""
    return frozenset(a.name for a in stage.op.axes if all(r.moves(a.name) for r in reads))


def tile_reduction(sketch: PartialSketch, stage: Stage, plan: Plan, context: SketchContext) -> PartialSketch:
    reads = reads_of(sketch.state, stage)
    batch = batch_axes(stage, reads)
    if not plan.shared and plan.fold:
        sketch = _fold_all(sketch, stage, reads)
    sketch, consumer, acc = fuse_consumer(sketch, stage)
    batch, uniform = (_on_consumer(sketch, consumer, stage, axes) for axes in (batch, _ends(stage)))
    sketch = bind_levels(sketch, tiled_levels(consumer, sketch.state.stage(consumer).op.axes, batch, uniform))
    if is_large(sketch.state, sketch.state.stage(acc), context):
        sketch = rastered(sketch, consumer)
    sketch = sketch.apply(ComputeAt(acc, consumer, last_thread_loop(sketch, consumer), Scope.REGISTER.value))
    sketch, loop = accumulate(sketch, sketch.state.stage(acc), chunks=bool(plan.shared))
    for buffer in plan.shared:
        folded = private_producers(sketch, sketch.state.stage(acc), buffer) if plan.fold else []
        sketch = copy_to_shared(sketch, buffer, acc, loop, folded, dict(plan.transposed).get(buffer))
    if plan.shared:
        sketch = pipeline(sketch, acc, loop, main_axis(sketch.state.stage(acc)), context.target)
    if plan.shared and plan.fold:
        sketch = _fold_all(sketch, sketch.state.stage(acc), reads)
    return sketch.finish(consumer, acc, note=f"{stage.name}:{plan.note}")


def is_large(state: State, stage: Stage, context: SketchContext) -> bool:
    """Whether the reads and writes of the reduction may exceed the cache that all blocks share."""
    gpu = context.target.gpu
    read = sum(math.prod(buffer_shape(state, x.buffer)) * DTYPES[x.dtype].nbytes for x in stage.op.loads)
    written = math.prod(map(size, stage.op.axes)) * max(DTYPES[d].nbytes for d in stage.op.dtypes)
    return gpu is not None and 2 * (read + written) > gpu.l2_bytes


def rastered(sketch: PartialSketch, consumer: str) -> PartialSketch:
    """Make the raster order of the blocks a parameter, where they are in rows and columns."""
    kinds = {x.kind for x in sketch.state.stage(consumer).loops}
    if not {ForKind.BLOCK_X, ForKind.BLOCK_Y} <= kinds:
        return sketch
    rows = domains.raster(f"{consumer}.raster")
    return sketch.with_params([rows]).apply(Raster(consumer, rows.name))


def _ends(stage: Stage) -> frozenset[str]:
    """Return the axes that the reduction's bounds depend on: threads at different points would diverge at barriers."""
    mentioned = {v for form, _ in stage.op.guards for v in free_vars(form)}
    return frozenset(a.name for a in stage.op.axes if a.var in mentioned)


def _on_consumer(sketch: PartialSketch, consumer: str, stage: Stage, axes: frozenset[str]) -> frozenset[str]:
    """Return the consumer's names of axes of the stage."""
    pairs = zip(stage.op.axes, sketch.state.stage(consumer).op.axes, strict=True)
    return frozenset(b.name for a, b in pairs if a.name in axes)


def _fold_all(sketch: PartialSketch, stage: Stage, reads: tuple[Read, ...]) -> PartialSketch:
    """Inline the elementwise stages that compute operands."""
    for buffer in dict.fromkeys(r.load.buffer for r in reads):
        producer = private_producer(sketch, stage, buffer)
        if producer is not None:
            sketch = sketch.apply(ComputeInline(producer.name))
    return sketch


def reduce_by_thread(sketch: PartialSketch, stage: Stage, note: str = "") -> PartialSketch:
    """Schedule one thread for each point, or for a few of them; the reduction runs in the thread."""
    sketch, consumer, acc = fuse_consumer(sketch, stage)
    sketch = bind_levels(sketch, plain_levels(consumer, sketch.state.stage(consumer).op.axes))
    sketch = sketch.apply(ComputeAt(acc, consumer, last_thread_loop(sketch, consumer), Scope.REGISTER.value))
    sketch, _ = accumulate(sketch, sketch.state.stage(acc), chunks=False)
    return sketch.finish(consumer, acc, note=note)


def accumulate(sketch: PartialSketch, acc: Stage, chunks: bool) -> tuple[PartialSketch, str]:
    """Order reduction loops outside, then the thread's points unrolled; return the innermost loop over chunks too.

    `chunks`: every reduction axis is cut in chunks, and the loops over them come first.
    """
    main = main_axis(acc)
    outer: list[str] = []
    inner: list[str] = []
    unrolled: list[str] = []
    steps: list[Step] = []
    for axis in acc.op.reduce_axes:
        group = f"{acc.name}.{axis.name}"
        params = [domains.chunk(f"{group}.c", size(axis), group)] if chunks else []
        if axis is main:
            params.append(domains.unroll(f"{group}.u", size(axis), group))
        if params:
            steps.append(Split(acc.name, axis.name, tuple(p.name for p in params)))
            sketch = sketch.with_params(params)
        levels = [f"{axis.name}.{n}" for n in range(len(params) + 1)] if params else [axis.name]
        outer.append(levels.pop(0))
        if axis is main:
            unrolled.append(levels.pop())
        inner += levels
    points = [a.name for a in acc.op.axes]
    steps.append(Reorder(acc.name, (*outer, *inner, *unrolled, *points)))
    steps += [Unroll(acc.name, x) for x in (*unrolled, *points)]
    return sketch.apply(*steps), outer[-1]


def main_axis(acc: Stage) -> StageAxis:
    """Return the reduction axis that is unrolled: the last one that is not short, or the last of all."""
    axes = acc.op.reduce_axes
    return next((a for a in reversed(axes) if size(a) > SMALL_AXIS), axes[-1])
