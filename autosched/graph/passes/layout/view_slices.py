"""Slices of views: each slice of a value reads a view of its own, so that a kernel has an operand for each slice.

The kernel can then pack each operand differently, as products do. Attention that read its queries, keys and values as
one operand could not, and took 1.4 times as long.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import cast

from autosched.graph.graph import Attribute, Graph, Node
from autosched.graph.operators.index_maps import axis_of
from autosched.graph.passes.rewrite import Change, new_name, rewrite


def view_slices(graph: Graph) -> Graph:
    """Replace `split`, and slices of one value, by slices of views."""
    return rewrite(graph, _slices_of_views, _slice_of_view)


def _slices_of_views(graph: Graph, node: Node) -> Change | None:
    if node.operator != "split" or graph.is_constant(node.inputs[0]):
        return None
    rank = len(graph.values[node.used[0]].shape)
    axis = axis_of(cast("int", node.attributes["axis"]), rank)
    ends = list(accumulate(cast("tuple[int, ...]", node.attributes["sizes"])))
    nodes: list[Node] = []
    for name, start, stop in zip(node.outputs, [0, *ends], ends, strict=False):
        if graph.users[name] or name in graph.outputs:
            part: dict[str, Attribute] = {"starts": (start,), "stops": (stop,), "axes": (axis,)}
            nodes += _viewed(graph, replace(node, operator="slice", outputs=(name,), attributes=part))
    return Change(tuple(nodes))


def _slice_of_view(graph: Graph, node: Node) -> Change | None:
    if node.operator != "slice" or graph.is_constant(node.inputs[0]):
        return None
    slices = [user for user in graph.users[node.used[0]] if user.operator == "slice"]
    return Change(tuple(_viewed(graph, node))) if len(slices) > 1 else None


def _viewed(graph: Graph, node: Node) -> list[Node]:
    """Return the view and the slice of the view."""
    whole = new_name(graph, node, "whole")
    view = Node("reshape", node.inputs, (whole,), {"shape": graph.values[node.used[0]].shape}, node.origin)
    return [view, replace(node, inputs=(whole,))]
