"""Channels-last variants of nodes: the same node on images [N, ..., C] instead of [N, C, ...].

Operators on images have an attribute for that. Elementwise operators, concatenations, slices, pads, resizes and
reductions get other axes. A transpose that moves the channels last becomes the identity. Where channels are split, to
be shuffled, several axes after the batch are channels, [N, G, C / G, ...].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from autosched.graph.graph import Attribute, Graph, Node, Shape
from autosched.graph.operators import operators
from autosched.graph.passes.layout.merge_reshapes import permutation
from autosched.graph.passes.operator_properties import BROADCASTING, UNARY

T = TypeVar("T")


@dataclass(frozen=True)
class ChannelsLast:
    """A node's variant on channels-last images, with the names of the original's results.

    `operands`: the positions of channels-last images among its inputs; those of fewer axes are broadcast to `rank`.
    `results`: whether its results are channels-last images, with `channels` axes of channels. Other operands and
    results keep their layout.
    """

    node: Node
    rank: int
    operands: tuple[int, ...] = (0,)
    results: bool = True
    channels: int = 1


def to_last(rank: int, channels: int = 1) -> Shape:
    """Return the permutation from [N, C, ...] to [N, ..., C] for `channels` axes of channels."""
    return (0, *range(channels + 1, rank), *range(1, channels + 1))


def to_first(rank: int, channels: int = 1) -> Shape:
    """Return the permutation from [N, ..., C] to [N, C, ...]."""
    return (0, *range(rank - channels, rank), *range(1, rank - channels))


def in_last_order(items: Sequence[T]) -> tuple[T, ...]:
    """Permute one item per axis of [N, C, ...] to the axes of [N, ..., C]."""
    return tuple(items[d] for d in to_last(len(items)))


def with_channels_last(graph: Graph, node: Node, channels: int = 1) -> ChannelsLast | None:
    """Return the channels-last variant of a node, or None. `channels`: axes of channels of its first operand."""
    if node.inputs[:1] == (None,) or not node.inputs or node.body is not None:
        return None
    if channels > 1 or node.operator == "reshape":
        moving = _SHUFFLES.get(node.operator)
        converted = moving(graph, node, channels) if moving is not None else None
        if converted is not None or channels > 1:
            return converted
    rule = _RULES.get(node.operator) or (_by_attribute if _CHANNELS_LAST in _parameters(node.operator) else None)
    ranks = [len(graph.values[name].shape) for name in (*node.used[:1], node.outputs[0])]
    return None if rule is None or max(ranks) < 3 else rule(graph, node)


def into_last(node: Node, rank: int) -> ChannelsLast:
    """Return the variant of a transpose to channels last: its result is the channels-last operand."""
    return ChannelsLast(replace(node, operator="identity", attributes={}), rank, results=False)


def out_of_last(node: Node, rank: int) -> ChannelsLast:
    """Return the variant of a transpose to channels first: its operand is the channels-last result."""
    return ChannelsLast(replace(node, operator="identity", attributes={}), rank, operands=())


_CHANNELS_LAST = "channels_last"


@cache
def _parameters(operator: str) -> Mapping[str, Any]:
    """Return the default of each attribute of an operator."""
    return {p.name: p.default for p in inspect.signature(operators()[operator]).parameters.values()}


def _attribute(node: Node, name: str) -> Any:
    """Return an attribute of a node, or its default."""
    return node.attributes.get(name, _parameters(node.operator)[name])


def _rank(graph: Graph, node: Node) -> int:
    return len(graph.values[node.used[0]].shape)


def _last_axis(axis: int, rank: int) -> int:
    """Return the axis in [N, ..., C] of an axis of [N, C, ...]."""
    return to_last(rank).index(axis % rank)


def _with_attributes(node: Node, **attributes: Attribute) -> Node:
    return replace(node, attributes={**node.attributes, **attributes})


def _by_attribute(graph: Graph, node: Node) -> ChannelsLast | None:
    rank = _rank(graph, node)
    is_so = _attribute(node, _CHANNELS_LAST) or rank < 3
    return None if is_so else ChannelsLast(_with_attributes(node, channels_last=True), rank)


def _unary(graph: Graph, node: Node) -> ChannelsLast:
    return ChannelsLast(node, _rank(graph, node))


def _broadcasting(graph: Graph, node: Node) -> ChannelsLast:
    places = tuple(n for n, name in enumerate(node.inputs) if name is not None)
    return ChannelsLast(node, len(graph.values[node.outputs[0]].shape), places)


def _along_axis(graph: Graph, node: Node) -> ChannelsLast:
    rank = _rank(graph, node)
    return ChannelsLast(_with_attributes(node, axis=_last_axis(_attribute(node, "axis"), rank)), rank)


def _joining(graph: Graph, node: Node) -> ChannelsLast:
    return replace(_along_axis(graph, node), operands=tuple(range(len(node.inputs))))


def _along_axes(graph: Graph, node: Node) -> ChannelsLast:
    rank, axes = _rank(graph, node), _attribute(node, "axes")
    named = range(len(_attribute(node, "starts"))) if axes is None else axes
    return ChannelsLast(_with_attributes(node, axes=tuple(_last_axis(axis, rank) for axis in named)), rank)


def _by_dimension(graph: Graph, node: Node) -> ChannelsLast | None:
    """Permute the attributes with an entry per axis."""
    rank = _rank(graph, node)
    lists = {name: node.attributes.get(name) for name in _LISTS[node.operator]}
    turned = {name: in_last_order(what) for name, what in lists.items() if isinstance(what, tuple)}
    if any(len(what) != rank for what in turned.values()):
        return None  # an operand of fewer axes is broadcast
    return ChannelsLast(_with_attributes(node, **turned), rank)


def _reducing(graph: Graph, node: Node) -> ChannelsLast | None:
    """Reductions whose result is an image, or equal in both layouts."""
    rank = _rank(graph, node)
    word = "axes" if "axes" in _parameters(node.operator) else "axis"
    said = _attribute(node, word)
    over = {axis % rank for axis in (range(rank) if said is None else said if isinstance(said, tuple) else (said,))}
    places = tuple(sorted(_last_axis(axis, rank) for axis in over))
    form = ChannelsLast(_with_attributes(node, **{word: places if word == "axes" else places[0]}), rank)
    if _attribute(node, "keepdims"):
        return form
    kept, in_order = ([d for d in dims if d not in over] for dims in (range(rank), to_last(rank)))
    if kept == in_order:
        return replace(form, results=False)
    return form if kept[:2] == [0, 1] else None


def _reshaping(graph: Graph, node: Node) -> ChannelsLast | None:
    """Reshapes that split or merge other axes than batch and channels."""
    given, made = graph.values[node.used[0]].shape, graph.values[node.outputs[0]].shape
    if min(len(given), len(made)) < 3 or given[:2] != made[:2]:
        return None
    return ChannelsLast(_with_attributes(node, shape=in_last_order(made)), len(given))


def _transposing(graph: Graph, node: Node) -> ChannelsLast | None:
    """Transposes between the layouts. For images of one axis both are the same: `assign_layouts` decides which."""
    rank, perm = _rank(graph, node), permutation(node)
    if perm == to_last(rank):
        return into_last(node, rank)
    return out_of_last(node, rank) if perm == to_first(rank) else None


def _regrouping(graph: Graph, node: Node, channels: int) -> ChannelsLast | None:
    """Reshapes that split or merge channels."""
    given, made = graph.values[node.used[0]].shape, graph.values[node.outputs[0]].shape
    pixels = given[channels + 1 :]
    count = len(made) - 1 - len(pixels)
    if not pixels or count < 1 or made != (given[0], *made[1 : count + 1], *pixels):
        return None
    shape = (made[0], *pixels, *made[1 : count + 1])
    return ChannelsLast(_with_attributes(node, shape=shape), len(given), channels=count)


def _shuffling(graph: Graph, node: Node, channels: int) -> ChannelsLast | None:
    """Transposes of the axes of channels."""
    perm, rank = permutation(node), _rank(graph, node)
    if any((place != axis) for axis, place in enumerate(perm) if not 1 <= axis <= channels):
        return None
    order = to_last(rank, channels)
    return ChannelsLast(
        _with_attributes(node, perm=tuple(order.index(perm[d]) for d in order)), rank, channels=channels
    )


# Operators that are supported on several axes of channels.
_SHUFFLES: Mapping[str, Callable[[Graph, Node, int], ChannelsLast | None]] = {
    "reshape": _regrouping,
    "transpose": _shuffling,
}
_LISTS: Mapping[str, tuple[str, ...]] = {
    "pad": ("pads",),
    "tile": ("repeats",),
    "expand": ("shape",),
    "resize": ("sizes", "scales"),
}
_REDUCTIONS = (
    *("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_l1", "reduce_l2"),
    *("reduce_log_sum", "reduce_log_sum_exp", "reduce_sum_square", "reduce_any", "reduce_all", "argmax", "argmin"),
)
_ROWS = ("softmax", "log_softmax", "hardmax", "lp_normalize", "cumsum", "cumprod", "split", "quantize", "dequantize")
# The variants of operators without the attribute `channels_last`.
_RULES: Mapping[str, Callable[[Graph, Node], ChannelsLast | None]] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys((*BROADCASTING, "prelu"), _broadcasting),
    **dict.fromkeys(_ROWS, _along_axis),
    "concat": _joining,
    **dict.fromkeys(("slice", "flip", "roll"), _along_axes),
    **dict.fromkeys(_LISTS, _by_dimension),
    **dict.fromkeys(_REDUCTIONS, _reducing),
    "reshape": _reshaping,
    "transpose": _transposing,
}
