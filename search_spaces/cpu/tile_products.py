"""Products in the processor's tile registers (`autosched/ir/instructions/tile_products.py`).

    parallel a.0 for every axis
      a.1, rows or columns outside
        sums in a buffer:  reduction loops, up to 16 words of the last one unrolled
          others.2, rows.2 unrolled, columns.2 in vectors       <- one to seven tiles, see `in_registers`
        the consumer (the fused one, or the copy out) reads the buffer, row by row

The operand of the columns is packed in panels of words at the root, at load time if it depends on weights alone. The
other operand is read unpacked: of a convolution with channels last a tile has the pixels of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.expr import Load
from autosched.ir.instructions.dots import INTRINSICS
from autosched.ir.instructions.tile_products import SIDE
from autosched.ir.stmt import Scope
from autosched.schedule import ComputeAt, Pack, Parallel, Reorder, Split, Stage, Step, Tensorize, Unroll, Vectorize
from autosched.schedule.stage import StageAxis
from autosched.schedule.steps.tensorize import made_of, word_dim
from search_spaces.access import extent, reads_of
from search_spaces.cpu.domains import tile_count
from search_spaces.cpu.intrinsics import factors_of, store_words
from search_spaces.cpu.packing import reading_order, store_in_panels
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer
from search_spaces.space import SketchParam

FEW_WORDS = 8  # words of a step, less than half a tile, up to which vector instructions are as fast
LEAST_ROWS = 12  # rows of a tile, if the axis has as many: loading the other operand costs the same with fewer
MOST_TILES = 4  # along one axis, in registers at a time


@dataclass(frozen=True)
class Tiling:
    """The step that makes words, the axes of rows and columns, axes that repeat a tile, and a tile's words.

    `along`: the reduction axis along which a tile's words are adjacent. `depth`: the number of words in a step.
    """

    words: Tensorize
    rows: StageAxis
    columns: StageAxis
    repeated: tuple[StageAxis, ...]
    along: str
    depth: int


def tile_products(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
    """Return the alternatives for a sum of products that the processor has tiles for; [] if it has none."""
    tiling = _tiling(sketch, stage, context)
    if tiling is None:
        return []
    return [lambda: _Tiled(context, tiling, True).apply(sketch, stage),
            lambda: _Tiled(context, tiling, False).apply(sketch, stage)]  # fmt: skip


def has_tiles(sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
    """Whether the stage is a sum of products that the processor has tiles for."""
    return _tiling(sketch, stage, context) is not None


def _tiling(sketch: PartialSketch, stage: Stage, context: SketchContext) -> Tiling | None:
    pair = factors_of(stage)
    if pair is None or not stage.op.axes or not stage.op.reduce_axes:
        return None
    strides = {r.load.buffer: r.strides for r in reads_of(sketch.state, stage)}
    for left, right in (pair, pair[::-1]):
        sides = [(strides[left.buffer][a.name], strides[right.buffer][a.name]) for a in stage.op.axes]
        rows = [a for a, side in zip(stage.op.axes, sides, strict=True) if side[0] and side[1] == 0 and extent(a) > 1]
        columns = [a for a, side in zip(stage.op.axes, sides, strict=True) if side[0] == 0 and side[1]]
        step = _words(stage, left, right, context)
        if rows and columns and step is not None and word_dim(right, columns[-1].var) is not None:
            along, words = _row_of_words(stage, strides[left.buffer], step)
            depth = max(n for n in range(1, SIDE + 1) if words % n == 0)
            if depth >= min(FEW_WORDS, words):
                return Tiling(step, rows[-1], columns[-1], tuple(rows[:-1]), along, depth)
    return None


def _row_of_words(stage: Stage, strides: dict[str, int | None], step: Tensorize) -> tuple[str, int]:
    """Return the reduction axis along which words of the rows' operand are adjacent, and the number of words.

    Where a word has the whole axis that it is made of, as of an image of three channels, the words are those of the
    next axis whose iterations are adjacent: the taps of a window."""
    channels = stage.op.axis(step.axis)
    words = -(-extent(channels) // INTRINSICS[step.intrinsic].depth)
    beside = [a for a in stage.op.reduce_axes if strides[a.name] == extent(channels) and a is not channels]
    return (beside[-1].name, extent(beside[-1])) if words == 1 and beside else (step.axis, words)


def _words(stage: Stage, left: Load, right: Load, context: SketchContext) -> Tensorize | None:
    """Return the step for an instruction that takes `left` as rows and `right` as columns; None if there is none."""
    k = stage.op.reduce_axes[-1]
    for row in INTRINSICS.values():
        fits = (row.a, row.b, row.accumulator) == (left.dtype, right.dtype, stage.op.dtypes[0])
        if row.tile is not None and fits and context.target.has(row.tile[1]):
            is_plain = extent(k) > 1 and all(word_dim(x, k.var) is not None for x in (left, right))
            return Tensorize(stage.name, k.name, row.name, right.buffer) if is_plain else None
    return None


@dataclass(frozen=True)
class _Tiled:
    context: SketchContext
    tiling: Tiling
    columns_first: bool

    def apply(self, sketch: PartialSketch, stage: Stage) -> PartialSketch:
        tiling = self.tiling
        sketch, name, acc = fuse_consumer(sketch, stage)
        numbers = {a.name: n for n, a in enumerate(stage.op.axes)}
        sketch = self._tile_consumer(sketch, sketch.state.stage(name), numbers)
        prefix = [x.name for x in sketch.state.stage(name).loops]
        attach = prefix[len(prefix) - len(stage.op.axes) - 1]
        words = Tensorize(acc, tiling.words.axis, tiling.words.intrinsic, tiling.words.packed)
        sketch = store_words(sketch, acc, words).apply(ComputeAt(acc, name, attach, Scope.LOCAL.value))
        words_buffer = made_of(sketch.state, words.packed, "words", acc)
        axis = sketch.state.stage(acc).op.axes[numbers[tiling.columns.name]]
        (load,) = [x for x in sketch.state.stage(acc).op.loads if x.buffer == words_buffer]
        order = reading_order(sketch, words_buffer, acc)
        sketch = self._accumulate(sketch, sketch.state.stage(acc), numbers[tiling.columns.name])
        dim = word_dim(load, axis.var)
        assert dim is not None
        width = self._width(name, sketch.state.stage(name).op.axes[numbers[tiling.columns.name]].name)
        sketch = store_in_panels(sketch, words_buffer, dim, width, None, order)
        first_middle = next((x for x in prefix if x.endswith(".1")), prefix[0])
        outer = prefix[max(0, prefix.index(first_middle) - 1)]
        note = f"{stage.name}:{'columns' if self.columns_first else 'rows'}-{words.intrinsic}"
        return sketch.finish(name, acc, note=note).with_row_loop(name, outer)

    def _width(self, stage: str, axis: str) -> str:
        return f"{stage}.{axis}.r"

    def _tile_consumer(self, sketch: PartialSketch, consumer: Stage, numbers: dict[str, int]) -> PartialSketch:
        tiling, name = self.tiling, consumer.name
        params: list[SketchParam] = []
        steps: list[Step] = []
        columns = consumer.op.axes[numbers[tiling.columns.name]].name
        sizes = {numbers[tiling.rows.name]: _row_tiles, numbers[tiling.columns.name]: _column_tiles}
        sizes |= {numbers[a.name]: _few for a in tiling.repeated}
        for n, axis in enumerate(consumer.op.axes):
            size, group = extent(axis), f"{name}.{axis.name}"
            params += [
                tile_count(f"{group}.m", size, group),
                SketchParam(self._width(name, axis.name), sizes.get(n, _single)(size), "tile", group, max(size, SIDE)),
            ]
            steps.append(Split(name, axis.name, (f"{group}.m", self._width(name, axis.name))))
        others = [a.name for a in consumer.op.axes if a.name != columns]
        middle = [columns, *others] if self.columns_first else [*others, columns]
        outer = tuple(f"{a.name}.0" for a in consumer.op.axes)
        loops = (*outer, *(f"{a}.1" for a in middle), *(f"{a}.2" for a in (*others, columns)))
        steps.append(Reorder(name, loops))
        if consumer.at is None:
            steps.append(Parallel(name, outer))
        return sketch.with_params(params).apply(*steps, Vectorize(name, f"{columns}.2"))

    def _accumulate(self, sketch: PartialSketch, acc: Stage, columns: int) -> PartialSketch:
        axes, k = [a.name for a in acc.op.axes], self.tiling.along
        own = [a.name for a in self._own(acc)]
        shared = [a for a in axes if a not in own]
        v = axes[columns]
        reduced = [a.name for a in acc.op.reduce_axes if a.name != k]
        tile = [*(a for a in own if a != v), v]
        steps: list[Step] = [
            Split(acc.name, k, (self.tiling.depth,)),
            Reorder(acc.name, (*shared, *reduced, f"{k}.0", f"{k}.1", *tile)),
            *(Unroll(acc.name, x) for x in (f"{k}.1", *tile[:-1])),
            Vectorize(acc.name, v),
        ]
        if columns != len(axes) - 1:
            steps.append(Pack(acc.name, (*(n for n in range(len(axes)) if n != columns), columns)))
        return sketch.apply(*steps)

    def _own(self, acc: Stage) -> list[StageAxis]:
        """Return the axes of a tile; axes along which both operands move are outside of it."""
        tiling = self.tiling
        return [a for a in acc.op.axes if a.name in {x.name for x in (tiling.rows, tiling.columns, *tiling.repeated)}]


def _row_tiles(size: int) -> tuple[int, ...]:
    """Return the domain of a tile's rows, for one tile or several of one size: nearly full ones, or all rows."""
    whole = {n * m for m in range(1, MOST_TILES + 1) for n in range(LEAST_ROWS, SIDE + 1)}
    tiles = -(-size // SIDE)
    whole |= {size} if tiles <= MOST_TILES and size % tiles == 0 else set()
    return tuple(sorted(n for n in whole if n <= size)) or (size,)


def _column_tiles(size: int) -> tuple[int, ...]:
    most = max(1, -(-size // SIDE))
    return tuple(SIDE * n for n in range(1, MOST_TILES + 1) if n <= most)


def _few(size: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, MOST_TILES + 1) if n <= size)


def _single(size: int) -> tuple[int, ...]:
    return (1,)
