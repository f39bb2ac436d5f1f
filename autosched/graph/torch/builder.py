"""Graph under construction: nodes, values with inferred shapes, and constants in torch's own memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from autosched.errors import GraphError
from autosched.graph.graph import Array, Attribute, Graph, Node, Shape, Value, fresh_name
from autosched.graph.operators import results_of
from autosched.graph.torch.sizes import layout_of
from autosched.ir.dtype import DTYPES
from autosched.ir.size import has_size

# torch's integer types of the size of element types that NumPy lacks.
_CARRIERS = {1: torch.uint8, 2: torch.int16}

Operand = Value | bool | int | float


def dtype_name(dtype: torch.dtype) -> str:
    """Return our name of a type of torch. Raises GraphError for an unsupported one."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise GraphError(f"the type {dtype} is not one of {', '.join(DTYPES)}")
    return name


def value_of(tensor: torch.Tensor, name: str) -> Value:
    """Return shape and type of `tensor`, which may be a fake tensor, as a value. Raises GraphError."""
    if tensor.device.type not in ("cpu", "meta") or tensor.layout is not torch.strided:
        raise GraphError(f"{name} is a tensor on {tensor.device} of layout {tensor.layout}, not a dense one on cpu")
    if not all(isinstance(size, int) for size in tensor.shape):
        raise GraphError(f"{name} has sizes that are known at run time only: {list(tensor.shape)}")
    return Value(name, layout_of(tensor).shape, dtype_name(tensor.dtype))


def array_of(tensor: torch.Tensor) -> Array:
    """Return an array in the tensor's own memory."""
    row = DTYPES[dtype_name(tensor.dtype)]
    plain = tensor.detach().resolve_conj().resolve_neg()
    if not row.in_ml_dtypes:
        array: Array = plain.numpy()
        return array
    carried: Array = plain.view(_CARRIERS[row.nbytes]).numpy()
    return carried.view(row.numpy_dtype)


@dataclass
class TraceBuilder:
    """A graph under construction, with torch's shapes and types of the results of the operator that a rule imports."""

    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    expected: tuple[Value | None, ...] = ()  # shapes and types of the results of the current rule
    origin: str = ""
    transposed: dict[str, Value] = field(default_factory=dict)  # the operands of transpositions of the last two axes

    n_names: int = 0  # that `new_name` has given

    def new_name(self, stem: str) -> str:
        """Return a name that no value has, another one for each call."""
        self.n_names += 1
        return fresh_name(self.values, f"{stem}.{self.n_names}")

    def add_value(self, value: Value) -> None:
        self.values[value.name] = value

    def add_node(
        self, operator: str, inputs: Sequence[str | None], attributes: Mapping[str, Attribute], n: int, origin: str
    ) -> tuple[str, ...]:
        """Add a node with `n` results, and return their names."""
        node = Node(operator, tuple(inputs), tuple(self.new_name(origin) for _ in range(n)), attributes, origin)
        results = results_of(node, self.values)
        self.nodes.append(node)
        self.values.update((value.name, value) for value in results)
        return node.outputs

    @property
    def result(self) -> Value:
        """The first expected result."""
        first = self.expected[0]
        assert first is not None, f"{self.origin}: the first result is no tensor"
        return first

    def emit(self, operator: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        """Add a node with one result."""
        return self.emit_many(operator, inputs, 1, **attributes)[0]

    def emit_many(
        self, operator: str, inputs: Sequence[Value | None], n_results: int, **attributes: Attribute
    ) -> tuple[Value, ...]:
        stem = next(value.name for value in self.expected if value is not None)
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
        """Add an input under a fresh name."""
        made = Value(fresh_name(self.values, value.name), value.shape, value.dtype)
        self.values[made.name] = made
        return made

    def constant(self, array: Array, stem: str = "constant") -> Value:
        made = self.declare(Value(stem, array.shape, array.dtype.name))
        self.constants[made.name] = array
        return made

    def operand(self, x: Operand, dtype: str) -> Value:
        """Return a tensor or number converted to a type."""
        if isinstance(x, Value):
            return self.cast(x, dtype)
        if has_size((x,)):
            return self.emit("number", value=x, dtype=dtype)
        if not DTYPES[dtype].is_float and isinstance(x, float) and not math.isfinite(x):
            raise GraphError(f"{self.origin}: {x} is no number of type {dtype}")
        return self.constant(np.array(x).astype(DTYPES[dtype].numpy_dtype))

    def filled(self, shape: Shape, x: bool | int | float, dtype: str) -> Value:
        """Add a constant whose elements are all `x`, in the memory of one element."""
        if has_size((shape, x)):
            return self.expand(self.operand(x, dtype), shape)
        return self.constant(np.broadcast_to(np.array(x).astype(DTYPES[dtype].numpy_dtype), shape))

    def cast(self, x: Value, dtype: str) -> Value:
        """Cast as torch does: floats are truncated to integers, other numbers than 0 are True."""
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
        """Return x[start:stop:step] along one axis; the bounds are within it."""
        if (start, stop, step) == (0, x.shape[axis], 1):
            return x
        return self.emit("slice", x, starts=(start,), stops=(stop,), axes=(axis,), steps=(step,))

    def graph(self, inputs: Sequence[str], outputs: Sequence[str], name: str) -> Graph:
        """Return the graph of the nodes that outputs depend on."""
        read, kept = set(outputs), []
        for node in reversed(self.nodes):
            if not read.isdisjoint(node.outputs):
                kept.append(node)
                read.update(node.used)
        whole = Graph(tuple(inputs), tuple(outputs), (), self.values, self.constants, name)
        return whole.with_nodes(reversed(kept))


def axis_of(x: Value, dim: int) -> int:
    """Return an axis counted from the start; 0 for a scalar."""
    return dim % max(len(x.shape), 1)


def axes_of(x: Value, dims: Any) -> tuple[int, ...]:
    """Return the axes of torch's `dims`: one, several, or None or an empty list for all."""
    if dims is None or dims == []:
        return tuple(range(len(x.shape)))
    return tuple(sorted(axis_of(x, d) for d in ([dims] if isinstance(dims, int) else dims)))
