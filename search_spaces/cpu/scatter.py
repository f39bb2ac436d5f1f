"""Scatter: reductions into rows whose index is data. Histograms, segment sums, gradients of embeddings.

    parallel the axes that the indices do not depend on, or blocks of s
      for n
        where ids[n] is in the block: o[ids[n], d] += x[n, d], in vectors along d

They are written as sums over all n for each s. Lowering makes one step for each n (`lower/passes/scatter.py`). With
blocks of s each task walks all n, so results that are small have private copies instead, which are added up:

    parallel blocks of n:  for n in the block: o.rf[block, ids[n], d] += x[n, d]       o[s, d] = sum of o.rf[.., s, d]
"""

from __future__ import annotations

import math

from autosched.ir.conditions import chosen_by_data
from autosched.ir.expr import Expr
from autosched.ir.visit import free_vars
from autosched.schedule import Parallel, Reorder, Rfactor, Split, Stage, Step, Vectorize
from search_spaces.access import extent
from search_spaces.cpu.domains import vector_width
from search_spaces.cpu.rows import with_sum_of_blocks
from search_spaces.partial_sketch import PartialSketch, SketchContext

FEW_ROWS = 8  # rows of vectors up to which comparing ids with each row takes no longer
LEAST_ARRIVALS = 16  # for each place in the threads' copies: filling them and adding them up costs some of that
FEW_ELEMENTS = 32  # the same for rows of single elements


class Scatter:
    """One step for each element, in the task's rows. Other rules would compare ids with each row."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return bool(scatter_axes(stage))

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        chosen = scatter_axes(stage)
        whole = _with_loops(sketch, stage, chosen, context).finish(note=f"{stage.name}:arrivals")
        split = self._with_copies(sketch, stage, chosen, context)
        return [whole] if split is None else [split, whole]

    def _with_copies(
        self, sketch: PartialSketch, stage: Stage, chosen: dict[str, Expr], context: SketchContext
    ) -> PartialSketch | None:
        """Return the scatter with a copy of its result for each thread; None where the copies are no smaller than what
        is scattered, and where tasks have results of their own."""
        axis = max(stage.op.reduce_axes, key=extent)
        arrivals = math.prod(extent(a) for a in stage.op.reduce_axes)
        places = math.prod(extent(stage.op.axis(name)) for name in chosen)
        has_tasks = any(a.var in free_vars(at) for at in chosen.values() for a in stage.op.axes)
        is_large = places * context.threads * LEAST_ARRIVALS > arrivals
        if has_tasks or is_large or context.threads == 1 or extent(axis) < context.threads:
            return None
        block = -(-extent(axis) // context.threads)
        split = sketch.apply(Rfactor(stage.name, axis.name, block, "outer"))
        partial = split.state.stage(f"{stage.name}.rf")
        split = _with_loops(split, partial, scatter_axes(partial), context).finish(note=f"{stage.name}:arrivals")
        return with_sum_of_blocks(split, split.state.stage(stage.name), context)


def _with_loops(sketch: PartialSketch, stage: Stage, chosen: dict[str, Expr], context: SketchContext) -> PartialSketch:
    """Return the sketch with the loops of a scatter, whose axes `chosen` have data as indices."""
    name, scattered = stage.name, list(chosen)
    around = {v for at in chosen.values() for v in free_vars(at)}
    tasks = [a.name for a in stage.op.axes if a.var in around and a.name not in chosen]
    inside = [a.name for a in stage.op.axes if a.name not in (*tasks, *scattered)]
    steps: list[Step] = []
    if not tasks and context.threads > 1:
        axis, scattered[0] = scattered[0], f"{scattered[0]}.1"
        steps.append(Split(name, axis, (-(-extent(stage.op.axis(axis)) // context.threads),)))
        tasks = [f"{axis}.0"]
    vector, last = None, stage.op.axes[-1]
    if last.name in inside:
        width = vector_width(f"{name}.{last.name}.r", extent(last), context.lanes_of(stage), "", (1, 2, 4, 8))
        sketch, vector = sketch.with_params([width]), f"{last.name}.1"
        steps.append(Split(name, last.name, (width.name,)))
        inside[-1:] = [f"{last.name}.0", vector]
    steps.append(Reorder(name, (*tasks, *(a.name for a in stage.op.reduce_axes), *scattered, *inside)))
    steps += [Parallel(name, tuple(tasks))] if tasks else []
    steps += [Vectorize(name, vector)] if vector is not None else []
    return sketch.apply(*steps).finish(name)


def scatter_axes(stage: Stage) -> dict[str, Expr]:
    """Return the axes whose index is data, with that index; {} where comparing ids with the few rows is as fast."""
    reducer, axes = stage.op.reducer, stage.op.axes
    if reducer is None:
        return {}
    axes_by_data = {a.name: f[1] for a in axes if (f := chosen_by_data(stage.op.body, reducer, a.var)) is not None}
    single = bool(axes_by_data) and (
        axes[-1].name in axes_by_data or any(axes[-1].var in free_vars(at) for at in axes_by_data.values())
    )
    n_places = math.prod(extent(a) for a in axes if a.name in axes_by_data)
    return axes_by_data if n_places > (FEW_ELEMENTS if single else FEW_ROWS) else {}
