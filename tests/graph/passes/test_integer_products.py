"""Products of dequantised numbers, on the integers."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.executor.compile_graph import compile_graph
from autosched.graph.interpret import interpret
from autosched.graph.passes import run_passes
from autosched.graph.passes.quantisation.integer_products import use_integer_products
from tests.graph.drafts import Draft, checked, operators_of

RNG = np.random.default_rng(3)


def bytes_of(d, *shape, dtype="int8"):
    low = -128 if dtype == "int8" else 0
    return d.constant(RNG.integers(low, low + 256, shape), dtype)


def dequantised(d, x, scale, zero=None, dtype="int8", axis=1):
    given = None if zero is None else d.constant(zero, dtype)
    return d.dequantize(x, d.constant(scale), given, axis=axis)


def quantised_input(d, *shape, dtype="uint8", zero=131):
    return dequantised(d, d.quantize(d.input(*shape), d.constant(0.03), d.constant(zero, dtype), dtype=dtype), 0.03,
                       zero, dtype)  # fmt: skip


@pytest.mark.parametrize("zeros", [None, [0, 0, 0, 0], [3, 0, -7, 1]])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(groups, biased, zeros):
    d = Draft()
    x = quantised_input(d, 1, 6, 5, 7)
    w = dequantised(d, bytes_of(d, 4, 6 // groups, 3, 1), RNG.uniform(0.01, 0.1, 4), zeros, axis=0)
    y = d.conv(x, w, *([d.random(4)] if biased else []), pads=((1, 0), (0, 1)), groups=groups, strides=(2, 1))
    after = checked(use_integer_products, d.graph(y), 1e-5)
    assert operators_of(after).count("conv_integer") == 1
    (sums,) = (node for node in after.nodes if node.operator == "conv_integer")
    assert (sums.inputs[3] is None) == (zeros is None or not any(zeros))
    assert "dequantize" not in operators_of(after)


@pytest.mark.parametrize(("operator", "told", "shape", "axis"), [
    ("linear", {}, (5, 7), 0),
    ("gemm", {"trans_b": True}, (5, 7), 0),
    ("gemm", {}, (7, 5), 1),
    ("matmul", {}, (7, 5), 1),
])  # fmt: skip
@pytest.mark.parametrize("by_channel", [False, True])
def test_matrix_products(operator, told, shape, axis, by_channel):
    d = Draft()
    scale = RNG.uniform(0.01, 0.1, 5) if by_channel else 0.07
    w = dequantised(d, bytes_of(d, *shape), scale, axis=axis)
    y = d.add_node(operator, quantised_input(d, 3, 7), w, *([] if operator == "matmul" else [d.random(5)]), **told)
    after = checked(use_integer_products, d.graph(y), 1e-5)
    assert "matmul_integer" in operators_of(after)
    assert "dequantize" not in operators_of(after)


def test_two_activations():
    d = Draft()
    y = d.matmul(quantised_input(d, 2, 3, 4, 5), quantised_input(d, 2, 1, 5, 6, dtype="int8", zero=-4))
    assert "matmul_integer" in operators_of(checked(use_integer_products, d.graph(y), 1e-5))


def test_what_stays_a_product_of_floats():
    d = Draft()
    x, floats = quantised_input(d, 3, 7), d.input(3, 7)
    by_rows = dequantised(d, bytes_of(d, 7, 5), RNG.uniform(0.01, 0.1, 7), axis=0)  # a scale for each term of a sum
    wide = dequantised(d, d.constant(RNG.integers(-9, 9, (7, 5)), "int32"), 0.1)
    deep = d.matmul(quantised_input(d, 1, 40000), dequantised(d, bytes_of(d, 40000, 1), 0.1))  # may wrap around
    whole = dequantised(d, bytes_of(d, 7, 5), 0.1)
    graph = d.graph(d.matmul(x, by_rows), d.matmul(x, wide), d.matmul(floats, whole), deep)
    assert use_integer_products(graph) is graph


def test_a_quantised_layer_is_one_kernel():
    d = Draft()
    w = dequantised(d, bytes_of(d, 8, 5, 3, 3), RNG.uniform(0.01, 0.1, 8), axis=0)
    y = d.relu(d.conv(quantised_input(d, 1, 5, 6, 7), w, d.random(8), pads=((1, 1), (1, 1))))
    z = d.quantize(y, d.constant(0.2), d.constant(3, "uint8"), dtype="uint8")
    graph = d.graph(z)
    model = compile_graph(graph, threads=1)
    assert sum(task.count for task in model.tasks) <= 2  # the quantised input, and all the rest
    x = RNG.normal(size=(1, 5, 6, 7)).astype("float32")
    (want,) = interpret(graph, {"in0": x}).values()
    got = model(x)
    assert got.dtype == "uint8"
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1  # what lies half way may be rounded either way
    assert (got != want).mean() < 0.01
    assert "conv_integer" in operators_of(run_passes(graph)[0])
