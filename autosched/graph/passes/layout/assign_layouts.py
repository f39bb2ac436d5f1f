"""Where images lie with their channels last, [N, ..., C], and where as they come, [N, C, ...].

Convolutions are faster with their channels last: vectors lie along them, and each weight that is loaded serves many
pixels. To move an image from one order to the other costs a pass over it. Which nodes have their channels last is a
minimum cut between these two costs,

    last --gain of a convolution--> node --bytes of the image--> node that reads it, and back --> first

where inputs and outputs of the graph, and nodes that know no other order, are first. An image that several nodes read
is moved once. Channels or pixels of which there is one alone move for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from autosched.graph.graph import Array, Graph, Node, Shape, Value, fresh_name
from autosched.graph.operators import results_of
from autosched.graph.passes.layout.channels_last import (
    ChannelsLast,
    into_last,
    out_of_last,
    to_first,
    to_last,
    with_channels_last,
)
from autosched.graph.passes.layout.merge_reshapes import merge_layouts
from autosched.ir.dtype import DTYPES

FLOP_OF_A_BYTE = 16  # operations of a convolution, with channels last, that gain the time in which a byte is moved
VECTOR = 8  # channels; convolutions that make fewer, or fewer in a group, gain nothing
VIEW_COST = 1  # bytes; what moves for nothing still stands between two nodes of one kernel
_FIRST, _LAST = ("first",), ("last",)  # no value is called like that
_PRODUCTS = ("conv", "conv_transpose", "conv_integer")

Forms = Mapping[str, ChannelsLast]  # of nodes, by their first results


def assign_layouts(graph: Graph) -> Graph:
    """Puts channels last where that pays, and transposes where the order changes."""
    gains = {node.outputs[0]: gain for node in graph.nodes if (gain := _gain(graph, node))}
    if not gains:
        return graph
    forms = _forms(graph, gains)
    chosen = _cut(graph, forms, gains)
    return merge_layouts(_Relayout(graph, forms, chosen).made()) if not chosen.isdisjoint(gains) else graph


def _gain(graph: Graph, node: Node) -> int:
    """What a convolution gains with its channels last, in bytes that could be moved in that time."""
    if node.operator not in _PRODUCTS or node.attributes.get("channels_last"):
        return 0
    given, weights, made = _shapes(graph, node)
    if made[1] // cast("int", node.attributes.get("groups", 1)) < VECTOR:
        return 0
    pixels = given if node.operator == "conv_transpose" else made
    return 2 * math.prod(pixels) * math.prod(weights[1:]) // FLOP_OF_A_BYTE


def _shapes(graph: Graph, product: Node) -> Sequence[Shape]:
    """Of the image, the weights and the result."""
    return [graph.values[cast("str", name)].shape for name in (*product.inputs[:2], product.outputs[0])]


def _has_no_lanes(graph: Graph, node: Node) -> bool:
    """Whether vectors could lie neither along the channels of the result, nor along weights, whose taps are densest."""
    if node.operator not in _PRODUCTS:
        return False
    _, weights, made = _shapes(graph, node)
    return made[1] == 1 and math.prod(weights[2:]) > 1


def _forms(graph: Graph, gains: Mapping[str, int]) -> Forms:
    """Of nodes that take images with their channels last."""
    forms: dict[str, ChannelsLast] = {}
    convolved: set[str] = set()  # images that come from a convolution
    for node in graph.nodes:
        form = with_channels_last(graph, node, max((_channels(graph, forms, name) for name in node.used), default=1))
        if form is None or _has_no_lanes(graph, node):
            continue
        comes_from_one = not convolved.isdisjoint(node.used)
        if _is_fixed(form) and to_last(form.rank) == to_first(form.rank):
            form = (into_last if comes_from_one else out_of_last)(node, form.rank)
        elif not _is_fixed(form) and (comes_from_one or node.outputs[0] in gains):
            convolved.update(node.outputs)
        forms[node.outputs[0]] = form
    return forms


def _channels(graph: Graph, forms: Forms, name: str) -> int:
    """How many dimensions of a value are channels."""
    node = graph.producers.get(name)
    form = None if node is None else forms.get(node.outputs[0])
    return form.channels if form is not None and form.results else 1


def _is_fixed(form: ChannelsLast) -> bool:
    """Whether the node is a transpose, which has its channels last on one side in any case."""
    return not (form.operands and form.results) and form.node.operator == "identity"


def _cut(graph: Graph, forms: Forms, gains: Mapping[str, int]) -> AbstractSet[str]:
    """The first results of the nodes that have their channels last; as few as have the least cost."""
    import networkx

    network = networkx.DiGraph()
    for name, gain in gains.items():
        network.add_edge(_LAST, name, capacity=gain)
    for start, end, cost in _moves(graph, forms):
        if start != end:
            known = network.get_edge_data(start, end, {"capacity": 0})
            network.add_edge(start, end, capacity=known["capacity"] + cost)
    network.add_node(_FIRST)
    _, (chosen, _) = networkx.minimum_cut(network, _LAST, _FIRST)
    fixed = {name for name, form in forms.items() if _is_fixed(form)}
    return {name for name in chosen if name in forms} | fixed


def _moves(graph: Graph, forms: Forms) -> Iterator[tuple[Hashable, Hashable, float]]:
    """(a, b, cost) where it costs so many bytes to have channels last at `a` and first at `b`.

    An image that one node makes and several read goes through a node of the cut that stands for the moved image.
    """

    for name, value in graph.values.items():
        if len(value.shape) < 3 or graph.is_constant(name):
            continue
        maker, cost = _maker(graph, forms, name), _cost(value, len(value.shape), _channels(graph, forms, name))
        readers: set[Hashable] = {_FIRST} if name in graph.outputs else set()
        for user in graph.users[name]:
            rank = _rank_of_image(forms, user, name)
            if rank in (None, len(value.shape)):
                readers.add(_FIRST if rank is None else _side(forms, user))
            else:  # it is stretched before it is moved, for this reader alone
                yield _side(forms, user), _FIRST, _cost(value, rank)
                readers.add(_FIRST)
        yield maker, (name, _FIRST), cost
        yield (name, _LAST), maker, cost
        for reader in readers:
            yield (name, _FIRST), reader, math.inf
            yield reader, (name, _LAST), math.inf


def _side(forms: Forms, node: Node) -> Hashable:
    """The node of the cut that tells how a node has its images."""
    form = forms.get(node.outputs[0])
    return _FIRST if form is None else _LAST if _is_fixed(form) else node.outputs[0]


def _maker(graph: Graph, forms: Forms, name: str) -> Hashable:
    """That of the node that makes a value; what is no image, or an input of the graph, is as it comes."""
    node = graph.producers.get(name)
    form = None if node is None else forms.get(node.outputs[0])
    return _FIRST if node is None or form is None or not form.results else _side(forms, node)


def _rank_of_image(forms: Forms, user: Node, name: str) -> int | None:
    """The dimensions of the image that a node takes a value for; None where it takes it as it comes."""
    form = forms.get(user.outputs[0])
    is_image = form is not None and any(user.inputs[n] == name for n in form.operands)
    return form.rank if form is not None and is_image else None


def _cost(value: Value, rank: int, channels: int = 1) -> int:
    """Bytes that are moved to change the order of an image, stretched to `rank` dimensions."""
    shape = _stretched(value.shape, rank)
    if math.prod(shape[1 : channels + 1]) == 1 or math.prod(shape[channels + 1 :]) == 1:
        return VIEW_COST
    return math.prod(shape) * DTYPES[value.dtype].nbytes


def _stretched(shape: Shape, rank: int) -> Shape:
    return (*(1,) * (rank - len(shape)), *shape)


@dataclass
class _Relayout:
    """The graph in the making, with channels last at the `chosen` nodes.

    `last`: the names of images with their channels last, by name and dimensions; `lost`: those of which there is no
    other order so far.
    """

    graph: Graph
    forms: Forms
    chosen: AbstractSet[str]
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    last: dict[tuple[str, int], str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.values.update(self.graph.values)

    def made(self) -> Graph:
        for node in self.graph.nodes:
            if node.outputs[0] in self.chosen:
                self._add_last(node, self.forms[node.outputs[0]])
            else:
                self._add(replace(node, inputs=tuple(map(self._in_first, node.inputs))))
        for name in self.graph.outputs:
            self._in_first(name)
        return self.graph.with_nodes(self.nodes, self.values.values(), self.constants)

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        for value in results_of(node, self.values):
            assert self.graph.values.get(value.name, value) == value, f"{node} makes {value}, which was another"
            self.values[value.name] = value

    def _add_last(self, node: Node, form: ChannelsLast) -> None:
        inputs = tuple(
            self._in_last(name, form.rank) if n in form.operands and name is not None else self._in_first(name)
            for n, name in enumerate(node.inputs)
        )
        outputs = node.outputs
        if form.results:
            outputs = tuple(self._named(name, len(self.graph.values[name].shape)) for name in outputs)
            self.lost.update(node.outputs)
        self._add(replace(form.node, inputs=inputs, outputs=outputs))

    def _named(self, name: str, rank: int) -> str:
        """A name for an image with its channels last."""
        made = self.last[name, rank] = fresh_name((*self.values, *self.last.values()), f"{name}.last")
        return made

    def _in_first(self, name: str | None) -> str | None:
        if name in self.lost and name is not None:
            self.lost.discard(name)
            rank = len(self.graph.values[name].shape)
            perm = to_first(rank, _channels(self.graph, self.forms, name))
            self._add(Node("transpose", (self.last[name, rank],), (name,), {"perm": perm}))
        return name

    def _in_last(self, name: str, rank: int) -> str:
        if (name, rank) in self.last:
            return self.last[name, rank]
        shape = _stretched(self.graph.values[name].shape, rank)
        array = self.graph.constants.get(name)
        if array is not None:
            return self._constant(name, np.ascontiguousarray(array.reshape(shape).transpose(to_last(rank))))
        source: Any = self._in_first(name)
        if shape != self.graph.values[name].shape:
            whole = fresh_name((*self.values, *self.last.values()), f"{name}.whole")
            self._add(Node("reshape", (source,), (whole,), {"shape": shape}))
            source = whole
        made = self._named(name, rank)
        perm = to_last(rank, _channels(self.graph, self.forms, name))
        self._add(Node("transpose", (source,), (made,), {"perm": perm}))
        return made

    def _constant(self, name: str, array: Array) -> str:
        made = self._named(name, array.ndim)
        self.constants[made] = array
        self.values[made] = Value(made, array.shape, self.graph.values[name].dtype)
        return made
