"""Parts of parts, and rows that lie together."""

from __future__ import annotations

import pytest

from autosched.graph.fusion.partition import partition
from autosched.graph.graph import Graph
from autosched.graph.passes import run_passes
from autosched.graph.passes.layout.canonicalise_slices import canonicalise_slices
from autosched.graph.steps import Alias, Group
from tests.graph.drafts import Draft, checked, operators_of


def composed(graph: Graph) -> list[str]:
    return operators_of(checked(canonicalise_slices, graph))


def test_a_slice_of_a_slice_is_one():
    d = Draft()
    x = d.slice(d.input(17, 5), starts=(3,), stops=(15,), axes=(0,), steps=(2,))
    y = d.slice(x, starts=(4,), stops=(0,), axes=(0,), steps=(-2,))
    assert composed(d.graph(d.relu(y))) == ["slice", "relu"]


def test_a_slice_down_to_the_first_element():
    d = Draft()
    x = d.flip(d.input(7, 3), axes=(0,))
    assert composed(d.graph(d.slice(x, starts=(2,), stops=(7,), axes=(0,)))) == ["slice"]


def test_parts_of_a_part():
    d = Draft()
    first, _ = d.add_node("split", d.input(5, 1, 6), outputs=2, sizes=(4, 2), axis=-1)
    steps = d.add_node("split", d.flip(first, axes=(0,)), outputs=5, sizes=(1,) * 5, axis=0)
    assert sorted(composed(d.graph(*map(d.relu, steps)))) == ["relu"] * 5 + ["slice"] * 5


@pytest.mark.parametrize("batch", [1, 3])
def test_rows_are_taken_before_columns(batch):
    """With one row in each they are one slice, whose elements lie together."""
    d = Draft()
    x = d.slice(d.input(5, batch, 6), starts=(2,), stops=(5,), axes=(2,))
    y = d.slice(x, starts=(3,), stops=(4,), axes=(0,))
    assert composed(d.graph(d.relu(y))) == ["slice"] * min(batch, 2) + ["relu"]


def test_what_is_in_order_stays():
    d = Draft()
    rows = d.slice(d.input(5, 3, 6), starts=(1,), stops=(3,), axes=(0,))
    graph = d.graph(d.relu(d.slice(rows, starts=(1,), stops=(4,), axes=(2,))))
    assert canonicalise_slices(graph) is graph
    d = Draft()
    graph = d.graph(*d.add_node("split", d.input(5), outputs=2, sizes=(1, 4), axis=0))
    assert canonicalise_slices(graph) is graph


@pytest.mark.parametrize("batch", [1, 3])
def test_steps_of_a_loop_are_equal_kernels(batch):
    d = Draft()
    rows = d.add_node("split", d.linear(d.input(4, batch, 3), d.random(10, 3)), outputs=2, sizes=(5, 5), axis=2)
    weights, h = d.random(5, 5), d.input(batch, 5)
    for step in d.add_node("split", d.flip(rows[0], axes=(0,)), outputs=4, sizes=(1,) * 4, axis=0):
        h = d.tanh(d.add(d.reshape(step, shape=(batch, 5)), d.linear(h, weights)))
    graph, _ = run_passes(d.graph(h, d.relu(rows[1])))
    steps = partition(graph)
    loop = [step for step in steps if isinstance(step, Group) and step.nodes[-1].operator == "tanh"]
    assert len(loop) == 4
    assert len({tuple(node.operator for node in step.nodes) for step in loop}) == 1
    offsets = [step.offset for step in steps if isinstance(step, Alias) and step.base == loop[0].inputs[0]]
    assert not any(offsets)
