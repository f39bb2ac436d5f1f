"""The IR verifier: checks that a function is well formed, between passes and before interpretation.

A violation is a bug of the pass that made the function, never the user's fault, so `IRError` is not
an `AutoschedError`. All violations are listed, each with the loops around it and its statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Const, Expr, Load, Param, Var
from autosched.ir.instructions.atomics import atomic_operation
from autosched.ir.instructions.matrices import MATRICES
from autosched.ir.printer import expr_text, headline
from autosched.ir.recurrence import order_problem
from autosched.ir.stmt import (
    BLOCKS,
    THREADS,
    Allocate,
    Barrier,
    Buffer,
    Commit,
    For,
    ForKind,
    Func,
    If,
    Prefetch,
    Reducer,
    Scope,
    Seq,
    Shuffle,
    Stmt,
    Store,
    TileCopy,
    Wait,
)
from autosched.ir.types import type_problem
from autosched.ir.visit import moved, subexpressions

PRIVATE = frozenset({Scope.LOCAL, Scope.REGISTER})
BOUND = frozenset({*BLOCKS, *THREADS})
LEAST_COPIED = 4  # bytes, asynchronously


class IRError(AssertionError):
    """A malformed function: a bug of whatever built it."""


def verify(func: Func, *, concrete: bool = False) -> None:
    """Raise `IRError` with every violation in `func`; with `concrete`, parameters are violations too."""
    checker = _Checker(concrete)
    checker.func(func)
    problems = list(dict.fromkeys(checker.problems))
    if problems:
        noun = "violation" if len(problems) == 1 else "violations"
        raise IRError("\n  - ".join([f"{func.name}: {len(problems)} {noun}", *problems]))


@dataclass(frozen=True)
class _Place:
    """What surrounds a statement. `outer_private`: thread-private buffers from outside the innermost parallel loop."""

    loops: Mapping[str, For] = field(default_factory=dict)
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    outer_private: frozenset[str] = frozenset()
    conditions: tuple[Expr, ...] = ()

    def inside(self, *kinds: ForKind) -> bool:
        return any(loop.kind in kinds for loop in self.loops.values())

    @property
    def path(self) -> str:
        return " / ".join(f"for {name}" for name in self.loops)


class _Checker:
    def __init__(self, concrete: bool) -> None:
        self.concrete = concrete
        self.problems: list[str] = []
        self.known: dict[str, Buffer] = {}
        self.inputs: frozenset[str] = frozenset()
        self.stored: set[str] = set()
        self.well_typed: set[Expr] = set()

    def func(self, func: Func) -> None:
        place = _Place(buffers={b.name: b for b in func.params})
        if len(place.buffers) < len(func.params):
            self.problems.append("two parameters have the same name")
        if not 1 <= func.n_outputs <= len(func.params):
            self.problems.append(f"{func.n_outputs} outputs among {len(func.params)} parameters")
        outputs = [b.name for b in func.params[len(func.params) - func.n_outputs :]]
        self.inputs = frozenset(b.name for b in func.params) - set(outputs)
        for buffer in func.params:
            if buffer.scope is not Scope.PARAM:
                self.problems.append(f"parameter {buffer.name} has scope {buffer.scope.value}")
            self.buffer(buffer, f"parameter {buffer.name}")
        if func.prepare is not None:
            place = replace(place, buffers={**place.buffers, **{b.name: b for b in func.prepared}})
            self.stmt(func.prepare, place, None)
            self.inputs |= {b.name for b in func.prepared}  # from here on
        self.stmt(func.body, place, None)
        for name in outputs:
            if name not in self.stored:
                self.problems.append(f"output {name} is never stored")

    def stmt(self, s: Stmt, place: _Place, parent: Stmt | None) -> None:
        match s:
            case For():
                self.loop(s, place, parent)
            case Seq(stmts):
                for stmt in stmts:
                    self.stmt(stmt, place, s)
            case If(cond, then, otherwise):
                if cond.dtype != "bool":
                    self.report(s, place, f"the condition is {cond.dtype}, not bool")
                self.expr(cond, s, place)
                branch = replace(place, conditions=(*place.conditions, cond))
                self.stmt(then, branch, s)
                if otherwise is not None:
                    self.stmt(otherwise, branch, s)
            case Allocate(buffer, body):
                self.allocation(s, place)
                self.stmt(body, replace(place, buffers={**place.buffers, buffer.name: buffer}), s)
            case Store():
                self.store(s, place)
            case Prefetch(name, indices):
                self.access(name, indices, None, s, place)
                for index in indices:
                    self.expr(index, s, place)
            case Barrier():
                self.together(s, place, "a barrier")
            case Shuffle():
                self.together(s, place, "a shuffle")
                self.shuffle(s, place)
            case Commit() | Wait():
                self.waiting(s, place)
            case TileCopy():
                self.tile(s, place)
            case _:
                self.problems.append(f"{type(s).__name__} is not a statement")

    def loop(self, s: For, place: _Place, parent: Stmt | None) -> None:
        name = s.var.name
        if name in place.loops:
            self.report(s, place, f"the loop variable {name} is already bound by an enclosing loop")
        if s.var.dtype != INDEX:
            self.report(s, place, f"the loop variable {name} is {s.var.dtype}, not {INDEX}")
        self.residents(s, place)
        for what, e in _numbers(s):
            if e.dtype != INDEX:
                self.report(s, place, f"the {what} is {e.dtype}, not {INDEX}")
            self.expr(e, s, place)
            if any(isinstance(node, Load) for node in subexpressions(e)):
                self.report(s, place, f"the {what} depends on the contents of a tensor")
        if any(isinstance(node, Var) for node in subexpressions(s.bound)):
            self.report(s, place, f"the bound {expr_text(s.bound)} depends on a loop variable")
        if isinstance(s.bound, Const):
            if isinstance(s.extent, Const) and s.extent.value > s.bound.value:
                self.report(s, place, f"the extent {s.extent.value} exceeds the bound {s.bound.value}")
        elif self.concrete:
            self.report(s, place, f"the bound {expr_text(s.bound)} is not a constant")
        if place.inside(ForKind.VECTORIZE):
            self.report(s, place, "a loop stands inside a vectorized loop")
        outer_private = place.outer_private
        if s.kind in BOUND:
            self.bound(s, place, parent)
        elif s.kind is ForKind.PARALLEL:
            self.parallel(s, place, parent)
            if place.inside(*BOUND):
                self.report(s, place, "a loop is parallel inside loops of blocks and threads")
        if s.kind is ForKind.PARALLEL or s.kind in BOUND:
            outer_private |= {b.name for b in place.buffers.values() if b.scope in PRIVATE}
        inner = replace(place, loops={**place.loops, name: s}, outer_private=outer_private)
        self.stmt(s.body, inner, s)

    def residents(self, s: For, place: _Place) -> None:
        for number, what in (
            (s.resident, "how many of its blocks are resident"),
            (s.raster, "in which order they come"),
            (s.sharing, "what blocks share"),
        ):
            if number is not None and (s.kind not in BOUND or place.loops):
                self.report(s, place, f"only a kernel's outermost loop says {what}")

    def parallel(self, s: For, place: _Place, parent: Stmt | None) -> None:
        if place.inside(ForKind.UNROLL):
            self.report(s, place, "a parallel loop stands inside an unrolled loop")
        directly = isinstance(parent, For) and parent.kind is ForKind.PARALLEL
        if place.inside(ForKind.PARALLEL) and not directly:
            self.report(s, place, "a parallel loop inside another must be the whole body of it")

    def bound(self, s: For, place: _Place, parent: Stmt | None) -> None:
        """Loops of blocks and threads: outermost, directly inside one another, as many iterations as are launched."""
        directly = isinstance(parent, For) and parent.kind in BOUND
        if (place.loops and not directly) or place.conditions:
            self.report(s, place, f"the loop of {s.kind.value} is not the whole body of a kernel or of a bound loop")
        if s.kind in BLOCKS and place.inside(*THREADS):
            self.report(s, place, "a loop of blocks stands inside a loop of threads")
        if place.inside(s.kind):
            self.report(s, place, f"another loop around it is bound to {s.kind.value}")
        if s.extent is not s.bound:
            text = f"{expr_text(s.bound)} are launched for {s.kind.value} but its loop ends at {expr_text(s.extent)}"
            self.report(s, place, text)
        if any(b.scope is Scope.SHARED for b in place.buffers.values()):
            self.report(s, place, "shared memory is allocated outside of a bound loop")

    def together(self, s: Stmt, place: _Place, what: str) -> None:
        """Every thread of the block must come by."""
        if place.inside(ForKind.PARALLEL):
            self.report(s, place, f"{what} stands inside a parallel loop")
        threads = {loop.var for loop in place.loops.values() if loop.kind in THREADS}
        for e in (*place.conditions, *(loop.extent for loop in place.loops.values())):
            moved = [v for v in subexpressions(e) if v in threads]
            if moved:
                self.report(s, place, f"{what} depends on the thread {expr_text(moved[0])} by {expr_text(e)}")

    def shuffle(self, s: Shuffle, place: _Place) -> None:
        if s.warp < 1 or s.warp & (s.warp - 1):
            self.report(s, place, f"a warp of {s.warp} threads is no power of two")
        if s.lane.dtype != INDEX:
            self.report(s, place, f"the lane is {s.lane.dtype}, not {INDEX}")
        for name in s.buffers:
            if name in place.buffers and place.buffers[name].scope not in PRIVATE:
                self.report(s, place, f"{name} is not private to the thread")
        self.writes(s, place)
        self.expr(s.lane, s, place)

    def waiting(self, s: Stmt, place: _Place) -> None:
        if not place.inside(*BOUND):
            self.report(s, place, "asynchronous copies are waited for outside of blocks and threads")
        if isinstance(s, Wait) and s.pending < 0:
            self.report(s, place, f"{s.pending} groups cannot be under way")

    def asynchronous(self, s: Store, place: _Place) -> None:
        """What the copy instructions of GPUs can do: 4, 8 or 16 bytes, from global to shared memory, or zeros; smaller
        elements in a loop over neighbours that are as many."""
        targets = [place.buffers[name] for name in s.buffers if name in place.buffers]
        if any(b.scope is not Scope.SHARED for b in targets) or s.reducer is not None or len(s.values) != 1:
            self.report(s, place, "an asynchronous store is not one element of shared memory")
            return
        if isinstance(s.values[0], Const):  # a copy whose condition never holds
            return
        element = moved(s.values[0])
        source = None if element is None else place.buffers.get(element[0].buffer)
        if source is None or source.scope not in (Scope.PARAM, Scope.GLOBAL):
            self.report(s, place, "an asynchronous store is not a copy of global memory")
        elif source.itemsize > 8 or source.itemsize * _neighbours(place) < LEAST_COPIED:
            self.report(s, place, f"an element of {source.itemsize} bytes cannot be copied asynchronously")

    def tile(self, s: TileCopy, place: _Place) -> None:
        """Between global memory and a place in shared memory that is as large."""
        self.stored.add(s.outside if s.back else s.buffer)
        if s.back and s.outside in self.inputs:
            self.report(s, place, f"the input {s.outside} is stored to")
        self.access(s.buffer, (*s.place, *s.shape), s.dtype, s, place)
        self.access(s.outside, s.origin[: s.rank], s.dtype, s, place)
        for e in (*s.place, *s.origin, *s.shape):
            self.expr(e, s, place)
        scopes = {name: place.buffers[name].scope for name in (s.buffer, s.outside) if name in place.buffers}
        if scopes.get(s.buffer, Scope.SHARED) is not Scope.SHARED:
            self.report(s, place, f"the tile {s.buffer} is not in shared memory")
        if scopes.get(s.outside, Scope.GLOBAL) not in (Scope.PARAM, Scope.GLOBAL):
            self.report(s, place, f"{s.outside}, which a tile is a part of, is not in global memory")
        if len(s.shape) not in ((2, 3) if s.pixels is not None else (len(s.dims or s.origin),)):
            self.report(s, place, f"a tile of {len(s.shape)} dimensions begins at {len(s.origin)} indices")

    def allocation(self, s: Allocate, place: _Place) -> None:
        buffer = s.buffer
        if buffer.scope is Scope.PARAM:
            self.report(s, place, f"the allocated buffer {buffer.name} has scope param")
        if buffer.name in place.buffers:
            self.report(s, place, f"the buffer {buffer.name} exists here already")
        if buffer.scope is Scope.GLOBAL and place.inside(ForKind.PARALLEL, *BOUND):
            self.report(s, place, f"{buffer.name} is shared by all threads but allocated inside a parallel loop")
        if buffer.scope is Scope.SHARED and place.inside(ForKind.PARALLEL):
            self.report(s, place, f"{buffer.name} is in shared memory but allocated in a parallel loop of a CPU")
        self.buffer(buffer, self.where(s, place))

    def buffer(self, b: Buffer, where: str) -> None:
        def wrong(text: str) -> None:
            self.problems.append(f"{where}: {text}")

        if self.known.setdefault(b.name, b) != b:  # one name is one buffer; copies of a nest may each allocate it
            wrong(f"the buffer name {b.name} means two different buffers")
        if b.dtype not in DTYPES:
            wrong(f"{b.name} has the unknown dtype {b.dtype!r}")
        tiles = () if b.layout is None else b.layout.tiles
        for e in (*b.shape, *(factor for _, factor in tiles)):
            if e.dtype != INDEX or any(isinstance(node, (Var, Load)) for node in subexpressions(e)):
                wrong(f"the size {expr_text(e)} of {b.name} is not a closed form of {INDEX}")
            elif isinstance(e, Const) and e.value < 1:
                wrong(f"the size {e.value} of {b.name} is not positive")
            elif self.concrete and not isinstance(e, Const):
                wrong(f"the size {expr_text(e)} of {b.name} is not a constant")
        if b.layout is None:
            return
        rank = len(b.shape)
        dims = [dim for dim, _ in tiles]
        if sorted(b.layout.order) != list(range(rank)):
            wrong(f"the layout order {b.layout.order} of {b.name} is not a permutation of its {rank} dimensions")
        if len(set(dims)) < len(dims) or not set(dims) <= set(range(rank)):
            wrong(f"the layout of {b.name} tiles the dimensions {dims}, but its rank is {rank}")

    def store(self, s: Store, place: _Place) -> None:
        self.writes(s, place)
        if s.reducer is not None:
            self.reducer(s, s.reducer, place)
        is_shared = any(b in place.buffers and place.buffers[b].scope is Scope.SHARED for b in s.buffers)
        problem = None if is_shared else order_problem(s, place.loops.values())  # barriers order shared memory
        if problem is not None:
            self.report(s, place, problem)
        if s.asynchronous:
            self.asynchronous(s, place)
        if s.atomic:
            self.atomic(s, place)
        if s.matrix:
            self.matrix(s, place)

    def atomic(self, s: Store, place: _Place) -> None:
        if atomic_operation(s.reducer) is None:
            self.report(s, place, "there is no such atomic update")
        if not place.inside(*BOUND):
            self.report(s, place, "an atomic update stands outside of loops of blocks and threads")
        for name in s.buffers:
            if name in place.buffers and place.buffers[name].scope not in (Scope.PARAM, Scope.GLOBAL):
                self.report(s, place, f"{name} is updated atomically but is not in global memory")

    def matrix(self, s: Store, place: _Place) -> None:
        self.together(s, place, "a product of matrices")
        if s.matrix not in MATRICES:
            self.report(s, place, f"there are no products of matrices called {s.matrix!r}")
        if s.reducer is None or not s.reducer.is_sum:
            self.report(s, place, "a product of matrices is not added up")

    def writes(self, s: Store | Shuffle, place: _Place) -> None:
        if not s.buffers or len(s.buffers) != len(s.values):
            self.report(s, place, f"{len(s.values)} values are stored to {len(s.buffers)} buffers")
        if len(set(s.buffers)) < len(s.buffers):
            self.report(s, place, "one buffer is stored to twice")
        for name, value in zip(s.buffers, s.values, strict=False):
            self.access(name, s.indices, value.dtype, s, place)
            self.stored.add(name)
            if name in self.inputs:
                self.report(s, place, f"the input {name} is stored to")
        for e in (*s.indices, *s.values):
            self.expr(e, s, place)

    def reducer(self, s: Store, r: Reducer, place: _Place) -> None:
        lengths = {len(r.lhs), len(r.rhs), len(r.results), len(r.identity), len(s.buffers)}
        if len(lengths) > 1:
            self.report(
                s,
                place,
                f"the reducer {r.name} combines {len(r.lhs)} with {len(r.rhs)} values into {len(r.results)} "
                f"with {len(r.identity)} identities, for {len(s.buffers)} buffers",
            )
            return
        names = [v.name for v in (*r.lhs, *r.rhs)]
        if len(set(names)) < len(names):
            self.report(s, place, f"the operands {', '.join(names)} of the reducer {r.name} are not distinct")
        for i, value in enumerate(s.values):
            parts = {"lhs": r.lhs[i], "rhs": r.rhs[i], "result": r.results[i], "identity": r.identity[i]}
            for what, e in parts.items():
                if e.dtype != value.dtype:
                    text = f"{what} {i} of the reducer {r.name} is {e.dtype} but the value is {value.dtype}"
                    self.report(s, place, text)
        operands = set(zip(names, (v.dtype for v in (*r.lhs, *r.rhs)), strict=True))
        for e in r.results:
            for node in subexpressions(e):
                foreign = isinstance(node, Var) and (node.name, node.dtype) not in operands
                if foreign or isinstance(node, (Load, Param)):
                    self.report(s, place, f"the reducer {r.name} uses {expr_text(node)}, not one of its operands")
                self.types(node, s, place)

    def access(self, name: str, indices: tuple[Expr, ...], dtype: str | None, s: Stmt, place: _Place) -> None:
        """One use of a buffer; `dtype` is what is read or written, None for no matter."""
        buffer = place.buffers.get(name)
        if buffer is None:
            self.report(s, place, f"the buffer {name} is neither a parameter nor allocated here")
            return
        if len(indices) != len(buffer.shape):
            self.report(s, place, f"{name} has {len(buffer.shape)} dimensions but is indexed with {len(indices)}")
        if dtype is not None and dtype != buffer.dtype:
            self.report(s, place, f"{name} holds {buffer.dtype} but is accessed as {dtype}")
        if any(i.dtype != INDEX for i in indices):
            self.report(s, place, f"an index of {name} is not {INDEX}")
        if name in place.outer_private:
            self.report(s, place, f"{name} is private to the thread outside the parallel loop that uses it")
        on_gpu = place.inside(*BOUND)  # there the C compiler finds out which indices are constant
        if self.concrete and buffer.scope is Scope.REGISTER and not on_gpu:
            for node in (n for i in indices for n in subexpressions(i)):
                if isinstance(node, Load) or (isinstance(node, Var) and not _is_unrolled(node, place)):
                    self.report(s, place, f"{name} is in registers but indexed with {expr_text(node)}, not a constant")

    def expr(self, e: Expr, s: Stmt, place: _Place) -> None:
        for node in subexpressions(e):
            self.types(node, s, place)
            match node:
                case Var(name, dtype):
                    loop = place.loops.get(name)
                    if loop is None:
                        self.report(s, place, f"the variable {name} is not bound by an enclosing loop")
                    elif loop.var.dtype != dtype:
                        self.report(s, place, f"the variable {name} is {dtype} but its loop has {loop.var.dtype}")
                case Param(name) if self.concrete:
                    self.report(s, place, f"the parameter {name} is left in a concrete function")
                case Load(name, indices, dtype):
                    self.access(name, indices, dtype, s, place)

    def types(self, node: Expr, s: Stmt, place: _Place) -> None:
        if node in self.well_typed:
            return
        problem = type_problem(node)
        if problem is None:
            self.well_typed.add(node)
        else:
            self.report(s, place, f"{problem} in {expr_text(node)}")

    def report(self, s: Stmt, place: _Place, text: str) -> None:
        self.problems.append(f"{self.where(s, place)}: {text}")

    def where(self, s: Stmt, place: _Place) -> str:
        return f"{place.path}: {headline(s)}" if place.loops else headline(s)


def _numbers(s: For) -> Iterator[tuple[str, Expr]]:
    yield from (("extent", s.extent), ("bound", s.bound))
    if s.overlap is not None:
        yield "number of stages", s.overlap.stages
    if s.resident is not None:
        yield "number of resident blocks", s.resident
    if s.raster is not None:
        yield "number of rows that are started together", s.raster
    if s.sharing is not None:
        yield from (("number of blocks of a cluster", n) for n in (s.sharing.down, s.sharing.across))
        yield "number of blocks that take turns", s.sharing.turns


def _neighbours(place: _Place) -> int:
    """Iterations of the innermost loop, if it is unrolled."""
    for loop in [*place.loops.values()][-1:]:
        if loop.kind is ForKind.UNROLL and isinstance(loop.bound, Const):
            return loop.bound.number
    return 1


def _is_unrolled(v: Var, place: _Place) -> bool:
    loop = place.loops.get(v.name)
    return loop is not None and loop.kind in (ForKind.UNROLL, ForKind.VECTORIZE)
