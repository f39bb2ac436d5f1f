"""Weights of few bits: products of few rows read them as they are stored, and compute what the floats would."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import results_of
from autosched.graph.passes import run_passes
from autosched.graph.passes.quantisation.packed_weights import MAX_ROWS

RNG = np.random.default_rng(5)


def graph_of(nodes, constants, rows, depth, outputs=("y",)):
    """The graph of (output, operator, inputs, attributes) over x[rows, depth]."""
    values = {"x": Value("x", (rows, depth), "float32")}
    values |= {name: Value(name, a.shape, a.dtype.name) for name, a in constants.items()}
    made = []
    for output, operator, inputs, attributes in nodes:
        node = Node(operator, inputs, (output,), attributes)
        values |= {v.name: v for v in results_of(node, values)}
        made.append(node)
    return Graph(("x",), outputs, tuple(made), values, constants)


def product(rows, width, groups, group, dtype="uint8", zeros="number", bias=False):
    """linear(x, reshape((cast(q) - zero) * scale), b) of codes of 4 bits in uint8, else of all numbers of the type."""
    high = 16 if dtype == "uint8" else 128
    q = RNG.integers(0 if dtype == "uint8" else -128, high, (width, groups, group)).astype(dtype)
    scale = RNG.uniform(0.5, 1.5, (width, groups, 1)).astype("float32")
    zero = {"number": np.array(8, "float32"), "each": RNG.integers(0, 16, scale.shape).astype("float32")}
    constants = {"q": q, "scale": scale, "zero": zero.get(zeros, zero["number"])}
    constants |= {"b": RNG.standard_normal(width).astype("float32")} if bias else {}
    nodes = [("f", "cast", ("q",), {"dtype": "float32"}), ("m", "sub", ("f", "zero"), {})]
    if zeros == "none":
        nodes, constants = nodes[:1], {n: a for n, a in constants.items() if n != "zero"}
    nodes += [
        ("s", "mul", ("scale", nodes[-1][0]), {}),
        ("w", "reshape", ("s",), {"shape": (width, groups * group)}),
        ("y", "linear", ("x", "w", "b") if bias else ("x", "w"), {}),
    ]
    return graph_of(nodes, constants, rows, groups * group)


def check(graph):
    """What is computed, by a compiled network and by the passes alone, is what the graph as it was written says."""
    x = RNG.standard_normal(graph.values["x"].shape).astype("float32")
    want = interpret(graph, {"x": x})
    after, _ = run_passes(graph)
    for name, array in interpret(after, {"x": x}).items():
        np.testing.assert_allclose(array, want[name], rtol=1e-4, atol=2e-4)
    got = compile_graph(graph, threads=1)(x)
    for name, array in zip(graph.outputs, got if isinstance(got, tuple) else (got,), strict=True):
        np.testing.assert_allclose(array, want[name], rtol=1e-4, atol=2e-4)
    return after


@pytest.mark.parametrize(
    ("rows", "width", "groups", "group", "dtype", "zeros", "bias"),
    [
        (1, 97, 6, 32, "uint8", "number", False),
        (1, 1031, 1, 16, "uint8", "none", True),
        (3, 131, 16, 8, "uint8", "each", True),
        (16, 64, 9, 32, "uint8", "each", False),
        (1, 257, 1, 68, "int8", "none", False),
        (5, 129, 4, 32, "int8", "number", True),
    ],
)
def test_products_of_few_rows_keep_weights_of_few_bits(rows, width, groups, group, dtype, zeros, bias):
    after = check(product(rows, width, groups, group, dtype, zeros, bias))
    (node,) = after.nodes
    assert node.operator == "linear_few_bits"
    assert after.constants[node.inputs[1]].nbytes * 8 == width * groups * group * (4 if dtype == "uint8" else 8)


@pytest.mark.parametrize(
    ("rows", "group"), [(MAX_ROWS + 1, 32), (1, 12)], ids=["many rows", "groups of one word and a half"]
)
def test_others_are_computed_ahead(rows, group):
    after = check(product(rows, 150, 12, group))
    assert all(node.operator != "linear_few_bits" for node in after.nodes)


def test_a_column_of_a_matrix_has_a_scale():
    """As QDQ files write it: the weights of `matmul`, and an axis."""
    constants = {
        "q": RNG.integers(-128, 128, (64, 300)).astype("int8"),
        "scale": RNG.uniform(0.5, 1.5, 300).astype("float32"),
        "zero": RNG.integers(-9, 9, 300).astype("int8"),
    }
    nodes = [("w", "dequantize", ("q", "scale", "zero"), {"axis": 1}), ("y", "matmul", ("x", "w"), {})]
    (node,) = check(graph_of(nodes, constants, 1, 64)).nodes
    assert node.operator == "linear_few_bits"
    assert node.attributes["bits"] == 8


@pytest.mark.parametrize("zeros", ["number", "each"])
def test_products_of_one_operand_are_one_product(zeros):
    parts = [product(1, width, 4, 32, zeros=zeros, bias=bias) for width, bias in ((160, True), (130, False))]
    nodes, constants = [], {}
    for n, part in enumerate(parts):

        def own(name, n=n):
            return name if name in ("x", None) else f"{name}{n}"

        nodes += [(own(d.outputs[0]), d.operator, tuple(map(own, d.inputs)), d.attributes) for d in part.nodes]
        constants |= {own(name): array for name, array in part.constants.items()}
    after = check(graph_of(nodes, constants, 1, 128, ("y0", "y1")))
    assert [node.operator for node in after.nodes].count("linear_few_bits") == 1
