"""Recognition of attention: softmax(q @ k.T * scale + mask) @ v becomes one node, whose scores need not be stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from autosched.graph.graph import Array, Attribute, Graph, Node, Shape
from autosched.graph.passes.layout.merge_reshapes import composed, permutation
from autosched.graph.passes.rewrite import Change, made_by, new_name, number, read_once, rewrite
from autosched.ir.dtype import DTYPES


@dataclass(frozen=True)
class _Mask:
    """A mask: summands of the scores, or booleans (`of_bools`) of scores that are kept, or hidden if `is_inverted`."""

    name: str
    of_bools: bool = False
    is_inverted: bool = False


@dataclass(frozen=True)
class _Scores:
    """The operand of the softmax: q @ keys * scale, masked."""

    q: str
    keys: str  # [..., D, L]
    scale: float
    mask: _Mask | None


@dataclass(frozen=True)
class _Keys:
    """Keys as [..., L, D], times `factor`; `transposes`: new nodes that compute them."""

    name: str
    shape: Shape
    factor: float
    transposes: tuple[Node, ...] = ()


def recognise_attention(graph: Graph) -> Graph:
    """Replace the products, the mask and the softmax of attention by one node.

    Constant causal masks become the attribute `causal`. Keys and values that are repeated for groups of query heads are
    read without the repetition.
    """
    return rewrite(graph, _attention)


def _attention(graph: Graph, node: Node) -> Change | None:
    weights, v = (*node.inputs, None, None)[:2]
    softmax = made_by(graph, _uncast(graph, weights), "softmax") if node.operator == "matmul" else None
    if softmax is None or weights is None or v is None:
        return None
    rank = len(graph.values[softmax.outputs[0]].shape)
    scores = _scores(graph, _uncast(graph, softmax.inputs[0]))
    if scores is None or cast("int", softmax.attributes["axis"]) % rank != rank - 1:
        return None
    keys = _turned_back(graph, node, scores.keys)
    if keys is None or not all(read_once(graph, n) for n in (weights, softmax.outputs[0], softmax.used[0])):
        return None
    q, values, made = graph.values[scores.q], graph.values[v], graph.values[node.outputs[0]]
    is_alike = q.shape[:-2] == keys.shape[:-2] == values.shape[:-2] and len(q.shape) >= 3
    if not is_alike or not q.dtype == graph.values[scores.keys].dtype == values.dtype == made.dtype:
        return None
    attributes: dict[str, Attribute] = {"scale": scores.scale * keys.factor}
    inputs: tuple[str, ...] = (scores.q, _ungrouped(graph, keys.name), _ungrouped(graph, v))
    nodes, constants = list(keys.transposes), dict[str, Array]()
    if scores.mask is not None and _is_causal(graph, scores.mask):
        attributes["causal"] = True
    elif scores.mask is not None and scores.mask.is_inverted:
        kept = new_name(graph, node, "kept")
        inputs = (*inputs, kept)
        if graph.is_constant(scores.mask.name):
            constants[kept] = ~graph.constants[scores.mask.name]
        else:
            nodes.append(Node("logical_not", (scores.mask.name,), (kept,)))
    elif scores.mask is not None:
        inputs = (*inputs, scores.mask.name)
    return Change((*nodes, Node("attention", inputs, node.outputs, attributes, softmax.origin)), constants)


def _uncast(graph: Graph, name: str | None) -> str | None:
    """Return the value before casts between floats, which attention does not need as it computes in a wide type."""
    while (node := made_by(graph, name, "cast")) is not None:
        if not all(DTYPES[graph.values[n].dtype].is_float for n in (*node.used, *node.outputs)):
            break
        if not read_once(graph, node.outputs[0]):
            break
        name = node.used[0]
    return name


def _scores(graph: Graph, name: str | None) -> _Scores | None:
    for product, mask in _unmasked(graph, name):
        whole, scale = _unscaled(graph, _uncast(graph, product))
        matmul = made_by(graph, whole, "matmul")
        if matmul is None or whole is None or not read_once(graph, whole):
            continue
        (q, before), (keys, between) = (_unscaled(graph, side) for side in matmul.inputs)
        if q is not None and keys is not None:
            return _Scores(q, keys, scale * before * between, mask)
    return None


def _unmasked(graph: Graph, name: str | None) -> Iterator[tuple[str, _Mask | None]]:
    """Yield the possible scores before a mask, with the mask: a summand, or a `where` with minus infinity."""
    if name is None:
        return
    node = made_by(graph, name, "add", "where")
    pairs: list[tuple[str, _Mask]] = []
    if node is not None and node.operator == "add":
        left, right = cast("tuple[str, str]", node.inputs)
        pairs = [(left, _Mask(right)), (right, _Mask(left))]
    elif node is not None:
        choice, left, right = cast("tuple[str, str, str]", node.inputs)
        pairs = [(left, _Mask(choice, True))] if number(graph, right) == -math.inf else []
        pairs += [(right, _Mask(choice, True, is_inverted=True))] if number(graph, left) == -math.inf else []
    yield from ((side, mask) for side, mask in pairs if graph.values[side].shape == graph.values[name].shape)
    if node is None:
        yield name, None


def _unscaled(graph: Graph, name: str | None) -> tuple[str | None, float]:
    """Return a value before products with and quotients by numbers, and the total factor."""
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


def _turned_back(graph: Graph, node: Node, keys: str) -> _Keys | None:
    """Return the keys before their transposition; None if they are not transposed, as that would cost a pass."""
    turn = made_by(graph, keys, "transpose")
    source, factor = _unscaled(graph, None if turn is None else turn.used[0])
    if turn is None or source is None:
        return None
    perm, shape = permutation(turn), graph.values[keys].shape
    rank = len(perm)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    back, own = composed(perm, swapped), tuple(shape[axis] for axis in swapped)
    if back == tuple(range(rank)):
        return _Keys(source, own, factor)
    name = new_name(graph, node, "keys")
    return _Keys(name, own, factor, (Node("transpose", (source,), (name,), {"perm": back}, turn.origin),))


def _ungrouped(graph: Graph, name: str) -> str:
    """Return keys or values before each head was repeated for a group of query heads."""
    joined = made_by(graph, name, "reshape")
    repeated = made_by(graph, joined.inputs[0], "expand") if joined is not None else None
    apart = made_by(graph, repeated.inputs[0], "reshape") if repeated is not None else None
    if repeated is None or apart is None:
        return name
    source = apart.used[0]
    own, one, many = (graph.values[n].shape for n in (source, apart.outputs[0], repeated.outputs[0]))
    heads = graph.values[name].shape
    is_repeated = len(own) >= 3 and one == (*own[:-2], 1, *own[-2:]) and many == (*own[:-2], many[-3], *own[-2:])
    return source if is_repeated and heads == (*own[:-3], own[-3] * many[-3], *own[-2:]) else name


def _is_causal(graph: Graph, mask: _Mask) -> bool:
    """Whether a mask is a constant that keeps what is up to the diagonal, and hides what comes after it."""
    array = graph.constants.get(mask.name)
    if array is None or array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] < 2:
        return False
    if any(size != 1 for size in array.shape[:-2]):
        return False
    square, kept = array.reshape(array.shape[-2:]), np.tri(array.shape[-1], dtype=bool)
    if mask.of_bools:
        return bool(np.all((square != mask.is_inverted) == kept))
    # The softmax weight of such a score underflows to 0.
    hidden = max(-1e9, -DTYPES[graph.values[mask.name].dtype].largest)
    return bool(np.all(square[~kept] <= hidden) and np.all(square[kept] == 0))
