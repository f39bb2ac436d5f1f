"""Removal of values without elements, so that no kernel and no buffer of a network has a size of 0.

    x[0, 3] @ w[3, 4]                     ->  a constant [0, 4]
    concat(x[2, 3], past[0, 3], axis=0)   ->  concat(x)
    linear(x[2, 0], w[4, 0], b[4])        ->  expand(b, [2, 4])
    reduce_max(x[2, 0], axes=[1])         ->  -inf in [2]

Inputs without elements stay, and nothing reads them; outputs without elements are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array, Attribute, Graph, Node, Value, fresh_name
from autosched.graph.interpret import evaluate_node
from autosched.graph.operators import build, own_result
from autosched.graph.passes.rewrite import Change, new_name, rewrite
from autosched.ir.dtype import DTYPES
from autosched.te import ComputeDAG, placeholder
from autosched.te.rewrites.empty import fold_empty


def remove_empty_values(graph: Graph) -> Graph:
    """Replace values without elements by constants, and nodes that read such values by what they compute then.

    Raises GraphError for a node that reads one and whose result depends on its other operands, other than those below.
    """
    return rewrite(graph, _without_empty) if any(value.is_empty for value in graph.values.values()) else graph


def _without_empty(graph: Graph, node: Node) -> Change | None:
    results = [graph.values[name] for name in node.outputs]
    empty = {value.name: _zeros(value) for value in results if value.is_empty}
    if len(empty) == len(results):
        return Change(constants=empty)
    if empty:
        return _split(node, empty)
    if not any(graph.values[name].is_empty for name in node.used):
        return None
    return _READERS.get(node.operator, _constant)(graph, node)


def _zeros(value: Value) -> Array:
    """Return zeros of the shape and type of a value, in the memory of one element."""
    return np.broadcast_to(np.zeros((), DTYPES[value.dtype].numpy_dtype), value.shape)


def _split(node: Node, empty: Mapping[str, Array]) -> Change:
    """Split into the parts with elements."""
    sizes, outputs = node.attributes["sizes"], tuple(name for name in node.outputs if name not in empty)
    assert isinstance(sizes, tuple), f"{node} has results with and without elements"
    attributes = {**node.attributes, "sizes": tuple(size for size in sizes if size)}
    return Change((replace(node, outputs=outputs, attributes=attributes),), empty)


def _concat(graph: Graph, node: Node) -> Change:
    """Concatenate the operands with elements."""
    full = tuple(name for name in node.inputs if name is not None and not graph.values[name].is_empty)
    return Change((replace(node, inputs=full),))


def _unchanged(graph: Graph, node: Node) -> Change:
    """Return the first operand, as there are no updates of it."""
    return Change((replace(node, operator="identity", inputs=node.inputs[:1], attributes={}),))


def _sum_of_none(graph: Graph, node: Node) -> Change:
    """Return the bias alone, or zeros."""
    result, bias = graph.values[node.outputs[0]], node.inputs[2] if len(node.inputs) > 2 else None
    beta = node.attributes.get("beta", 1.0)
    if node.operator not in _WITH_BIAS or bias is None or beta == 0:
        return _filled(graph, node, _zeros(result))
    value, constants = graph.values[bias], dict[str, Array]()
    steps: list[tuple[str, tuple[str, ...], dict[str, Attribute]]] = []
    if beta != 1:
        name = new_name(graph, node, "beta")
        constants[name] = np.asarray(beta).astype(DTYPES[value.dtype].numpy_dtype)
        steps.append(("mul", (name,), {}))
    if value.dtype != result.dtype:
        steps.append(("cast", (), {"dtype": result.dtype}))
    if node.operator in ("conv", "conv_transpose") and not node.attributes.get("channels_last"):
        steps.append(("reshape", (), {"shape": (*value.shape, *(1 for _ in result.shape[2:]))}))
    steps.append(("expand", (), {"shape": result.shape}))
    nodes, at, taken = list[Node](), bias, {*graph.values, *constants}
    for n, (operator, others, attributes) in enumerate(steps, 1):
        name = result.name if n == len(steps) else fresh_name(taken, f"{result.name}.bias")
        taken.add(name)
        nodes.append(Node(operator, (at, *others), (name,), attributes, node.origin))
        at = name
    return Change(tuple(nodes), constants)


def _attention(graph: Graph, node: Node) -> Change:
    """With vectors without elements, whose scores are all 0, give queries and keys one element, 0."""
    if graph.values[node.inputs[1] or ""].shape[-2] == 0:
        return _constant(graph, node)
    inputs, constants = list(node.inputs), dict[str, Array]()
    for n in range(2):
        value = graph.values[node.inputs[n] or ""]
        inputs[n] = fresh_name({*graph.values, *constants}, f"{value.name}.zeros")
        constants[inputs[n] or ""] = _zeros(replace(value, shape=(*value.shape[:-1], 1)))
    return Change((replace(node, inputs=tuple(inputs)),), constants)


def _constant(graph: Graph, node: Node) -> Change:
    """Return the results, which depend on no element of an operand."""
    labels = {name: f"x{n}" for n, name in enumerate(node.used)}
    tensors = {n: placeholder(graph.values[n].shape, graph.values[n].dtype, labels[n]) for n in node.used}
    dag = fold_empty(
        ComputeDAG([own_result(t) for t in build(node, [None if x is None else tensors[x] for x in node.inputs])])
    )
    if any(load.buffer in labels.values() for op in dag.stages for load in dag.reads(op)):
        read = ", ".join(str(graph.values[name]) for name in node.used)
        raise GraphError(f"{node.origin or node.operator} of values without elements and others, {read}: not supported")
    results = evaluate_node(node, graph, {name: _zeros(graph.values[name]) for name in node.used})
    if len(results) == 1:
        return _filled(graph, node, results[0])
    return Change(constants=dict(zip(node.outputs, results, strict=True)))


def _filled(graph: Graph, node: Node, array: Array) -> Change:
    """Return the result `array`; one number is stored if all its elements are equal."""
    first = array[(0,) * array.ndim]
    if array.ndim == 0 or not np.array_equal(array, np.broadcast_to(first, array.shape), equal_nan=True):
        return Change(constants={node.outputs[0]: array})
    name = new_name(graph, node, "fill")
    expand = Node("expand", (name,), node.outputs, {"shape": array.shape}, node.origin)
    return Change((expand,), {name: np.asarray(first, array.dtype)})


_WITH_BIAS = ("linear", "gemm", "conv", "conv_transpose")
# What computes the results of an operator, with elements, of operands of which at least one has none.
_READERS: Mapping[str, Callable[[Graph, Node], Change]] = {
    "concat": _concat,
    "attention": _attention,
    **dict.fromkeys(("scatter_elements", "scatter_nd", "write_rows"), _unchanged),
    **dict.fromkeys((*_WITH_BIAS, "matmul", "einsum", "matmul_integer", "conv_integer"), _sum_of_none),
}
