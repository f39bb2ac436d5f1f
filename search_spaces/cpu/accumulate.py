"""The accumulating stage of a tiled reduction: order and unrolling of its loops."""

from __future__ import annotations

from dataclasses import replace

from autosched.ir.expr import Const, Expr, product
from autosched.ir.instructions.dots import dots_of
from autosched.ir.visit import free_vars
from autosched.schedule import Pack, Reorder, Split, Stage, Step, Unroll, Vectorize
from autosched.schedule.stage import StageAxis
from search_spaces.cpu.domains import MAX_WHOLE, unroll
from search_spaces.partial_sketch import PartialSketch

WINDOW = 128  # the most iterations of a reduction that counts as a window, each of whose loops may be unrolled
SHORT = 16  # the same for a reduction in which neighbouring outputs share no elements


def unroll_name(stage: str, axis: str) -> str:
    """Return the name of the parameter for the unroll factor of the reduction axis."""
    return f"{stage}.{axis}.u"


def unrolled_accumulator(sketch: PartialSketch, acc: Stage, v: str, whole: bool = False) -> PartialSketch:
    """Schedule the accumulating stage: reduction loops outside, the last one partly unrolled, the register tile inside.

    `v`: the vectorised axis. `whole`: all reduction loops are unrolled. Each loop of a window may be partly unrolled:
    elements that neighbouring outputs share are then loaded once for the register tile. In a longer reduction a row of
    the window may be, see `_row_of_window`.
    """
    row = None if whole or _is_window(acc) else _row_of_window(acc, v)
    others = [a.name for a in acc.op.axes if a.name != v]
    steps: list[Step] = []
    outer: list[str] = []
    unrolled: list[str] = []
    for axis in acc.op.reduce_axes:
        factor = unroll(unroll_name(acc.name, axis.name), axis.extent)
        factor = replace(factor, domain=(1, factor.domain[-1])) if axis is row else factor
        if whole:
            unrolled.append(axis.name)
        elif (axis in (row, acc.op.reduce_axes[-1]) or _is_window(acc)) and len(factor.domain) > 1:
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
    """Whether the reduction is short and neighbouring outputs share elements: an index adds an output axis and a
    reduction axis. For a sum in groups, as of 4-bit weights, unrolling only lengthens the code: 576 weights from
    memory take 1.3 times as long with 16 words at a time as with 4."""
    points = product([a.extent for a in acc.op.reduce_axes])
    most = WINDOW if any(_slides(index, acc) for load in acc.op.loads for index in load.indices) else SHORT
    return isinstance(points, Const) and points.value <= most


def _row_of_window(acc: Stage, v: str) -> StageAxis | None:
    """Return the axis along a window's rows where all lanes read the same elements, as lanes of output channels do.

    Unrolled inside of the channels, each element of an image is loaded once for all outputs of a tile that use it: with
    12 pixels by two vectors and a row of three, 72 multiply-adds need 20 loads instead of 42. An instruction's words
    are loaded one by one.
    """
    if dots_of(acc.op.body):
        return None
    lanes = next(a.var for a in acc.op.axes if a.name == v)
    shared = [i for x in acc.op.loads if not any(lanes in free_vars(i) for i in x.indices) for i in x.indices]
    rows = [a for a in acc.op.reduce_axes[:-1] if any(a.var in free_vars(i) and _slides(i, acc) for i in shared)]
    short = [a for a in rows[-1:] if isinstance(a.extent, Const) and int(a.extent.value) <= MAX_WHOLE]
    return short[0] if short else None


def _slides(index: Expr, acc: Stage) -> bool:
    variables = free_vars(index)
    return not variables.isdisjoint(a.var for a in acc.op.axes) and not variables.isdisjoint(
        a.var for a in acc.op.reduce_axes
    )
