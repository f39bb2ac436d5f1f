"""Tile pipelines in CUDA C (warp specialisation): one warpgroup loads tiles ahead, the others multiply them.

    for k: barrier; tiles; barrier; multiply       ->

    producer:    for k: wait until the stage is empty; announce the bytes that will arrive; load the tiles; next stage
    consumers:   for k: wait until the stage is full; multiply asynchronously; wait for the products before;
                        release their stage; next stage

Each consumer warpgroup arrives once at a stage's empty barrier, in a cluster at the barriers of both blocks; the shared
memory of a block must outlive its use by the other one. Registers that the producer warpgroup does not need are
reallocated to the consumers. Consumer warpgroups of a persistent block may compute tiles in turns (ping-pong): each
skips the stages of the other's tiles, and named barriers order their products. One thread loads, unless the threads of
the producer warpgroup copy tiles (`thread_copies.py`): then its warps arrive at a full barrier some iterations later,
so that the consumers have one stage to read and one to wait for.
Sources: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "setmaxnreg", "mapa", "barrier.cluster".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from autosched.codegen.c.blocks import BlockOrder
from autosched.codegen.c.expressions import Expressions
from autosched.codegen.c.names import Text
from autosched.codegen.c.shared import SharedMemory
from autosched.codegen.c.source import PixelBox, TensorMap
from autosched.codegen.c.tiles.clusters import BlockCluster, TileSlice, cluster_of, turns_of
from autosched.codegen.c.tiles.copy_engine import (
    BARRIER_TYPE,
    FIRST_TURN,
    FUNCTION,
    HAS_PASSED,
    IN_BLOCK,
    MAP_TYPE,
    PLAIN,
    SETMAXNREG,
    load_function,
    store_function,
)
from autosched.codegen.c.tiles.pipeline_nests import TilePipeline, stores_of, tile_pipeline
from autosched.codegen.c.tiles.promotion import Promotion, keep, promotion_of
from autosched.codegen.c.tiles.thread_copies import emit_commit, emit_thread_index, emit_tile_copy, emit_wait
from autosched.codegen.c.tiles.warp_matrices import ProductLoops
from autosched.codegen.c.tiles.warpgroups import DESCRIPTOR, emit_group_product, group_product
from autosched.errors import ScheduleError
from autosched.ir.expr import INDEX, Const, Expr, Var
from autosched.ir.instructions.tiles import (
    ALIGNMENT,
    MOST_REGISTERS,
    REGISTERS,
    REGISTERS_OF_COPIES,
    WARPS,
    Panels,
    by_engine,
    constant_shape,
    panels_of,
)
from autosched.ir.stmt import Buffer, Pixels, Scope, Stmt, TileCopy
from autosched.ir.storage import versions_of

ZERO = Const(0, INDEX)


def pipeline_code(nest: Stmt, c: Expressions, text: Text) -> PipelineCode | None:
    """Return the writer of a kernel's tile pipeline; None for a kernel without one. Raises as `tile_pipeline` does."""
    pipeline = tile_pipeline(nest)
    return (
        None if pipeline is None else PipelineCode(pipeline, c, text, stores_of(nest), cluster_of(nest), turns_of(nest))
    )


def with_turns(buffer: Buffer, turns: int) -> Buffer:
    """Return a shared buffer with one copy for each of the warpgroups that take turns."""
    return buffer if turns == 1 else replace(buffer, shape=(Const(turns, INDEX), *buffer.shape[1:]))


@dataclass
class PipelineCode:
    """Emits the code of a kernel with a tile pipeline; fields that are names hold the names in C.

    `threads`: variables along x, y and z of the consumer threads, `groups` warpgroups of them; `maps`: tensor maps by
    tile.
    """

    pipeline: TilePipeline
    c: Expressions
    text: Text
    stores: Mapping[TileCopy, Buffer]  # tiles that are stored, and their buffers in shared memory
    cluster: BlockCluster | None = None
    turns: int = 1  # tiles of the result that one persistent block computes at a time, by a warpgroup each
    maps: dict[str, str] = field(default_factory=dict)
    threads: tuple[Var, Var, Var] | None = None
    groups: int = 0
    is_alone: bool = True  # whether one block is resident on a multiprocessor
    barriers: str = ""
    stage: str = ""
    parity: str = ""
    turn: str = ""
    results: dict[str, None] = field(default_factory=dict)  # accumulators of the products, in order
    promotion: Promotion | None = None
    order: BlockOrder | None = None  # of persistent blocks
    index_lines: list[str] = field(default_factory=list)  # lines that compute a block's indices from its number

    def __post_init__(self) -> None:
        if self.cluster is not None:
            self.c.variables[self.cluster.rank] = self.text.name("rank")
            self.c.simplify.ranges[self.cluster.rank] = (0, self.cluster.size - 1)

    @property
    def cluster_attribute(self) -> str:
        """The cluster attribute of the kernel, or nothing."""
        return "" if self.cluster is None else self.c.dialect.cluster.format(blocks=self.cluster.size)

    def tensor_maps(self) -> list[TensorMap]:
        """Return the first parameters of the kernel, after the C names of its tensors are known."""
        self.c.helpers["TensorMap"] = MAP_TYPE
        panels = map(panels_of, self.pipeline.buffers)
        loads = ((copy, p) for copy, p in zip(self.pipeline.loads, panels, strict=True) if self._is_loaded(copy))
        stores = ((copy, panels_of(b)) for copy, b in self.stores.items())
        return [self._tensor_map(copy, panels) for copy, panels in (*loads, *stores)]

    def _tensor_map(self, copy: TileCopy, panels: Panels) -> TensorMap:
        source = self.c.buffers[copy.outside][0]
        name = self.maps[copy.buffer] = self.text.name(f"{copy.outside}_map")
        shape, strides, stride = constant_shape(source), list[int](), source.itemsize
        for extent in shape[:0:-1]:
            stride *= extent
            strides.append(stride)
        whole = TensorMap(name, copy.outside, source.dtype, shape[::-1], tuple(strides), (), panels.span)
        if copy.pixels is not None:
            return self._im2col_map(whole, copy.pixels, panels)
        tile_slice, box_extents = self._slice(copy, panels), list(panels.box[::-1])
        box_extents[tile_slice.dim] //= tile_slice.share
        box = dict(zip(copy.dims or range(len(shape)), box_extents, strict=True))
        return replace(whole, box=tuple(box.get(d, 1) for d in reversed(range(len(shape)))))

    @staticmethod
    def _im2col_map(image: TensorMap, pixels: Pixels, panels: Panels) -> TensorMap:
        """Return the tensor map of an image with channels last; one without a batch gets a batch dimension."""
        extents, strides, spatial = image.extents, image.strides, len(pixels.counts)
        if len(extents) == spatial + 1:
            strides = (*strides, extents[-1] * (strides[-1] if strides else panels.itemsize))
            extents = (*extents, 1)
        windows = zip(pixels.lower, pixels.counts, pixels.steps, extents[spatial:0:-1], strict=True)
        upper = [low - extent + 1 + (count - 1) * step for low, count, step, extent in windows]
        box = PixelBox(pixels.lower[::-1], tuple(upper[::-1]), panels.box[0], panels.box[1])
        return replace(image, extents=extents, strides=strides, box=box, steps=(1, *pixels.steps[::-1], 1))

    def _slice(self, copy: TileCopy, panels: Panels) -> TileSlice:
        """Return the slice of a tile that this block loads or stores."""
        return TileSlice(panels.count) if self.cluster is None or copy.back else self.cluster.slice_of(copy, panels)

    # roles

    def emit_prologue(self, threads: tuple[Var, Var, Var], groups: int, resident: int, shared: SharedMemory) -> None:
        """Emit the code before producer and consumers diverge: shared memory of the stages, initialised barriers."""
        if self.turns > 1 and (groups > 1 or self.order is None):
            raise ScheduleError(
                f"{groups} warpgroups cannot take turns: turns need persistent blocks with one consumer warpgroup each"
            )
        self.threads, self.groups, self.is_alone = threads, groups * self.turns, resident == 1
        for buffer in self.pipeline.buffers:
            name = self.text.name(buffer.name)
            self.c.buffers[buffer.name] = (buffer, name)
            shared.declare(buffer, self.c.memory_type(buffer.dtype), name, ALIGNMENT)
        self.barriers, self.stage, self.parity = map(self.text.name, ("barriers", "place", "parity"))
        count = Const(2 * self.pipeline.stages, INDEX)
        shared.declare(Buffer(self.barriers, (count,), "int64", Scope.SHARED), BARRIER_TYPE, self.barriers)
        with self.text.block(f"if ({self._is_first(0)})"):
            number = self.text.name("n")
            with self.text.block(f"for (int {number} = 0; {number} < {self.pipeline.stages}; ++{number})"):
                self._call("start_barrier", f"&{self.barriers}[{number} * 2]", str(self._full_barrier_count))
                arrivals = groups * (1 if self.cluster is None else self.cluster.size)
                self._call("start_barrier", f"&{self.barriers}[{number} * 2 + 1]", str(arrivals))
            self._call("show_barriers")
        if self.cluster is None:
            self.text.line(self.c.dialect.barrier)
        else:
            self._synchronise_cluster()
            rank = self.c.variables[self.cluster.rank]
            self.text.line(f"const int {rank} = {self._block()} % {self.cluster.size};")
        self.text.line(f"int {self.stage} = 0;")
        self.text.line(f"unsigned {self.parity} = 0;")

    def _is_first(self, group: int) -> str:
        x, y, z = (self.c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xyz"))
        return f"{x} == 0 && {y} == 0 && {z} == {group * WARPS}"

    def _is_loaded(self, copy: TileCopy) -> bool:
        """Whether the copy engine loads the tile, and not the threads."""
        return by_engine(self.c.buffers[copy.outside][0])

    @property
    def _thread_copies(self) -> list[TileCopy]:
        return [copy for copy in self.pipeline.loads if not self._is_loaded(copy)]

    @property
    def _full_barrier_count(self) -> int:
        """Return the arrivals at a full barrier: the thread that announces the engine's bytes, and warps that copy."""
        copied = len(self._thread_copies)
        return (copied < len(self.pipeline.loads)) + (WARPS if copied else 0)

    @contextmanager
    def producer(self) -> Iterator[None]:
        """Surround the code of the producer threads."""
        z = self.c.dialect.thread.format(axis="z", number=2)
        self.text.line(f"if ({z} >= {self.groups * WARPS}) {{")
        with self.text.indented():
            self._reallocate_registers(1, "give", "dec")
            if self._thread_copies:
                yield
            else:
                with self.text.block(f"if ({self._is_first(self.groups)})"):
                    yield

    @contextmanager
    def consumers(self) -> Iterator[None]:
        """Surround the code of the consumer threads."""
        self.text.line("} else {")
        with self.text.indented():
            self._reallocate_registers(0, "take", "inc")
            self._emit_turns()
            yield
            if self.stores:  # shared memory must exist until it has been stored
                self._call_by_first_thread("wait_for_stores")
        self.text.line("}")
        if self.cluster is not None:  # others write to this block until they have arrived here too
            self._synchronise_cluster()

    def _emit_turns(self) -> None:
        """Compute the turn of a thread; the second turn lets the first begin."""
        if self.turns == 1:
            return
        assert self.threads is not None
        z, warp = self.c.dialect.thread.format(axis="z", number=2), self.text.name("warp")
        self.turn = self.text.name("turn")
        self.text.line(f"const int {self.turn} = {z} / {WARPS};")
        self.text.line(f"const int {warp} = {z} % {WARPS};")
        self.c.variables[self.threads[2]] = warp
        with self.text.block(f"if ({self.turn} > 0)"):
            self._skip_other_turn()
            self._call("give_turn", str(FIRST_TURN))

    def _skip_other_turn(self) -> None:
        """Skip the stages that the other turn reads."""
        extent = self.pipeline.loop.extent
        assert isinstance(extent, Const)
        self.text.line(f"{self.stage} += {extent.value};")
        self.text.line(f"{self.parity} ^= {self.stage} / {self.pipeline.stages} & 1;")
        self.text.line(f"{self.stage} %= {self.pipeline.stages};")

    def select_copy_of_turn(self, buffer: Buffer, name: str) -> None:
        """Let `buffer` refer to the copy of this turn in the array `name` from here on."""
        if self.turns > 1:
            own = self.text.name(f"own_{name}")
            self.text.line(f"{self.c.memory_type(buffer.dtype)}* const {own} = {name}[{self.turn}];")
            self.c.buffers[buffer.name] = (buffer, own)

    def _synchronise_cluster(self) -> None:
        self.text.line("__syncwarp();")
        self._call("arrive_at_cluster")
        self._call("wait_for_cluster")

    def _block(self) -> str:
        return self.c.dialect.block.format(axis="x", number=0)

    @contextmanager
    def block_loop(self, in_turn: bool = False) -> Iterator[None]:
        """Surround the code of a block with the loop over the blocks of a persistent block, or `in_turn` of a
        warpgroup."""
        if self.order is None:
            for line in self.index_lines:
                self.text.line(line)
            yield
            return
        cluster_size = self.order.blocks_per_number
        number, step = self.c.variables[self.order.number], self.order.launched // cluster_size
        first, in_turn = self._block() + f" / {cluster_size}" * (cluster_size > 1), in_turn and self.turns > 1
        if in_turn:
            first, step = f"{first} + {self.turn} * {self.c.literal(step, INDEX)}", step * self.turns
        self.text.line(self.c.dialect.unroll_by.format(times=1))
        count, by = (self.c.literal(n, INDEX) for n in (self.order.count, step))
        with self.text.block(f"for (int {number} = {first}; {number} < {count}; {number} += {by})"):
            for line in self.index_lines:
                self.text.line(line)
            yield
            if in_turn:
                self._skip_other_turn()

    def _reallocate_registers(self, role: int, verb: str, direction: str) -> None:
        count = (REGISTERS_OF_COPIES if self._thread_copies else REGISTERS)[self.groups][role]
        if count < MOST_REGISTERS and self.is_alone:
            name = f"{verb}_registers_{count}"
            self.c.helpers[name] = SETMAXNREG.format(name=name, way=direction, count=count)
            self.text.line(f"{name}();")

    # results

    def emit_warpgroup_barrier(self) -> None:
        """Emit a barrier of a warpgroup's threads: their writes are visible to the copy engine, whose reads have
        ended."""
        self._call("show_to_engine")
        self._call_by_first_thread("wait_for_stores")
        z = self.c.dialect.thread.format(axis="z", number=2)
        for group in range(self.groups):  # constant barrier numbers leave barriers to other blocks
            with self.text.block(f"if ({z} / {WARPS} == {group})"):
                self._call(f"meet_{group + 1}")

    def emit_store(self, copy: TileCopy) -> None:
        """Emit the store of a tile by the copy engine."""
        buffer, name = self.c.buffers[copy.buffer]
        panels, group = panels_of(buffer), self.c.text(self.c.simplify(copy.place[0]))
        tile = f"{name}[{group}]" if versions_of(buffer)[0] > 1 else name
        helper, text = store_function(len(copy.origin))
        self.c.helpers[helper] = text
        for n in range(panels.count):
            coordinates = self._start_coordinates(
                copy, Const(n * (panels.span // panels.itemsize), INDEX), self._slice(copy, panels)
            )
            self.text.line(f"{helper}(&{self.maps[copy.buffer]}, {coordinates}, &{tile}[{n * panels.elements}]);")
        self._call("commit_stores")

    def _call_by_first_thread(self, name: str) -> None:
        x, y, z = (self.c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xyz"))
        with self.text.block(f"if ({x} == 0 && {y} == 0 && {z} % {WARPS} == 0)"):
            self._call(name)

    # loops

    def emit_producer_loop(self) -> None:
        """Emit the producer loop."""
        if self._thread_copies:
            self._load_and_copy()
            return
        with self._loop():
            self._wait(1, f"{self.parity} ^ 1")
            self._start_loads()
            self._next()

    def _start_loads(self) -> None:
        """Emit the loads of a stage's tiles by the copy engine."""
        loads = zip(self.pipeline.loads, map(panels_of, self.pipeline.buffers), strict=True)
        panels = [(load, panels_of_load) for load, panels_of_load in loads if self._is_loaded(load)]
        full = f"&{self.barriers}[{self.stage} * 2]"
        self._call("expect_bytes", full, str(sum(p.count * p.nbytes for _, p in panels)))
        for load, panels_of_load in panels:
            tile_slice = self._slice(load, panels_of_load)
            mask = f", {self.cluster.mask:#x}" if self.cluster is not None and tile_slice.is_multicast else ""
            name, text = load_function(load, bool(mask))
            self.c.helpers[name] = text
            for n in range(tile_slice.count):
                panel, inside = tile_slice.panel + n, tile_slice.half * (panels_of_load.elements // tile_slice.share)
                coordinates = self._start_coordinates(
                    load, panel * (panels_of_load.span // panels_of_load.itemsize), tile_slice
                )
                target = self._tile(load, panel * panels_of_load.elements + inside)
                self.text.line(f"{name}({target}, &{self.maps[load.buffer]}, {coordinates}, {full}{mask});")

    def _load_and_copy(self) -> None:
        """Emit the producer loop with copies by threads, which arrive at full barriers in order, `lag` iterations
        later."""
        assert isinstance(self.pipeline.loop.extent, Const)
        lag = min(self.pipeline.stages - 2, int(self.pipeline.loop.extent.value))
        thread, copied = emit_thread_index(self.groups * WARPS, self.c, self.text), self.text.name("copied")
        self.text.line(f"int {copied} = {self.stage};")
        with self._loop() as number:
            self._wait(1, f"{self.parity} ^ 1")
            if len(self._thread_copies) < len(self.pipeline.loads):
                with self.text.block(f"if ({self._is_first(self.groups)})"):
                    self._start_loads()
            for copy in self._thread_copies:
                emit_tile_copy(copy, self._tile(copy, ZERO), thread, self.c, self.text)
            emit_commit(self.c, self.text)
            with self.text.block(f"if ({number} >= {lag})") if lag else nullcontext():
                emit_wait(lag, self.c, self.text)
                self._signal_full(copied)
            self._next()
        if lag:
            emit_wait(0, self.c, self.text)
            self.text.line(self.c.dialect.unroll_by.format(times=1))
            with self.text.block(f"while ({copied} != {self.stage})"):
                self._signal_full(copied)

    def _signal_full(self, stage: str) -> None:
        """Arrive for the ended copies of a warp to a stage, and advance to the next one."""
        x, y = (self.c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xy"))
        self._call("show_to_engine")
        self.text.line("__syncwarp();")
        with self.text.block(f"if ({x} == 0 && {y} == 0)"):
            self._call("arrive", f"&{self.barriers}[{stage} * 2]")
        self.text.line(f"{stage} = {stage} == {self.pipeline.stages - 1} ? 0 : {stage} + 1;")

    def emit_consumer_loop(self, emit: Callable[[Stmt], None]) -> None:
        """Emit the consumer loop; `emit` emits the code of a stage."""
        before = self.text.name("before")
        self.text.line(f"int {before} = 0;")
        self.promotion = promotion_of(self.pipeline, self.c, self.text)
        if self.turns > 1:  # parities distinguish a phase from the next, but not from the one after that
            self._call("take_turn", f"{FIRST_TURN} + {self.turn}")
        with self._loop() as number:
            self._wait(0, self.parity)
            self._call("begin_products")
            for stmt in self.pipeline.compute:
                emit(stmt)
            self._call("commit_products")
            self._call("wait_for_all_products_but_1")
            self._release(before, f"{number} > 0 && ")
            if self.promotion is not None:
                with self.text.block(f"if ({self.promotion.is_due(number)})"):
                    self._call("wait_for_all_products_but_0")
                    self.promotion.emit(self.c, self.text)
            self.text.line(f"{before} = {self.stage};")
            self._next()
        if self.turns > 1:
            self._call("give_turn", f"{FIRST_TURN + 1} - {self.turn}")
        self._call("wait_for_all_products_but_0")
        for name in self.results if self.promotion is None else ():
            buffer, array = self.c.buffers[name]
            keep(buffer, array, self.c, self.text)
        self._release(before, "")

    def emit_product(self, loops: ProductLoops) -> None:
        """Emit a product of the tiles in the full stage."""
        assert self.threads is not None
        group = Var(f"{loops.store.stage}.group", INDEX)
        self.c.simplify.ranges[group] = (0, self.groups // self.turns - 1)
        self.c.variables[group] = f"{self.c.variables[self.threads[2]]} / {WARPS}"
        product = group_product(loops, self.threads, group, self.c)
        self.results[loops.store.buffers[0]] = None
        self.c.helpers["matrix_descriptor"] = DESCRIPTOR
        tiles = {b.name: (load, b) for load, b in zip(self.pipeline.loads, self.pipeline.buffers, strict=True)}
        begins = []
        for operand in (product.left, product.right):
            load, _ = tiles[operand.load.buffer]
            begins.append(f"matrix_descriptor({self._tile(load, ZERO)}, {operand.descriptor_bits:#x}ull)")
        with nullcontext("") if self.promotion is None else self.promotion.by_parts(self.c) as adds:
            emit_group_product(product, (begins[0], begins[1]), self.c, self.text, adds)

    @contextmanager
    def _loop(self) -> Iterator[str]:
        loop = self.pipeline.loop
        name = self.c.variables[loop.var] = self.text.name(loop.var.name)
        assert isinstance(loop.extent, Const)
        self.text.line(self.c.dialect.unroll_by.format(times=1))
        extent = self.c.text(loop.extent)
        with self.text.block(f"for (int {name} = 0; {name} < {extent}; ++{name})"):
            yield name

    def _wait(self, which: int, parity: str) -> None:
        self.c.helpers["has_passed"] = HAS_PASSED
        barrier = f"&{self.barriers}[{self.stage} * 2{' + 1' * which}]"
        self.text.line(f"while (!has_passed({barrier}, {parity})) {{ }}")

    def _release(self, stage: str, condition: str) -> None:
        x, y, z = (self.c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xyz"))
        barrier = f"&{self.barriers}[{stage} * 2 + 1]"
        ranks = "== 0" if self.cluster is None else f"< {self.cluster.size}"
        with self.text.block(f"if ({condition}{x} {ranks} && {y} == 0 && {z} % {WARPS} == 0)"):
            if self.cluster is None:
                self._call("arrive", barrier)
            else:
                self.c.helpers["in_block"] = IN_BLOCK
                self._call("arrive_elsewhere", f"in_block({x}, {barrier})")

    def _next(self) -> None:
        with self.text.block(f"if (++{self.stage} == {self.pipeline.stages})"):
            self.text.line(f"{self.stage} = 0;")
            self.text.line(f"{self.parity} ^= 1;")

    def _tile(self, load: TileCopy, element: Expr) -> str:
        """Return a pointer into the tile of the current stage."""
        _, name = self.c.buffers[load.buffer]
        text = self.c.text(self.c.simplify(element))
        return f"&{name}[{self.stage}][{text}]" if self.pipeline.stages > 1 else f"&{name}[{text}]"

    def _call(self, name: str, *arguments: str) -> None:
        parameters, instruction, operands = PLAIN[name]
        self.c.helpers[name] = f'{FUNCTION}void {name}({parameters}) {{ asm volatile("{instruction}" {operands}); }}'
        self.text.line(f"{name}({', '.join(arguments)});")

    def _start_coordinates(self, load: TileCopy, along: Expr, tile_slice: TileSlice) -> str:
        """Return the start of a panel's slice, innermost dimension first, then the offsets in windows."""
        rank = load.rank
        coordinates, offsets = list(load.origin[:rank]), load.origin[rank:]
        coordinates[-1] = coordinates[-1] + along
        if tile_slice.share > 1:
            dim = (load.dims or range(rank))[tile_slice.dim]
            coordinates[dim] = coordinates[dim] + tile_slice.row
        if load.pixels is not None and rank == len(load.pixels.counts) + 1:
            coordinates.insert(0, Const(0, INDEX))
        return ", ".join(self.c.text(self.c.simplify(e)) for e in (*coordinates[::-1], *offsets[::-1]))
