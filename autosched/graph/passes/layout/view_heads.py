"""Slices of whole attention heads as slices of a view with an axis of heads, for tensor-core products of a GPU.

    reshape(x[..., 768:1536], [..., 12, 64])  ->  reshape(x, [..., 36, 64])[..., 12:24, :]

The operand then ends where a head ends. Matrix instructions cannot read an operand that is a part of a longer axis:
without this pass, attention of BERT is six kernels instead of one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from autosched.graph.graph import Attribute, Graph, Node, Shape
from autosched.graph.operators.index_maps import slice_selections
from autosched.graph.passes.rewrite import Change, made_by, new_name, read_once, rewrite


def view_heads(graph: Graph) -> Graph:
    """Replace reshapes that split the axis of a slice by slices of a reshape."""
    return rewrite(graph, _heads_of_view)


def _heads_of_view(graph: Graph, node: Node) -> Change | None:
    """Replace a reshape that splits the sliced axis into heads, if the slice begins and ends at heads."""
    part = made_by(graph, node.inputs[0], "slice") if node.operator == "reshape" else None
    if part is None or not read_once(graph, part.outputs[0]):
        return None
    shape, sizes = graph.values[part.used[0]].shape, graph.values[part.outputs[0]].shape
    told = [part.attributes.get(word) for word in ("starts", "stops", "axes", "steps")]
    ranges = slice_selections(shape, *cast("list[Shape]", told))
    cut = [axis for axis, (taken, size) in enumerate(zip(ranges, shape, strict=True)) if taken != (0, 1, size)]
    made = graph.values[node.outputs[0]].shape
    if len(cut) != 1 or ranges[cut[0]].step != 1 or len(made) != len(sizes) + 1:
        return None
    (axis,) = cut
    head, start = made[axis + 1], ranges[axis].start
    if made[:axis] != sizes[:axis] or made[axis + 2 :] != sizes[axis + 1 :] or shape[axis] % head or start % head:
        return None
    view, whole = new_name(graph, node, "heads"), (*shape[:axis], shape[axis] // head, head, *shape[axis + 1 :])
    first = start // head
    heads: dict[str, Attribute] = {"starts": (first,), "stops": (first + made[axis],), "axes": (axis,)}
    reshape = Node("reshape", part.inputs[:1], (view,), {"shape": whole}, node.origin)
    return Change((reshape, replace(part, inputs=(view,), outputs=node.outputs, attributes=heads)))
