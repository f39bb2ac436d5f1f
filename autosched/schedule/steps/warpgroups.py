"""WarpgroupMma, matrix multiply-accumulate by warpgroups: four warps have the rows of a tile, all of its columns each.

    C: .. threads: warpgroup and warp (z), lanes down (y), lanes across (x): unrolled tiles, halves, columns, neighbours
      C.acc: k.0 { tiles of A and B }  k.1  | rows, columns, k.2 |

What is between the bars is one operation of a warpgroup for each of its tiles of 64 rows (`instructions/matrices.py`).

StoreTiles: results go through shared memory, from where the copy engine writes them in tiles.
ShareTiles: neighbouring blocks load tiles for each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const
from autosched.ir.instructions.matrices import ACROSS, DOWN, HALVES, MATRICES, NEIGHBOURS, MatrixIntrinsic
from autosched.ir.instructions.tiles import MOST_CLUSTER, MOST_TURNS, ROW_BYTES, WARPS, has_maps
from autosched.ir.stmt import BLOCKS, THREADS, ForKind, Scope
from autosched.schedule.gathers import gather_of
from autosched.schedule.stage import Num, Stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check, check_factor
from autosched.schedule.steps.matrices import (
    ProductAxes,
    check_product_depth,
    check_product_loops,
    check_product_types,
    product_axes,
    reader_axis,
)
from autosched.schedule.steps.stages import shape_of_buffer


@dataclass(frozen=True)
class WarpgroupMma:
    """The reduction `stage`, in registers of a thread, is done by the row `intrinsic` of MATRICES, of four warps.

    Its innermost loops are over its rows, its columns (the last axis) and as much of k as the row takes, all unrolled.
    The stage that reads it is split so that rows are warpgroups, tiles, 4, 2, 8 and columns end in 4, 2: warpgroups and
    the first 4 are threadIdx.z, the 8 are threadIdx.y and the other 4 threadIdx.x. Operands are shared copies that a
    pipeline of tiles fills. Refused for anything else.
    """

    stage: str
    intrinsic: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"wgmma({self.stage}, {self.intrinsic})"
        row = MATRICES.get(self.intrinsic)
        check(row is not None and row.warps == WARPS, f"{where}: no row of MATRICES of {WARPS} warps is called so")
        assert row is not None
        product = product_axes(stage)
        check(product is not None, f"{where}: its operands are not indexed by a row, a column and one reduction axis")
        assert product is not None
        check_product_types(where, stage, product, row)
        check_product_depth(where, state, stage, product, row)
        check_product_loops(where, stage, product, row)
        _check_threads(where, state, stage, product)
        _check_operands(where, state, stage, product, row)
        reader = state.consumers(stage)[0]
        rows, columns = (reader_axis(where, stage, reader, a) for a in (product.rows, product.columns))
        state = state.with_stage(replace(reader, whole=((rows, 3), (columns, 2))))
        return state.with_stage(replace(stage, matrix=self.intrinsic, whole=((product.depth.name, 1),)))


@dataclass(frozen=True)
class StoreTiles:
    """What the blocks of `stage` write goes through shared memory in tiles, from where the copy engine writes it; those
    of each iteration of `loop`, the first one inside of the threads, in turn, if it is named.

    Refused unless the stage is elementwise, at the root, bound to blocks, warpgroups and threads, has one value, and
    rows of its result are multiples of 16 bytes.
    """

    stage: str
    loop: str = ""

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"store_tiles({self.stage})"
        is_plain = stage.op.is_elementwise and len(stage.op.buffers) == 1 and stage.layout is None
        check(is_plain and stage.at is None, f"{where}: it is not elementwise, at the root, with one value")
        kinds = {x.kind for x in stage.loops}
        check(
            bool(kinds & set(BLOCKS) and kinds & set(THREADS)), f"{where}: bind its loops to blocks and threads first"
        )
        check(can_store_tiles(stage), f"{where}: rows of its result are no multiples of {ROW_BYTES} bytes")
        inside = [x for x in stage.loops if x.kind not in BLOCKS and x.kind not in THREADS]
        is_first = not self.loop or (bool(inside) and inside[0].name == self.loop and len(inside[0].parts) == 1)
        check(is_first, f"{where}: {self.loop!r} is not the first loop inside of the threads")
        return state.with_stage(replace(stage, staged=True, staged_in=self.loop))


@dataclass(frozen=True)
class ShareTiles:
    """`down` by `across` blocks of the stage's kernel next to each other, along blockIdx.y and blockIdx.x, are a
    cluster: a tile that both of them read is loaded once. A block does the work of `turns`, each by a warpgroup of its
    own, which take turns: while one multiplies the other stores.

    Refused unless loops of the stage are bound to both, and tiles that a pipeline loads in its blocks are for the work
    of all. Clusters have two blocks at most, and two take turns.
    """

    stage: str
    down: Num
    across: Num
    turns: Num = 1

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"share_tiles({self.stage})"
        kinds = {x.kind for x in stage.loops}
        check({ForKind.BLOCK_X, ForKind.BLOCK_Y} <= kinds, f"{where}: bind two of its loops to blocks first")
        inside = (x.pipeline for x in state.stages if x.name != stage.name and state.root(x).name == stage.name)
        is_persistent = any(p is not None and p.multiprocessors > 0 for p in inside)
        check(is_persistent, f"{where}: none of its pipelines loads 'tiles' for the work of all blocks")
        for count in (self.down, self.across, self.turns):
            check_factor(where, count)
        known = [n for n in (self.down, self.across) if not isinstance(n, str)]
        check(math.prod(known) <= MOST_CLUSTER, f"{where}: a cluster has {MOST_CLUSTER} blocks at most, got {known}")
        can = isinstance(self.turns, str) or self.turns <= MOST_TURNS
        check(can, f"{where}: {MOST_TURNS} blocks at most take turns, got {self.turns}")
        return state.with_stage(replace(stage, sharing=(self.down, self.across, self.turns)))


def can_store_tiles(stage: Stage) -> bool:
    """Whether the copy engine can write tiles of the stage's result."""
    shape = [a.extent.number for a in stage.op.axes if isinstance(a.extent, Const)]
    is_known = len(shape) == len(stage.op.axes) and len(stage.op.buffers) == 1
    return is_known and has_maps(shape, DTYPES[stage.op.dtypes[0]].nbytes)


def _check_operands(where: str, state: State, stage: Stage, product: ProductAxes, row: MatrixIntrinsic) -> None:
    is_ring = stage.pipeline is not None and stage.pipeline.by_tiles
    check(is_ring, f"{where}: fill the copies of its operands by a pipeline of 'tiles' first")
    for load in (product.left, product.right):
        copy = state.producer(load.buffer)
        here = copy is not None and copy.at is not None and copy.at.stage == stage.name and copy.scope is Scope.SHARED
        check(here, f"{where}: compute a copy of {load.buffer} in its loops with scope 'shared' first")
        can = product.is_along_depth(load) or row.can_lie_across
        check(can, f"{where}: {load.buffer} must lie along {product.depth.name}")
        assert copy is not None
        steps = stage.factors(product.depth.name)[0]
        step = row.k if isinstance(steps, str) else row.k * steps
        source = next(iter(copy.op.loads)).buffer
        gather = gather_of(copy.op, [e.number for e in shape_of_buffer(state, source) if isinstance(e, Const)])
        together = None if gather is None else gather.grain(copy.op, product.depth_dim(load))
        is_whole = together is not None and together % step == 0
        check(is_whole, f"{where}: {step} of {product.depth.name}, or its tiles, do not lie together in {source}")


def _check_threads(where: str, state: State, stage: Stage, product: ProductAxes) -> None:
    """The stage is read where the threads of a warpgroup are."""
    readers = state.consumers(stage)
    is_alone = len(readers) == 1 and stage.at is not None and readers[0].name == stage.at.stage
    check(is_alone and stage.scope is Scope.REGISTER, f"{where}: compute it in registers in its only reader first")
    reader = readers[0]
    rows, columns = (reader_axis(where, stage, reader, a) for a in (product.rows, product.columns))
    down, across = reader.factors(rows), reader.factors(columns)
    check(len(down) == 5 and down[2:] == (WARPS, HALVES, DOWN), f"{where}: the last factors of {rows} must be 4, 2, 8")
    check(across[-2:] == (ACROSS, NEIGHBOURS), f"{where}: those of {columns} must be 4, 2")
    batch = {a.name for a in reader.op.axes} - {rows, columns}
    inside = [x.name for x in reader.loops if x.kind not in BLOCKS and batch & {axis for axis, _ in x.parts}]
    check(not inside, f"{where}: bind {', '.join(inside)} of {reader.name} to blocks")
    wanted = {
        ForKind.THREAD_Z: ((rows, 1), (rows, 3)),
        ForKind.THREAD_Y: ((rows, 5),),
        ForKind.THREAD_X: ((columns, len(across) - 1),),
    }
    for kind, parts in wanted.items():
        bound = [x.parts for x in reader.loops if x.kind is kind]
        names = "@".join(f"{axis}.{level}" for axis, level in parts)
        check(bound == [parts], f"{where}: bind {names} of {reader.name} to {kind.value}")
