"""Weights of convolutions as products of a GPU read them: the same results, and nothing turned around in a call."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.graph.fusion.cost import rates_of
from autosched.graph.fusion.partition import partition
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import results_of
from autosched.graph.passes.layout.weight_layout import transform_weight_layouts
from autosched.graph.steps import Group
from autosched.target import parse_target

# Operator, weights, attributes: images of six channels, which are last.
CASES = [
    ("conv", (4, 6, 3, 3), {"strides": (2, 1), "pads": ((1, 1), (0, 1))}),
    ("conv", (3, 2, 3, 3), {"groups": 3}),
    ("conv_transpose", (6, 5, 2, 3), {"strides": (2, 2)}),
]
UNTURNED = [
    ("conv", (4, 6, 1, 1), {}),  # no taps
    ("conv", (6, 1, 3, 3), {"groups": 6}),  # no channels are added up
    ("conv_transpose", (6, 1, 2, 2), {"groups": 2}),  # places that are no axes
]


def network(operator: str, shape: tuple[int, ...], attributes: dict[str, object], *, last: bool = True) -> Graph:
    image = (1, 7, 5, 6) if last else (1, 6, 7, 5)
    values = {"x": Value("x", image, "float32"), "w": Value("w", shape, "float32")}
    node = Node(operator, ("x", "w"), ("y",), {**attributes, "channels_last": last})  # type: ignore[dict-item]
    values |= {value.name: value for value in results_of(node, values)}
    weights = np.random.default_rng(0).normal(size=shape).astype("float32")
    return Graph(("x",), ("y",), (node,), values, {"w": weights})


@pytest.mark.parametrize(("operator", "shape", "attributes"), CASES)
def test_channels_are_last_and_results_the_same(operator, shape, attributes):
    graph = network(operator, shape, attributes)
    turned = transform_weight_layouts(graph)
    assert transform_weight_layouts(turned) is turned
    [stored] = turned.constants.values()
    assert stored.shape[-1] == shape[0 if operator == "conv_transpose" else 1]
    given = {"x": np.random.default_rng(1).normal(size=graph.values["x"].shape).astype("float32")}
    np.testing.assert_array_equal(interpret(turned, given)["y"], interpret(graph, given)["y"])


@pytest.mark.parametrize(("operator", "shape", "attributes"), CASES)
@pytest.mark.parametrize("target", ["cuda", "opencl"])
def test_the_reader_takes_the_turning_in(operator, shape, attributes, target):
    turned = transform_weight_layouts(network(operator, shape, attributes))
    [group] = (s for s in partition(turned, rates_of(parse_target(target), 1)) if isinstance(s, Group))
    assert [node.operator for node in group.nodes] == ["transpose", operator]


@pytest.mark.parametrize(("operator", "shape", "attributes"), UNTURNED)
def test_what_stays(operator, shape, attributes):
    graph = network(operator, shape, attributes)
    assert transform_weight_layouts(graph) is graph
    first = network("conv", (4, 6, 3, 3), {}, last=False)
    assert transform_weight_layouts(first) is first
