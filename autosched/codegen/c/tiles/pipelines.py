"""Tile pipelines in CUDA C (warp specialisation): one warpgroup loads tiles ahead, the others multiply them.

    for k: barrier; tiles; barrier; multiply       ->

    loads:       for k: wait until the stage is empty; announce the bytes that will arrive; load the tiles; next stage
    multiplies:  for k: wait until the stage is full; multiply asynchronously; wait for the products before;
                        release their stage; next stage

Each consumer warpgroup arrives once at a stage's empty barrier; where blocks of a cluster load tiles for each other, at
those of both blocks, whose shared memory must exist until the other block no longer needs it. Registers that the
producer warpgroup does not need are reallocated to the consumers. Consumer warpgroups of a persistent block that take
turns skip the stages of each other's tiles; named barriers order their products. One thread loads, unless all threads
of the producer warpgroup copy tiles (`thread_copies.py`): then its warps arrive at a full barrier some iterations
later, so that the consumers have one stage to read and one to wait for.
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
from autosched.codegen.c.tiles.clusters import BlockCluster, LoadedPart, cluster_of, turns_of
from autosched.codegen.c.tiles.copy_engine import (
    BARRIER_TYPE,
    FIRST_TURN,
    FUNCTION,
    HAS_PASSED,
    IN_BLOCK,
    KEEP,
    MAP_TYPE,
    PLAIN,
    SHARE,
    load_function,
    store_function,
)
from autosched.codegen.c.tiles.pipeline_nests import TilePipeline, stores_of, tile_pipeline
from autosched.codegen.c.tiles.thread_copies import copy_tile, number_of_thread, start_group, wait_for_groups
from autosched.codegen.c.tiles.warp_matrices import CONSTRAINTS, ProductLoops
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
from autosched.ir.storage import element_count, versions_of

ZERO = Const(0, INDEX)


def pipeline_code(nest: Stmt, c: Expressions, text: Text) -> PipelineCode | None:
    """Return the writer of a kernel's tile pipeline; None for a kernel without one. Raises as `tile_pipeline` does."""
    found = tile_pipeline(nest)
    return None if found is None else PipelineCode(found, c, text, stores_of(nest), cluster_of(nest), turns_of(nest))


def for_all_turns(buffer: Buffer, turns: int) -> Buffer:
    """Return a shared buffer with a copy for each turn."""
    return buffer if turns == 1 else replace(buffer, shape=(Const(turns, INDEX), *buffer.shape[1:]))


@dataclass
class PipelineCode:
    """Writes the code of a kernel with a tile pipeline; names are those in C.

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
    is_alone: bool = True  # whether a multiprocessor has one resident block
    barriers: str = ""
    place: str = ""
    parity: str = ""
    turn: str = ""
    results: dict[str, None] = field(default_factory=dict)  # accumulators of the products, in order
    order: BlockOrder | None = None  # of persistent blocks
    places: list[str] = field(default_factory=list)  # lines that compute the indices of a block in that order

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
        shape, strides, distance = constant_shape(source), list[int](), source.itemsize
        for extent in shape[:0:-1]:
            distance *= extent
            strides.append(distance)
        whole = TensorMap(name, copy.outside, source.dtype, shape[::-1], tuple(strides), (), panels.span)
        if copy.pixels is not None:
            return self._of_pixels(whole, copy.pixels, panels)
        part, at_once = self._part(copy, panels), list(panels.box[::-1])
        at_once[part.dim] //= part.share
        box = dict(zip(copy.dims or range(len(shape)), at_once, strict=True))
        return replace(whole, box=tuple(box.get(d, 1) for d in reversed(range(len(shape)))))

    @staticmethod
    def _of_pixels(image: TensorMap, pixels: Pixels, panels: Panels) -> TensorMap:
        """Return the tensor map of an image with channels last; one without a batch gets a batch dimension."""
        extents, strides, spatial = image.extents, image.strides, len(pixels.counts)
        if len(extents) == spatial + 1:
            strides = (*strides, extents[-1] * (strides[-1] if strides else panels.itemsize))
            extents = (*extents, 1)
        windows = zip(pixels.lower, pixels.counts, pixels.steps, extents[spatial:0:-1], strict=True)
        upper = [low - extent + 1 + (count - 1) * step for low, count, step, extent in windows]
        box = PixelBox(pixels.lower[::-1], tuple(upper[::-1]), panels.box[0], panels.box[1])
        return replace(image, extents=extents, strides=strides, box=box, steps=(1, *pixels.steps[::-1], 1))

    def _part(self, copy: TileCopy, panels: Panels) -> LoadedPart:
        """Return the part of a tile that this block loads or stores."""
        return LoadedPart(panels.count) if self.cluster is None or copy.back else self.cluster.part(copy, panels)

    # roles

    def start(self, threads: tuple[Var, Var, Var], groups: int, resident: int, shared: SharedMemory) -> None:
        """Write the code before the roles divide: the pipeline's shared memory, and initialised barriers."""
        if self.turns > 1 and (groups > 1 or self.order is None):
            raise ScheduleError(f"{groups} warpgroups cannot take turns: one does the work of a block, of all blocks'")
        self.threads, self.groups, self.is_alone = threads, groups * self.turns, resident == 1
        for buffer in self.pipeline.buffers:
            name = self.text.name(buffer.name)
            self.c.buffers[buffer.name] = (buffer, name)
            shared.declare(buffer, self.c.memory_type(buffer.dtype), name, ALIGNMENT)
        self.barriers, self.place, self.parity = map(self.text.name, ("barriers", "place", "parity"))
        count = Const(2 * self.pipeline.stages, INDEX)
        shared.declare(Buffer(self.barriers, (count,), "int64", Scope.SHARED), BARRIER_TYPE, self.barriers)
        with self.text.block(f"if ({self._is_first(0)})"):
            number = self.text.name("n")
            with self.text.block(f"for (int {number} = 0; {number} < {self.pipeline.stages}; ++{number})"):
                self._call("start_barrier", f"&{self.barriers}[{number} * 2]", str(self._partners))
                arrivals = groups * (1 if self.cluster is None else self.cluster.size)
                self._call("start_barrier", f"&{self.barriers}[{number} * 2 + 1]", str(arrivals))
            self._call("show_barriers")
        if self.cluster is None:
            self.text.line(self.c.dialect.barrier)
        else:
            self._meet_cluster()
            rank = self.c.variables[self.cluster.rank]
            self.text.line(f"const int {rank} = {self._block()} % {self.cluster.size};")
        self.text.line(f"int {self.place} = 0;")
        self.text.line(f"unsigned {self.parity} = 0;")

    def _is_first(self, group: int) -> str:
        x, y, z = (self.c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xyz"))
        return f"{x} == 0 && {y} == 0 && {z} == {group * WARPS}"

    def _is_loaded(self, copy: TileCopy) -> bool:
        """Whether the copy engine loads the tile, and not the threads."""
        return by_engine(self.c.buffers[copy.outside][0])

    @property
    def _copied(self) -> list[TileCopy]:
        return [copy for copy in self.pipeline.loads if not self._is_loaded(copy)]

    @property
    def _partners(self) -> int:
        """Return the arrivals at a full barrier: the thread that announces the engine's bytes, and warps that copy."""
        copied = len(self._copied)
        return (copied < len(self.pipeline.loads)) + (WARPS if copied else 0)

    @contextmanager
    def loads(self) -> Iterator[None]:
        """Surround the code of the producer threads."""
        z = self.c.dialect.thread.format(axis="z", number=2)
        self.text.line(f"if ({z} >= {self.groups * WARPS}) {{")
        with self.text.indented():
            self._share(1, "give", "dec")
            if self._copied:
                yield
            else:
                with self.text.block(f"if ({self._is_first(self.groups)})"):
                    yield

    @contextmanager
    def multiplies(self) -> Iterator[None]:
        """Surround the code of the consumer threads."""
        self.text.line("} else {")
        with self.text.indented():
            self._share(0, "take", "inc")
            self._begin_turns()
            yield
            if self.stores:  # shared memory must exist until it has been stored
                self._first("wait_for_stores")
        self.text.line("}")
        if self.cluster is not None:  # others write to this block until they have arrived here too
            self._meet_cluster()

    def _begin_turns(self) -> None:
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
            self._skip()
            self._call("give_turn", str(FIRST_TURN))

    def _skip(self) -> None:
        """Skip the stages that the other turn reads."""
        extent = self.pipeline.loop.extent
        assert isinstance(extent, Const)
        self.text.line(f"{self.place} += {extent.value};")
        self.text.line(f"{self.parity} ^= {self.place} / {self.pipeline.stages} & 1;")
        self.text.line(f"{self.place} %= {self.pipeline.stages};")

    def take_own(self, buffer: Buffer, name: str) -> None:
        """Make `buffer` the copy of this turn in the array `name` from here on."""
        if self.turns > 1:
            own = self.text.name(f"own_{name}")
            self.text.line(f"{self.c.memory_type(buffer.dtype)}* const {own} = {name}[{self.turn}];")
            self.c.buffers[buffer.name] = (buffer, own)

    def _meet_cluster(self) -> None:
        self.text.line("__syncwarp();")
        self._call("arrive_at_cluster")
        self._call("wait_for_cluster")

    def _block(self) -> str:
        return self.c.dialect.block.format(axis="x", number=0)

    @contextmanager
    def blocks(self, in_turn: bool = False) -> Iterator[None]:
        """Surround the code of each block of the grid that this block, or a warpgroup of it `in_turn`, computes."""
        if self.order is None:
            for line in self.places:
                self.text.line(line)
            yield
            return
        together = self.order.together
        number, step = self.c.variables[self.order.number], self.order.launched // together
        first, in_turn = self._block() + f" / {together}" * (together > 1), in_turn and self.turns > 1
        if in_turn:
            first, step = f"{first} + {self.turn} * {step}", step * self.turns
        self.text.line(self.c.dialect.unroll_by.format(times=1))
        with self.text.block(f"for (int {number} = {first}; {number} < {self.order.count}; {number} += {step})"):
            for line in self.places:
                self.text.line(line)
            yield
            if in_turn:
                self._skip()

    def _share(self, role: int, word: str, way: str) -> None:
        count = (REGISTERS_OF_COPIES if self._copied else REGISTERS)[self.groups][role]
        if count < MOST_REGISTERS and self.is_alone:
            name = f"{word}_registers_{count}"
            self.c.helpers[name] = SHARE.format(name=name, way=way, count=count)
            self.text.line(f"{name}();")

    # results

    def meet(self) -> None:
        """Synchronise the threads of a warpgroup; the engine sees their writes, and the elements that it read may be
        overwritten."""
        self._call("show_to_engine")
        self._first("wait_for_stores")
        z = self.c.dialect.thread.format(axis="z", number=2)
        for group in range(self.groups):  # constant barrier numbers leave barriers to other blocks
            with self.text.block(f"if ({z} / {WARPS} == {group})"):
                self._call(f"meet_{group + 1}")

    def store(self, copy: TileCopy) -> None:
        """Store a tile by the calling thread."""
        buffer, name = self.c.buffers[copy.buffer]
        panels, group = panels_of(buffer), self.c.text(self.c.simplify(copy.place[0]))
        tile = f"{name}[{group}]" if versions_of(buffer)[0] > 1 else name
        helper, text = store_function(len(copy.origin))
        self.c.helpers[helper] = text
        for n in range(panels.count):
            at = self._corner(copy, Const(n * (panels.span // panels.itemsize), INDEX), self._part(copy, panels))
            self.text.line(f"{helper}(&{self.maps[copy.buffer]}, {at}, &{tile}[{n * panels.elements}]);")
        self._call("commit_stores")

    def _first(self, name: str) -> None:
        x, y, z = (self.c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xyz"))
        with self.text.block(f"if ({x} == 0 && {y} == 0 && {z} % {WARPS} == 0)"):
            self._call(name)

    # loops

    def load(self) -> None:
        """Write the producer loop."""
        if self._copied:
            self._load_and_copy()
            return
        with self._loop():
            self._wait(1, f"{self.parity} ^ 1")
            self._start_loads()
            self._next()

    def _start_loads(self) -> None:
        """Load the engine's tiles of a stage."""
        loads = zip(self.pipeline.loads, map(panels_of, self.pipeline.buffers), strict=True)
        panels = [(load, each) for load, each in loads if self._is_loaded(load)]
        full = f"&{self.barriers}[{self.place} * 2]"
        self._call("expect_bytes", full, str(sum(p.count * p.nbytes for _, p in panels)))
        for load, each in panels:
            part = self._part(load, each)
            mask = f", {self.cluster.mask:#x}" if self.cluster is not None and part.for_all else ""
            name, text = load_function(load, bool(mask))
            self.c.helpers[name] = text
            for n in range(part.count):
                panel, inside = part.panel + n, part.half * (each.elements // part.share)
                at = self._corner(load, panel * (each.span // each.itemsize), part)
                place = self._tile(load, panel * each.elements + inside)
                self.text.line(f"{name}({place}, &{self.maps[load.buffer]}, {at}, {full}{mask});")

    def _load_and_copy(self) -> None:
        """Write the producer loop where threads copy tiles: they arrive at full barriers in order, iterations later."""
        assert isinstance(self.pipeline.loop.extent, Const)
        later = min(self.pipeline.stages - 2, int(self.pipeline.loop.extent.value))
        thread, copied = number_of_thread(self.groups * WARPS, self.c, self.text), self.text.name("copied")
        self.text.line(f"int {copied} = {self.place};")
        with self._loop() as number:
            self._wait(1, f"{self.parity} ^ 1")
            if len(self._copied) < len(self.pipeline.loads):
                with self.text.block(f"if ({self._is_first(self.groups)})"):
                    self._start_loads()
            for copy in self._copied:
                copy_tile(copy, self._tile(copy, ZERO), thread, self.c, self.text)
            start_group(self.c, self.text)
            with self.text.block(f"if ({number} >= {later})") if later else nullcontext():
                wait_for_groups(later, self.c, self.text)
                self._say_full(copied)
            self._next()
        if later:
            wait_for_groups(0, self.c, self.text)
            self.text.line(self.c.dialect.unroll_by.format(times=1))
            with self.text.block(f"while ({copied} != {self.place})"):
                self._say_full(copied)

    def _say_full(self, place: str) -> None:
        """Arrive for the ended copies of a warp to a stage, and advance to the next one."""
        x, y = (self.c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xy"))
        self._call("show_to_engine")
        self.text.line("__syncwarp();")
        with self.text.block(f"if ({x} == 0 && {y} == 0)"):
            self._call("arrive", f"&{self.barriers}[{place} * 2]")
        self.text.line(f"{place} = {place} == {self.pipeline.stages - 1} ? 0 : {place} + 1;")

    def multiply(self, emit: Callable[[Stmt], None]) -> None:
        """Write the consumer loop; `emit` writes the code of a stage."""
        before = self.text.name("before")
        self.text.line(f"int {before} = 0;")
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
            self.text.line(f"{before} = {self.place};")
            self._next()
        if self.turns > 1:
            self._call("give_turn", f"{FIRST_TURN + 1} - {self.turn}")
        self._call("wait_for_all_products_but_0")
        for name in self.results:
            self._keep(name)
        self._release(before, "")

    def _keep(self, name: str) -> None:
        """Keep uses of the results after the wait."""
        buffer, array = self.c.buffers[name]
        kind, letter = self.c.type(buffer.dtype), CONSTRAINTS[buffer.dtype]
        self.c.helpers[f"keep_{kind}"] = KEEP.format(kind=kind, letter=letter)
        number = self.text.name("n")
        self.text.line(self.c.dialect.unroll)
        with self.text.block(f"for (int {number} = 0; {number} < {element_count(buffer)}; ++{number})"):
            self.text.line(f"keep_{kind}({array}[{number}]);")

    def product(self, loops: ProductLoops) -> None:
        """Write a product of the tiles in the full stage."""
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
        emit_group_product(product, (begins[0], begins[1]), self.c, self.text)

    @contextmanager
    def _loop(self) -> Iterator[str]:
        loop = self.pipeline.loop
        name = self.c.variables[loop.var] = self.text.name(loop.var.name)
        assert isinstance(loop.extent, Const)
        self.text.line(self.c.dialect.unroll_by.format(times=1))
        with self.text.block(f"for (int {name} = 0; {name} < {loop.extent.value}; ++{name})"):
            yield name

    def _wait(self, which: int, parity: str) -> None:
        self.c.helpers["has_passed"] = HAS_PASSED
        barrier = f"&{self.barriers}[{self.place} * 2{' + 1' * which}]"
        self.text.line(f"while (!has_passed({barrier}, {parity})) {{ }}")

    def _release(self, place: str, condition: str) -> None:
        x, y, z = (self.c.dialect.thread.format(axis=a, number=n) for n, a in enumerate("xyz"))
        barrier = f"&{self.barriers}[{place} * 2 + 1]"
        ranks = "== 0" if self.cluster is None else f"< {self.cluster.size}"
        with self.text.block(f"if ({condition}{x} {ranks} && {y} == 0 && {z} % {WARPS} == 0)"):
            if self.cluster is None:
                self._call("arrive", barrier)
            else:
                self.c.helpers["in_block"] = IN_BLOCK
                self._call("arrive_elsewhere", f"in_block({x}, {barrier})")

    def _next(self) -> None:
        with self.text.block(f"if (++{self.place} == {self.pipeline.stages})"):
            self.text.line(f"{self.place} = 0;")
            self.text.line(f"{self.parity} ^= 1;")

    def _tile(self, load: TileCopy, element: Expr) -> str:
        """Return a pointer into the tile of the current stage."""
        _, name = self.c.buffers[load.buffer]
        text = self.c.text(self.c.simplify(element))
        return f"&{name}[{self.place}][{text}]" if self.pipeline.stages > 1 else f"&{name}[{text}]"

    def _call(self, name: str, *arguments: str) -> None:
        parameters, instruction, operands = PLAIN[name]
        self.c.helpers[name] = f'{FUNCTION}void {name}({parameters}) {{ asm volatile("{instruction}" {operands}); }}'
        self.text.line(f"{name}({', '.join(arguments)});")

    def _corner(self, load: TileCopy, along: Expr, part: LoadedPart) -> str:
        """Return the start of a part of a panel, from the innermost dimension; then offsets in windows."""
        rank = load.rank
        corner, offsets = list(load.origin[:rank]), load.origin[rank:]
        corner[-1] = corner[-1] + along
        if part.share > 1:
            dim = (load.dims or range(rank))[part.dim]
            corner[dim] = corner[dim] + part.row
        if load.pixels is not None and rank == len(load.pixels.counts) + 1:
            corner.insert(0, Const(0, INDEX))
        return ", ".join(self.c.text(self.c.simplify(e)) for e in (*corner[::-1], *offsets[::-1]))
