"""What a well-formed function is; run between passes and before interpretation.

A violation is a bug of the pass that made the function, never the user's fault, so `IRError` is not
an `AutoschedError`. All violations are listed, each with the loops around it and its statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from autosched.ir.expr import (
    ARITHMETIC,
    BITWISE,
    CALLS,
    COMPARISON,
    DTYPES,
    FLOAT_CALLS,
    INDEX,
    INT_ONLY,
    LOGICAL,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Param,
    Select,
    Var,
)
from autosched.ir.printer import expr_text, headline
from autosched.ir.stmt import (
    Allocate,
    Buffer,
    For,
    ForKind,
    Func,
    If,
    Prefetch,
    Reducer,
    Scope,
    Seq,
    Stmt,
    Store,
)

PRIVATE = frozenset({Scope.LOCAL, Scope.REGISTER})


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


def type_problem(e: Expr) -> str | None:
    """What is wrong with the dtypes of one node, its operands taken as right; None when nothing is."""
    match e:
        case Const(value, dtype):
            return _const_problem(value, dtype)
        case Binary(op, a, b):
            if a.dtype != b.dtype:
                return f"{op} of {a.dtype} and {b.dtype}"
            return _operation_problem(op, a.dtype)
        case Call(fn, args):
            return _call_problem(fn, args)
        case Select(cond, a, b):
            if cond.dtype != "bool":
                return f"the condition of select is {cond.dtype}, not bool"
            return f"select of {a.dtype} and {b.dtype}" if a.dtype != b.dtype else None
        case Load(name, indices, _):
            wrong = [i.dtype for i in indices if i.dtype != INDEX]
            return f"an index of {name} is {wrong[0]}, not {INDEX}" if wrong else None
        case Var() | Cast() | Param():
            return None if e.dtype in DTYPES else f"unknown dtype {e.dtype!r}"
    return f"{type(e).__name__} is not an expression"


def _const_problem(value: bool | int | float, dtype: str) -> str | None:
    if dtype not in DTYPES:
        return f"unknown dtype {dtype!r}"
    kind, nbytes = DTYPES[dtype]
    expected = {"b": bool, "f": float}.get(kind, int)
    if type(value) is not expected:
        return f"a constant of {dtype} holds the {type(value).__name__} {value}"
    if kind in "iu":
        low, high = integer_range(dtype)
        if not low <= value <= high:
            return f"the constant {value} does not fit {dtype} ({8 * nbytes} bits)"
    return None


def integer_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    kind, nbytes = DTYPES[dtype]
    bits = 8 * nbytes
    return (0, 2**bits - 1) if kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _operation_problem(op: str, dtype: str) -> str | None:
    kind = DTYPES[dtype][0] if dtype in DTYPES else "?"
    if op in COMPARISON:
        return None
    if op in LOGICAL:
        return None if kind == "b" else f"{op} needs bool operands, not {dtype}"
    if op in INT_ONLY or op in BITWISE:
        return None if kind in "iu" else f"{op} needs integers, not {dtype}"
    if op not in ARITHMETIC:
        return f"unknown operation {op!r}"
    if op == "div":
        return None if kind == "f" else f"div needs floats, not {dtype}"
    if kind == "b" and op not in ("min", "max"):
        return f"{op} needs numbers, not bool"
    return None


def _call_problem(fn: str, args: tuple[Expr, ...]) -> str | None:
    if fn not in CALLS:
        return f"unknown function {fn!r}"
    if len(args) != 1:
        return f"{fn} takes 1 argument, not {len(args)}"
    kind = DTYPES[args[0].dtype][0] if args[0].dtype in DTYPES else "?"
    if fn in FLOAT_CALLS and kind != "f":
        return f"{fn} needs a float, not {args[0].dtype}"
    if (fn == "not") != (kind == "b"):
        return f"{fn} does not take {args[0].dtype}"
    return None


@dataclass(frozen=True)
class _Place:
    """What surrounds a statement. `outer_private`: thread-private buffers from outside the innermost parallel loop."""

    loops: Mapping[str, For] = field(default_factory=dict)
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    outer_private: frozenset[str] = frozenset()

    def inside(self, kind: ForKind) -> bool:
        return any(loop.kind is kind for loop in self.loops.values())

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
                self.stmt(then, place, s)
                if otherwise is not None:
                    self.stmt(otherwise, place, s)
            case Allocate(buffer, body):
                self.allocation(s, place)
                self.stmt(body, replace(place, buffers={**place.buffers, buffer.name: buffer}), s)
            case Store():
                self.store(s, place)
            case Prefetch(name, indices):
                self.access(name, indices, None, s, place)
                for index in indices:
                    self.expr(index, s, place)
            case _:
                self.problems.append(f"{type(s).__name__} is not a statement")

    def loop(self, s: For, place: _Place, parent: Stmt | None) -> None:
        name = s.var.name
        if name in place.loops:
            self.report(s, place, f"the loop variable {name} is already bound by an enclosing loop")
        if s.var.dtype != INDEX:
            self.report(s, place, f"the loop variable {name} is {s.var.dtype}, not {INDEX}")
        for what, e in (("extent", s.extent), ("bound", s.bound)):
            if e.dtype != INDEX:
                self.report(s, place, f"the {what} is {e.dtype}, not {INDEX}")
            self.expr(e, s, place)
            if any(isinstance(node, Load) for node in _nodes(e)):
                self.report(s, place, f"the {what} depends on the contents of a tensor")
        if any(isinstance(node, Var) for node in _nodes(s.bound)):
            self.report(s, place, f"the bound {expr_text(s.bound)} depends on a loop variable")
        if isinstance(s.bound, Const):
            if isinstance(s.extent, Const) and s.extent.value > s.bound.value:
                self.report(s, place, f"the extent {s.extent.value} exceeds the bound {s.bound.value}")
        elif self.concrete:
            self.report(s, place, f"the bound {expr_text(s.bound)} is not a constant")
        if place.inside(ForKind.VECTORIZE):
            self.report(s, place, "a loop stands inside a vectorized loop")
        outer_private = place.outer_private
        if s.kind is ForKind.PARALLEL:
            self.parallel(s, place, parent)
            outer_private |= {b.name for b in place.buffers.values() if b.scope in PRIVATE}
        inner = replace(place, loops={**place.loops, name: s}, outer_private=outer_private)
        self.stmt(s.body, inner, s)

    def parallel(self, s: For, place: _Place, parent: Stmt | None) -> None:
        if place.inside(ForKind.UNROLL):
            self.report(s, place, "a parallel loop stands inside an unrolled loop")
        directly = isinstance(parent, For) and parent.kind is ForKind.PARALLEL
        if place.inside(ForKind.PARALLEL) and not directly:
            self.report(s, place, "a parallel loop inside another must be the whole body of it")

    def allocation(self, s: Allocate, place: _Place) -> None:
        buffer = s.buffer
        if buffer.scope is Scope.PARAM:
            self.report(s, place, f"the allocated buffer {buffer.name} has scope param")
        if buffer.name in place.buffers:
            self.report(s, place, f"the buffer {buffer.name} exists here already")
        if buffer.scope is Scope.GLOBAL and place.inside(ForKind.PARALLEL):
            self.report(s, place, f"{buffer.name} is shared by all threads but allocated inside a parallel loop")
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
            if e.dtype != INDEX or any(isinstance(node, (Var, Load)) for node in _nodes(e)):
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
        if s.reducer is not None:
            self.reducer(s, s.reducer, place)

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
            for node in _nodes(e):
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
        if self.concrete and buffer.scope is Scope.REGISTER:
            for node in (n for i in indices for n in _nodes(i)):
                if isinstance(node, Load) or (isinstance(node, Var) and not _is_unrolled(node, place)):
                    self.report(s, place, f"{name} is in registers but indexed with {expr_text(node)}, not a constant")

    def expr(self, e: Expr, s: Stmt, place: _Place) -> None:
        for node in _nodes(e):
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


def _is_unrolled(v: Var, place: _Place) -> bool:
    loop = place.loops.get(v.name)
    return loop is not None and loop.kind in (ForKind.UNROLL, ForKind.VECTORIZE)


def _nodes(e: Expr) -> Iterator[Expr]:
    """Every node of an expression once, shared or not."""
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(node.children)
