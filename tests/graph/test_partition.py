"""Which nodes become one kernel, and that the kernels together compute what the graph does."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.graph.fusion.cost import FusionRates, NodeWork, should_inline
from autosched.graph.fusion.partition import partition
from autosched.graph.graph import Graph
from autosched.graph.interpret import exact, interpret
from autosched.graph.steps import Alias, Group, Join, views_of
from tests.graph.drafts import Draft, some_inputs
from tests.graph.fuzz import faults_of, run_steps


def kernels(graph: Graph) -> list[str]:
    """The operators of each group, sorted by the graph's order; the groups are checked against the reference."""
    inputs = some_inputs(graph)
    got, wanted = run_steps(graph, inputs), interpret(graph, inputs, exact)
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-9, atol=1e-9)
    return [" ".join(n.operator for n in step.nodes) for step in partition(graph) if isinstance(step, Group)]


def heads_of(d: Draft, x: str, length: int, heads: int, width: int) -> str:
    made: str = d.transpose(d.reshape(x, shape=(1, length, heads, width)), perm=(0, 2, 1, 3))
    return made


def test_attention_reads_the_merged_product_and_writes_rows_of_tokens():
    length, heads, width = 17, 3, 16
    d = Draft()
    merged = d.linear(d.input(1, length, 5), d.random(3 * heads * width, 5))
    parts = d.add_node("split", merged, outputs=3, sizes=(heads * width,) * 3, axis=2)
    q, k, v = (heads_of(d, part, length, heads, width) for part in parts)
    mixed = d.transpose(d.attention(q, k, v), perm=(0, 2, 1, 3))
    y = d.linear(d.reshape(mixed, shape=(1, length, heads * width)), d.random(17, heads * width))
    first, mixing, last = kernels(d.graph(y))
    assert (first, last) == ("linear", "linear")
    assert mixing.startswith("split ")
    assert mixing.endswith("attention transpose")


def test_rotated_keys_are_computed_where_they_are_read():
    length, heads, width = 17, 2, 6
    d = Draft()
    x = d.input(1, heads, length, width)
    cos, sin = d.random(length, width), d.random(length, width)
    left, right = d.add_node("split", x, outputs=2, sizes=(width // 2,) * 2, axis=3)
    turned = d.add(d.mul(x, cos), d.mul(d.concat(d.neg(right), left, axis=3), sin))
    other = d.input(1, heads, length, width)
    assert len(kernels(d.graph(d.attention(turned, other, other)))) == 1


def test_a_residual_is_added_by_the_product_before_it():
    d = Draft()
    x = d.input(1, 17, 5)
    y = d.add(d.linear(x, d.random(5, 5)), x)
    normal = d.layer_norm(y, d.random(5), d.random(5))
    z = d.add(d.linear(normal, d.random(5, 5)), y)
    assert kernels(d.graph(z)) == ["linear add", "layer_norm", "linear add"]


def test_bytes_are_stored_and_not_the_floats_that_they_stand_for():
    d = Draft()
    x, scale = d.input(1, 17, 5), d.constant(0.1)
    parts = [d.quantize(d.linear(x, d.random(5, 5)), scale, dtype="int8") for _ in range(2)]
    y = d.add(*(d.dequantize(part, scale) for part in parts))
    assert kernels(d.graph(y)) == ["linear quantize", "dequantize linear quantize dequantize add"]


def test_floats_are_stored_where_they_are_read_often():
    d = Draft()
    scale = d.constant(0.1)
    bytes_ = d.quantize(d.linear(d.input(1, 17, 5), d.random(300, 5)), scale, dtype="int8")
    y = d.linear(d.dequantize(bytes_, scale), d.random(2000, 300))
    assert kernels(d.graph(y)) == ["linear quantize dequantize", "linear"]


def test_a_function_of_what_many_read_is_computed_once():
    d = Draft()
    x = d.gelu(d.input(17, 300))
    y, z = d.linear(x, d.random(3, 300)), d.softmax(x, axis=-1)
    assert kernels(d.graph(y, z)) == ["gelu", "linear", "softmax"]


def test_gated_products_keep_the_gate_apart():
    """Taken in by the product it would be computed for each of its tiles: 3 times as slow, measured."""
    d = Draft()
    merged = d.linear(d.input(1, 17, 20), d.random(600, 20))
    gate, up = d.add_node("split", merged, outputs=2, sizes=(300, 300), axis=2)
    y = d.linear(d.mul(d.silu(gate), up), d.random(17, 300))
    assert kernels(d.graph(y)) == ["linear", "split silu mul", "linear"]


def test_a_concatenation_is_made_ahead_of_a_convolution():
    d = Draft()
    x = d.concat(d.input(1, 3, 5, 17), d.input(1, 5, 5, 17), axis=1)
    y = d.conv(x, d.random(17, 8, 3, 3), strides=(1, 1), pads=((1, 1), (1, 1)), dilations=(1, 1))
    assert kernels(d.graph(y)) == ["concat", "conv"]


def test_cheap_arithmetic_goes_into_each_reader():
    d = Draft()
    x = d.mul(d.input(17, 30), d.constant(0.5))
    y, z = d.reduce_sum(x, axes=(1,)), d.softmax(x, axis=-1)
    assert kernels(d.graph(y, z)) == ["mul reduce_sum", "mul softmax"]


def test_a_movement_across_rows_is_made_ahead_of_a_convolution():
    d = Draft()
    x = d.transpose(d.input(1, 17, 17, 16), perm=(0, 3, 1, 2))
    y = d.conv(x, d.random(17, 16, 3, 3), strides=(1, 1), pads=((1, 1), (1, 1)), dilations=(1, 1))
    assert kernels(d.graph(y)) == ["transpose", "conv"]


def test_a_reshape_of_what_is_stored_is_free():
    d = Draft()
    x = d.softmax(d.input(3, 4), axis=-1)
    y = d.softmax(d.reshape(x, shape=(4, 3)), axis=-1)
    steps = partition(d.graph(y))
    assert [type(step) for step in steps] == [Group, Alias, Group]


@pytest.mark.parametrize(
    ("stop", "axis", "is_view"), [(3, 0, True), (5, 0, True), (5, 1, False), (5, -1, False)], ids=str
)
def test_rows_of_what_is_stored_are_free(stop, axis, is_view):
    d = Draft()
    rows = d.slice(d.softmax(d.input(7, 7, 7), axis=-1), starts=(2,), stops=(stop,), axes=(axis,))
    graph = d.graph(d.softmax(rows, axis=0))
    assert kernels(graph) == ["softmax", "softmax" if is_view else "slice softmax"]
    assert [step.offset for step in partition(graph) if isinstance(step, Alias)] == [2 * 49] * is_view


def test_columns_of_one_row_are_free():
    d = Draft()
    x = d.softmax(d.input(1, 17, 5), axis=-1)
    one = d.slice(x, starts=(-1,), stops=(17,), axes=(1,))
    graph = d.graph(d.softmax(d.slice(one, starts=(1,), stops=(4,), axes=(-1,)), axis=-1))
    assert kernels(graph) == ["softmax", "softmax"]
    assert views_of(partition(graph))[graph.nodes[-1].used[0]].offset == 16 * 5 + 1


@pytest.mark.parametrize(("axis", "is_join"), [(0, True), (1, True), (2, False)], ids=str)
def test_parts_that_lie_behind_each_other_are_written_so(axis, is_join):
    d = Draft()
    parts = [d.softmax(d.input(1, 3, 5), axis=-1) for _ in range(3)]
    graph = d.graph(d.softmax(d.concat(*parts, axis=axis), axis=0))
    assert kernels(graph) == ["softmax"] * 3 + ["softmax" if is_join else "concat softmax"]
    assert [step.parts for step in partition(graph) if isinstance(step, Join)] == [tuple(parts)] * is_join


def test_parts_that_lie_elsewhere_are_copied():
    """Inputs, outputs, what comes twice, and what would be computed by the copy."""
    for case in range(4):
        d = Draft()
        x, y = d.softmax(d.input(3, 5), axis=-1), d.input(3, 5)
        other = (y, d.softmax(y), x, None)[case]
        parts = [x, other] if other else [d.tanh(d.input(3, 5)) for _ in range(9)]
        graph = d.graph(d.softmax(d.concat(*parts, axis=0), axis=0), *([other] if case == 1 else []))
        assert "concat" in kernels(graph)[-1]


def test_a_reshape_that_is_an_output_has_memory():
    d = Draft()
    x = d.transpose(d.input(3, 4), perm=(1, 0))
    y = d.reshape(x, shape=(2, 6))
    assert kernels(d.graph(y, d.relu(y))) == ["transpose", "relu"]


def cell(d: Draft, x: str, state: str) -> tuple[str, str]:
    """The output and the state of a step, of the elements at the same place."""
    state = d.add(d.mul(d.sigmoid(x), state), d.tanh(x))
    return d.mul(d.sigmoid(x), d.tanh(state)), state


def test_a_state_is_fused_with_its_first_reader():
    d = Draft()
    state, w = d.input(1, 17), d.random(17, 17)
    h, state = cell(d, d.softmax(d.input(1, 17)), state)
    h, state = cell(d, d.linear(h, w), state)
    h, state = cell(d, d.linear(h, w), state)
    graph = d.graph(d.linear(h, w), state)
    words = ["sigmoid", "mul", "tanh", "add", "tanh", "sigmoid", "mul"]
    found = kernels(graph)
    assert found[::2] == ["softmax", "linear", "linear", "linear"]
    assert [sorted(found[n].split()) for n in (1, 3, 5)] == [sorted(words)] * 3
    assert [len(step.outputs) for step in partition(graph) if isinstance(step, Group)] == [1, 2, 1, 2, 1, 2, 1]


def test_a_value_read_at_other_indices_first_is_not_fused_with_its_reader():
    """By a reduction, by a movement, or in another shape."""
    d = Draft()
    x = d.tanh(d.input(3, 5))
    sums = d.reduce_sum(x, axes=(0,), keepdims=True)
    assert kernels(d.graph(sums, d.sigmoid(d.add(x, sums)))) == ["tanh", "reduce_sum", "add sigmoid"]
    d = Draft()
    x = d.tanh(d.input(3, 5))
    wide = d.sigmoid(d.add(x, d.input(2, 3, 5)))
    assert kernels(d.graph(wide, d.softmax(x))) == ["tanh", "add sigmoid", "softmax"]
    d = Draft()
    x = d.tanh(d.input(3, 5))
    turned = d.sigmoid(d.reshape(x, shape=(5, 3)))
    assert kernels(d.graph(turned, d.neg(x))) == ["tanh", "sigmoid", "neg"]


def test_a_result_and_what_is_computed_of_it_are_outputs_of_one_kernel():
    d = Draft()
    x = d.tanh(d.input(3, 5))
    y = d.sigmoid(x)
    assert kernels(d.graph(y, d.reduce_sum(y, axes=(1,)), x)) == ["tanh sigmoid", "reduce_sum"]


def test_nodes_that_are_to_be_alone_are():
    d = Draft()
    a = d.linear(d.input(3, 5), d.random(7, 5))
    b = d.relu(a)
    graph = d.graph(d.neg(b))
    assert kernels(graph) == ["linear relu neg"]
    steps = partition(graph, unfusible=frozenset((a, b)))
    assert [len(step.nodes) for step in steps if isinstance(step, Group)] == [1, 1, 1]


def test_bytes_against_arithmetic():
    rates = FusionRates(bytes_per_cycle=16, operations_per_cycle=32, call_cycles=1000)
    cheap, dear = NodeWork(10**6, 10**6, 10**5, False), NodeWork(10**6, 10**6, 10**7, False)
    assert should_inline(cheap, [3], rates)
    assert should_inline(cheap, [1, 1], rates)
    assert not should_inline(dear, [3], rates)
    kept = NodeWork(10**6, 10**6, 10**7, True)
    assert should_inline(kept, [200], rates)
    assert not should_inline(kept, [2000], rates)


def test_what_is_zero_by_algebra_is_computed():
    """Kernels of differences of integers and themselves have their inputs."""
    d = Draft()
    x, y = d.input(2, 3, dtype="int64"), d.input(3, dtype="int64")
    total = d.add(x, y)
    assert kernels(d.graph(d.add(d.sub(total, total), y), d.sub(y, y))) == ["add sub add", "sub"]


@pytest.mark.parametrize("start", range(0, 250, 50))
def test_random_graphs(start):
    assert [fault for seed in range(start, start + 50) for fault in faults_of(seed)] == []


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed):
    assert faults_of(seed, compiled=True) == []
