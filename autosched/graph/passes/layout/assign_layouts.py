"""Layout assignment: which nodes have channels-last images, [N, ..., C], and which channels-first ones, [N, C, ...].

Convolutions are faster with channels last: they are vectorised along the channels, and each loaded weight is used for
many pixels. A transposition between the layouts costs a pass over the image. The assignment is a minimum cut between
these two costs,

    last --gain of a convolution--> node --bytes of the image--> node that reads it, and back --> first

where inputs and outputs of the graph, and nodes without a channels-last variant, are first. An image with several
readers is transposed once. Transposing an image of one channel or one pixel is free.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
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
from autosched.graph.passes.layout.merge_reshapes import merge_reshapes
from autosched.ir.dtype import DTYPES
from autosched.ir.size import value_of
from autosched.runtime.decisions import decided_once

FLOP_PER_BYTE = 16  # operations of a channels-last convolution that gain the time of transposing a byte
MIN_CHANNELS = 8  # output channels of a group; convolutions with fewer gain nothing
VIEW_COST = 1  # bytes; a free transposition still prevents fusion
_FIRST, _LAST = ("first",), ("last",)  # source and sink of the cut; no value has such a name
_PRODUCTS = ("conv", "conv_transpose", "conv_integer")

Variants = Mapping[str, ChannelsLast]  # by the first results of nodes


def assign_layouts(graph: Graph) -> Graph:
    """Use channels last where the minimum cut says so, and insert transposes where the layout changes."""
    gains = {node.outputs[0]: gain for node in graph.nodes if (gain := _gain(graph, node))}
    if not gains:
        return graph
    variants = _variants(graph, gains)
    chosen = _cut(graph, variants, gains)
    return merge_reshapes(_Relayout(graph, variants, chosen).relaid_graph()) if not chosen.isdisjoint(gains) else graph


def _gain(graph: Graph, node: Node) -> int:
    """Return the gain of a convolution with channels last, in bytes that could be transposed in that time."""
    if node.operator not in _PRODUCTS or node.attributes.get("channels_last"):
        return 0
    given, weights, made = _shapes(graph, node)
    if made[1] // cast("int", node.attributes.get("groups", 1)) < MIN_CHANNELS:
        return 0
    pixels = given if node.operator == "conv_transpose" else made
    return 2 * math.prod(pixels) * math.prod(weights[1:]) // FLOP_PER_BYTE


def _shapes(graph: Graph, product: Node) -> Sequence[Shape]:
    """Return the shapes of the image, the weights and the result."""
    return [graph.values[cast("str", name)].shape for name in (*product.inputs[:2], product.outputs[0])]


def _has_no_lanes(graph: Graph, node: Node) -> bool:
    """Whether a convolution with channels last could be vectorised along neither output channels nor weights."""
    if node.operator not in _PRODUCTS:
        return False
    _, weights, made = _shapes(graph, node)
    return made[1] == 1 and math.prod(weights[2:]) > 1


def _variants(graph: Graph, gains: Mapping[str, int]) -> Variants:
    """Return the channels-last variants of the nodes that have one."""
    variants: dict[str, ChannelsLast] = {}
    convolved: set[str] = set()  # images that come from a convolution
    for node in graph.nodes:
        variant = with_channels_last(
            graph, node, max((_channels(graph, variants, name) for name in node.used), default=1)
        )
        if variant is None or _has_no_lanes(graph, node):
            continue
        comes_from_one = not convolved.isdisjoint(node.used)
        if _is_fixed(variant) and to_last(variant.rank) == to_first(variant.rank):
            variant = (into_last if comes_from_one else out_of_last)(node, variant.rank)
        elif not _is_fixed(variant) and (comes_from_one or node.outputs[0] in gains):
            convolved.update(node.outputs)
        variants[node.outputs[0]] = variant
    return variants


def _channels(graph: Graph, variants: Variants, name: str) -> int:
    """Return how many axes of a value are channels."""
    node = graph.producers.get(name)
    variant = None if node is None else variants.get(node.outputs[0])
    return variant.channels if variant is not None and variant.results else 1


def _is_fixed(variant: ChannelsLast) -> bool:
    """Whether the node is a transpose between the layouts, whose variant is the identity."""
    return not (variant.operands and variant.results) and variant.node.operator == "identity"


def _cut(graph: Graph, variants: Variants, gains: Mapping[str, int]) -> AbstractSet[str]:
    """Return the first results of the nodes that get channels last, the fewest of the lowest cost now."""
    edges: dict[tuple[Hashable, Hashable], float] = {(_LAST, name): value_of(gain) for name, gain in gains.items()}
    for start, end, cost in _cut_edges(graph, variants):
        if start != end:
            edges[start, end] = edges.get((start, end), 0) + value_of(cost)
    depends = sorted([str(start), str(end), cost] for (start, end), cost in edges.items())
    chosen = decided_once("layouts", depends, lambda: [name for name in _last_side(edges) if name in variants])
    fixed = {name for name, variant in variants.items() if _is_fixed(variant)}
    return {*chosen, *fixed}


def _last_side(edges: Mapping[tuple[Hashable, Hashable], float]) -> Iterable[Hashable]:
    """Return the nodes on the side of channels last in the minimum cut of a network with these capacities."""
    import networkx
    from networkx.algorithms.flow import boykov_kolmogorov  # preflow-push, the default, takes 1.2 to 4 times as long

    network = networkx.DiGraph()
    network.add_edges_from((start, end, {"capacity": cost}) for (start, end), cost in edges.items())
    network.add_node(_FIRST)
    _, (chosen, _) = networkx.minimum_cut(network, _LAST, _FIRST, flow_func=boykov_kolmogorov)
    return cast("Iterable[Hashable]", chosen)


def _cut_edges(graph: Graph, variants: Variants) -> Iterator[tuple[Hashable, Hashable, float]]:
    """Yield edges (a, b, cost) of the cut: bytes to transpose if `a` has channels last and `b` first.

    Images pass through a node of the cut that stands for the transposed image, so that several readers pay once.
    """

    for name, value in graph.values.items():
        if len(value.shape) < 3 or graph.is_constant(name):
            continue
        maker, cost = (
            _producer_side(graph, variants, name),
            _cost(value, len(value.shape), _channels(graph, variants, name)),
        )
        readers: set[Hashable] = {_FIRST} if name in graph.outputs else set()
        for user in graph.users[name]:
            rank = _rank_of_image(variants, user, name)
            if rank in (None, len(value.shape)):
                readers.add(_FIRST if rank is None else _side(variants, user))
            else:  # it is broadcast before it is transposed, for this reader alone
                yield _side(variants, user), _FIRST, _cost(value, rank)
                readers.add(_FIRST)
        yield maker, (name, _FIRST), cost
        yield (name, _LAST), maker, cost
        for reader in readers:
            yield (name, _FIRST), reader, math.inf
            yield reader, (name, _LAST), math.inf


def _side(variants: Variants, node: Node) -> Hashable:
    """Return the node of the cut for the layout of a node."""
    variant = variants.get(node.outputs[0])
    return _FIRST if variant is None else _LAST if _is_fixed(variant) else node.outputs[0]


def _producer_side(graph: Graph, variants: Variants, name: str) -> Hashable:
    """Return the node of the cut for a value's producer; inputs and values that are no images are first."""
    node = graph.producers.get(name)
    variant = None if node is None else variants.get(node.outputs[0])
    return _FIRST if node is None or variant is None or not variant.results else _side(variants, node)


def _rank_of_image(variants: Variants, user: Node, name: str) -> int | None:
    """Return the rank of the image that a node reads a value as; None if it reads the value in its own layout."""
    variant = variants.get(user.outputs[0])
    is_image = variant is not None and any(user.inputs[n] == name for n in variant.operands)
    return variant.rank if variant is not None and is_image else None


def _cost(value: Value, rank: int, channels: int = 1) -> int:
    """Return the bytes to transpose of an image that is broadcast to `rank` axes."""
    shape = _broadcast_shape(value.shape, rank)
    if math.prod(shape[1 : channels + 1]) == 1 or math.prod(shape[channels + 1 :]) == 1:
        return VIEW_COST
    return math.prod(shape) * DTYPES[value.dtype].nbytes


def _broadcast_shape(shape: Shape, rank: int) -> Shape:
    return (*(1,) * (rank - len(shape)), *shape)


@dataclass
class _Relayout:
    """The graph under construction, with channels last at the `chosen` nodes.

    `last`: names of channels-last images, by name and rank of the image; `only_last`: images that have no
    channels-first copy so far.
    """

    graph: Graph
    variants: Variants
    chosen: AbstractSet[str]
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    last: dict[tuple[str, int], str] = field(default_factory=dict)
    only_last: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.values.update(self.graph.values)

    def relaid_graph(self) -> Graph:
        for node in self.graph.nodes:
            if node.outputs[0] in self.chosen:
                self._add_last(node, self.variants[node.outputs[0]])
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

    def _add_last(self, node: Node, variant: ChannelsLast) -> None:
        inputs = tuple(
            self._in_last(name, variant.rank) if n in variant.operands and name is not None else self._in_first(name)
            for n, name in enumerate(node.inputs)
        )
        outputs = node.outputs
        if variant.results:
            outputs = tuple(self._named(name, len(self.graph.values[name].shape)) for name in outputs)
            self.only_last.update(node.outputs)
        self._add(replace(variant.node, inputs=inputs, outputs=outputs))

    def _named(self, name: str, rank: int) -> str:
        """Return a new name for a channels-last image."""
        made = self.last[name, rank] = fresh_name((*self.values, *self.last.values()), f"{name}.last")
        return made

    def _in_first(self, name: str | None) -> str | None:
        if name in self.only_last and name is not None:
            self.only_last.discard(name)
            rank = len(self.graph.values[name].shape)
            perm = to_first(rank, _channels(self.graph, self.variants, name))
            self._add(Node("transpose", (self.last[name, rank],), (name,), {"perm": perm}))
        return name

    def _in_last(self, name: str, rank: int) -> str:
        if (name, rank) in self.last:
            return self.last[name, rank]
        shape = _broadcast_shape(self.graph.values[name].shape, rank)
        array = self.graph.constants.get(name)
        if array is not None:
            return self._constant(name, np.ascontiguousarray(array.reshape(shape).transpose(to_last(rank))))
        source: Any = self._in_first(name)
        if shape != self.graph.values[name].shape:
            whole = fresh_name((*self.values, *self.last.values()), f"{name}.whole")
            self._add(Node("reshape", (source,), (whole,), {"shape": shape}))
            source = whole
        made = self._named(name, rank)
        perm = to_last(rank, _channels(self.graph, self.variants, name))
        self._add(Node("transpose", (source,), (made,), {"perm": perm}))
        return made

    def _constant(self, name: str, array: Array) -> str:
        made = self._named(name, array.ndim)
        self.constants[made] = array
        self.values[made] = Value(made, array.shape, self.graph.values[name].dtype)
        return made
