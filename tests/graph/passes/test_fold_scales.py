"""Scales of quantisations within the constants before them."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.graph.passes.quantisation.fold_scales import fold_scales
from tests.graph.drafts import Draft, checked, operators_of


def scales_of(graph):
    return [node.inputs[1] for node in graph.nodes if node.operator == "quantize"]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("order", ["mul add", "add mul", "mul"])
def test_constants_take_the_scale(dtype, order):
    d = Draft()
    x = d.input(5, 7)
    for step in order.split():
        x = d.add_node(step, x, d.random(7)) if step == "mul" else d.add(d.mul(x, d.random(1, 7)), d.random(7))
    zero = d.constant(3, dtype)
    after = checked(fold_scales, d.graph(d.quantize(x, d.constant(0.017), zero, dtype=dtype)))
    assert scales_of(after) == [None]
    assert "div" not in operators_of(after)


def test_sums_of_dequantised_numbers_too():
    d = Draft()
    a, b = d.input(3, 5, dtype="uint8"), d.input(3, 5, dtype="int8")
    parts = [d.dequantize(x, d.constant(s), z) for x, s, z in ((a, 0.3, d.constant(9, "uint8")), (b, 0.11, None))]
    after = checked(fold_scales, d.graph(d.quantize(d.add(*parts), d.constant(0.07), d.constant(4, "uint8"))))
    assert scales_of(after) == [None]


def test_what_others_read_is_not_divided():
    d = Draft()
    y = d.mul(d.input(3, 5), d.random(5))
    shared = d.graph(d.quantize(y, d.constant(0.07)), d.relu(y))
    assert fold_scales(shared) is shared
    d = Draft()
    of_input = d.graph(d.quantize(d.add(d.input(3, 5), d.mul(d.input(3, 5), d.random(5))), d.constant(0.07)))
    assert fold_scales(of_input) is of_input


@pytest.mark.parametrize("scale", [0.0, np.nan, -1.0, [0.1, 0.2, 0.3, 0.4, 0.5]])
def test_scales_that_are_no_positive_number_stay(scale):
    d = Draft()
    graph = d.graph(d.quantize(d.mul(d.input(3, 5), d.random(5)), d.constant(scale)))
    assert fold_scales(graph) is graph


def test_a_scale_that_leaves_no_number_stays():
    d = Draft()
    graph = d.graph(d.quantize(d.mul(d.input(3, 5), d.constant(1e30)), d.constant(1e-30)))
    assert fold_scales(graph) is graph
