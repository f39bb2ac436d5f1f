"""What is folded into the weights of products, and products that are joined."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.graph.interpret import interpret
from autosched.graph.passes.fold_batch_norm import fold_batch_norm
from autosched.graph.passes.merge_siblings import merge_siblings
from tests.graph.drafts import Draft, checked, operators_of, some_inputs


def batch_norm(d, x, channels):
    return d.batch_norm(x, d.random(channels), d.random(channels), d.random(channels), d.random(channels, low=0.5),
                        epsilon=1e-5)  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("biased", [True, False])
def test_batch_norm_goes_into_a_convolution(groups, biased):
    d = Draft()
    bias = (d.random(6),) if biased else ()
    made = d.conv(d.input(1, 4, 5, 5), d.random(6, 4 // groups, 3, 3), *bias, pads=((1, 1), (1, 1)), groups=groups)
    y = d.relu(batch_norm(d, made, 6))
    assert operators_of(checked(fold_batch_norm, d.graph(y))) == ["conv", "relu"]


def test_a_chain_is_rounded_once():
    d = Draft()
    made = d.conv(d.input(1, 2, 4, 4), d.random(3, 2, 1, 1))
    scaled = d.mul(batch_norm(d, made, 3), d.random(3, 1, 1))
    y = d.div(d.sub(scaled, d.random(1, 3, 1, 1)), 3.0)
    graph = d.graph(y)
    after = checked(fold_batch_norm, graph)
    assert operators_of(after) == ["conv"]
    weights, scale, var, factor = (graph.constants[f"c{n}"].astype("float64") for n in (0, 1, 4, 5))
    whole = scale / np.sqrt(var + 1e-5) * factor.reshape(3) / 3.0
    expected = weights * whole.reshape(3, 1, 1, 1)
    found = after.constants[after.nodes[0].inputs[1]]
    np.testing.assert_array_equal(found, expected.astype("float32"))


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_goes_into_a_transposed_convolution(groups):
    d = Draft()
    made = d.conv_transpose(d.input(1, 4, 3, 3), d.random(4, 6 // groups, 2, 2), groups=groups, strides=(2, 2))
    assert operators_of(checked(fold_batch_norm, d.graph(batch_norm(d, made, 6)))) == ["conv_transpose"]


@pytest.mark.parametrize("operator", ["linear", "gemm"])
def test_scale_and_shift_go_into_a_linear(operator):
    d = Draft()
    attributes = {"trans_b": True} if operator == "gemm" else {}
    made = d.add_node(operator, d.input(4, 3), d.random(5, 3), d.random(5), **attributes)
    y = d.add(d.mul(made, d.random(5)), d.random(1, 5))
    assert operators_of(checked(fold_batch_norm, d.graph(y))) == [operator]


def test_a_constant_minus_the_result():
    d = Draft()
    y = d.sub(d.random(5), d.linear(d.input(4, 3), d.random(5, 3), d.random(5)))
    assert operators_of(checked(fold_batch_norm, d.graph(y))) == ["linear"]


def test_a_matmul_takes_the_scale_and_leaves_the_shift():
    d = Draft()
    y = batch_norm(d, d.matmul(d.input(4, 3), d.random(3, 5)), 5)
    assert operators_of(checked(fold_batch_norm, d.graph(y))) == ["matmul", "add"]


def nothing_for_a_matmul(d):
    return [d.add(d.matmul(d.input(4, 3), d.random(3, 5)), d.random(5))]


def numbers_for_each_pixel(d):
    return [d.mul(d.conv(d.input(1, 2, 3, 3), d.random(3, 2, 1, 1)), d.random(3))]


def a_residual(d):
    x = d.input(1, 3, 4, 4)
    return [d.mul(d.add(d.conv(x, d.random(3, 3, 1, 1)), x), 2.0)]


def weights_that_are_given(d):
    return [d.mul(d.linear(d.input(2, 3), d.input(4, 3)), 2.0)]


def a_result_that_is_read_twice(d):
    made = d.linear(d.input(2, 3), d.random(4, 3))
    return [d.mul(made, 2.0), made]


def a_scale_that_overflows(d):
    return [d.clip(d.mul(d.linear(d.input(2, 3), d.constant(np.full((1, 3), 1e20))), 1e30), high=1.0)]


@pytest.mark.parametrize(
    "case",
    [
        nothing_for_a_matmul,
        numbers_for_each_pixel,
        a_residual,
        weights_that_are_given,
        a_result_that_is_read_twice,
        a_scale_that_overflows,
    ],
)
def test_what_is_not_folded(case):
    d = Draft()
    graph = d.graph(*case(d))
    assert fold_batch_norm(graph) is graph


# Siblings


@pytest.mark.parametrize("biased", [(True, True, True), (False, False, False), (True, False, True)])
def test_linears_of_one_operand_are_joined(biased):
    d = Draft()
    x, sizes = d.input(2, 4, 6), (6, 3, 2)
    made = [
        d.linear(x, d.random(n, 6), *((d.random(n),) if has_bias else ()))
        for n, has_bias in zip(sizes, biased, strict=True)
    ]
    after = checked(merge_siblings, d.graph(*made))
    assert operators_of(after) == ["linear", "split"]
    assert after.nodes[1].attributes == {"sizes": sizes, "axis": 2}


@pytest.mark.parametrize("operator", ["linear", "matmul"])
def test_a_bias_that_is_added_is_joined_too(operator):
    d = Draft()
    x = d.input(2, 4, 6)
    q, k, v = (d.add_node(operator, x, d.random(6, 6)) for _ in range(3))
    after = checked(merge_siblings, d.graph(d.add(q, d.random(6)), d.add(d.random(1, 1, 6), k), v))
    assert operators_of(after) == (["matmul", "add", "split"] if operator == "matmul" else ["linear", "split"])


def test_what_is_added_for_each_row_stays_behind():
    d = Draft()
    x = d.input(4, 6)
    made = [d.matmul(x, d.random(6, 6)) for _ in range(2)]
    after = checked(merge_siblings, d.graph(d.add(made[0], d.random(4, 1)), d.add(made[1], made[1])))
    assert operators_of(after) == ["matmul", "split", "add", "add"]


def test_gate_and_up_are_joined():
    d = Draft()
    x = d.relu(d.input(2, 4))
    y = d.mul(d.silu(d.matmul(x, d.random(4, 5))), d.matmul(x, d.random(4, 5)))
    assert operators_of(checked(merge_siblings, d.graph(y))) == ["relu", "matmul", "split", "silu", "mul"]


def test_products_of_other_operands_or_kinds_stay_alone():
    d = Draft()
    x, z = d.input(2, 4), d.input(2, 4)
    graph = d.graph(
        d.matmul(x, d.random(4, 5)),
        d.matmul(z, d.random(4, 5)),
        d.linear(x, d.random(5, 4)),
        d.linear(z, d.input(5, 4)),
    )
    assert merge_siblings(graph) is graph


def test_joined_results_are_exactly_what_they_were():
    d = Draft()
    x = d.input(3, 8)
    graph = d.graph(d.linear(x, d.random(5, 8)), d.linear(x, d.random(7, 8)))
    after, inputs = merge_siblings(graph), some_inputs(graph)
    for name, array in interpret(graph, inputs).items():
        np.testing.assert_array_equal(interpret(after, inputs)[name], array)
