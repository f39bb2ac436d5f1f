"""Slice canonicalisation: slices of slices become slices of the value itself, those of contiguous elements first.

    split(flip(slice(x)))  ->  slice(x), one for each part
    x[3:4, :, 5:9]         ->  x[3:4][:, :, 5:9]

A contiguous slice is a view, which costs nothing. And the readers of such views are equal kernels: the steps of a
recurrent network, which differ in the row that they read, share a kernel and its weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import cast

from autosched.graph.graph import Attribute, Graph, Node, Shape
from autosched.graph.operators.index_maps import Selection, axes_of, axis_of, slice_selections
from autosched.graph.passes.rewrite import Change, made_by, new_name, rewrite

_TAKES = ("slice", "split", "flip")
_Ranges = tuple[Selection, ...]  # for each axis, the indices that a slice selects


def canonicalise_slices(graph: Graph) -> Graph:
    """Replace chains of slices, splits and flips by one or two slices of the value, the contiguous one first."""
    return rewrite(graph, _canonicalise)


def _canonicalise(graph: Graph, node: Node) -> Change | None:
    if node.operator not in ("slice", "split") or graph.is_constant(node.inputs[0]):
        return None
    chain = [node]
    while (before := made_by(graph, chain[0].inputs[0], *_TAKES)) is not None:
        chain.insert(0, before)
    if node.operator == "split" and len(chain) == 1:
        return None
    source = chain[0].used[0]
    nodes = list[Node]()
    for name in node.outputs:
        outputs = (*(after.used[0] for after in chain[1:]), name)
        taken = [_ranges(graph, step, made) for step, made in zip(chain, outputs, strict=True)]
        shape = graph.values[source].shape
        selected = _contiguous_first(shape, _compose_all(shape, taken))
        if node.operator == "slice" and taken == selected:
            return None
        nodes += _slices(graph, node, source, name, selected)
    return Change(tuple(nodes))


def _ranges(graph: Graph, node: Node, made: str) -> _Ranges:
    """Return the indices of its operand that a node selects for its result `made`."""
    shape, attributes = graph.values[node.used[0]].shape, node.attributes
    if node.operator == "slice":
        told = [attributes.get(word) for word in ("starts", "stops", "axes", "steps")]
        return slice_selections(shape, *cast("list[Shape]", told))
    whole = _whole(shape)
    if node.operator == "flip":
        turned = axes_of(cast("Shape", attributes["axes"]), len(shape))
        return tuple(Selection(r.size - 1, -1, r.size) if d in turned else r for d, r in enumerate(whole))
    axis = axis_of(cast("int", attributes["axis"]), len(shape))
    ends = list(accumulate(cast("Shape", attributes["sizes"]), initial=0))
    n = node.outputs.index(made)
    return tuple(Selection(ends[n], 1, ends[n + 1] - ends[n]) if d == axis else r for d, r in enumerate(whole))


def _compose_all(shape: Shape, taken: Sequence[_Ranges]) -> _Ranges:
    composed = _whole(shape)
    for ranges in taken:
        composed = tuple(map(_compose, composed, ranges))
    return tuple(Selection(r.start, 1, 1) if r.size == 1 else r for r in composed)


def _whole(shape: Iterable[int]) -> _Ranges:
    return tuple(Selection(0, 1, size) for size in shape)


def _compose(outer: Selection, inner: Selection) -> Selection:
    return Selection(outer.start + outer.step * inner.start, outer.step * inner.step, inner.size)


def _contiguous_first(shape: Shape, taken: _Ranges) -> list[_Ranges]:
    """Return one or two slices that select `taken` together; the first of two is contiguous."""
    count = 0
    while count < len(shape) and taken[count].step == 1:
        count += 1
        if taken[count - 1].size > 1:
            break
    whole, rest = _whole(shape), _whole(r.size for r in taken)
    first, then = (*taken[:count], *whole[count:]), (*rest[:count], *taken[count:])
    if first == whole or then[count:] == whole[count:]:
        return [taken]
    return [first, then]


def _slices(graph: Graph, node: Node, source: str, name: str, selected: Sequence[_Ranges]) -> list[Node]:
    if len(selected) == 1:
        return [_slice(graph, node, source, name, selected[0])]
    between = new_name(graph, replace(node, outputs=(name,)), "rows")
    rows = tuple(r.size for r in selected[0])
    last = replace(
        node, operator="slice", inputs=(between,), outputs=(name,), attributes=_attributes(rows, selected[1])
    )
    return [_slice(graph, node, source, between, selected[0]), last]


def _slice(graph: Graph, node: Node, source: str, made: str, taken: _Ranges) -> Node:
    attributes = _attributes(graph.values[source].shape, taken)
    return replace(node, operator="slice", inputs=(source,), outputs=(made,), attributes=attributes)


def _attributes(shape: Shape, taken: _Ranges) -> dict[str, Attribute]:
    """Return the attributes of a slice; a stop before the first element becomes one below -size, not -1."""
    axes = [d for d, size in enumerate(shape) if taken[d] != (0, 1, size)] or [0]
    attributes: dict[str, Attribute] = {
        "starts": tuple(taken[d].start for d in axes),
        "stops": tuple(taken[d].stop if taken[d].stop >= 0 else -shape[d] - 1 for d in axes),
        "axes": tuple(axes),
    }
    steps = tuple(taken[d].step for d in axes)
    return attributes if set(steps) == {1} else {**attributes, "steps": steps}
