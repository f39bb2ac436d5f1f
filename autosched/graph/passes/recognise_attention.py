"""softmax(q @ k.T * scale + mask) @ v is one node, so that the scores need not be kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from autosched.graph.graph import Attribute, Graph, Node
from autosched.graph.passes.merge_layouts import composed, permutation
from autosched.graph.passes.rewrite import Change, made_by, new_name, number, read_once, rewrite
from autosched.ir.dtype import DTYPES


@dataclass(frozen=True)
class _Scores:
    """What softmax is taken of: q @ keys * scale + mask."""

    q: str
    keys: str  # [..., D, L]
    scale: float
    mask: str | None


def recognise_attention(graph: Graph) -> Graph:
    """One node for the products, the mask and the softmax of attention. Constants that mask all that comes after
    become `causal`."""
    return rewrite(graph, _attention)


def _attention(graph: Graph, node: Node) -> Change | None:
    weights, v = (*node.inputs, None, None)[:2]
    softmax = made_by(graph, _uncast(graph, weights), "softmax") if node.operator == "matmul" else None
    if softmax is None or v is None:
        return None
    rank = len(graph.values[softmax.outputs[0]].shape)
    scores = _scores(graph, _uncast(graph, softmax.inputs[0]))
    if scores is None or cast("int", softmax.attributes["axis"]) % rank != rank - 1:
        return None
    path = (cast("str", weights), softmax.outputs[0], softmax.used[0])
    if not all(read_once(graph, name) for name in path):
        return None
    keys = _turned_back(graph, node, scores.keys)
    if keys is None:
        return None
    turned, k, shape, factor = keys
    q, values, made = graph.values[scores.q], graph.values[v], graph.values[node.outputs[0]]
    is_alike = q.shape[:-2] == shape[:-2] == values.shape[:-2] and len(q.shape) >= 3
    if not is_alike or not q.dtype == graph.values[scores.keys].dtype == values.dtype == made.dtype:
        return None
    attributes: dict[str, Attribute] = {"scale": scores.scale * factor}
    mask = scores.mask
    if mask is not None and _is_causal(graph, mask):
        mask, attributes["causal"] = None, True
    inputs = (scores.q, k, v) if mask is None else (scores.q, k, v, mask)
    return Change((*turned, Node("attention", inputs, node.outputs, attributes, softmax.origin)))


def _uncast(graph: Graph, name: str | None) -> str | None:
    """Before casts between floats: attention computes wide anyway."""
    while (node := made_by(graph, name, "cast")) is not None:
        if not all(DTYPES[graph.values[n].dtype].is_float for n in (*node.used, *node.outputs)):
            break
        if not read_once(graph, node.outputs[0]):
            break
        name = node.used[0]
    return name


def _scores(graph: Graph, name: str | None) -> _Scores | None:
    added = made_by(graph, name, "add")
    places = range(2) if added is not None else (None,)
    for place in places:
        product, mask = name, None
        if added is not None and place is not None:
            product, mask = added.inputs[place], added.inputs[1 - place]
            if product is None or graph.values[product].shape != graph.values[added.outputs[0]].shape:
                continue
        whole, scale = _unscaled(graph, _uncast(graph, product))
        matmul = made_by(graph, whole, "matmul")
        if matmul is None or whole is None or not read_once(graph, whole):
            continue
        (q, before), (keys, between) = (_unscaled(graph, side) for side in matmul.inputs)
        if q is not None and keys is not None:
            return _Scores(q, keys, scale * before * between, mask)
    return None


def _unscaled(graph: Graph, name: str | None) -> tuple[str | None, float]:
    """A value before it is multiplied or divided by numbers, and the factor."""
    factor = 1.0
    while (node := made_by(graph, name, "mul", "div")) is not None:
        places = [place for place, side in enumerate(node.inputs) if number(graph, side) is not None]
        inner = node.inputs[1 - places[0]] if places else None
        if not places or inner is None or (node.operator == "div" and places != [1]):
            break
        if graph.values[inner].shape != graph.values[node.outputs[0]].shape:
            break
        by = cast("float", number(graph, node.inputs[places[0]]))
        if by == 0:
            break
        factor = factor * by if node.operator == "mul" else factor / by
        name = inner
    return name, factor


def _turned_back(graph: Graph, node: Node, keys: str) -> tuple[tuple[Node, ...], str, tuple[int, ...], float] | None:
    """The keys as [..., L, D]: nodes that make them, their name and shape, and a factor that comes out; None where
    they are not transposed."""
    turn = made_by(graph, keys, "transpose")
    if turn is None:
        return None
    source, factor = _unscaled(graph, turn.used[0])
    perm, shape = permutation(turn), graph.values[keys].shape
    rank = len(perm)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    back = composed(perm, swapped)
    turned_shape = tuple(shape[axis] for axis in swapped)
    if source is None or back == tuple(range(rank)):
        return None if source is None else ((), source, turned_shape, factor)
    name = new_name(graph, node, "keys")
    return (Node("transpose", (source,), (name,), {"perm": back}, turn.origin),), name, turned_shape, factor


def _is_causal(graph: Graph, mask: str) -> bool:
    """Whether a mask is a constant, 0 up to the diagonal and after it as good as -infinity."""
    array = graph.constants.get(mask)
    if array is None or array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] < 2:
        return False
    if any(size != 1 for size in array.shape[:-2]):
        return False
    square = array.reshape(array.shape[-2:]).astype("float64")
    hidden = max(-1e9, -DTYPES[graph.values[mask].dtype].largest)
    after = np.triu(np.ones(square.shape, dtype=bool), k=1)
    return bool(np.all(square[after] <= hidden) and np.all(square[~after] == 0))
