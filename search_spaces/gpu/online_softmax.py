"""Weighted sums whose weights are shares of a softmax of a product's results, in one kernel: attention, as it is
written or in any other way.

    blocks of rows i:  warps along i (z):  lanes of a warp, 8 along i (y) by 4 along columns (x)
      the operand with rows i of the first product, in shared memory or in registers
      accumulators of the second product in registers; maximum and sum of each row of weights
        blocks of k:                                        <- what else both products read is copied here, or ahead
          the first product for rows i and this k, in registers
          maximum, sum and accumulators are brought to the new maximum; the weights, in registers
          the second product
      the consumer divides by the sums and writes

What is asked is whether warps can do both products (`ir/instructions/matrices.py`) and whether the weights are what
`schedule/steps/online.py` takes. Nothing of the size of the weights is stored. The plans that store them remain.
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
from search_spaces.fusion import fused_consumer, turned_consumer
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
class _Chain:
    """The first product and the second, whose weights are made of it."""

    first: Stage
    scores: Matrices
    sums: Matrices
    weighted: WeightedSum

    @property
    def can_hold(self) -> bool:
        """Whether rows of the first product's left operand can stay in the registers of the warp that they are for.
        Those of 32 bits would have the other operand loaded word by word."""
        left = self.scores.product.left
        is_along = left.indices[-2] is self.scores.product.rows.var and self.scores.product.is_along_depth(left)
        return is_along and DTYPES[left.dtype].nbytes < WORD


class OnlineProducts:
    """Both products and what is between them in one kernel; then what other rules do with the second one."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return _chain(sketch, stage, context) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        chain = _chain(sketch, stage, context)
        assert chain is not None
        apart = warpgroup_alternatives(sketch, stage, context)
        ways = (False, True) if chain.can_hold else (False,)
        return [*(partial(_in_one, sketch, stage, chain, held, context) for held in ways), *apart]


def _chain(sketch: PartialSketch, stage: Stage, context: SketchContext) -> _Chain | None:
    state = sketch.state
    sums, weighted = matrix_product(sketch, stage.name, context), weighted_sum(state, stage)
    if sums is None or weighted is None or sums.product.left is not weighted.load:
        return None
    if sums.product.rows is not stage.op.axes[-2] or size(sums.product.columns) > MOST_ACROSS:
        return None
    first = scores_of(state, weighted)
    scores = None if first is None else matrix_product(sketch, first.name, context)
    if first is None or scores is None or size(scores.product.depth) > MOST_ACROSS:
        return None
    own = first.op.axes[-2:]
    is_alike = (scores.product.rows, scores.product.columns) == own and scores.row is sums.row
    return _Chain(first, scores, sums, weighted) if is_alike else None


def scores_of(state: State, weighted: WeightedSum) -> Stage | None:
    """The one reduction, at the root, of whose results the exponentials are made, each of that at its own place."""
    read = {x.buffer: x for x in dict.fromkeys(loads(expanded(state, weighted.value)))}
    made = [s for b in read if b not in weighted.peak.op.buffers and (s := state.producer(b)) is not None]
    makers = [s for s in made if s.op.reducer is not None]
    place = tuple(a.var for a in weighted.weights.op.axes)
    if len(makers) != 1 or makers[0].at is not None or state.is_output(makers[0]):
        return None
    return makers[0] if read[makers[0].op.buffers[0]].indices == place else None


def _in_one(sketch: PartialSketch, stage: Stage, chain: _Chain, held: bool, context: SketchContext) -> PartialSketch:
    """`held`: the rows of the first product's left operand are in registers, not in shared memory."""
    row, depth, first = chain.sums.row, chain.sums.product.depth, chain.first.name
    peak, total = chain.weighted.peak.name, chain.weighted.total.name
    sketch, root = averaged(sketch, stage)
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
    sketch = _spread(sketch, weights, root, acc, (steps.name, row.k // (ACROSS * NEIGHBOURS)))
    sketch = _first(sketch.apply(Online(acc, weights, peak, total)), chain, weights)
    left = chain.scores.product.left.buffer
    outside = At(root, around)
    sketch = _held(sketch, left, first, outside, acc) if held else shared_copy(sketch, left, first, outside)
    sketch = shared_copy(sketch, chain.scores.product.right.buffer, first, At(acc, loops[0]))
    sketch = shared_copy(sketch, chain.sums.product.right.buffer, acc, At(acc, loops[0]))
    sketch = pipeline(sketch, acc, loops[0], depth, context.target).apply(Mma(first, row.name), Mma(acc, row.name))
    return sketch.finish(root, acc, weights, peak, total, first, note=f"{stage.name}:online-{row.name}{'-held' * held}")


def averaged(sketch: PartialSketch, stage: Stage) -> tuple[PartialSketch, str]:
    """The weights divided when they are added up, by what writes the results, in their own order or in another; that
    stage's name."""
    sketch = sketch.apply(Average(stage.name))
    made = sketch.state.stage(stage.name)
    consumer = fused_consumer(sketch.state, made) or turned_consumer(sketch.state, made)
    if consumer is None or consumer.name in sketch.done:
        return sketch, stage.name
    return sketch.apply(ComputeInline(stage.name)), consumer.name


def _bind(sketch: PartialSketch, root: str, acc: str) -> PartialSketch:
    """The loops of what writes: blocks and warps along the rows; all columns are a warp's."""
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


def _spread(sketch: PartialSketch, weights: str, root: str, acc: str, tiles: tuple[Num, ...]) -> PartialSketch:
    """Each lane has the weights of its rows in columns that lie as those of the first product do: in `tiles` of as many
    as a row of lanes has."""
    *batch, rows, columns = (a.name for a in sketch.state.stage(weights).op.axes)
    m = [f"{rows}.{level}" for level in range(5)]
    *n, lanes, neighbours = (f"{columns}.{level}" for level in range(len(tiles) + 3))
    theirs = sketch.state.stage(root)
    places = ("threadIdx.z", "threadIdx.y", "threadIdx.x")
    inner = (n[0], m[2], *n[1:], m[3], neighbours)
    return sketch.apply(
        Split(weights, rows, theirs.factors(places_in(theirs, sketch.state.stage(acc))[-2].name)),
        Split(weights, columns, (*tiles, ACROSS, NEIGHBOURS)),
        Reorder(weights, (m[1], m[4], lanes, *batch, m[0], *inner)),
        *(Spread(weights, x, place) for x, place in zip((m[1], m[4], lanes), places, strict=True)),
        *(Unroll(weights, name) for name in inner),
    )


def _held(sketch: PartialSketch, buffer: str, reader: str, at: At, acc: str) -> PartialSketch:
    """A copy of what `reader` reads of its left operand, each element in the lane that an instruction wants it of."""
    sketch = sketch.apply(CacheRead(buffer, reader, "held"), ComputeAt(f"{buffer}.held", at.stage, at.loop, "warp"))
    return _spread(sketch, f"{buffer}.held", at.stage, acc, ()).finish(f"{buffer}.held")


def _first(sketch: PartialSketch, chain: _Chain, weights: str) -> PartialSketch:
    """The first product, in registers of the lanes that need its results."""
    name, depth = chain.first.name, chain.scores.product.depth.name
    *batch, rows, columns = (a.name for a in chain.first.op.axes)
    within = [x.name for x in sketch.state.stage(weights).loops if x.kind in THREADS][-1]
    inner = (f"{depth}.0", rows, columns, f"{depth}.1")
    return sketch.apply(
        ComputeAt(name, weights, within, Scope.REGISTER.value),
        Split(name, depth, (chain.scores.row.k,)),
        Reorder(name, (*batch, *inner)),
        *(Unroll(name, x) for x in inner),
    )


def shared_copy(sketch: PartialSketch, buffer: str, reader: str, at: At) -> PartialSketch:
    """A copy of what `reader` reads of `buffer` in one iteration of a loop around it, in shared memory."""
    tag = f"{reader}.shared" if sketch.state.taken(f"{buffer}.shared") else "shared"
    copy = f"{buffer}.{tag}"
    sketch = sketch.apply(CacheRead(buffer, reader, tag))
    made = sketch.state.stage(copy)
    gap, width = domains.vector_pad(f"{copy}.pad", made), domains.copied_vector(f"{copy}.w", made)
    return (
        sketch.with_params([gap, width])
        .apply(ComputeAt(copy, at.stage, at.loop, Scope.SHARED.value), Pad(copy, gap.name), Cooperate(copy, width.name))
        .finish(copy)
    )
