"""The loop nest of a stage, with extents that may contain parameters.

Each loop stops where its axis ends: a loop of stride s over an axis with `base` already covered runs
min(factor, ceil((limit - base) / s)) times, in any loop order. So every point of the domain is visited
exactly once, without guards. A reduction is initialised just outside its outermost reduction loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from autosched.ir.expr import Binary, Const, Expr, Load, Var, binary, ceildiv, imin
from autosched.ir.linear import ONE, ZERO, interval, linear
from autosched.ir.stmt import Allocate, Buffer, For, ForKind, If, Overlap, Scope, Seq, Stmt, Store
from autosched.ir.visit import bottom_up, exactly, free_vars, map_exprs, substitute
from autosched.lower.symbolic.domains import digits, part_bound, pipelined_loops
from autosched.lower.symbolic.ordered import in_order
from autosched.lower.symbolic.prefetch import Box, fetch_box, fetches, layout_of, with_fetches
from autosched.lower.symbolic.regions import Domain
from autosched.lower.symbolic.sliding import most
from autosched.schedule.stage import Loop, Stage, closed
from autosched.schedule.state import State


def buffers_of_stage(domain: Domain) -> list[Buffer]:
    stage = domain.stage
    shape = (*(p.count for p in domain.places), *(domain.regions[a.name].kept for a in stage.op.axes))
    layout = stage.layout
    if layout is not None and domain.places:
        n = len(domain.places)
        order, tiles = (*range(n), *(d + n for d in layout.order)), tuple((d + n, f) for d, f in layout.tiles)
        layout = replace(layout, order=order, tiles=tiles)
    scope = Scope.GLOBAL if stage.scope is Scope.PARAM else stage.scope  # a tuple's value that is no output
    pairs = zip(stage.op.buffers, stage.op.dtypes, strict=True)
    return [Buffer(b, shape, dtype, scope, layout, bool(domain.places)) for b, dtype in pairs]


@dataclass(frozen=True)
class NestBuilder:
    """Builds the nest of one stage together with everything computed inside it."""

    state: State
    domains: Mapping[str, Domain]
    stage: Stage

    @property
    def domain(self) -> Domain:
        return self.domains[self.stage.name]

    def build(self) -> Stmt:
        if self.stage.starts:
            return self._init_loop([x for x in self.stage.loops if not x.reduce], {})
        return self._loops(0, {}, ())

    def _first_reduce(self) -> int:
        return next((n for n, x in enumerate(self.stage.loops) if x.reduce), len(self.stage.loops))

    def _loops(self, n: int, covered: Mapping[str, Expr], outer: tuple[Var, ...]) -> Stmt:
        """The loops from number `n` on; `covered` says how far each axis has come in the outer ones."""
        if (
            n == self._first_reduce()
            and self.stage.op.reducer is not None
            and not any(x.reduce for x in self.stage.loops[:n])
        ):
            update = self._update(n, covered, outer)
            return Seq((self._init(n, covered), update))
        return self._update(n, covered, outer)

    def _update(self, n: int, covered: Mapping[str, Expr], outer: tuple[Var, ...]) -> Stmt:
        if n == len(self.stage.loops):
            return self._leaf(covered)
        loop = self.stage.loops[n]
        var = self.domain.loop_var(loop)
        # outside of the reduction every point runs: one that nothing is added to still needs its start value
        extent, inside, conditions = self._step(loop, var, covered, init=n < self._first_reduce())
        body = self._loops(n + 1, inside, (*outer, var))
        for condition in conditions:
            body = _guarded(condition, body)
        children = self.state.attached(self.stage.name, loop.name)
        slides = any(c.slides for c in children)
        for group in reversed(self._groups(() if slides else children)):
            body = self._with_children(group, body)
            for child in reversed(group):
                body = self._allocated(child, body)
        body = self._prefetch(loop, var, (*outer, var), body)
        body = with_fetches(fetches(self.state, self.domains, self.stage, loop), body)
        if slides:
            return self._slide(loop, extent, children, body)
        return For(var, extent, self.domain.bounds[loop.name], loop.kind, body, loop.reduce, self._overlap(loop))

    def _allocated(self, child: Stage, body: Stmt) -> Stmt:
        for buffer in buffers_of_stage(self.domains[child.name]):
            body = Allocate(buffer, body)
        return body

    def _slide(self, loop: Loop, extent: Expr, children: Sequence[Stage], body: Stmt) -> Stmt:
        """The loop with its `children`, some of which slide along it, each from as many iterations before `body` as
        it takes to compute the rows that the first one reads. What slides is allocated around the loop: it is kept from
        one iteration to the next."""
        var = self.domain.loop_var(loop)
        ahead = most([self.domains[c.name].ahead for c in children])
        first: dict[Expr, Expr] = {var: var - ahead}

        def since(iteration: Expr, stmt: Stmt) -> Stmt:
            moved = map_exprs(stmt, lambda e: substitute(e, first))
            return moved if iteration is ahead else If(binary("ge", var, ahead - iteration), moved)

        body = since(ZERO, body)
        for child in reversed(children):
            body = Seq((since(self.domains[child.name].ahead, self._nest_of(child)), body))
            body = body if child.slides else self._allocated(child, body)
        body = For(var, extent + ahead, self.domain.bounds[loop.name] + ahead, loop.kind, body)
        for child in (c for c in children if c.slides):
            body = self._allocated(child, body)
        return body

    def _overlap(self, loop: Loop) -> Overlap | None:
        pipeline = self.stage.pipeline
        if pipeline is None or loop not in pipelined_loops(self.state, self.stage):
            return None
        return Overlap(closed(pipeline.stages), pipeline.asynchronous, pipeline.by_tiles, pipeline.multiprocessors)

    def _nest_of(self, child: Stage) -> Stmt:
        """The nest of a stage that is computed here. One of a pipeline whose regions are clipped at ends has two:
        loops over whole regions have constant extents."""
        domain, builder = self.domains[child.name], replace(self, stage=child)
        stages = (child, *self.state.consumers(child))
        has_inner = any(self.state.attached(child.name, x.name) for x in child.loops)
        if has_inner or not all(s.op.is_elementwise for s in stages):
            return builder.build()
        found = {name: whole for name, region in domain.regions.items() if (whole := region.whole) is not None}
        if not found:
            return builder.build()
        regions = {**domain.regions, **{name: region for name, (_, region) in found.items()}}
        full = replace(builder, domains={**self.domains, child.name: replace(domain, regions=regions)}).build()
        is_whole = reduce(lambda a, b: binary("and", a, b), (c for c, _ in found.values()))
        clipped = builder.build()
        return clipped if isinstance(is_whole, Const) and not is_whole.value else If(is_whole, full, clipped)

    def _groups(self, children: Sequence[Stage]) -> list[list[Stage]]:
        """Stages that are computed here, producers first; those in one group are computed side by side."""
        return [[child] for child in children]

    def _with_children(self, children: Sequence[Stage], body: Stmt) -> Stmt:
        """`body` after the nests of a group of stages that are computed here."""
        return Seq((*map(self._nest_of, children), body))

    def _init(self, n: int, covered: Mapping[str, Expr]) -> Stmt:
        """The reduction's start values, over the spatial loops from number `n` on."""
        rest = [x for x in self.stage.loops[n:] if not x.reduce]
        if not rest or n == len(self.stage.loops):
            return self._init_leaf(covered) if not rest else self._init_loop(rest, covered)
        return self._init_loop(rest, covered)

    def _init_loop(self, rest: list[Loop], covered: Mapping[str, Expr]) -> Stmt:
        if not rest:
            return self._init_leaf(covered)
        loop, var = rest[0], Var(f"{self.stage.name}.{rest[0].name}.init")
        extent, inside, conditions = self._step(loop, var, covered, init=True)
        body = self._init_loop(rest[1:], inside)
        for condition in conditions:
            body = If(condition, body)
        return For(var, extent, self.domain.bounds[loop.name], loop.kind, body)

    def _step(
        self, loop: Loop, var: Var, covered: Mapping[str, Expr], init: bool
    ) -> tuple[Expr, dict[str, Expr], list[Expr]]:
        """Extent of the loop, coverage inside it, and conditions that only a fused loop needs."""
        inside = dict(covered)
        conditions: list[Expr] = []
        extent: Expr = self.domain.bounds[loop.name]
        for axis, level, digit in digits(self.stage, self.domain.regions, loop, var):
            exact = self._exact_extent(axis, level, inside, init)
            if len(loop.parts) == 1:
                extent = exact
            elif exact is not part_bound(self.stage, self.domain.regions[axis], axis, level):
                conditions.append(binary("lt", digit, exact))
            inside[axis] = inside.get(axis, ZERO) + digit * self.stage.stride(axis, level)
        return extent, inside, conditions

    def _exact_extent(self, axis: str, level: int, covered: Mapping[str, Expr], init: bool) -> Expr:
        stage = self.stage
        stride = stage.stride(axis, level)
        extent = ceildiv(self.domain.regions[axis].limit - covered.get(axis, ZERO), stride)
        if level > 0:
            extent = imin(closed(stage.factors(axis)[level - 1]), extent)
        var = stage.op.axis(axis).var
        reduce_vars = {a.var for a in stage.op.reduce_axes}
        for form, limit in stage.op.guards:
            mentioned = free_vars(form)
            if var not in mentioned or (init and mentioned & reduce_vars) or self._is_settled(axis, mentioned):
                continue
            base = substitute(form, {a.var: self._value(a.name, covered) for a in stage.op.all_axes})
            step = linear(form).coefficient(var) * stride
            extent = imin(extent, ceildiv(limit - base, step))
        return extent

    def _is_settled(self, axis: str, guarded: frozenset[Var]) -> bool:
        """Whether the axis is a single point here, so that loops of the reduction end where the guard says: of a last
        block that is shorter. Asked again inside of them, it would be in every step."""
        regions = self.domain.regions
        steps = [a for a in self.stage.op.reduce_axes if a.var in guarded and a.name != axis]
        return _at_most_one(regions[axis].extent) and not all(_at_most_one(regions[a.name].extent) for a in steps)

    def _value(self, axis: str, covered: Mapping[str, Expr]) -> Expr:
        region = self.domain.regions[axis]
        return region.value(region.visited(covered.get(axis, ZERO)))

    def _leaf(self, covered: Mapping[str, Expr]) -> Stmt:
        op = self.stage.op
        values: dict[Expr, Expr] = {a.var: self._value(a.name, covered) for a in op.all_axes}
        body = tuple(self._relocate(substitute(v, values)) for v in op.body)
        ordered = in_order(self.stage)
        reducer = op.reducer if ordered is None else ordered.in_order()
        return Store(op.buffers, self._local(covered), body, reducer, op.name, non_temporal=self.stage.non_temporal)

    def _init_leaf(self, covered: Mapping[str, Expr]) -> Stmt:
        op = self.stage.op
        assert op.reducer is not None
        start: tuple[Expr, ...] = op.reducer.identity
        ordered = in_order(self.stage)
        if ordered is not None:  # the first place, which all others come after
            values: dict[Expr, Expr] = {a.var: self._value(a.name, covered) for a in op.all_axes}
            first = substitute(op.body[ordered.place], values)
            start = tuple(first if n == ordered.place else c for n, c in enumerate(start))
        return Store(op.buffers, self._local(covered), start, None, f"{op.name}.init")

    def _local(self, covered: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """Where the point is in the stage's buffer. One at the root has all points, though others may compute some;
        what goes through shared memory first is moved when it is brought out."""
        axes, regions = self.stage.op.axes, self.domain.regions
        is_whole = self.stage.part is not None and not self.stage.staged
        visited = [(regions[a.name], regions[a.name].visited(covered.get(a.name, ZERO))) for a in axes]
        return tuple(region.stored(v) + (region.lo if is_whole else ZERO) for region, v in visited)

    def _relocate(self, value: Expr) -> Expr:
        """Reads of private buffers become relative to the buffer's origin; what may be less precise is exact, but for
        what an instruction makes of it."""
        return bottom_up(exactly(value), lambda e: self._moved(e) if isinstance(e, Load) else e)

    def _moved(self, load: Load) -> Load:
        producer = self.state.producer(load.buffer)
        if producer is None or producer.at is None:
            return load
        domain = self.domains[producer.name]
        regions = (domain.regions[a.name] for a in producer.op.axes)
        indices = tuple(r.local(i) for i, r in zip(load.indices, regions, strict=True))
        return Load(load.buffer, (*(p.index for p in domain.places), *indices), load.dtype)

    def _prefetch(self, loop: Loop, var: Var, outer: tuple[Var, ...], body: Stmt) -> Stmt:
        hints = [h for h in self.stage.prefetches if h.loop == loop.name and self._exists_outside(h.buffer, loop)]
        if not hints or loop.kind is ForKind.VECTORIZE:  # lanes ask for nothing of their own
            return body
        loops = {self.domain.loop_var(x): self.domain.bounds[x.name] for x in self.stage.loops}
        ranging = {v: bound for v, bound in loops.items() if v not in outer}
        stmts: list[Stmt] = []
        for hint in hints:
            values: dict[Expr, Expr] = dict(self.domain.values)
            for load in self.stage.op.loads_from(hint.buffer):
                moved = self._moved(Load(load.buffer, tuple(substitute(i, values) for i in load.indices), load.dtype))
                ahead: dict[Expr, Expr] = {var: var + hint.distance}
                boxes = [interval(substitute(i, ahead), ranging) for i in moved.indices]
                box = Box(load.buffer, load.dtype, boxes, layout=layout_of(self.state, load.buffer))
                stmts.append(fetch_box(box, f"{self.stage.name}.{loop.name}.later{len(stmts)}", hint.level))
        return Seq((*stmts, body))

    def _exists_outside(self, buffer: str, loop: Loop) -> bool:
        """Whether the buffer is there before an iteration of `loop` starts: not computed in it or further inside."""
        producer = self.state.producer(buffer)
        if producer is None or producer.at is None or producer.at.stage != self.stage.name:
            return True
        return self.stage.position(producer.at.loop) < self.stage.position(loop.name)


def _at_most_one(extent: Expr) -> bool:
    return extent is ONE or (isinstance(extent, Binary) and extent.op == "min" and ONE in (extent.a, extent.b))


def _guarded(condition: Expr, body: Stmt) -> Stmt:
    """`body` where the condition holds; parallel loops stay directly inside one another."""
    if isinstance(body, For) and body.kind is ForKind.PARALLEL:
        return replace(body, body=_guarded(condition, body.body))
    return If(condition, body)
