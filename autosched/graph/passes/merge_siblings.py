"""Products of one operand are one product with joined weights, split afterwards.

    q = linear(x, wq, bq); k = linear(x, wk, bk); v = linear(x, wv, bv)
    q, k, v = split(linear(x, [wq; wk; wv], [bq; bk; bv]))

x is read once, and one kernel has all the columns to share between processors. A bias that is added to a matmul is
joined too, so that it stays with the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autosched.graph.graph import Array, Graph, Node
from autosched.graph.passes.rewrite import Change, apply, new_name, read_once

_JOINED_ALONG = {"linear": 0, "matmul": 1}  # the dimension of the weights that the result's last one is made of


@dataclass(frozen=True)
class _Sibling:
    """A product: the nodes that it takes, the last of which makes `end`, and their constants."""

    nodes: tuple[Node, ...]
    weights: Array
    bias: Array | None

    @property
    def end(self) -> str:
        return self.nodes[-1].outputs[0]


def merge_siblings(graph: Graph) -> Graph:
    """Joins the constant weights of `linear` and `matmul` nodes that read the same value (Q, K, V; gate, up)."""
    places = {node.outputs[0]: n for n, node in enumerate(graph.nodes)}
    groups: dict[tuple[object, ...], list[_Sibling]] = {}
    for node in graph.nodes:
        sibling = _sibling(graph, node) if node.operator in _JOINED_ALONG else None
        if sibling is not None:
            kind = (node.operator, node.inputs[0], sibling.weights.dtype.name)
            groups.setdefault(kind, []).append(sibling)
    changes: dict[int, Change] = {}
    for siblings in groups.values():
        if len(siblings) > 1:
            changes.update((places[node.outputs[0]], Change()) for each in siblings for node in each.nodes)
            first = siblings[0].nodes[0]
            changes[places[first.outputs[0]]] = _joined(graph, first, siblings)
    return apply(graph, changes)


def _sibling(graph: Graph, node: Node) -> _Sibling | None:
    """None where weights or bias are no constants, or there is more than one matrix of them."""
    x, weights, bias = (*node.inputs, None)[:3]
    array = graph.constants.get(weights or "")
    if array is None or array.ndim != 2 or graph.is_constant(x) or (bias and not graph.is_constant(bias)):
        return None
    if bias:
        return _Sibling((node,), array, graph.constants[bias])
    return _with_bias(graph, node, array) or _Sibling((node,), array, None)


def _with_bias(graph: Graph, node: Node, weights: Array) -> _Sibling | None:
    """With the node after a product that adds a constant for each column to it, and nothing else reads it."""
    made = graph.values[node.outputs[0]]
    if not read_once(graph, made.name) or graph.users[made.name][0].operator != "add":
        return None
    (after,) = graph.users[made.name]
    other = next((name for name in after.used if name != made.name), None)
    array, end = graph.constants.get(other or ""), graph.values[after.outputs[0]]
    columns = made.shape[-1]
    if array is None or (end.shape, end.dtype) != (made.shape, made.dtype) or array.dtype.name != made.dtype:
        return None
    is_for_columns = array.ndim > 0 and array.shape[-1] == array.size == columns
    return _Sibling((node, after), weights, array.reshape(columns)) if is_for_columns else None


def _joined(graph: Graph, first: Node, siblings: Sequence[_Sibling]) -> Change:
    axis, made = _JOINED_ALONG[first.operator], graph.values[first.outputs[0]]
    weights, together = new_name(graph, first, "weights"), new_name(graph, first, "together")
    sizes = tuple(each.weights.shape[axis] for each in siblings)
    constants = {weights: np.concatenate([each.weights for each in siblings], axis), **_biases(graph, first, siblings)}
    inputs = (first.inputs[0], *constants)
    nodes = [replace(first, inputs=inputs, outputs=(together,))]
    if first.operator == "matmul" and len(inputs) > 2:
        shifted = new_name(graph, first, "shifted")
        nodes = [replace(first, inputs=inputs[:2], outputs=(together,))]
        nodes.append(Node("add", (together, inputs[2]), (shifted,)))
        together = shifted
    ends = tuple(each.end for each in siblings)
    nodes.append(Node("split", (together,), ends, {"sizes": sizes, "axis": len(made.shape) - 1}))
    return Change(tuple(nodes), constants)


def _biases(graph: Graph, first: Node, siblings: Sequence[_Sibling]) -> Mapping[str, Array]:
    """The joined bias, with 0 for those that have none; nothing where none has one."""
    given = [each.bias for each in siblings if each.bias is not None]
    if not given:
        return {}
    parts = [
        np.zeros(graph.values[each.end].shape[-1], given[0].dtype) if each.bias is None else each.bias
        for each in siblings
    ]
    return {new_name(graph, first, "biases"): np.concatenate(parts)}
