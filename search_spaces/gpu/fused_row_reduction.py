"""Fused row reductions: reductions along the columns of a matrix product in its kernel, on tensor cores.

Sums of squares of rows, their maxima, or the row statistics of a loss or a norm. The product is never stored.

    blocks m.0, parts.0:  warps m.1 by parts.1 (z):  lanes of a warp, 8 along m (y) by 4 along a part's columns (x)
      the product as in `matrices.py`, in registers: m.2 by j.0 tiles of 16 by 8
      each thread reduces its columns of a tile row, the four lanes of a row by shuffles, and the first one writes

The rule applies if the reduction reads the product only at its row and column, possibly through elementwise stages, and
nothing else reads either. One warp has all columns where they are few; or each has a part of them, and another kernel
combines the parts, always in the same order. Where warpgroups can compute the product (`warpgroups.py`), they are
offered as well: a block then has the columns of one part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, NEIGHBOURS
from autosched.ir.instructions.tiles import WARPS
from autosched.schedule import AcrossLanes, Bind, ComputeInline, Fuse, Reorder, Split, Stage, Step, Unroll
from autosched.schedule.stage import StageAxis
from search_spaces.gpu import domains
from search_spaces.gpu.matrices import Matrices, matrix_product, multiplied
from search_spaces.gpu.rows import reduction_alternatives, split_reduction
from search_spaces.gpu.thread_binding import bind_blocks, size
from search_spaces.gpu.warpgroups import TiledProduct, pipelined_product, products_of
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext
from search_spaces.reduction_chain import match_reduction_chain
from search_spaces.space import SketchParam

LENGTHS = tuple(ACROSS * NEIGHBOURS * n for n in (1, 2, 4, 8, 16))  # columns of a warp
GROUP_LENGTHS = tuple(ACROSS * NEIGHBOURS * n for n in domains.GROUP_COLUMNS)  # columns of a warpgroup


class FusedRowReduction:
    """The reduction in the product's kernel; then the other rules' alternatives, for a product that is stored."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return _match_product(sketch, stage, context) is not None

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        matrices = _match_product(sketch, stage, context)
        assert matrices is not None
        fused: list[Alternative] = []
        for group in products_of(matrices.sketch, matrices.stage, context):
            parts = _parts(group.sketch, stage.name, GROUP_LENGTHS)
            fused += [partial(_by_warpgroups, group, p, context) for p in parts if p.is_in_spans]
        fused += [partial(_by_warps, matrices, p, context) for p in _parts(matrices.sketch, stage.name, LENGTHS)]
        return [*fused, *reduction_alternatives(sketch, stage, context)]


@dataclass(frozen=True)
class _RowReduction:
    """A sketch, its reduction whose loops will be bound, and the axis that numbers parts of the columns, or None."""

    sketch: PartialSketch
    stage: Stage
    parts: StageAxis | None

    @property
    def note(self) -> str:
        return f"{self.stage.name}:lanes{'-of-parts' if self.parts is not None else ''}"

    @property
    def is_in_spans(self) -> bool:
        """Whether the columns of each part are rows that the copy engine can load, transposed or not."""
        return self.parts is not None or size(self.stage.op.reduce_axes[0]) % GROUP_LENGTHS[0] == 0

    def rows(self, product: Stage, rows: StageAxis) -> StageAxis:
        """Return the axis of the reduction that is the rows of the product."""
        [indices] = {x.indices for x in self.stage.op.loads_from(*product.op.buffers)}
        return next(a for a in self.stage.op.axes if a.var is indices[product.op.axes.index(rows)])

    def others(self, rows: StageAxis) -> list[StageAxis]:
        return [a for a in self.stage.op.axes if a is not rows and a is not self.parts]


def _parts(sketch: PartialSketch, name: str, lengths: tuple[int, ...]) -> list[_RowReduction]:
    """Return the reduction over all columns, if at most the longest of `lengths`, and in parts of these lengths, which
    another kernel combines."""
    stage = sketch.state.stage(name)
    columns = stage.op.reduce_axes[0]
    reductions = [_RowReduction(sketch, stage, None)] if size(columns) <= lengths[-1] else []
    shorter = tuple(n for n in lengths if n < size(columns))
    if shorter:
        length = SketchParam(f"{name}.{columns.name}.b", shorter, "tile")
        split, name_of_parts = split_reduction(sketch.with_params([length]), stage, columns, length.name)
        partial_stage = split.state.stage(name_of_parts)
        reductions.append(_RowReduction(split, partial_stage, partial_stage.op.axes[0]))
    return reductions


def _match_product(sketch: PartialSketch, stage: Stage, context: SketchContext) -> Matrices | None:
    """Return the product whose columns the stage reduces, with the stages between inlined; None if there is none."""
    op, chain = stage.op, match_reduction_chain(sketch, stage)
    if chain is None or chain.softmax is not None or (len(op.body), len(op.reduce_axes)) != (1, 1):
        return None
    inlined = sketch.apply(*map(ComputeInline, chain.maps))
    products = [p for s in chain.sources if (p := matrix_product(inlined, s.name, context)) is not None]
    if len(products) != 1:
        return None
    [indices, *others] = (x.indices for x in chain.reads(products[0].stage))
    columns, points = op.reduce_axes[0].var, {a.var for a in op.axes}
    is_row = not others and indices[-1] is columns and len(indices) == len(points) + 1 and {*indices[:-1]} == points
    return products[0] if is_row else None


def _by_warps(matrices: Matrices, reduction: _RowReduction, context: SketchContext) -> PartialSketch:
    """Bind blocks, warps along the rows and along parts, the lanes of a warp, and tiles with a thread's points."""
    name, rows, columns = (
        reduction.stage.name,
        reduction.rows(matrices.stage, matrices.product.rows),
        reduction.stage.op.reduce_axes[0],
    )
    group, tiles = f"{name}.{rows.name}", -(-size(rows) // (HALVES * DOWN))
    params = [domains.warps(f"{group}.w", tiles, group), domains.matrix_tiles(f"{group}.s", tiles, group)]
    m, n = ([f"{a.name}.{level}" for level in range(5)] for a in (rows, columns))
    others = reduction.others(rows)
    steps: list[Step] = [
        Split(name, rows.name, (*(p.name for p in params), HALVES, DOWN)),
        Split(name, columns.name, (ACROSS, NEIGHBOURS)),
    ]
    blocks, warps, extents = [*(a.name for a in others), m[0]], [m[1]], [size(a) for a in (*others, rows)]
    if reduction.parts is not None:
        number = reduction.parts.name
        params.append(domains.warps(f"{name}.{number}.w", domains.MOST_WARPS, f"{name}.{number}"))
        steps.append(Split(name, number, (params[-1].name,)))
        blocks, warps, extents = [*blocks, f"{number}.0"], [*warps, f"{number}.1"], [*extents, size(reduction.parts)]
    inner = (m[2], n[0], m[3], n[2])
    steps.append(Reorder(name, (*blocks, *warps, m[4], n[1], *inner)))
    steps += [Fuse(name, tuple(warps))] if len(warps) > 1 else []
    steps += bind_blocks(name, blocks, extents)
    steps += [Bind(name, "@".join(warps), "threadIdx.z"), Bind(name, m[4], "threadIdx.y")]
    steps += [*(Unroll(name, x) for x in inner), AcrossLanes(name, n[1])]
    sketch = reduction.sketch.with_params(params).apply(*steps)
    return multiplied(sketch, matrices, name, matrices.name, True, context).finish(note=reduction.note)


def _by_warpgroups(tiled: TiledProduct, reduction: _RowReduction, context: SketchContext) -> PartialSketch:
    """Bind blocks, one for each part, warpgroups along the rows, their threads, and tiles with a thread's points."""
    product = tiled.sketch.state.stage(tiled.name)
    name, rows, columns = (
        reduction.stage.name,
        reduction.rows(product, tiled.product.rows),
        reduction.stage.op.reduce_axes[0],
    )
    group, tiles = f"{name}.{rows.name}", -(-size(rows) // (WARPS * HALVES * DOWN))
    params = [domains.warpgroups(f"{group}.g", tiles, group), domains.group_tiles(f"{group}.s", tiles, group)]
    m, n = ([f"{a.name}.{level}" for level in range(6)] for a in (rows, columns))
    others, numbers = reduction.others(rows), [] if reduction.parts is None else [reduction.parts]
    blocks = [*(a.name for a in others), m[0], *(a.name for a in numbers)]
    inner = (m[2], n[0], m[4], n[2])
    sketch = reduction.sketch.with_params(params).apply(
        Split(name, rows.name, (*(p.name for p in params), WARPS, HALVES, DOWN)),
        Split(name, columns.name, (ACROSS, NEIGHBOURS)),
        Reorder(name, (*blocks, m[1], m[3], m[5], n[1], *inner)),
        Fuse(name, (m[1], m[3])),
        *bind_blocks(name, blocks, [size(a) for a in (*others, rows, *numbers)]),
        Bind(name, f"{m[1]}@{m[3]}", "threadIdx.z"),
        Bind(name, m[5], "threadIdx.y"),
        *(Unroll(name, x) for x in inner),
        AcrossLanes(name, n[1]),
    )
    sketch = pipelined_product(sketch, tiled, name, tiled.name, context)
    how = f"{tiled.name}:{tiled.row.name}{'-copied' * tiled.by_threads}"
    return sketch.finish(name, tiled.name, note=how).finish(note=reduction.note)
