"""Attention that is written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autosched.graph.passes.recognise_attention import recognise_attention
from tests.graph.drafts import Draft, checked, operators_of

SHAPE = (2, 3, 6, 4)  # batch, heads, rows, numbers of a head
SWAP = (0, 1, 3, 2)


def scores(d, scale=0.5):
    return d.mul(d.matmul(d.input(*SHAPE), d.transpose(d.input(*SHAPE), perm=SWAP)), scale)


def finish(d, s, axis=-1):
    return d.matmul(d.softmax(s, axis=axis), d.input(*SHAPE))


def scaled(d):
    return finish(d, scores(d))


def divided(d):
    s = d.div(d.matmul(d.input(*SHAPE), d.transpose(d.input(*SHAPE), perm=SWAP)), 2.0)
    return finish(d, s, axis=3)


def masked(d):
    return finish(d, d.add(d.input(2, 1, 6, 6), scores(d)))


def scaled_before(d):
    """Both operands by the square root of the scale, as torch does."""
    root = 2**-0.5
    keys = d.transpose(d.mul(d.input(*SHAPE), root), perm=SWAP)
    return finish(d, d.matmul(d.mul(d.input(*SHAPE), root), keys))


def of_one_head(d):
    x = [d.input(2, 6, 4) for _ in range(3)]
    return d.matmul(d.softmax(d.mul(d.matmul(x[0], d.transpose(x[1], perm=(0, 2, 1))), 0.5), axis=-1), x[2])


@pytest.mark.parametrize("case", [scaled, divided, masked, scaled_before, of_one_head])
def test_attention_becomes_one_node(case):
    d = Draft()
    after = checked(recognise_attention, d.graph(case(d)))
    assert operators_of(after) == ["attention"]
    assert math.isclose(after.nodes[0].attributes["scale"], 0.5, rel_tol=1e-6)


def test_heads_come_out_of_the_columns():
    d = Draft()
    x = [d.reshape(d.input(2, 6, 12), shape=(2, 6, 3, 4)) for _ in range(3)]
    q, v = (d.transpose(part, perm=(0, 2, 1, 3)) for part in (x[0], x[2]))
    keys = d.transpose(x[1], perm=(0, 2, 3, 1))
    made = d.matmul(d.softmax(d.matmul(q, keys), axis=-1), v)
    y = d.reshape(d.transpose(made, perm=(0, 2, 1, 3)), shape=(2, 6, 12))
    after = checked(recognise_attention, d.graph(y))
    assert sorted(operators_of(after)) == ["attention", *["reshape"] * 4, *["transpose"] * 4]
    assert {node.attributes["perm"] for node in after.nodes if node.operator == "transpose"} == {(0, 2, 1, 3)}


@pytest.mark.parametrize("hidden", [-np.inf, -1e9, np.finfo("float32").min])
def test_a_constant_that_hides_what_comes_after(hidden):
    d = Draft()
    mask = np.where(np.tri(6, dtype=bool), 0.0, hidden)[None, None]
    (node,) = checked(recognise_attention, d.graph(finish(d, d.add(scores(d), d.constant(mask))))).nodes
    assert node.attributes["causal"] is True
    assert len(node.inputs) == 3


def chosen(d, keeps, condition):
    """Scores where `condition` holds, or where it does not."""
    s = scores(d)
    return finish(d, d.where(condition, s, -math.inf) if keeps else d.where(condition, -math.inf, s))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_constant_choice_of_what_comes_before(keeps):
    d = Draft()
    choice = d.constant(np.tri(6, dtype=bool) == keeps, dtype="bool")
    (node,) = checked(recognise_attention, d.graph(chosen(d, keeps, choice))).nodes
    assert node.attributes["causal"] is True


@pytest.mark.parametrize("keeps", [True, False])
def test_a_choice_is_a_mask_of_bools(keeps):
    d = Draft()
    choice = np.eye(6, dtype=bool) | np.tri(6, k=-2, dtype=bool)
    graph = d.graph(chosen(d, keeps, d.constant(choice == keeps, dtype="bool")))
    after = checked(recognise_attention, graph)
    np.testing.assert_array_equal(after.constants[after.nodes[0].inputs[3]], choice)


def test_a_choice_of_what_is_hidden_that_is_given():
    d = Draft()
    after = checked(recognise_attention, d.graph(chosen(d, False, d.input(2, 1, 1, 6, dtype="bool"))))
    assert operators_of(after) == ["logical_not", "attention"]


def test_heads_are_not_repeated():
    d = Draft()
    parts = []
    for _ in range(2):
        apart = d.reshape(d.input(2, 2, 6, 4), shape=(2, 2, 1, 6, 4))
        parts.append(d.reshape(d.expand(apart, shape=(2, 2, 3, 6, 4)), shape=(2, 6, 6, 4)))
    s = d.mul(d.matmul(d.input(2, 6, 6, 4), d.transpose(parts[0], perm=SWAP)), 0.5)
    (node,) = checked(recognise_attention, d.graph(d.matmul(d.softmax(s, axis=-1), parts[1]))).nodes
    assert node.inputs[1:] == ("in0", "in1")


def test_heads_in_another_order_are_repeated():
    """All heads once, then all again: not what `attention` does with fewer heads of keys."""
    d = Draft()
    apart = d.reshape(d.input(2, 2, 6, 4), shape=(2, 1, 2, 6, 4))
    keys = d.reshape(d.expand(apart, shape=(2, 3, 2, 6, 4)), shape=(2, 6, 6, 4))
    s = d.matmul(d.input(2, 6, 6, 4), d.transpose(keys, perm=SWAP))
    after = checked(recognise_attention, d.graph(d.matmul(d.softmax(s, axis=-1), d.input(2, 6, 6, 4))))
    assert operators_of(after) == ["reshape", "expand", "reshape", "attention"]


@pytest.mark.parametrize("hidden", [-1.0, -1e9])
def test_another_constant_mask_stays_one(hidden):
    d = Draft()
    mask = np.where(np.tri(6, k=0 if hidden == -1 else 1, dtype=bool), 0.0, hidden)
    (node,) = checked(recognise_attention, d.graph(finish(d, d.add(scores(d), d.constant(mask))))).nodes
    assert "causal" not in node.attributes
    assert len(node.inputs) == 4


def another_axis(d):
    return [finish(d, scores(d), axis=2)]


def scores_that_are_read(d):
    s = scores(d)
    return [finish(d, s), d.relu(s)]


def a_mask_that_is_scaled(d):
    product = d.matmul(d.input(*SHAPE), d.transpose(d.input(*SHAPE), perm=SWAP))
    return [finish(d, d.mul(d.add(product, d.input(6, 6)), 0.5))]


def keys_that_are_not_turned(d):
    return [finish(d, d.matmul(d.input(*SHAPE), d.input(2, 3, 4, 6)))]


def a_product_of_weights(d):
    """No attention: one value for all heads."""
    return [d.matmul(d.softmax(scores(d), axis=-1), d.input(6, 4))]


@pytest.mark.parametrize(
    "case", [another_axis, scores_that_are_read, a_mask_that_is_scaled, keys_that_are_not_turned, a_product_of_weights]
)
def test_what_is_not_attention_stays(case):
    d = Draft()
    graph = d.graph(*case(d))
    assert recognise_attention(graph) is graph
