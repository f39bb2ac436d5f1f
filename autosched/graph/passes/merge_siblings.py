"""Horizontal fusion: products of one operand become one product with concatenated weights, split afterwards.

    q = linear(x, wq, bq); k = linear(x, wk, bk); v = linear(x, wv, bv)
    q, k, v = split(linear(x, [wq; wk; wv], [bq; bk; bv]))

x is read once, and one kernel has all columns to distribute over threads. A bias that is added to a matmul is
concatenated too, so that it remains in the epilogue of the product.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autosched.graph.graph import Array, Graph, Node
from autosched.graph.passes.rewrite import Change, apply, new_name, read_once

# The dimension along which weights are concatenated, that of the result's columns, and the number of their arrays.
_CONCATENATED_ALONG = {"linear": (0, 1), "matmul": (1, 1), "linear_few_bits": (0, 3)}


@dataclass(frozen=True)
class _Sibling:
    """A product with its bias: its nodes, the last of which computes `end`, and its constants; None for an optional
    array of weights that is left out."""

    nodes: tuple[Node, ...]
    weights: tuple[Array | None, ...]
    bias: Array | None

    @property
    def signature(self) -> tuple[object, ...]:
        """Operator, operand, attributes and shapes, which siblings have in common."""
        first = self.nodes[0]
        axis = _CONCATENATED_ALONG[first.operator][0]
        shared = [None if w is None else (w.dtype.name, *_others(w, axis)) for w in self.weights]
        return first.operator, first.inputs[0], json.dumps(sorted(first.attributes.items()), default=str), *shared

    @property
    def end(self) -> str:
        return self.nodes[-1].outputs[0]


def merge_siblings(graph: Graph) -> Graph:
    """Merge the `linear` and `matmul` nodes with constant weights that read the same value (Q, K, V; gate, up)."""
    places = {node.outputs[0]: n for n, node in enumerate(graph.nodes)}
    groups: dict[tuple[object, ...], list[_Sibling]] = {}
    for node in graph.nodes:
        sibling = _sibling(graph, node) if node.operator in _CONCATENATED_ALONG else None
        if sibling is not None:
            groups.setdefault(sibling.signature, []).append(sibling)
    changes: dict[int, Change] = {}
    for siblings in groups.values():
        if len(siblings) > 1:
            changes.update((places[node.outputs[0]], Change()) for each in siblings for node in each.nodes)
            first = siblings[0].nodes[0]
            changes[places[first.outputs[0]]] = _merge(graph, first, siblings)
    return apply(graph, changes)


def _sibling(graph: Graph, node: Node) -> _Sibling | None:
    """Return a product with its weights; None if weights or bias are no constants or have more than 2 dimensions."""
    n_weights = _CONCATENATED_ALONG[node.operator][1]
    given = (*node.inputs, *(None,) * (n_weights + 2 - len(node.inputs)))
    x, names = given[0], given[1:]
    arrays = tuple(None if name is None else graph.constants.get(name) for name in names[:n_weights])
    missing = any(array is None and name is not None for array, name in zip(arrays, names, strict=False))
    bias = names[n_weights]
    wrong = arrays[0] is None or any(array is not None and array.ndim != 2 for array in arrays)
    if missing or wrong or graph.is_constant(x) or (bias and not graph.is_constant(bias)):
        return None
    if bias:
        return _Sibling((node,), arrays, graph.constants[bias])
    return _with_bias(graph, node, arrays) or _Sibling((node,), arrays, None)


def _with_bias(graph: Graph, node: Node, weights: tuple[Array | None, ...]) -> _Sibling | None:
    """Return a product with the `add` of a constant for each column after it, or None."""
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


def _merge(graph: Graph, first: Node, siblings: Sequence[_Sibling]) -> Change:
    axis, made = _CONCATENATED_ALONG[first.operator][0], graph.values[first.outputs[0]]
    together = new_name(graph, first, "together")
    sizes = tuple(graph.values[each.nodes[0].outputs[0]].shape[-1] for each in siblings)
    constants: dict[str, Array] = {}
    inputs = [first.inputs[0]]
    for n, parts in enumerate(zip(*(each.weights for each in siblings), strict=True)):
        given = [part for part in parts if part is not None]
        inputs.append(new_name(graph, first, f"weights{n or ''}") if given else None)
        constants |= {str(inputs[-1]): np.concatenate(given, axis)} if given else {}
    biases = _biases(graph, first, siblings)
    constants |= biases
    inputs += biases if first.operator != "matmul" else ()
    while inputs[-1] is None:
        inputs.pop()
    nodes = [replace(first, inputs=tuple(inputs), outputs=(together,))]
    if first.operator == "matmul" and biases:
        shifted = new_name(graph, first, "shifted")
        nodes.append(Node("add", (together, *biases), (shifted,)))
        together = shifted
    ends = tuple(each.end for each in siblings)
    nodes.append(Node("split", (together,), ends, {"sizes": sizes, "axis": len(made.shape) - 1}))
    return Change(tuple(nodes), constants)


def _others(array: Array, axis: int) -> tuple[int, ...]:
    """Return the sizes of the dimensions along which arrays are not concatenated."""
    return (*array.shape[:axis], *array.shape[axis + 1 :])


def _biases(graph: Graph, first: Node, siblings: Sequence[_Sibling]) -> Mapping[str, Array]:
    """Return the concatenated bias, with 0 for products without one; nothing if none has a bias."""
    given = [each.bias for each in siblings if each.bias is not None]
    if not given:
        return {}
    parts = [
        np.zeros(graph.values[each.end].shape[-1], given[0].dtype) if each.bias is None else each.bias
        for each in siblings
    ]
    return {new_name(graph, first, "biases"): np.concatenate(parts)}
