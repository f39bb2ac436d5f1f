"""Channel packing: operands of a sum of products with adjacent channels, padded to whole vectors.

Channels are the longest reduction axis that is alone in a dimension of each operand. Where that is not the last
dimension, as of images with channels first, a kernel before makes a transposed copy; of weights it is made at load
time. Where a row of channels is not a whole number of vectors, as of images of three channels, it is padded with zeros.
A vector is the unit of a thread's copy; for warpgroups, which copy nothing themselves, the k of an instruction.
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

COPY_BYTES = 8  # the least bytes that a copy moves at a time
PERMUTED_TAG = "turned"  # suffix of the copies with permuted dimensions


def with_channels_last(sketch: PartialSketch, name: str, row: MatrixIntrinsic) -> PartialSketch | None:
    """Return the sketch with such copies for the sum of products `name`, each computed with its private producers.

    None where no copy is needed, or no axis is alone in a dimension.
    """
    channels = _channels(sketch.state.stage(name))
    if channels is None:
        return None
    arranged = sketch
    for load in _operands(sketch.state.stage(name)):
        arranged = _with_permuted_copy(arranged, arranged.state.stage(name), load, channels, row)
    padded = _padded_channels(arranged.state, arranged.state.stage(name), channels, row)
    if padded is not None:
        arranged = arranged.apply(Lengthen(name, channels.name, padded))
        for load in _operands(arranged.state.stage(name)):
            arranged = _with_inlined_producers(arranged, load.buffer)
    if arranged is sketch:
        return None
    for load in _operands(arranged.state.stage(name)):
        is_new = all(s.name != load.buffer for s in sketch.state.stages) and arranged.state.producer(load.buffer)
        if is_new and channels.var in free_vars(load.indices[-1]):  # other producers are computed in the copy
            arranged = own_nests(arranged, arranged.state.stage(load.buffer))[0]
    return arranged


def with_whole_channels(sketch: PartialSketch, name: str, row: MatrixIntrinsic) -> PartialSketch | None:
    """Return the sketch with channels padded to whole vectors, for operands that are computed where they are copied;
    None where they need no padding, or cannot be padded."""
    stage = sketch.state.stage(name)
    channels = _channels(stage)
    padded = None if channels is None else _padded_channels(sketch.state, stage, channels, row)
    return None if channels is None or padded is None else sketch.apply(Lengthen(name, channels.name, padded))


def _operands(stage: Stage) -> tuple[Load, Load]:
    pair = matrix_operands(stage.op.body, stage.op.reducer)
    assert pair is not None
    return pair.loads


def _channels(stage: Stage) -> StageAxis | None:
    """Return the longest reduction axis that has stride 1 in a dimension of each operand, which otherwise only axes of
    both operands index; None where there is none."""
    pair = _operands(stage)
    moved = [frozenset[Var]().union(*map(free_vars, load.indices)) for load in pair]
    both = (moved[0] & moved[1]) - {a.var for a in stage.op.reduce_axes}
    axes = [a for a in stage.op.reduce_axes if all(_is_alone(x, a.var, both) for x in pair)]
    return max(reversed(axes), key=size, default=None)


def _is_alone(load: Load, var: Var, both: Set[Var]) -> bool:
    own = [i for i in load.indices if var in free_vars(i)]
    return len(own) == 1 and linear(own[0]).coefficient(var) is ONE and free_vars(own[0]) <= both | {var}


def _dim_of(load: Load, axis: StageAxis) -> int:
    return next(n for n, i in enumerate(load.indices) if axis.var in free_vars(i))


def _with_permuted_copy(
    sketch: PartialSketch, stage: Stage, load: Load, channels: StageAxis, row: MatrixIntrinsic
) -> PartialSketch:
    """Read the operand from a copy with channels last, unless they are last or it may be read transposed, which needs
    rows that the copy engine can load."""
    dim, last = _dim_of(load, channels), len(load.indices) - 1
    is_across = row.can_lie_across and load.indices[last] in [a.var for a in stage.op.axes]
    if dim == last or (
        is_across and (row.warps == 1 or has_maps(_shape(sketch.state, load), DTYPES[load.dtype].nbytes))
    ):
        return sketch
    order = (*(d for d in range(last + 1) if d != dim), dim)
    step = CacheRead(load.buffer, stage.name, PERMUTED_TAG, order)
    return _with_inlined_producers(sketch.apply(step), f"{load.buffer}.{PERMUTED_TAG}")


def _shape(state: State, load: Load) -> list[int]:
    return [int(e.value) for e in shape_of_buffer(state, load.buffer) if isinstance(e, Const)]


def _with_inlined_producers(sketch: PartialSketch, copy: str) -> PartialSketch:
    """Inline the private producers of the copy's source into the copy."""
    stage = sketch.state.stage(copy)
    makers = private_producers(sketch, stage, stage.op.loads[0].buffer)
    return sketch.apply(*(ComputeInline(x.name) for x in makers))


def _padded_channels(state: State, stage: Stage, channels: StageAxis, row: MatrixIntrinsic) -> int | None:
    """Return the channels padded to whole vectors, where they alone index a whole dimension of each operand; None where
    they need no padding, or warpgroups would have more than twice as many."""
    pair = _operands(stage)
    dims = [_dim_of(load, channels) for load in pair]
    is_all = [shape_of_buffer(state, x.buffer)[d] is channels.extent for x, d in zip(pair, dims, strict=True)]
    is_alone = [x.indices[d] is channels.var for x, d in zip(pair, dims, strict=True)]
    piece = row.k if row.warps > 1 else COPY_BYTES // DTYPES[pair[0].dtype].nbytes
    longer = -(-size(channels) // piece) * piece
    is_worth = row.warps == 1 or longer <= 2 * size(channels)
    return longer if all(is_all) and all(is_alone) and longer > size(channels) and is_worth else None
