"""Constant folding at load time, by the reference: in float64, rounded once for each node."""

from __future__ import annotations

import json
import math

from autosched.graph.graph import Array, Graph, Node
from autosched.graph.interpret import evaluate_node
from autosched.graph.passes.rewrite import Change, apply
from autosched.ir.dtype import DTYPES
from autosched.ir.size import has_size

_SMALL_BYTES = 1 << 16  # results of at most this size are always folded
_MAX_GROWTH = 2  # bytes of a larger result over those of its operands
_MAX_TRANSPOSED_BYTES = 1 << 20  # larger weights are transposed when they are packed


def fold_constants(graph: Graph) -> Graph:
    """Replace nodes whose inputs are all constants by their results.

    A node stays if its result is much larger than its operands, or if it only transposes a large one. Equal nodes,
    as the steps of a loop have them, give one constant.
    """
    known = dict(graph.constants)
    changes: dict[int, Change] = {}
    first: dict[tuple[object, ...], Node] = {}
    same: dict[str, str] = {}
    for n, node in enumerate(graph.nodes):
        if not node.used or not all(name in known for name in node.used) or not _should_fold(graph, node, known):
            continue
        inputs = (None if name is None else same.get(name, name) for name in node.inputs)
        words = json.dumps(sorted(node.attributes.items()))
        twin = first.setdefault((node.operator, *inputs, words, str(node.body)), node)
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


def _should_fold(graph: Graph, node: Node, known: dict[str, Array]) -> bool:
    if has_size((*(graph.values[name].shape for name in node.outputs), tuple(node.attributes.values()))):
        return False
    size = sum(
        math.prod(graph.values[name].shape) * DTYPES[graph.values[name].dtype].numpy_dtype.itemsize
        for name in node.outputs
    )
    if node.operator == "transpose" and size > _MAX_TRANSPOSED_BYTES:
        return False
    return size <= max(_SMALL_BYTES, _MAX_GROWTH * sum(_allocated_bytes(known[name]) for name in node.used))


def _allocated_bytes(array: Array) -> int:
    """Return the bytes of memory of an array, in which broadcast elements share bytes."""
    pairs = zip(array.shape, array.strides, strict=True)
    n_elements: int = math.prod(size for size, stride in pairs if stride != 0)
    return array.itemsize * n_elements
