"""Products of matrices by whole warps, on GPUs with tensor cores (`autosched/ir/instructions/matrices.py`).

    blocks m.0, n.0:  warps m.1 by n.1 (z):  lanes of a warp, 8 along m (y) by 4 along n (x)
      accumulators in registers: m.2 by n.2 tiles of 16 by 8, of which a thread has 2 by 2 points each
        k.0                                            <- both operands are copied to shared memory here, or ahead
          k.1 unrolled:  the warp's tiles times 16 of k, one operation
      the consumer (the fused one, or the copy out) writes the points

What is asked is whether a reduction is a sum of products of two operands of 16 or 8 bits, each with axes of its own,
and all of the reduction's in common. Where these are more than a row, a column and k, as in a convolution, they become
so (`autosched/schedule/steps/matricize.py`), and the copies gather what lies in windows, zeros of a border with it.
Either may lie along k or across it; shared copies of 8 bits lie along k, and the elements of windows are neighbours
along channels alone (`channels.py`). Tiles that reach beyond an axis are multiplied as well: shared copies are zero
there, and what is outside is not written.

A long reduction with few tiles is offered in parts as well, each in blocks of its own, which another kernel adds up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from autosched.ir.expr import Load
from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, NEIGHBOURS, MatrixIntrinsic, matrix_operands
from autosched.ir.stmt import Scope
from autosched.schedule import ComputeAt, Fuse, Matricize, Mma, Reorder, Split, Stage, Step, Unroll, windows
from autosched.schedule.steps.matrices import ProductAxes, ends_with, product_axes
from search_spaces.access import reads_of
from search_spaces.fusion import fused_consumer
from search_spaces.gpu import domains
from search_spaces.gpu.channel_packing import with_channels_last
from search_spaces.gpu.rows import can_split_tiles, parts_of_tiles, split_reduction, split_tiled_alternatives
from search_spaces.gpu.shared import copy_to_shared, pipeline, private_producer, private_producers
from search_spaces.gpu.thread_binding import bind_blocks, bind_threads, last_thread_loop, size
from search_spaces.gpu.tiling import is_large, rastered, tiled_alternatives
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer, noted

ROWS = HALVES * DOWN  # of an instruction
LEAST_SHARE = 8  # of the points of an instruction's tile, one in so many has to exist


class MatrixTiling:
    """Sums of products that warps can do; the tiles of `MultiLevelTiling`, where a thread is for itself, come after."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return in_matrices(sketch, stage, context) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        return matrix_alternatives(sketch, stage, context)


@dataclass(frozen=True)
class Matrices:
    """A sketch in which the stage `name` is a product of two matrices that warps can do; `gathers`: the stages that
    bring windows of an operand into a matrix, for it alone."""

    sketch: PartialSketch
    name: str
    row: MatrixIntrinsic
    product: ProductAxes
    gathers: frozenset[str] = frozenset()

    @property
    def stage(self) -> Stage:
        return self.sketch.state.stage(self.name)

    @property
    def steps(self) -> int:
        """Instructions along k."""
        return -(-size(self.product.depth) // self.row.k)

    def makers(self, load: Load, fold: bool) -> list[Stage]:
        """The stages that are computed where an operand is copied, last ones first: what gathers it, and with `fold`
        what makes its elements."""
        first = [x for x in self.sketch.state.stages if x.name in self.gathers and load.buffer in x.op.buffers]
        reader, read = (first[0], first[0].op.loads[0].buffer) if first else (self.stage, load.buffer)
        return [*first, *(private_producers(self.sketch, reader, read) if fold else [])]


def matrix_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
    """The product by warps, whole and in parts of k, and without."""
    read = (r.load.buffer for r in reads_of(sketch.state, stage))
    is_fed = any(private_producer(sketch, stage, b) is not None for b in read)
    found = in_matrices(sketch, stage, context)
    assert found is not None
    folds = (True, False) if is_fed else (True,)
    whole: list[Alternative] = [partial(_by_warps, found, fold, context) for fold in folds]
    arranged = with_channels_last(sketch, stage.name, found.row)
    if arranged is not None:
        found = in_matrices(arranged, arranged.state.stage(stage.name), context) or found
        whole.append(partial(_by_warps, found, True, context))
    is_long = can_split_tiles(found.sketch.state, found.stage)
    alone = split_tiled_alternatives if can_split_tiles(sketch.state, stage) else tiled_alternatives
    return [*whole, *(_in_parts(found, context) if is_long else []), *alone(sketch, stage, context)]


def in_matrices(sketch: PartialSketch, stage: Stage, context: SketchContext) -> Matrices | None:
    """The stage as a product of two matrices, if it is one or can become one, and enough for an instruction."""
    found = matrix_product(sketch, stage.name, context)
    pair = matrix_operands(stage.op.body, stage.op.reducer)
    orders = () if pair is None else (pair.loads, pair.loads[::-1])
    is_known = pair is not None and any(pair.row(a, b, _capability(context)) for a, b in orders)
    if found is not None or not is_known or windows(stage.op) is None:
        return found
    consumer = fused_consumer(sketch.state, stage)
    reader = "" if consumer is None or consumer.name in sketch.done else consumer.name
    made = sketch.apply(Matricize(stage.name, reader))
    found = matrix_product(made, stage.name, context)
    gathers = {x.name for x in made.state.stages} - {x.name for x in sketch.state.stages}
    return None if found is None else replace(found, gathers=frozenset(gathers))


def matrix_product(sketch: PartialSketch, name: str, context: SketchContext) -> Matrices | None:
    """The stage `name`, if it is a product of two matrices as it stands, and enough for an instruction."""
    stage = sketch.state.stage(name)
    pair, axes = matrix_operands(stage.op.body, stage.op.reducer), product_axes(stage)
    if pair is None or axes is None or not ends_with(sketch.state, axes):
        return None
    row = pair.row(axes.left, axes.right, _capability(context))
    points = min(size(axes.rows), ROWS) * min(size(axes.columns), ROWS)
    is_enough = row is not None and points * LEAST_SHARE >= ROWS * row.n and 2 * size(axes.depth) >= row.k
    return Matrices(sketch, name, row, axes) if row is not None and is_enough else None


def _capability(context: SketchContext) -> int:
    """The compute capability of a device whose warps multiply matrices as its language says; 0 of others."""
    gpu = context.target.gpu
    return gpu.capability if gpu is not None and context.target.backend.has_matrices else 0


def _in_parts(whole: Matrices, context: SketchContext) -> list[Alternative]:
    """Parts of k of an open length, whole steps whatever their number between two fills; other blocks have others."""
    depth, step = whole.product.depth, whole.row.k * domains.MOST_STEPS
    length = domains.part(f"{whole.name}.{depth.name}.b", size(depth), step, max(parts_of_tiles(whole.stage, depth)))
    if length is None:
        return []
    split, name = split_reduction(whole.sketch.with_params([length]), whole.stage, depth, length.name)
    part = matrix_product(split, name, context)
    if part is None:
        return []
    return [noted(partial(_by_warps, replace(part, gathers=whole.gathers), True, context), "split-k")]


def _by_warps(found: Matrices, fold: bool, context: SketchContext) -> PartialSketch:
    sketch, consumer, acc = fuse_consumer(found.sketch, found.stage)
    sketch = _bind(sketch, consumer, found.stage, found.product)
    return multiplied(sketch, found, consumer, acc, fold, context)


def multiplied(
    sketch: PartialSketch, found: Matrices, consumer: str, acc: str, fold: bool, context: SketchContext
) -> PartialSketch:
    """The product, which `acc` adds up, in registers of the threads that `consumer` is bound to."""
    stage, row, product = found.stage, found.row, found.product
    if is_large(sketch.state, sketch.state.stage(acc), context):
        sketch = rastered(sketch, consumer)
    sketch = sketch.apply(ComputeAt(acc, consumer, last_thread_loop(sketch, consumer), Scope.REGISTER.value))
    depth = product.depth
    group = f"{acc}.{depth.name}"
    steps = domains.matrix_steps(f"{group}.c", found.steps)
    loops = [f"{depth.name}.{n}" for n in range(3)]
    others = [a.name for a in stage.op.axes if a not in (product.rows, product.columns)]
    inner = (loops[1], product.rows.name, product.columns.name, loops[2])
    sketch = sketch.with_params([steps]).apply(
        Split(acc, depth.name, (steps.name, row.k)),
        Reorder(acc, (loops[0], *others, *inner)),
        *(Unroll(acc, name) for name in inner),
    )
    for load in (product.left, product.right):
        dim = None if product.is_along_depth(load) or row.can_lie_across else product.depth_dim(load)
        sketch = copy_to_shared(sketch, load.buffer, acc, loops[0], found.makers(load, fold), dim, in_lines=True)
    sketch = pipeline(sketch, acc, loops[0], depth, context.target).apply(Mma(acc, row.name))
    note = f"{stage.name}:{row.name}{'' if fold else '-unfolded'}"
    return sketch.finish(consumer, acc, note=note)


def _bind(sketch: PartialSketch, consumer: str, stage: Stage, product: ProductAxes) -> PartialSketch:
    """The consumer's loops as blocks, warps, the lanes of a warp, and tiles with the points of a thread."""
    axes = sketch.state.stage(consumer).op.axes
    rows, columns = (axes[stage.op.axes.index(a)] for a in (product.rows, product.columns))
    steps: list[Step] = []
    for axis, (outer, inner) in ((rows, (HALVES, DOWN)), (columns, (ACROSS, NEIGHBOURS))):
        group, tiles = f"{consumer}.{axis.name}", -(-size(axis) // (outer * inner))
        params = [domains.warps(f"{group}.w", tiles, group), domains.matrix_tiles(f"{group}.s", tiles, group)]
        sketch = sketch.with_params(params)
        steps.append(Split(consumer, axis.name, (*(p.name for p in params), outer, inner)))
    m, n = ([f"{a.name}.{level}" for level in range(5)] for a in (rows, columns))
    others = [a for a in axes if a not in (rows, columns)]
    blocks = [*(a.name for a in others), m[0], n[0]]
    steps += [
        Reorder(consumer, (*blocks, m[1], n[1], m[4], n[3], m[2], n[2], m[3], n[4])),
        Fuse(consumer, (m[1], n[1])),
    ]
    steps += bind_blocks(consumer, blocks, [size(a) for a in (*others, rows, columns)])
    steps += bind_threads(consumer, [f"{m[1]}@{n[1]}", m[4], n[3]])
    steps += [Unroll(consumer, name) for name in (m[2], n[2], m[3], n[4])]
    return sketch.apply(*steps)
