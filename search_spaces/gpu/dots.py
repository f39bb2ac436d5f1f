"""Dot-product instructions for reductions of products of bytes (`ir/instructions/dots.py`).

Their operands are words of four bytes that are adjacent along the reduction. Operands that are stored so are read
unpacked; others are packed by a kernel before this one.
"""

from __future__ import annotations

from autosched.ir.instructions.dots import INTRINSICS, factors
from autosched.schedule import Stage, State, Tensorize
from autosched.schedule.steps.tensorize import is_whole, word_dim
from search_spaces.access import extent
from search_spaces.gpu.elementwise import own_nests
from search_spaces.partial_sketch import PartialSketch


def in_dots(sketch: PartialSketch, stage: Stage) -> PartialSketch | None:
    """Return the sketch with words for the operands of the stage; None where no instruction adds up their products."""
    step = _tensorization(sketch.state, stage)
    if step is None:
        return None
    before = {s.name for s in sketch.state.stages}
    sketch = sketch.apply(step)
    for packed in [s for s in sketch.state.stages if s.name not in before]:
        sketch = own_nests(sketch, packed)[-1]  # without a shared tile
    return sketch


def _tensorization(state: State, stage: Stage) -> Tensorize | None:
    reducer = stage.op.reducer
    if len(stage.op.body) != 1 or stage.op.guards or reducer is None or not reducer.is_sum:
        return None
    pair = factors(stage.op.body[0], stage.op.dtypes[0])
    if pair is None or pair[0].buffer == pair[1].buffer:
        return None
    kinds = (pair[0].dtype, pair[1].dtype)
    rows = (row for row in INTRINSICS.values() if row.is_of_gpus and kinds in ((row.a, row.b), (row.b, row.a)))
    row = next((row for row in rows if row.accumulator == stage.op.dtypes[0]), None)
    if row is None:
        return None
    for k in reversed(stage.op.reduce_axes):
        dims = [word_dim(x, k.var) for x in pair]
        if extent(k) < row.depth or None in dims:
            continue
        whole = [d is not None and is_whole(state, x, d, k, row.depth) for x, d in zip(pair, dims, strict=True)]
        packed = "" if all(whole) else pair[whole.index(False)].buffer
        return Tensorize(stage.name, k.name, row.name, packed)
    return None
