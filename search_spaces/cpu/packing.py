"""Packing: copies of operands in the order in which the register tiles read them.

    panel        B[k, j] -> [j / r][k][j % r]: register tiles are contiguous, and the reduction runs inside a panel
    rows         A[i, k] -> [i / r][k / u][i % r][k % u]: the elements that a register tile reads in u steps are
                 contiguous, and the copy moves vectors of u; unpacked, rows whose distance is a power of two conflict
                 in a few cache sets
    transposed   X[h, w, c] -> [h][c][w]: lanes that were apart become adjacent; any index along w stays possible

`at`: the (stage, loop) that the copy is computed in, None for a nest of its own.
"""

from __future__ import annotations

import math

from autosched.ir.dtype import DTYPES
from autosched.ir.visit import free_vars
from autosched.schedule import CacheRead, ComputeAt, Pack, Parallel, Reindex, Reorder, Split, Step, Unroll, Vectorize
from search_spaces.access import extent
from search_spaces.cpu.domains import across_tile, vector_width
from search_spaces.partial_sketch import PartialSketch, SketchContext

Place = tuple[str, str] | None
MIN_ACROSS = 4  # the least adjacent elements that are transposed at a time
ROWS_PER_THREAD = 4  # tasks that are enough to balance the threads
PANEL_ROWS = 8  # rows that are copied into panels at a time


def _copied(sketch: PartialSketch, tensor: str, reader: str, reindexed: bool = False) -> tuple[PartialSketch, str]:
    """Copy the tensor for `reader`; return the copy's name too. Another reduction may have a copy of its own."""
    copy = Reindex if reindexed else CacheRead
    tag = f"{reader}.pack" if sketch.state.taken(f"{tensor}.pack") else "pack"
    return sketch.apply(copy(tensor, reader, tag)), f"{tensor}.{tag}"


def pack_panels(
    sketch: PartialSketch, tensor: str, reader: str, dim: int, width: str, at: Place, reindexed: bool = False
) -> PartialSketch:
    """Pack panels of `width` (a parameter) along dimension `dim`, which is one of the copy if `reindexed`.

    Where `dim` is contiguous, the source is read a few rows at a time, each to its end, and every panel gets its share
    of them. Panel by panel, a line or two of every page would be read. Where `dim` is not contiguous, a few neighbours
    are read at a time and transposed.
    """
    order = () if reindexed else reading_order(sketch, tensor, reader)
    return store_in_panels(*_copied(sketch, tensor, reader, reindexed), dim, width, at, order)


def reading_order(sketch: PartialSketch, tensor: str, reader: str) -> tuple[int, ...]:
    """Return the dimensions in the order of the reader's reduction loops, after those of no reduction axis.

    The result is () where the reader has several different reads of the tensor, or axes of it share a dimension.
    """
    op = sketch.state.stage(reader).op
    loads = [load for load in op.loads if load.buffer == tensor]
    if len(loads) != 1:
        return ()
    indices = [free_vars(index) for index in loads[0].indices]
    dims = [n for axis in op.reduce_axes for n, variables in enumerate(indices) if axis.var in variables]
    if len(set(dims)) < len(dims):
        return ()
    return (*(n for n in range(len(indices)) if n not in dims), *dims)


def store_in_panels(
    sketch: PartialSketch, name: str, dim: int, width: str, at: Place, order: tuple[int, ...] = ()
) -> PartialSketch:
    """As `pack_panels`, for a stage `name` that is a copy already.

    `order`: the dimensions within a panel, so that its reader goes from line to line; unchanged if not given.
    """
    axes = sketch.state.stage(name).op.axes
    if dim < len(axes) - 1 and math.prod(extent(a) for a in axes[dim + 1 :]) >= MIN_ACROSS:
        return _panels_across(sketch, name, dim, width, at, order)
    numbers = [n for n in range(len(axes)) if n != dim]
    steps: list[Step] = [] if at is None else [ComputeAt(name, *at)]
    stored = (dim, *(n for n in order or numbers if n != dim))
    steps += [Pack(name, stored, ((dim, width),)), Split(name, f"d{dim}", (width,))]
    others = [f"d{n}" for n in numbers]
    if not numbers or extent(axes[numbers[-1]]) <= PANEL_ROWS:
        outer, inner = [f"d{dim}.0", *others[:-1]], others[-1:]
    else:
        steps.append(Split(name, others[-1], (PANEL_ROWS,)))
        outer, inner = [*others[:-1], f"{others[-1]}.0"], [f"d{dim}.0", f"{others[-1]}.1"]
    steps += [Reorder(name, (*outer, *inner, f"d{dim}.1")), Vectorize(name, f"d{dim}.1")]
    if at is None:
        steps.append(Parallel(name, tuple(outer)))
    return sketch.apply(*steps).finish(name)


def pack_rows(
    sketch: PartialSketch, tensor: str, reader: str, dims: tuple[int, int], widths: tuple[str, str], at: Place
) -> PartialSketch:
    """Pack tiles along the dimensions `dims`, of rows and reduction; `widths` (parameters) are their sizes."""
    sketch, name = _copied(sketch, tensor, reader)
    row, k = (f"d{n}" for n in dims)
    others = tuple(n for n in range(len(sketch.state.stage(name).op.axes)) if n not in dims)
    steps: list[Step] = [] if at is None else [ComputeAt(name, *at)]
    steps += [
        Pack(name, (dims[0], *others, dims[1]), tuple(zip(dims, widths, strict=True))),
        Split(name, row, (widths[0],)),
        Split(name, k, (widths[1],)),
        Reorder(name, (f"{row}.0", *(f"d{n}" for n in others), f"{k}.0", f"{row}.1", f"{k}.1")),
        Unroll(name, f"{row}.1"),
        Vectorize(name, f"{k}.1"),
    ]
    if at is None:
        steps.append(Parallel(name, (f"{row}.0", *(f"d{n}" for n in others))))
    return sketch.apply(*steps).finish(name)


def _panels_across(
    sketch: PartialSketch, name: str, dim: int, width: str, at: Place, order: tuple[int, ...]
) -> PartialSketch:
    """Pack and transpose panels of a tensor that is contiguous along a later dimension than `dim`."""
    axes = sketch.state.stage(name).op.axes
    others = [n for n in range(len(axes)) if n != dim]
    split = others[-1]  # the taps of a kernel are adjacent as a whole, the dimension before them is split
    while extent(axes[split]) < MIN_ACROSS and split - 1 > dim:
        split -= 1
    whole = [f"d{n}" for n in others if n > split]
    tile = across_tile(f"{name}.d{split}.r", extent(axes[split]), len(whole) > 0)
    outer = [f"d{dim}.0", *(f"d{n}" for n in others if n < split), f"d{split}.0"]
    unrolled = [f"d{split}.1", *whole]
    steps: list[Step] = [] if at is None else [ComputeAt(name, *at)]
    steps += [
        Pack(name, (dim, *(n for n in order or others if n != dim)), ((dim, width),)),
        Split(name, f"d{dim}", (width,)),
        Split(name, f"d{split}", (tile.name,)),
        Reorder(name, (*outer, *unrolled, f"d{dim}.1")),
        *(Unroll(name, x) for x in unrolled),
        Vectorize(name, f"d{dim}.1"),
    ]
    if at is None:
        steps.append(Parallel(name, tuple(outer[:-1])))
    return sketch.with_params([tile]).apply(*steps).finish(name)


def pack_transposed(
    sketch: PartialSketch, tensor: str, reader: str, dim: int, at: Place, context: SketchContext
) -> PartialSketch:
    """Return a copy with dimension `dim` innermost; reads follow the old innermost one, writes are small tiles."""
    sketch, name = _copied(sketch, tensor, reader)
    axes = sketch.state.stage(name).op.axes
    last = len(axes) - 1
    others = [n for n in range(len(axes)) if n != dim]
    lanes = context.lanes(DTYPES[sketch.state.stage(name).op.dtypes[0]].nbytes)
    width = vector_width(f"{name}.d{dim}.r", extent(axes[dim]), lanes, "", vectors=(1, 2))
    tile = across_tile(f"{name}.d{last}.r", extent(axes[last]))
    outer = [f"d{n}.0" if n == last else f"d{n}" for n in others]
    steps: list[Step] = [] if at is None else [ComputeAt(name, *at)]
    steps += [
        Pack(name, (*others, dim)),
        Split(name, f"d{dim}", (width.name,)),
        Split(name, f"d{last}", (tile.name,)),
        Reorder(name, (*outer, f"d{dim}.0", f"d{last}.1", f"d{dim}.1")),
        Unroll(name, f"d{last}.1"),
        Vectorize(name, f"d{dim}.1"),
    ]
    if at is None:
        enough = math.prod(extent(axes[n]) for n in others[:-1]) >= ROWS_PER_THREAD * context.threads
        rows = outer[:-1] if enough else outer
        steps.append(Parallel(name, tuple(rows)))
        sketch = sketch.with_row_loop(name, rows[-1])  # padding can be computed in it, row by row
    return sketch.with_params([width, tile]).apply(*steps).finish(name)
