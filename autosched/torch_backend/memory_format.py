"""Memory format of inputs and outputs: the order in which a tensor's dimensions are stored, such as channels_last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autosched.graph.graph import Graph, Node, Shape, Value, fresh_name

MemoryFormat = tuple[int, ...]  # dimensions, the outermost in memory first


def memory_format_of(shape: Shape, strides: Sequence[int]) -> MemoryFormat | None:
    """Return the memory format of a tensor; None if its elements overlap or have gaps between them."""
    plain = tuple(range(len(shape)))
    by_stride = tuple(sorted(plain, key=lambda d: -strides[d]))
    for order in (plain, (*(d for d in by_stride if shape[d] == 1), *(d for d in by_stride if shape[d] != 1))):
        if _is_dense([shape[d] for d in order], [strides[d] for d in order]):
            return order
    return None


def with_memory_formats(graph: Graph, inputs: Mapping[str, MemoryFormat], outputs: Mapping[int, MemoryFormat]) -> Graph:
    """Return the graph with `inputs` by name and `outputs` by index in these memory formats.

    Each becomes a value of the stored shape, with a transpose to or from the graph's own; those whose format is the
    order of their dimensions stay.
    """
    new_outputs, before, after, values = [*graph.outputs], list[Node](), list[Node](), list[Value]()
    names: dict[str, str] = {}
    for name, order in inputs.items():
        if order != tuple(range(len(order))):
            stored = _stored_value(graph, name, order)
            inverse = tuple(order.index(d) for d in range(len(order)))
            before.append(Node("transpose", (stored.name,), (name,), {"perm": inverse}))
            values.append(stored)
            names[name] = stored.name
    for n, order in outputs.items():
        if order != tuple(range(len(order))):
            stored = _stored_value(graph, graph.outputs[n], order, f".{n}")
            after.append(Node("transpose", (graph.outputs[n],), (stored.name,), {"perm": order}))
            values.append(stored)
            new_outputs[n] = stored.name
    if not values:
        return graph
    renamed = replace(graph, inputs=tuple(names.get(name, name) for name in graph.inputs))
    return renamed.with_nodes([*before, *graph.nodes, *after], values, outputs=new_outputs)


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _stored_value(graph: Graph, name: str, order: MemoryFormat, suffix: str = "") -> Value:
    value = graph.values[name]
    shape = tuple(value.shape[d] for d in order)
    return Value(fresh_name(graph.values, f"{name}.in_memory{suffix}"), shape, value.dtype)
