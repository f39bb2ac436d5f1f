"""Products of one operand are one product with joined weights, split afterwards.

    q = linear(x, wq, bq); k = linear(x, wk, bk); v = linear(x, wv, bv)
    = split(linear(x, [wq; wk; wv], [bq; bk; bv]))

x is read once, and one kernel has all the columns to share between processors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autosched.graph.graph import Graph, Node
from autosched.graph.passes.rewrite import Change, apply, new_name

_JOINED_ALONG = {"linear": 0, "matmul": 1}  # the dimension of the weights that the result's last one is made of


def merge_siblings(graph: Graph) -> Graph:
    """Joins the constant weights of `linear` and `matmul` nodes that read the same value (Q, K, V; gate, up)."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for n, node in enumerate(graph.nodes):
        if _is_mergeable(graph, node):
            weights = graph.values[node.inputs[1] or ""]
            groups.setdefault((node.operator, node.inputs[0], weights.dtype), []).append(n)
    changes: dict[int, Change] = {}
    for places in groups.values():
        if len(places) > 1:
            first, *others = places
            changes[first] = _joined(graph, [graph.nodes[n] for n in places])
            changes.update((n, Change()) for n in others)
    return apply(graph, changes)


def _is_mergeable(graph: Graph, node: Node) -> bool:
    if node.operator not in _JOINED_ALONG:
        return False
    x, weights, *bias = node.inputs
    is_flat = weights is not None and len(graph.values[weights].shape) == 2
    constants = all(graph.is_constant(name) for name in (weights, *bias) if name is not None)
    return is_flat and constants and not graph.is_constant(x)


def _joined(graph: Graph, nodes: Sequence[Node]) -> Change:
    first, *_ = nodes
    axis = _JOINED_ALONG[first.operator]
    weights = [graph.constants[node.inputs[1] or ""] for node in nodes]
    sizes = tuple(array.shape[axis] for array in weights)
    constants = {new_name(graph, first, "weights"): np.concatenate(weights, axis)}
    biases = [graph.constants.get((*node.inputs, None)[2] or "") for node in nodes]
    given = [bias for bias in biases if bias is not None]
    if given:
        filled = [
            np.zeros(size, given[0].dtype) if bias is None else bias for size, bias in zip(sizes, biases, strict=True)
        ]
        constants[new_name(graph, first, "biases")] = np.concatenate(filled)
    together = new_name(graph, first, "together")
    product = replace(first, inputs=(first.inputs[0], *constants), outputs=(together,))
    rank = len(graph.values[first.outputs[0]].shape)
    ends = tuple(node.outputs[0] for node in nodes)
    return Change((product, Node("split", (together,), ends, {"sizes": sizes, "axis": rank - 1})), constants)
