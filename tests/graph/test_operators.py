"""Operators of networks against NumPy: shapes, types and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import results_of
from autosched.graph.verify import verify


def computed(operator: str, *arrays: np.ndarray[Any, Any] | None, **attributes: Any) -> np.ndarray[Any, Any]:
    """The first result of an operator of arrays, by the reference."""
    given = {f"x{n}": a for n, a in enumerate(arrays) if a is not None}
    values = {name: Value(name, a.shape, a.dtype.name) for name, a in given.items()}
    inputs = tuple(None if a is None else f"x{n}" for n, a in enumerate(arrays))
    node = Node(operator, inputs, ("y",), attributes)
    (result,) = results_of(node, values)
    graph = Graph(tuple(given), ("y",), (node,), {**values, "y": result})
    verify(graph)
    return interpret(graph, given)["y"]


def some(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Numbers around 0, the same in each run."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


ELEMENTWISE: dict[str, tuple[Callable[..., Any], int]] = {"add": (np.add, 2), "relu": (lambda x: np.maximum(x, 0), 1)}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 1, 3), (5, 1)), ((1,), (7,)), ((), (4,))])
def test_elements(name, shapes):
    function, count = ELEMENTWISE[name]
    arrays = [some(*shape) for shape in shapes[:count]]
    np.testing.assert_allclose(computed(name, *arrays), function(*arrays), rtol=1e-6)


def test_shapes_that_do_not_fit():
    with pytest.raises(GraphError, match=r"the shapes \[2\], \[3\] do not fit each other"):
        computed("add", some(2), some(3))
