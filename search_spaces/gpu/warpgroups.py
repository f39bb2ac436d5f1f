"""Matrix products by warpgroups, on GPUs with wgmma and a copy engine (`ir/instructions/`).

    blocks m.0, n.0:  warpgroups m.1 and their warps m.3 (z):  lanes, 8 along m (y) by 4 along n (x)
      accumulators in registers: m.2 tiles of 64 rows by n.1 units of 8 columns; a thread has 2 by 2 points each
        k.0                                            <- tiles of both operands are loaded ahead, into a pipeline
          k.1 unrolled:  the warpgroup's tiles times 32 bytes of k, one instruction each
      the consumer (the fused one, or the copy out) writes the points, to memory or to a tile that the engine stores

The rule applies to sums of products of two operands of 16 or 8 bits, with axes of their own and one in common, in
tensors whose rows the copy engine can load. Either may be contiguous along k or across it, bytes only along it.
Elements beyond an axis are read as zero and not written. Sums over windows become matrix products
(`autosched/schedule/steps/matricize.py`): the engine gathers the pixels, with zeros for the padding and beyond the
channels (`autosched/schedule/gathers.py`).

Where the engine cannot load the rows of an operand, either a kernel before makes a copy with rows of another length, or
the producer threads copy tiles themselves: sketches of both variants.

A short last wave of blocks leaves most of a device idle. A large result is therefore also offered as two kernels, which
share all parameters but their tiles: one ends with a whole wave, the other computes the remainder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Load
from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, NEIGHBOURS, MatrixIntrinsic, matrix_operands
from autosched.ir.instructions.tiles import SPANS, WARPS, has_maps
from autosched.ir.stmt import Scope
from autosched.schedule import (
    CacheRead,
    ComputeAt,
    ComputeInline,
    Fuse,
    LaunchBounds,
    Matricize,
    Partition,
    Pipeline,
    Raster,
    Reorder,
    ShareTiles,
    Split,
    Stage,
    State,
    Step,
    StoreTiles,
    Unroll,
    WarpgroupMma,
    can_store_tiles,
    windows,
)
from autosched.schedule.gathers import Gather, gather_of
from autosched.schedule.steps.matrices import ProductAxes, ends_with, product_axes
from search_spaces.access import buffer_shape
from search_spaces.fusion import fused_consumer
from search_spaces.gpu import domains
from search_spaces.gpu.channel_packing import with_channels_last, with_whole_channels
from search_spaces.gpu.matrices import in_matrices, matrix_alternatives
from search_spaces.gpu.rows import can_split_tiles, parts_of_tiles, split_reduction
from search_spaces.gpu.shared import private_producer, private_producers
from search_spaces.gpu.thread_binding import bind_blocks, bind_threads, last_thread_loop, size
from search_spaces.partial_sketch import Alternative, PartialSketch, SketchContext, fuse_consumer, noted
from search_spaces.space import SketchParam

CAPABILITY = 90  # the compute capability of devices with wgmma
PLANE = frozenset({"blockIdx.x", "blockIdx.y"})  # of rows and columns
MOST_POINTS = 256 * 128  # of the tile of a block
LEAST_SHARE = 4  # at least one in so many points of an instruction's rows and 8 columns has to exist


class WarpgroupTiling:
    """Products by warpgroups; then the alternatives of `MatrixTiling`, by single warps."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return bool(products_of(sketch, stage, context))

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        return warpgroup_alternatives(sketch, stage, context)


def warpgroup_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
    """Return the product by warpgroups, whole and in parts of k, if possible; and the `matrix_alternatives`."""
    done = list[Alternative]()
    for product in products_of(sketch, stage, context):
        done += [*_by_warpgroups(product, context), *_in_two(product, context), *_in_parts(product, context)]
    return [*done, *matrix_alternatives(sketch, stage, context)]


def products_of(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[TiledProduct]:
    """Return the stage as a product for warpgroups: with tiles that the engine loads, and with tiles that threads copy
    where the engine cannot load the operands. [] if the device has no warpgroups."""
    gpu = context.target.gpu
    can = context.target.backend.has_matrices and gpu is not None and gpu.has_warpgroups
    if not can or in_matrices(sketch, stage, context) is None:
        return []
    product = _in_tiles(sketch, stage)
    both = [product] if product is not None else [_arranged(sketch, stage), _in_tiles(sketch, stage, by_threads=True)]
    return [x for x in both if x is not None]


@dataclass(frozen=True)
class TiledProduct:
    """A sketch in which the stage `name` is a product of two matrices that warpgroups can compute.

    `makers`: for each operand the stages that gather it, which the copy engine replaces. `together`: the instructions
    along k that a tile must divide; 0 if there is no limit. `by_threads`: threads copy the tiles that the engine cannot
    load. `beside`: the writing and the accumulating stage of another kernel for the same result, which shares its
    parameters but those of the tiles.
    """

    sketch: PartialSketch
    name: str
    row: MatrixIntrinsic
    product: ProductAxes
    makers: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    together: int = 0
    by_threads: bool = False
    beside: tuple[str, str] | None = None

    @property
    def operands(self) -> tuple[Load, Load]:
        return self.product.left, self.product.right

    @property
    def can_lie(self) -> bool:
        """Whether the instruction can read both operands in their orientation."""
        return all(self.row.can_lie_across or self.product.is_along_depth(x) for x in self.operands)

    @property
    def can_load(self) -> bool:
        """Whether both operands can be loaded in the layout of the instruction."""
        return self.can_lie and all(_can_load(self.sketch.state, x, self.by_threads) for x in self.operands)


def _in_parts(whole: TiledProduct, context: SketchContext) -> list[Alternative]:
    """Return parts of k of a whole number of tiles, whatever their length, where the result has few tiles."""
    stage, depth = whole.sketch.state.stage(whole.name), whole.product.depth
    if not can_split_tiles(whole.sketch.state, stage):
        return []
    step, total, result = whole.row.k * domains.PIPELINE_STEPS[-1], size(depth), list[Alternative]()
    lengths = {-(-total // (parts * step)) * step for parts in parts_of_tiles(stage, depth)}
    if whole.together:  # beyond the last tap there is the image, not zero: parts end with a tap
        least = whole.row.k * domains.dividing_steps(whole.together)[0]
        exact = [n for n in range(least, total, least) if total % n == 0]
        lengths = {min(n for n in exact if n >= length) for length in lengths if any(n >= length for n in exact)}
    for length in sorted(n for n in lengths if n < total):
        split, name = split_reduction(whole.sketch, stage, depth, length)
        product = _product(split, name)
        if product is not None:
            together = math.gcd(whole.together, length // whole.row.k) if whole.together else 0
            tiled = replace(product, makers=whole.makers, together=together, by_threads=whole.by_threads)
            result.append(noted(_by_warpgroups(tiled, context)[0], f"split-k{-(-total // length)}"))
    return result


def _in_two(whole: TiledProduct, context: SketchContext) -> list[Alternative]:
    """Return two kernels with tiles of their own, where the largest tiles exceed one wave of the device."""
    gpu, product = context.target.gpu, whole.product
    assert gpu is not None
    enough = size(product.rows) * size(product.columns) > gpu.multiprocessors * MOST_POINTS
    sketch, consumer, acc = fuse_consumer(whole.sketch, whole.sketch.state.stage(whole.name))
    stage = sketch.state.stage(consumer)
    is_last = sketch.state.is_output(stage) and not sketch.state.consumers(stage)
    if not enough or not is_last or any(whole.makers) or whole.by_threads:
        return []
    longer = max(product.columns, product.rows, key=size)  # has the least tiles across it
    axis = stage.op.axes[sketch.state.stage(acc).op.axes.index(longer)]
    at = domains.kernel_end(f"{consumer}.{axis.name}.at", size(axis))
    sketch = sketch.with_params([at]).apply(Partition(consumer, acc, axis.name, at.name))
    return [partial(_both_pipelined, replace(whole, sketch=sketch, name=acc), can_store_tiles(stage), context)]


def _both_pipelined(whole: TiledProduct, staged: bool, context: SketchContext) -> PartialSketch:
    """Schedule both parts of a partition."""
    sketch = _pipelined(whole, staged, context)
    (consumer,) = sketch.state.consumers(sketch.state.stage(whole.name))
    remainder = _product(sketch, f"{whole.name}.rest")
    assert remainder is not None
    return _pipelined(replace(remainder, beside=(consumer.name, whole.name)), staged, context)


def _arranged(sketch: PartialSketch, stage: Stage) -> TiledProduct | None:
    """Return the stage as a product for warpgroups that reads copies of its operands with channels padded and last;
    None if impossible."""
    pair = matrix_operands(stage.op.body, stage.op.reducer)
    row = None if pair is None else pair.row(*pair.loads, CAPABILITY, WARPS)
    if row is None:
        return None
    arranged = with_channels_last(sketch, stage.name, row)
    return None if arranged is None else _in_tiles(arranged, arranged.state.stage(stage.name))


def _in_tiles(sketch: PartialSketch, stage: Stage, by_threads: bool = False) -> TiledProduct | None:
    """Return the stage as a product of two matrices that can be loaded, if it is one or can become one; else None."""
    product = _product(sketch, stage.name)
    if product is not None:
        product = replace(product, by_threads=by_threads)
        return replace(product, makers=_makers(product, stage)) if product.can_load else None
    pair = matrix_operands(stage.op.body, stage.op.reducer)
    row = None if pair is None else pair.row(*pair.loads, CAPABILITY, WARPS)
    if pair is None or windows(stage.op) is None:
        return None
    longer = None if row is None else with_whole_channels(sketch, stage.name, row)
    if longer is not None:
        return _in_windows(longer, longer.state.stage(stage.name), by_threads)
    return _in_windows(sketch, stage, by_threads)


def _makers(product: TiledProduct, stage: Stage) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return for each operand the stages that only pad its rows, which loading replaces."""
    makers = list[tuple[str, ...]]()
    for load in product.operands:
        producer = private_producer(product.sketch, stage, load.buffer)
        gathered = None if producer is None else _gathered(product.sketch, load.buffer, product.by_threads)
        if producer is None or gathered is None or gathered[1].grain(producer.op, product.product.depth_dim(load)) != 0:
            makers.append(())
        else:
            makers.append(gathered[0])
    return makers[0], makers[1]


def _in_windows(sketch: PartialSketch, stage: Stage, by_threads: bool) -> TiledProduct | None:
    """Return the sum over windows as a product of matrices whose tiles are gathered; None if they cannot be."""
    consumer = fused_consumer(sketch.state, stage)
    reader = "" if consumer is None or consumer.name in sketch.done else consumer.name
    product = _product(sketch.apply(Matricize(stage.name, reader)), stage.name)
    if product is None or not product.can_lie:
        return None
    before = {s.name for s in sketch.state.stages}
    makers, together = list[tuple[str, ...]](), 0
    for load in product.operands:
        if load.buffer in before or product.sketch.state.producer(load.buffer) is None:
            if not _can_load(product.sketch.state, load, by_threads):
                return None
            makers.append(())
            continue
        gathered = _gathered(product.sketch, load.buffer, by_threads)
        op = product.sketch.state.stage(load.buffer).op
        grain = None if gathered is None else gathered[1].grain(op, product.product.depth_dim(load))
        if gathered is None or grain is None or grain % product.row.k:
            return None
        makers.append(gathered[0])
        together = math.gcd(together, grain // product.row.k)
    return replace(product, makers=(makers[0], makers[1]), together=together, by_threads=by_threads)


def _product(sketch: PartialSketch, name: str) -> TiledProduct | None:
    stage = sketch.state.stage(name)
    pair, axes = matrix_operands(stage.op.body, stage.op.reducer), product_axes(stage)
    if pair is None or axes is None or not ends_with(sketch.state, axes):
        return None
    row = pair.row(axes.left, axes.right, CAPABILITY, WARPS)
    m, n = size(axes.rows), size(axes.columns)
    if row is None or min(m, row.m) * min(n, row.n) * LEAST_SHARE < row.m * row.n or 2 * size(axes.depth) < row.k:
        return None
    if not axes.is_along_depth(axes.right) and n * DTYPES[axes.right.dtype].nbytes < SPANS[-1]:  # no panel is so narrow
        return None
    return TiledProduct(sketch, name, row, axes)


def _gathered(sketch: PartialSketch, name: str, by_threads: bool) -> tuple[tuple[str, ...], Gather] | None:
    """Return the stages that loading replaces, last ones first, and how it gathers; None where it cannot. Zero padding
    is among them, if nothing else reads it."""
    stage = sketch.state.stage(name)
    makers = list[Stage]()
    while border := private_producers(sketch, (makers or [stage])[-1], (makers or [stage])[-1].op.loads[0].buffer):
        makers += border
    for inlined in (makers[:n] + makers[n + 1 :] for n in reversed(range(len(makers) + 1))):
        state = sketch.state.apply(*(ComputeInline(x.name) for x in inlined))
        op = state.stage(name).op
        source = op.loads[0] if len(op.loads) == 1 else None
        gather = gather_of(op, buffer_shape(state, source.buffer)) if source is not None else None
        if source is not None and gather is not None and _can_load(state, source, by_threads):
            return (name, *(x.name for x in inlined)), gather
    return None


def _can_load(state: State, load: Load, by_threads: bool) -> bool:
    source = state.producer(load.buffer)
    is_outside = source is None or (source.at is None and source.layout is None)
    return is_outside and (by_threads or has_maps(buffer_shape(state, load.buffer), DTYPES[load.dtype].nbytes))


def _by_warpgroups(product: TiledProduct, context: SketchContext) -> list[Alternative]:
    """Return the product with results through shared memory, if the copy engine can store them; and from registers."""
    sketch, consumer, _ = fuse_consumer(product.sketch, product.sketch.state.stage(product.name))
    ways = (True, False) if can_store_tiles(sketch.state.stage(consumer)) else (False,)
    return [partial(_pipelined, product, staged, context) for staged in ways]


def _pipelined(tiled: TiledProduct, staged: bool, context: SketchContext) -> PartialSketch:
    """Schedule the product in a pipeline. `staged`: results are stored through shared memory."""
    stage = tiled.sketch.state.stage(tiled.name)
    sketch, consumer, acc = fuse_consumer(tiled.sketch, stage)
    writer = tiled.beside[0] if tiled.beside else consumer
    sketch = _bind(sketch, (consumer, writer), stage, tiled.product, staged)
    sketch = pipelined_product(sketch, tiled, consumer, acc, context)
    note = f"{stage.name}:{tiled.row.name}{'-copied' * tiled.by_threads}{'-staged' * staged}"
    return sketch.finish(consumer, acc, note=note)


def pipelined_product(
    sketch: PartialSketch, tiled: TiledProduct, consumer: str, acc: str, context: SketchContext
) -> PartialSketch:
    """Schedule the product, accumulated by `acc`, in registers of the warpgroups that `consumer` is bound to."""
    assert context.target.gpu is not None
    multiprocessors = context.target.gpu.multiprocessors
    row, product = tiled.row, tiled.product
    writer, adder = tiled.beside or (consumer, acc)
    sketch = _with_residency(sketch, consumer, writer)
    sketch = sketch.apply(ComputeAt(acc, consumer, last_thread_loop(sketch, consumer), Scope.REGISTER.value))
    depth = product.depth
    most = row.promoted // row.k or domains.PIPELINE_STEPS[-1]
    steps = domains.pipeline_steps(f"{adder}.{depth.name}.c", -(-size(depth) // row.k), tiled.together, most)
    stages = domains.pipeline_stages(f"{adder}.stages")
    loops = [f"{depth.name}.{n}" for n in range(3)]
    axes = tiled.sketch.state.stage(tiled.name).op.axes
    others = [a.name for a in axes if a not in (product.rows, product.columns)]
    inner = (loops[1], product.rows.name, product.columns.name, loops[2])
    sketch = _with_new_params(sketch, steps, stages).apply(
        Split(acc, depth.name, (steps.name, row.k)),
        Reorder(acc, (loops[0], *others, *inner)),
        *(Unroll(acc, name) for name in inner),
    )
    for load, makers in zip((product.left, product.right), tiled.makers, strict=True):
        tag = f"{acc}.tile" if sketch.state.taken(f"{load.buffer}.tile") else "tile"
        copy = f"{load.buffer}.{tag}"
        sketch = sketch.apply(CacheRead(load.buffer, acc, tag), *map(ComputeInline, makers))
        sketch = sketch.apply(ComputeAt(copy, acc, loops[0], Scope.SHARED.value)).finish(copy)
    sketch = sketch.apply(Pipeline(acc, loops[0], stages.name, "tiles", multiprocessors), WarpgroupMma(acc, row.name))
    return sketch if tiled.by_threads or tiled.beside else _with_clusters(sketch, consumer, product)


def _with_new_params(sketch: PartialSketch, *params: SketchParam) -> PartialSketch:
    """Return the sketch with those of the parameters that it does not have yet."""
    names = {p.name for p in sketch.params}
    return sketch.with_params(p for p in params if p.name not in names)


def _with_clusters(sketch: PartialSketch, consumer: str, product: ProductAxes) -> PartialSketch:
    """Make clusters of blocks share tiles, where there are blocks along two axes of the grid."""
    kinds = {x.kind.value for x in sketch.state.stage(consumer).loops}
    if not PLANE.issubset(kinds):
        return sketch
    axes = (product.rows, product.columns)
    down, across = (domains.cluster(f"{consumer}.{axis.name}.cluster") for axis in axes)
    turns = domains.turns(f"{consumer}.turns")
    return sketch.with_params([down, across, turns]).apply(ShareTiles(consumer, down.name, across.name, turns.name))


def _bind(
    sketch: PartialSketch, writers: tuple[str, str], stage: Stage, product: ProductAxes, staged: bool
) -> PartialSketch:
    """Bind the consumer's loops to blocks, warpgroups, their threads, and tiles with the points of a thread. `writers`:
    the consumer, and the stage whose parameters it shares but for tiles, mostly itself."""
    consumer, writer = writers
    axes = sketch.state.stage(consumer).op.axes
    rows, columns = (axes[stage.op.axes.index(a)] for a in (product.rows, product.columns))
    down, across = f"{consumer}.{rows.name}", f"{consumer}.{columns.name}"
    tiles = -(-size(rows) // (WARPS * HALVES * DOWN))
    units = -(-size(columns) // (ACROSS * NEIGHBOURS))
    params = [
        domains.warpgroups(f"{down}.g", tiles, down),
        domains.group_tiles(f"{down}.s", tiles, down),
        domains.group_columns(f"{across}.s", units, across),
    ]
    groups, height, width = (p.name for p in params)
    if staged:
        params.append(domains.store_parts(f"{writer}.{columns.name}.p", units, f"{writer}.{columns.name}"))
    parts = [p.name for p in params[3:]]
    m = [f"{rows.name}.{level}" for level in range(6)]
    n = [f"{columns.name}.{level}" for level in range(4 + len(parts))]
    others = [a for a in axes if a not in (rows, columns)]
    blocks = [*(a.name for a in others), m[0], n[0]]
    warps = f"{m[1]}@{m[3]}"
    steps: list[Step] = [
        Split(consumer, rows.name, (groups, height, WARPS, HALVES, DOWN)),
        Split(consumer, columns.name, (*parts, width, ACROSS, NEIGHBOURS)),
        Reorder(consumer, (*blocks, m[1], m[3], m[5], n[-2], *n[1:-3], m[2], n[-3], m[4], n[-1])),
        Fuse(consumer, (m[1], m[3])),
        *bind_blocks(consumer, blocks, [size(a) for a in (*others, rows, columns)]),
        *bind_threads(consumer, [warps, m[5], n[-2]]),
        *(Unroll(consumer, name) for name in (*n[1:-3], m[2], n[-3], m[4], n[-1])),
        *([StoreTiles(consumer, n[1])] if staged else []),
    ]
    return _with_new_params(sketch, *params).apply(*steps)


def _with_residency(sketch: PartialSketch, consumer: str, writer: str) -> PartialSketch:
    """Make the resident blocks and their order parameters; `writer`: as in `_bind`."""
    resident = domains.resident(f"{writer}.resident")
    sketch = _with_new_params(sketch, resident).apply(LaunchBounds(consumer, resident.name))
    raster = domains.raster(f"{consumer}.raster")
    kinds = {x.kind.value for x in sketch.state.stage(consumer).loops}
    if not PLANE.issubset(kinds) or writer != consumer:
        return sketch
    return sketch.with_params([raster]).apply(Raster(consumer, raster.name))
