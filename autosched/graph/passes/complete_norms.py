"""Completion of norms: a scale and a bias that follow become operands of the norm, and group norms are recognised.

add(mul(layer_norm(x), s), b)  =  layer_norm(x, s, b)
reshape(instance_norm(reshape(x, [N, G, -1]), 1, 0), [N, C, ...])  =  group_norm(x, groups=G)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from autosched.graph.graph import Array, Graph, Node, Shape
from autosched.graph.passes.rewrite import Change, made_by, new_name, read_once, rewrite


def complete_norms(graph: Graph) -> Graph:
    """Recognise group norms, then make the scale and the bias that follow a norm its operands."""
    return rewrite(graph, _group_norm, _with_scale_or_bias)


def _group_norm(graph: Graph, node: Node) -> Change | None:
    """Replace an instance norm of channels reshaped to groups by a group norm."""
    norm = made_by(graph, node.inputs[0], "instance_norm") if node.operator == "reshape" else None
    before = None if norm is None else made_by(graph, norm.inputs[0], "reshape")
    if norm is None or before is None or not all(read_once(graph, n.outputs[0]) for n in (before, norm)):
        return None
    x, grouped = before.used[0], graph.values[before.outputs[0]].shape
    shape = graph.values[node.outputs[0]].shape
    if graph.values[x].shape != shape or len(shape) < 3 or grouped[0] != shape[0] or shape[1] % grouped[1]:
        return None
    if not (_is_all(graph, norm.inputs[1], 1) and _is_all(graph, norm.inputs[2], 0)):
        return None
    attributes = {"groups": grouped[1], "epsilon": norm.attributes["epsilon"]}
    return Change((Node("group_norm", (x, None, None), node.outputs, attributes, norm.origin),))


def _is_all(graph: Graph, name: str | None, value: float) -> bool:
    array = graph.constants.get(name or "")
    return array is not None and bool(np.all(array == value))


def _with_scale_or_bias(graph: Graph, node: Node) -> Change | None:
    """Make a factor the scale of a norm without scale and bias, a summand the bias of one without a bias."""
    if node.operator not in ("mul", "add"):
        return None
    for place, name in enumerate(node.inputs):
        norm, other = made_by(graph, name, *_OWN_SHAPES), node.inputs[1 - place]
        if norm is None or other is None or not read_once(graph, norm.outputs[0]):
            continue
        scale, bias = (*norm.inputs[1:], None, None)[:2]
        is_free = bias is None and (node.operator == "add" or scale is None)
        made, given = graph.values[node.outputs[0]], graph.values[norm.outputs[0]]
        if not is_free or (made.shape, made.dtype) != (given.shape, given.dtype):
            continue
        if node.operator == "add" and norm.operator == "rms_norm":
            continue  # rms_norm has no bias
        completed = _as_parameter(graph, node, other, _OWN_SHAPES[norm.operator](made.shape, norm))
        if completed is not None:
            parameter, constants = completed
            inputs = (norm.inputs[0], *((parameter,) if node.operator == "mul" else (scale, parameter)))
            return Change((replace(norm, inputs=inputs, outputs=node.outputs),), constants)
    return None


def _of_last_axes(shape: Shape, norm: Node) -> tuple[Shape, Shape]:
    own = shape[len(shape) - cast("int", norm.attributes["axes"]) :]
    return own, own


def _of_channels(shape: Shape, norm: Node) -> tuple[Shape, Shape]:
    return shape[1:2], (shape[1], *(1,) * (len(shape) - 2))


# The shape of a norm's scale and bias, and the shape that broadcasts to the result.
_OWN_SHAPES: Mapping[str, Callable[[Shape, Node], tuple[Shape, Shape]]] = {
    "layer_norm": _of_last_axes,
    "rms_norm": _of_last_axes,
    "group_norm": _of_channels,
}


def _as_parameter(
    graph: Graph, node: Node, name: str, shapes: tuple[Shape, Shape]
) -> tuple[str, dict[str, Array]] | None:
    """Return the name of a factor or summand as scale or bias, with a new constant if it must be reshaped."""
    own, stretched = shapes
    value = graph.values[name]
    if value.shape == own and own == stretched:
        return name, {}
    array = graph.constants.get(name)
    if array is None:
        return None
    try:
        whole = np.broadcast_to(array.reshape(_without_ones(array.shape, len(stretched))), stretched)
    except ValueError:  # it is not one number per element of the scale
        return None
    made = new_name(graph, node, "parameter")
    return made, {made: np.ascontiguousarray(whole).reshape(own)}


def _without_ones(shape: Shape, rank: int) -> Shape:
    """Drop leading sizes of 1 beyond `rank`."""
    while len(shape) > rank and shape[0] == 1:
        shape = shape[1:]
    return shape
