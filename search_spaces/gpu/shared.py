"""Operands in shared memory: copies by all threads of a block, before the reads or some iterations ahead.

A private producer (padding, an activation) is computed in the copy, without a pass over memory of its own.
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

MOST_NODES = 64  # nodes of an expression up to which it is recomputed for every tile


def reused_operands(stage: Stage, reads: tuple[Read, ...]) -> tuple[str, ...]:
    """Return the buffers whose elements several points read, if all reads of a buffer differ by constants."""
    names = dict.fromkeys(r.load.buffer for r in reads if is_reused(r, stage) or _overlaps(r, stage))
    own = {b: [r for r in reads if r.load.buffer == b] for b in names}
    return tuple(b for b in names if _moves_together(own[b]) and not any(r.is_indirect for r in own[b]))


def _overlaps(read: Read, stage: Stage) -> bool:
    """Whether windows of neighbouring points overlap: an index contains a spatial and a reduction axis."""
    spatial = {a.var for a in stage.op.axes}
    reduced = {a.var for a in stage.op.reduce_axes}
    return any(free_vars(i) & spatial and free_vars(i) & reduced for i in read.load.indices)


def _moves_together(reads: list[Read]) -> bool:
    """Whether the reads of one buffer differ by constants only; otherwise the copy would need the whole buffer."""
    forms = [tuple(dict(linear(i).terms) for i in r.load.indices) for r in reads]
    return all(form == forms[0] for form in forms)


def private_producer(sketch: PartialSketch, stage: Stage, buffer: str) -> Stage | None:
    """Return the cheap elementwise stage that computes `buffer` for this reduction alone; None if there is none."""
    state = sketch.state
    producer = state.producer(buffer)
    if producer is None or not producer.op.is_elementwise or producer.at is not None or state.is_output(producer):
        return None
    alone = [s.name for s in state.consumers(producer)] == [stage.name] and not state.attached(producer.name)
    nodes = sum(len(list(subexpressions(v))) for v in producer.op.body)
    cheap = nodes <= MOST_NODES and not is_expensive(producer) and not switch_axes(producer)
    return producer if alone and cheap and producer.name not in sketch.done else None


def private_producers(sketch: PartialSketch, stage: Stage, buffer: str) -> list[Stage]:
    """As `private_producer`, as a list."""
    producer = private_producer(sketch, stage, buffer)
    return [] if producer is None else [producer]


def transposed_dimension(stage: Stage, reads: list[Read], batch: frozenset[str]) -> int | None:
    """Return the dimension to store innermost, of a buffer that is contiguous along the reduction only; else None.

    Neighbouring points of such a buffer are a row apart. The dimension is the last one whose index contains an output
    axis that is not in `batch`.
    """
    spatial = {a.var for a in stage.op.axes if a.name not in batch}
    for read in reads:
        moving = [a for a in stage.op.all_axes if read.strides[a.name] == 1]
        if not moving or not all(a.reduce for a in moving):
            return None
    indices = reads[0].load.indices
    return max((n for n, i in enumerate(indices[:-1]) if free_vars(i) & spatial), default=None)


def pipeline(sketch: PartialSketch, reader: str, loop: str, axis: StageAxis, target: Target) -> PartialSketch:
    """Fill the shared buffers of a loop some iterations ahead (multi-stage buffering).

    The copies are asynchronous where the hardware supports that, else through registers. A reduction over one element
    has nothing to fill ahead.
    """
    if all(size(a) == 1 for a in sketch.state.stage(reader).op.reduce_axes):
        return sketch
    has_copies = target.gpu is not None and target.gpu.has_asynchronous_copies
    asynchronous = has_copies and target.backend.has_asynchronous_copies
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
    """Copy the elements of `buffer` that `reader` reads in one iteration of its loop `loop` into shared memory.

    `folded`: the stages that compute `buffer`, inlined into the copy, last ones first. `innermost`: the dimension that
    is stored innermost instead of the last; adjacent elements of memory are then not adjacent in the copy, and no copy
    is a vector. `in_lines`: rows are copied and read by whole accesses.
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
        copied = sketch.state.stage(copy)
        gap, width = domains.vector_pad(f"{copy}.pad", copied, in_lines), domains.copied_vector(f"{copy}.w", copied)
        params += [gap, width]
        steps += [Pad(copy, gap.name), Cooperate(copy, width.name)]
    return sketch.with_params(params).apply(*steps).finish(copy)
