"""Images of a batch a few at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import autosched as at
from autosched.graph.fusion.node_properties import is_batchwise
from autosched.graph.fusion.partition import GENERIC, partition
from autosched.graph.graph import Graph
from autosched.graph.interpret import interpret
from autosched.graph.passes import split_batches as module
from autosched.graph.passes.split_batches import split_batches
from autosched.graph.steps import Alias, Group, Join
from tests.graph.drafts import Draft, checked, operators_of, some_inputs

LITTLE = replace(GENERIC, call_cycles=1.0)  # so that small images are worth a part
IMAGE = 8 * 6 * 5 * 4  # bytes of an image of eight channels


def layers(count: int, last: int = 8) -> Graph:
    """Two convolutions of images with channels last and a sum, then one whose weights are larger than its images."""
    d = Draft()
    x = d.input(count, 6, 5, 8)
    a = d.relu(d.conv(x, d.random(8, 8, 3, 3), pads=((1, 1), (1, 1)), channels_last=True))
    b = d.add(d.conv(a, d.random(8, 8, 1, 1), channels_last=True), x)
    return d.graph(d.conv(b, d.random(last, 8, 6, 5), channels_last=True))


def split(graph: Graph, cache_bytes: int) -> Graph:
    return checked(lambda g: split_batches(g, LITTLE, cache_bytes), graph, 1e-5)


def test_images_that_fit_stay_together() -> None:
    graph = layers(4)
    assert split_batches(graph, GENERIC, 1 << 20) is graph


def test_one_image_has_no_parts() -> None:
    graph = layers(1)
    assert split_batches(graph, GENERIC, 0) is graph


@pytest.mark.parametrize(("count", "size"), [(3, 1), (6, 3), (8, 2), (5, 1)])
def test_as_many_images_as_fit_are_a_part(count: int, size: int) -> None:
    weights = 4 * 9 * 64
    after = split(layers(count, 400), size * 3 * IMAGE + weights)
    found = Counter(operators_of(after))
    assert found["conv"] == 2 * (count // size) + 1
    assert found["slice"] == count // size
    assert found["concat"] == 1
    steps = partition(after)
    assert sum(isinstance(step, Join) for step in steps) == 1
    assert sum(isinstance(step, Alias) for step in steps) == count // size
    assert sum(isinstance(step, Group) for step in steps) == found["conv"]


def test_nothing_is_apart_where_nothing_fits() -> None:
    graph = layers(4)
    assert split_batches(graph, GENERIC, IMAGE) is graph


@pytest.mark.parametrize("sizes", [(1, 2, 8), (1, 4, 2), (4, 1, 2), (8, 2, 1)])
def test_parts_are_made_of_those_of_other_sizes(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]) -> None:
    graph = layers(8)
    monkeypatch.setattr(module._Sizes, "best", lambda self: sizes)
    after = checked(lambda g: split_batches(g, GENERIC, 0) if g is graph else g, graph, 1e-5)
    made = Counter(after.values[node.outputs[0]].shape for node in after.nodes if node.operator == "conv")
    assert list(made.values()) == [8 // size for size in sizes]
    assert [shape[0] for shape in made] == list(sizes)


def test_what_reads_other_images_is_not_split() -> None:
    d = Draft()
    x = d.input(4, 6)
    turned = d.graph(d.transpose(x, perm=(1, 0)), d.softmax(x, axis=0), d.flip(x, axes=(0,)), d.reshape(x, shape=(24,)))
    assert not any(is_batchwise(node, turned, 4) for node in turned.nodes)
    d = Draft()
    x = d.input(4, 6)
    scaled = d.graph(d.mul(x, d.random(4, 1)), d.mul(x, d.random(1, 6)), d.softmax(x, axis=1), d.add(x, d.input(1, 6)))
    assert [is_batchwise(node, scaled, 4) for node in scaled.nodes] == [False, True, True, True]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_network_in_parts_is_right(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    from autosched.planning import device_passes

    monkeypatch.setattr(
        device_passes,
        "split_batches",
        lambda graph, rates, nbytes: split_batches(graph, LITTLE, 6 * IMAGE + 9 * 4 * 64),
    )
    graph = layers(8, 400)
    model = at.load(graph, threads=threads, records=False)
    assert {task.count for task in model.tasks} == {1, 4}
    inputs = some_inputs(graph)
    (want,) = interpret(graph, inputs).values()
    np.testing.assert_allclose(model(*inputs.values()), want, rtol=1e-4, atol=1e-4)
