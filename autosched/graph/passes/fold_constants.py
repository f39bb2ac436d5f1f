"""What depends on constants alone is computed now, by the reference: in float64, rounded once for each node."""

from __future__ import annotations

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
    """
    known = dict(graph.constants)
    changes: dict[int, Change] = {}
    for n, node in enumerate(graph.nodes):
        if all(name in known for name in node.used) and _is_worth_it(graph, node, known):
            made = dict(zip(node.outputs, evaluate_node(node, graph, known), strict=True))
            known.update(made)
            changes[n] = Change(constants=made)
    return apply(graph, changes)


def _is_worth_it(graph: Graph, node: Node, known: dict[str, Array]) -> bool:
    size = sum(
        math.prod(graph.values[name].shape) * DTYPES[graph.values[name].dtype].numpy_dtype.itemsize
        for name in node.outputs
    )
    if node.operator == "transpose" and size > _LAYOUT:
        return False
    return size <= max(_SMALL, _GROWTH * sum(known[name].nbytes for name in node.used))
