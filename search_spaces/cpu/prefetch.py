"""Operands asked for ahead of time.

Prefetchers of processors follow a row of memory once they have seen a few of its lines. Where rows are short and far
from each other (the heads of an attention, the groups of a convolution) every row begins with lines that have to be
waited for. So each register tile asks for what later ones read: for the rows of the next tile but one, and for its
share of the next panel (`fetch_ahead`). It does so line by line, in the steps of its reduction: a core waits for some
ten or twenty lines at a time, and a tile that asks for more of them before its first step waits there.

A product or a convolution reads its operands once for each panel. One that is larger than the second level cache comes
from further away every time, and a register tile, which reads a few rows of it and has nothing else to wait for, waits
for these. Each step of its reduction asks for some of it (`follow_operands`): what moves then moves while it computes,
a line now and then.

    A[i, k]        rows along the reduction: a share of the next tile's rows
    B[k, j]        one row of the panel a step: the row of some steps later. No more: rows whose distance is a power of
                   two meet in a few sets of the caches, where a whole panel would not wait to be read
    a packed one   a share of the next panel's source

In blocks of a reduction the same is asked for the panels that are made for each tile of columns.

A reduction of few steps has its next tile's place in a large output asked for as well, to be written: a store to a line
that is elsewhere waits for it, and those of a short tile are as many as a processor keeps waiting.

Where blocks of a reduction are added to a large tile in memory, the next register tile's place in it is asked for as
well (`follow_sums`): it is read and written once a block. On Emerald Rapids a product of 512 x 1024 x 1024 in blocks of
128 to 256 steps, its sums 2 MB, takes 0.91 to 0.96 of the time.

The rows some steps later are asked to be in the second level: many of them meet in a set of the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from autosched.errors import ScheduleError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const
from autosched.ir.linear import linear
from autosched.ir.stmt import ForKind, Scope
from autosched.schedule import FetchAhead, Prefetch, Stage, State
from search_spaces.access import Read, extent, is_reused, points, reads_of, run_length
from search_spaces.fusion import is_copy
from search_spaces.partial_sketch import Context, PartialSketch

SHORT_ROW_BYTES = 1024  # longer ones are followed by the processor
TILES_AHEAD = 2  # a tile takes about as long as the memory
ROWS_AHEAD = 16  # steps of a reduction, of some ten nanoseconds: what memory takes at worst
FEW_STEPS = 256  # of a reduction: with more, a tile takes longer than its lines of the output
LARGE = 0.5  # of the second level cache: an operand that is larger does not stay there, beside the others


def fetch_ahead(state: State, context: Context) -> State:
    """The schedule with its register tiles asking for operands whose rows are short; itself where none is."""
    for stage in state.stages:
        if _is_tile(stage):
            state = _ask(state, stage, _ask_for_short_rows, LARGE * context.target.l2_bytes)
    return state


def follow_operands(sketch: PartialSketch, context: Context) -> PartialSketch:
    """The sketch with its register tiles asking for large operands while they compute."""
    state = sketch.state
    large = LARGE * context.target.l2_bytes
    for stage in sketch.state.stages:
        if _is_tile(stage):
            state = _follow_output(_ask(state, stage, _ask_for_operand, large), stage, large)
        elif _is_tile_of_block(stage):
            state = _follow_block(state, stage, large)
    return sketch if state is sketch.state else replace(sketch, state=state)


def follow_sums(sketch: PartialSketch, tile: Stage, context: Context) -> PartialSketch:
    """The sketch with a register tile over a long block of the reduction asking for the next one's place in the sums of
    the stage around it; itself where the second level cache holds these."""
    assert tile.at is not None
    sums = sketch.state.stage(tile.at.stage)
    *_, last = [x.name for x in tile.loops if x.reduce and x.kind is ForKind.SERIAL]
    n_bytes = points(sums) * sum(DTYPES[d].nbytes for d in sums.op.dtypes)
    if n_bytes < LARGE * context.target.l2_bytes or sums.layout is not None:
        return sketch
    return sketch.apply(*(FetchAhead(tile.name, last, tile.name, name, 1) for name in sums.op.buffers))


def _is_tile(stage: Stage) -> bool:
    """A register tile over the whole reduction."""
    return _is_in_registers(stage) and all(isinstance(a.extent, Const) for a in stage.op.all_axes)


def _is_tile_of_block(stage: Stage) -> bool:
    """A register tile over a block of the reduction, as long as a parameter says."""
    return _is_in_registers(stage) and not _is_tile(stage)


def _is_in_registers(stage: Stage) -> bool:
    return stage.op.reducer is not None and stage.scope is Scope.REGISTER and stage.at is not None


def _follow_block(state: State, tile: Stage, large: float) -> State:
    """The schedule with the tile asking for the source of the next panel inside the block, in each of its steps. Panels
    of a whole block are made in long rows."""
    *_, last = [x.name for x in tile.loops if x.reduce and x.kind is ForKind.SERIAL]
    for copy in [c for b in sorted(tile.op.reads) if (c := state.producer(b)) is not None]:
        if copy.at is None or not is_copy(copy) or state.stage(copy.at.stage).loop(copy.at.loop).reduce:
            continue
        step = _ask_for_source(state, tile, last, copy)
        if step is not None and _n_bytes(state, step.buffer) >= large:
            state = state.apply(step)
    return state


Asking = Callable[[State, Stage, str, Read, tuple[Read, ...]], Prefetch | FetchAhead | None]


def _ask(state: State, tile: Stage, asking: Asking, large: float) -> State:
    """The schedule with what `asking` says of each operand of the tile that is at least as large; itself where that is
    nothing. The innermost loop over steps of the reduction asks."""
    reads = reads_of(state, tile)
    steps = [x.name for x in tile.loops if x.reduce and x.kind is ForKind.SERIAL]
    for read in reads if steps else ():
        step = None if read.is_indirect else asking(state, tile, steps[-1], read, reads)
        if step is None or _n_bytes(state, step.buffer) < large:
            continue
        try:
            state = state.apply(step)
        except ScheduleError:  # copied elsewhere
            continue
    return state


def _follow_output(state: State, tile: Stage, large: float) -> State:
    """The schedule with the tile asking for the next one's place in what the stage around it writes."""
    assert tile.at is not None
    host = state.stage(tile.at.stage)
    n_steps = math.prod(extent(a) for a in tile.op.reduce_axes)
    loops = [x.name for x in tile.loops if x.reduce and x.kind is ForKind.SERIAL]
    if not loops or n_steps > FEW_STEPS or not state.is_output(host):
        return state
    n_points = math.prod(extent(a) for a in host.op.axes)
    for name, dtype in zip(host.op.buffers, host.op.dtypes, strict=True):
        if n_points * DTYPES[dtype].nbytes >= large:
            state = state.apply(FetchAhead(tile.name, loops[-1], tile.name, name, 1))
    return state


def _ask_for_short_rows(
    state: State, tile: Stage, loop: str, read: Read, reads: tuple[Read, ...]
) -> Prefetch | FetchAhead | None:
    if not _is_scattered(read, tile, reads) or not is_reused(read, tile):
        return None
    name = read.load.buffer
    copy = state.producer(name)
    if copy is None:
        return FetchAhead(tile.name, loop, tile.name, name, TILES_AHEAD)
    return _ask_for_source(state, tile, loop, copy)


def _is_scattered(read: Read, tile: Stage, reads: tuple[Read, ...]) -> bool:
    run = run_length(read, tile, reads)
    return run is not None and run * DTYPES[read.load.dtype].nbytes <= SHORT_ROW_BYTES


def _ask_for_operand(
    state: State, tile: Stage, loop: str, read: Read, reads: tuple[Read, ...]
) -> Prefetch | FetchAhead | None:
    """None where it is no input, is read but once, or nothing can be said of it."""
    if _is_scattered(read, tile, reads) or not is_reused(read, tile):
        return None  # a depthwise convolution's image: it comes once, in order
    name = read.load.buffer
    copy = state.producer(name)
    if copy is None and (read.strides[tile.op.reduce_axes[-1].name] or 0) > 1:
        return Prefetch(tile.name, name, loop, ROWS_AHEAD, 2)
    if not _is_plain(read, tile):
        return None
    if copy is None:
        return FetchAhead(tile.name, loop, tile.name, name, 1)
    return _ask_for_source(state, tile, loop, copy) if is_copy(copy) else None


def _ask_for_source(state: State, tile: Stage, loop: str, copy: Stage) -> FetchAhead | None:
    """For what the next copy of an input, or the next part of an image with its border, is made of."""
    sources = tuple(copy.op.reads)
    if copy.op.reducer is not None or len(sources) != 1 or state.producer(sources[0]) is not None:
        return None
    return FetchAhead(tile.name, loop, copy.name, sources[0], 1)


def _is_plain(read: Read, tile: Stage) -> bool:
    """Whether each dimension is indexed by one axis alone: tiles have no element in common but all of it."""
    return all(len(linear(i).terms) <= 1 for i in read.load.indices) and all(
        read.dim_of(a.var) is not None for a in tile.op.all_axes if a.var in read.axes
    )


def _n_bytes(state: State, name: str) -> int:
    tensor = next(t for t in state.inputs if t.name == name)
    return math.prod(tensor.shape) * DTYPES[tensor.dtype].nbytes
