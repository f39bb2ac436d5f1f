"""Interval analysis of the integers in a graph: the least and the greatest element that a value may have.

The intervals of a node's results follow from its expression and the intervals of its operands. Constants have the
interval of their elements, inputs that of their type. Floats have none, so floats rounded to integers may be anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from autosched.graph.graph import Graph, Node
from autosched.graph.operators import build
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const, Expr
from autosched.ir.stmt import Reducer
from autosched.ir.types import integer_bounds
from autosched.te import Tensor, placeholder
from autosched.te.tensor import ComputeOp, PlaceholderOp, TensorLoad, postorder, rewrite

Interval: TypeAlias = tuple[int, int]
_BOOLS = (0, 1)


def value_ranges(graph: Graph, names: Iterable[str]) -> dict[str, Interval]:
    """Return the intervals of the integer values `names` and of all integer values that they depend on."""
    needed, waiting = set[str](), [*names]
    while waiting:
        name = waiting.pop()
        if name not in needed and _type_range(graph.values[name].dtype) is not None:
            needed.add(name)
            maker = graph.producers.get(name)
            waiting += maker.used if maker is not None else ()
    intervals = {name: _of_source(graph, name) for name in needed if name not in graph.producers}
    for node in graph.nodes:
        if not needed.isdisjoint(node.outputs):
            results = _of_node(graph, node, intervals)
            intervals |= {name: interval for name, interval in results.items() if name in needed}
    return intervals


def _type_range(dtype: str) -> Interval | None:
    """Return the interval of a type; None for floats."""
    row = DTYPES[dtype]
    return row.integer_range if row.is_integer else _BOOLS if row.kind == "b" else None


def _of_source(graph: Graph, name: str) -> Interval:
    """Return the interval of an input or a constant."""
    array = graph.constants.get(name)
    whole = _type_range(graph.values[name].dtype)
    assert whole is not None
    return whole if array is None or not array.size else (int(array.min()), int(array.max()))


def _of_node(graph: Graph, node: Node, known: Mapping[str, Interval]) -> dict[str, Interval]:
    if node.body is not None:
        ranges = {name: _type_range(graph.values[name].dtype) for name in node.outputs}
        return {name: whole for name, whole in ranges.items() if whole is not None}
    operands = [None if name is None else graph.values[name] for name in node.inputs]
    tensors = [None if v is None else placeholder(v.shape, v.dtype, f"x{n}") for n, v in enumerate(operands)]
    intervals = _Stages({
        tensor.key: known[name]
        for name, tensor in zip(node.inputs, tensors, strict=True)
        if name is not None and tensor is not None and name in known
    })  # fmt: skip
    made = zip(node.outputs, build(node, tensors), strict=True)
    return {name: intervals.of(tensor) for name, tensor in made if _type_range(tensor.dtype) is not None}


class _Stages:
    """The intervals of the stages of one node, computed on demand."""

    def __init__(self, known: dict[tuple[int, int], Interval]) -> None:
        self.known = known

    def of(self, tensor: Tensor) -> Interval:
        if tensor.key not in self.known:
            self.known[tensor.key] = self._computed(tensor)
        return self.known[tensor.key]

    def _computed(self, tensor: Tensor) -> Interval:
        whole = _type_range(tensor.dtype)
        assert whole is not None
        if isinstance(tensor.op, PlaceholderOp) or whole == _BOOLS:
            return whole
        low, high = self._of_body(tensor.op, tensor.op.body[tensor.index])
        reducer = tensor.op.reducer
        if reducer is not None and reducer.is_sum:
            terms = math.prod(axis.extent for axis in tensor.op.reduce_axes)
            low, high = terms * low, terms * high
        elif reducer is not None and not _stays_within(reducer, tensor.index, (low, high)):
            return whole
        return (low, high) if whole[0] <= low <= high <= whole[1] else whole

    def _of_body(self, op: ComputeOp, body: Expr) -> Interval:
        """Return the interval of an expression, in which loads of equal elements are replaced by their number."""

        def as_number(node: Expr, new: Expr) -> Expr:
            if not isinstance(node, TensorLoad) or not DTYPES[node.dtype].is_integer:
                return new
            low, high = self.of(node.tensor)
            return Const(low, node.dtype) if low == high else new

        (known,) = rewrite([body], as_number)
        ranges: dict[Expr, Interval] = {axis.var: (0, axis.extent - 1) for axis in (*op.axes, *op.reduce_axes)}
        loads = [e for e in postorder([known]) if isinstance(e, TensorLoad) and _type_range(e.dtype) is not None]
        return integer_bounds(known, {**ranges, **{load: self.of(load.tensor) for load in loads}})


def _stays_within(reducer: Reducer, place: int, interval: Interval) -> bool:
    """Whether a reducer combines two numbers in an interval to one in it, so that the whole reduction is in it."""
    low, high = integer_bounds(reducer.results[place], {reducer.lhs[place]: interval, reducer.rhs[place]: interval})
    return interval[0] <= low <= high <= interval[1]
