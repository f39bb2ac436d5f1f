"""Nodes on images [N, C, ...] as nodes on the same images with their channels last, [N, ..., C].

Operators on images have an attribute for that. Others go by dimensions, whose numbers change: those that work element
by element, join, cut, pad, resize or reduce. A transpose that puts the channels last is none at all then. Where
channels are taken apart, to be shuffled, several dimensions after the batch are channels, [N, G, C / G, ...].
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
    """`node`: what computes the same on images with their channels last, called as the node that it stands for.

    `operands`: the places among its inputs of such images; those of fewer dimensions are stretched to `rank`.
    `results`: whether its results are such images too, with so many dimensions of channels. What else it reads and
    makes is as it was.
    """

    node: Node
    rank: int
    operands: tuple[int, ...] = (0,)
    results: bool = True
    channels: int = 1


def to_last(rank: int, channels: int = 1) -> Shape:
    """The permutation from [N, C, ...] to [N, ..., C], for so many dimensions of channels."""
    return (0, *range(channels + 1, rank), *range(1, channels + 1))


def to_first(rank: int, channels: int = 1) -> Shape:
    """The permutation from [N, ..., C] to [N, C, ...]."""
    return (0, *range(rank - channels, rank), *range(1, rank - channels))


def in_last_order(items: Sequence[T]) -> tuple[T, ...]:
    """What belongs to the dimensions of [N, C, ...], for those of [N, ..., C]."""
    return tuple(items[d] for d in to_last(len(items)))


def with_channels_last(graph: Graph, node: Node, channels: int = 1) -> ChannelsLast | None:
    """None where the node does not take such images, or has no images. `channels`: dimensions of its first operand."""
    if node.inputs[:1] == (None,) or not node.inputs:
        return None
    if channels > 1 or node.operator == "reshape":
        moving = _MOVING.get(node.operator)
        found = moving(graph, node, channels) if moving is not None else None
        if found is not None or channels > 1:
            return found
    rule = _RULES.get(node.operator) or (_by_attribute if _CHANNELS_LAST in _parameters(node.operator) else None)
    ranks = [len(graph.values[name].shape) for name in (*node.used[:1], node.outputs[0])]
    return None if rule is None or max(ranks) < 3 else rule(graph, node)


def into_last(node: Node, rank: int) -> ChannelsLast:
    """A transpose that puts the channels last: the operand with its channels last is the result."""
    return ChannelsLast(replace(node, operator="identity", attributes={}), rank, results=False)


def out_of_last(node: Node, rank: int) -> ChannelsLast:
    """A transpose that puts the channels first: the operand is the result with its channels last."""
    return ChannelsLast(replace(node, operator="identity", attributes={}), rank, operands=())


_CHANNELS_LAST = "channels_last"


@cache
def _parameters(operator: str) -> Mapping[str, Any]:
    """The default of each attribute that an operator has."""
    return {p.name: p.default for p in inspect.signature(operators()[operator]).parameters.values()}


def _told(node: Node, name: str) -> Any:
    """An attribute, or its default."""
    return node.attributes.get(name, _parameters(node.operator)[name])


def _rank(graph: Graph, node: Node) -> int:
    return len(graph.values[node.used[0]].shape)


def _place(axis: int, rank: int) -> int:
    """Where a dimension of [N, C, ...] is in [N, ..., C]."""
    return to_last(rank).index(axis % rank)


def _turned(node: Node, **attributes: Attribute) -> Node:
    return replace(node, attributes={**node.attributes, **attributes})


def _by_attribute(graph: Graph, node: Node) -> ChannelsLast | None:
    rank = _rank(graph, node)
    is_so = _told(node, _CHANNELS_LAST) or rank < 3
    return None if is_so else ChannelsLast(_turned(node, channels_last=True), rank)


def _unary(graph: Graph, node: Node) -> ChannelsLast:
    return ChannelsLast(node, _rank(graph, node))


def _broadcasting(graph: Graph, node: Node) -> ChannelsLast:
    places = tuple(n for n, name in enumerate(node.inputs) if name is not None)
    return ChannelsLast(node, len(graph.values[node.outputs[0]].shape), places)


def _along_axis(graph: Graph, node: Node) -> ChannelsLast:
    rank = _rank(graph, node)
    return ChannelsLast(_turned(node, axis=_place(_told(node, "axis"), rank)), rank)


def _joining(graph: Graph, node: Node) -> ChannelsLast:
    return replace(_along_axis(graph, node), operands=tuple(range(len(node.inputs))))


def _along_axes(graph: Graph, node: Node) -> ChannelsLast:
    rank, axes = _rank(graph, node), _told(node, "axes")
    named = range(len(_told(node, "starts"))) if axes is None else axes
    return ChannelsLast(_turned(node, axes=tuple(_place(axis, rank) for axis in named)), rank)


def _by_dimension(graph: Graph, node: Node) -> ChannelsLast | None:
    """Attributes that have an entry for each dimension of operand and result."""
    rank = _rank(graph, node)
    lists = {name: node.attributes.get(name) for name in _LISTS[node.operator]}
    turned = {name: in_last_order(what) for name, what in lists.items() if isinstance(what, tuple)}
    if any(len(what) != rank for what in turned.values()):
        return None  # an operand of fewer dimensions is stretched
    return ChannelsLast(_turned(node, **turned), rank)


def _reducing(graph: Graph, node: Node) -> ChannelsLast | None:
    """Dimensions that go leave an image, or what is the same in either order."""
    rank = _rank(graph, node)
    word = "axes" if "axes" in _parameters(node.operator) else "axis"
    said = _told(node, word)
    over = {axis % rank for axis in (range(rank) if said is None else said if isinstance(said, tuple) else (said,))}
    places = tuple(sorted(_place(axis, rank) for axis in over))
    form = ChannelsLast(_turned(node, **{word: places if word == "axes" else places[0]}), rank)
    if _told(node, "keepdims"):
        return form
    kept, in_order = ([d for d in dims if d not in over] for dims in (range(rank), to_last(rank)))
    if kept == in_order:
        return replace(form, results=False)
    return form if kept[:2] == [0, 1] else None


def _reshaping(graph: Graph, node: Node) -> ChannelsLast | None:
    """What takes dimensions other than batch and channels apart, or puts them together."""
    given, made = graph.values[node.used[0]].shape, graph.values[node.outputs[0]].shape
    if min(len(given), len(made)) < 3 or given[:2] != made[:2]:
        return None
    return ChannelsLast(_turned(node, shape=in_last_order(made)), len(given))


def _transposing(graph: Graph, node: Node) -> ChannelsLast | None:
    """Of images of one dimension either permutation is the other too: `assign_layouts` tells which is meant."""
    rank, perm = _rank(graph, node), permutation(node)
    if perm == to_last(rank):
        return into_last(node, rank)
    return out_of_last(node, rank) if perm == to_first(rank) else None


def _regrouping(graph: Graph, node: Node, channels: int) -> ChannelsLast | None:
    """Channels are taken apart, or put together."""
    given, made = graph.values[node.used[0]].shape, graph.values[node.outputs[0]].shape
    pixels = given[channels + 1 :]
    count = len(made) - 1 - len(pixels)
    if not pixels or count < 1 or made != (given[0], *made[1 : count + 1], *pixels):
        return None
    shape = (made[0], *pixels, *made[1 : count + 1])
    return ChannelsLast(_turned(node, shape=shape), len(given), channels=count)


def _shuffling(graph: Graph, node: Node, channels: int) -> ChannelsLast | None:
    """Dimensions of channels change places."""
    perm, rank = permutation(node), _rank(graph, node)
    if any((place != axis) for axis, place in enumerate(perm) if not 1 <= axis <= channels):
        return None
    order = to_last(rank, channels)
    return ChannelsLast(_turned(node, perm=tuple(order.index(perm[d]) for d in order)), rank, channels=channels)


# What is done to several dimensions of channels.
_MOVING: Mapping[str, Callable[[Graph, Node, int], ChannelsLast | None]] = {
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
# How an operator without the attribute goes by dimensions.
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
