"""Scatter: reductions into rows whose index is data. Histograms, segment sums, gradients of embeddings.

    parallel the axes that the indices do not depend on, or blocks of s
      for n
        where ids[n] is in the block: o[ids[n], d] += x[n, d], in vectors along d

They are written as sums over all n for each s. Lowering makes one step for each n (`lower/passes/scatter.py`). With
blocks of s each task walks all n, so results that are small have private copies instead, which are added up:

    parallel blocks of n:  for n in the block: o.rf[block, ids[n], d] += x[n, d]       o[s, d] = sum of o.rf[.., s, d]

Where neighbours have the same index, as in the flat regions of an image, each step waits for what the one before has
stored. Another alternative has several copies for each task, to which the elements go in turn:

    for n, for c unrolled:  copies[c, ids[n * C + c], d] += x[n * C + c, d]            o[s, d] = sum of copies[c, s, d]
"""

from __future__ import annotations

import math

from autosched.ir.conditions import chosen_by_data
from autosched.ir.expr import Expr
from autosched.ir.visit import free_vars
from autosched.schedule import ComputeAt, Pack, Parallel, Reorder, Rfactor, Split, Stage, Step, Unroll, Vectorize
from search_spaces.access import extent
from search_spaces.cpu.domains import vector_width
from search_spaces.cpu.rows import with_sum_of_blocks
from search_spaces.partial_sketch import PartialSketch, SketchContext

FEW_ROWS = 8  # rows of vectors up to which comparing ids with each row takes no longer
LEAST_ARRIVALS = 16  # for each place in the copies: filling them and adding them up costs some of that
FEW_ELEMENTS = 32  # the same for rows of single elements
COPIES = (8, 4)  # of a task: eight steps of the fastest cores take longer than a store takes to be read
LEAST_TURNS = 4  # of an axis whose elements go to the copies in turn


class Scatter:
    """One step for each element, in the task's rows. Other rules would compare ids with each row."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return bool(scatter_axes(stage))

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[PartialSketch]:
        blocks = _with_blocks(sketch, stage, context)
        around = sketch if blocks is None else blocks
        part = stage if blocks is None else blocks.state.stage(f"{stage.name}.rf")
        in_turn = _in_turn(around, part, context)
        found = [] if in_turn is None else [in_turn]
        if blocks is not None:
            found = [*found, _with_loops(blocks, part, context)]
            found = [with_sum_of_blocks(d, d.state.stage(stage.name), context) for d in found]
        return [*found, _with_loops(sketch, stage, context)]


def _n_scattered(stage: Stage) -> tuple[int, int]:
    """Return the number of elements that are scattered, and of the places that the data choose from."""
    n_places = math.prod(extent(stage.op.axis(name)) for name in _axes_by_data(stage))
    return math.prod(extent(a) for a in stage.op.reduce_axes), n_places


def _tasks(stage: Stage) -> list[str]:
    """Return the axes that the indices depend on."""
    chosen = _axes_by_data(stage)
    around = {v for at in chosen.values() for v in free_vars(at)}
    return [a.name for a in stage.op.axes if a.var in around and a.name not in chosen]


def _with_blocks(sketch: PartialSketch, stage: Stage, context: SketchContext) -> PartialSketch | None:
    """Return the sketch with a copy of the result for each thread, `stage`.rf; None where the copies are no smaller
    than what is scattered, and where tasks have results of their own."""
    axis = max(stage.op.reduce_axes, key=extent)
    arrivals, places = _n_scattered(stage)
    is_large = places * context.threads * LEAST_ARRIVALS > arrivals
    if _tasks(stage) or is_large or context.threads == 1 or extent(axis) < context.threads:
        return None
    turns = -(-extent(axis) // (context.threads * COPIES[0]))
    return sketch.apply(Rfactor(stage.name, axis.name, turns * COPIES[0], "outer"))


def _in_turn(sketch: PartialSketch, stage: Stage, context: SketchContext) -> PartialSketch | None:
    """Return the scatter with copies of the result of each task, to which the elements go in turn; None where the
    copies are no smaller than what is scattered, and where tasks do not share the stage's first axes."""
    axis, tasks = stage.op.reduce_axes[-1], _tasks(stage)
    arrivals, places = _n_scattered(stage)
    copies = [n for n in COPIES if n * LEAST_ARRIVALS * places <= arrivals and n * LEAST_TURNS <= extent(axis)]
    are_first = tasks == [a.name for a in stage.op.axes[: len(tasks)]] and len(tasks) < len(stage.op.axes)
    if not copies or not are_first or (context.threads > 1 and not tasks):
        return None
    sketch = sketch.apply(Rfactor(stage.name, axis.name, copies[0], "inner"))
    name = f"{stage.name}.rf"
    n_axes = len(stage.op.axes)
    order = (*range(len(tasks)), n_axes, *range(len(tasks), n_axes))
    sketch = with_sum_of_blocks(sketch.apply(Pack(name, order)), sketch.state.stage(stage.name), context, tasks)
    if tasks:
        sketch = sketch.apply(ComputeAt(name, stage.name, tasks[-1]))
    return _with_loops(sketch, sketch.state.stage(name), context, f"{axis.name}.i").finish(note=f"{stage.name}:in-turn")


def _with_loops(sketch: PartialSketch, stage: Stage, context: SketchContext, copy: str = "") -> PartialSketch:
    """Return the sketch with the loops of a scatter, at the root or where it is computed. `copy`: the axis of copies,
    if it has any, the last one."""
    name, scattered, copies = stage.name, list(_axes_by_data(stage)), [copy] if copy else []
    axes = [a for a in stage.op.axes if a.name != copy]
    tasks = [n for n in _tasks(stage) if n != copy]
    inside = [a.name for a in axes if a.name not in (*tasks, *scattered)]
    steps: list[Step] = []
    if not tasks and context.threads > 1:
        axis, scattered[0] = scattered[0], f"{scattered[0]}.1"
        steps.append(Split(name, axis, (-(-extent(stage.op.axis(axis)) // context.threads),)))
        tasks = [f"{axis}.0"]
    vector, last = None, axes[-1]
    if last.name in inside:
        width = vector_width(f"{name}.{last.name}.r", extent(last), context.lanes_of(stage), "", (1, 2, 4, 8))
        sketch, vector = sketch.with_params([width]), f"{last.name}.1"
        steps.append(Split(name, last.name, (width.name,)))
        inside[-1:] = [f"{last.name}.0", vector]
    steps.append(Reorder(name, (*tasks, *(a.name for a in stage.op.reduce_axes), *copies, *scattered, *inside)))
    steps += [Parallel(name, tuple(tasks))] if tasks and stage.at is None else []
    steps += [Unroll(name, loop) for loop in copies]
    steps += [Vectorize(name, vector)] if vector is not None else []
    return sketch.apply(*steps).finish(name, note=f"{name.removesuffix('.rf')}:arrivals")


def scatter_axes(stage: Stage) -> dict[str, Expr]:
    """Return the axes whose index is data, with that index; {} where comparing ids with the few rows is as fast."""
    axes, axes_by_data = stage.op.axes, _axes_by_data(stage)
    single = bool(axes_by_data) and (
        axes[-1].name in axes_by_data or any(axes[-1].var in free_vars(at) for at in axes_by_data.values())
    )
    n_places = math.prod(extent(a) for a in axes if a.name in axes_by_data)
    return axes_by_data if n_places > (FEW_ELEMENTS if single else FEW_ROWS) else {}


def _axes_by_data(stage: Stage) -> dict[str, Expr]:
    reducer = stage.op.reducer
    found = {} if reducer is None else {a.name: chosen_by_data(stage.op.body, reducer, a.var) for a in stage.op.axes}
    return {name: choice[1] for name, choice in found.items() if choice is not None}
