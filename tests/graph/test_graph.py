"""Graphs: what is one, what is not, and what its nodes compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.graph import Graph, Node, Value, fresh_name
from autosched.graph.interpret import each_value, exact, interpret, plain
from autosched.graph.verify import verify

BIAS = np.arange(3, dtype="float32")


def small() -> Graph:
    """y = relu(x + bias)."""
    nodes = (Node("add", ("x", "bias"), ("s",)), Node("relu", ("s",), ("y",)))
    values = {name: Value(name, (2, 3), "float32") for name in "xsy"} | {"bias": Value("bias", (3,), "float32")}
    return Graph(("x",), ("y",), nodes, values, {"bias": BIAS})


def test_a_graph_is_computed_node_by_node():
    graph = small()
    verify(graph)
    x = np.array([[-1, -1, -1], [1, 1, 1]], dtype="float32")
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], np.maximum(x + BIAS, 0))
    assert [name for name, _ in each_value(graph, {"x": x})] == ["bias", "x", "s", "y"]


def test_the_arithmetic_of_the_reference():
    """A tenth three times: in float64, and as float32 has it."""
    nodes = (Node("add", ("x", "x"), ("s",)), Node("add", ("s", "x"), ("y",)))
    graph = Graph(("x",), ("y",), nodes, {name: Value(name, (1,), "float32") for name in "xsy"})
    tenth = np.float32([0.1])
    found = {a: interpret(graph, {"x": tenth}, a)["y"][0] for a in (exact, plain)}
    assert found[exact] == 3 * np.float64(tenth[0])
    assert found[plain] == np.float32(tenth[0] + tenth[0]) + tenth[0] != found[exact]


def test_a_graph_as_text():
    text = str(small())
    assert "network(x: float32[2, 3]):" in text
    assert "s = add(x, bias)  # float32[2, 3]" in text


def test_what_is_no_longer_read_goes():
    graph = small()
    alone = graph.with_nodes([Node("relu", ("x",), ("y",))])
    verify(alone)
    assert not alone.constants
    assert set(alone.values) == {"x", "y"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": (Node("relu", ("s",), ("y",)), Node("add", ("x", "bias"), ("s",)))}, "reads s, which nothing"),
        ({"nodes": (Node("relu", ("x",), ("s",)), Node("relu", ("x",), ("s",)))}, "makes s, which is there"),
        ({"nodes": (Node("unknown", ("x",), ("y",)),)}, "there is no operator unknown"),
        ({"outputs": ("z",)}, "the output z"),
        ({"constants": {"bias": BIAS.astype("float64")}}, r"the constant bias is float64\[3\]"),
        ({"inputs": ("x", "x")}, "has an input twice"),
    ],
)
def test_what_is_no_graph(change, message):
    with pytest.raises(GraphError, match=message):
        verify(replace(small(), **change))


def test_shapes_that_do_not_fit():
    graph = small()
    wide = replace(graph, values={**graph.values, "x": Value("x", (2, 4), "float32")})
    with pytest.raises(GraphError, match=r"the shapes \[2, 4\], \[3\] do not fit"):
        verify(wide)


def test_fresh_names():
    assert fresh_name({"a", "a.1"}, "a") == "a.2"
    assert fresh_name({"a"}, "b") == "b"
