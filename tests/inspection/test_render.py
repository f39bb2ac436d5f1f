"""Networks as text."""

from __future__ import annotations

import re

import numpy as np
import pytest

from autosched import api
from autosched.errors import UsageError
from autosched.graph.graph import Graph
from autosched.inspection.render import HEIGHT
from tests.graph import networks
from tests.graph.drafts import Draft


@pytest.fixture(scope="module")
def residual() -> Graph:
    return networks.residual(channels=3, size=5)


def test_groups_are_kernels_and_views(residual):
    lines = api.show(residual, "groups").splitlines()
    assert [re.sub(r"\(.*", "", line).split(" = ")[1] for line in lines] == ["conv relu", "conv add relu"]
    assert "float32[1, 3, 5, 5] = conv add relu(" in lines[1]
    b = networks.Builder(x=(3, 4))
    again = b.add("softmax", b.add("reshape", b.add("softmax", "x", axis=-1), shape=(4, 3)), axis=-1)
    assert " is " in api.show(b.graph(again), "groups")


def test_floats_between_quantised_layers_are_named():
    d = Draft()
    x, scale = d.input(3, 7), d.constant(0.1)
    whole = d.dequantize(d.quantize(x, scale, dtype="int8"), scale)
    weights = d.dequantize(d.constant(np.ones((7, 5)), "int8"), scale)
    soft = d.softmax(d.matmul(whole, weights), axis=-1)
    assert api.show(d.graph(d.quantize(d.matmul(whole, weights), scale, dtype="int8")), "groups").splitlines()[-1] == (
        "quantised; values between its kernels that are floats: 0"
    )
    by_terms = d.dequantize(d.quantize(soft, scale, dtype="int8"), d.random(5, low=0.1), axis=1)  # a scale for each k
    graph = d.graph(d.softmax(d.matmul(by_terms, d.random(5, 6)), axis=-1))
    lines = api.show(graph, "groups").splitlines()
    (first,) = (n for n, line in enumerate(lines) if line.startswith("quantised; "))
    *stored, product = lines[first + 1 :]
    assert lines[first].endswith(f": {len(stored)}")
    assert all(": float32[3, " in line and ", from kernel " in line for line in stored)
    assert stored
    assert product.endswith(f": float32[3, 6], a matmul of dequantised floats: {by_terms}")


def test_the_graph_is_that_after_passes(residual):
    text = api.show(residual)
    assert text.startswith("network(x: float32[1, 3, 5, 5]):")
    assert "= constant" in text
    assert text.count("= conv(") == 2


def test_the_arena_as_a_picture():
    model = api.load(networks.perceptron((3, 17, 17, 5)), threads=1)
    lines = api.show(model, "memory").splitlines()
    assert lines[0].startswith(f"arena of {model.arena_bytes} bytes; {model.bound_bytes} are alive at once")
    picture = lines[1 : 1 + HEIGHT]
    assert {len(row) for row in picture} == {3}
    largest = [line for line in lines if "bytes at byte" in line]
    assert len(largest) == 3
    for line in largest[:2]:
        assert any(line[0] in row for row in picture)


def test_graphviz_has_each_kernel_and_value(residual):
    text = api.show(residual, "dot")
    assert text.startswith('digraph "network" {')
    assert text.count("[label=") == 2 + text.count("->")
    assert 'i0 -> k0 [label="float32[1, 3, 5, 5]"]' in text
    assert "k0 -> k1" in text
    assert "k1 -> o0" in text
    assert "i0 -> k1" in text


def test_other_forms_are_refused(residual):
    with pytest.raises(
        UsageError, match="a network is shown as graph, groups, dot, passes, memory, llvm, cuda, opencl, got 'ir'"
    ):
        api.show(residual, "ir")
