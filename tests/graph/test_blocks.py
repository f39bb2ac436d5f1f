"""Weights in blocks: their numbers are those of the package gguf, products of them those of the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import api
from autosched.errors import GraphError
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import results_of
from autosched.te.operators.blocks import BLOCK_FORMATS
from tests.gguf_files import random_blocks

quants = pytest.importorskip("gguf.quants")
constants = pytest.importorskip("gguf.constants")

FORMATS = ("Q4_0", "Q8_0", "Q4_K", "Q6_K")


def numbers(blocks, name):
    return quants.dequantize(blocks, constants.GGMLQuantizationType[name])


def graph_of(operator, inputs, arrays, varying=(), **attributes):
    """The graph of one node; `arrays` that do not vary are constants."""
    values = {name: Value(name, a.shape, a.dtype.name) for name, a in arrays.items()}
    node = Node(operator, inputs, ("y",), attributes)
    values |= {v.name: v for v in results_of(node, values)}
    return Graph(varying, ("y",), (node,), values, {n: a for n, a in arrays.items() if n not in varying})


def test_every_format_is_tested():
    assert set(FORMATS) == set(BLOCK_FORMATS)
    for name, layout in BLOCK_FORMATS.items():
        sizes = constants.GGML_QUANT_SIZES[constants.GGMLQuantizationType[name]]
        assert (layout.elements, layout.nbytes) == sizes


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_numbers_are_those_of_the_package_gguf(name, rows):
    rng = np.random.default_rng(rows)
    blocks = random_blocks(rng, name, rows, 2 * BLOCK_FORMATS[name].elements)
    graph = graph_of("dequantize_blocks", ("w",), {"w": blocks}, ("w",), block=name)
    want = numbers(blocks, name) if rows else np.zeros((0, 2 * BLOCK_FORMATS[name].elements), "float32")
    np.testing.assert_allclose(interpret(graph, {"w": blocks})["y"], want, rtol=1e-6, atol=1e-7)
    got = api.load(graph, threads=1, records=False)(blocks)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("rows", "width", "blocks_each"), [(1, 37, 1), (1, 64, 3), (3, 5, 2), (17, 13, 2), (0, 3, 1), (1, 0, 1), (2, 1, 1)]
)
def test_products(name, rows, width, blocks_each):
    rng = np.random.default_rng(width)
    depth = blocks_each * BLOCK_FORMATS[name].elements
    blocks = random_blocks(rng, name, width, depth)
    x, bias = rng.standard_normal((rows, depth)).astype("float32"), rng.standard_normal(width).astype("float32")
    graph = graph_of("linear_blocks", ("x", "w", "b"), {"x": x, "w": blocks, "b": bias}, ("x",), block=name)
    weight = numbers(blocks, name) if width else np.zeros((0, depth))
    want = x.astype("float64") @ weight.astype("float64").T + bias
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], want, rtol=1e-5, atol=1e-4)
    got = api.load(graph, threads=1, records=False)(x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("operator", "shapes", "block", "reason"),
    [
        ("dequantize_blocks", [(3, 17)], "Q4_0", r"18 bytes of uint8 each but got uint8\[3, 17\]"),
        ("dequantize_blocks", [(3, 18)], "Q4_9", "the format of blocks is Q4_0, .* but got 'Q4_9'"),
        ("dequantize_blocks", [()], "Q4_0", "got a scalar"),
        ("linear_blocks", [(1, 31), (3, 18)], "Q4_0", "do not fit each other"),
        ("linear_blocks", [(1, 32), (2, 3, 18)], "Q4_0", "do not fit each other"),
    ],
)
def test_refusals(operator, shapes, block, reason):
    names = ("x", "w")[-len(shapes) :]
    dtypes = ("float32", "uint8")[-len(shapes) :]
    arrays = {n: np.zeros(s, t) for n, s, t in zip(names, shapes, dtypes, strict=True)}
    with pytest.raises(GraphError, match=reason):
        graph_of(operator, names, arrays, names, block=block)


@pytest.mark.parametrize("name", [None, *FORMATS])
@pytest.mark.parametrize(
    ("tokens", "chosen", "width", "blocks_each", "own"),
    [(1, 2, 37, 1, False), (1, 1, 64, 3, True), (3, 2, 5, 2, True), (0, 2, 3, 1, True), (2, 3, 1, 1, False)],
)
def test_products_of_chosen_matrices(name, tokens, chosen, width, blocks_each, own):
    rng = np.random.default_rng(width)
    depth, matrices = blocks_each * (19 if name is None else BLOCK_FORMATS[name].elements), 4
    if name is None:
        stored = weight = rng.standard_normal((matrices, width, depth)).astype("float32")
    else:
        blocks = random_blocks(rng, name, matrices * width, depth)
        stored, weight = blocks.reshape(matrices, width, -1), numbers(blocks, name).reshape(matrices, width, depth)
    x = rng.standard_normal((tokens, chosen, depth) if own else (tokens, depth)).astype("float32")
    ids = rng.integers(0, matrices, (tokens, chosen))
    graph = graph_of("linear_chosen", ("x", "w", "i"), {"x": x, "w": stored, "i": ids}, ("x", "i"), block=name)
    want = np.einsum("tck,tcnk->tcn" if own else "tk,tcnk->tcn", x.astype("float64"), weight.astype("float64")[ids])
    np.testing.assert_allclose(interpret(graph, {"x": x, "i": ids})["y"], want, rtol=1e-5, atol=1e-4)
    got = api.load(graph, threads=1, records=False, specialise="never")(x, ids)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4)


def test_of_chosen_matrices_no_other_is_read():
    weight = np.full((3, 4, 5), np.nan, "float32")
    weight[1] = 1
    graph = graph_of(
        "linear_chosen",
        ("x", "w", "i"),
        {"x": np.ones((1, 5), "float32"), "w": weight, "i": np.array([[1]])},
        ("x", "i"),
    )
    got = api.load(graph, threads=1, records=False, specialise="never")(np.ones((1, 5), "float32"), np.array([[1]]))
    np.testing.assert_array_equal(got, np.full((1, 1, 4), 5))


@pytest.mark.parametrize("shapes", [((2, 3), (4, 5, 3), (3, 2)), ((2, 4), (4, 5, 3), (2, 1)), ((2, 3), (5, 3), (2, 1))])
def test_refusals_of_chosen_matrices(shapes):
    arrays = {n: np.zeros(s, t) for n, s, t in zip("xwi", shapes, ("float32", "float32", "int64"), strict=True)}
    with pytest.raises(GraphError, match="do not fit each other"):
        graph_of("linear_chosen", ("x", "w", "i"), arrays, ("x", "i"))
