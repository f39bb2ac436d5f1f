"""Recognition of row writes: scatters of whole rows along one axis become `write_rows`, which can work in place.

transpose(scatter_nd(transpose(x, p), [[at]], rows), inverse of p)     index_copy, as ONNX files have it
scatter_nd(x, [[at]], rows)                                            the same along the first axis
scatter_elements(x, expand(at), rows, axis)
"""

from __future__ import annotations

import math
from typing import cast

from autosched.graph.graph import Graph, Node
from autosched.graph.operators.index_maps import axis_of
from autosched.graph.passes.rewrite import Change, made_by, new_name, read_once, rewrite


def recognise_row_writes(graph: Graph) -> Graph:
    """Replace scatters of whole rows without a reduction by `write_rows`."""
    return rewrite(graph, _turned, _in_front, _spread)


def _turned(graph: Graph, node: Node) -> Change | None:
    """Match a scatter along an axis that is transposed to the front and back."""
    scatter = made_by(graph, node.inputs[0], "scatter_nd") if node.operator == "transpose" else None
    front = None if scatter is None else made_by(graph, scatter.inputs[0], "transpose")
    if scatter is None or front is None or not _writes_rows(graph, scatter) or not read_once(graph, scatter.outputs[0]):
        return None
    back, there = (cast("tuple[int, ...]", n.attributes["perm"]) for n in (node, front))
    if [there[n] for n in back] != list(range(len(there))):
        return None
    rows = Node("transpose", (scatter.inputs[2],), (new_name(graph, node, "rows"),), {"perm": back})
    return _written(graph, node, scatter, (front.inputs[0], scatter.inputs[1], rows.outputs[0]), there[0], rows)


def _in_front(graph: Graph, node: Node) -> Change | None:
    if node.operator != "scatter_nd" or not _writes_rows(graph, node) or made_by(graph, node.inputs[0], "transpose"):
        return None
    return _written(graph, node, node, node.inputs, 0)


def _spread(graph: Graph, node: Node) -> Change | None:
    """Match a scatter of elements whose index is that of the row, expanded to its elements."""
    spread = made_by(graph, node.inputs[1], "expand") if node.operator == "scatter_elements" else None
    if spread is None or node.attributes.get("reduction", "none") != "none":
        return None
    x, ids, rows = (graph.values[name or ""].shape for name in node.inputs)
    axis = axis_of(cast("int", node.attributes["axis"]), len(x))
    places = graph.values[spread.inputs[0] or ""].shape
    places = (*(1,) * (len(ids) - len(places)), *places)
    whole = rows == ids == (*x[:axis], ids[axis], *x[axis + 1 :])
    if not whole or places[axis] != ids[axis] or math.prod(places) != ids[axis]:
        return None
    return _written(graph, node, node, (node.inputs[0], spread.inputs[0], node.inputs[2]), axis)


def _writes_rows(graph: Graph, scatter: Node) -> bool:
    """Whether the indices are a list of rows along the first axis."""
    ids = graph.values[scatter.inputs[1] or ""].shape
    return scatter.attributes.get("reduction", "none") == "none" and len(ids) == 2 and ids[-1] == 1


def _written(
    graph: Graph, node: Node, scatter: Node, operands: tuple[str | None, ...], axis: int, rows: Node | None = None
) -> Change:
    """Replace `node`, the result of `scatter`, by a write of (x, indices in any shape, rows).

    `rows`: the node that computes the last of these, if it is new.
    """
    x, ids, last = operands
    count = math.prod(graph.values[ids or ""].shape)
    at = Node("reshape", (ids,), (new_name(graph, node, "at"),), {"shape": (count,)})
    attributes = {"axis": axis} | {key: value for key, value in scatter.attributes.items() if key == "indexing"}
    write = Node("write_rows", (x, at.outputs[0], last), node.outputs, attributes, scatter.origin)
    return Change((at, write) if rows is None else (at, rows, write))
