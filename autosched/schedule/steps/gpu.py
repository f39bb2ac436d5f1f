"""Primitives for GPUs: Bind loops to blocks and threads, Team of threads for a point, Cooperate on shared buffers, Pad
them, fill them ahead in a Pipeline, CrossThread reductions, AcrossLanes, LaunchBounds, Raster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosched.ir.expr import Const
from autosched.ir.stmt import BLOCKS, THREADS, ForKind, Layout, Scope
from autosched.schedule.gathers import gather_of
from autosched.schedule.stage import Loop, Num, Pipelined, Stage, closed
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check, check_factor, check_order, check_parallel
from autosched.schedule.steps.stages import shape_of_buffer

MOST_WARP = 32
MOST_STAGES = 8  # of a pipeline
COPIES = ("asynchronous", "registers", "tiles")
INDICES = {kind.value: kind for kind in (*BLOCKS, *THREADS)}


@dataclass(frozen=True)
class Bind:
    """The loop's iterations become blocks ("blockIdx.x") or threads of a block ("threadIdx.x"); y and z likewise.

    Block loops come first, thread loops directly after them; only a stage at the root can be bound, and not
    over a reduction. Every thread runs the whole nest: points beyond an axis are computed on and not written.
    """

    stage: str
    loop: str
    index: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"bind({self.stage}, {self.loop}, {self.index})"
        check(self.index in INDICES, f"{where}: the index must be one of {', '.join(INDICES)}")
        check(stage.at is None, f"{where}: only a stage at the root can be bound")
        loop = stage.loop(self.loop)
        check(loop.kind is ForKind.SERIAL, f"{where}: the loop is {loop.kind.value} already")
        check(not loop.reduce, f"{where}: a reduction loop cannot be bound; rfactor it first")
        kind = INDICES[self.index]
        check(all(x.kind is not kind for x in stage.loops), f"{where}: another loop is bound to it")
        loops = tuple(replace(x, kind=kind) if x is loop else x for x in stage.loops)
        bound = check_order("bind", replace(stage, loops=loops))
        check_parallel(where, state, bound)
        return state.with_stage(bound)


@dataclass(frozen=True)
class Team:
    """`threads` threads (threadIdx.x) share every point of the stage; the first of them writes it.

    For what is computed inside by all of them: a CrossThread reduction for each point of a stage that has no axis to
    bind the threads to. The loop is called "team" and comes after the bound loops; those along y and z have points of
    their own.
    """

    stage: str
    threads: Num

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"team({self.stage})"
        check(stage.at is None, f"{where}: only a stage at the root can be bound")
        check(stage.op.is_elementwise, f"{where}: the threads would all reduce; cache_write the stage first")
        is_free = all(x.kind is not ForKind.THREAD_X for x in stage.loops)
        check(is_free, f"{where}: one of its loops is bound to threadIdx.x already")
        check_factor(where, self.threads)
        at = sum(x.kind in BLOCKS or x.kind in THREADS for x in stage.loops)
        team = Loop("team", (), False, ForKind.THREAD_X, self.threads)
        return state.with_stage(replace(stage, loops=(*stage.loops[:at], team, *stage.loops[at:])))


@dataclass(frozen=True)
class LaunchBounds:
    """The compiler gives threads of the stage's kernel so few registers that a multiprocessor keeps `blocks` blocks.

    Without effect in OpenCL C, which has no words for it. Refused unless the stage's loops are bound.
    """

    stage: str
    blocks: Num

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"launch_bounds({self.stage})"
        check(stage.at is None and state.on_gpu(stage), f"{where}: bind the loops of a stage at the root first")
        check_factor(where, self.blocks)
        return state.with_stage(replace(stage, resident=self.blocks))


@dataclass(frozen=True)
class Raster:
    """The blocks of the stage's kernel are started in bands of `rows` rows (blockIdx.y), column by column in each.

    Those that run at a time then share more of what they read; see `ir/raster.py`. Refused unless loops of the stage
    are bound to blockIdx.x and blockIdx.y.
    """

    stage: str
    rows: Num

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"raster({self.stage})"
        plane = {ForKind.BLOCK_X, ForKind.BLOCK_Y}
        check(
            plane <= {x.kind for x in stage.loops}, f"{where}: bind two of its loops to blockIdx.x and blockIdx.y first"
        )
        check_factor(where, self.rows)
        return state.with_stage(replace(stage, raster=self.rows))


@dataclass(frozen=True)
class Pad:
    """Rows of the stage's shared buffer lie `elements` further apart, so that a column is not all in one bank."""

    stage: str
    elements: Num

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"pad({self.stage})"
        check(stage.scope is Scope.SHARED, f"{where}: compute the stage at a loop with scope 'shared' first")
        if self.elements != 0:
            check_factor(where, self.elements)
        layout = stage.layout or Layout(tuple(range(len(stage.op.axes))))
        return state.with_stage(replace(stage, layout=replace(layout, pad=closed(self.elements))))


@dataclass(frozen=True)
class Cooperate:
    """All threads of the block fill the stage's shared buffer together, `vector` adjacent elements at a time.

    for each in ceil(elements / (threads * vector)):  element = (each * threads + thread) * vector + lane
    """

    stage: str
    vector: Num

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"cooperate({self.stage})"
        check(stage.scope is Scope.SHARED, f"{where}: compute the stage at a loop with scope 'shared' first")
        check(
            stage.op.is_elementwise and not stage.splits, f"{where}: only a copy with its loops as written is filled so"
        )
        check_factor(where, self.vector)
        return state.with_stage(replace(stage, cooperate=self.vector))


@dataclass(frozen=True)
class Pipeline:
    """The shared buffers that are filled in the stage's loop have room for `stages` of its iterations, and are filled
    `stages - 1` iterations ahead; 1 is no pipeline. Reduction loops directly around it are part of the pipeline.

    `copies`: "asynchronous" ones are left to the memory system and waited for (cp.async of CUDA, for 4, 8 or 16 bytes
    and zeros); "registers" hold what an iteration needs while the one before it computes; "tiles" are copies of tensors
    as they are, loaded by the copy engine (TMA of CUDA, see `tiles.py`) for a product of matrices, or copied by
    threads where rows are no multiples of 16 bytes. Only with these may the resident blocks of so many
    `multiprocessors` go through the work of all; 0 for a block for each.
    """

    stage: str
    loop: str
    stages: Num
    copies: str = COPIES[0]
    multiprocessors: int = 0

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"pipeline({self.stage}, {self.loop})"
        loop = stage.loop(self.loop)
        check(loop.kind is ForKind.SERIAL, f"{where}: the loop is {loop.kind.value}")
        check(stage.pipeline is None, f"{where}: the stage has a pipeline already")
        check(state.on_gpu(stage), f"{where}: bind loops around it to blocks and threads first")
        check_factor(where, self.stages)
        check(isinstance(self.stages, str) or self.stages <= MOST_STAGES, f"{where}: more than {MOST_STAGES} stages")
        check(self.copies in COPIES, f"{where}: copies must be one of {', '.join(COPIES)}, got {self.copies!r}")
        fills = [x for x in state.attached(self.stage, self.loop) if x.scope is Scope.SHARED]
        check(bool(fills), f"{where}: no shared buffer is filled there; compute a stage at the loop first")
        written = {b for x in fills for b in x.op.buffers}
        by_tiles = self.copies == COPIES[2]
        check(by_tiles or not self.multiprocessors, f"{where}: only tiles are loaded ahead for other blocks' work")
        check(self.multiprocessors >= 0, f"{where}: {self.multiprocessors} multiprocessors")
        for x in fills:
            if by_tiles:
                _check_tile(where, state, x)
                continue
            check(x.cooperate is not None, f"{where}: the threads do not fill {x.name} together; cooperate on it first")
            check(not x.op.reads & written, f"{where}: {x.name} is filled from another buffer that is filled there")
        pipeline = Pipelined(self.loop, self.stages, self.copies == COPIES[0], by_tiles, self.multiprocessors)
        return state.with_stage(replace(stage, pipeline=pipeline))


def _check_tile(where: str, state: State, copy: Stage) -> None:
    """It is a copy of what the engine can read, or could but for the length of rows."""
    value = copy.op.body[0]
    point = tuple(a.var for a in copy.op.axes)
    is_plain = copy.cooperate is None and copy.layout is None and not copy.splits and copy.op.is_elementwise
    source = next(iter(copy.op.loads))
    shape = [e.number for e in shape_of_buffer(state, source.buffer) if isinstance(e, Const)]
    is_one = is_plain and len(copy.op.body) == 1 and len(shape) == len(source.indices)
    is_copy = is_one and ((value is source and source.indices == point) or gather_of(copy.op, shape) is not None)
    check(is_copy, f"{where}: {copy.name} is no copy of a tensor with its loops and its layout as they are")
    made = state.producer(source.buffer)
    is_outside = made is None or (made.at is None and made.layout is None)
    check(is_outside, f"{where}: tiles of {source.buffer} cannot be loaded: it is not in global memory as it is")


@dataclass(frozen=True)
class CrossThread:
    """The block's threads that have the same point share its reduction over `axis`: each combines every n-th element,
    or `vector` adjacent ones at a time, in a register, then they combine what they have, and every one of them gets the
    result.

    Each `warp` neighbouring threads do so by shuffles (a power of two, at most CUDA's 32), and the results of the
    warps meet in shared memory; with 0 all threads meet there, pairwise. Refused unless the stage is a reduction with
    its loops as written, computed at a loop of a stage on a GPU.
    """

    stage: str
    axis: str
    warp: int = 0
    vector: Num = 1

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"cross_thread({self.stage}, {self.axis})"
        power = 0 <= self.warp <= MOST_WARP and self.warp & (self.warp - 1) == 0 and self.warp != 1
        check(power, f"{where}: a warp has 2, 4, .. {MOST_WARP} threads, or 0 for none; got {self.warp}")
        check(stage.op.axis(self.axis).reduce, f"{where}: it is not a reduction axis")
        check(not stage.splits and not state.attached(self.stage), f"{where}: do it before splitting the stage")
        check(stage.at is not None and state.on_gpu(stage), f"{where}: compute the stage inside bound loops first")
        check_factor(where, self.vector)
        return state.with_stage(replace(stage, cross=self.axis, warp=self.warp, adjacent=self.vector))


@dataclass(frozen=True)
class AcrossLanes:
    """The iterations of a reduction's loop are neighbouring threads (threadIdx.x): each has a part of every point in
    registers, they combine these by shuffles, and the first of them writes.

    `loop` is an inner one of a split axis, of a constant power of two up to 32 iterations, in a stage at the root. The
    loops after it are unrolled. What comes after an axis is computed on and left out. Other thread loops are bound
    before. Refused for anything else.
    """

    stage: str
    loop: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"across_lanes({self.stage}, {self.loop})"
        check(stage.at is None, f"{where}: only a stage at the root can be bound")
        loop = stage.loop(self.loop)
        check(loop.reduce and len(loop.parts) == 1, f"{where}: it is no loop of one reduction axis")
        check(stage.op.reducer is not None and stage.into is None, f"{where}: its results are updates already")
        check(all(x.kind is not ForKind.THREAD_X for x in stage.loops), f"{where}: another loop is along threadIdx.x")
        (axis, level), own = loop.parts[0], stage.position(self.loop)
        lanes = stage.factors(axis)[level - 1] if level else 0
        is_power = isinstance(lanes, int) and 1 < lanes <= MOST_WARP and lanes & (lanes - 1) == 0
        check(is_power, f"{where}: the lanes are a constant power of two, 2 to {MOST_WARP}")
        outer, inner = stage.loops[:own], stage.loops[own + 1 :]
        check(all(x.kind in (*BLOCKS, *THREADS) for x in outer), f"{where}: a loop around it is not bound")
        check(all(x.kind is ForKind.UNROLL for x in inner), f"{where}: unroll the loops inside")
        check(not state.attached(self.stage), f"{where}: do it before stages are computed inside")
        loops = (*outer, replace(loop, kind=ForKind.THREAD_X), *inner)
        return state.with_stage(check_order("across_lanes", replace(stage, loops=loops)))
