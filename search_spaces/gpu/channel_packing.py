"""Operands of a sum of products with their channels as neighbours, in whole pieces of memory.

Channels are the longest reduction axis that is alone in a dimension of each operand. Where that is not the last one, as
of images with channels first, a kernel before makes a copy in which it is; of weights that is done ahead. Where a row
of them is no whole pieces, as of images of three channels, it goes on with zeros: pieces are what a thread copies at a
time, or of warpgroups, which copy nothing themselves, what an instruction takes of k.
"""

from __future__ import annotations

from collections.abc import Set

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const, Load, Var
from autosched.ir.instructions.matrices import MatrixIntrinsic, matrix_operands
from autosched.ir.instructions.tiles import has_maps
from autosched.ir.linear import ONE, linear
from autosched.ir.visit import free_vars
from autosched.schedule import CacheRead, ComputeInline, Lengthen, Stage, State
from autosched.schedule.stage import StageAxis
from autosched.schedule.steps.stages import shape_of_buffer
from search_spaces.gpu.elementwise import own_nests
from search_spaces.gpu.shared import private_producers
from search_spaces.gpu.thread_binding import size
from search_spaces.partial_sketch import PartialSketch

PIECE = 8  # bytes that a copy moves at a time, or more
TURNED = "turned"  # ends the names of copies with their dimensions in another order


def with_channels_last(sketch: PartialSketch, name: str, row: MatrixIntrinsic) -> PartialSketch | None:
    """The sketch with such copies for the sum of products `name`; None where none is needed, or no axis is alone. What
    makes an operand for this stage alone is computed in its copy."""
    channels = _channels(sketch.state.stage(name))
    if channels is None:
        return None
    made = sketch
    for load in _operands(sketch.state.stage(name)):
        made = _turned(made, made.state.stage(name), load, channels, row)
    longer = _longer(made.state, made.state.stage(name), channels, row)
    if longer is not None:
        made = made.apply(Lengthen(name, channels.name, longer))
        for load in _operands(made.state.stage(name)):
            made = _with_makers(made, load.buffer)
    if made is sketch:
        return None
    for load in _operands(made.state.stage(name)):
        is_new = all(s.name != load.buffer for s in sketch.state.stages) and made.state.producer(load.buffer)
        if is_new and channels.var in free_vars(load.indices[-1]):  # others are made where they are copied
            made = own_nests(made, made.state.stage(load.buffer))[0]
    return made


def with_whole_channels(sketch: PartialSketch, name: str, row: MatrixIntrinsic) -> PartialSketch | None:
    """The sketch in which channels are whole pieces, of operands that are meant to be computed where they are copied;
    None where they are so, or cannot be."""
    stage = sketch.state.stage(name)
    channels = _channels(stage)
    longer = None if channels is None else _longer(sketch.state, stage, channels, row)
    return None if channels is None or longer is None else sketch.apply(Lengthen(name, channels.name, longer))


def _operands(stage: Stage) -> tuple[Load, Load]:
    pair = matrix_operands(stage.op.body, stage.op.reducer)
    assert pair is not None
    return pair.loads


def _channels(stage: Stage) -> StageAxis | None:
    """The longest reduction axis that steps from element to element in a dimension of each operand, where nothing else
    moves that dimension but what moves both operands; None where there is none."""
    pair = _operands(stage)
    moved = [frozenset[Var]().union(*map(free_vars, load.indices)) for load in pair]
    both = (moved[0] & moved[1]) - {a.var for a in stage.op.reduce_axes}
    found = [a for a in stage.op.reduce_axes if all(_is_alone(x, a.var, both) for x in pair)]
    return max(reversed(found), key=size, default=None)


def _is_alone(load: Load, var: Var, both: Set[Var]) -> bool:
    own = [i for i in load.indices if var in free_vars(i)]
    return len(own) == 1 and linear(own[0]).coefficient(var) is ONE and free_vars(own[0]) <= both | {var}


def _dim_of(load: Load, axis: StageAxis) -> int:
    return next(n for n, i in enumerate(load.indices) if axis.var in free_vars(i))


def _turned(
    sketch: PartialSketch, stage: Stage, load: Load, channels: StageAxis, row: MatrixIntrinsic
) -> PartialSketch:
    """The operand read from a copy with channels last, unless it is so or may lie across; rows that the copy engine
    refuses may not."""
    dim, last = _dim_of(load, channels), len(load.indices) - 1
    is_across = row.can_lie_across and load.indices[last] in [a.var for a in stage.op.axes]
    if dim == last or (
        is_across and (row.warps == 1 or has_maps(_shape(sketch.state, load), DTYPES[load.dtype].nbytes))
    ):
        return sketch
    order = (*(d for d in range(last + 1) if d != dim), dim)
    step = CacheRead(load.buffer, stage.name, TURNED, order)
    return _with_makers(sketch.apply(step), f"{load.buffer}.{TURNED}")


def _shape(state: State, load: Load) -> list[int]:
    return [int(e.value) for e in shape_of_buffer(state, load.buffer) if isinstance(e, Const)]


def _with_makers(sketch: PartialSketch, copy: str) -> PartialSketch:
    """What makes the elements for the copy alone computed in it."""
    stage = sketch.state.stage(copy)
    makers = private_producers(sketch, stage, stage.op.loads[0].buffer)
    return sketch.apply(*(ComputeInline(x.name) for x in makers))


def _longer(state: State, stage: Stage, channels: StageAxis, row: MatrixIntrinsic) -> int | None:
    """The channels in whole pieces, where nothing but they is in a dimension of each operand, and they are all of it;
    None where they are so already, or would be more than twice as many by warpgroups."""
    pair = _operands(stage)
    dims = [_dim_of(load, channels) for load in pair]
    is_all = [shape_of_buffer(state, x.buffer)[d] is channels.extent for x, d in zip(pair, dims, strict=True)]
    is_alone = [x.indices[d] is channels.var for x, d in zip(pair, dims, strict=True)]
    piece = row.k if row.warps > 1 else PIECE // DTYPES[pair[0].dtype].nbytes
    longer = -(-size(channels) // piece) * piece
    is_worth = row.warps == 1 or longer <= 2 * size(channels)
    return longer if all(is_all) and all(is_alone) and longer > size(channels) and is_worth else None
