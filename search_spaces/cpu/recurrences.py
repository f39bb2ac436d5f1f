"""Recurrences (`te.scan`): the loop along the axis is serial, and lines along it are in lanes and tasks.

    along another axis than the last one            along the last one, contiguous in memory
    parallel chunks of the last axis                parallel blocks of lines
      positions along the axis                        the inputs of the block, transposed
        vectors of the chunk                          positions along the axis
                                                        vectors of lines
                                                      the results of the block, transposed back

The values of the position before are read from the first cache, or the second one: a chunk of the last axis is
as wide as the sequential streams from memory want it, which is more than registers hold.
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
from search_spaces.partial_sketch import PartialSketch, SketchContext
from search_spaces.space import SketchParam


class AlongAxis:
    """A recurrence: lanes along the last axis; where it goes along that one, blocks of lines that are transposed, and
    lines one after the other."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.recurrence is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        if stage.op.ordered_axis is not stage.op.axes[-1]:
            return [_columns(sketch, stage, context)]
        lines = [a for a in stage.op.axes[:-1] if extent(a) > 1]
        plain = _lines(sketch, stage)
        return [_Block.of(sketch, stage, context).transposed(sketch), plain] if lines else [plain]


def _columns(sketch: PartialSketch, stage: Stage, context: SketchContext) -> PartialSketch:
    """Chunks of the axes behind that of the recurrence in parallel; in each, position after position in vectors."""
    name, axis, lanes = stage.name, stage.op.ordered_axis, context.lanes_of(stage)
    assert axis is not None
    place = stage.op.axes.index(axis)
    before, behind, last = stage.op.axes[:place], stage.op.axes[place + 1 :], stage.op.axes[-1]
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
    if points(stage) > FEW_POINTS:
        loops.append(Parallel(name, tuple(tasks)))
    loops.append(Vectorize(name, inner[-1]))
    return sketch.with_params(params).apply(*steps, *loops).finish(name, note=f"{name}:columns")


def _lines(sketch: PartialSketch, stage: Stage) -> PartialSketch:
    """The loops as they are: one position after the other, lines in parallel."""
    tasks = tuple(a.name for a in stage.op.axes[:-1])
    is_long = points(stage) > FEW_POINTS and bool(tasks)
    sketch = sketch.apply(Parallel(stage.name, tasks)) if is_long else sketch
    return sketch.finish(stage.name, note=f"{stage.name}:lines")


@dataclass(frozen=True)
class _Block:
    """Lines along the last axis in lanes: `lines` is the axis that they are numbered by.

    `copies`: the buffers that are read along the lines, with the order of their dimensions in the transposed copy.
    """

    stage: Stage
    lines: str
    copies: tuple[tuple[str, tuple[int, ...]], ...]
    context: SketchContext

    @staticmethod
    def of(sketch: PartialSketch, stage: Stage, context: SketchContext) -> _Block:
        lines = max(stage.op.axes[:-1], key=extent)
        along = stage.op.axes[-1].name
        reads = [r for r in reads_of(sketch.state, stage) if r.load.buffer not in stage.op.buffers]
        across = [r for r in reads if r.strides[along] in (1, -1) and r.moves(lines.name)]
        orders = {r.load.buffer: _order(r, [q for q in reads if q.load.buffer == r.load.buffer], lines) for r in across}
        copies = tuple((buffer, order) for buffer, order in orders.items() if order)
        return _Block(stage, lines.name, copies, context)

    def transposed(self, sketch: PartialSketch) -> PartialSketch:
        """Return the sketch with blocks of lines in parallel, transposed before and after."""
        stage, name, i = self.stage, self.stage.name, self.lines
        *others, j = stage.op.axes
        lanes, group = self.context.lanes_of(stage), f"{name}.{j.name}"
        block = vector_width(f"{name}.{i}.l", extent(stage.op.axis(i)), lanes, "", vectors=(1, 2, 4))
        width = vector_width(f"{group}.r", extent(j), lanes, group, vectors=(1, 2, 4))
        order = (*(n for n, a in enumerate(stage.op.axes) if a.name != i), [a.name for a in stage.op.axes].index(i))
        tasks = tuple(f"{i}.0" if a.name == i else a.name for a in others)
        task = tasks[-1]
        acc = f"{name}.acc"
        steps: list[Step] = [
            CacheWrite(name),
            Split(name, i, (block.name,)),
            Split(name, j.name, (width.name,)),
            Reorder(name, (*tasks, f"{j.name}.0", f"{i}.1", f"{j.name}.1")),
        ]
        if points(stage) > FEW_POINTS:
            steps.append(Parallel(name, tasks))
        steps += [Unroll(name, f"{i}.1"), Vectorize(name, f"{j.name}.1"), ComputeAt(acc, name, task)]
        steps += [Reorder(acc, (*(a.name for a in others if a.name != i), j.name, i)), Pack(acc, order)]
        steps.append(Vectorize(acc, i))
        sketch = sketch.with_params([block, width]).apply(*steps).finish(acc)
        for buffer, order in self.copies:
            sketch = self._with_copy(sketch, buffer, order, task)
        return sketch.finish(name, note=f"{name}:blocks")

    def _with_copy(self, sketch: PartialSketch, buffer: str, order: tuple[int, ...], task: str) -> PartialSketch:
        """Return the sketch where the recurrence reads a transposed copy of a block's elements of `buffer`."""
        tag = f"{self.stage.name}.lines"
        sketch = sketch.apply(CacheRead(buffer, f"{self.stage.name}.acc", tag, order))
        copy = sketch.state.stage(f"{buffer}.{tag}")
        along, across = copy.op.axes[-2].name, copy.op.axes[-1].name
        itemsize = DTYPES[copy.op.dtypes[0]].nbytes
        tile: SketchParam = across_tile(f"{copy.name}.r", extent(copy.op.axes[-2]), itemsize=itemsize)
        steps: tuple[Step, ...] = (
            ComputeAt(copy.name, self.stage.name, task),
            Split(copy.name, along, (tile.name,)),
            Unroll(copy.name, f"{along}.1"),
            Vectorize(copy.name, across),
        )
        return sketch.with_params([tile]).apply(*steps).finish(copy.name)


def _order(read: Read, all_reads: list[Read], lines: StageAxis) -> tuple[int, ...]:
    """Return the order of a buffer's dimensions with that of the lines last and that along them before it; none where
    reads of the buffer index them otherwise."""
    dims = {r.dim_of(lines.var) for r in all_reads}
    rank = len(read.load.indices)
    (dim,) = dims if len(dims) == 1 else (None,)
    if dim is None or dim == rank - 1:
        return ()
    return (*(d for d in range(rank - 1) if d != dim), rank - 1, dim)
