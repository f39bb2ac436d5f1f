"""Online softmax on tensor cores: attention in one kernel, in any order of the axes (flash attention).

    blocks of rows i:  warps along i (z):  lanes of a warp, 8 along i (y) by 4 along columns (x)
      the operand with rows i of the first product, in shared memory or in registers
      accumulators of the second product in registers; maximum and sum of each row of weights
        blocks of k:                              <- the other operands of both products are copied here, or ahead
          the first product for rows i and this k, in registers
          maximum, sum and accumulators are rescaled to the new maximum; the weights, in registers
          the second product
      the consumer divides by the sums and writes

The rule applies if warps can compute both products (`ir/instructions/matrices.py`) and the weights are a softmax that
`schedule/steps/online.py` supports. Nothing of the size of the weights is stored. The alternatives that store them
remain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autosched.ir.dtype import DTYPES
from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, NEIGHBOURS
from autosched.ir.stmt import THREADS, Scope
from autosched.ir.visit import loads
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
from autosched.schedule.state import State
from autosched.schedule.steps.matrices import WORD
from autosched.schedule.steps.online import WeightedSum, expanded, weighted_sum
from autosched.schedule.steps.stages import places_in
from search_spaces.fusion import fused_consumer, permuted_consumer
from search_spaces.gpu import domains
from search_spaces.gpu.matrices import Matrices, matrix_product
from search_spaces.gpu.shared import pipeline
from search_spaces.gpu.thread_binding import bind_blocks, bind_threads, last_thread_loop, size
from search_spaces.gpu.warpgroups import warpgroup_alternatives
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext

MOST_ACROSS = (
    256  # columns of the second product, and terms of the first, that registers and shared memory have room for
)


@dataclass(frozen=True)
class _Attention:
    """The first product of an attention and the second, whose weights are the softmax of the first one's results."""

    first: Stage
    scores: Matrices
    sums: Matrices
    weighted: WeightedSum

    @property
    def can_hold(self) -> bool:
        """Whether rows of the first product's left operand can stay in registers of the warp that uses them. With
        elements of 32 bits the other operand would be loaded word by word."""
        left = self.scores.product.left
        is_along = left.indices[-2] is self.scores.product.rows.var and self.scores.product.is_along_depth(left)
        return is_along and DTYPES[left.dtype].nbytes < WORD


class OnlineSoftmax:
    """Both products and the softmax in one kernel; then the other rules' alternatives for the second product."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return _match_attention(sketch, stage, context) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        attention = _match_attention(sketch, stage, context)
        assert attention is not None
        apart = warpgroup_alternatives(sketch, stage, context)
        ways = (False, True) if attention.can_hold else (False,)
        return [*(partial(_fused_kernel, sketch, stage, attention, held, context) for held in ways), *apart]


def _match_attention(sketch: PartialSketch, stage: Stage, context: SketchContext) -> _Attention | None:
    state = sketch.state
    sums, weighted = matrix_product(sketch, stage.name, context), weighted_sum(state, stage)
    if sums is None or weighted is None or sums.product.left is not weighted.load:
        return None
    if sums.product.rows is not stage.op.axes[-2] or size(sums.product.columns) > MOST_ACROSS:
        return None
    first = find_scores(state, weighted)
    scores = None if first is None else matrix_product(sketch, first.name, context)
    if first is None or scores is None or size(scores.product.depth) > MOST_ACROSS:
        return None
    own = first.op.axes[-2:]
    is_alike = (scores.product.rows, scores.product.columns) == own and scores.row is sums.row
    return _Attention(first, scores, sums, weighted) if is_alike else None


def find_scores(state: State, weighted: WeightedSum) -> Stage | None:
    """Return the only reduction, at the root, of whose results the exponentials are computed point by point."""
    read = {x.buffer: x for x in dict.fromkeys(loads(expanded(state, weighted.value)))}
    producers = [s for b in read if b not in weighted.peak.op.buffers and (s := state.producer(b)) is not None]
    reductions = [s for s in producers if s.op.reducer is not None]
    indices = tuple(a.var for a in weighted.weights.op.axes)
    if len(reductions) != 1 or reductions[0].at is not None or state.is_output(reductions[0]):
        return None
    return reductions[0] if read[reductions[0].op.buffers[0]].indices == indices else None


def _fused_kernel(
    sketch: PartialSketch, stage: Stage, attention: _Attention, held: bool, context: SketchContext
) -> PartialSketch:
    """Return the fused kernel. `held`: the rows of the first product's left operand are in registers, not in shared
    memory."""
    row, depth, first = attention.sums.row, attention.sums.product.depth, attention.first.name
    peak, total = attention.weighted.peak.name, attention.weighted.total.name
    sketch, root = divide_last(sketch, stage)
    acc, weights = f"{stage.name}.acc", f"{stage.name}.weights"
    sketch = _bind(sketch, root, acc)
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
    sketch = _schedule_scores(sketch.apply(Online(acc, weights, peak, total)), attention, weights)
    left = attention.scores.product.left.buffer
    outside = At(root, around)
    sketch = (
        _copy_to_registers(sketch, left, first, outside, acc) if held else shared_copy(sketch, left, first, outside)
    )
    sketch = shared_copy(sketch, attention.scores.product.right.buffer, first, At(acc, loops[0]))
    sketch = shared_copy(sketch, attention.sums.product.right.buffer, acc, At(acc, loops[0]))
    sketch = pipeline(sketch, acc, loops[0], depth, context.target).apply(Mma(first, row.name), Mma(acc, row.name))
    return sketch.finish(root, acc, weights, peak, total, first, note=f"{stage.name}:online-{row.name}{'-held' * held}")


def divide_last(sketch: PartialSketch, stage: Stage) -> tuple[PartialSketch, str]:
    """Divide by the softmax's sums in the stage that writes the results, possibly with permuted axes; return the sketch
    and that stage's name."""
    sketch = sketch.apply(Average(stage.name))
    weighted = sketch.state.stage(stage.name)
    consumer = fused_consumer(sketch.state, weighted) or permuted_consumer(sketch.state, weighted)
    if consumer is None or consumer.name in sketch.done:
        return sketch, stage.name
    return sketch.apply(ComputeInline(stage.name)), consumer.name


def _bind(sketch: PartialSketch, root: str, acc: str) -> PartialSketch:
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


def _schedule_scores(sketch: PartialSketch, attention: _Attention, weights: str) -> PartialSketch:
    """Schedule the first product in registers of the lanes that use its results."""
    name, depth = attention.first.name, attention.scores.product.depth.name
    *batch, rows, columns = (a.name for a in attention.first.op.axes)
    within = [x.name for x in sketch.state.stage(weights).loops if x.kind in THREADS][-1]
    inner = (f"{depth}.0", rows, columns, f"{depth}.1")
    return sketch.apply(
        ComputeAt(name, weights, within, Scope.REGISTER.value),
        Split(name, depth, (attention.scores.row.k,)),
        Reorder(name, (*batch, *inner)),
        *(Unroll(name, x) for x in inner),
    )


def shared_copy(sketch: PartialSketch, buffer: str, reader: str, at: At) -> PartialSketch:
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
