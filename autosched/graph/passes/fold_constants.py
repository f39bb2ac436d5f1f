"""What depends on constants alone is computed now, by the reference: in float64, rounded once for each node."""

from __future__ import annotations

import json
import math

from autosched.graph.graph import Array, Graph, Node
from autosched.graph.interpret import evaluate_node
from autosched.graph.passes.rewrite import Change, apply
from autosched.ir.dtype import DTYPES

_SMALL = 1 << 16  # bytes: a result of this size is always worth keeping
_GROWTH = 2  # a larger result may have so many times the bytes of its operands
_LAYOUT = 1 << 20  # bytes: a larger weight is put in order where it is packed, not here


def fold_constants(graph: Graph) -> Graph:
    """Nodes of which all inputs are constants become constants.

    Not where that makes a constant that is much larger than what it is made of, nor where it only moves a large one.
    What is computed twice is one constant: the steps of a loop have the same weights.
    """
    known = dict(graph.constants)
    changes: dict[int, Change] = {}
    first: dict[tuple[object, ...], Node] = {}
    same: dict[str, str] = {}
    for n, node in enumerate(graph.nodes):
        if not all(name in known for name in node.used) or not _is_worth_it(graph, node, known):
            continue
        inputs = (None if name is None else same.get(name, name) for name in node.inputs)
        twin = first.setdefault((node.operator, *inputs, json.dumps(sorted(node.attributes.items()))), node)
        if twin is node or not set(graph.outputs).isdisjoint(node.outputs):
            made = dict(zip(node.outputs, evaluate_node(node, graph, known), strict=True))
            changes[n] = Change(constants=made)
        else:
            aliases = dict(zip(node.outputs, twin.outputs, strict=True))
            made = {old: known[new] for old, new in aliases.items()}
            same |= aliases
            changes[n] = Change(aliases=aliases)
        known |= made
    return apply(graph, changes)


def _is_worth_it(graph: Graph, node: Node, known: dict[str, Array]) -> bool:
    size = sum(
        math.prod(graph.values[name].shape) * DTYPES[graph.values[name].dtype].numpy_dtype.itemsize
        for name in node.outputs
    )
    if node.operator == "transpose" and size > _LAYOUT:
        return False
    return size <= max(_SMALL, _GROWTH * sum(_held(known[name]) for name in node.used))


def _held(array: Array) -> int:
    """The bytes that a constant takes in memory, where its elements may lie over each other."""
    pairs = zip(array.shape, array.strides, strict=True)
    n_elements: int = math.prod(size for size, stride in pairs if stride != 0)
    return array.itemsize * n_elements
