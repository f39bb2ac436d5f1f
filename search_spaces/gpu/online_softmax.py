"""Online softmax: attention in one kernel, in any order of the axes (flash attention).

On tensor cores, by `OnlineSoftmax`:

    blocks of rows i:  warps along i (z):  lanes of a warp, 8 along i (y) by 4 along columns (x)
      the operand with rows i of the first product, in shared memory or in registers
      accumulators of the second product in registers; maximum and sum of each row of weights
        blocks of k:                              <- the other operands of both products are copied here, or ahead
          the first product for rows i and this k, in registers
          maximum, sum and accumulators are rescaled to the new maximum; the weights, in registers
          the second product
      the consumer divides by the sums and writes

In any type, on any device, by `OnlineSoftmaxByThreads`: blocks of rows i have threads along i (x), each with a few
whole rows, so that threads exchange nothing: all of them read the same elements of the other operands at a time.

The rules apply to a reduction chain of two products whose softmax `schedule/steps/online.py` supports; on tensor cores
if warps can compute both (`ir/instructions/matrices.py`). Nothing of the size of the weights is stored. The
alternatives that store them remain.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from autosched.ir.dtype import DTYPES
from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, NEIGHBOURS, MatrixIntrinsic
from autosched.ir.stmt import THREADS, Scope
from autosched.schedule import (
    At,
    Average,
    CacheRead,
    ComputeAt,
    ComputeInline,
    Cooperate,
    Mma,
    Num,
    Online,
    Pad,
    Reorder,
    Split,
    Spread,
    Stage,
    Unroll,
)
from autosched.schedule.steps.matrices import WORD, ProductAxes, ends_with, product_axes
from autosched.schedule.steps.stages import places_in
from search_spaces.gpu import domains
from search_spaces.gpu.matrices import matrix_product
from search_spaces.gpu.rows import can_split_tiles, split_tiled_alternatives
from search_spaces.gpu.shared import pipeline
from search_spaces.gpu.thread_binding import bind_blocks, bind_threads, last_thread_loop, size
from search_spaces.gpu.tiling import tiled_alternatives
from search_spaces.gpu.warpgroups import warpgroup_alternatives
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext
from search_spaces.reduction_chain import ReductionChain, match_reduction_chain

MOST_COLUMNS = 256  # of the second product, that registers and shared memory have room for
MOST_THREAD_COLUMNS = 96  # of the second product: they are in registers of a thread
MOST_TERMS = 256  # of the first product
Products: TypeAlias = tuple[ReductionChain, ProductAxes, ProductAxes]  # the chain, its first product and its last


class OnlineSoftmax:
    """Both products and the softmax in one kernel; then the other rules' alternatives for the second product."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        products = _match_products(sketch, stage, MOST_COLUMNS)
        return products is not None and _instruction(sketch, products[0], context) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        products = _match_products(sketch, stage, MOST_COLUMNS)
        assert products is not None
        ways = (False, True) if _can_hold(products[1]) else (False,)
        fused = (partial(_by_warps, sketch, products, held, context) for held in ways)
        return [*fused, *warpgroup_alternatives(sketch, stage, context)]


class OnlineSoftmaxByThreads:
    """Both products and the softmax in one kernel; then the other rules' alternatives for the second product."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return _match_products(sketch, stage, MOST_THREAD_COLUMNS) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        products = _match_products(sketch, stage, MOST_THREAD_COLUMNS)
        assert products is not None
        unfused = split_tiled_alternatives if can_split_tiles(sketch.state, stage) else tiled_alternatives
        return [partial(_by_threads, sketch, products, context), *unfused(sketch, stage, context)]


def _match_products(sketch: PartialSketch, stage: Stage, most_columns: int) -> Products | None:
    """Return the chain if both reductions are products of matrices that share their rows, and its axes are short
    enough; the second product's left operand is the softmax, at the points of the first one's results."""
    chain = match_reduction_chain(sketch, stage)
    first = None if chain is None else chain.only_source
    scores, sums = None if first is None else product_axes(first), product_axes(stage)
    if chain is None or chain.softmax is None or first is None or scores is None or sums is None:
        return None
    points = tuple(a.var for a in chain.softmax.weights.op.axes)
    is_pointwise = [x.indices for x in chain.reads(first)] == [points] and sums.left is chain.softmax.load
    is_alike = sums.rows is stage.op.axes[-2] and (scores.rows, scores.columns) == first.op.axes[-2:]
    is_short = size(sums.columns) <= most_columns and size(scores.depth) <= MOST_TERMS
    is_whole = ends_with(sketch.state, scores) and ends_with(sketch.state, sums)
    return (chain, scores, sums) if is_pointwise and is_alike and is_short and is_whole else None


def _instruction(sketch: PartialSketch, chain: ReductionChain, context: SketchContext) -> MatrixIntrinsic | None:
    """Return the instruction that computes both products; None if there is none."""
    rows = [matrix_product(sketch, s.name, context) for s in (chain.last, chain.sources[0])]
    [last, first] = [None if x is None else x.row for x in rows]
    return last if last is first else None


def _can_hold(scores: ProductAxes) -> bool:
    """Whether rows of the first product's left operand can stay in registers of the warp that uses them. With elements
    of 32 bits the other operand would be loaded word by word."""
    is_along = scores.left.indices[-2] is scores.rows.var and scores.is_along_depth(scores.left)
    return is_along and DTYPES[scores.left.dtype].nbytes < WORD


def _by_warps(sketch: PartialSketch, products: Products, held: bool, context: SketchContext) -> PartialSketch:
    """Return the fused kernel on tensor cores. `held`: the rows of the first product's left operand are in registers,
    not in shared memory."""
    chain, scores, sums = products
    row = _instruction(sketch, chain, context)
    assert row is not None
    stage, depth, first = chain.last, sums.depth, chain.sources[0]
    sketch, root = _divide_last(sketch, chain)
    acc, weights = f"{stage.name}.acc", f"{stage.name}.weights"
    sketch = _bind_warps(sketch, root, acc)
    around = last_thread_loop(sketch, root)
    steps = domains.matrix_steps(f"{acc}.{depth.name}.c", -(-size(depth) // row.k))
    loops = [f"{depth.name}.{n}" for n in range(3)]
    *batch, rows, columns = (a.name for a in stage.op.axes)
    sketch = sketch.with_params([steps]).apply(
        ComputeAt(acc, root, around, Scope.REGISTER.value),
        Split(acc, depth.name, (steps.name, row.k)),
        Reorder(acc, (loops[0], *batch, loops[1], rows, columns, loops[2])),
        *(Unroll(acc, name) for name in (loops[1], rows, columns, loops[2])),
        ComputeAt(weights, acc, loops[0], Scope.WARP.value),
    )
    sketch = _distribute(sketch, weights, root, acc, (steps.name, row.k // (ACROSS * NEIGHBOURS)))
    sketch = _schedule_scores(sketch.apply(_online(chain)), first, scores.depth.name, row, weights)
    sketch = _copy_operands(sketch, products, At(root, around), At(acc, loops[0]), held)
    sketch = pipeline(sketch, acc, loops[0], depth, context.target).apply(Mma(first.name, row.name), Mma(acc, row.name))
    return _finished(sketch, chain, root, f"{row.name}{'-held' * held}")


def _by_threads(sketch: PartialSketch, products: Products, context: SketchContext) -> PartialSketch:
    """Return the fused kernel whose threads have whole rows."""
    chain, scores, sums = products
    stage, depth, first, terms = chain.last, sums.depth, chain.sources[0].name, scores.depth
    sketch, root = _divide_last(sketch, chain)
    acc, weights = f"{stage.name}.acc", f"{stage.name}.weights"
    sketch = _bind_rows(sketch, root, acc)
    around = last_thread_loop(sketch, root)
    steps = domains.row_weights(f"{acc}.{depth.name}.c", size(depth))
    unrolled = domains.unroll(f"{first}.{terms.name}.u", size(terms), f"{first}.{terms.name}")
    k, d = ([f"{axis.name}.{n}" for n in range(2)] for axis in (depth, terms))
    points, scored = ([a.name for a in s.op.axes] for s in (stage, chain.sources[0]))
    sketch = sketch.with_params([steps, unrolled]).apply(
        ComputeAt(acc, root, around, Scope.REGISTER.value),
        Split(acc, depth.name, (steps.name,)),
        Reorder(acc, (*k, *points)),
        *(Unroll(acc, name) for name in (k[1], *points)),
        ComputeAt(weights, acc, k[0], Scope.REGISTER.value),
        *(Unroll(weights, a.name) for a in sketch.state.stage(weights).op.axes),
        _online(chain),
        ComputeAt(first, acc, k[0], Scope.REGISTER.value),
        Split(first, terms.name, (unrolled.name,)),
        Reorder(first, (*d, *scored)),
        *(Unroll(first, name) for name in (d[1], *scored)),
    )
    sketch = _copy_operands(sketch, products, At(root, around), At(acc, k[0]), held=False)
    return _finished(pipeline(sketch, acc, k[0], depth, context.target), chain, root, "threads")


def _divide_last(sketch: PartialSketch, chain: ReductionChain) -> tuple[PartialSketch, str]:
    """Divide by the softmax's sums in the stage that writes the results, possibly with permuted axes; return the sketch
    and that stage's name."""
    sketch = sketch.apply(Average(chain.last.name))
    if chain.writer is None or chain.writer.name in sketch.done:
        return sketch, chain.last.name
    return sketch.apply(ComputeInline(chain.last.name)), chain.writer.name


def _online(chain: ReductionChain) -> Online:
    assert chain.softmax is not None
    name = chain.last.name
    return Online(f"{name}.acc", f"{name}.weights", chain.softmax.peak.name, chain.softmax.total.name)


def _finished(sketch: PartialSketch, chain: ReductionChain, root: str, how: str) -> PartialSketch:
    online, name = _online(chain), chain.last.name
    stages = root, online.stage, online.weights, online.peak, online.total, chain.sources[0].name
    return sketch.finish(*stages, note=f"{name}:online-{how}")


def _bind_warps(sketch: PartialSketch, root: str, acc: str) -> PartialSketch:
    """Bind the loops of the writing stage: blocks and warps along the rows; each warp has all columns."""
    *batch, rows, columns = places_in(sketch.state.stage(root), sketch.state.stage(acc))
    group, tiles = f"{root}.{rows.name}", -(-size(rows) // (HALVES * DOWN))
    params = [domains.warps(f"{group}.w", tiles, group), domains.matrix_tiles(f"{group}.s", tiles, group)]
    across = -(-size(columns) // (ACROSS * NEIGHBOURS))
    m, n = ([f"{a.name}.{level}" for level in range(5)] for a in (rows, columns))
    blocks = [*(a.name for a in batch), m[0]]
    return sketch.with_params(params).apply(
        Split(root, rows.name, (*(p.name for p in params), HALVES, DOWN)),
        Split(root, columns.name, (across, ACROSS, NEIGHBOURS)),
        Reorder(root, (*blocks, m[1], m[4], n[2], n[0], m[2], n[1], m[3], n[3])),
        *bind_blocks(root, blocks, [size(a) for a in (*batch, rows)]),
        *bind_threads(root, [m[1], m[4], n[2]]),
        *(Unroll(root, name) for name in (m[2], n[1], m[3], n[3])),
    )


def _bind_rows(sketch: PartialSketch, root: str, acc: str) -> PartialSketch:
    """Bind the loops of the writing stage: blocks and threads along the rows; each thread has all columns."""
    *batch, rows, columns = places_in(sketch.state.stage(root), sketch.state.stage(acc))
    group = f"{root}.{rows.name}"
    threads = domains.threads(f"{group}.t", size(rows), group, domains.MOST_X)
    tile = domains.tile(f"{group}.s", size(rows), group, domains.MOST_ROW_TILE)
    m = [f"{rows.name}.{level}" for level in range(3)]
    blocks = [*(a.name for a in batch), m[0]]
    is_turned = (*batch, rows, columns) != sketch.state.stage(root).op.axes
    return sketch.with_params([threads, tile]).apply(
        Split(root, rows.name, (threads.name, tile.name)),
        *([Reorder(root, (*blocks, *m[1:], columns.name))] if is_turned else []),
        *bind_blocks(root, blocks, [size(a) for a in (*batch, rows)]),
        *bind_threads(root, [m[1]]),
        *(Unroll(root, name) for name in (m[2], columns.name)),
    )


def _distribute(sketch: PartialSketch, weights: str, root: str, acc: str, tiles: tuple[Num, ...]) -> PartialSketch:
    """Distribute the weights over lanes, rows and columns as in the first product's results: in `tiles` of as many
    columns as a row of lanes has."""
    *batch, rows, columns = (a.name for a in sketch.state.stage(weights).op.axes)
    m = [f"{rows}.{level}" for level in range(5)]
    *n, lanes, neighbours = (f"{columns}.{level}" for level in range(len(tiles) + 3))
    theirs = sketch.state.stage(root)
    indices = ("threadIdx.z", "threadIdx.y", "threadIdx.x")
    inner = (n[0], m[2], *n[1:], m[3], neighbours)
    return sketch.apply(
        Split(weights, rows, theirs.factors(places_in(theirs, sketch.state.stage(acc))[-2].name)),
        Split(weights, columns, (*tiles, ACROSS, NEIGHBOURS)),
        Reorder(weights, (m[1], m[4], lanes, *batch, m[0], *inner)),
        *(Spread(weights, x, place) for x, place in zip((m[1], m[4], lanes), indices, strict=True)),
        *(Unroll(weights, name) for name in inner),
    )


def _copy_to_registers(sketch: PartialSketch, buffer: str, reader: str, at: At, acc: str) -> PartialSketch:
    """Copy the elements of the left operand of `reader` into registers of the lanes whose instructions use them."""
    sketch = sketch.apply(CacheRead(buffer, reader, "held"), ComputeAt(f"{buffer}.held", at.stage, at.loop, "warp"))
    return _distribute(sketch, f"{buffer}.held", at.stage, acc, ()).finish(f"{buffer}.held")


def _schedule_scores(
    sketch: PartialSketch, first: Stage, depth: str, row: MatrixIntrinsic, weights: str
) -> PartialSketch:
    """Schedule the first product in registers of the lanes that use its results."""
    name = first.name
    *batch, rows, columns = (a.name for a in first.op.axes)
    within = [x.name for x in sketch.state.stage(weights).loops if x.kind in THREADS][-1]
    inner = (f"{depth}.0", rows, columns, f"{depth}.1")
    return sketch.apply(
        ComputeAt(name, weights, within, Scope.REGISTER.value),
        Split(name, depth, (row.k,)),
        Reorder(name, (*batch, *inner)),
        *(Unroll(name, x) for x in inner),
    )


def _copy_operands(sketch: PartialSketch, products: Products, outside: At, inside: At, held: bool) -> PartialSketch:
    """Copy the first product's left operand once, into registers if `held`, the right operands in each block of k."""
    chain, scores, sums = products
    first, acc = chain.sources[0].name, inside.stage
    copy = partial(_copy_to_registers, acc=acc) if held else _copy_to_shared
    sketch = copy(sketch, scores.left.buffer, first, outside)
    sketch = _copy_to_shared(sketch, scores.right.buffer, first, inside)
    return _copy_to_shared(sketch, sums.right.buffer, acc, inside)


def _copy_to_shared(sketch: PartialSketch, buffer: str, reader: str, at: At) -> PartialSketch:
    """Copy the elements of `buffer` that `reader` reads in one iteration of a loop around it into shared memory."""
    tag = f"{reader}.shared" if sketch.state.taken(f"{buffer}.shared") else "shared"
    copy = f"{buffer}.{tag}"
    sketch = sketch.apply(CacheRead(buffer, reader, tag))
    copied = sketch.state.stage(copy)
    gap, width = domains.vector_pad(f"{copy}.pad", copied), domains.copied_vector(f"{copy}.w", copied)
    return (
        sketch.with_params([gap, width])
        .apply(ComputeAt(copy, at.stage, at.loop, Scope.SHARED.value), Pad(copy, gap.name), Cooperate(copy, width.name))
        .finish(copy)
    )
