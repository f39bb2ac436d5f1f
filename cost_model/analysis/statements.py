"""Statement analysis of a symbolic loop nest: the closed forms behind features, analytic latency and legality.

    analyse(func, geometry) -> Analysis(statements, allocations, ..)

Every innermost `Store` becomes a `Statement`: its loops, trip counts, operations and accesses. Quantities are
expressions over the parameters of the sketch; nothing is evaluated here.

Working sets. The body of a loop touches, in one iteration, all buffers of all statements in it: their lines are
added up, with those that they make useless (`Access.resident`; `Access.settled` in a cache of more
sets than the first level's), the largest footprint counting where several statements touch one buffer.

Sketches are combinations of ways to compute each stage: most of their nests are nests of others, each looked at once.
All that it has to do with other nests is what the whole function touches.

On a GPU the threads of a block run in step: each executes the loops that it has for itself, and every step touches
what all threads touch together. So the loops of a statement stand in the order of time, blocks (x fastest, as they
are started), a thread's own loops, threads (x fastest), whatever their order in the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, TypeVar

from autosched.ir.closed_forms.arithmetic import (
    ONE,
    ZERO,
    add,
    divide,
    is_one,
    maximum_of,
    multiply,
    product_of,
    subtract,
    sum_of,
)
from autosched.ir.expr import Binary, Const, Expr, Var, ceildiv, product
from autosched.ir.instructions.tiles import as_loops
from autosched.ir.stmt import (
    THREADS,
    Allocate,
    Barrier,
    Buffer,
    For,
    ForKind,
    Func,
    If,
    Prefetch,
    Scope,
    Seq,
    Shuffle,
    Stmt,
    Store,
    TileCopy,
    changed,
    walk,
)
from autosched.ir.visit import exprs_of, is_closed, loads
from autosched.target import Target
from cost_model.analysis.access import Access, Free, Geometry, Moving, Widths, make_access, same_but_constants
from cost_model.analysis.border_tiles import is_clipped, share_of_whole_tiles
from cost_model.analysis.operations import (
    Operations,
    border_loads,
    edge_loads,
    hint_instructions,
    in_steady_state,
    loaded,
    operations,
)
from cost_model.analysis.padding import Padding, padding_of
from cost_model.analysis.trips import AnalysedLoop, beginning_at, in_time, runs_once_by_data, share_of, trips_of
from cost_model.cpu.rolling import RollingTile, TileLoop, rolling_tile

USUAL = Geometry()
KNOWN_NESTS = 1 << 8  # that are remembered; the 48 sketches of a graph with many stages have 30 to 80
A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Allocation:
    buffer: Buffer
    depth: int  # loops around it
    loops: tuple[AnalysedLoop, ...]
    nest: int = -1  # number of the nest at the root that it is in; -1: around all nests

    @property
    def elements(self) -> Expr:
        return product(list(self.buffer.shape))

    @property
    def bytes(self) -> Expr:
        return self.elements * self.buffer.itemsize


@dataclass(frozen=True, eq=False)
class Statement:
    """A `Store` in its loops, outermost first. `working_set[d]`: bytes that one iteration of loop d - 1 touches."""

    stage: str
    loops: tuple[AnalysedLoop, ...]
    weight: Expr  # the share of iterations in which the conditions around it hold, real
    ops: Operations
    itemsize: int
    updates: bool  # combines into what is there
    accesses: tuple[Access, ...]  # what is written first
    alive: tuple[Buffer, ...]  # buffers allocated around it in its nest
    working_set: tuple[Expr, ...]
    settled_set: tuple[Expr, ...]  # the same in caches larger than the first level
    paged_set: tuple[Expr, ...]  # pages; none where nobody counts them
    store: Store
    nest: int = 0  # number of the nest at the root that it is in
    border: Expr = ZERO  # the share of register tiles in which a border condition has to be tested, real
    rolling: RollingTile | None = None  # of the register tile that it is in, if its outputs may pass by
    refilled: int = 0  # loops around it and what fills a buffer that it reads at neighbouring places, 0: none is
    asking: Expr = ZERO  # instructions beside each innermost block that ask for lines ahead of time, real
    _answers: dict[object, Any] = field(default_factory=dict)

    def beside(self, nest: int, near: Expr, far: Expr, pages: Expr) -> Statement:
        """The statement in a function of several nests, which touches so many bytes and pages."""
        sets = {"working_set": near, "settled_set": far, "paged_set": pages}
        return changed(self, nest=nest, **{name: (whole, *getattr(self, name)[1:]) for name, whole in sets.items()})

    def alone(self, question: Callable[[Statement, A], R], about: A) -> R:
        """The answer to what has nothing to do with other nests; remembered, whatever function the statement is in."""
        key = question, about
        if key not in self._answers:
            self._answers[key] = question(self, about)
        found: R = self._answers[key]
        return found

    def sets(self, level: int) -> tuple[Expr, ...]:
        """The working sets as the cache of a level, 0 to 2, sees them."""
        return self.settled_set if level else self.working_set

    @property
    def depth(self) -> int:
        return len(self.loops)

    @property
    def accumulators(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.alive if b.scope is Scope.REGISTER)

    def iterations(self, depth: int) -> Expr:
        """How often the body of the outer `depth` loops runs, real."""
        return self.runs[depth]

    @cached_property
    def runs(self) -> tuple[Expr, ...]:
        """`iterations` of each depth."""
        return tuple(accumulate((loop.trips for loop in self.loops), multiply, initial=ONE))

    @cached_property
    def executions(self) -> Expr:
        return multiply(self.iterations(self.depth), self.weight)

    @property
    def block_depth(self) -> int:
        """The number of loops around the innermost block: from there on all loops are unrolled, vectorised or run once
        by data."""
        place = self.depth
        while place > 0 and self.loops[place - 1].is_in_block:
            place -= 1
        return place

    @property
    def sweep(self) -> int:
        """The place of the innermost loop that goes from one tile to the next: inside are reductions and the block."""
        place = self.block_depth
        while place > 0 and self.loops[place - 1].reduce:
            place -= 1
        return max(0, place - 1)

    @property
    def is_parallel(self) -> bool:
        return any(x.kind is ForKind.PARALLEL for x in self.loops)

    @property
    def vector_loop(self) -> int | None:
        return next((i for i in range(self.depth) if self.loops[i].kind is ForKind.VECTORIZE), None)

    @property
    def write(self) -> Access:
        return self.accesses[0]

    def accumulating(self, lanes: int) -> Expr:
        """Vectors of the accumulators, integer: lanes lie along the dimension stored last."""
        result: Expr = Const(0)
        for buffer in self.accumulators:
            shape = [buffer.shape[d] for d in buffer.layout.order] if buffer.layout else list(buffer.shape)
            result = result + (product(shape[:-1]) * ceildiv(shape[-1], lanes) if shape else Const(1))
        return result

    def registers(self, lanes: int, target: Target) -> Expr:
        """Vector registers that the accumulators take at a time, integer."""
        vectors = self.accumulating(lanes)
        return vectors if self.rolling is None else self.rolling.registers(vectors, target)


@dataclass(frozen=True, eq=False)
class Synchronisation:
    """A barrier in its loops, or a shuffle of `values` elements."""

    loops: tuple[AnalysedLoop, ...]
    weight: Expr
    values: int = 0


@dataclass(frozen=True, eq=False)
class Analysis:
    statements: tuple[Statement, ...]
    allocations: tuple[Allocation, ...]
    parameter_bytes: int = 0  # inputs and outputs
    nests: tuple[Nest, ...] = ()  # each as if it were alone


def analyse(func: Func, geometry: Geometry = USUAL) -> Analysis:
    """The closed forms of `func`, symbolic or concrete."""
    body, around = func.body, list[Buffer]()
    while isinstance(body, Allocate):
        around.append(body.buffer)
        body = body.body
    outside = {b.name: b for b in (*func.params, *func.prepared, *around)}
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    nests = [_nest(stmt, _used(stmt, outside), geometry) for stmt in stmts]
    touched = [_working_set([t for n in nests for t in n.touched[kind].items()]) for kind in range(3)]
    statements = tuple(s.beside(number, *touched) for number, n in enumerate(nests) for s in n.statements)
    allocations = [Allocation(buffer, 0, ()) for buffer in around]
    allocations += [replace(a, nest=number) for number, n in enumerate(nests) for a in n.allocations]
    parameters = sum(b.itemsize * math.prod(int(e.value) for e in b.shape if isinstance(e, Const)) for b in func.params)
    return Analysis(statements, tuple(allocations), parameters, tuple(nests))


def _used(stmt: Stmt, buffers: Mapping[str, Buffer]) -> tuple[Buffer, ...]:
    """The buffers from outside of a nest that it touches."""
    names = dict.fromkeys(load.buffer for s in walk(stmt) for e in exprs_of(s) for load in loads(e))
    for s in walk(stmt):
        if isinstance(s, Store):
            names.update(dict.fromkeys(s.buffers))
        elif isinstance(s, (Prefetch, TileCopy)):
            names[s.buffer if isinstance(s, Prefetch) else s.outside] = None
    return tuple(buffers[name] for name in sorted(names) if name in buffers)


@dataclass(frozen=True, eq=False)
class Nest:
    """A nest at the root. `touched`: bytes of each buffer in a first level cache, in a larger one, and its pages, by
    access; `head`: its outermost loop, which says how it is launched."""

    statements: tuple[Statement, ...]
    touched: tuple[Mapping[str, list[Expr]], ...]
    allocations: tuple[Allocation, ...]
    barriers: tuple[Synchronisation, ...]
    shuffles: tuple[Synchronisation, ...]
    head: For | None


@lru_cache(maxsize=KNOWN_NESTS)
def _nest(stmt: Stmt, outside: tuple[Buffer, ...], geometry: Geometry) -> Nest:
    """The closed forms of one nest that touches these buffers from outside."""
    inside = (s.buffer for s in walk(stmt) if isinstance(s, Allocate))
    walked = _Walk({b.name: b for b in (*outside, *inside)}, geometry)
    walked.visit(stmt, (), ONE, {})
    inner = _touched(walked.found, lambda a: a.resident, geometry.line_bytes)
    larger = inner if geometry.larger == 1.0 else _touched(walked.found, lambda a: a.settled, geometry.line_bytes)
    pages = _touched(walked.found, lambda a: a.pages, 1) if geometry.counts_pages else {}
    touched = inner, larger, pages
    sets = [{key: _working_set(t.items()) for key, t in tables.items()} for tables in touched]
    tiles = {_tile_of(found): _rolling(found) for found in walked.found if found.store.reducer is not None}
    statements = []
    for found in walked.found:
        keys = [0, *(loop.key for loop in found.loops)]
        near, far, paged = (tuple(table.get(key, ZERO) for key in keys) for table in sets)
        statement = _statement(found, near, far, paged)
        tile, asking = tiles.get(_tile_of(found)), _asking(statement, walked.hints)
        refilled = max((_filled_beside(found, a, walked.found) for a in found.accesses if a.columns > 1), default=0)
        statements.append(replace(statement, rolling=tile, refilled=refilled, asking=asking))
    met = tuple(walked.allocations), tuple(walked.barriers), tuple(walked.shuffles)
    head = stmt if isinstance(stmt, For) else None
    return Nest(tuple(statements), tuple(tables.get(0, {}) for tables in touched), *met, head)


@dataclass(frozen=True, eq=False)
class _Found:
    """A statement in the order of traversal, before working sets are computed."""

    store: Store
    loops: tuple[AnalysedLoop, ...]
    weight: Expr
    accesses: tuple[Access, ...]
    alive: tuple[Buffer, ...]
    tile: int = 0  # loops around the register tile that it is in, if it is in one


@dataclass
class _Walk:
    buffers: dict[str, Buffer]
    geometry: Geometry
    found: list[_Found] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    barriers: list[Synchronisation] = field(default_factory=list)
    shuffles: list[Synchronisation] = field(default_factory=list)
    hints: list[tuple[tuple[AnalysedLoop, ...], Prefetch]] = field(default_factory=list)
    n_loops: int = 0

    def visit(self, stmt: Stmt, loops: tuple[AnalysedLoop, ...], weight: Expr, scopes: dict[str, int]) -> None:
        """`scopes`: buffer name -> number of loops around its allocation."""
        match stmt:
            case For() if is_one(stmt.bound):
                self.visit(stmt.body, loops, weight, scopes)
            case For():
                self.n_loops += 1
                by_data = runs_once_by_data(stmt, loops)
                mean, last, share = (ONE, ONE, ZERO) if by_data else trips_of(stmt, loops)
                head = self.n_loops, stmt.var, stmt.bound, mean, stmt.kind, stmt.reduce, stmt.overlap
                loop = AnalysedLoop(*head, last, share, by_data, is_clipped(stmt.extent, loops))
                self.visit(stmt.body, (*loops, loop), weight, scopes)
            case Seq(stmts=stmts):
                for child in stmts:
                    self.visit(child, loops, weight, scopes)
            case If(cond=Binary(op="ge", a=Var() as var, b=first), then=then, otherwise=None) if is_closed(first):
                self.visit(then, beginning_at(loops, var, first), weight, scopes)
            case If(cond=cond, then=then, otherwise=otherwise):
                on_gpu = any(loop.kind in THREADS for loop in loops)
                share = (share_of if otherwise is None or on_gpu else share_of_whole_tiles)(cond, loops)
                self.visit(then, loops, multiply(weight, share), scopes)
                if otherwise is not None:
                    self.visit(otherwise, loops, multiply(weight, subtract(1.0, share)), scopes)
            case Allocate(buffer=buffer, body=body):
                self.allocations.append(Allocation(buffer, len(loops), loops))
                self.visit(body, loops, weight, {**scopes, buffer.name: len(loops)})
            case Barrier(of_warp=of_warp):
                self.barriers += [] if of_warp else [Synchronisation(loops, weight)]
            case Shuffle(values=values):
                self.shuffles.append(Synchronisation(loops, weight, values=len(values)))
            case Prefetch():
                self.hints.append((loops, stmt))
            case TileCopy():
                self.visit(as_loops(stmt, self.buffers[stmt.outside]), loops, weight, scopes)
            case Store():
                self.found.append(self._store(in_steady_state(stmt), loops, weight, scopes))

    def _store(self, store: Store, loops: tuple[AnalysedLoop, ...], weight: Expr, scopes: dict[str, int]) -> _Found:
        alive = tuple(self.buffers[name] for name in scopes)
        accesses = tuple(self._accesses(store, loops, scopes))
        tile = min((n for b, n in scopes.items() if self.buffers[b].scope is Scope.REGISTER), default=0)
        return _Found(store, in_time(loops), weight, accesses, alive, tile)

    def _accesses(self, store: Store, loops: tuple[AnalysedLoop, ...], scopes: dict[str, int]) -> Iterator[Access]:
        """Written buffers first, then the read ones in the order of the text; equal up to constants are one access."""
        free = tuple(Free(loop.var, loop.bound) for loop in in_time(loops))
        threads = frozenset(loop.var for loop in loops if loop.kind in THREADS)
        views: dict[frozenset[Var], Moving] = {}

        def access(name: str, kind: str, positions: Sequence[tuple[Expr, ...]]) -> Access:
            inside = frozenset(loop.var for loop in loops[scopes.get(name, 0) :])
            if self.buffers[name].scope in (Scope.SHARED, Scope.WARP):
                inside |= threads
            view = views.setdefault(inside, Moving(free, inside))
            return make_access(self.buffers[name], kind, tuple(positions), view, self.geometry)

        read: dict[tuple[str, tuple[Expr, ...]], None] = {}
        for value in store.values:
            read.update(dict.fromkeys((load.buffer, load.indices) for load in loaded(value)))
        for load in border_loads(store, self.buffers) if threads else edge_loads(store):
            read.pop((load.buffer, load.indices), None)
        for name in store.buffers:
            updated = store.reducer is not None or (name, store.indices) in read
            found = access(name, "update" if updated else "write", [store.indices])
            yield replace(found, non_temporal=True) if store.non_temporal else found
        groups: list[tuple[str, list[tuple[Expr, ...]]]] = []
        for name, indices in read:
            if name in store.buffers and indices == store.indices:
                continue
            same = next((g for n, g in groups if n == name and same_but_constants(g[0], indices)), None)
            if same is None:
                groups.append((name, [indices]))
            else:
                same.append(indices)
        for name, positions in groups:
            yield access(name, "read", positions)


def _statement(found: _Found, near: Widths, far: Widths, paged: Widths) -> Statement:
    store, lanes = found.store, _lanes(found)
    padding = Padding(ZERO, ONE) if lanes != frozenset() else padding_of(store, found.loops, found.tile)
    return Statement(
        store.stage or store.buffers[0],
        found.loops,
        multiply(found.weight, padding.inside),
        operations(store, lanes, frozenset(x.var for x in found.loops if x.kind is ForKind.VECTORIZE)),
        found.accesses[0].buffer.itemsize,
        store.reducer is not None or found.accesses[0].kind == "update",
        found.accesses,
        found.alive,
        near,
        far,
        paged,
        store,
        border=padding.tested,
    )


def _asking(statement: Statement, hints: list[tuple[tuple[AnalysedLoop, ...], Prefetch]]) -> Expr:
    """Instructions of hints beside each block of the first statement in the loops that ask; they are taken away."""
    inner, found = statement.loops[: statement.block_depth], ZERO
    for loops, hint in [*hints]:
        around = [x for x in loops if x.kind is not ForKind.UNROLL]
        if around and around[-1] in inner:
            hints.remove((loops, hint))
            copies = {x.var: x.trips for x in loops if x not in around}
            each, shared = hint_instructions(hint, around[-1].var, frozenset(copies))
            asked = add(multiply(product_of(copies.values()), each), shared)
            found = add(found, divide(asked, product_of(x.trips for x in inner[inner.index(around[-1]) + 1 :])))
    return found


def _filled_beside(found: _Found, access: Access, others: Sequence[_Found]) -> int:
    """The most loops that a statement shares with another one that writes the buffer of an access."""
    if access.in_registers:
        return 0
    keys = [loop.key for loop in found.loops]
    filling = (other for other in others if other is not found and access.buffer.name in other.store.buffers)
    return max((_common(keys, [loop.key for loop in other.loops]) for other in filling), default=0)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many elements two sequences begin with in common."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _tile_of(found: _Found) -> tuple[object, ...]:
    """Properties that the statements of one register tile share."""
    return tuple(b.name for b in found.alive if b.scope is Scope.REGISTER)


def _rolling(found: _Found) -> RollingTile | None:
    """The register tile of an update, if it has one accumulator for each output and its outputs may pass by."""
    write, *reads = found.accesses
    if not found.tile or write.buffer.scope is not Scope.REGISTER or len(found.store.buffers) > 1:
        return None
    places = range(found.tile, len(found.loops))
    loops = [TileLoop(n, found.loops[n].bound, found.loops[n].kind, write.moves(n)) for n in places]
    return rolling_tile(loops, [r for r in reads if r.count == 1 and not r.in_registers])


def _lanes(found: _Found) -> frozenset[Var] | None:
    """The variables that border conditions may depend on lane by lane; None on a GPU, where every thread tests them."""
    if any(loop.kind in THREADS for loop in found.loops):
        return None
    in_tile = any(b.scope is Scope.REGISTER for b in found.alive)
    return frozenset() if in_tile else frozenset(x.var for x in found.loops if x.kind is ForKind.VECTORIZE)


def _touched(
    statements: Sequence[_Found], counted: Callable[[Access], Widths], size: int
) -> dict[int, dict[str, list[Expr]]]:
    """Loop key (0: the whole nest) -> of each buffer but registers, what each access touches in one iteration of the
    loop's body, real: lines of so many bytes, or pages."""
    touched: dict[int, dict[str, list[Expr]]] = {}
    for found in statements:
        keys = [0, *(loop.key for loop in found.loops)]
        for depth, key in enumerate(keys):
            table = touched.setdefault(key, {})
            for access in found.accesses:
                if access.buffer.scope not in (Scope.REGISTER, Scope.SHARED, Scope.WARP):
                    table.setdefault(access.buffer.name, []).append(multiply(counted(access)[depth], size))
    return touched


def _working_set(touched: Iterable[tuple[str, list[Expr]]]) -> Expr:
    """Bytes of all buffers together, real."""
    sizes: dict[str, list[Expr]] = {}
    for name, found in touched:
        sizes.setdefault(name, []).extend(found)
    return sum_of(map(maximum_of, sizes.values()))
