"""Narrowed arithmetic in int64 that always fits in int32: sums (`narrow_sums`) and indices (`narrow_indices`).

    S[i] = sum over k < K of int64(X[i, k]) * int64(Y[k])      X, Y int8: no sum leaves int32 for K < 2^17

    S.int32[i] = sum over k of int32(X[i, k]) * int32(Y[k])    S[i] = int64(S.int32[i])

A vector then has twice the lanes, and bytes meet the instructions for their products. Ranges are those of the types of
what is read, through what `integer_bounds` knows.

    A[i, min(j * j, n - 1)]    ->    A[i, int64(min(int32(j) * int32(j), int32(n - 1)))]

Indices that are computed for each lane, to gather by, are 16 to a register of 64 bytes and multiplied in one
instruction. Affine ones are not computed for each lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from autosched.ir.dtype import DTYPES
from autosched.ir.expr import INDEX, Cast, Expr, Load, cast
from autosched.ir.size import has_size
from autosched.ir.types import integer_bounds
from autosched.ir.visit import is_data, loads, rebuild
from autosched.te.dag import ComputeDAG
from autosched.te.reducers import sum_reducer
from autosched.te.tensor import ComputeOp, Tensor, fresh_name, rewrite

NARROW = "int32"


def narrow_sums(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with its sums in int64 in int32 where those fit; `dag` itself where there are none."""
    taken = dag.names
    return dag.remade(lambda op: _in_two(op, fresh_name(f"{op.name}.{NARROW}", taken)) if _fits(op) else None)


def narrow_indices(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with its indices that are data, or other arithmetic, in int32 where they fit; `dag` itself where none
    do."""
    return dag.remade(_with_narrow_indices)


def _with_narrow_indices(op: ComputeOp) -> tuple[Tensor, ...] | None:
    ranges = _ranges(op)

    def narrow(node: Expr, new: Expr) -> Expr:
        if not isinstance(node, Load):
            return new
        pairs = zip(node.indices, new.children, strict=True)
        indices = tuple(cast(_narrow(x), INDEX) if _is_rebuilt(i) and _keeps(i, ranges) else x for i, x in pairs)
        load: Load = Load(node.buffer, indices, node.dtype)
        return load

    body = rewrite(op.body, narrow)
    return None if body == op.body else replace(op, body=body).outputs


def _ranges(op: ComputeOp) -> dict[Expr, tuple[int, int]]:
    return {a.var: (0, a.extent - 1) for a in (*op.axes, *op.reduce_axes) if not has_size(a.extent)}


def _fits(op: ComputeOp) -> bool:
    """Whether the stage adds up int64 numbers of which no partial sum leaves int32."""
    if op.reducer is None or not op.reducer.is_sum or op.body[0].dtype != "int64" or not loads(op.body[0]):
        return False
    ranges = _ranges(op)
    low, high = integer_bounds(op.body[0], ranges)
    terms = prod(a.extent for a in op.reduce_axes)
    return _is_narrow((min(0, terms * low), max(0, terms * high))) and _keeps(op.body[0], ranges)


def _in_two(op: ComputeOp, name: str) -> tuple[Tensor, ...]:
    narrow = ComputeOp(name, op.axes, op.reduce_axes, (_narrow(op.body[0]),), sum_reducer(NARROW), op.inputs)
    load: Load = Load(name, tuple(a.var for a in op.axes), NARROW)
    return ComputeOp(op.name, op.axes, (), (cast(load, "int64"),), None, narrow.outputs).outputs


def _is_narrow(bounds: tuple[int, int]) -> bool:
    low, high = DTYPES[NARROW].integer_range
    return low <= bounds[0] and bounds[1] <= high


def _keeps(e: Expr, ranges: Mapping[Expr, tuple[int, int]]) -> bool:
    """Whether the number, and whatever `_narrow` makes it of, is the same in int32."""
    if not DTYPES[e.dtype].is_integer or not _is_narrow(integer_bounds(e, ranges)):
        return False
    return not _is_rebuilt(e) or all(x.dtype == "bool" or _keeps(x, ranges) for x in e.children)


def _is_rebuilt(e: Expr) -> bool:
    return e.dtype == INDEX and is_data(e) and not isinstance(e, Cast | Load)


def _narrow(e: Expr) -> Expr:
    """The number in int32, in which it fits."""
    if _is_rebuilt(e):
        return rebuild(e, lambda x: x if x.dtype == "bool" else _narrow(x))
    return cast(e.a if isinstance(e, Cast) and e.a.dtype != "bool" else e, NARROW)
