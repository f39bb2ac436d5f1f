"""Recurrences (`te.scan`) on GPUs: a thread computes one line, or a few adjacent ones, position after position."""

from __future__ import annotations

from autosched.schedule import Reorder, Split, Stage, Step, Vectorize
from search_spaces.gpu import domains
from search_spaces.gpu.elementwise import narrowest, row_threads
from search_spaces.gpu.thread_binding import bind_blocks, bind_threads, size
from search_spaces.partial_sketch import PartialSketch, SketchContext


class AlongAxis:
    """A recurrence: threads along the last of the other axes, in vectors where that is contiguous in memory."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return stage.op.recurrence is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        return [_lines(sketch, stage).finish(stage.name, note=f"{stage.name}:lines")]


def _lines(sketch: PartialSketch, stage: Stage) -> PartialSketch:
    """Bind threads x along the last axis of lines, y along the one before; positions are in order in each thread."""
    name, along = stage.name, stage.op.ordered_axis
    assert along is not None
    lines = [a for a in stage.op.axes if a is not along]
    if not lines:
        return sketch  # one thread
    *rows, last = lines
    group = f"{name}.{last.name}"
    params = [domains.threads(f"{group}.t", size(last), group, domains.MOST_X)]
    is_contiguous = last is stage.op.axes[-1]
    if is_contiguous:
        params.append(domains.vector(f"{group}.w", size(last), group, narrowest(stage)))
    steps: list[Step] = [Split(name, last.name, tuple(p.name for p in params))]
    blocks, threads = [*(a.name for a in rows), f"{last.name}.0"], [f"{last.name}.1"]
    inner = [f"{last.name}.2"] if is_contiguous else []
    if rows:
        count, split = row_threads(name, rows[-1], last)
        params.append(count)
        steps.append(split)
        blocks[-2] = f"{rows[-1].name}.0"
        threads.insert(0, f"{rows[-1].name}.1")
    steps.append(Reorder(name, (*blocks, *threads, along.name, *inner)))
    steps += [*bind_blocks(name, blocks, [size(a) for a in lines]), *bind_threads(name, threads)]
    steps += [Vectorize(name, x) for x in inner]
    return sketch.with_params(params).apply(*steps)
