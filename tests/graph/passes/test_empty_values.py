"""Values without elements: what operators compute of them, and the pass that removes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import interpret, plain
from autosched.graph.passes import run_passes
from autosched.graph.passes.remove_empty_values import remove_empty_values
from autosched.graph.verify import verify
from autosched.planning.device_passes import with_own_outputs
from tests.graph.drafts import Draft, operators_of, some_inputs

B = np.arange(4, dtype=np.float32) + 1
X = np.arange(6, dtype=np.float32).reshape(2, 3)

# By a name: what makes the draft's output of no elements and others, and what it is.
READERS: Mapping[str, tuple[Callable[[Draft], str], Any]] = {
    "matmul": (lambda d: d.matmul(d.input(2, 0), d.input(0, 4)), np.zeros((2, 4))),
    "matmul of batches": (lambda d: d.matmul(d.input(3, 2, 0), d.input(0, 4)), np.zeros((3, 2, 4))),
    "vectors": (lambda d: d.matmul(d.input(0), d.input(0)), np.zeros(())),
    "linear": (lambda d: d.linear(d.input(2, 0), d.input(4, 0)), np.zeros((2, 4))),
    "linear with a bias": (lambda d: d.linear(d.input(2, 0), d.input(4, 0), d.constant(B)), np.tile(B, (2, 1))),
    "gemm": (
        lambda d: d.gemm(d.input(0, 2), d.input(0, 4), d.constant(B), beta=0.5, trans_a=True),
        np.tile(B / 2, (2, 1)),
    ),
    "gemm without beta": (lambda d: d.gemm(d.input(2, 0), d.input(0, 4), d.constant(B), beta=0.0), np.zeros((2, 4))),
    "conv without channels": (
        lambda d: d.conv(d.input(1, 0, 5, 5), d.input(4, 0, 3, 3), d.constant(B)),
        np.tile(B.reshape(1, 4, 1, 1), (1, 1, 3, 3)),
    ),
    "conv of padding": (
        lambda d: d.conv(d.input(1, 2, 0, 5), d.random(4, 2, 3, 3), pads=((2, 2), (0, 0))), np.zeros((1, 4, 2, 3)),
    ),
    "conv with the channels last": (
        lambda d: d.conv(d.input(1, 5, 0), d.input(4, 0, 3), d.constant(B), channels_last=True),
        np.tile(B, (1, 3, 1)),
    ),
    "conv_transpose": (
        lambda d: d.conv_transpose(d.input(1, 0, 3), d.input(0, 4, 2), d.constant(B)),
        np.tile(B.reshape(1, 4, 1), (1, 1, 4)),
    ),
    "einsum of three": (
        lambda d: d.einsum(d.input(2, 0), d.input(0, 3), d.random(3, 4), equation="ij,jk,kl->il"), np.zeros((2, 4)),
    ),
    "einsum with a size of 1": (lambda d: d.einsum(d.input(2, 1), d.input(0, 3), equation="ij,jk->ik"), np.zeros((2, 3))),
    "bytes": (
        lambda d: d.matmul_integer(
            d.input(2, 0, dtype="uint8"), d.input(0, 4, dtype="uint8"), d.constant(3, "uint8"), d.constant(5, "uint8")
        ),
        np.zeros((2, 4), np.int32),
    ),
    "concat": (lambda d: d.concat(d.input(0, 3), d.constant(X), d.input(0, 3), axis=0), X),
    "concat of one left": (lambda d: d.relu(d.concat(d.constant(X), d.input(2, 0), axis=1)), X),
    "sum": (lambda d: d.reduce_sum(d.input(2, 0), axes=(1,), keepdims=False), np.zeros(2)),
    "max": (lambda d: d.reduce_max(d.input(2, 0, 3), axes=(1,)), np.full((2, 1, 3), -np.inf)),
    "max of integers": (lambda d: d.reduce_max(d.input(0, dtype="int32")), np.full(1, -(1 << 31), np.int32)),
    "product": (lambda d: d.reduce_prod(d.input(0, 2), axes=(0,)), np.ones((1, 2))),
    "mean": (lambda d: d.reduce_mean(d.input(0, 2), axes=(0,)), np.full((1, 2), np.nan)),
    "min of integers": (
        lambda d: d.reduce_min(d.input(0, 2, dtype="int64"), axes=(0,), keepdims=False), np.full(2, (1 << 63) - 1),
    ),
    "min": (lambda d: d.reduce_min(d.input(0)), np.full(1, np.inf)),
    "any": (lambda d: d.reduce_any(d.input(2, 0, dtype="bool"), axes=(1,)), np.zeros((2, 1), bool)),
    "all": (lambda d: d.reduce_all(d.input(2, 0, dtype="bool"), axes=(1,)), np.ones((2, 1), bool)),
    "log of sums": (lambda d: d.reduce_log_sum_exp(d.input(2, 0), axes=(1,)), np.full((2, 1), -np.inf)),
    "pad": (lambda d: d.pad(d.input(0, 2), pads=((1, 2), (0, 1)), value=7.0), np.full((3, 3), 7)),
    "scatter": (
        lambda d: d.scatter_elements(d.constant(X), d.input(2, 0, dtype="int64"), d.input(2, 0), axis=1), X,
    ),
    "scatter of sums": (
        lambda d: d.scatter_nd(d.constant(X), d.input(0, 1, dtype="int64"), d.input(0, 3), reduction="add"), X,
    ),
    "write": (lambda d: d.write_rows(d.constant(X), d.input(0, dtype="int64"), d.input(0, 3), axis=0), X),
    "attention without keys": (
        lambda d: d.attention(d.input(1, 2, 3, 4), d.input(1, 2, 0, 4), d.input(1, 2, 0, 5)), np.zeros((1, 2, 3, 5)),
    ),
    "attention of vectors without elements": (
        lambda d: d.attention(d.input(1, 1, 3, 0), d.input(1, 1, 2, 0), d.constant(X.reshape(1, 1, 2, 3)), scale=1.0),
        np.tile(X.mean(0), (1, 1, 3, 1)),
    ),
    "split": (lambda d: d.add_node("split", d.constant(X), outputs=3, sizes=(1, 0, 2), axis=1)[2], X[:, 1:]),
    "tail of nothing": (lambda d: d.add(d.reduce_sum(d.relu(d.input(2, 0)), axes=(1,)), 3.0), np.full((2, 1), 3)),
}  # fmt: skip

# By a name: a value without elements, and its shape.
EMPTY: Mapping[str, tuple[Callable[[Draft], str], tuple[int, ...]]] = {
    "add": (lambda d: d.add(d.input(2, 1), d.input(0)), (2, 0)),
    "where": (lambda d: d.where(d.input(1, dtype="bool"), d.input(0, 1), d.input(3)), (0, 3)),
    "slice": (lambda d: d.slice_(d.input(5, 2), starts=(3,), stops=(3,), axes=(0,)), (0, 2)),
    "slice backwards": (lambda d: d.slice_(d.input(5), starts=(1,), stops=(4,), axes=(0,), steps=(-1,)), (0,)),
    "reshape": (lambda d: d.reshape(d.input(0, 3, 2), shape=(6, 0)), (6, 0)),
    "transpose": (lambda d: d.transpose(d.input(0, 3), perm=(1, 0)), (3, 0)),
    "tile": (lambda d: d.tile(d.input(2, 3), repeats=(1, 0)), (2, 0)),
    "tile of nothing": (lambda d: d.tile(d.input(2, 0), repeats=(2, 3)), (4, 0)),
    "roll": (lambda d: d.roll(d.input(2, 0), shifts=(1,), axes=(1,)), (2, 0)),
    "flip": (lambda d: d.flip(d.input(0, 2), axes=(0,)), (0, 2)),
    "expand": (lambda d: d.expand(d.input(1, 2), shape=(0, 2)), (0, 2)),
    "gather": (lambda d: d.gather(d.input(5, 2), d.input(0, dtype="int64"), axis=0), (0, 2)),
    "gather_elements": (lambda d: d.gather_elements(d.input(0, 2), d.input(0, 2, dtype="int64"), axis=0), (0, 2)),
    "gather_nd": (lambda d: d.gather_nd(d.input(3, 2), d.input(0, 2, dtype="int64")), (0,)),
    "one_hot": (lambda d: d.one_hot(d.input(0, dtype="int64"), d.constant([0, 1]), depth=3), (0, 3)),
    "pad": (lambda d: d.pad(d.input(3, 2), pads=((-1, -2), (0, 0))), (0, 2)),
    "top_k": (lambda d: d.top_k(d.input(2, 3), outputs=2, k=0)[1], (2, 0)),
    "top_k of no rows": (lambda d: d.top_k(d.input(0, 3), outputs=2, k=2)[0], (0, 2)),
    "argmax": (lambda d: d.argmax(d.input(0, 3), axis=1), (0, 1)),
    "cumsum": (lambda d: d.cumsum(d.input(2, 0), axis=1), (2, 0)),
    "softmax": (lambda d: d.softmax(d.input(2, 0)), (2, 0)),
    "softmax over channels": (lambda d: d.softmax(d.input(0, 3), axis=0), (0, 3)),
    "layer_norm": (lambda d: d.layer_norm(d.input(2, 0), d.input(0), d.input(0)), (2, 0)),
    "instance_norm": (lambda d: d.instance_norm(d.input(2, 0, 3)), (2, 0, 3)),
    "group_norm": (lambda d: d.group_norm(d.input(0, 4, 3), groups=2), (0, 4, 3)),
    "conv": (lambda d: d.conv(d.input(0, 2, 5, 5), d.random(3, 2, 3, 3)), (0, 3, 3, 3)),
    "conv without filters": (lambda d: d.conv(d.input(1, 2, 5), d.random(0, 2, 3)), (1, 0, 3)),
    "groups without filters": (lambda d: d.conv(d.input(1, 4, 5), d.random(0, 2, 3), groups=2), (1, 0, 3)),
    "max_pool": (lambda d: d.max_pool(d.input(0, 2, 5), kernel=(2,)), (0, 2, 4)),
    "resize": (lambda d: d.resize(d.input(2, 3), sizes=(0, 5), mode="linear"), (0, 5)),
    "resize of nothing": (lambda d: d.resize(d.input(0, 3), sizes=(0, 5)), (0, 5)),
    "space_to_depth": (lambda d: d.space_to_depth(d.input(1, 0, 4, 4), block=2), (1, 0, 2, 2)),
    "attention": (lambda d: d.attention(d.input(1, 2, 0, 4), d.input(1, 2, 3, 4), d.input(1, 2, 3, 4)), (1, 2, 0, 4)),
    "attention without heads": (lambda d: d.attention(*(d.input(1, 0, 3, 4) for _ in range(3))), (1, 0, 3, 4)),
    "quantize": (lambda d: d.quantize(d.input(0, 3), d.constant(0.5)), (0, 3)),
    "linear": (lambda d: d.linear(d.input(0, 3), d.random(4, 3), d.random(4)), (0, 4)),
    "concat": (lambda d: d.concat(d.input(2, 0), d.input(3, 0), axis=0), (5, 0)),
}  # fmt: skip


def has_no_empty_operand(graph: Graph) -> bool:
    return not any(graph.values[name].is_empty for node in graph.nodes for name in (*node.used, *node.outputs))


def after_pass(graph: Graph, expected: Array) -> Graph:
    """The graph after the pass, whose output is the expected one as that of the graph as it came."""
    after = remove_empty_values(graph)
    verify(after)
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    assert has_no_empty_operand(after)
    inputs = some_inputs(graph)
    whole = with_own_outputs(run_passes(graph)[0])
    for each, arithmetic in ((graph, plain), (after, plain), (whole, plain)):
        (got,) = interpret(each, inputs, arithmetic).values()
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert remove_empty_values(after) is after
    return after


@pytest.mark.parametrize("name", READERS)
def test_results_with_elements(name: str) -> None:
    make, expected = READERS[name]
    d = Draft()
    after_pass(d.graph(make(d)), np.asarray(expected))


@pytest.mark.parametrize("name", EMPTY)
def test_results_without_elements_are_constants(name: str) -> None:
    make, shape = EMPTY[name]
    d = Draft()
    y = make(d)
    after = after_pass(d.graph(y), np.zeros(shape))
    assert not after.nodes
    assert after.is_constant(y)


def test_what_is_left_of_nodes() -> None:
    d = Draft()
    x = d.input(2, 3)
    y = d.concat(x, d.gather(x, d.input(0, dtype="int64")), d.input(4, 3), axis=0)
    parts = d.add_node("split", y, outputs=3, sizes=(4, 0, 2), axis=0)
    after = remove_empty_values(d.graph(*parts))
    assert operators_of(after) == ["concat", "split"]
    assert [len(node.inputs) for node in after.nodes] == [2, 1]
    assert [node.attributes.get("sizes") for node in after.nodes] == [None, (4, 2)]
    assert parts[1] in after.constants


def test_a_filled_result_is_one_number() -> None:
    d = Draft()
    after = remove_empty_values(d.graph(d.matmul(d.input(300, 0), d.input(0, 500))))
    assert operators_of(after) == ["expand"]
    assert [array.size for array in after.constants.values()] == [1]


def test_graphs_without_empty_values_stay() -> None:
    d = Draft()
    graph = d.graph(d.relu(d.input(2, 3)))
    assert remove_empty_values(graph) is graph


def test_each_empty_output_is_a_constant_of_its_own() -> None:
    d = Draft()
    x = d.input(0, 3)
    y = d.relu(x)
    after = with_own_outputs(remove_empty_values(d.graph(x, y, y)))
    assert len(set(after.outputs)) == 3
    assert all(after.is_constant(name) and after.values[name].shape == (0, 3) for name in after.outputs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d.argmax(d.input(2, 0), axis=1), "axis 1 of .* has no element whose place could be the result"),
        (lambda d: d.gather(d.input(0, 3), d.input(2, dtype="int64")), "the dimension 0 of .* has no elements"),
        (lambda d: d.gather_elements(d.input(0), d.input(2, dtype="int64"), axis=0), "has no elements"),
        (lambda d: d.gather_nd(d.input(0, 3), d.input(2, 1, dtype="int64")), "has no elements"),
        (lambda d: d.pad(d.input(0), pads=((1, 0),), mode="edge"), "pad by edge of dimension 0 needs elements"),
        (lambda d: d.pad(d.input(0), pads=((0, 1),), mode="wrap"), "pad by wrap of dimension 0 needs elements"),
        (lambda d: d.pad(d.input(2), pads=((-2, -1),)), "has sizes below 0"),
        (lambda d: d.reduce_mean(d.input(0, dtype="int32")), "divides by zero"),
        (lambda d: d.resize(d.input(0), sizes=(3,)), "out of bounds"),
        (lambda d: d.top_k(d.input(2), outputs=2, k=-1)[0], "the first -1 of 2 elements"),
        (lambda d: d.reshape(d.input(0), shape=(0, -1)), "cannot become"),
    ],
)  # fmt: skip
def test_refusals(make: Callable[[Draft], str], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make(Draft())
