"""Software prefetch of operands by register tiles.

Two classes of operands need it.

Short rows (`prefetch_short_rows`). The hardware prefetcher follows a row of memory after a few misses in it. Where rows
are short and far from each other, as the heads of an attention are, every row begins with misses. So each register tile
prefetches the rows of the tile after the next one, and its share of the next panel.

Large operands (`prefetch_operands`). A product or a convolution reads its operands once for each panel. An operand that
is larger than the second level cache misses it every time, and a register tile has no other latency to wait for. So it
prefetches some of the operand in each step of its reduction:

    A[i, k]        rows along the reduction: a share of the next tile's rows
    B[k, j]        the row of the panel that is read some steps later, one a step. A whole panel would not stay: rows
                   whose distance is a power of two conflict in a few sets of the caches
    packed         a share of the next panel's source; of panels that are all packed before, a share of the next panel,
                   where the second level cache holds two; of weights for one row the elements some steps later

Weights of a network come from memory in each call; prefetched as the next panel, they arrive while all tiles of rows
compute and not only the first. On a Xeon with AMX, beside other work, the kernels of ResNet-50 are 1.11 times as fast
as with rows prefetched some steps ahead, those of BERT 1.19 times; those of MobileNet-V2, whose panels of weights are
small but used by few rows, 1.14 times. Winograd's transformed weights are four times as large and used by a few dozen
tiles: his kernels of ResNet-50 for 14 x 14 x 256 are 1.18 to 1.43 times as fast. A product of one row by 576 x 960
floats from memory is 1.08 times as fast; with 4-bit weights 1.05 times if each unrolled step prefetches its own lines
and not one for all, and 1.1 times on top if it does so 8 steps ahead instead of 32, into the first level cache.

Inputs that very few outputs use are prefetched whatever their size beyond the first level cache, as the KV cache of a
decoder for one token: rows some steps ahead, or where rows are short the next tile's. Nine heads over 256 keys and
values of three, from memory: 36 us instead of 51 (a plain read takes 25); 10.5 us instead of 9.5 from the second level
cache.

Both classes prefetch line by line, in the steps of a reduction. A core has ten or twenty outstanding misses; a tile
that prefetched more lines before its first step would stall there. Rows that are needed some steps later are prefetched
into the second level cache only, because many of them conflict in the first.

Further prefetches: in blocks of a reduction, the source of the panels that are packed for each tile of columns. Where a
reduction has few steps, the next tile's elements of a large output, and of an input that is read point by point, as a
residual connection's. A store that misses all caches fetches its line, and a short tile has as many such stores as a
core has outstanding misses. The layers of ResNet-50 that add 56 x 56 x 256 inputs, with 64 steps, are 1.14 times as
fast on the Xeon above.

Where blocks of a reduction are added to a large tile in memory (`prefetch_sums`): the next register tile's elements of
it, which are read and written once a block. On Emerald Rapids a product of 512 x 1024 x 1024 in blocks of 128 to 256
steps, with 2 MB of sums, is 1.04 to 1.1 times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from autosched.errors import ScheduleError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const
from autosched.ir.instructions.dots import dots_of
from autosched.ir.linear import linear
from autosched.ir.stmt import ForKind, Scope
from autosched.ir.visit import free_vars
from autosched.schedule import FetchAhead, Prefetch, Stage, State
from search_spaces.access import Read, extent, is_reused, points, reads_of, reuse_count, run_length
from search_spaces.fusion import is_copy, is_words
from search_spaces.partial_sketch import PartialSketch, SketchContext

SHORT_ROW_BYTES = 1024  # longer rows are left to the hardware prefetcher
TILES_AHEAD = 2  # a tile takes about as long as the memory's latency
ROWS_AHEAD = 16  # steps of a reduction, of some ten nanoseconds each: the memory's latency at worst
VECTORS_OF_PANEL = 3  # vectors in a row of a panel, as in most candidates
FEW_ROWS = 512  # rows that use a weight: 4 bytes at 15 GB/s take 5 % of as many multiply-adds at a core's 190 GFLOP/s
PANEL_AHEAD = 32  # steps: lines of a panel come in order, and the hardware prefetcher covers the next few
WORDS_AHEAD = 8  # steps, each of several multiplications for each number that is read
FEW_USERS = 8  # outputs that use an element of an input, up to which loading it from memory takes the most time
FEW_STEPS = 256  # steps of a reduction up to which a tile computes no longer than its output's lines take to arrive
LARGE = 0.5  # share of the second level cache from which an operand does not stay in it beside the others


def prefetch_short_rows(state: State, context: SketchContext) -> State:
    """Return the schedule with register tiles that prefetch operands of short rows; unchanged where there are none."""
    for stage in state.stages:
        if _is_tile(stage):
            state = _prefetch(state, stage, _for_short_rows, context)
    return state


def prefetch_operands(sketch: PartialSketch, context: SketchContext) -> PartialSketch:
    """Return the sketch with register tiles that prefetch large operands while they compute."""
    state = sketch.state
    for stage in sketch.state.stages:
        if _is_tile(stage):
            state = _prefetch_points(_prefetch(state, stage, _for_operand, context), stage, context)
        elif _is_tile_of_block(stage):
            state = _prefetch_panels(state, stage, context)
    return sketch if state is sketch.state else replace(sketch, state=state)


def prefetch_sums(sketch: PartialSketch, tile: Stage, context: SketchContext) -> PartialSketch:
    """Return the sketch with a register tile over a block of the reduction that prefetches the next tile's sums.

    The sums are those of the stage around it. The sketch is unchanged where the second level cache holds them.
    """
    assert tile.at is not None
    sums = sketch.state.stage(tile.at.stage)
    *_, last = [x.name for x in tile.loops if x.reduce and x.kind is ForKind.SERIAL]
    n_bytes = points(sums) * sum(DTYPES[d].nbytes for d in sums.op.dtypes)
    if n_bytes < _large(context) or sums.layout is not None:
        return sketch
    return sketch.apply(*(FetchAhead(tile.name, last, tile.name, name, 1) for name in sums.op.buffers))


def _is_tile(stage: Stage) -> bool:
    """Whether the stage is a register tile over the whole reduction, or tiles for a tile-product instruction."""
    by_tiles = stage.at is not None and any(dot.row.tile is not None for dot in dots_of(stage.op.body))
    return (by_tiles or _is_in_registers(stage)) and all(isinstance(a.extent, Const) for a in stage.op.all_axes)


def _is_tile_of_block(stage: Stage) -> bool:
    """Whether the stage is a register tile over a block of the reduction, whose length is a parameter."""
    return _is_in_registers(stage) and not _is_tile(stage)


def _is_in_registers(stage: Stage) -> bool:
    return stage.op.reducer is not None and stage.scope is Scope.REGISTER and stage.at is not None


def _large(context: SketchContext) -> float:
    """Return the bytes from which an operand does not stay in the second level cache beside the others."""
    return LARGE * context.target.l2_bytes


def _prefetch_panels(state: State, tile: Stage, context: SketchContext) -> State:
    """Return the schedule with a tile that prefetches the next panel, or the source of one that a block packs.

    Panels of a whole block are packed in long rows, and need no prefetch.
    """
    *_, last = [x.name for x in tile.loops if x.reduce and x.kind is ForKind.SERIAL]
    for copy in [c for b in sorted(tile.op.reads) if (c := state.producer(b)) is not None and is_copy(c)]:
        step: Prefetch | FetchAhead | None
        if copy.at is None:
            step = _for_panel(state, tile, last, copy, context)
            step = step if isinstance(step, FetchAhead) else None
        else:
            whole = state.stage(copy.at.stage).loop(copy.at.loop).reduce
            step = None if whole else _for_source(state, tile, last, copy)
        if step is not None and _n_bytes(state, step.buffer) >= _least_bytes(state, step, context):
            state = state.apply(step)
    return state


class TileRead(NamedTuple):
    """A read of a tile in the steps of `loop`, with all `reads` of the tile."""

    tile: Stage
    loop: str
    read: Read
    reads: tuple[Read, ...]


Chooser = Callable[[State, TileRead, SketchContext], Prefetch | FetchAhead | None]


def _prefetch(state: State, tile: Stage, choose: Chooser, context: SketchContext) -> State:
    """Return the schedule with the prefetch that `choose` returns for each large operand of the tile.

    The prefetch is in the innermost serial loop of the reduction.
    """
    reads = reads_of(state, tile)
    steps = [x.name for x in tile.loops if x.reduce and x.kind is ForKind.SERIAL]
    for read in reads if steps else ():
        step = None if read.is_indirect else choose(state, TileRead(tile, steps[-1], read, reads), context)
        if step is None:
            continue
        few = not is_reused(read, tile) or _is_used_by_few(state, TileRead(tile, steps[-1], read, reads))
        if _n_bytes(state, step.buffer) < _least_bytes(state, step, context, few):
            continue
        try:
            state = state.apply(step)
        except ScheduleError:  # the copy is computed elsewhere
            continue
    return state


def _is_used_by_few(state: State, operand: TileRead) -> bool:
    """Whether very few outputs use an element of an input, as one row of a few heads uses the KV cache."""
    name = operand.read.load.buffer
    return state.producer(name) is None and reuse_count(operand.read, operand.tile) <= FEW_USERS


def _least_bytes(state: State, step: Prefetch | FetchAhead, context: SketchContext, few: bool = False) -> float:
    """Return the bytes from which prefetching an operand pays.

    Usually those of a large operand. Panels of weights that few rows use come from memory in each call of a network,
    whatever their size, and so do inputs that few outputs use: loading takes as long as much of the arithmetic.
    """
    copy = state.producer(step.buffer)
    if copy is None:
        return min(context.target.l1_bytes, _large(context)) if few else _large(context)
    if copy.at is not None or not (few or isinstance(step, FetchAhead)) or not state.is_constant(copy):
        return _large(context)
    return context.target.l1_bytes


def _prefetch_points(state: State, tile: Stage, context: SketchContext) -> State:
    """Return the schedule with a tile that prefetches the next tile's elements of its reader's output and of the inputs
    that this reads point by point."""
    assert tile.at is not None
    consumer = state.stage(tile.at.stage)
    n_steps = math.prod(extent(a) for a in tile.op.reduce_axes)
    loops = [x.name for x in tile.loops if x.reduce and x.kind is ForKind.SERIAL]
    if not loops or n_steps > FEW_STEPS or not state.is_output(consumer):
        return state
    n_points = points(consumer)
    for name, dtype in zip(consumer.op.buffers, consumer.op.dtypes, strict=True):
        if n_points * DTYPES[dtype].nbytes >= _large(context):
            state = state.apply(FetchAhead(tile.name, loops[-1], tile.name, name, 1))
    for tensor in state.inputs:
        beside = tensor.name in consumer.op.reads - tile.op.reads and math.prod(tensor.shape) == n_points
        if beside and _n_bytes(state, tensor.name) >= _large(context):
            state = state.apply(FetchAhead(tile.name, loops[-1], tile.name, tensor.name, 1))
    return state


def _for_short_rows(state: State, operand: TileRead, context: SketchContext) -> FetchAhead | None:
    tile, loop, read, reads = operand
    if not _has_short_runs(read, tile, reads) or not is_reused(read, tile):
        return None
    name = read.load.buffer
    copy = state.producer(name)
    if copy is None:
        return FetchAhead(tile.name, loop, tile.name, name, TILES_AHEAD)
    return _for_source(state, tile, loop, copy)


def _has_short_runs(read: Read, tile: Stage, reads: tuple[Read, ...]) -> bool:
    run = run_length(read, tile, reads)
    return run is not None and run * DTYPES[read.load.dtype].nbytes <= SHORT_ROW_BYTES


def _for_operand(state: State, operand: TileRead, context: SketchContext) -> Prefetch | FetchAhead | None:
    """Return the prefetch; None where the next tile's elements are unknown, or each is read once and not in panels."""
    tile, loop, read, reads = operand
    if _has_short_runs(read, tile, reads):
        is_asked_for = is_reused(read, tile) and _is_used_by_few(state, operand)
        return FetchAhead(tile.name, loop, tile.name, read.load.buffer, 1) if is_asked_for else None
    if not is_reused(read, tile):  # a depthwise convolution's image: each element is read once, in order
        return _for_one_row(state, tile, read)
    name = read.load.buffer
    copy = state.producer(name)
    if copy is None and (read.strides[tile.op.reduce_axes[-1].name] or 0) > 1:
        return Prefetch(tile.name, name, loop, ROWS_AHEAD, 2)
    if not _is_plain(read, tile):
        return None
    if copy is None:
        return FetchAhead(tile.name, loop, tile.name, name, 1)
    if is_words(copy) and copy.at is None:
        return _for_panel(state, tile, loop, copy, context)
    if not is_copy(copy):
        return None
    return _for_source(state, tile, loop, copy) if copy.at is not None else _for_panel(state, tile, loop, copy, context)


def _for_panel(
    state: State, tile: Stage, loop: str, copy: Stage, context: SketchContext
) -> Prefetch | FetchAhead | None:
    """Return the prefetch of the next panel of those that are all packed before, while tiles read this one.

    Where the second level cache does not hold two panels, or so many rows use one that its loading time is negligible,
    it is the prefetch of the row of the same panel some steps later.
    """
    is_made_before = _is_of_input(state, copy) or state.is_constant(copy)
    if not is_made_before or copy.layout is None or not copy.layout.tiles:
        return None
    (name,) = copy.op.buffers
    n_steps = math.prod(int(a.extent.value) for a in tile.op.reduce_axes if isinstance(a.extent, Const))
    n_bytes = n_steps * VECTORS_OF_PANEL * context.target.vector_bytes
    columns = {d for d, _ in copy.layout.tiles} | _kept_dims(tile, name)
    few = points(state.root(tile)) <= FEW_ROWS * math.prod(extent(copy.op.axes[d]) for d in columns)
    if few and 2 * n_bytes <= context.target.l2_bytes:
        return FetchAhead(tile.name, loop, tile.name, name, 1, 2)
    return Prefetch(tile.name, name, loop, PANEL_AHEAD, 2)


def _kept_dims(tile: Stage, name: str) -> set[int]:
    """Return the dimensions of an operand whose indices contain no reduction axis of the tile."""
    load = next(x for x in tile.op.loads if x.buffer == name)
    steps = {a.var for a in tile.op.reduce_axes}
    return {d for d, index in enumerate(load.indices) if not free_vars(index) & steps}


def _for_one_row(state: State, tile: Stage, read: Read) -> Prefetch | None:
    """Return the prefetch of panels of weights that one row reads, some steps ahead, in each step of the reads.

    Steps that multiply several numbers for each that they read, as those of a word, take longer: few of them cover the
    memory's latency, so few that the first level cache holds the lines.
    """
    name, copy = read.load.buffer, state.producer(read.load.buffer)
    panels = copy is not None and copy.at is None and copy.layout is not None and bool(copy.layout.tiles)
    if copy is None or not panels or not state.is_constant(copy) or not _is_of_input(state, copy):
        return None
    axes = tile.op.reduce_axes
    last = max((n for n, axis in enumerate(axes) if read.moves(axis.name)), default=None)
    if last is None:
        return None
    loop = [x.name for x in tile.loops if any(axis == axes[last].name for axis, _ in x.parts)][-1]
    still = math.prod(extent(axis) for axis in axes[last + 1 :])  # steps at the same address
    unpacks = max(len({*tile.op.loads_from(other)}) for other in tile.op.reads) > len({*tile.op.loads_from(name)})
    ahead, level = (WORDS_AHEAD, 1) if unpacks else (PANEL_AHEAD, 2)
    return Prefetch(tile.name, name, loop, max(1, ahead // still), level)


def _is_of_input(state: State, copy: Stage) -> bool:
    """Whether a copy is of an input as it is."""
    sources = tuple(copy.op.reads)
    return copy.op.reducer is None and len(sources) == 1 and state.producer(sources[0]) is None


def _for_source(state: State, tile: Stage, loop: str, copy: Stage) -> FetchAhead | None:
    """Return the prefetch of the source of the next copy, or of the next part of a padded image."""
    if not _is_of_input(state, copy):
        return None
    (source,) = copy.op.reads
    return FetchAhead(tile.name, loop, copy.name, source, 1)


def _is_plain(read: Read, tile: Stage) -> bool:
    """Whether one axis alone indexes each dimension, so that two tiles share all of their elements or none."""
    return all(len(linear(i).terms) <= 1 for i in read.load.indices) and all(
        read.dim_of(a.var) is not None for a in tile.op.all_axes if a.var in read.axes
    )


def _n_bytes(state: State, name: str) -> int:
    """Return the bytes of an input, or of the source of a copy; for weights transformed at load time, the result's."""
    copy = state.producer(name)
    (source,) = (name,) if copy is None else copy.op.reads
    tensor = next((t for t in state.inputs if t.name == source), None)
    if tensor is None:
        assert copy is not None
        return points(copy) * sum(DTYPES[d].nbytes for d in copy.op.dtypes)
    return math.prod(tensor.shape) * DTYPES[tensor.dtype].nbytes
