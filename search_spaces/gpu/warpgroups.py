"""Products of matrices by warpgroups, on GPUs with wgmma and a copy engine (`ir/instructions/`).

    blocks m.0, n.0:  warpgroups m.1 and their warps m.3 (z):  lanes, 8 along m (y) by 4 along n (x)
      accumulators in registers: m.2 tiles of 64 rows by n.1 units of 8 columns; a thread has 2 by 2 points each
        k.0                                            <- tiles of both operands are loaded ahead, into a ring
          k.1 unrolled:  the warpgroup's tiles times 32 bytes of k, one operation each
      the consumer (the fused one, or the copy out) writes the points, to memory or to a tile that the engine writes

What is asked is whether a reduction is a sum of products of two operands of 16 or 8 bits, with axes of their own and
one in common, in tensors whose rows the copy engine can read. Either may lie along k or across it, bytes only along it.
What is beyond an axis is read as zero and not written. Of sums over windows that are as many
(`autosched/schedule/steps/matricize.py`) the engine gathers the pixels, zeros of a border and beyond the channels too
(`autosched/schedule/gathers.py`).

Where the engine refuses the rows of an operand, a kernel before makes a copy with rows of another length, or the
threads that load copy tiles themselves: sketches of both kinds.

The last of several waves of blocks leaves most of a device idle where it is short. A large result is two kernels as
well, which share all numbers but those of their tiles: one ends with a whole wave, the other has the rest.
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

CAPABILITY = 90  # of the devices that have the instruction
PLANE = frozenset({"blockIdx.x", "blockIdx.y"})  # of rows and columns
MOST_POINTS = 256 * 128  # of the tile of a block
LEAST_SHARE = 4  # of the points of an instruction's rows and 8 columns, one in so many has to exist


class WarpgroupTiling:
    """Sums of products that warpgroups can do; the tiles of `MatrixTiling`, by single warps, come after."""

    def applies(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> bool:
        return bool(products_of(sketch, stage, context))

    def apply(self, sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
        return warpgroup_alternatives(sketch, stage, context)


def warpgroup_alternatives(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[Alternative]:
    """The product by warpgroups, whole and in parts of k, where they can do it; and as `matrix_alternatives`."""
    done = list[Alternative]()
    for found in products_of(sketch, stage, context):
        done += [*_by_warpgroups(found, context), *_in_two(found, context), *_in_parts(found, context)]
    return [*done, *matrix_alternatives(sketch, stage, context)]


def products_of(sketch: PartialSketch, stage: Stage, context: SketchContext) -> list[TiledProduct]:
    """The stage as a product for warpgroups: with tiles that the engine loads, and that threads copy where it does not
    load the operands as they are. None where the device has no warpgroups."""
    gpu = context.target.gpu
    can = context.target.backend.has_matrices and gpu is not None and gpu.has_warpgroups
    if not can or in_matrices(sketch, stage, context) is None:
        return []
    found = _in_tiles(sketch, stage)
    both = [found] if found is not None else [_arranged(sketch, stage), _in_tiles(sketch, stage, by_threads=True)]
    return [x for x in both if x is not None]


@dataclass(frozen=True)
class TiledProduct:
    """A sketch in which the stage `name` is a product of two matrices that warpgroups can do. `makers`: for each
    operand the stages that gather it, which the copy engine does instead. `together`: instructions along k of which a
    tile is a part; 0 for all. `by_threads`: these copy tiles that the engine does not load. `beside`: the stage that
    writes, and the one that accumulates, of another kernel for the same result, whose numbers this one has where they
    are no tiles."""

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
        """Whether the instruction reads both operands as they lie."""
        return all(self.row.can_lie_across or self.product.is_along_depth(x) for x in self.operands)

    @property
    def can_load(self) -> bool:
        """Whether both operands can be loaded as the instruction reads them."""
        return self.can_lie and all(_can_load(self.sketch.state, x, self.by_threads) for x in self.operands)


def _in_parts(found: TiledProduct, context: SketchContext) -> list[Alternative]:
    """Parts of k that are whole tiles however many instructions these have, where there are few tiles of the result."""
    stage, depth = found.sketch.state.stage(found.name), found.product.depth
    if not can_split_tiles(found.sketch.state, stage):
        return []
    step, total, result = found.row.k * domains.RING_STEPS[-1], size(depth), list[Alternative]()
    lengths = {-(-total // (parts * step)) * step for parts in parts_of_tiles(stage, depth)}
    if found.together:  # beyond the last tap there is the image, not zero: parts end with it
        least = found.row.k * domains.parts_together(found.together)[0]
        exact = [n for n in range(least, total, least) if total % n == 0]
        lengths = {min(n for n in exact if n >= length) for length in lengths if any(n >= length for n in exact)}
    for length in sorted(n for n in lengths if n < total):
        split, name = split_reduction(found.sketch, stage, depth, length)
        part = _product(split, name)
        if part is not None:
            together = math.gcd(found.together, length // found.row.k) if found.together else 0
            made = replace(part, makers=found.makers, together=together, by_threads=found.by_threads)
            result.append(noted(_by_warpgroups(made, context)[0], f"split-k{-(-total // length)}"))
    return result


def _in_two(found: TiledProduct, context: SketchContext) -> list[Alternative]:
    """Two kernels, each with tiles of its own, where the largest ones are more than a device has at a time."""
    gpu, product = context.target.gpu, found.product
    assert gpu is not None
    enough = size(product.rows) * size(product.columns) > gpu.multiprocessors * MOST_POINTS
    sketch, consumer, acc = fuse_consumer(found.sketch, found.sketch.state.stage(found.name))
    stage = sketch.state.stage(consumer)
    is_last = sketch.state.is_output(stage) and not sketch.state.consumers(stage)
    if not enough or not is_last or any(found.makers) or found.by_threads:
        return []
    longer = max(product.columns, product.rows, key=size)  # has the least tiles across it
    axis = stage.op.axes[sketch.state.stage(acc).op.axes.index(longer)]
    at = domains.kernel_end(f"{consumer}.{axis.name}.at", size(axis))
    sketch = sketch.with_params([at]).apply(Partition(consumer, acc, axis.name, at.name))
    return [partial(_in_rings, replace(found, sketch=sketch, name=acc), can_store_tiles(stage), context)]


def _in_rings(found: TiledProduct, staged: bool, context: SketchContext) -> PartialSketch:
    """Both parts of a partition."""
    sketch = _in_ring(found, staged, context)
    (consumer,) = sketch.state.consumers(sketch.state.stage(found.name))
    rest = _product(sketch, f"{found.name}.rest")
    assert rest is not None
    return _in_ring(replace(rest, beside=(consumer.name, found.name)), staged, context)


def _arranged(sketch: PartialSketch, stage: Stage) -> TiledProduct | None:
    """The stage as a product that warpgroups can do with copies of its operands in which the channels are neighbours,
    in whole rows."""
    pair = matrix_operands(stage.op.body, stage.op.reducer)
    row = None if pair is None else pair.row(*pair.loads, CAPABILITY, WARPS)
    if row is None:
        return None
    arranged = with_channels_last(sketch, stage.name, row)
    return None if arranged is None else _in_tiles(arranged, arranged.state.stage(stage.name))


def _in_tiles(sketch: PartialSketch, stage: Stage, by_threads: bool = False) -> TiledProduct | None:
    """The stage as a product of two matrices that can be loaded, if it is one or can become one."""
    found = _product(sketch, stage.name)
    if found is not None:
        found = replace(found, by_threads=by_threads)
        return replace(found, makers=_makers(found, stage)) if found.can_load else None
    pair = matrix_operands(stage.op.body, stage.op.reducer)
    row = None if pair is None else pair.row(*pair.loads, CAPABILITY, WARPS)
    if pair is None or windows(stage.op) is None:
        return None
    longer = None if row is None else with_whole_channels(sketch, stage.name, row)
    if longer is not None:
        return _in_windows(longer, longer.state.stage(stage.name), by_threads)
    return _in_windows(sketch, stage, by_threads)


def _makers(found: TiledProduct, stage: Stage) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """For each operand what only makes its rows longer, which loading does as well."""
    made = list[tuple[str, ...]]()
    for load in found.operands:
        producer = private_producer(found.sketch, stage, load.buffer)
        gathered = None if producer is None else _gathered(found.sketch, load.buffer, found.by_threads)
        if producer is None or gathered is None or gathered[1].grain(producer.op, found.product.depth_dim(load)) != 0:
            made.append(())
        else:
            made.append(gathered[0])
    return made[0], made[1]


def _in_windows(sketch: PartialSketch, stage: Stage, by_threads: bool) -> TiledProduct | None:
    """The sum over windows as a product of matrices whose tiles are gathered, if they can be."""
    consumer = fused_consumer(sketch.state, stage)
    reader = "" if consumer is None or consumer.name in sketch.done else consumer.name
    made = _product(sketch.apply(Matricize(stage.name, reader)), stage.name)
    if made is None or not made.can_lie:
        return None
    before = {s.name for s in sketch.state.stages}
    makers, together = list[tuple[str, ...]](), 0
    for load in made.operands:
        if load.buffer in before or made.sketch.state.producer(load.buffer) is None:
            if not _can_load(made.sketch.state, load, by_threads):
                return None
            makers.append(())
            continue
        gathered = _gathered(made.sketch, load.buffer, by_threads)
        op = made.sketch.state.stage(load.buffer).op
        grain = None if gathered is None else gathered[1].grain(op, made.product.depth_dim(load))
        if gathered is None or grain is None or grain % made.row.k:
            return None
        makers.append(gathered[0])
        together = math.gcd(together, grain // made.row.k)
    return replace(made, makers=(makers[0], makers[1]), together=together, by_threads=by_threads)


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
    """The stages that loading does the work of, last ones first, and how it gathers; None where it cannot. A border
    of zeros is among them, if nobody else reads it."""
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


def _by_warpgroups(found: TiledProduct, context: SketchContext) -> list[Alternative]:
    """Results through shared memory, where the copy engine can write them, and from registers."""
    sketch, consumer, _ = fuse_consumer(found.sketch, found.sketch.state.stage(found.name))
    ways = (True, False) if can_store_tiles(sketch.state.stage(consumer)) else (False,)
    return [partial(_in_ring, found, staged, context) for staged in ways]


def _in_ring(found: TiledProduct, staged: bool, context: SketchContext) -> PartialSketch:
    """`staged`: results go through shared memory."""
    stage = found.sketch.state.stage(found.name)
    sketch, consumer, acc = fuse_consumer(found.sketch, stage)
    writer = found.beside[0] if found.beside else consumer
    sketch = _bind(sketch, (consumer, writer), stage, found.product, staged)
    sketch = in_ring(sketch, found, consumer, acc, context)
    note = f"{stage.name}:{found.row.name}{'-copied' * found.by_threads}{'-staged' * staged}"
    return sketch.finish(consumer, acc, note=note)


def in_ring(
    sketch: PartialSketch, found: TiledProduct, consumer: str, acc: str, context: SketchContext
) -> PartialSketch:
    """The product, which `acc` adds up, in registers of the warpgroups that `consumer` is bound to."""
    assert context.target.gpu is not None
    multiprocessors = context.target.gpu.multiprocessors
    row, product = found.row, found.product
    writer, adder = found.beside or (consumer, acc)
    sketch = _launched(sketch, consumer, writer)
    sketch = sketch.apply(ComputeAt(acc, consumer, last_thread_loop(sketch, consumer), Scope.REGISTER.value))
    depth = product.depth
    steps = domains.ring_steps(f"{adder}.{depth.name}.c", -(-size(depth) // row.k), found.together)
    stages = domains.ring_places(f"{adder}.stages")
    loops = [f"{depth.name}.{n}" for n in range(3)]
    axes = found.sketch.state.stage(found.name).op.axes
    others = [a.name for a in axes if a not in (product.rows, product.columns)]
    inner = (loops[1], product.rows.name, product.columns.name, loops[2])
    sketch = _with_numbers(sketch, steps, stages).apply(
        Split(acc, depth.name, (steps.name, row.k)),
        Reorder(acc, (loops[0], *others, *inner)),
        *(Unroll(acc, name) for name in inner),
    )
    for load, makers in zip((product.left, product.right), found.makers, strict=True):
        tag = f"{acc}.tile" if sketch.state.taken(f"{load.buffer}.tile") else "tile"
        copy = f"{load.buffer}.{tag}"
        sketch = sketch.apply(CacheRead(load.buffer, acc, tag), *map(ComputeInline, makers))
        sketch = sketch.apply(ComputeAt(copy, acc, loops[0], Scope.SHARED.value)).finish(copy)
    sketch = sketch.apply(Pipeline(acc, loops[0], stages.name, "tiles", multiprocessors), WarpgroupMma(acc, row.name))
    return sketch if found.by_threads or found.beside else _sharing(sketch, consumer, product)


def _with_numbers(sketch: PartialSketch, *params: SketchParam) -> PartialSketch:
    """The same with those of the parameters that it does not have yet."""
    known = {p.name for p in sketch.params}
    return sketch.with_params(p for p in params if p.name not in known)


def _sharing(sketch: PartialSketch, consumer: str, product: ProductAxes) -> PartialSketch:
    """Blocks that share tiles, where there are any along two axes of the grid."""
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
    """The consumer's loops as blocks, warpgroups, their threads, and tiles with the points of a thread. `writers`: the
    consumer, and the stage whose numbers it has where they are no tiles, mostly itself."""
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
        params.append(domains.staged_parts(f"{writer}.{columns.name}.p", units, f"{writer}.{columns.name}"))
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
    return _with_numbers(sketch, *params).apply(*steps)


def _launched(sketch: PartialSketch, consumer: str, writer: str) -> PartialSketch:
    """How many blocks are there at a time, and in which order; `writer`: as in `_bind`."""
    resident = domains.resident(f"{writer}.resident")
    sketch = _with_numbers(sketch, resident).apply(LaunchBounds(consumer, resident.name))
    raster = domains.raster(f"{consumer}.raster")
    kinds = {x.kind.value for x in sketch.state.stage(consumer).loops}
    if not PLANE.issubset(kinds) or writer != consumer:
        return sketch
    return sketch.with_params([raster]).apply(Raster(consumer, raster.name))
