"""Prefix scans: sums, maxima, .. of all elements up to each one, in the blocks of `te.rewrites.scans`.

    parallel rows                                        or: everything at the root, parallel over rows and blocks
      sums of blocks, of blocks of blocks, ..            s
      the sum before each block in the one around it     w
      for blocks
        a block's elements in registers: each element k is added to those after it, under conditions on k < j
        the consumer adds the sum before the block and writes

Along contiguous data a block is one or two vectors, which code generation adds to shifted copies of themselves.

Along another axis the lanes are of the last axis, and there are no conditions: all j and k are unrolled. Results j and
j + 1 begin with the same sums, which the compiler computes once. So each element is added once, in the order of a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.stmt import ForKind, Scope
from autosched.schedule import CacheWrite, ComputeAt, Parallel, Reorder, Split, Stage, State, Step, Unroll, Vectorize
from autosched.te.rewrites.prefix_scan import find_prefix_scan
from autosched.te.rewrites.scans import LONGEST
from search_spaces.access import extent, points
from search_spaces.cpu.accumulate import unrolled_accumulator
from search_spaces.cpu.domains import tile_count, vector_width
from search_spaces.cpu.elementwise import FEW_POINTS
from search_spaces.cpu.rows import TASKS_PER_THREAD, lane_steps
from search_spaces.partial_sketch import PartialSketch, SketchContext, fuse_consumer
from search_spaces.space import SketchParam


@dataclass(frozen=True)
class PrefixScan:
    """Two alternatives: all stages for one row after the other, while it is in a cache; or each stage on its own.

    Where the lanes are of another axis, a row is a few vectors of rows.
    """

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        pattern = find_prefix_scan(stage.op)
        if pattern is None or len(stage.op.axes) < 2 or len(stage.op.reduce_axes) > 1:
            return False
        return max(extent(stage.op.reduce_axes[pattern.k]), extent(stage.op.axes[pattern.i])) <= LONGEST

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        sketch, consumer, acc = fuse_consumer(sketch, stage)
        nest = _Nest.of(sketch.state.stage(consumer), sketch.state.stage(acc), sketch.state, context)
        return [d for d in (nest.by_rows(sketch), nest.by_blocks(sketch)) if d is not None]


@dataclass(frozen=True)
class _Nest:
    """The stages of a scan, and the roles of the consumer's axes.

    `j` is the axis within blocks. `digits` are the axes before it that number the blocks. The last axis after `j`, if
    there is one, is `lanes`. All others are `rows`. `group`: the other stages of a row, readers first.
    """

    consumer: Stage
    acc: Stage
    group: tuple[Stage, ...]
    rows: tuple[str, ...]
    digits: tuple[str, ...]
    j: str
    lanes: str | None
    context: SketchContext

    @staticmethod
    def of(consumer: Stage, acc: Stage, state: State, context: SketchContext) -> _Nest:
        pattern = find_prefix_scan(acc.op)
        assert pattern is not None
        names, group = tuple(a.name for a in consumer.op.axes), _group(consumer, acc, state)
        behind = names[pattern.i + 1 :]
        lead = min((len(s.op.axes) - 1 - len(behind) for s in group), default=pattern.i)
        rows, lanes = (*names[:lead], *behind[:-1]), behind[-1] if behind else None
        return _Nest(consumer, acc, group, rows, names[lead : pattern.i], names[pattern.i], lanes, context)

    def by_rows(self, sketch: PartialSketch) -> PartialSketch | None:
        """Return the scan with rows in parallel; None where there is only one."""
        split = self.lanes or (self.rows[-1] if self.rows else None)
        if split is None:
            return None
        count = tile_count(
            f"{self.consumer.name}.{split}.m", extent(self.consumer.op.axis(split)), f"{self.consumer.name}.{split}"
        )
        task, inner = f"{split}.0", f"{split}.1"
        if self.lanes is None:  # divisors, so that no stage is computed for a row beyond the axis
            count = replace(
                count, domain=tuple(n for n in count.domain if extent(self.consumer.op.axis(split)) % n == 0)
            )
            step = Split(self.consumer.name, split, (count.name,))
            return self._nest(sketch.with_params([count]), step, (*self.rows[:-1], task), (inner, *self.digits), inner)
        step = Split(self.consumer.name, split, (count.name, self._width.name))
        sketch = sketch.with_params([count, self._width])
        return self._nest(sketch, step, (*self.rows, task), (*self.digits, inner), task)

    def by_blocks(self, sketch: PartialSketch) -> PartialSketch | None:
        """Return the scan with blocks in parallel; None where there is only one."""
        if not self.digits:
            return None
        tasks, loops = (*self.rows, *self.digits[: self._shared]), self.digits[self._shared :]
        if self.lanes is None:
            return self._nest(sketch, None, tasks, loops, None)
        step = Split(self.consumer.name, self.lanes, (self._width.name,))
        return self._nest(sketch.with_params([self._width]), step, tasks, (*loops, f"{self.lanes}.0"), None)

    @property
    def _width(self) -> SketchParam:
        """Return the parameter for the points of the last axis that are computed together."""
        assert self.lanes is not None
        name, size = f"{self.consumer.name}.{self.lanes}", extent(self.consumer.op.axis(self.lanes))
        lanes = self.context.lanes_of(self.consumer)
        return vector_width(f"{name}.r", size, lanes, name, vectors=(1, 2, 4))

    @property
    def _shared(self) -> int:
        """Return the number of digits in the task loops: enough for several tasks for each thread."""
        enough, size = TASKS_PER_THREAD * self.context.threads, 1
        for row in self.rows:
            size *= extent(self.consumer.op.axis(row))
        for n, digit in enumerate(self.digits):
            size *= extent(self.consumer.op.axis(digit))
            if size >= enough:
                return n + 1
        return len(self.digits)

    def _nest(
        self,
        sketch: PartialSketch,
        split: Split | None,
        tasks: tuple[str, ...],
        loops: tuple[str, ...],
        row: str | None,
    ) -> PartialSketch:
        """Schedule the consumer in the loops `tasks`, then `loops`, the last one over blocks; the group is computed in
        loop `row`, or at the root."""
        name, block = self.consumer.name, (*tasks, *loops)[-1]
        vector = self.j if self.lanes is None or split is None else f"{self.lanes}.{len(split.factors)}"
        inner = (vector,) if self.lanes is None else (self.j, vector)
        steps: list[Step] = [] if split is None else [split]
        steps.append(Reorder(name, (*tasks, *loops, *inner)))
        if points(self.consumer) > FEW_POINTS:
            steps.append(Parallel(name, tasks))
        if len(inner) > 1:
            steps.append(Unroll(name, self.j))
        scope = Scope.REGISTER if self.lanes is None else Scope.LOCAL  # LOCAL where the results are computed in order
        steps += [Vectorize(name, vector), ComputeAt(self.acc.name, name, block, scope.value)]
        sketch = sketch.apply(*steps)
        sketch = unrolled_accumulator(sketch, self.acc, self.acc.op.axes[-1].name, whole=True)
        for stage in self.group:
            sketch = self._member(sketch, stage, row)
            serial = {x.name for x in sketch.state.stage(stage.name).loops if x.kind is ForKind.SERIAL}
            shared = tuple(t for t in tasks if t in serial)
            if row is None and shared and points(stage) > FEW_POINTS:
                sketch = sketch.apply(Parallel(stage.name, shared))
        sketch = sketch.finish(name, self.acc.name, note=f"{name}:{'blocks' if row is None else 'rows'}")
        return sketch if row is None else sketch.with_row_loop(name, row)

    def _member(self, sketch: PartialSketch, stage: Stage, row: str | None) -> PartialSketch:
        """Schedule a stage of the group: sums of blocks, or the sums before them."""
        name, (k,), pattern = stage.name, stage.op.reduce_axes, find_prefix_scan(stage.op)
        *others, last = (a.name for a in stage.op.axes)
        attach = () if row is None else (ComputeAt(name, self.consumer.name, row),)
        if self.lanes is None and pattern is None:
            return lane_steps(sketch.apply(*attach), stage, k.name, extent(k), self.context).finish(name)
        if self.lanes is None:
            steps = Reorder(name, (*others, k.name, last)), Unroll(name, k.name), Vectorize(name, last)
            return sketch.apply(*attach, *steps).finish(name)
        split, chunk, vector = Split(name, last, (self._width.name,)), f"{last}.0", f"{last}.1"
        if pattern is None:
            order = Reorder(name, (*others, chunk, k.name, vector))
            return sketch.apply(*attach, split, order, Unroll(name, k.name), Vectorize(name, vector)).finish(name)
        j, acc = stage.op.axes[pattern.i].name, f"{name}.acc"
        order = Reorder(name, (*(a for a in others if a != j), chunk, j, vector))
        sketch = sketch.apply(CacheWrite(name), *attach, split, order, Unroll(name, j), Vectorize(name, vector))
        sketch = sketch.apply(ComputeAt(acc, name, chunk, Scope.LOCAL.value)).finish(name, acc)
        return unrolled_accumulator(sketch, sketch.state.stage(acc), last, whole=True)


def _group(consumer: Stage, acc: Stage, state: State) -> tuple[Stage, ...]:
    """Return the scans over blocks that the consumer adds to its own, and the sums of blocks that only these read."""
    stages: dict[str, Stage] = {}
    inside = {consumer.name, acc.name}
    for stage in reversed(state.stages):
        readers = {r.name for r in state.consumers(stage)}
        if stage.op.reducer is not acc.op.reducer or stage.name in inside or not readers or not readers <= inside:
            continue
        if len(stage.op.axes) < len(acc.op.axes) and (
            find_prefix_scan(stage.op) is not None or consumer.name not in readers
        ):
            stages[stage.name] = stage
            inside.add(stage.name)
    return tuple(stages.values())
