"""What rules make a graph with: nodes, values whose shapes the operators say, constants that are torch's memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from autosched.errors import GraphError
from autosched.graph.graph import Array, Attribute, Graph, Node, Shape, Value, fresh_name
from autosched.graph.operators import results_of
from autosched.ir.dtype import DTYPES

# torch's integers of the size of an element that NumPy has no type for.
_CARRIERS = {1: torch.uint8, 2: torch.int16}

Operand = Value | bool | int | float


def dtype_name(dtype: torch.dtype) -> str:
    """Our name of a type of torch's. Raises GraphError where we have none."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise GraphError(f"the type {dtype} is not one of {', '.join(DTYPES)}")
    return name


def value_of(tensor: torch.Tensor, name: str) -> Value:
    """The value that `tensor` is, which may be a fake one. Raises GraphError for what a graph cannot hold."""
    if tensor.device.type not in ("cpu", "meta") or tensor.layout is not torch.strided:
        raise GraphError(f"{name} is a tensor on {tensor.device} of layout {tensor.layout}, not a dense one on cpu")
    if not all(isinstance(size, int) for size in tensor.shape):
        raise GraphError(f"{name} has sizes that are known at run time only: {list(tensor.shape)}")
    if 0 in tensor.shape:
        raise GraphError(f"{name} has no elements: its shape is {list(tensor.shape)}")
    return Value(name, tuple(tensor.shape), dtype_name(tensor.dtype))


def array_of(tensor: torch.Tensor) -> Array:
    """The tensor's own memory as an array."""
    row = DTYPES[dtype_name(tensor.dtype)]
    plain = tensor.detach().resolve_conj().resolve_neg()
    if not row.in_ml_dtypes:
        array: Array = plain.numpy()
        return array
    carried: Array = plain.view(_CARRIERS[row.nbytes]).numpy()
    return carried.view(row.numpy_dtype)


@dataclass
class TraceBuilder:
    """A graph while it is made. A rule gets one, with what torch says of the results of the operator at hand."""

    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    wanted: tuple[Value | None, ...] = ()  # shapes and types of the results that the rule at hand is asked for
    origin: str = ""
    transposed: dict[str, Value] = field(default_factory=dict)  # what the last two dimensions were exchanged of

    @property
    def result(self) -> Value:
        """The first result that is wanted."""
        found = self.wanted[0]
        assert found is not None, f"{self.origin}: the first result is no tensor"
        return found

    def emit(self, operator: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        """A new node with one result."""
        return self.emit_many(operator, inputs, 1, **attributes)[0]

    def emit_many(
        self, operator: str, inputs: Sequence[Value | None], n_results: int, **attributes: Attribute
    ) -> tuple[Value, ...]:
        stem = next(value.name for value in self.wanted if value is not None)
        names: list[str] = []
        for _ in range(n_results):
            names.append(fresh_name({*self.values, *names}, stem))
        read = tuple(None if x is None else x.name for x in inputs)
        node = Node(operator, read, tuple(names), attributes, self.origin)
        results = results_of(node, self.values)
        self.nodes.append(node)
        self.values.update((value.name, value) for value in results)
        return results

    def declare(self, value: Value) -> Value:
        """The value under a name that is free: an input."""
        made = Value(fresh_name(self.values, value.name), value.shape, value.dtype)
        self.values[made.name] = made
        return made

    def constant(self, array: Array, stem: str = "constant") -> Value:
        made = self.declare(Value(stem, array.shape, array.dtype.name))
        self.constants[made.name] = array
        return made

    def operand(self, x: Operand, dtype: str) -> Value:
        """A tensor or number in this type."""
        if isinstance(x, Value):
            return self.cast(x, dtype)
        if not DTYPES[dtype].is_float and isinstance(x, float) and not math.isfinite(x):
            raise GraphError(f"{self.origin}: {x} is no number of type {dtype}")
        return self.constant(np.array(x).astype(DTYPES[dtype].numpy_dtype))

    def filled(self, shape: Shape, x: bool | int | float, dtype: str) -> Value:
        """A constant that is `x` everywhere, in the memory of one element."""
        return self.constant(np.broadcast_to(np.array(x).astype(DTYPES[dtype].numpy_dtype), shape))

    def cast(self, x: Value, dtype: str) -> Value:
        """As torch casts: truncated to integers, True for what is not 0."""
        if x.dtype == dtype:
            return x
        if dtype == "bool":
            return self.emit("not_equal", x, self.operand(0, x.dtype))
        return self.emit("cast", x, dtype=dtype)

    def reshape(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.emit("reshape", x, shape=shape)

    def expand(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.emit("expand", x, shape=shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        order = tuple(axis % len(x.shape) for axis in perm)
        if order == tuple(range(len(order))):
            return x
        made = self.emit("transpose", x, perm=order)
        if order == (*range(len(order) - 2), len(order) - 1, len(order) - 2):
            self.transposed[made.name] = x
        return made

    def slice(self, x: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """x[start:stop:step] along one dimension; bounds are within it."""
        if (start, stop, step) == (0, x.shape[axis], 1):
            return x
        return self.emit("slice", x, starts=(start,), stops=(stop,), axes=(axis,), steps=(step,))

    def graph(self, inputs: Sequence[str], outputs: Sequence[str], name: str) -> Graph:
        """Of all nodes those that an output needs."""
        read, kept = set(outputs), []
        for node in reversed(self.nodes):
            if not read.isdisjoint(node.outputs):
                kept.append(node)
                read.update(node.used)
        whole = Graph(tuple(inputs), tuple(outputs), (), self.values, self.constants, name)
        return whole.with_nodes(reversed(kept))


def axis_of(x: Value, dim: int) -> int:
    """A dimension counted from the front; that of a scalar is 0."""
    return dim % max(len(x.shape), 1)


def axes_of(x: Value, dims: Any) -> tuple[int, ...]:
    """Dimensions as torch gives them: one, several, or none or an empty list for all."""
    if dims is None or dims == []:
        return tuple(range(len(x.shape)))
    return tuple(sorted(axis_of(x, d) for d in ([dims] if isinstance(dims, int) else dims)))
