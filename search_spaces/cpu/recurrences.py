"""Recurrences (`te.scan`): the loop along the axis is serial, and lines along it are in lanes and tasks.

    along another axis than the last one            along the last one, contiguous in memory
    parallel chunks of the last axis                parallel blocks of lines
      positions along the axis                        the inputs of the block, transposed
        vectors of the chunk                          positions along the axis
                                                        vectors of lines
                                                      the results of the block, transposed back

The values of the position before are in registers where vectors of a chunk are few, else in the first cache or the
second one: a chunk may be as wide as sequential streams from memory want it. A recurrence that another one reads, as a
filter forwards and then backwards, is computed in the tasks of that one, where its values stay in the second cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.dtype import DTYPES
from autosched.schedule import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    Pack,
    Parallel,
    Reorder,
    Split,
    Stage,
    Step,
    Unroll,
    Vectorize,
)
from autosched.schedule.stage import StageAxis
from search_spaces.access import Read, extent, points, reads_of
from search_spaces.cpu.domains import across_tile, tile_count, vector_width
from search_spaces.cpu.elementwise import FEW_POINTS
from search_spaces.fusion import fused_consumer
from search_spaces.partial_sketch import PartialSketch, SketchContext


class AlongAxis:
    """A recurrence: lanes along the last axis; where it goes along that one, blocks of lines that are transposed, and
    lines one after the other. Another recurrence that it reads goes along in the same tasks, or has its own; so does a
    fused consumer."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.recurrence is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        joins = [True, False] if _source(sketch, stage) is not None else [False]
        consumer = fused_consumer(sketch.state, stage)
        writers = [stage] if consumer is None or consumer.name in sketch.done else [consumer, stage]
        ways = [(writer, joined) for writer in writers for joined in joins]
        if stage.op.ordered_axis is not stage.op.axes[-1]:
            return [_columns(sketch, stage, writer, context, joined) for writer, joined in ways]
        plain = _lines(sketch, stage)
        if all(extent(a) == 1 for a in stage.op.axes[:-1]):
            return [plain]
        return [*(_Block.of(writer, context).transposed(sketch, stage, joined) for writer, joined in ways), plain]


def _source(sketch: PartialSketch, stage: Stage) -> Stage | None:
    """Return a recurrence that the stage alone reads, on its own lines, along the same axis; None if there is none."""
    state, op = sketch.state, stage.op
    for source in (s for s in state.stages if s.op.recurrence is not None and s.name not in sketch.done):
        axis = op.recurrence.axis if op.recurrence is not None else None
        if state.consumers(source) != (stage,) or state.is_output(source) or source.op.recurrence is None:
            continue
        lines = [a.var for n, a in enumerate(op.axes) if n != axis]
        reads = ([i for n, i in enumerate(x.indices) if n != axis] for x in op.loads_from(*source.op.buffers))
        if source.op.recurrence.axis == axis and all(read == lines for read in reads):
            return source
    return None


def _columns(sketch: PartialSketch, stage: Stage, writer: Stage, context: SketchContext, joins: bool) -> PartialSketch:
    """Chunks of the axes behind that of the recurrence in parallel; in each, position after position in vectors.

    `writer`: the stage whose chunks they are, the recurrence or its fused consumer. With `joins`, recurrences that are
    read are computed chunk by chunk as well.
    """
    assert stage.op.recurrence is not None
    name, place, lanes = writer.name, stage.op.recurrence.axis, context.lanes_of(writer)
    before, axis, behind = writer.op.axes[:place], writer.op.axes[place], writer.op.axes[place + 1 :]
    last = behind[-1]
    group = f"{name}.{last.name}"
    count = replace(tile_count(f"{group}.m", -(-extent(last) // lanes), group), extent=extent(last))
    width = vector_width(f"{group}.r", extent(last), lanes, group, vectors=(1, 2, 4, 8))
    params, steps = [count, width], [Split(name, last.name, (count.name, width.name))]
    tasks, inner = [*(a.name for a in before), f"{last.name}.0"], [f"{last.name}.1", f"{last.name}.2"]
    if len(behind) > 1:
        first = behind[0]
        rows = tile_count(f"{name}.{first.name}.m", extent(first), "")
        params.append(rows)
        steps.append(Split(name, first.name, (rows.name,)))
        tasks.insert(len(before), f"{first.name}.0")
        inner = [f"{first.name}.1", *(a.name for a in behind[1:-1]), *inner]
    loops: list[Step] = [Reorder(name, (*tasks, axis.name, *inner))]
    if points(writer) > FEW_POINTS:
        loops.append(Parallel(name, tuple(tasks)))
    loops.append(Vectorize(name, inner[-1]))
    sketch = sketch.with_params(params).apply(*steps, *loops).finish(name, note=f"{name}:columns")
    source = stage if writer is not stage else _source(sketch, sketch.state.stage(name)) if joins else None
    while source is not None:
        sketch, reader = _with_columns(sketch, source, (name, tasks[-1]), context), source.name
        source = _source(sketch, sketch.state.stage(reader)) if joins else None
    return sketch


def _with_columns(sketch: PartialSketch, stage: Stage, task: tuple[str, str], context: SketchContext) -> PartialSketch:
    """Return the sketch with a recurrence computed for each task of another stage, in vectors."""
    name, last = stage.name, stage.op.axes[-1]
    width = vector_width(f"{name}.{last.name}.r", extent(last), context.lanes_of(stage), "", vectors=(1, 2, 4, 8))
    loops = [*(a.name for a in stage.op.axes[:-1]), f"{last.name}.0", f"{last.name}.1"]
    steps = (ComputeAt(name, *task), Split(name, last.name, (width.name,)), Reorder(name, tuple(loops)))
    sketch = sketch.with_params([width]).apply(*steps, Vectorize(name, loops[-1]))
    return sketch.finish(name, note=f"{name}@{task[0]}")


def _lines(sketch: PartialSketch, stage: Stage) -> PartialSketch:
    """The loops as they are: one position after the other, lines in parallel."""
    tasks = tuple(a.name for a in stage.op.axes[:-1])
    is_long = points(stage) > FEW_POINTS and bool(tasks)
    sketch = sketch.apply(Parallel(stage.name, tasks)) if is_long else sketch
    return sketch.finish(stage.name, note=f"{stage.name}:lines")


@dataclass(frozen=True)
class _Block:
    """Lines along the last axis in lanes, in the tasks of `writer`, which writes what they give: the recurrence or its
    fused consumer. `lines` is the axis that they are numbered by."""

    writer: Stage
    lines: str
    context: SketchContext

    @staticmethod
    def of(writer: Stage, context: SketchContext) -> _Block:
        return _Block(writer, max(writer.op.axes[:-1], key=extent).name, context)

    def transposed(self, sketch: PartialSketch, stage: Stage, joins: bool) -> PartialSketch:
        """Return the sketch with blocks of lines in parallel, transposed before and after; with `joins`, recurrences
        that the recurrence `stage` reads are computed in these blocks as well."""
        writer, name, i = self.writer, self.writer.name, self.lines
        *others, j = writer.op.axes
        lanes, group = self.context.lanes_of(writer), f"{name}.{j.name}"
        block = vector_width(f"{name}.{i}.l", extent(writer.op.axis(i)), lanes, "", vectors=(1, 2, 4))
        width = vector_width(f"{group}.r", extent(j), lanes, group, vectors=(1, 2, 4))
        tasks = tuple(f"{i}.0" if a.name == i else a.name for a in others)
        steps: list[Step] = [
            *([CacheWrite(name)] if writer is stage else []),
            Split(name, i, (block.name,)),
            Split(name, j.name, (width.name,)),
            Reorder(name, (*tasks, f"{j.name}.0", f"{i}.1", f"{j.name}.1")),
        ]
        if points(writer) > FEW_POINTS:
            steps.append(Parallel(name, tasks))
        steps += [Unroll(name, f"{i}.1"), Vectorize(name, f"{j.name}.1")]
        sketch = sketch.with_params([block, width]).apply(*steps).finish(name, note=f"{name}:blocks")
        return self._with_lanes(sketch, f"{name}.acc" if writer is stage else stage.name, tasks[-1], joins)

    def _with_lanes(self, sketch: PartialSketch, name: str, task: str, joins: bool) -> PartialSketch:
        """Return the sketch with the recurrence `name` computed in the blocks, lines in lanes."""
        stage = sketch.state.stage(name)
        dim = self.writer.op.axes.index(self.writer.op.axis(self.lines))
        loops = [a.name for n, a in enumerate(stage.op.axes) if n != dim]
        lines, order = stage.op.axes[dim], (*(n for n in range(len(stage.op.axes)) if n != dim), dim)
        steps = (ComputeAt(name, self.writer.name, task), Reorder(name, (*loops, lines.name)), Pack(name, order))
        source = _source(sketch, stage) if joins else None
        note = "" if name == f"{self.writer.name}.acc" else f"{name}@{self.writer.name}"
        sketch = sketch.apply(*steps, Vectorize(name, lines.name)).finish(name, note=note)
        reads = [r for r in reads_of(sketch.state, stage) if r.load.buffer not in stage.op.buffers]
        for buffer in dict.fromkeys(r.load.buffer for r in reads):
            if source is None or buffer not in source.op.buffers:
                copied = _order([r for r in reads if r.load.buffer == buffer], lines, stage.op.axes[-1])
                sketch = self._with_copy(sketch, name, buffer, copied, task) if copied else sketch
        return sketch if source is None else self._with_lanes(sketch, source.name, task, joins)

    def _with_copy(
        self, sketch: PartialSketch, reader: str, buffer: str, order: tuple[int, ...], task: str
    ) -> PartialSketch:
        """Return the sketch where a recurrence reads a transposed copy of a block's elements of `buffer`."""
        tag = f"{reader}.lines"
        sketch = sketch.apply(CacheRead(buffer, reader, tag, order))
        copy = sketch.state.stage(f"{buffer}.{tag}")
        along, across = copy.op.axes[-2].name, copy.op.axes[-1].name
        itemsize = DTYPES[copy.op.dtypes[0]].nbytes
        tile = across_tile(f"{copy.name}.r", extent(copy.op.axes[-2]), itemsize=itemsize)
        steps: tuple[Step, ...] = (
            ComputeAt(copy.name, self.writer.name, task),
            Split(copy.name, along, (tile.name,)),
            Unroll(copy.name, f"{along}.1"),
            Vectorize(copy.name, across),
        )
        return sketch.with_params([tile]).apply(*steps).finish(copy.name)


def _order(reads: list[Read], lines: StageAxis, along: StageAxis) -> tuple[int, ...]:
    """Return the order of a buffer's dimensions with that of the lines last and that along them before it; none where
    it is not read along the lines, or where reads index the lines otherwise."""
    dims, rank = {r.dim_of(lines.var) for r in reads}, len(reads[0].load.indices)
    (dim,) = dims if len(dims) == 1 else (None,)
    if dim is None or dim == rank - 1 or all(r.strides[along.name] not in (1, -1) for r in reads):
        return ()
    return (*(d for d in range(rank - 1) if d != dim), rank - 1, dim)
