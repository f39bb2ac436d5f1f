"""Selection of dot-product instructions for reductions (`instructions/dots.py`), for a vectorised axis.

Such an instruction multiplies *words*: small integers that are adjacent along the reduction, two or four at a time.
"""

from __future__ import annotations

from autosched.ir.expr import Load
from autosched.ir.instructions.dots import INTRINSICS, Intrinsic, factors
from autosched.ir.stmt import Scope
from autosched.schedule import ComputeAt, Parallel, Reorder, Rfactor, Split, Stage, State, Step, Tensorize, Vectorize
from autosched.schedule.stage import StageAxis
from autosched.schedule.steps.tensorize import is_whole, made_of, word_dim
from search_spaces.access import Read, extent, panel_dim, reads_of, reuse_count
from search_spaces.partial_sketch import PartialSketch, SketchContext

# Outputs that use an element, up to which converting it takes longer than a slow dot-product instruction.
CONVERTED_FOR = 2


def tensorization(stage: Stage, reads: tuple[Read, ...], axis: StageAxis, context: SketchContext) -> Tensorize | None:
    """Return the step for `stage` if one operand has its lanes along `axis` and the other one has stride 0 along it.

    Lanes need not be adjacent: words of an operand that is contiguous along the reduction are transposed into panels.
    """
    pair = factors_of(stage)
    if pair is None:
        return None
    strides = {r.load.buffer: r.strides[axis.name] for r in reads}
    lanes = [x for x in pair if strides[x.buffer]]
    if len(lanes) != 1 or None in strides.values():
        return None
    if any(panel_dim(r, stage, axis) is None for r in reads if r.load is lanes[0]):
        return None
    row = _instruction(stage, pair, reads, context)
    for k in reversed(stage.op.reduce_axes):
        if row is not None and extent(k) > 1 and all(word_dim(x, k.var) is not None for x in pair):
            return Tensorize(stage.name, k.name, row.name, lanes[0].buffer)
    return None


def words_along(state: State, stage: Stage, k: StageAxis, context: SketchContext) -> Tensorize | None:
    """Return the step for `stage` if both operands consist of whole words along the reduction axis `k`."""
    pair = factors_of(stage)
    if pair is None:
        return None
    row = _instruction(stage, pair, reads_of(state, stage), context)
    if row is None or extent(k) < row.depth * context.lanes(4):
        return None
    dims = [word_dim(x, k.var) for x in pair]
    whole = all(d is not None and is_whole(state, x, d, k, row.depth) for x, d in zip(pair, dims, strict=True))
    return Tensorize(stage.name, k.name, row.name, "") if whole else None


def has_instruction(state: State, stage: Stage, context: SketchContext) -> bool:
    """Whether the processor has a dot-product instruction for the operands' types."""
    pair = factors_of(stage)
    return pair is not None and _instruction(stage, pair, reads_of(state, stage), context) is not None


def factors_of(stage: Stage) -> tuple[Load, Load] | None:
    """Return the two operands of a sum of products, of different buffers; None if it is not one."""
    reducer = stage.op.reducer
    if len(stage.op.body) != 1 or stage.op.guards or reducer is None or not reducer.is_sum:
        return None
    pair = factors(stage.op.body[0], stage.op.dtypes[0])
    return pair if pair is not None and pair[0].buffer != pair[1].buffer else None


def _instruction(
    stage: Stage, pair: tuple[Load, Load], reads: tuple[Read, ...], context: SketchContext
) -> Intrinsic | None:  # fmt: skip
    """Return the target's instruction for elements of these types, in either order; None where it saves no time."""
    kinds = (pair[0].dtype, pair[1].dtype)
    rows = (row for row in INTRINSICS.values() if row.tile is None)
    fitting = (row for row in rows if kinds in ((row.a, row.b), (row.b, row.a)))
    found = (r for r in fitting if r.accumulator == stage.op.dtypes[0])
    row = next((r for r in found if r.form(context.target.has, context.lanes(4))), None)
    is_slow = row is not None and context.target.mcpu in row.slow_on
    return None if is_slow and min(reuse_count(r, stage) for r in reads) > CONVERTED_FOR else row


def store_words(sketch: PartialSketch, stage: str, step: Tensorize) -> PartialSketch:
    """Return the sketch with the step for the accumulating `stage`; the other operand's words are made at the root."""
    before = {s.name for s in sketch.state.stages}
    sketch = sketch.apply(Tensorize(stage, step.axis, step.intrinsic, step.packed))
    placed = {
        made_of(sketch.state, step.packed, kind, stage) for kind in ("words", "sums")
    }  # scheduled with the panels
    for name in [s.name for s in sketch.state.stages if s.name not in before | placed]:
        axes = sketch.state.stage(name).op.axes
        lanes = next((a for a in reversed(axes) if extent(a) > 1), axes[-1])  # a word may have all channels
        outer = tuple(a.name for a in axes if a is not lanes)
        sketch = sketch.apply(Reorder(name, (*outer, lanes.name)), Vectorize(name, lanes.name))
        sketch = sketch.apply(Parallel(name, outer)) if outer else sketch
        sketch = sketch.finish(name)
    return sketch


def store_sums(sketch: PartialSketch, name: str, axis: str, width: str, at: tuple[str, str] | None) -> PartialSketch:
    """Compute the sums of an operand's words, stage `name`, with its panels: `width` elements of `axis` at a time.

    Instructions without sums (`schedule/steps/tensorize.py`) have no such stage: the sketch is returned unchanged.
    """
    if not any(s.name == name for s in sketch.state.stages):
        return sketch
    op = sketch.state.stage(name).op
    outer = (*(a.name for a in op.axes if a.name != axis), f"{axis}.0")
    sketch = sketch if at is None else sketch.apply(ComputeAt(name, *at))
    order = Reorder(name, (*outer, *(a.name for a in op.reduce_axes), f"{axis}.1"))
    sketch = sketch.apply(Split(name, axis, (width,)), order, Vectorize(name, f"{axis}.1"))
    return (sketch.apply(Parallel(name, outer)) if at is None else sketch).finish(name)


def sums_along(sketch: PartialSketch, before: State, context: SketchContext) -> PartialSketch:
    """Schedule the sums of an operand whose words are read unpacked: nests of their own, lanes along the reduction.

    These are the stages of sums that are new since `before`.
    """
    old = {s.name for s in before.stages}
    for name in [s.name for s in sketch.state.stages if ".sums" in s.name and s.name not in old]:
        op, rf = sketch.state.stage(name).op, f"{name}.rf"
        rows, k = tuple(a.name for a in op.axes), op.reduce_axes[-1].name
        sketch = sketch.apply(Rfactor(name, k, context.lanes(4), "inner"))
        rest = tuple(a.name for a in sketch.state.stage(rf).op.reduce_axes)
        steps: list[Step] = [Reorder(rf, (*rows, *rest, f"{k}.i")), Vectorize(rf, f"{k}.i"), Vectorize(name, f"{k}.i")]
        if rows:
            steps += [Parallel(name, rows[:1]), ComputeAt(rf, name, rows[-1], Scope.REGISTER.value)]
        sketch = sketch.apply(*steps).finish(name, rf)
    return sketch
