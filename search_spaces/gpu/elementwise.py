"""Rules for stages without a reduction.

Inline         inlines everything cheap into its readers, unless a tiled reduction reads it (Ansor's R2)
FusedConsumer  leaves an elementwise stage that a reduction will be fused to for that reduction's rule
Elementwise    all others: threads along the last axis, vectors innermost; a transposed read through shared memory; in
               tiles that compute the stages that they read
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.dtype import DTYPES
from autosched.ir.stmt import Scope
from autosched.ir.visit import subexpressions
from autosched.schedule import (
    CacheRead,
    ComputeAt,
    ComputeInline,
    Cooperate,
    Pad,
    Reorder,
    Split,
    Stage,
    Step,
    Unroll,
    Vectorize,
)
from autosched.schedule.stage import StageAxis
from autosched.schedule.state import State
from autosched.schedule.steps.online import weighted_sum
from search_spaces.access import Read, extent, has_reuse, reads_of
from search_spaces.fusion import (
    fused_consumer,
    is_cheaper_stored,
    is_copy,
    is_expensive,
    is_too_large_inlined,
    permuted_consumer,
    switch_axes,
    would_lose_switch,
)
from search_spaces.gpu import domains
from search_spaces.gpu.overlapped_tiles import overlapped_tiles
from search_spaces.gpu.thread_binding import bind_blocks, bind_threads, last_thread_loop, size
from search_spaces.partial_sketch import PartialSketch, SketchContext
from search_spaces.space import SketchParam

SHORT = 16  # elements of a last axis up to which threads run along the axis before it
MOST_NODES = 64  # nodes of an expression up to which each of several readers may recompute it


@dataclass(frozen=True)
class Inline:
    """A stage that is cheaper to compute in each of its readers than to store.

    `keeps_repeated`: not one of which elementwise readers use values several times, so that their tiles can compute it.
    """

    keeps_repeated: bool = False

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        state = sketch.state
        if not stage.op.is_elementwise or state.is_output(stage) or state.attached(stage.name):
            return False
        if is_too_large_inlined(state, stage):
            return False
        readers = state.consumers(stage)
        if not readers or is_copy(stage) or not stage.op.reads:
            return bool(readers)
        if any(has_reuse(r, reads_of(state, r)) for r in readers) or would_lose_switch(stage, readers):
            return False
        if self.keeps_repeated and all(r.op.is_elementwise for r in readers) and is_cheaper_stored(state, stage):
            return False
        if len(readers) == 1:
            return True
        nodes = sum(len(list(subexpressions(v))) for v in stage.op.body)
        kept = is_expensive(stage) and any(r.op.reducer is not None for r in readers)
        return nodes <= MOST_NODES and not kept

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        return [sketch.apply(ComputeInline(stage.name)).finish(stage.name)]


class FusedConsumer:
    """An elementwise stage that is a reduction's fused consumer: that reduction's rule schedules both."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.is_elementwise and any(_waits_for(sketch.state, s, stage) for s in sketch.state.stages)

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        return [sketch]


def _waits_for(state: State, producer: Stage, stage: Stage) -> bool:
    if producer.op.reducer is None or stage not in state.consumers(producer):
        return False
    if fused_consumer(state, producer) is stage:
        return True
    if permuted_consumer(state, producer) is stage and weighted_sum(state, producer) is not None:
        return True
    return not has_reuse(producer, reads_of(state, producer)) and shares_leading_axes(producer, stage)


def shares_leading_axes(producer: Stage, consumer: Stage) -> bool:
    """Whether the producer's axes equal the consumer's leading axes; axes of length 1 do not count."""
    own = [size(a) for a in producer.op.axes if size(a) > 1]
    return len(own) < len(consumer.op.axes) and own == [size(a) for a in consumer.op.axes[: len(own)]]


class Elementwise:
    """An elementwise stage in a kernel of its own, and in tiles in which the stages that it reads are computed."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.is_elementwise

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        tiles = overlapped_tiles(sketch, stage, context)
        return [*(own_nests(sketch, stage) if sketch.state.is_output(stage) or not tiles else []), *tiles]


def own_nests(sketch: PartialSketch, stage: Stage) -> list[PartialSketch]:
    """Return the stage in a kernel of its own; a transposed read also through a tile in shared memory."""
    note = "" if sketch.state.is_output(stage) else f"{stage.name}@root"
    if not stage.op.axes:
        return [sketch.finish(stage.name, note=note)]
    across = _transposed_axis(sketch, stage)
    if across is None:
        return [_plain(sketch, stage).finish(stage.name, note=note)]
    tiled = _tiled(sketch, stage, across)
    reads = [r for r in reads_of(sketch.state, stage) if r.strides[across] == 1 and not r.is_unit(_last(stage))]
    shared = [_through_shared(tiled, stage.name, r) for r in reads[:1] if _is_alone(r, sketch, stage)]
    notes = [f"{stage.name}:shared"] * len(shared) + [f"{stage.name}:direct"]
    return [d.finish(stage.name, note=n) for d, n in zip([*shared, tiled], notes, strict=True)]


def _last(stage: Stage) -> str:
    return stage.op.axes[-1].name


def _plain(sketch: PartialSketch, stage: Stage) -> PartialSketch:
    """Bind threads x along the last axis, y along the one before, more of them where the last is short; switch axes are
    unrolled, vectors innermost."""
    name = stage.name
    *others, last = stage.op.axes
    short = [a for a in others if a.name in switch_axes(stage)]
    rows = [a for a in others if a not in short]
    group = f"{name}.{last.name}"
    params = [
        domains.threads(f"{group}.t", size(last), group, domains.MOST_X),
        domains.vector(f"{group}.w", size(last), group, narrowest(stage)),
    ]
    steps: list[Step] = [Split(name, last.name, tuple(p.name for p in params))]
    blocks = [*(a.name for a in rows), f"{last.name}.0"]
    threads = [f"{last.name}.1"]
    if rows:
        count, split = row_threads(name, rows[-1], last)
        params.append(count)
        steps.append(split)
        blocks[-2] = f"{rows[-1].name}.0"
        threads.insert(0, f"{rows[-1].name}.1")
    tail = [a.name for a in short]
    steps.append(Reorder(name, (*blocks, *threads, *tail, f"{last.name}.2")))
    steps += bind_blocks(name, blocks, [size(a) for a in (*rows, last)])
    steps += bind_threads(name, threads)
    steps += [Unroll(name, x) for x in tail]
    steps.append(Vectorize(name, f"{last.name}.2"))
    return sketch.with_params(params).apply(*steps)


def row_threads(stage: str, row: StageAxis, last: StageAxis) -> tuple[SketchParam, Split]:
    """Return the number of threads along the axis before the last one, and the split of that axis by it."""
    most = domains.MOST_X if size(last) <= SHORT else domains.MOST_YZ
    count = domains.threads(f"{stage}.{row.name}.t", size(row), "", most)
    return count, Split(stage, row.name, (count.name,))


def narrowest(stage: Stage) -> int:
    """Return the bytes of the smallest elements that the stage writes or reads."""
    return min(DTYPES[d].nbytes for d in (*stage.op.dtypes, *(x.dtype for x in stage.op.loads)))


def _transposed_axis(sketch: PartialSketch, stage: Stage) -> str | None:
    """Return an outer axis along which a read is contiguous while the written axis is not; None if there is none."""
    if switch_axes(stage):
        return None
    for read in reads_of(sketch.state, stage):
        if read.is_unit(_last(stage)):
            continue
        for axis in stage.op.axes[:-1]:
            if read.strides[axis.name] == 1 and extent(axis) > 1:
                return axis.name
    return None


def _is_alone(read: Read, sketch: PartialSketch, stage: Stage) -> bool:
    """Whether this is the stage's only read of that buffer, and not indirect."""
    return not read.is_indirect and sum(r.load.buffer == read.load.buffer for r in reads_of(sketch.state, stage)) == 1


def _tiled(sketch: PartialSketch, stage: Stage, across: str) -> PartialSketch:
    """Tile in about square tiles: threads x along the last axis, threads y and a few strided points along `across`."""
    name, last = stage.name, stage.op.axes[-1]
    group = f"{name}.{across}"
    length = size(stage.op.axis(across))
    params = [
        domains.threads(f"{name}.{last.name}.t", size(last), "", 64),
        domains.vthreads(f"{group}.v", length, group),
        domains.threads(f"{group}.t", length, group, domains.MOST_YZ),
    ]
    steps: list[Step] = [
        Split(name, last.name, (params[0].name,)),
        Split(name, across, (params[1].name, params[2].name)),
    ]
    split = {last.name, across}
    blocks = [f"{a.name}.0" if a.name in split else a.name for a in stage.op.axes]
    threads = [f"{across}.2", f"{last.name}.1"]
    steps.append(Reorder(name, (*blocks, *threads, f"{across}.1")))
    steps += bind_blocks(name, blocks, [size(a) for a in stage.op.axes])
    steps += bind_threads(name, threads)
    steps.append(Unroll(name, f"{across}.1"))
    return sketch.with_params(params).apply(*steps)


def _through_shared(sketch: PartialSketch, stage: str, read: Read) -> PartialSketch:
    """Read through a shared tile, filled along the read's contiguous axis; padding avoids bank conflicts of columns."""
    buffer = read.load.buffer
    tag = f"{stage}.shared" if sketch.state.taken(f"{buffer}.shared") else "shared"
    copy = f"{buffer}.{tag}"
    sketch = sketch.apply(CacheRead(buffer, stage, tag))
    width, gap = domains.copied_vector(f"{copy}.w", sketch.state.stage(copy)), domains.pad(f"{copy}.pad")
    steps: tuple[Step, ...] = (
        ComputeAt(copy, stage, last_thread_loop(sketch, stage), Scope.SHARED.value),
        Pad(copy, gap.name),
        Cooperate(copy, width.name),
    )
    return sketch.with_params([width, gap]).apply(*steps).finish(copy)
