"""Operators that are written out, in all the ways that files write them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autosched.graph.passes.complete_norms import complete_norms
from autosched.graph.passes.recognise_composites import _around, recognise_composites
from tests.graph.drafts import Draft, checked, operators_of

ROOT_2 = math.sqrt(2)
TANH = math.sqrt(2 / math.pi)


def mean(d, x, axes=(-1,)):
    return d.reduce_mean(x, axes=axes)


def cubic(d, x):
    return d.mul(TANH, d.add(x, d.mul(d.pow(x, 3.0), 0.044715)))


def rows(d, x):
    """x - mean(x), and the mean of its squares."""
    middle = d.sub(x, mean(d, x))
    return middle, mean(d, d.mul(middle, middle))


WRITTEN = {
    "gelu: x * 0.5 * (1 + erf)": lambda d, x: d.mul(d.mul(x, 0.5), d.add(d.erf(d.div(x, ROOT_2)), 1.0)),
    "gelu: x * (1 + erf) * 0.5": lambda d, x: d.mul(d.mul(x, d.add(1.0, d.erf(d.div(x, 1.41421)))), 0.5),
    "gelu: 0.5 * (x * (erf + 1))": lambda d, x: d.mul(0.5, d.mul(d.add(d.erf(d.mul(x, 1 / ROOT_2)), 1.0), x)),
    "gelu: x * (1 + erf) / 2": lambda d, x: d.div(d.mul(x, d.add(1.0, d.erf(d.div(x, ROOT_2)))), 2.0),
    "gelu: tanh of a cubic": lambda d, x: d.mul(d.mul(0.5, x), d.add(1.0, d.tanh(cubic(d, x)))),
    "gelu: tanh of x (c + c x x)": lambda d, x: d.mul(
        d.mul(x, d.add(d.tanh(d.mul(d.mul(x, TANH), d.add(1.0, d.mul(d.mul(x, 0.044715), x)))), 1.0)), 0.5
    ),
    "silu: x * sigmoid": lambda d, x: d.mul(d.sigmoid(x), x),
    "silu: x / (1 + exp(-x))": lambda d, x: d.div(x, d.add(d.exp(d.neg(x)), 1.0)),
    "hard_swish: x * clip(x + 3) / 6": lambda d, x: d.div(d.mul(x, d.clip(d.add(x, 3.0), low=0.0, high=6.0)), 6.0),
    "hard_swish: x * (relu6 / 6)": lambda d, x: d.mul(x, d.div(d.minimum(d.relu(d.add(3.0, x)), 6.0), 6.0)),
    "hard_swish: hard_sigmoid": lambda d, x: d.mul(d.hard_sigmoid(x, alpha=1 / 6, beta=0.5), x),
    "layer_norm: d / sqrt(mean(d ** 2) + e)": lambda d, x: d.div(
        d.sub(x, mean(d, x)), d.sqrt(d.add(mean(d, d.pow(d.sub(x, mean(d, x)), 2.0)), 1e-5))
    ),
    "layer_norm: d * rsqrt(mean(d * d) + e)": lambda d, x: d.mul(
        (r := rows(d, x))[0], d.rsqrt(d.add(r[1], 1e-5))
    ),
    "rms_norm: x * rsqrt": lambda d, x: d.mul(x, d.rsqrt(d.add(1e-6, mean(d, d.mul(x, x))))),
    "rms_norm: 1 / sqrt * x": lambda d, x: d.mul(d.div(1.0, d.sqrt(d.add(mean(d, d.pow(x, 2.0)), 1e-6))), x),
    "rms_norm: sums": lambda d, x: d.mul(
        x, d.reciprocal(d.sqrt(d.add(d.div(d.reduce_sum(d.mul(x, x), axes=(2,)), 5.0), 1e-6)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN)
def test_what_is_written_out_becomes_one_node(case):
    d = Draft()
    y = d.relu(WRITTEN[case](d, d.add(d.input(2, 4, 5), d.input(5))))
    after = checked(recognise_composites, d.graph(y), tolerance=4e-6 if "gelu" in case else 1e-6)
    assert operators_of(after) == ["add", case.partition(":")[0], "relu"]


ALMOST = {
    "another constant": lambda d, x: d.mul(d.mul(x, 0.5), d.add(d.erf(d.div(x, 1.5)), 1.0)),
    "a factor too much": lambda d, x: d.mul(d.mul(x, x), d.sigmoid(x)),
    "of something else": lambda d, x: d.mul(x, d.sigmoid(d.neg(x))),
    "another range": lambda d, x: d.div(d.mul(x, d.clip(d.add(x, 3.0), low=0.0, high=5.0)), 6.0),
    "not the last axis": lambda d, x: d.mul(x, d.rsqrt(d.add(1e-6, mean(d, d.mul(x, x), axes=(1,))))),
    "two axes": lambda d, x: d.div(d.sub(x, mean(d, x)), d.sqrt(d.add(mean(d, d.pow(x, 2.0)), 1e-5))),
    "a sum for a mean": lambda d, x: d.mul(x, d.rsqrt(d.add(1e-6, d.reduce_sum(d.mul(x, x), axes=(2,))))),
    "square of the root": lambda d, x: d.mul(x, d.add(1e-6, mean(d, d.mul(x, x)))),
    "another value": lambda d, x: d.mul(d.relu(x), d.sigmoid(x)),
}


@pytest.mark.parametrize("case", ALMOST)
def test_what_is_nearly_one_stays(case):
    d = Draft()
    graph = d.graph(d.relu(ALMOST[case](d, d.add(d.input(2, 4, 5), d.input(5)))))
    assert recognise_composites(graph) is graph


def test_a_norm_over_two_axes_and_its_number():
    d = Draft()
    x = d.input(2, 4, 5)
    y = d.mul(x, d.rsqrt(d.add(mean(d, d.mul(x, x), axes=(1, 2)), 0.25)))
    (node,) = checked(recognise_composites, d.graph(y)).nodes
    assert node.attributes == {"axes": 2, "epsilon": 0.25}


def test_what_is_read_elsewhere_is_not_computed_again():
    d = Draft()
    x = d.input(3)
    s = d.sigmoid(x)
    graph = d.graph(d.mul(x, s), d.neg(s))
    assert recognise_composites(graph) is graph


def test_a_norm_that_is_computed_wide():
    d = Draft()
    x = d.input(2, 8, dtype="float16")
    wide = d.cast(x, dtype="float32")
    y = d.cast(d.mul(wide, d.rsqrt(d.add(mean(d, d.mul(wide, wide)), 1e-6))), dtype="float16")
    after = checked(recognise_composites, d.graph(y), tolerance=1e-3)
    assert operators_of(after) == ["rms_norm"]


def test_activations_one_after_the_other():
    d = Draft()
    y = d.input(2, 3)
    for _ in range(4):
        y = d.mul(y, d.sigmoid(y))
    assert operators_of(checked(recognise_composites, d.graph(y))) == ["silu"] * 4


def test_expressions_do_not_grow_without_end():
    """Each value is read three times by the next: written out, 20 of them would be 3 ** 20."""
    d = Draft()
    y = d.input(2, 3)
    for _ in range(20):
        y = d.mul(0.5, d.add(y, d.mul(y, d.sigmoid(y))))
    after = checked(recognise_composites, d.graph(y))
    assert operators_of(after) == ["silu", "add", "mul"] * 20


# Scale, bias, groups


def norm(d, name, x):
    attributes = {"groups": 2} if name == "group_norm" else {"axes": 1}
    return d.add_node(name, x, epsilon=1e-5, **attributes)


@pytest.mark.parametrize(
    ("name", "scale", "bias"),
    [("layer_norm", (5,), (5,)), ("layer_norm", (1, 1, 5), (1,)), ("group_norm", (4, 1), (1, 4, 1))],
)
def test_scale_and_bias_go_into_a_norm(name, scale, bias):
    d = Draft()
    y = d.add(d.mul(d.random(*scale), norm(d, name, d.input(2, 4, 5))), d.random(*bias))
    assert operators_of(checked(complete_norms, d.graph(y))) == [name]


def test_a_scale_that_is_an_input():
    d = Draft()
    y = d.mul(norm(d, "rms_norm", d.input(2, 4, 5)), d.input(5))
    assert operators_of(checked(complete_norms, d.graph(y))) == ["rms_norm"]


def bias_before_scale(d, x):
    return d.mul(d.add(norm(d, "rms_norm", x), d.random(5)), d.random(5))


def numbers_for_each_row(d, x):
    return d.mul(norm(d, "layer_norm", x), d.random(4, 1))


def another_value(d, x):
    return d.add(norm(d, "layer_norm", x), x)


@pytest.mark.parametrize("case", [bias_before_scale, numbers_for_each_row, another_value])
def test_what_is_no_parameter_stays(case):
    d = Draft()
    graph = d.graph(case(d, d.input(2, 4, 5)))
    assert complete_norms(graph) is graph


def test_instances_of_groups_are_a_group_norm():
    d = Draft()
    x = d.input(2, 4, 3, 3)
    groups = d.reshape(x, shape=(2, 2, 18))
    result = d.instance_norm(groups, d.constant(np.ones(2)), d.constant(np.zeros(2)), epsilon=1e-5)
    y = d.add(d.mul(d.reshape(result, shape=(2, 4, 3, 3)), d.random(4, 1, 1)), d.random(4, 1, 1))
    (node,) = checked(complete_norms, d.graph(y)).nodes
    assert (node.operator, node.attributes) == ("group_norm", {"groups": 2, "epsilon": 1e-5})


def test_instances_with_a_scale_of_their_own_stay():
    d = Draft()
    groups = d.reshape(d.input(2, 4, 9), shape=(2, 2, 18))
    result = d.instance_norm(groups, d.random(2), d.constant(np.zeros(2)), epsilon=1e-5)
    graph = d.graph(d.reshape(result, shape=(2, 4, 9)))
    assert complete_norms(graph) is graph


def test_parts_that_are_no_groups_of_channels_stay():
    d = Draft()
    parts = d.reshape(d.input(1, 3, 4), shape=(1, 2, 6))
    result = d.instance_norm(parts, d.constant(np.ones(2)), d.constant(np.zeros(2)), epsilon=1e-5)
    graph = d.graph(d.reshape(result, shape=(1, 3, 4)))
    assert complete_norms(graph) is graph


def test_a_recurrence_is_not_read_across_its_steps():
    """The state of each step is read by the gate of the next one too: no composite reaches beyond it."""
    d = Draft()
    state, results = d.input(4, 5), []
    gate = d.sigmoid(state)
    for _ in range(9):
        state = d.add(d.mul(gate, state), gate)
        results.append(d.mul(gate, d.tanh(state)))
    graph = d.graph(*results, state)
    around = [len(_around(graph, node)) for node in graph.nodes if node.operator == "mul"]
    assert around == [1, 2] * 9
