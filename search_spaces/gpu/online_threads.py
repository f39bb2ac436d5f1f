"""Online softmax without matrix instructions: attention in one kernel, exact, in any type, on any device.

    blocks of rows i:  threads along i (x), each with a few rows
      the operand with rows i of the first product, in shared memory
      sums of the second product, maximum and sum of each row of weights, in registers
        blocks of k:                              <- the other operands of both products are copied here, or ahead
          the first product for the thread's rows and this k, in registers
          maximum, sum and sums are rescaled to the new maximum; the weights, in registers
          the second product
      the consumer divides by the sums and writes

A thread has whole rows, so that threads exchange nothing: all of them read the same elements of the other operands at a
time. For the two products see `online_softmax.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autosched.ir.stmt import Scope
from autosched.schedule import At, ComputeAt, Online, Reorder, Split, Stage, Unroll
from autosched.schedule.state import State
from autosched.schedule.steps.matrices import ProductAxes, ends_with, product_axes
from autosched.schedule.steps.online import WeightedSum, weighted_sum
from autosched.schedule.steps.stages import places_in
from search_spaces.gpu import domains
from search_spaces.gpu.online_softmax import divide_last, find_scores, shared_copy
from search_spaces.gpu.rows import can_split_tiles, split_tiled_alternatives
from search_spaces.gpu.shared import pipeline
from search_spaces.gpu.thread_binding import bind_blocks, bind_threads, last_thread_loop, size
from search_spaces.gpu.tiling import tiled_alternatives
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext

MOST_COLUMNS = 96  # of the second product: they are in registers of a thread
MOST_TERMS = 256  # of the first product


@dataclass(frozen=True)
class _Attention:
    """The first product of an attention and the second, whose weights are the softmax of the first one's results."""

    first: Stage
    scores: ProductAxes
    sums: ProductAxes
    weighted: WeightedSum


class OnlineSoftmaxByThreads:
    """Both products and the softmax in one kernel; then the other rules' alternatives for the second product."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return _match_attention(sketch.state, stage) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        pair = _match_attention(sketch.state, stage)
        assert pair is not None
        apart = split_tiled_alternatives if can_split_tiles(sketch.state, stage) else tiled_alternatives
        return [partial(_fused_kernel, sketch, stage, pair, context), *apart(sketch, stage, context)]


def _match_attention(state: State, stage: Stage) -> _Attention | None:
    weighted, sums = weighted_sum(state, stage), product_axes(stage)
    if weighted is None or sums is None or sums.left is not weighted.load or not ends_with(state, sums):
        return None
    if sums.rows is not stage.op.axes[-2] or size(sums.columns) > MOST_COLUMNS:
        return None
    first = find_scores(state, weighted)
    scores = None if first is None else product_axes(first)
    if first is None or scores is None or not ends_with(state, scores):
        return None
    is_alike = (scores.rows, scores.columns) == first.op.axes[-2:] and size(scores.depth) <= MOST_TERMS
    return _Attention(first, scores, sums, weighted) if is_alike else None


def _fused_kernel(sketch: PartialSketch, stage: Stage, pair: _Attention, context: SketchContext) -> PartialSketch:
    depth, first, terms = pair.sums.depth, pair.first.name, pair.scores.depth
    peak, total = pair.weighted.peak.name, pair.weighted.total.name
    sketch, root = divide_last(sketch, stage)
    acc, weights = f"{stage.name}.acc", f"{stage.name}.weights"
    sketch = _bind(sketch, root, acc)
    around = last_thread_loop(sketch, root)
    steps = domains.row_weights(f"{acc}.{depth.name}.c", size(depth))
    unrolled = domains.unroll(f"{first}.{terms.name}.u", size(terms), f"{first}.{terms.name}")
    k, d = ([f"{axis.name}.{n}" for n in range(2)] for axis in (depth, terms))
    points, scored = ([a.name for a in s.op.axes] for s in (stage, pair.first))
    sketch = sketch.with_params([steps, unrolled]).apply(
        ComputeAt(acc, root, around, Scope.REGISTER.value),
        Split(acc, depth.name, (steps.name,)),
        Reorder(acc, (*k, *points)),
        *(Unroll(acc, name) for name in (k[1], *points)),
        ComputeAt(weights, acc, k[0], Scope.REGISTER.value),
        *(Unroll(weights, a.name) for a in pair.weighted.weights.op.axes),
        Online(acc, weights, peak, total),
        ComputeAt(first, acc, k[0], Scope.REGISTER.value),
        Split(first, terms.name, (unrolled.name,)),
        Reorder(first, (*d, *scored)),
        *(Unroll(first, name) for name in (d[1], *scored)),
    )
    sketch = shared_copy(sketch, pair.scores.left.buffer, first, At(root, around))
    sketch = shared_copy(sketch, pair.scores.right.buffer, first, At(acc, k[0]))
    sketch = shared_copy(sketch, pair.sums.right.buffer, acc, At(acc, k[0]))
    sketch = pipeline(sketch, acc, k[0], depth, context.target)
    return sketch.finish(root, acc, weights, peak, total, first, note=f"{stage.name}:online-threads")


def _bind(sketch: PartialSketch, root: str, acc: str) -> PartialSketch:
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
