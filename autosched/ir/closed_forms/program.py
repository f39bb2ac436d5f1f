"""Closed-form programs: expressions over parameters, evaluated for a whole population at once.

    Program(exprs, params)(matrix) -> values

`exprs` are closed forms (expressions over `Const` and `Param`); `matrix` is int64 `[n, n_params]`, one
candidate a row, the columns in the order of `params`; `values` is float64 `[n_exprs, n]`.

All expressions become one list of NumPy calls: equal computations are done once (value numbering over
interned nodes) and constants are folded. There is no Python loop over candidates and no generated code.
A population takes one of two lists, each made when first needed:

    Nodes    of a long one, or of several: a call for each node; a buffer is used again as soon as its value is dead,
             so that a block of rows stays in the second-level cache
    Levels   of a short one, whose calls would cost more than what they compute: one for all nodes of an operation
             that are as many operations from the parameters; their arguments are gathered first

The values are the same: each comes from the same operation on the same numbers.

Everything is computed in float64, whatever the dtype of the nodes: integers are exact below 2**52, and
`floordiv`, `ceildiv` and `mod`, done by a correctly rounded division, are exact there too: for a = q*b - 1 the
quotient q - 1/b rounds up to q only when q*b > 2**52. Comparisons give 1.0 and 0.0. A division by zero
gives inf or nan, never an exception: a row with such a value is the caller's to refuse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autosched.errors import ExpressionError
from autosched.ir.expr import COMMUTATIVE, COMPARISON, Binary, Call, Cast, Const, Expr, Param, Select

# Rows evaluated together: long enough that a NumPy call costs little per row (at 16k a node costs 0.3 ns a row),
# short enough that the live buffers fit into a second-level cache.
BLOCK_ROWS = 16384
# Rows from which on a call for each node is cheaper: 3400 nodes in 270 groups take 7 million cycles instead of 18 with
# 100 rows, 17 instead of 19 with 300, 44 instead of 24 with 1000 (Zen 3).
SHORT_ROWS = 256
# ... of populations that are longer than that, together: making such a list takes as long as it gains with so many.
MANY_ROWS = 2048

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Index: TypeAlias = npt.NDArray[np.intp]
_Kernel: TypeAlias = Callable[..., Any]


def _select(cond: Any, a: Any, b: Any, out: Any) -> None:
    np.copyto(out, b)
    np.copyto(out, a, where=cond != 0)


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
NUMBER = {op: i for i, op in enumerate(("const", "param", *KERNELS))}
PLAIN = frozenset({"add", "sub", "mul", "div", "min", "max"})
BOOLEAN = COMPARISON | {"and", "or", "not"}
_UNKNOWN = [None, None]


class ExpressionGraph:
    """Distinct computations; a node is its place in the lists and stands behind its arguments.

    Programs may share one: what their closed forms have in common is then looked at once. It keeps the expressions.
    """

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.numbers: list[int] = []  # of the operations
        self.args: list[tuple[int, ...]] = []
        self.value: list[float | None] = []  # of constants
        self.boolean: list[bool] = []
        self.level: list[int] = []  # operations of the longest way from a constant or a parameter
        self.names: dict[int, str] = {}  # of parameters
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._done: dict[Expr, int] = {}

    def constant(self, value: float) -> int:
        number = float(value)
        return self._number(("const", number), "const", (), number)

    def _number(self, key: tuple[Any, ...], op: str, args: tuple[int, ...], value: float | None = None) -> int:
        node = self._numbers.get(key)
        if node is None:
            node = self._numbers[key] = len(self.ops)
            self.ops.append(op)
            self.numbers.append(NUMBER[op])
            self.args.append(args)
            self.value.append(value)
            self.boolean.append(op in BOOLEAN)
            self.level.append(1 + max([self.level[a] for a in args]) if args else 0)
        return node

    def emit(self, op: str, *args: int) -> int:
        """The node of `op(args)`: folded, simplified, or shared with an equal one."""
        if op in PLAIN:  # what most nodes are, of numbers that are not known
            a, b = args
            known = self.value[a] is not None or self.value[b] is not None
            if not known and a != b and not self.boolean[a] and not self.boolean[b]:
                args = (b, a) if a > b and op in COMMUTATIVE else args
                return self._number((op, *args), op, args)
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
        if op == "real" and not self.boolean[args[0]]:
            return args[0]
        if op not in BOOLEAN and op not in ("real", "select"):
            args = tuple([self.emit("real", a) if self.boolean[a] else a for a in args])
        value = [self.value[a] for a in args]
        constants = [v for v in value if v is not None]
        if len(constants) == len(value):
            return self.constant(_fold(op, constants))
        same = self._neutral(op, args, value)
        if same is not None:
            return same
        if op in COMMUTATIVE and args[0] > args[1]:
            args = args[::-1]
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
            case "floor" | "ceil" if self.ops[args[0]] in ("floor", "ceil", "param"):
                return args[0]
            case "and" if 1.0 in value:
                return args[1 - value.index(1.0)]
            case "or" if 0.0 in value:
                return args[1 - value.index(0.0)]
        return None

    def build(self, root: Expr) -> int:
        """The node of `root`. Iterative, because sums of loops nest deeply."""
        done, stack = self._done, [root]
        while stack:
            expr = stack[-1]
            if expr in done:
                stack.pop()
                continue
            if isinstance(expr, Binary):  # what most nodes are
                a, b = done.get(expr.a), done.get(expr.b)
                if a is not None and b is not None:
                    done[stack.pop()] = self.emit(expr.op, a, b)
                else:
                    stack += [c for c, arg in ((expr.a, a), (expr.b, b)) if arg is None]
                continue
            children = expr.children
            args = [done.get(c) for c in children]
            if None in args:
                stack += [c for c, arg in zip(children, args, strict=True) if arg is None]
                continue
            stack.pop()
            done[expr] = self._node(expr, tuple([arg for arg in args if arg is not None]))
        return done[root]

    def _node(self, expr: Expr, args: tuple[int, ...]) -> int:
        match expr:
            case Const(value):
                return self.constant(value)
            case Param(name):
                node = self._number(("param", name), "param", ())
                self.names[node] = name
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
        known = self.boolean[node] or self.value[node] is not None
        return node if known else self.emit("ne", node, self.constant(0.0))


def _fold(op: str, values: list[float]) -> float:
    result = np.empty(())
    with np.errstate(all="ignore"):
        KERNELS[op](*values, result)
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
    """Closed forms compiled to lists of NumPy calls over blocks of rows."""

    def __init__(self, exprs: Sequence[Expr], params: Sequence[str], graph: ExpressionGraph | None = None) -> None:
        """`exprs`: closed forms; `params`: the name of each column. Raises ExpressionError for anything else.

        `graph`: shared with other programs, which remember the forms that they have in common."""
        self.params = tuple(params)
        self.n_exprs = len(exprs)
        self._graph = ExpressionGraph() if graph is None else graph
        self._roots = [self._graph.build(expr) for expr in exprs]
        self._needed = _needed(self._graph, self._roots)
        columns = {name: i for i, name in enumerate(self.params)}
        names = self._graph.names
        self._columns = {n: _column(columns, names[n]) for n in sorted(self._needed & names.keys())}
        self._rows = 0  # of long populations

    @cached_property
    def nodes(self) -> Nodes:
        order = _evaluation_order(self._graph, self._roots)
        return Nodes(self._graph, order, self._roots, self._columns, len(self.params))

    @cached_property
    def levels(self) -> LevelPlan:
        return LevelPlan(self._graph, sorted(self._needed), self._roots, self._columns)

    @property
    def n_instructions(self) -> int:
        return len(self.nodes.code)

    def __call__(self, matrix: npt.NDArray[np.integer[Any]] | Floats) -> Floats:
        """float64 `[n_exprs, n]` for a matrix `[n, n_params]`, of integers unless some parameters stand for others."""
        if matrix.ndim != 2 or matrix.shape[1] != len(self.params):
            raise ExpressionError(
                f"a population of {len(self.params)} parameters is expected, but the array has the shape {matrix.shape}"
            )
        n = matrix.shape[0]
        result = np.empty((self.n_exprs, n))
        with np.errstate(all="ignore"):
            self._rows += n if n > SHORT_ROWS else 0
            many = n > SHORT_ROWS and self._rows > MANY_ROWS
            form, size = (self.nodes, BLOCK_ROWS) if many else (self.levels, SHORT_ROWS)
            for start in range(0, n, size):
                form.evaluate(matrix[start : start + size], result[:, start : start + size])
        return result


class LevelPlan:
    """A call for all nodes of one operation and level: each has a row of values, those of a call lie together."""

    def __init__(
        self, graph: ExpressionGraph, order: Sequence[int], roots: Sequence[int], columns: Mapping[int, int]
    ) -> None:
        number = np.array([*map(graph.numbers.__getitem__, order)], dtype=np.intp)
        level = np.array([*map(graph.level.__getitem__, order)], dtype=np.intp)
        by_call = np.lexsort((number, level))
        nodes = np.array(order, dtype=np.intp)[by_call]
        place = np.empty(len(graph.ops), dtype=np.intp)
        place[nodes] = np.arange(len(nodes))
        args = place[[*chain.from_iterable(map(graph.args.__getitem__, nodes.tolist()))]]
        first = np.flatnonzero(np.diff(level[by_call], prepend=-1) | np.diff(number[by_call], prepend=-1))
        self.code: list[tuple[_Kernel, int, int, int, Index]] = []  # a call's rows, and of each argument theirs
        taken = 0
        for start, end in zip(first.tolist(), [*first[1:].tolist(), len(nodes)], strict=True):
            n_args = len(graph.args[nodes[start]])
            if n_args:
                places = args[taken : taken + n_args * (end - start)].reshape(-1, n_args).T.ravel()
                self.code.append((KERNELS[graph.ops[nodes[start]]], start, end, n_args, places))
                taken += len(places)
        given = nodes[: (level == 0).sum()].tolist()
        self._constants = np.array([v for n in given if (v := graph.value[n]) is not None])[:, None]
        self._columns = [columns[n] for n in given if n in columns]
        self._results = place[roots]
        self._n_rows = len(nodes)
        self._n_gathered = max((len(places) for *_, places in self.code), default=0)

    def evaluate(self, rows: npt.NDArray[np.integer[Any]] | Floats, result: Floats) -> None:
        n, n_constants = rows.shape[0], len(self._constants)
        memory = _SCRATCH.array(np.float64, self._n_rows + self._n_gathered, n)
        values, gathered = memory[: self._n_rows], memory[self._n_rows :]
        values[:n_constants] = self._constants
        values[n_constants : n_constants + len(self._columns)] = rows.T[self._columns]
        for fn, start, end, n_args, places in self.code:
            args = gathered[: len(places)]
            values.take(places, 0, args, "clip")  # the mode that writes to where it is told, at once
            fn(*args.reshape(n_args, end - start, n), values[start:end])
        values.take(self._results, 0, result, "clip")


class Nodes:
    """A call for each node, with buffers that are used again."""

    def __init__(
        self,
        graph: ExpressionGraph,
        order: Sequence[int],
        roots: Sequence[int],
        columns: Mapping[int, int],
        n_params: int,
    ) -> None:
        """Gives every live node a slot, its place among the `views` of `evaluate`."""
        last = _last_uses(graph, order, roots)
        rows = {node: i for i, node in reversed(list(enumerate(roots))) if _owns_row(graph, node)}
        first_constant = len(roots) + n_params
        constants = {node: graph.value[node] for node in order if graph.value[node] is not None}
        place = {node: first_constant + i for i, node in enumerate(constants)}
        slots = _Slots(first_constant + len(constants))
        code: list[tuple[_Kernel, Callable[[list[Any]], Any]]] = []
        for node in order:
            if node in constants:
                continue
            op, args = graph.ops[node], graph.args[node]
            if op != "select":  # elementwise calls may write over an argument that dies here
                slots.release(place, args, last, node)
            mine = place[node] = rows[node] if node in rows else slots.take(graph.boolean[node])
            if op == "param":
                code.append((_real, itemgetter(len(roots) + columns[node], mine)))
            else:
                code.append((KERNELS[op], itemgetter(*[place[a] for a in args], mine)))
            if op == "select":
                slots.release(place, args, last, node)
        self.code = code + [(_real, itemgetter(place[n], i)) for i, n in enumerate(roots) if place[n] != i]
        self._constants = list(constants.values())
        self._n_real, self._n_bool = slots.n_real, slots.n_bool

    def evaluate(self, rows: npt.NDArray[np.integer[Any]] | Floats, result: Floats) -> None:
        n = rows.shape[0]
        real = _SCRATCH.array(np.float64, self._n_real, n)
        truth = _SCRATCH.array(np.bool_, self._n_bool, n)
        views: list[Any] = [*result, *rows.T, *self._constants, *truth, *real]
        for fn, arguments in self.code:
            fn(*arguments(views))


class _Slots:
    """Buffers handed out last-freed first, so that the hot ones stay hot.

    How many there will be is not known yet: a real one is numbered from the end of the views, -1 downwards, and one for
    truth values from `first` on.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._free_real: list[int] = []
        self._free_bool: list[int] = []
        self.n_real = self.n_bool = 0

    def take(self, boolean: bool) -> int:
        if boolean:
            if self._free_bool:
                return self._free_bool.pop()
            self.n_bool += 1
            return self._first + self.n_bool - 1
        if self._free_real:
            return self._free_real.pop()
        self.n_real += 1
        return -self.n_real

    def release(self, place: dict[int, int], args: tuple[int, ...], last: dict[int, int], node: int) -> None:
        for n, arg in enumerate(args):
            if last[arg] == node and arg not in args[:n]:
                slot = place[arg]
                if slot < 0:
                    self._free_real.append(slot)
                elif slot >= self._first:
                    self._free_bool.append(slot)


def _column(columns: dict[str, int], name: str) -> int:
    if name not in columns:
        raise ExpressionError(f"the closed form uses the parameter {name}, but the columns are {', '.join(columns)}")
    return columns[name]


def _owns_row(graph: ExpressionGraph, node: int) -> bool:
    """Whether a result may be computed straight into its row."""
    return graph.value[node] is None and graph.ops[node] != "param" and not graph.boolean[node]


def _needed(graph: ExpressionGraph, roots: list[int]) -> set[int]:
    """The nodes that `roots` need, themselves with them."""
    args, needed = graph.args, set(roots)
    stack = list(needed)
    while stack:
        for arg in args[stack.pop()]:
            if arg not in needed:
                needed.add(arg)
                stack.append(arg)
    return needed


def _evaluation_order(graph: ExpressionGraph, roots: list[int]) -> list[int]:
    """The nodes that `roots` need, each as late as the first that uses it lets it be: few values live at a time."""
    args = graph.args
    order: dict[int, None] = {}
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        missing = () if node in order else [a for a in args[node] if a not in order]
        if missing:
            stack += missing
        else:
            order[stack.pop()] = None
    return list(order)


def _last_uses(graph: ExpressionGraph, order: Sequence[int], roots: Sequence[int]) -> dict[int, int]:
    """node -> the node after which its buffer is free, -1 for results."""
    last = dict.fromkeys(roots, -1)
    for node in reversed(order):
        for arg in graph.args[node]:
            last.setdefault(arg, node)
    return last
