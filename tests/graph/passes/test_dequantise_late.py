"""Bytes stay bytes through what only moves them, or takes the greatest."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.graph.passes import run_passes
from autosched.graph.passes.quantisation.dequantise_late import dequantise_late
from tests.graph.drafts import Draft, checked, operators_of

SCALE, ZERO = 0.03, 131


def quantised(d, x, scale=SCALE, zero=ZERO, dtype="uint8"):
    return d.quantize(x, d.constant(scale), d.constant(zero, dtype), dtype=dtype)


def dequantised(d, q, scale=SCALE, zero=ZERO, dtype="uint8", axis=1):
    return d.dequantize(q, d.constant(scale), d.constant(zero, dtype), axis=axis)


def there_and_back(d, *shape, zero=ZERO, dtype="uint8"):
    return dequantised(d, quantised(d, d.input(*shape), zero=zero, dtype=dtype), zero=zero, dtype=dtype)


MOVES = [
    ("reshape", {"shape": (6, 35)}),
    ("transpose", {"perm": (0, 3, 2, 1)}),
    ("slice", {"starts": (1,), "stops": (4,), "axes": (2,), "steps": (2,)}),
    ("expand", {"shape": (3, 1, 6, 5, 7)}),
    ("flip", {"axes": (3,)}),
    ("max_pool", {"kernel": (3, 2), "strides": (2, 2), "pads": ((1, 1), (0, 1))}),
    ("max_pool", {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True}),
]


@pytest.mark.parametrize("of", [("uint8", ZERO), ("int8", -7)])
@pytest.mark.parametrize(("operator", "told"), MOVES)
def test_layers_pass_bytes_on(operator, told, of):
    dtype, zero = of
    d = Draft()
    x = there_and_back(d, 1, 6, 5, 7, zero=zero, dtype=dtype)
    graph = d.graph(quantised(d, d.add_node(operator, x, **told), zero=zero, dtype=dtype))
    assert operators_of(checked(dequantise_late, graph)) == ["quantize", operator]


@pytest.mark.parametrize(("dtype", "zero", "left"), [
    ("uint8", 0, ["quantize"]),
    ("int8", -128, ["quantize"]),
    ("uint8", 9, ["quantize", "maximum"]),
    ("int8", -5, ["quantize", "maximum"]),
])  # fmt: skip
def test_relu(dtype, zero, left):
    d = Draft()
    graph = d.graph(quantised(d, d.relu(there_and_back(d, 3, 5, zero=zero, dtype=dtype)), zero=zero, dtype=dtype))
    assert operators_of(checked(dequantise_late, graph)) == left


def test_relu_of_numbers_without_a_zero():
    d = Draft()
    scale = d.constant(SCALE)
    x = d.dequantize(d.quantize(d.input(3, 5), scale, dtype="int8"), scale)
    assert operators_of(checked(dequantise_late, d.graph(d.relu(x)))) == ["quantize", "maximum", "dequantize"]


def test_parts_together_and_apart():
    d = Draft()
    x = d.concat(there_and_back(d, 2, 3), there_and_back(d, 2, 4), axis=1)
    first, second = d.add_node("split", x, outputs=2, sizes=(5, 2), axis=1)
    graph = d.graph(quantised(d, first), second)
    assert operators_of(checked(dequantise_late, graph)) == ["quantize", "quantize", "concat", "split", "dequantize"]


def test_scales_of_channels_go_with_their_dimension():
    d = Draft()
    w = d.constant(np.random.default_rng(2).integers(-128, 128, (4, 3)), "int8")
    x = d.dequantize(w, d.random(4, low=0.1), axis=0)
    after = checked(dequantise_late, d.graph(d.matmul(d.input(2, 3), d.transpose(x, perm=(1, 0)))))
    assert operators_of(after) == ["transpose", "dequantize", "matmul"]
    assert after.nodes[1].attributes["axis"] == 1


def test_what_stays():
    d = Draft()
    x = there_and_back(d, 2, 6, 5, 7)
    other = quantised(d, x, scale=0.04)  # another scale
    joined = d.concat(x, dequantised(d, quantised(d, d.input(2, 6, 5, 7), zero=130), zero=130), axis=1)
    around = d.max_pool(x, kernel=(1, 1), pads=((1, 1), (0, 0)))  # windows of nothing but -inf
    below = d.relu(d.dequantize(quantised(d, d.input(3, 5)), d.constant(-1.0), d.constant(ZERO, "uint8")))
    graph = d.graph(other, joined, d.maximum(around, -1e3), below)
    assert dequantise_late(graph) is graph


def test_a_pool_between_quantised_layers_has_products_of_bytes_on_both_sides():
    d = Draft()
    w = [dequantised(d, d.constant(np.random.default_rng(n).integers(-128, 128, (8, c, 3, 3)), "int8"), 0.1, 0, "int8")
         for n, c in enumerate((3, 8))]  # fmt: skip
    x = d.relu(d.conv(there_and_back(d, 1, 3, 9, 9), w[0]))
    x = d.max_pool(dequantised(d, quantised(d, x)), kernel=(2, 2), strides=(2, 2))
    y = d.conv(dequantised(d, quantised(d, x)), w[1])
    after = operators_of(checked(lambda graph: run_passes(graph)[0], d.graph(y), 1e-5))
    assert after.count("conv_integer") == 2
    assert "dequantize" not in after
