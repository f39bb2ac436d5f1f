"""Products of matrices by whole warps, on GPUs with tensor cores (`autosched/ir/instructions/matrices.py`).

    blocks m.0, n.0:  warps m.1 by n.1 (z):  lanes of a warp, 8 along m (y) by 4 along n (x)
      accumulators in registers: m.2 by n.2 tiles of 16 by 8, of which a thread has 2 by 2 points each
        k.0                                            <- both operands are copied to shared memory here, or ahead
          k.1 unrolled:  the warp's tiles times 16 of k, one operation
      the consumer (the fused one, or the copy out) writes the points

The rule applies to sums of products of two operands of 16 or 8 bits, each with axes of its own, and all of the
reduction's in common. Operands with more axes than a row, a column and k, as of a convolution, become matrices
(`autosched/schedule/steps/matricize.py`): the copies gather the windows, zeros of the padding included. Either operand
may be contiguous along k or across it; shared copies of 8 bits are contiguous along k, and the elements of windows
along channels alone (`channel_packing.py`). Tiles that extend beyond an axis are multiplied as well: shared copies are
zero there, and results outside are not written.

A long reduction with few tiles is also offered in parts, each in blocks of its own, which another kernel adds up.
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
LEAST_SHARE = 8  # at least one in so many points of an instruction's tile has to exist


class MatrixTiling:
    """Products by warps on tensor cores; then the alternatives of `MultiLevelTiling`, whose threads are independent."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return in_matrices(sketch, stage, context) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        return matrix_alternatives(sketch, stage, context)


@dataclass(frozen=True)
class Matrices:
    """A sketch in which the stage `name` is a product of two matrices that warps can compute.

    `gathers`: the stages that gather windows of an operand into a matrix, for this product alone.
    """

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
        """The number of instructions along k."""
        return -(-size(self.product.depth) // self.row.k)

    def makers(self, load: Load, fold: bool) -> list[Stage]:
        """Return the stages that are computed where an operand is copied, last ones first: those that gather it, and
        with `fold` its private producers."""
        first = [x for x in self.sketch.state.stages if x.name in self.gathers and load.buffer in x.op.buffers]
        reader, read = (first[0], first[0].op.loads[0].buffer) if first else (self.stage, load.buffer)
        return [*first, *(private_producers(self.sketch, reader, read) if fold else [])]


def matrix_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
    """Return the product by warps, whole and in parts of k, and the alternatives without tensor cores."""
    read = (r.load.buffer for r in reads_of(sketch.state, stage))
    is_fed = any(private_producer(sketch, stage, b) is not None for b in read)
    matrices = in_matrices(sketch, stage, context)
    assert matrices is not None
    folds = (True, False) if is_fed else (True,)
    whole: list[Alternative] = [partial(_by_warps, matrices, fold, context) for fold in folds]
    arranged = with_channels_last(sketch, stage.name, matrices.row)
    if arranged is not None:
        matrices = in_matrices(arranged, arranged.state.stage(stage.name), context) or matrices
        whole.append(partial(_by_warps, matrices, True, context))
    is_long = can_split_tiles(matrices.sketch.state, matrices.stage)
    alone = split_tiled_alternatives if can_split_tiles(sketch.state, stage) else tiled_alternatives
    return [*whole, *(_in_parts(matrices, context) if is_long else []), *alone(sketch, stage, context)]


def in_matrices(sketch: PartialSketch, stage: Stage, context: SketchContext) -> Matrices | None:
    """Return the stage as a product of matrices, if it is one or can become one, and large enough; else None."""
    matrices = matrix_product(sketch, stage.name, context)
    pair = matrix_operands(stage.op.body, stage.op.reducer)
    orders = () if pair is None else (pair.loads, pair.loads[::-1])
    is_known = pair is not None and any(pair.row(a, b, _capability(context)) for a, b in orders)
    if matrices is not None or not is_known or windows(stage.op) is None:
        return matrices
    consumer = fused_consumer(sketch.state, stage)
    reader = "" if consumer is None or consumer.name in sketch.done else consumer.name
    matricized = sketch.apply(Matricize(stage.name, reader))
    matrices = matrix_product(matricized, stage.name, context)
    gathers = {x.name for x in matricized.state.stages} - {x.name for x in sketch.state.stages}
    return None if matrices is None else replace(matrices, gathers=frozenset(gathers))


def matrix_product(sketch: PartialSketch, name: str, context: SketchContext) -> Matrices | None:
    """Return the stage `name` if it is a product of two matrices, and large enough for an instruction; else None."""
    stage = sketch.state.stage(name)
    pair, axes = matrix_operands(stage.op.body, stage.op.reducer), product_axes(stage)
    if pair is None or axes is None or not ends_with(sketch.state, axes):
        return None
    row = pair.row(axes.left, axes.right, _capability(context))
    points = min(size(axes.rows), ROWS) * min(size(axes.columns), ROWS)
    is_enough = row is not None and points * LEAST_SHARE >= ROWS * row.n and 2 * size(axes.depth) >= row.k
    return Matrices(sketch, name, row, axes) if row is not None and is_enough else None


def _capability(context: SketchContext) -> int:
    """Return the compute capability of a device with matrix instructions in its language; 0 of others."""
    gpu = context.target.gpu
    return gpu.capability if gpu is not None and context.target.backend.has_matrices else 0


def _in_parts(whole: Matrices, context: SketchContext) -> list[Alternative]:
    """Return parts of k of a searched length, a multiple of every chunk; other blocks have other parts."""
    depth, step = whole.product.depth, whole.row.k * domains.MOST_STEPS
    length = domains.part(f"{whole.name}.{depth.name}.b", size(depth), step, max(parts_of_tiles(whole.stage, depth)))
    if length is None:
        return []
    split, name = split_reduction(whole.sketch.with_params([length]), whole.stage, depth, length.name)
    matrices = matrix_product(split, name, context)
    if matrices is None:
        return []
    return [noted(partial(_by_warps, replace(matrices, gathers=whole.gathers), True, context), "split-k")]


def _by_warps(matrices: Matrices, fold: bool, context: SketchContext) -> PartialSketch:
    sketch, consumer, acc = fuse_consumer(matrices.sketch, matrices.stage)
    sketch = _bind(sketch, consumer, matrices.stage, matrices.product)
    return multiplied(sketch, matrices, consumer, acc, fold, context)


def multiplied(
    sketch: PartialSketch, matrices: Matrices, consumer: str, acc: str, fold: bool, context: SketchContext
) -> PartialSketch:
    """Schedule the product, accumulated by `acc`, in registers of the threads that `consumer` is bound to."""
    stage, row, product = matrices.stage, matrices.row, matrices.product
    if is_large(sketch.state, sketch.state.stage(acc), context):
        sketch = rastered(sketch, consumer)
    sketch = sketch.apply(ComputeAt(acc, consumer, last_thread_loop(sketch, consumer), Scope.REGISTER.value))
    depth = product.depth
    group = f"{acc}.{depth.name}"
    steps = domains.matrix_steps(f"{group}.c", matrices.steps)
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
        sketch = copy_to_shared(sketch, load.buffer, acc, loops[0], matrices.makers(load, fold), dim, in_lines=True)
    sketch = pipeline(sketch, acc, loops[0], depth, context.target).apply(Mma(acc, row.name))
    note = f"{stage.name}:{row.name}{'' if fold else '-unfolded'}"
    return sketch.finish(consumer, acc, note=note)


def _bind(sketch: PartialSketch, consumer: str, stage: Stage, product: ProductAxes) -> PartialSketch:
    """Bind the consumer's loops to blocks, warps, the lanes of a warp, and tiles with the points of a thread."""
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
