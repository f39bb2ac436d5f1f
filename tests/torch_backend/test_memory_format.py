"""Memory formats of inputs and outputs, told from strides; graphs for callers whose arrays have another than theirs."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.torch_backend.memory_format import memory_format_of, with_memory_formats


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((2, 3, 5), (15, 5, 1), (0, 1, 2)),
        ((2, 3, 5, 7), (105, 1, 21, 3), (0, 2, 3, 1)),  # channels last
        ((4, 1, 6), (6, 99, 1), (0, 1, 2)),  # the stride of one element is never used
        ((5, 3), (4, 1), None),  # a gap behind each row
        ((5, 3), (0, 1), None),  # rows over each other
        ((), (), ()),
    ],
)
def test_the_order_of_dimensions_follows_from_strides(shape, strides, order) -> None:
    assert memory_format_of(shape, strides) == order


def test_inputs_and_outputs_have_the_shape_of_memory() -> None:
    values = {name: Value(name, (2, 3, 5), "float32") for name in ("x", "y")}
    graph = Graph(("x",), ("y",), (Node("exp", ("x",), ("y",)),), values, {})
    assert with_memory_formats(graph, {"x": (0, 1, 2)}, {}) is graph
    turned = with_memory_formats(graph, {"x": (0, 2, 1)}, {0: (2, 0, 1)})
    assert turned.values[turned.inputs[0]].shape == (2, 5, 3)
    assert turned.values[turned.outputs[0]].shape == (5, 2, 3)
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype("float32")
    (y,) = interpret(turned, {turned.inputs[0]: x}).values()
    np.testing.assert_allclose(y, np.exp(x).transpose(1, 0, 2), rtol=1e-6)
