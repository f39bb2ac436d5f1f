"""Loops as nodes: what they compute, what is refused, what passes and files make of them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.interpret import interpret
from autosched.graph.passes import run_passes
from autosched.graph.passes.common_subexpressions import eliminate_common_subexpressions
from autosched.graph.passes.unroll_loops import unroll_loops
from autosched.graph.saved import load_saved, save_graph
from autosched.graph.traces import numbered_graph
from autosched.graph.verify import verify
from autosched.ir.size import Guards, value_of
from tests.graph.loops import counter, inputs_of, looped, nested


def test_states_and_rows() -> None:
    graph = counter(4)
    verify(graph)
    x, first = np.arange(12, dtype="float32").reshape(4, 3), np.ones(3, np.float32)
    expected = np.cumsum(x, 0) + 1
    np.testing.assert_array_equal(interpret(graph, {"x": x, "first": first})["y"], expected)


def test_the_text_shows_the_body() -> None:
    text = str(counter(4))
    assert 'y = repeat(first, x, steps=4, operands=[0, "rows"], results=["rows"])' in text
    assert "\n      sum = add(s, row)" in text


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("seed", range(12))
def test_unrolled_loops_compute_the_same(seed: int, steps: int) -> None:
    graph = looped(steps, random.Random(seed))
    verify(graph)
    unrolled = unroll_loops(graph, lambda *_: True)
    verify(unrolled)
    assert not any(node.body for node in unrolled.nodes)
    given = inputs_of(graph)
    expected = interpret(graph, given)
    for other in (unrolled, run_passes(graph)[0]):
        for name, array in zip(expected, interpret(other, given).values(), strict=True):
            np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_loops_within_loops_are_unrolled() -> None:
    graph = nested(looped(2, random.Random(1)), 3)
    verify(graph)
    unrolled = unroll_loops(graph, lambda *_: True)
    verify(unrolled)
    given = inputs_of(graph)
    for name, array in interpret(graph, given).items():
        np.testing.assert_array_equal(interpret(unrolled, given)[name], array)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 5}, r"x: float32\[4, 3\] is read as row: float32\[3\] \(rows\), which needs \[5, 3\]"),
        ({"steps": 0}, "sums: 0 iterations"),
        ({"operands": (0, "whole")}, r"x: float32\[4, 3\] is read as row"),
        ({"operands": (1, "rows")}, "the state s: .* becomes 1, which is of another shape or type"),
        ({"operands": (0,)}, "with other operands"),
        ({"results": ("first",)}, "are no results of a loop"),
        ({"results": ("last",)}, r"makes y: float32\[3\]"),
    ],
)
def test_a_loop_that_does_not_fit_its_body_is_refused(changed: dict[str, Any], message: str) -> None:
    graph = counter(4)
    (loop,) = graph.nodes
    with pytest.raises(GraphError, match=message):
        verify(replace(graph, nodes=(replace(loop, attributes={**loop.attributes, **changed}),)))


def test_a_body_is_verified() -> None:
    graph = counter(4)
    (loop,) = graph.nodes
    assert loop.body is not None
    broken = replace(loop, body=replace(loop.body, outputs=("row", "other")))
    with pytest.raises(GraphError, match="the output other of the graph network is made by nothing"):
        verify(replace(graph, nodes=(broken,)))


def test_loops_of_other_bodies_are_not_the_same() -> None:
    graph = counter(4)
    (loop,) = graph.nodes
    assert loop.body is not None
    for operator, count in (("add", 1), ("mul", 2)):
        body = replace(loop.body, nodes=(replace(loop.body.nodes[0], operator=operator),))
        both = graph.with_nodes(
            (loop, replace(loop, outputs=("z",), body=body)), [replace(graph.values["y"], name="z")]
        )
        sums = tuple(replace(both.values["y"], name=f"{x}2") for x in "yz")
        ends = tuple(
            replace(loop, operator="neg", inputs=(x,), outputs=(f"{x}2",), attributes={}, body=None) for x in "yz"
        )
        merged = eliminate_common_subexpressions(both.with_nodes((*both.nodes, *ends), sums, outputs=("y2", "z2")))
        assert sum(node.body is not None for node in merged.nodes) == count


def test_sizes_in_a_body_get_their_numbers() -> None:
    with Guards() as guards:
        width = guards.symbol("width", 3, 2, 100)
        graph = counter(4, width)
        verify(graph)
        numbered = numbered_graph(graph, value_of)
    verify(numbered)
    given = inputs_of(numbered)
    np.testing.assert_allclose(interpret(numbered, given)["y"], given["x"].cumsum(0) + given["first"], rtol=1e-5)


def test_saved_loops_are_read_again(tmp_path: Path) -> None:
    graph = looped(5, random.Random(3))
    save_graph(tmp_path / "loop.asc", graph, {})
    again, _ = load_saved(tmp_path / "loop.asc")
    assert (again.nodes, again.values) == (graph.nodes, graph.values)
    given = inputs_of(graph)
    for name, array in interpret(graph, given).items():
        np.testing.assert_array_equal(interpret(again, given)[name], array)
