"""Constant weights of convolutions lie as products of a GPU read them: with the channels last, as in images.

    conv(x, w[co, ci, taps])            ->  conv(x, transpose(w'[co, taps, ci]))
    conv_transpose(x, w[ci, co, taps])  ->  conv_transpose(x, transpose(w'[co, taps, ci]))

The sum over taps and channels is the depth of a product, whose steps lie in one piece then. Else a kernel turns the
weights around in every call. The transposition is an index in the reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autosched.graph.fusion.node_properties import operand_facts
from autosched.graph.graph import Graph, Node
from autosched.graph.passes.rewrite import Change, new_name, rewrite

# Of each operator the places of the channels that are added up, and of those that are made, in its weights.
CHANNELS: Mapping[str, tuple[int, int]] = {"conv": (1, 0), "conv_integer": (1, 0), "conv_transpose": (0, 1)}


def turn_weights(graph: Graph) -> Graph:
    """Weights with the channels that are added up last, for convolutions of images whose channels are last."""
    return rewrite(graph, _turned)


def _turned(graph: Graph, node: Node) -> Change | None:
    """A convolution of several taps and channels whose weights are a constant that lies as it came, read at places that
    are axes: other places the partition does not take in."""
    name = node.inputs[1] if node.operator in CHANNELS else None
    array = graph.constants.get(name or "")
    if array is None or not node.attributes.get("channels_last"):
        return None
    added, made = CHANNELS[node.operator]
    order = (made, *range(2, array.ndim), added)
    is_plain = operand_facts(node, graph, name or "").is_plain
    if array.shape[added] == 1 or math.prod(array.shape[2:]) == 1 or not is_plain:
        return None
    stored, seen = new_name(graph, node, "turned"), new_name(graph, node, "seen")
    back = tuple(order.index(n) for n in range(array.ndim))
    turn = Node("transpose", (stored,), (seen,), {"perm": back}, node.origin)
    inputs = (node.inputs[0], seen, *node.inputs[2:])
    return Change((turn, replace(node, inputs=inputs)), {stored: np.ascontiguousarray(array.transpose(order))})
