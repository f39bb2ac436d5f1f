"""Which images have their channels last, where they are moved, and that the numbers stay."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from functools import partial

import numpy as np
import pytest

from autosched.graph.graph import Graph
from autosched.graph.passes import run_passes
from autosched.graph.passes.layout.assign_layouts import assign_layouts
from autosched.graph.passes.layout.channels_last import with_channels_last
from tests.graph.drafts import Draft, checked, operators_of

MODULE = importlib.import_module("autosched.graph.passes.layout.assign_layouts")
PADS = ((1, 1), (1, 1))


def conv(d: Draft, x: str, channels: int, size: int = 3, **attributes):
    """A convolution with a bias that keeps the size of its image but for strides."""
    rank, ins = len(d.values[x].shape) - 2, d.values[x].shape[1]
    weights = d.random(channels, ins // attributes.get("groups", 1), *(size,) * rank)
    return d.conv(x, weights, d.random(channels), pads=((size // 2, size // 2),) * rank, **attributes)


def moves(graph: Graph) -> list[tuple[int, ...]]:
    """The permutations of the transposes that are left."""
    return [node.attributes["perm"] for node in graph.nodes if node.operator == "transpose"]


def are_last(graph: Graph) -> set[bool]:
    """Whether convolutions have their channels last."""
    return {bool(n.attributes.get("channels_last")) for n in graph.nodes if n.operator.startswith("conv")}


# Where images are moved.


def test_a_residual_network_reads_its_picture_in_another_order_and_moves_nothing_else():
    d = Draft()
    x = d.max_pool(d.relu(conv(d, d.input(2, 3, 15, 15), 8, 7, strides=(2, 2))), kernel=(3, 3), strides=(2, 2))
    for width, stride in ((8, 1), (16, 2)):
        inner = d.relu(conv(d, x, width, strides=(stride, stride)))
        short = conv(d, x, width, 1, strides=(stride, stride)) if stride > 1 else x
        x = d.relu(d.add(conv(d, inner, width), short))
    y = d.reshape(d.reduce_mean(x, axes=(2, 3)), shape=(2, 16))
    after = checked(assign_layouts, d.graph(d.linear(y, d.random(5, 16))))
    assert moves(after) == [(0, 2, 3, 1)]
    assert are_last(after) == {True}
    assert operators_of(after).count("reshape") == 1


def test_a_u_net_moves_its_ends():
    d = Draft()
    skip = d.relu(conv(d, d.input(1, 3, 12, 12), 8))
    deep = d.relu(conv(d, d.max_pool(skip, kernel=(2, 2), strides=(2, 2)), 16))
    up = d.conv_transpose(deep, d.random(16, 8, 2, 2), d.random(8), strides=(2, 2))
    joined = d.relu(conv(d, d.concat(skip, up, axis=1), 8))
    after = checked(assign_layouts, d.graph(conv(d, joined, 2, 1)))
    assert moves(after) == [(0, 2, 3, 1), (0, 3, 1, 2)]
    # The picture and the classes, which have fewer channels than anything between them.
    assert [after.values[n.outputs[0]].shape for n in after.nodes if n.operator == "transpose"] == [
        (1, 12, 12, 3),
        (1, 2, 12, 12),
    ]


def test_squeeze_and_excite_moves_nothing():
    d = Draft()
    x = d.silu(conv(d, d.input(2, 8, 9, 7), 8, groups=8))
    mean = d.reduce_mean(x, axes=(2, 3))
    scale = d.sigmoid(conv(d, d.silu(conv(d, mean, 2, 1)), 8, 1))
    after = checked(assign_layouts, d.graph(conv(d, d.mul(x, scale), 64)))
    assert Counter(operators_of(after)) == {
        "transpose": 2, "conv": 4, "silu": 2, "reduce_mean": 1, "sigmoid": 1, "mul": 1
    }  # fmt: skip


def test_a_flattened_image_is_a_sequence_without_being_moved():
    d = Draft()
    x = d.input(1, 8, 6, 5)
    y = conv(d, d.silu(d.group_norm(x, d.random(8), d.random(8), groups=2)), 8)
    flat = d.transpose(d.reshape(y, shape=(1, 8, 30)), perm=(0, 2, 1))
    mixed = d.add(d.linear(d.layer_norm(flat), d.random(8, 8)), flat)
    back = d.reshape(d.transpose(mixed, perm=(0, 2, 1)), shape=(1, 8, 6, 5))
    z = d.add(conv(d, back, 8), x)

    def passes(graph):
        return run_passes(graph)[0]

    after = checked(passes, d.graph(z))
    assert moves(after) == [(0, 2, 3, 1), (0, 3, 1, 2)]
    assert operators_of(after).count("reshape") == 2


def test_a_sequence_between_two_convolutions_of_one_dimension():
    d = Draft()
    y = conv(d, d.input(2, 3, 13), 8)
    rows = d.layer_norm(d.transpose(d.relu(y), perm=(0, 2, 1)))
    after = checked(assign_layouts, d.graph(conv(d, d.transpose(rows, perm=(0, 2, 1)), 9)))
    assert moves(after) == [(0, 2, 1), (0, 2, 1)]
    assert (after.nodes[0].operator, after.nodes[-1].operator) == ("transpose", "transpose")


def test_shuffled_channels_are_moved_as_they_lie():
    d = Draft()
    x = conv(d, d.input(2, 3, 7, 5), 12)
    apart = d.transpose(d.reshape(x, shape=(2, 3, 4, 7, 5)), perm=(0, 2, 1, 3, 4))
    after = checked(assign_layouts, d.graph(conv(d, d.reshape(apart, shape=(2, 12, 7, 5)), 2)))
    assert moves(after) == [(0, 2, 3, 1), (0, 1, 2, 4, 3), (0, 3, 1, 2)]
    assert operators_of(after).count("reshape") == 2


def test_heads_that_are_taken_apart_move_once():
    d = Draft()
    x = conv(d, d.input(1, 3, 6, 5), 12, 5)
    heads = d.transpose(d.reshape(x, shape=(1, 3, 4, 30)), perm=(0, 1, 3, 2))
    after = checked(assign_layouts, d.graph(d.softmax(heads)))
    assert moves(after) == [(0, 2, 3, 1), (0, 3, 1, 2, 4)]


def test_an_image_that_several_read_is_moved_once():
    d = Draft()
    x = d.input(1, 8, 5, 7)
    ends = [conv(d, x, 8), conv(d, x, 9), d.matmul(x, d.random(7, 3))]
    after = checked(assign_layouts, d.graph(*ends))
    assert moves(after) == [(0, 2, 3, 1), (0, 3, 1, 2), (0, 3, 1, 2)]


def test_volumes_and_pixels_of_one():
    d = Draft()
    x = d.relu(conv(d, d.input(1, 3, 5, 4, 6), 8, strides=(1, 2, 2)))
    single = conv(d, d.reduce_max(x, axes=(2, 3, 4)), 11, 1)
    after = checked(assign_layouts, d.graph(single))
    assert moves(after) == [(0, 2, 3, 4, 1)]  # channels of one pixel are in the same order first and last
    assert are_last(after) == {True}


def test_what_follows_goes_along():
    """Constants for each channel, borders, cuts and maxima: one image in, one vector of classes out."""
    d = Draft()
    x = d.mul(conv(d, d.input(1, 3, 8, 8), 8), d.random(8, 1, 1))
    x = d.prelu(d.pad(x, pads=((0, 0), (0, 2), (1, 1), (0, 0))), d.random(10, 1, 1))
    x = d.slice(x, starts=(1, None), stops=(None, None), axes=(1, -1), steps=(1, -2))
    x = d.softmax(d.resize(x, sizes=(1, 9, 20, 8), scales=(1.0, 1.0, 2.0, 2.0), coordinates="asymmetric"), axis=1)
    first, second = d.add_node("split", x, sizes=(4, 5), axis=1, outputs=2)
    x = conv(d, d.concat(second, d.random(1, 3, 20, 8), first, axis=1), 8)
    after = checked(assign_layouts, d.graph(d.argmax(x, axis=1, keepdims=False)))
    assert moves(after) == [(0, 2, 3, 1)]


# Where nothing is moved.


def test_no_convolution_no_move():
    d = Draft()
    x = d.input(2, 8, 7, 5)
    y = d.transpose(d.relu(d.max_pool(x, kernel=(2, 2))), perm=(0, 2, 3, 1))
    graph = d.graph(y, d.batch_norm(x, *[d.random(8, low=0.5)] * 4))
    assert assign_layouts(graph) is graph


def test_a_convolution_that_gains_less_than_its_image_costs():
    d = Draft()
    graph = d.graph(conv(d, d.input(1, 8, 9, 9), 8, groups=8))
    assert assign_layouts(graph) is graph


def test_few_channels_are_not_worth_it():
    d = Draft()
    graph = d.graph(conv(d, d.input(1, 64, 9, 9), 3, 5))
    assert assign_layouts(graph) is graph


def test_what_has_no_vectors_along_channels_stays():
    d = Draft()
    grouped = d.graph(conv(d, d.input(1, 32, 9, 9), 32, groups=8))
    assert assign_layouts(grouped) is grouped
    for size, last in ((3, {True, False}), (1, {True})):  # weights of one tap are dense along the channels
        d = Draft()
        graph = d.graph(conv(d, conv(d, d.input(1, 8, 9, 9), 64), 1, size))
        assert are_last(checked(assign_layouts, graph)) == last


# All rules, each with everything last that can be, and any part of a graph last.


def forced(chosen, monkeypatch):
    """assign_layouts with channels last at the nodes that `chosen` says; the pass leaves its own result as it is."""
    monkeypatch.setattr(MODULE, "_gain", lambda graph, node: 1)
    monkeypatch.setattr(
        MODULE, "_cut", lambda graph, forms, gains: {n for n, f in forms.items() if MODULE._is_fixed(f) or chosen(n)}
    )
    made: list[Graph] = []

    def once(graph):
        if not made or graph is not made[-1]:
            made.append(assign_layouts(graph))
        return made[-1]

    return once


RULES = [
    ("conv", (1, 4, 5), [(6, 2, 3)], {"groups": 2}),
    ("conv_transpose", (1, 3, 2, 3, 2), [(3, 5, 2, 2, 1), (5,)], {"strides": (2, 1, 2)}),
    ("max_pool", (2, 3, 7, 5), [], {"kernel": (2, 3), "pads": ((0, 1), (1, 1))}),
    ("batch_norm", (1, 3, 5), [(3,)] * 4, {}),
    ("instance_norm", (2, 3, 4, 1), [(3,), (3,)], {}),
    ("gelu", (1, 3, 2, 5), [], {}),
    ("cast", (1, 3, 2, 5), [], {"dtype": "float64"}),
    ("add", (2, 3, 4, 5), [(3, 1, 1)], {}),
    ("add", (4, 1), [(2, 3, 4, 5)], {}),
    ("sub", (2, 1, 4, 5), [(2, 3, 1, 1)], {}),
    ("mul", (1, 3, 5), [()], {}),
    ("maximum", (2, 3, 5), [(3, 5), (1, 1, 1), (5,)], {}),
    ("prelu", (2, 3, 5), [(3, 1)], {}),
    ("concat", (2, 3, 5), [(2, 1, 5), (2, 2, 5)], {"axis": 1}),
    ("concat", (2, 3, 5), [(2, 3, 1)], {"axis": -1}),
    ("pad", (2, 3, 5, 4), [], {"pads": ((0, 0), (1, 2), (0, 1), (3, 0)), "value": 0.5}),
    ("pad", (1, 3, 5), [], {"pads": ((0, 0), (2, 0), (1, 3)), "mode": "reflect"}),
    ("tile", (2, 3, 4), [], {"repeats": (1, 2, 3)}),
    ("expand", (2, 1, 4, 1), [], {"shape": (2, 3, 4, 5)}),
    ("resize", (1, 2, 3, 4), [], {"sizes": (1, 2, 6, 7), "mode": "linear"}),
    ("slice", (2, 3, 7, 5), [], {"starts": (0, 1, None), "stops": (2, 3, 6)}),
    ("slice", (2, 3, 7), [], {"starts": (-1,), "stops": (None,), "axes": (-1,)}),
    ("flip", (2, 3, 4, 5), [], {"axes": (1, -1)}),
    ("roll", (2, 3, 4, 5), [], {"axes": (1, 3), "shifts": (2, -1)}),
    ("softmax", (2, 3, 4, 5), [], {"axis": 1}),
    ("softmax", (2, 3, 5), [], {}),
    ("cumsum", (2, 3, 4, 5), [], {"axis": -2}),
    ("dequantize", (2, 3, 5), [(3,)], {}),
    ("reduce_mean", (2, 3, 4, 5), [], {"axes": (-1, 2), "keepdims": False}),
    ("reduce_mean", (2, 3, 4, 5), [], {"axes": (3,), "keepdims": False}),
    ("reduce_max", (2, 3, 4, 5), [], {"axes": (1,), "keepdims": False}),
    ("reduce_sum", (2, 3, 4, 5), [], {"axes": (0, 1)}),
    ("reduce_l2", (2, 3, 4, 5), [], {}),
    ("argmax", (2, 3, 4, 5), [], {"axis": 1}),
    ("argmin", (2, 3, 4, 5), [], {"axis": -1, "keepdims": False}),
    ("reshape", (2, 3, 4, 5), [], {"shape": (2, 3, 20)}),
    ("reshape", (2, 3, 20), [], {"shape": (2, 3, 2, 5, 2)}),
    ("transpose", (2, 3, 4, 5), [], {"perm": (0, 2, 3, 1)}),
    ("transpose", (2, 3, 4, 5), [], {"perm": (0, 3, 1, 2)}),
    ("transpose", (2, 3, 4), [], {"perm": (0, 2, 1)}),
]


@pytest.mark.parametrize(("operator", "shape", "others", "attributes"), RULES)
def test_an_operator_with_channels_last(operator, shape, others, attributes, monkeypatch):
    d = Draft()
    x = d.input(*shape)
    x = d.cast(x, dtype="int32") if operator == "dequantize" else x
    parameters = [d.random(*s, low=0.3) if len(s) < len(shape) else d.input(*s) for s in others]
    graph = d.graph(d.neg(d.add_node(operator, x, *parameters, **attributes)))
    if operator.startswith("arg"):
        graph = d.graph(d.cast(graph.nodes[-2].outputs[0], dtype="float32"))
    assert with_channels_last(graph, graph.producers[graph.nodes[-1].inputs[0]])
    checked(forced(lambda name: True, monkeypatch), graph)


@pytest.mark.parametrize(
    ("operator", "shape", "attributes"),
    [
        ("conv", (1, 5, 6, 3), {"channels_last": True}),
        ("reduce_sum", (2, 3, 4, 5), {"axes": (0,), "keepdims": False}),
        ("expand", (3, 1), {"shape": (2, 3, 4)}),
        ("reshape", (2, 3, 4, 5), {"shape": (2, 12, 5)}),
        ("transpose", (2, 3, 4, 5), {"perm": (0, 1, 3, 2)}),
        ("layer_norm", (2, 3, 4, 5), {}),
        ("neg", (3, 4), {}),
    ],
)
def test_what_cannot_have_channels_last(operator, shape, attributes):
    d = Draft()
    weights = [d.random(2, 3, 1, 1)] if operator == "conv" else []
    graph = d.graph(d.add_node(operator, d.input(*shape), *weights, **attributes))
    assert with_channels_last(graph, graph.nodes[0]) is None


def _apart(shape: tuple[int, ...]) -> tuple[int, ...]:
    """With channels in two dimensions."""
    groups = 2 if shape[1] % 2 == 0 else 1
    return (shape[0], groups, shape[1] // groups, *shape[2:])


def some_node(d: Draft, rng: np.random.Generator, pool: list[str]) -> str | None:
    """One more node that reads images of the pool; None where what was drawn does not fit."""
    x = str(rng.choice(pool))
    shape = d.values[x].shape
    kind, rank = int(rng.integers(15)), len(shape)
    if rank < 3:
        return str(d.linear(x, d.random(4, shape[-1])))
    alike = [name for name in pool if d.values[name].shape == shape]
    joined = [name for name in pool if (s := d.values[name].shape)[:1] + s[2:] == shape[:1] + shape[2:]]
    axis = int(rng.integers(1, rank))
    makers = [
        lambda: conv(d, x, int(rng.integers(1, 9)), int(rng.choice([1, 3]))),
        lambda: conv(d, x, shape[1], 3, groups=shape[1]),
        lambda: d.relu(x),
        lambda: d.add(x, str(rng.choice(alike))),
        lambda: d.mul(x, d.random(shape[1], *(1,) * (rank - 2))),
        lambda: d.concat(x, str(rng.choice(joined)), axis=1) if sum(shape) < 30 else None,
        lambda: d.max_pool(x, kernel=(2,) * (rank - 2)) if min(shape[2:]) > 1 else None,
        lambda: d.mul(x, d.sigmoid(d.reduce_mean(x, axes=tuple(range(2, rank))))),
        lambda: d.transpose(x, perm=[(0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))][axis % 2]),
        lambda: d.reshape(x, shape=(*shape[:2], math.prod(shape[2:]))),
        lambda: d.reduce_mean(x, axes=(axis,), keepdims=False),
        lambda: d.reshape(x, shape=_apart(shape)) if rank < 5 else None,
        lambda: d.transpose(x, perm=(0, 2, 1, *range(3, rank))) if rank > 3 else None,
        lambda: d.reshape(x, shape=(shape[0], shape[1] * shape[2], *shape[3:])) if rank > 3 else None,
        lambda: d.slice(x, starts=(shape[axis] // 2,), stops=(None,), axes=(axis,)),
    ]
    return makers[kind]()


def some_graph(rng: np.random.Generator) -> Graph:
    d = Draft()
    sizes = [int(n) for n in rng.choice([1, 2, 3, 5], int(rng.integers(1, 4)))]
    pool = [d.input(int(rng.integers(1, 3)), int(rng.choice([1, 3, 8])), *sizes)]
    while len(d.nodes) < 12:
        made = some_node(d, rng, pool)
        # Numbers that grow from node to node would leave nothing to compare: tanh keeps them small.
        pool += [str(d.tanh(made)) if rng.random() < 0.3 else made] if made is not None else []
    return d.graph(*dict.fromkeys([pool[-1], *(str(name) for name in rng.choice(pool, 2))]))


@pytest.mark.parametrize("seed", range(30))
def test_any_part_of_a_graph_may_have_channels_last(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    graph = some_graph(rng)
    drawn = {node.outputs[0]: rng.random() < 0.5 for node in graph.nodes}
    checked(forced(partial(drawn.get), monkeypatch), graph)


@pytest.mark.parametrize("seed", range(30))
def test_graphs_at_random(seed, monkeypatch):
    monkeypatch.setattr(MODULE, "FLOP_PER_BYTE", 1)
    checked(assign_layouts, some_graph(np.random.default_rng(100 + seed)))
