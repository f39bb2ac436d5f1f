"""Online softmax kernels: the loops of the running maximum and sum, and the order of their statements.

`online.py` has the statements, `schedule/steps/online.py` describes the transformation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Cast, Const, Expr, Load, Var, binary, ceildiv, const, imax, imin
from autosched.ir.linear import ONE, ZERO
from autosched.ir.reach import Reach, reach
from autosched.ir.stmt import THREADS, Allocate, Barrier, Buffer, For, Scope, Seq, Stmt, Store
from autosched.ir.visit import free_vars, loads, substitute
from autosched.lower.symbolic.cross_thread import ThreadTeam
from autosched.lower.symbolic.domains import part_bound
from autosched.lower.symbolic.gpu_nest import GpuNest, choose, is_inside
from autosched.lower.symbolic.nest import NestBuilder, buffers_of_stage
from autosched.lower.symbolic.online import OnlineRows, joined, rescaled, started
from autosched.schedule.stage import Loop, Stage
from autosched.schedule.steps.stages import places_in


@dataclass(frozen=True)
class OnlineNest(GpuNest):
    """The nest of a stage in such a kernel."""

    def build(self) -> Stmt:
        if self.stage.running:
            return started(buffers_of_stage(self.domain)[0], self._locals(self.stage, "init"), self.stage.op.reducer)
        return super().build()

    def _with_children(self, children: Sequence[Stage], body: Stmt) -> Stmt:
        first = children[0]
        if self._is_along(first):
            return self._with_weights(first, replace(self, stage=first).build(), body)
        joined_rows = self._joined(first)
        return super()._with_children(children, Seq((*joined_rows, body)) if joined_rows else body)

    def _leaf(self, covered: Mapping[str, Expr]) -> Stmt:
        if not self._is_along(self.stage):
            return super()._leaf(covered)
        store = NestBuilder._leaf(self, covered)
        assert isinstance(store, Store)
        return self._kept(store, covered)

    def _with_weights(self, weights: Stage, nest: Stmt, body: Stmt) -> Stmt:
        """`body` after the points that the threads have of another stage; of weights that grow, what is added up is
        brought to their level. Fills of the same loop keep its iterations apart."""
        meet = (Barrier(of_warp=True),) if weights.is_spread else ()
        if not self._running(weights):
            return Seq((nest, *meet, body))
        grown = self._grown(weights)
        loops = self._locals(self.stage, "grown")
        again = rescaled(buffers_of_stage(self.domain)[0], grown, loops)
        return Allocate(grown, Seq((nest, *meet, again, body)))

    def _is_along(self, stage: Stage) -> bool:
        """Whether threads have points of the stage that they keep, of their own or of others as well."""
        return stage.is_spread or bool(self._running(stage))

    def _running(self, weights: Stage) -> tuple[Stage, ...]:
        """The maximum and the sum that run along with a stage; none with most."""
        return tuple(s for s in self.state.stages if s.running == weights.name)

    def _grown(self, weights: Stage) -> Buffer:
        """By what the rows' maximum has grown in this iteration."""
        peak, _ = self._running(weights)
        return replace(buffers_of_stage(self.domains[peak.name])[0], name=f"{weights.name}.grown")

    def _locals(self, stage: Stage, tag: str) -> list[tuple[Var, Expr]]:
        """Loops over what a thread has of a stage."""
        regions = self.domains[stage.name].regions
        return [(Var(f"{stage.name}.{a.name}.{tag}"), regions[a.name].extent) for a in stage.op.axes]

    def _joined(self, sums: Stage) -> list[Stmt]:
        """What follows a sum whose weights have run along with it: their total is that of all lanes."""
        weights = next((s for s in self.state.attached(sums.name) if self._running(s)), None)
        if weights is None or not weights.is_spread:
            return []
        _, total = self._running(weights)
        buffer = buffers_of_stage(self.domains[total.name])[0]
        return [joined(buffer, self._locals(total, "joined"), replace(self, stage=weights)._lanes())]

    def _lanes(self) -> ThreadTeam:
        """The threads that share a row of this stage, which is spread over the threads of the kernel."""
        member: Expr = ZERO
        number: Expr = ZERO
        members: Expr = ONE
        teams: Expr = ONE
        column = self.stage.op.axes[-1].name
        for loop in sorted((x for x in self.stage.loops if x.kind in THREADS), key=lambda x: THREADS.index(x.kind)):
            var, count = self.domain.loop_var(loop), self.domain.bounds[loop.name]
            if loop.parts[0][0] == column:
                member, members = member + var * members, members * count
            else:
                number, teams = number + var * teams, teams * count
        return ThreadTeam(members, member, teams, number, True)

    def _loops(self, n: int, covered: Mapping[str, Expr], outer: tuple[Var, ...]) -> Stmt:
        nest = super()._loops(n, covered, outer)
        bound = sum(x.kind in THREADS for x in self.stage.loops)
        return self._rows().update(nest) if n == bound and self._running(self.stage) else nest

    def _update(self, n: int, covered: Mapping[str, Expr], outer: tuple[Var, ...]) -> Stmt:
        nest = super()._update(n, covered, outer)
        is_theirs = self.stage.at is not None and isinstance(nest, For) and nest.kind in THREADS
        return nest.body if is_theirs and isinstance(nest, For) else nest  # the threads are those of the kernel

    def _rows(self) -> OnlineRows:
        """What runs along with this stage, in its own loops."""
        stage, domain = self.stage, self.domain
        peak, total = self._running(stage)
        own = [x for x in stage.loops if x.kind not in THREADS]
        *rows, column = stage.op.axes
        across = [x for x in own if x.parts[0][0] == column.name]
        down = [x for x in own if x not in across]
        place = self._moved(Load(peak.op.buffers[0], tuple(domain.values[a.var] for a in rows), peak.op.dtypes[0]))
        terms, point, in_place = self._terms(peak, (*down, *across))
        assert peak.op.reducer is not None
        found, region = _reach(peak), domain.regions[column.name]
        last = region.lo + (region.extent - 1)
        is_whole = binary("lt", last, column.extent)
        if found is not None:
            is_whole = is_whole & binary("lt", last, domain.regions[rows[-1].name].lo + found.end)
        return OnlineRows(
            peak=buffers_of_stage(self.domains[peak.name])[0],
            total=buffers_of_stage(self.domains[total.name])[0],
            grown=self._grown(stage),
            terms=terms,
            rows=tuple((domain.loop_var(x), domain.bounds[x.name]) for x in down),
            columns=tuple((domain.loop_var(x), domain.bounds[x.name]) for x in across),
            place=place.indices,
            point=point,
            in_place=in_place,
            score=self._at_point(peak, peak.op.body[0] if found is None else found.value, cut=False),
            cut_score=self._at_point(peak, peak.op.body[0], cut=True),
            is_whole=is_whole,
            largest=peak.op.reducer,
            team=self._lanes(),
            is_coarse=DTYPES[stage.op.dtypes[0]].nbytes < DTYPES[total.op.dtypes[0]].nbytes,
        )

    def _terms(self, peak: Stage, loops: Sequence[Loop]) -> tuple[Buffer, tuple[Expr, ...], bool]:
        """Where a thread has the weights of its points, in registers: what they are made of, if that is there, point
        by point; and whether that is so."""
        made = [x for x in self.stage.op.loads if x.indices == tuple(a.var for a in self.stage.op.axes)]
        for load in (x for x in made if x.dtype == peak.op.dtypes[0]):
            producer = self.state.producer(load.buffer)
            at = None if producer is None else producer.at
            if producer is not None and at is not None and (at.stage == self.stage.name or at == self.stage.at):
                here = self._relocate(substitute(load, self.domain.values))
                buffers = {b.name: b for b in buffers_of_stage(self.domains[producer.name])}
                assert isinstance(here, Load)
                return buffers[load.buffer], here.indices, True
        shape = tuple(self.domain.bounds[x.name] for x in loops)
        terms = Buffer(f"{self.stage.name}.terms", shape, peak.op.dtypes[0], Scope.REGISTER)
        return terms, tuple(self.domain.loop_var(x) for x in loops), False

    def _exact_extent(self, axis: str, level: int, covered: Mapping[str, Expr], init: bool) -> Expr:
        """Blocks of columns that no row of a block of threads reaches are left out of a sum: their weights are 0."""
        weights = next((s for s in self.state.attached(self.stage.name) if self._running(s)), None)
        if weights is None or not self.stage.op.axis(axis).reduce:
            return super()._exact_extent(axis, level, covered, init)
        extent = part_bound(self.stage, self.domain.regions[axis], axis, level)  # weights beyond the axis are 0
        if level > 0:
            return extent
        peak, _ = self._running(weights)
        found, row = _reach(peak), weights.op.axes[-2]
        if found is None:
            return extent
        region = self.domains[weights.name].regions[row.name]
        root = self.state.root(self.stage)
        domain = self.domains[root.name]
        last: dict[Expr, Expr] = {
            domain.loop_var(x): domain.bounds[x.name] - 1 for x in root.loops if x.kind in THREADS
        }
        end = substitute(region.lo, last) + (region.extent - 1) + found.end  # of all threads, which meet in the loop
        return imin(extent, ceildiv(imax(end, 0), self.stage.stride(axis, level)))

    def _at_point(self, along: Stage, value: Expr, cut: bool) -> Expr:
        """`value`, which a reduction that runs along takes in, at a point of this stage: its start value beyond the
        axis of the reduction, if that may be `cut`, and beyond others where that would read memory beyond its end."""
        assert along.op.reducer is not None
        own = self.stage.op.axes
        values: dict[Expr, Expr] = {
            a.var: self.domain.values[b.var] for a, b in zip(along.op.all_axes, own, strict=True)
        }
        body = substitute(value, values)
        far = [i for x in loads(value) if not self._is_near(x.buffer) for i in x.indices]
        moving = frozenset[Var]().union(*map(free_vars, far))
        inside: Expr = Const(True, "bool")
        for a in along.op.all_axes:
            if cut if a.reduce else a.var in moving:
                inside = inside & is_inside(values[a.var], a.extent)
        return choose(inside, self._relocate(body), along.op.reducer.identity[0])

    def _moved(self, load: Load) -> Load:
        """In a stage that others run along with, their rows are where this stage's loops are."""
        moved = super()._moved(load)
        producer = self.state.producer(load.buffer)
        if producer is None or producer.running != self.stage.name or not self.stage.is_spread:
            return moved
        root = self.state.root(self.stage)
        own: dict[Expr, Expr] = {}
        [sums] = self.state.consumers(self.stage)
        for a, b in zip(places_in(root, sums)[:-1], self.stage.op.axes[:-1], strict=True):
            theirs = {x.parts: x for x in self.stage.loops}
            for loop in (x for x in root.loops if len(x.parts) == 1 and x.parts[0][0] == a.name):
                mine = theirs.get(((b.name, loop.parts[0][1]),))
                if mine is not None:
                    own[self.domains[root.name].loop_var(loop)] = self.domain.loop_var(mine)
        return Load(load.buffer, tuple(substitute(i, own) for i in moved.indices), load.dtype)

    def _kept(self, store: Store, covered: Mapping[str, Expr]) -> Store:
        """The store of a point that a thread has, which others read, zero beyond the axes; weights are what has been
        added to their total."""
        if not self._running(self.stage):
            inside: Expr = Const(True, "bool")
            for a in self.stage.op.axes:
                inside = inside & is_inside(self._value(a.name, covered), a.extent)
            return replace(store, values=tuple(choose(inside, v, const(0, v.dtype)) for v in store.values))
        rows, [value] = self._rows(), store.values
        term = rows.read(rows.terms, rows.point)
        return replace(store, values=(Cast(term, value.dtype) if value.dtype != term.dtype else term,))


def _reach(peak: Stage) -> Reach | None:
    assert peak.op.reducer is not None
    return reach(peak.op.body[0], peak.op.axes[-1].var, peak.op.reduce_axes[0].var, peak.op.reducer.identity[0])
