"""`narrow_sums`: sums in int64 that fit in int32 whatever the data are made there, and converted once.

    S[i] = sum over k < K of int64(X[i, k]) * int64(Y[k])      X, Y int8: no sum leaves int32 for K < 2^17

    S.int32[i] = sum over k of int32(X[i, k]) * int32(Y[k])    S[i] = int64(S.int32[i])

A vector then has twice the lanes, and bytes meet the instructions for their products. Ranges are those of the types of
what is read, through sums, differences, products, minima, maxima and choices.
"""

from __future__ import annotations

from math import prod

from autosched.ir.expr import DTYPES, Binary, Cast, Const, Expr, Load, Select, Var, cast
from autosched.ir.types import integer_range
from autosched.ir.visit import loads, rebuild
from autosched.te.dag import ComputeDAG
from autosched.te.reducers import sum_reducer
from autosched.te.tensor import ComputeOp, Tensor, fresh_name

NARROW = "int32"
Range = tuple[int, int]


def narrow_sums(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with its sums in int64 in int32 where those fit; `dag` itself where there are none."""
    taken = dag.names
    return dag.remade(lambda op: _in_two(op, fresh_name(f"{op.name}.{NARROW}", taken)) if _fits(op) else None)


def _fits(op: ComputeOp) -> bool:
    """Whether the stage adds up int64 numbers of which no partial sum leaves int32."""
    if op.reducer is None or not op.reducer.is_sum or op.body[0].dtype != "int64" or not loads(op.body[0]):
        return False
    term = _range(op.body[0], {a.var: (0, a.extent - 1) for a in (*op.axes, *op.reduce_axes)})
    terms = prod(a.extent for a in op.reduce_axes)
    return term is not None and _within((min(0, terms * term[0]), max(0, terms * term[1])), NARROW)


def _in_two(op: ComputeOp, name: str) -> tuple[Tensor, ...]:
    narrow = ComputeOp(name, op.axes, op.reduce_axes, (_narrow(op.body[0]),), sum_reducer(NARROW), op.inputs)
    load: Load = Load(name, tuple(a.var for a in op.axes), NARROW)
    return ComputeOp(op.name, op.axes, (), (cast(load, "int64"),), None, narrow.outputs).outputs


def _within(values: Range, dtype: str) -> bool:
    low, high = integer_range(dtype)
    return low <= values[0] and values[1] <= high


def _range(e: Expr, axes: dict[Var, Range]) -> Range | None:
    """Bounds of an integer that hold for all data, without overflow on the way, in int32 as well; None for others."""
    found = _bounds(e, axes)
    return found if found is not None and _within(found, e.dtype) and _within(found, NARROW) else None


def _bounds(e: Expr, axes: dict[Var, Range]) -> Range | None:
    match e:
        case Const(value=value, dtype=dtype) if DTYPES[dtype][0] in "iu":
            return int(value), int(value)
        case Var():
            return axes[e]
        case Load(dtype="int8" | "uint8" as dtype):
            return integer_range(dtype)
        case Cast(a=a):
            return (0, 1) if a.dtype == "bool" else _range(a, axes) if DTYPES[a.dtype][0] in "iu" else None
        case Select(a=a, b=b) | Binary(op="add" | "sub" | "mul" | "min" | "max", a=a, b=b):
            x, y = _range(a, axes), _range(b, axes)
            return None if x is None or y is None else _combined(e, x, y)
    return None


def _combined(e: Expr, x: Range, y: Range) -> Range:
    """Bounds of a choice between x and y, or of an operation on them."""
    match e:
        case Binary(op="add"):
            return x[0] + y[0], x[1] + y[1]
        case Binary(op="sub"):
            return x[0] - y[1], x[1] - y[0]
        case Binary(op="mul"):
            corners = [a * b for a in x for b in y]
            return min(corners), max(corners)
    return min(*x, *y), max(*x, *y)


def _narrow(e: Expr) -> Expr:
    """The number in int32, in which it fits."""
    if e.dtype != "int64" or not loads(e):
        return cast(e, NARROW)
    return cast(e.a, NARROW) if isinstance(e, Cast) else rebuild(e, lambda x: x if x.dtype == "bool" else _narrow(x))
