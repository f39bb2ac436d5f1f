"""Networks whose convolutions may be Winograd's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autosched as at
from autosched.errors import UsageError
from autosched.executor.model import Model
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret


def convolutions(size: int = 22) -> Graph:
    """A 3x3 convolution, with a bias and a ReLU, and a pointwise one."""
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 19, size, size), "w": (33, 19, 3, 3), "b": (33,), "v": (7, 33, 1, 1)}
    values = [Value(name, shape, "float32") for name, shape in shapes.items()]
    values += [Value(name, (1, c, size, size), "float32") for name, c in (("h", 33), ("r", 33), ("y", 7))]
    nodes = (
        Node("conv", ("x", "w", "b"), ("h",), {"pads": ((1, 1), (1, 1))}),
        Node("relu", ("h",), ("r",)),
        Node("conv", ("r", "v"), ("y",)),
    )
    constants = {name: rng.standard_normal(shapes[name], "float32") for name in "wbv"}
    return Graph(("x",), ("y",), nodes, {value.name: value for value in values}, constants)


def accepted(model: Model) -> list[bool]:
    return ["winograd" in task.kernel_spec.workload.data for task in model.tasks if "conv" in task.name]


def test_kernels_may_have_the_larger_error_where_it_is_accepted(tmp_path: Path) -> None:
    graph = convolutions()
    model = at.load(graph, winograd=True, threads=1, records=False)
    assert sorted(accepted(model)) == [False, True]
    assert not any(accepted(at.load(graph, threads=1, records=False)))
    x = np.random.default_rng(1).standard_normal((1, 19, 22, 22), "float32")
    want = interpret(graph, {"x": x})["y"]
    np.testing.assert_allclose(model(x), want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
    assert at.verify(model).passed
    model.save(tmp_path / "net.asc")
    assert sorted(accepted(at.load(tmp_path / "net.asc", threads=1, records=False))) == [False, True]


def test_a_transform_that_is_chosen_is_checked_with_its_own_bound(tmp_path: Path) -> None:
    """Whatever the model prefers, a schedule with transforms runs in the network."""
    result = at.tune(convolutions(), trials=3, winograd=True, threads=1, db=tmp_path / "records.db")
    assert result.verified
    assert sorted(accepted(result.model)) == [False, True]


def test_gpus_have_no_such_kernels() -> None:
    with pytest.raises(UsageError, match="Winograd convolutions are for processors only so far"):
        at.load(convolutions(), winograd=True, target="cuda -arch=sm_80", simulate=True, records=False)
