"""Closed forms for a whole population at once.

    Program(exprs, params)(matrix) -> values

`exprs` are closed forms (expressions over `Const` and `Param`); `matrix` is int64 `[n, n_params]`, one
candidate a row, the columns in the order of `params`; `values` is float64 `[n_exprs, n]`.

All expressions become one list of NumPy calls: equal computations are done once (value numbering over
interned nodes), constants are folded, and a buffer is used again as soon as its value is dead, so that a
block of rows stays in the second-level cache. There is no Python loop over candidates and no generated code.

Everything is computed in float64, whatever the dtype of the nodes: integers are exact below 2**52, and
`floordiv`, `ceildiv` and `mod`, done by a correctly rounded division, are exact there too: for a = q*b - 1 the
quotient q - 1/b rounds up to q only when q*b > 2**52. Comparisons give 1.0 and 0.0. A division by zero
gives inf or nan, never an exception: a row with such a value is the caller's to refuse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autosched.errors import ExpressionError
from autosched.ir.expr import COMMUTATIVE, COMPARISON, Binary, Call, Cast, Const, Expr, Param, Select

# Rows evaluated together: long enough that a NumPy call costs little per row (at 16k a node costs 0.3 ns a row),
# short enough that the live buffers fit into a second-level cache.
BLOCK_ROWS = 16384

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
_Kernel: TypeAlias = Callable[..., Any]


def _select(cond: Any, a: Any, b: Any, out: Any) -> None:
    np.copyto(out, b)
    np.copyto(out, a, where=cond)


def _real(a: Any, out: Any) -> None:
    np.copyto(out, a)


def _minimum(a: Any, b: Any, out: Any) -> None:
    np.minimum(a, b, out=out)


def _maximum(a: Any, b: Any, out: Any) -> None:
    np.maximum(a, b, out=out)


# Operation of a node -> NumPy function whose last positional argument is the output.
KERNELS: dict[str, _Kernel] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": _minimum, "max": _maximum,
    "pow": np.power, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "abs": np.absolute, "neg": np.negative, "sqrt": np.sqrt, "exp": np.exp, "log": np.log,
    "select": _select, "real": _real,
}  # fmt: skip
BOOLEAN = COMPARISON | {"and", "or", "not"}
_UNKNOWN = [None, None]


@dataclass
class _Graph:
    """Distinct computations in topological order; a node is its place in `ops`."""

    columns: dict[str, int]
    ops: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    constants: dict[int, float] = field(default_factory=dict)
    column_of: dict[int, int] = field(default_factory=dict)
    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def constant(self, value: float) -> int:
        node = self._number(("const", float(value)), "const", ())
        self.constants[node] = float(value)
        return node

    def _number(self, key: tuple[Any, ...], op: str, args: tuple[int, ...]) -> int:
        node = self.numbers.get(key)
        if node is None:
            node = self.numbers[key] = len(self.ops)
            self.ops.append((op, args))
        return node

    def is_bool(self, node: int) -> bool:
        return self.ops[node][0] in BOOLEAN

    def emit(self, op: str, *args: int) -> int:
        """The node of `op(args)`: folded, simplified, or shared with an equal one."""
        if op == "floordiv":
            return self._integral("floor", *args)
        if op == "ceildiv":
            return self._integral("ceil", *args)
        if op == "mod":
            return self.emit("sub", args[0], self.emit("mul", self.emit("floordiv", *args), args[1]))
        if op not in KERNELS:
            raise ExpressionError(
                f"the operation {op} cannot occur in a closed form; known are {', '.join(sorted(KERNELS))}"
            )
        if op == "real" and not self.is_bool(args[0]):
            return args[0]
        if op not in BOOLEAN and op not in ("real", "select"):
            args = tuple([self.emit("real", a) if self.is_bool(a) else a for a in args])
        value = [self.constants.get(a) for a in args]
        if None not in value:
            return self.constant(_fold(op, [self.constants[a] for a in args]))
        same = self._neutral(op, args, value)
        if same is not None:
            return same
        if op in COMMUTATIVE:
            args = tuple(sorted(args))
        return self._number((op, *args), op, args)

    def _integral(self, rounding: str, a: int, b: int) -> int:
        return self.emit(rounding, self.emit("div", a, b))

    def _neutral(self, op: str, args: tuple[int, ...], value: list[float | None]) -> int | None:
        """x+0, x*1, x*0 (closed forms are finite), x/1, min(x, x), constant conditions and the like.

        `value`: those of `args` that are constants."""
        if len(args) == 2 and args[0] != args[1] and value == _UNKNOWN:
            return None
        match op:
            case "add" if 0.0 in value:
                return args[1 - value.index(0.0)]
            case "sub" if value[1] == 0.0:
                return args[0]
            case "sub" if args[0] == args[1]:
                return self.constant(0.0)
            case "mul" if 0.0 in value:
                return self.constant(0.0)
            case "mul" if 1.0 in value:
                return args[1 - value.index(1.0)]
            case "div" if value[1] == 1.0:
                return args[0]
            case "min" | "max" if args[0] == args[1]:
                return args[0]
            case "select" if value[0] is not None:
                return args[1] if value[0] else args[2]
            case "select" if args[1] == args[2]:
                return args[1]
            case "floor" | "ceil" if self.ops[args[0]][0] in ("floor", "ceil", "param"):
                return args[0]
            case "and" if 1.0 in value:
                return args[1 - value.index(1.0)]
            case "or" if 0.0 in value:
                return args[1 - value.index(0.0)]
        return None

    def build(self, root: Expr, done: dict[Expr, int]) -> int:
        """The node of `root`; `done` remembers subtrees. Iterative, because sums of loops nest deeply."""
        stack = [root]
        while stack:
            expr = stack[-1]
            if expr in done:
                stack.pop()
                continue
            children = expr.children
            missing = [c for c in children if c not in done]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            done[expr] = self._node(expr, tuple([done[c] for c in children]))
        return done[root]

    def _node(self, expr: Expr, args: tuple[int, ...]) -> int:
        match expr:
            case Binary(op):  # what most nodes are
                return self.emit(op, *args)
            case Const(value):
                return self.constant(value)
            case Param(name):
                if name not in self.columns:
                    raise ExpressionError(
                        f"the closed form uses the parameter {name}, but the columns are {', '.join(self.columns)}"
                    )
                node = self._number(("param", name), "param", ())
                self.column_of[node] = self.columns[name]
                return node
            case Call(fn):
                return self.emit(fn, *args)
            case Select():
                return self.emit("select", self._truth(args[0]), *(self.emit("real", a) for a in args[1:]))
            case Cast(a, dtype) if dtype == "bool":
                return self._truth(args[0])
            case Cast(a, dtype):
                narrowing = a.dtype.startswith("float") and not dtype.startswith("float")
                return self.emit("trunc" if narrowing else "real", *args)
        raise ExpressionError(f"{expr} is not a closed form: only constants and parameters may occur in it")

    def _truth(self, node: int) -> int:
        return node if self.is_bool(node) or node in self.constants else self.emit("ne", node, self.constant(0.0))


def _fold(op: str, values: list[float]) -> float:
    result = np.empty(())
    with np.errstate(all="ignore"):
        KERNELS[op](*([values[0] != 0.0, *values[1:]] if op == "select" else values), result)
    return float(result)


class _Scratch(threading.local):
    """Memory for intermediate values, of which all programs of a thread use the same: a session has dozens of them, and
    fresh memory costs more than most evaluations."""

    def __init__(self) -> None:
        self._memory: dict[type[np.generic], npt.NDArray[Any]] = {}

    def array(self, kind: type[np.generic], count: int, n: int) -> npt.NDArray[Any]:
        """`[count, n]` of any content, valid until the next call for the kind."""
        memory = self._memory.get(kind)
        if memory is None or len(memory) < count * n:
            memory = self._memory[kind] = np.empty(count * n, kind)
        return memory[: count * n].reshape(count, n)


_SCRATCH = _Scratch()


class Program:
    """Closed forms compiled to a list of NumPy calls over blocks of rows."""

    def __init__(self, exprs: Sequence[Expr], params: Sequence[str]) -> None:
        """`exprs`: closed forms; `params`: the name of each column. Raises ExpressionError for anything else."""
        self.params = tuple(params)
        self.n_exprs = len(exprs)
        graph = _Graph({name: i for i, name in enumerate(self.params)})
        done: dict[Expr, int] = {}
        roots = [graph.build(expr, done) for expr in exprs]
        self._schedule(graph, roots)

    @property
    def n_instructions(self) -> int:
        return len(self._code)

    def _schedule(self, graph: _Graph, roots: list[int]) -> None:
        """Give every live node a slot; buffers, result rows, columns of the matrix and constants share one numbering.

        A slot is (pool, place); `views` at run time is the concatenation of the pools.
        """
        last = _last_uses(graph, roots)
        rows = {node: i for i, node in reversed(list(enumerate(roots))) if _owns_row(graph, node)}
        slots = _Slots()
        code: list[tuple[_Kernel, list[tuple[str, int]]]] = []
        place: dict[int, tuple[str, int]] = {}
        for node, (op, args) in enumerate(graph.ops):
            if node not in last:
                continue
            if node in graph.constants:
                place[node] = slots.constant(graph.constants[node])
                continue
            if op != "select":  # elementwise calls may write over an argument that dies here
                slots.release(place, args, last, node)
            place[node] = ("row", rows[node]) if node in rows else slots.take("bool" if graph.is_bool(node) else "real")
            source = [("column", graph.column_of[node])] if op == "param" else [place[a] for a in args]
            code.append((KERNELS["real" if op == "param" else op], [*source, place[node]]))
            if op == "select":
                slots.release(place, args, last, node)
        code += [(_real, [place[n], ("row", i)]) for i, n in enumerate(roots) if place[n] != ("row", i)]
        self._constants = slots.constants
        self._pools = {"real": slots.count["real"], "bool": slots.count["bool"], "row": self.n_exprs}
        offset = {"real": 0, "bool": self._pools["real"]}
        offset["row"] = offset["bool"] + self._pools["bool"]
        offset["column"] = offset["row"] + self.n_exprs
        offset["const"] = offset["column"] + len(self.params)
        self._code = [(fn, itemgetter(*(offset[pool] + i for pool, i in where))) for fn, where in code]

    def __call__(self, matrix: npt.NDArray[np.integer[Any]]) -> Floats:
        """float64 `[n_exprs, n]` for an integer matrix `[n, n_params]`."""
        if matrix.ndim != 2 or matrix.shape[1] != len(self.params):
            raise ExpressionError(
                f"a population of {len(self.params)} parameters is expected, but the array has the shape {matrix.shape}"
            )
        n = matrix.shape[0]
        result = np.empty((self.n_exprs, n))
        with np.errstate(all="ignore"):
            for start in range(0, n, BLOCK_ROWS):
                self._block(matrix[start : start + BLOCK_ROWS], result[:, start : start + BLOCK_ROWS])
        return result

    def _block(self, rows: npt.NDArray[np.integer[Any]], result: Floats) -> None:
        n = rows.shape[0]
        real = _SCRATCH.array(np.float64, self._pools["real"], n)
        truth = _SCRATCH.array(np.bool_, self._pools["bool"], n)
        views: list[Any] = [*real, *truth, *result, *rows.T, *self._constants]
        for fn, arguments in self._code:
            fn(*arguments(views))


class _Slots:
    """Buffers handed out last-freed first, so that the hot ones stay hot."""

    def __init__(self) -> None:
        self.count = {"real": 0, "bool": 0}
        self.free: dict[str, list[int]] = {"real": [], "bool": []}
        self.constants: list[float] = []

    def take(self, pool: str) -> tuple[str, int]:
        if self.free[pool]:
            return pool, self.free[pool].pop()
        self.count[pool] += 1
        return pool, self.count[pool] - 1

    def constant(self, value: float) -> tuple[str, int]:
        self.constants.append(value)
        return "const", len(self.constants) - 1

    def release(
        self, place: dict[int, tuple[str, int]], args: tuple[int, ...], last: dict[int, int], node: int
    ) -> None:
        for arg in dict.fromkeys(args):
            pool, i = place[arg]
            if last[arg] == node and pool in self.free:
                self.free[pool].append(i)


def _owns_row(graph: _Graph, node: int) -> bool:
    """Whether a result may be computed straight into its row."""
    return node not in graph.constants and graph.ops[node][0] != "param" and not graph.is_bool(node)


def _last_uses(graph: _Graph, roots: list[int]) -> dict[int, int]:
    """node -> the node after which its buffer is free; nodes that nothing needs are absent."""
    never = len(graph.ops)
    last = dict.fromkeys(roots, never)
    for node in range(never - 1, -1, -1):
        if node in last:
            for arg in graph.ops[node][1]:
                last.setdefault(arg, node)
    return last
