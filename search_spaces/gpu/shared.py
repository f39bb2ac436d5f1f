"""Operands copied into shared memory by all threads of a block, before they are read or some iterations ahead.

A stage that only this reduction reads (padding, an activation) is computed in the copy: no pass over memory of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosched.ir.linear import linear
from autosched.ir.stmt import Scope
from autosched.ir.visit import free_vars, subexpressions
from autosched.schedule import CacheRead, ComputeAt, ComputeInline, Cooperate, Pack, Pad, Pipeline, Stage, Step
from autosched.schedule.stage import StageAxis
from autosched.target import Target
from search_spaces.access import Read, is_reused
from search_spaces.fusion import is_expensive, switch_axes
from search_spaces.gpu import domains
from search_spaces.gpu.thread_binding import size
from search_spaces.partial_sketch import PartialSketch
from search_spaces.space import SketchParam

MOST_NODES = 64  # a larger expression is not computed again for every tile


def reused_operands(stage: Stage, reads: tuple[Read, ...]) -> tuple[str, ...]:
    """Buffers whose elements several points of a block read, if all reads of a buffer move together."""
    names = dict.fromkeys(r.load.buffer for r in reads if is_reused(r, stage) or _overlaps(r, stage))
    own = {b: [r for r in reads if r.load.buffer == b] for b in names}
    return tuple(b for b in names if _moves_together(own[b]) and not any(r.is_indirect for r in own[b]))


def _overlaps(read: Read, stage: Stage) -> bool:
    """Windows of neighbouring points overlap: an index moves with a spatial and a reduction axis."""
    spatial = {a.var for a in stage.op.axes}
    reduced = {a.var for a in stage.op.reduce_axes}
    return any(free_vars(i) & spatial and free_vars(i) & reduced for i in read.load.indices)


def _moves_together(reads: list[Read]) -> bool:
    """Whether the reads of one buffer differ by constants only; others would need the whole buffer in shared memory."""
    forms = [tuple(dict(linear(i).terms) for i in r.load.indices) for r in reads]
    return all(form == forms[0] for form in forms)


def private_producer(sketch: PartialSketch, stage: Stage, buffer: str) -> Stage | None:
    """The cheap elementwise stage that makes `buffer` for this reduction alone, if there is one."""
    state = sketch.state
    producer = state.producer(buffer)
    if producer is None or producer.op.reducer is not None or producer.at is not None or state.is_output(producer):
        return None
    alone = [s.name for s in state.consumers(producer)] == [stage.name] and not state.attached(producer.name)
    nodes = sum(len(list(subexpressions(v))) for v in producer.op.body)
    cheap = nodes <= MOST_NODES and not is_expensive(producer) and not switch_axes(producer)
    return producer if alone and cheap and producer.name not in sketch.done else None


def private_producers(sketch: PartialSketch, stage: Stage, buffer: str) -> list[Stage]:
    """The same as a list."""
    producer = private_producer(sketch, stage, buffer)
    return [] if producer is None else [producer]


def transposed_dimension(stage: Stage, reads: list[Read], batch: frozenset[str]) -> int | None:
    """The dimension to store innermost, of a buffer that is contiguous along the reduction only; else None.

    Neighbouring points of such a buffer are a row apart. The dimension is the last one that moves with an output axis,
    but not with those of `batch`.
    """
    spatial = {a.var for a in stage.op.axes if a.name not in batch}
    for read in reads:
        moving = [a for a in stage.op.all_axes if read.strides[a.name] == 1]
        if not moving or not all(a.reduce for a in moving):
            return None
    indices = reads[0].load.indices
    return max((n for n, i in enumerate(indices[:-1]) if free_vars(i) & spatial), default=None)


def pipeline(sketch: PartialSketch, reader: str, loop: str, axis: StageAxis, target: Target) -> PartialSketch:
    """The shared buffers of a loop filled some iterations ahead (multi-stage buffering).

    Asynchronous copies fill them where the hardware has these, else copies through registers. A reduction over one
    element has nothing to fill ahead.
    """
    if all(size(a) == 1 for a in sketch.state.stage(reader).op.reduce_axes):
        return sketch
    here = target.gpu is not None and target.gpu.has_asynchronous_copies
    asynchronous = here and target.backend.has_asynchronous_copies
    stages = domains.stages(f"{reader}.stages", size(axis), f"{reader}.{axis.name}", asynchronous)
    step = Pipeline(reader, loop, stages.name, "asynchronous" if asynchronous else "registers")
    return sketch.with_params([stages]).apply(step)


def copy_to_shared(
    sketch: PartialSketch,
    buffer: str,
    reader: str,
    loop: str,
    folded: Sequence[Stage],
    innermost: int | None,
    in_lines: bool = False,
) -> PartialSketch:
    """A shared copy of what `reader` reads of `buffer` in one iteration of its loop `loop`.

    `folded`: the stages that make `buffer`, computed in the copy, last ones first. `innermost`: the dimension that is
    stored innermost instead of the last; neighbours in memory are then no neighbours in the copy, and nothing is a
    vector. Rows that are `in_lines` are whole accesses all the same.
    """
    tag = f"{reader}.shared" if sketch.state.taken(f"{buffer}.shared") else "shared"
    copy = f"{buffer}.{tag}"
    params: list[SketchParam] = []
    sketch = sketch.apply(CacheRead(buffer, reader, tag), *(ComputeInline(producer.name) for producer in folded))
    steps: list[Step] = [ComputeAt(copy, reader, loop, Scope.SHARED.value)]
    if innermost is not None:
        name = f"{copy}.pad"
        gap = domains.vector_pad(name, sketch.state.stage(copy), True) if in_lines else domains.pad(name)
        params.append(gap)
        rank = len(sketch.state.stage(copy).op.axes)
        order = (*(d for d in range(rank) if d != innermost), innermost)
        steps += [Pack(copy, order), Pad(copy, gap.name), Cooperate(copy, 1)]
    else:
        made = sketch.state.stage(copy)
        gap, width = domains.vector_pad(f"{copy}.pad", made, in_lines), domains.copied_vector(f"{copy}.w", made)
        params += [gap, width]
        steps += [Pad(copy, gap.name), Cooperate(copy, width.name)]
    return sketch.with_params(params).apply(*steps).finish(copy)
