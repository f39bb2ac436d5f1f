"""GPU loop nests of blocks and threads: every thread runs whole tiles, and stores beyond an axis are guarded.

Spatial loops have closed-form extents, so that all threads meet at the same barriers; a store to memory
that others see, or a read of it, is guarded where a tile may reach beyond an axis. Reduction loops end
exactly, they are the same for all threads; those of products of matrices are whole, for shared buffers
are zero beyond an axis. Shared buffers are filled by all threads of the block:

    barrier, in a loop; fills; barrier; what reads the buffers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autosched.ir.expr import INDEX, Const, Expr, Load, Select, Var, binary, ceildiv, const, imax, product, select
from autosched.ir.linear import ONE, ZERO
from autosched.ir.stmt import (
    BLOCKS,
    THREADS,
    Allocate,
    Barrier,
    Buffer,
    For,
    ForKind,
    If,
    Scope,
    Seq,
    Sharing,
    Stmt,
    Store,
    TileCopy,
)
from autosched.ir.visit import free_vars, loads, substitute
from autosched.lower.symbolic.cross_thread import CrossThreadReduction, ThreadTeam, across_threads
from autosched.lower.symbolic.domains import part_bound
from autosched.lower.symbolic.nest import NestBuilder
from autosched.lower.symbolic.staged import staged_store, written_back
from autosched.schedule.gathers import gather_of
from autosched.schedule.stage import Loop, Stage, StageAxis, closed, default_stage
from autosched.schedule.steps.atomic import parts_of, start_indices
from autosched.schedule.steps.gpu import MOST_WARP
from autosched.schedule.steps.stages import shape_of_buffer


@dataclass(frozen=True)
class GpuNest(NestBuilder):
    """The nest of a stage that runs in blocks of threads."""

    def build(self) -> Stmt:
        nest, stage = self._build(), self.stage
        if stage.at is not None or (stage.resident, stage.raster, stage.sharing) == (None, None, ()):
            return nest
        assert isinstance(nest, For)
        resident, raster = (None if n is None else closed(n) for n in (stage.resident, stage.raster))
        sharing = Sharing(*map(closed, stage.sharing)) if stage.sharing else None
        return replace(nest, resident=resident, raster=raster, sharing=sharing)

    def _build(self) -> Stmt:
        if self._by_tiles(self.stage):
            return self._tile()
        if self._is_copy():
            return self._fill()
        return self._cross(self.stage.cross) if self.stage.cross is not None else super().build()

    def _groups(self, children: Sequence[Stage]) -> list[list[Stage]]:
        """Group shared buffers whose fills are independent: they share their barriers."""
        groups: list[list[Stage]] = []
        for child in children:
            read = child.op.reads
            after = max((n + 1 for n, g in enumerate(groups) for x in g if read & set(x.op.buffers)), default=0)
            beside = next((g for g in groups[after:] if self._is_fill(g[0])), None) if self._is_fill(child) else None
            if beside is None:
                groups.insert(after if self._is_fill(child) else len(groups), [child])
            else:
                beside.append(child)
        return groups

    def _with_children(self, children: Sequence[Stage], body: Stmt) -> Stmt:
        nests = [replace(self, stage=child).build() for child in children]
        if children[0].scope is not Scope.SHARED:
            return Seq((*nests, body))
        # In a loop, threads may still read what an iteration before has filled.
        before = (Barrier(),) if self._is_in_loop(children[0]) else ()
        return Seq((*before, *nests, Barrier(), body))

    def _loops(self, n: int, covered: Mapping[str, Expr], outer: tuple[Var, ...]) -> Stmt:
        kinds = (*THREADS, *BLOCKS)
        if self.stage.is_across_lanes:
            bound = sum(x.kind in kinds for x in self.stage.loops)
            return self._update(n, covered, outer) if n < bound else self._by_lanes(n, covered)
        nest = super()._loops(n, covered, outer)
        outside = sum(x.kind in kinds or x.name == self.stage.staged_in for x in self.stage.loops)
        return written_back(self.domain, self._thread()[1], nest) if self.stage.staged and n == outside else nest

    def _exact_extent(self, axis: str, level: int, covered: Mapping[str, Expr], init: bool) -> Expr:
        if self.stage.op.axis(axis).reduce and not (self.stage.matrix or self.stage.is_across_lanes):
            return super()._exact_extent(axis, level, covered, init)
        return part_bound(self.stage, self.domain.regions[axis], axis, level)

    def _leaf(self, covered: Mapping[str, Expr]) -> Stmt:
        store = super()._leaf(covered)
        store = replace(store, matrix=self.stage.matrix) if isinstance(store, Store) and self.stage.matrix else store
        store = store if self.stage.into is None else self._updating(store, self.stage.into)
        store = staged_store(self.domain, store) if self.stage.staged else store
        return self._cut(self._guard(store, covered), covered)

    def _updating(self, store: Stmt, name: str) -> Stmt:
        """Turn the store of a part into an update of the result."""
        result = self.state.stage(name)
        load = parts_of(result)
        assert isinstance(store, Store)
        assert load is not None
        indices = start_indices(load, store.indices, result)
        return Store(result.op.buffers, indices, store.values, result.op.reducer, store.stage, atomic=True)

    def _init_leaf(self, covered: Mapping[str, Expr]) -> Stmt:
        return self._guard(super()._init_leaf(covered), covered)

    def _cut(self, store: Stmt, covered: Mapping[str, Expr]) -> Stmt:
        """Guard the store by the bounds of a reduction where no reduction loop ends for it, since a spatial loop inside
        changes the bound."""
        op = self.stage.op
        order = [a for loop in self.stage.loops for a, _ in loop.parts]
        for form, limit in op.guards:
            used = free_vars(form)
            first = min((order.index(a.name) for a in op.reduce_axes if a.var in used), default=len(order))
            late = [a for a in op.axes if a.var in used and max(n for n, x in enumerate(order) if x == a.name) > first]
            if any(self.domain.regions[a.name].extent is not ONE for a in late):
                values: dict[Expr, Expr] = {a.var: self._value(a.name, covered) for a in op.all_axes}
                store = _guarded(binary("lt", substitute(form, values), limit), store)
        return store

    def _guard(self, store: Stmt, covered: Mapping[str, Expr]) -> Stmt:
        """Guard the store by the axes' extents if it accesses memory outside of the thread.

        Private buffers of a thread may be computed beyond an axis; only axes along which that would read memory out of
        bounds count. Each condition costs time in the innermost loop, and PoCL 3.1 (LLVM 15) miscompiles conditions
        that differ between threads and are invariant in a loop with barriers.
        """
        assert isinstance(store, Store)
        op = self.stage.op
        axes = op.axes
        if self.stage.scope in (Scope.REGISTER, Scope.LOCAL):
            if all(self._is_near(x.buffer) for v in store.values for x in loads(v)):
                return store
            axes = self._axes_outside()
        result: Stmt = store
        if self.stage.scope is Scope.SHARED:  # not a cooperative fill: all threads reach it, and the first one writes
            result = _guarded(binary("lt", self._thread()[1], Const(1, INDEX)), result)
        for loop in self.stage.loops:
            if not loop.parts:  # the first thread of the team writes
                result = _guarded(binary("lt", self.domain.loop_var(loop), Const(1, INDEX)), result)
        for axis in axes:
            result = _guarded(is_inside(self._value(axis.name, covered), axis.extent), result)
        return result

    def _axes_outside(self) -> tuple[StageAxis, ...]:
        """Return the axes along which the stage reads memory outside of the thread and the block."""
        far = [x for x in self.stage.op.loads if not self._is_near(x.buffer)]
        used = frozenset[Var]().union(*(free_vars(index) for x in far for index in x.indices))
        return tuple(axis for axis in self.stage.op.axes if axis.var in used)

    def _is_inside_block(self) -> bool:
        """Whether the stage is computed from buffers of the block alone, but for those of products of matrices, which
        add up what is beyond an axis."""
        is_added = any(reader.matrix for reader in self.state.consumers(self.stage))
        return not is_added and all(self._is_near(x.buffer) for x in self.stage.op.loads)

    def _is_near(self, buffer: str) -> bool:
        """Whether a buffer belongs to the thread or the block and has room for what is read beyond an axis."""
        producer = self.state.producer(buffer)
        if producer is None or producer.at is None:
            return False
        return not any(region.is_cut for region in self.domains[producer.name].regions.values())

    def _is_copy(self) -> bool:
        """Whether the threads fill a shared buffer cooperatively: by a step, or because its loops are unscheduled."""
        stage = self.stage
        if stage.cooperate is not None:
            return True
        plain = stage.op.is_elementwise and stage.loops == default_stage(stage.op).loops
        return stage.scope is Scope.SHARED and plain and not self.state.attached(stage.name)

    def _is_fill(self, stage: Stage) -> bool:
        """Whether the stage's shared buffer is filled for all threads of a block."""
        return stage.scope is Scope.SHARED and (stage.cooperate is not None or self._by_tiles(stage))

    def _by_tiles(self, stage: Stage) -> bool:
        """Whether one thread has the copy engine fill the stage's shared buffer."""
        pipeline = None if stage.at is None else self.state.stage(stage.at.stage).pipeline
        here = pipeline is not None and stage.at is not None and stage.at.loop == pipeline.loop
        return here and pipeline is not None and pipeline.by_tiles and stage.scope is Scope.SHARED

    def _tile(self) -> Stmt:
        """Copy the region by one thread and the copy engine."""
        op = self.stage.op
        [load] = op.loads
        regions = [self.domain.regions[a.name] for a in op.axes]
        place = tuple(p.index for p in self.domain.places)
        origin, shape = tuple(r.lo for r in regions), tuple(r.extent for r in regions)
        tile = TileCopy(op.buffers[0], place, load.buffer, origin, shape, load.dtype)
        if load is not op.body[0] or load.indices != tuple(a.var for a in op.axes):
            extents = shape_of_buffer(self.state, load.buffer)
            gather = gather_of(op, [e.number for e in extents if isinstance(e, Const)])
            assert gather is not None
            first: dict[Expr, Expr] = {a.var: r.lo for a, r in zip(op.axes, regions, strict=True)}
            begins = tuple(substitute(e, first) for e in gather.origin)
            tile = replace(tile, origin=begins, dims=gather.dims, pixels=gather.pixels)
        return _guarded(binary("lt", self._thread()[1], Const(1, INDEX)), tile)

    def _fill(self) -> Stmt:
        """Compute the region cooperatively, `vector` adjacent elements of a thread at a time.

        Beyond an axis it is zero, but for what is computed from other buffers of the block, which nobody uses there.
        """
        stage, op = self.stage, self.stage.op
        threads, thread = self._thread()
        vector = closed(1 if stage.cooperate is None else stage.cooperate)
        extents = [self.domain.regions[a.name].extent for a in op.axes]
        total = product(extents)
        each, lane = Var(f"{stage.name}.each"), Var(f"{stage.name}.lane")
        element = (each * threads + thread) * vector + lane
        local: dict[str, Expr] = {}
        inner: Expr = Const(1, INDEX)
        for n, (axis, extent) in reversed(list(enumerate(zip(op.axes, extents, strict=True)))):
            local[axis.name] = element // inner if n == 0 else (element // inner) % extent
            inner = inner * extent
        values: dict[Expr, Expr] = {a.var: self._value(a.name, local) for a in op.axes}
        inside: Expr = Const(True, "bool")
        for axis in () if self._is_inside_block() else op.axes:
            inside = inside & is_inside(values[axis.var], axis.extent)
        body = tuple(
            choose(inside, self._relocate(substitute(v, values)), const(0, d))
            for v, d in zip(op.body, op.dtypes, strict=True)
        )
        indices = (*(p.index for p in self.domain.places), *(local[a.name] for a in op.axes))
        store: Stmt = Store(op.buffers, indices, body, None, op.name)
        store = If(binary("lt", element, total), store)
        trips = ceildiv(total, threads * vector)
        lanes = For(lane, vector, vector, ForKind.UNROLL, store)
        return For(each, trips, trips, ForKind.SERIAL, lanes)

    def _cross(self, axis: str) -> Stmt:
        """Reduce over the threads of a team, for each point of the stage's region."""
        op = self.stage.op
        covered: dict[str, Expr] = {}
        loops: list[tuple[Var, Expr]] = []
        for a in op.axes:
            var = Var(f"{op.name}.{a.name}")
            covered[a.name] = var
            loops.append((var, self.domain.regions[a.name].extent))
        body = self._cross_body(axis, covered)
        for var, extent in reversed(loops):
            body = For(var, extent, extent, ForKind.SERIAL, body)
        return body

    def _cross_body(self, axis: str, covered: Mapping[str, Expr]) -> Stmt:
        op = self.stage.op
        assert op.reducer is not None
        own = tuple(
            Buffer(f"{b}.own", (Const(1, INDEX),), d, Scope.REGISTER)
            for b, d in zip(op.buffers, op.dtypes, strict=True)
        )
        team = self._team()
        crossing = CrossThreadReduction(op.name, op.reducer, own, team, self._runs_again())
        result: Stmt = Store(op.buffers, self._local(covered), crossing.values, None, op.name)
        if self.stage.scope is Scope.SHARED:
            result = _guarded(binary("lt", team.member, Const(1, INDEX)), result)
        part = self._own_part(axis, covered, crossing)
        body: Stmt = Seq((crossing.start(), part, across_threads(crossing, self.stage.warp), result))
        for buffer in own:
            body = Allocate(buffer, body)
        return body

    def _by_lanes(self, n: int, covered: Mapping[str, Expr]) -> Stmt:
        """Accumulate a thread's points of the loops from number `n` on in registers, and combine them with those of its
        neighbouring lanes; the first lane writes."""
        op, stage, domain = self.stage.op, self.stage, self.domain
        assert op.reducer is not None
        inner = [(x, domain.loop_var(x), domain.bounds[x.name]) for x in stage.loops[n:]]
        points = [x for x in inner if not x[0].reduce]
        place = tuple(var for _, var, _ in points)
        shape = tuple(bound for _, _, bound in points)
        parts = tuple(Buffer(f"{b}.part", shape, d, Scope.REGISTER) for b, d in zip(op.buffers, op.dtypes, strict=True))
        names = tuple(b.name for b in parts)
        inside = dict(covered)
        for loop, var, _ in inner:
            _, inside, _ = self._step(loop, var, inside, init=False)
        values: dict[Expr, Expr] = {a.var: self._value(a.name, inside) for a in op.all_axes}
        limits = [(values[a.var], a.extent) for a in (*self._axes_outside(), *op.reduce_axes)]
        limits += [(substitute(form, values), limit) for form, limit in op.guards]
        body = tuple(self._relocate(substitute(v, values)) for v in op.body)
        update: Stmt = Store(names, place, body, op.reducer, op.name)
        for value, limit in limits:
            update = _guarded(is_inside(value, limit), update)
        start = Store(names, place, op.reducer.identity, None, f"{op.name}.init")
        write = self._written(parts, place, inside)
        result: Stmt = Seq((_unrolled(points, start), _unrolled(inner, update), _unrolled(points, write)))
        for buffer in parts:
            result = Allocate(buffer, result)
        return result

    def _written(self, parts: tuple[Buffer, ...], place: tuple[Expr, ...], inside: Mapping[str, Expr]) -> Stmt:
        """Combine the lanes' parts of one point, and write it."""
        op = self.stage.op
        assert op.reducer is not None
        own = tuple(Buffer(f"{b}.own", (ONE,), d, Scope.REGISTER) for b, d in zip(op.buffers, op.dtypes, strict=True))
        lane = next(x for x in self.stage.loops if x.kind is ForKind.THREAD_X)
        member, members = self.domain.loop_var(lane), self.domain.bounds[lane.name]
        threads, thread = self._thread()
        team = ThreadTeam(members, member, threads // members, thread // members, True)
        crossing = CrossThreadReduction(op.name, op.reducer, own, team, True)
        take = Store(crossing.names, (ZERO,), tuple(Load(b.name, place, b.dtype) for b in parts), None, op.name)
        write: Stmt = Store(op.buffers, self._local(inside), crossing.values, None, op.name)
        for a in op.axes:
            write = _guarded(is_inside(self._value(a.name, inside), a.extent), write)
        write = _guarded(binary("lt", member, ONE), write)
        result: Stmt = Seq((take, across_threads(crossing, MOST_WARP), write))
        for buffer in own:
            result = Allocate(buffer, result)
        return result

    def _runs_again(self) -> bool:
        """Whether a thread may execute the stage more than once: it is inside a loop, or its point is."""
        several = any(self.domain.regions[a.name].extent is not Const(1, INDEX) for a in self.stage.op.axes)
        return several or self._is_in_loop(self.stage)

    def _is_in_loop(self, stage: Stage) -> bool:
        """Whether a thread executes the stage in a loop of another one."""
        hosts = [(self.state.stage(at.stage), at.loop) for at in self.state.chain(stage)]
        outer = [x for host, loop in hosts for x in host.loops[: host.position(loop) + 1]]
        return any(x.kind not in BLOCKS and x.kind not in THREADS for x in outer)

    def _own_part(self, axis: str, covered: Mapping[str, Expr], crossing: CrossThreadReduction) -> Stmt:
        """Reduce the elements member, member + n, member + 2n, .. of the shared axis, or as many vectors; other
        reduction axes completely."""
        op, team, vector = self.stage.op, crossing.team, closed(self.stage.adjacent)
        each, lane = Var(f"{op.name}.{axis}.each"), Var(f"{op.name}.{axis}.lane")
        inside = dict(covered)
        first = (each * team.members + team.member) * vector
        inside[axis] = first if vector is ONE else first + lane
        rest = [a for a in op.reduce_axes if a.name != axis]
        for a in rest:
            inside[a.name] = Var(f"{op.name}.{a.name}")
        values: dict[Expr, Expr] = {a.var: self._value(a.name, inside) for a in op.all_axes}
        body = crossing.combine(tuple(self._relocate(substitute(v, values)) for v in op.body))
        for a in op.axes:  # tiles may extend beyond an axis
            body = _guarded(is_inside(self._value(a.name, inside), a.extent), body)
        for form, limit in op.guards:
            body = _guarded(binary("lt", substitute(form, values), limit), body)
        extent = op.axis(axis).extent
        if vector is not ONE:
            body = For(lane, vector, vector, ForKind.UNROLL, If(binary("lt", inside[axis], extent), body), True)
        for a in reversed(rest):
            body = For(Var(f"{op.name}.{a.name}"), a.extent, a.extent, ForKind.SERIAL, body, True)
        if vector is ONE:
            body = If(binary("lt", inside[axis], extent), body)
        trips = ceildiv(extent, team.members * vector)
        return For(each, trips, trips, ForKind.SERIAL, body, True)

    def _team(self) -> ThreadTeam:
        """Return the threads that share a point of the stage: the thread loops in which its region is invariant."""
        moved = {v for a in self.stage.op.axes for v in free_vars(self.domain.regions[a.name].lo)}
        root = self.state.root(self.stage)
        domain = self.domains[root.name]
        members: Expr = Const(1, INDEX)
        teams: Expr = Const(1, INDEX)
        member: Expr = ZERO
        number: Expr = ZERO
        adjacent = True
        for loop in sorted((x for x in root.loops if x.kind in THREADS), key=lambda x: THREADS.index(x.kind)):
            var, count = domain.loop_var(loop), domain.bounds[loop.name]
            if var in moved:
                number, teams = number + var * teams, teams * count
            else:
                adjacent = adjacent and teams is Const(1, INDEX)
                member, members = member + var * members, members * count
        return ThreadTeam(imax(members, 1), member, teams, number, adjacent)

    def _thread(self) -> tuple[Expr, Expr]:
        """Return the number of threads in the block, and the number of this one (x varies fastest)."""
        root = self.state.root(self.stage)
        domain = self.domains[root.name]
        count: Expr = Const(1, INDEX)
        number: Expr = ZERO
        for kind in THREADS:
            for loop in root.loops:
                if loop.kind is kind:
                    number = number + domain.loop_var(loop) * count
                    count = count * domain.bounds[loop.name]
        return imax(count, 1), number


def _unrolled(loops: Sequence[tuple[Loop, Var, Expr]], body: Stmt) -> Stmt:
    for loop, var, bound in reversed(loops):
        body = For(var, bound, bound, ForKind.UNROLL, body, loop.reduce)
    return body


def is_inside(value: Expr, extent: Expr) -> Expr:
    """Return whether a point is within its axis; a tile that is read at an offset may begin before it."""
    return binary("lt", value, extent) & binary("ge", value, ZERO)


def choose(condition: Expr, value: Expr, other: Expr) -> Expr:
    """Return a select; with one condition if the value is a select with the same alternative, as zero padding is."""
    if isinstance(value, Select) and value.b is other:
        return select(condition & value.cond, value.a, other)
    return select(condition, value, other)


def _guarded(condition: Expr, body: Stmt) -> Stmt:
    if isinstance(condition, Const):
        return body if condition.value else Seq(())
    return If(condition, body)
