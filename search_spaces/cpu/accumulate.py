"""The accumulating stage of a tiled reduction."""

from __future__ import annotations

from autosched.ir.expr import Const, Expr, product
from autosched.ir.visit import free_vars
from autosched.schedule import Pack, Reorder, Split, Stage, Step, Unroll, Vectorize
from search_spaces.cpu.domains import unroll
from search_spaces.partial_sketch import PartialSketch

WINDOW = 128  # points of a reduction, at most, for it to be a window, each of whose loops may be unrolled
SHORT = 16  # the same where outputs share nothing in it


def unroll_name(stage: str, axis: str) -> str:
    """The parameter that says how many steps of the reduction axis are written out."""
    return f"{stage}.{axis}.u"


def unrolled_accumulator(sketch: PartialSketch, acc: Stage, v: str, whole: bool = False) -> PartialSketch:
    """The accumulating stage: reduction loops outside, the last one partly unrolled; the register tile unrolled inside.

    `v`: the axis in vectors. `whole`: all reduction loops are unrolled. In a window each of them may be, in part: what
    neighbouring outputs read in common is then loaded once for the register tile.
    """
    others = [a.name for a in acc.op.axes if a.name != v]
    steps: list[Step] = []
    outer: list[str] = []
    unrolled: list[str] = []
    for axis in acc.op.reduce_axes:
        factor = unroll(unroll_name(acc.name, axis.name), axis.extent)
        if whole:
            unrolled.append(axis.name)
        elif (axis is acc.op.reduce_axes[-1] or _is_window(acc)) and len(factor.domain) > 1:
            sketch = sketch.with_params([factor])
            steps.append(Split(acc.name, axis.name, (factor.name,)))
            outer.append(f"{axis.name}.0")
            unrolled.append(f"{axis.name}.1")
        else:
            outer.append(axis.name)
    steps.append(Reorder(acc.name, (*outer, *unrolled, *others, v)))
    steps += [Unroll(acc.name, x) for x in (*unrolled, *others)]
    steps.append(Vectorize(acc.name, v))
    number = [a.name for a in acc.op.axes].index(v)
    if number != len(acc.op.axes) - 1:
        order = [n for n in range(len(acc.op.axes)) if n != number]
        steps.append(Pack(acc.name, (*order, number)))
    return sketch.apply(*steps)


def _is_window(acc: Stage) -> bool:
    """Whether the reduction is short, and neighbouring outputs have elements in common: a place that is read is one of
    the output and one of the reduction added up. Of a sum in groups, as of weights of 4 bits, text grows alone: of 576
    from far memory 16 words at a time take 1.3 times as long as 4."""
    points = product([a.extent for a in acc.op.reduce_axes])
    most = WINDOW if any(_slides(index, acc) for load in acc.op.loads for index in load.indices) else SHORT
    return isinstance(points, Const) and points.value <= most


def _slides(index: Expr, acc: Stage) -> bool:
    found = free_vars(index)
    return not found.isdisjoint(a.var for a in acc.op.axes) and not found.isdisjoint(a.var for a in acc.op.reduce_axes)
