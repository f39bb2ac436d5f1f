"""Graphs in the making, and what is asked of a pass in every test of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autosched.graph.graph import Array, Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import results_of
from autosched.graph.verify import verify


class Draft:
    """Nodes one after the other: d.mul(x, 0.5) adds one and gives the name of its result, or a tuple of names."""

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}

    def input(self, *shape: int, dtype: str = "float32") -> str:
        name = f"in{len(self.inputs)}"
        self.inputs.append(name)
        self.values[name] = Value(name, shape, dtype)
        return name

    def constant(self, array: Any, dtype: str = "float32") -> str:
        name, made = f"c{len(self.constants)}", np.asarray(array, dtype=dtype)
        self.constants[name] = made
        self.values[name] = Value(name, made.shape, made.dtype.name)
        return name

    def random(self, *shape: int, low: float = -1.0) -> str:
        """A constant of numbers between `low` and 1."""
        return self.constant(np.random.default_rng(len(self.constants)).uniform(low, 1, shape))

    def add_node(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        names = tuple(self.constant(x) if isinstance(x, int | float) else x for x in inputs)
        made = tuple(f"v{len(self.nodes)}{chr(97 + n)}" for n in range(outputs))
        node = Node(operator, names, made, attributes)
        self.values.update((value.name, value) for value in results_of(node, self.values))
        self.nodes.append(node)
        return made[0] if outputs == 1 else made

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        return lambda *inputs, **attributes: self.add_node(operator.rstrip("_"), *inputs, **attributes)

    def graph(self, *outputs: str) -> Graph:
        made = Graph(tuple(self.inputs), outputs, tuple(self.nodes), self.values, self.constants)
        verify(made)
        return made


def operators_of(graph: Graph) -> list[str]:
    return [node.operator for node in graph.nodes]


def some_inputs(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(7)
    drawn = {name: rng.normal(size=graph.values[name].shape) for name in graph.inputs}
    # Of bools about one of four holds.
    return {
        name: array < -0.7 if graph.values[name].dtype == "bool" else array.astype(graph.values[name].dtype)
        for name, array in drawn.items()
    }


def checked(run: Callable[[Graph], Graph], graph: Graph, tolerance: float = 1e-6) -> Graph:
    """The graph after a pass, which is a graph with the same inputs, outputs and numbers."""
    after = run(graph)
    verify(after)
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    inputs = some_inputs(graph)
    expected, got = interpret(graph, inputs), interpret(after, inputs)
    for name, array in expected.items():
        assert np.isfinite(array).all(), "the test has nothing to compare"
        assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(
            got[name].astype("float64"),
            array.astype("float64"),
            rtol=0,
            atol=tolerance * np.abs(array.astype("float64")).max(),
        )
    assert run(after) is after or str(run(after)) == str(after), "a second run changes the graph again"
    return after
