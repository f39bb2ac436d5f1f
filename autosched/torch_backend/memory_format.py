"""Networks whose ends lie in memory in another order of dimensions than the graph has, as channels_last images do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autosched.graph.graph import Graph, Node, Shape, Value, fresh_name

Order = tuple[int, ...]  # dimensions, the outermost in memory first


def order_of(shape: Shape, strides: Sequence[int]) -> Order | None:
    """In which order the dimensions of a tensor lie in memory; None where it has gaps or elements lie over others."""
    plain = tuple(range(len(shape)))
    by_stride = tuple(sorted(plain, key=lambda d: -strides[d]))
    for order in (plain, (*(d for d in by_stride if shape[d] == 1), *(d for d in by_stride if shape[d] != 1))):
        if _is_dense([shape[d] for d in order], [strides[d] for d in order]):
            return order
    return None


def with_orders(graph: Graph, inputs: Mapping[str, Order], outputs: Mapping[int, Order]) -> Graph:
    """The graph for callers whose `inputs`, and `outputs` by their place, lie in these orders: each of them becomes a
    value of the shape that memory has. One whose order is that of its dimensions stays."""
    ends, before, after, values = [*graph.outputs], list[Node](), list[Node](), list[Value]()
    names: dict[str, str] = {}
    for name, order in inputs.items():
        if order != tuple(range(len(order))):
            made = _in_memory(graph, name, order)
            back = tuple(order.index(d) for d in range(len(order)))
            before.append(Node("transpose", (made.name,), (name,), {"perm": back}))
            values.append(made)
            names[name] = made.name
    for place, order in outputs.items():
        if order != tuple(range(len(order))):
            made = _in_memory(graph, graph.outputs[place], order, f".{place}")
            after.append(Node("transpose", (graph.outputs[place],), (made.name,), {"perm": order}))
            values.append(made)
            ends[place] = made.name
    if not values:
        return graph
    turned = replace(graph, inputs=tuple(names.get(name, name) for name in graph.inputs))
    return turned.with_nodes([*before, *graph.nodes, *after], values, outputs=ends)


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _in_memory(graph: Graph, name: str, order: Order, ending: str = "") -> Value:
    found = graph.values[name]
    shape = tuple(found.shape[d] for d in order)
    return Value(fresh_name(graph.values, f"{name}.in_memory{ending}"), shape, found.dtype)
