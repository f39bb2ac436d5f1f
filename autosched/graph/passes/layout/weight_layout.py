"""Weight layout transform: constant weights of convolutions are stored as GPU products read them, channels last.

    conv(x, w[co, ci, taps])            ->  conv(x, transpose(w'[co, taps, ci]))
    conv_transpose(x, w[ci, co, taps])  ->  conv_transpose(x, transpose(w'[co, taps, ci]))

Taps and channels are the reduction axis of a matrix product, which is then contiguous. Otherwise a kernel would
transpose the weights in every call. The transposition that remains becomes an index in the reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autosched.graph.fusion.node_properties import access_of
from autosched.graph.graph import Graph, Node
from autosched.graph.passes.rewrite import Change, new_name, rewrite

# For each operator, the axes of its weights that are the input channels and the output channels.
CHANNELS: Mapping[str, tuple[int, int]] = {"conv": (1, 0), "conv_integer": (1, 0), "conv_transpose": (0, 1)}


def transform_weight_layouts(graph: Graph) -> Graph:
    """Store the weights of channels-last convolutions with their input channels last."""
    return rewrite(graph, _turned)


def _turned(graph: Graph, node: Node) -> Change | None:
    """Transform a convolution of several taps and channels with constant weights that are indexed by axes alone; for
    others the partition would not inline the transposition."""
    name = node.inputs[1] if node.operator in CHANNELS else None
    array = graph.constants.get(name or "")
    if array is None or not node.attributes.get("channels_last"):
        return None
    added, made = CHANNELS[node.operator]
    order = (made, *range(2, array.ndim), added)
    is_axis_indexed = access_of(node, graph, name or "").is_axis_indexed
    if array.shape[added] == 1 or math.prod(array.shape[2:]) == 1 or not is_axis_indexed:
        return None
    stored, seen = new_name(graph, node, "turned"), new_name(graph, node, "seen")
    back = tuple(order.index(n) for n in range(array.ndim))
    turn = Node("transpose", (stored,), (seen,), {"perm": back}, node.origin)
    inputs = (node.inputs[0], seen, *node.inputs[2:])
    return Change((turn, replace(node, inputs=inputs)), {stored: np.ascontiguousarray(array.transpose(order))})
