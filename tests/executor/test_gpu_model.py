"""Networks on GPUs: on an OpenCL device, which may be the processor, and for CUDA in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.errors import UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.fusion.cost import rates_of
from autosched.graph.fusion.partition import partition
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.steps import Alias
from autosched.kernel.gpu_kernel import decode_source
from autosched.kernel.roofline import Roof
from autosched.runtime.simulator.build import find_compiler
from autosched.target import parse_target
from tests.executor.test_model import inputs_of
from tests.graph import networks
from tests.measure.gpu_kernels import opencl_target

Make = Callable[[Graph], Model]
CASES = [
    ("opencl", networks.parts),
    ("opencl", networks.views_out),
    ("cuda", networks.attention_block),
    ("cuda", networks.joined),
]


def maker(kind: str) -> Make:
    """What compiles a graph for a kind of GPU."""
    if kind == "opencl":
        opencl_target()
        return lambda graph: compile_graph(graph, target="opencl")
    if find_compiler() is None:
        pytest.skip("no g++")
    return lambda graph: compile_graph(graph, target="cuda -arch=sm_80", simulate=True)


@pytest.fixture(params=["opencl", "cuda"])
def make(request: pytest.FixtureRequest) -> Make:
    return maker(request.param)


def several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def check(graph: Graph, results: Any, given: dict[str, Any]) -> None:
    wanted = interpret(graph, given)
    for name, got in zip(graph.outputs, several(results), strict=True):
        assert got.dtype == wanted[name].dtype or wanted[name].dtype == np.float64
        np.testing.assert_allclose(got, wanted[name], rtol=0, atol=2e-6 * max(1.0, np.abs(wanted[name]).max()))


@pytest.mark.parametrize(("kind", "build"), CASES)
def test_a_program_computes_the_network(kind, build):
    graph = build()
    model = maker(kind)(graph)
    for seed in (1, 2, 3):  # bound, captured, started again: on the same arena and arrays
        given = {n: np.roll(x, seed) for n, x in inputs_of(graph).items()}
        check(graph, model(**given), given)
    backend, program = model.program.backend, model.program
    offsets = [*program.memory.offsets.values(), *program.raw_offsets.values()]
    assert {offset % backend.array_alignment for offset in offsets} <= {0}


def indices() -> Graph:
    """Rows of a table by int64, with negative ones; where the largest is, a cast, a comparison; several outputs."""
    values = {
        v.name: v
        for v in (
            Value("ids", (2, 3), "int64"), Value("table", (7, 5), "float32"), Value("rows", (2, 3, 5), "float32"),
            Value("best", (2, 3), "int64"), Value("wide", (2, 3), "float32"), Value("least", (2, 5), "float32"),
        )
    }  # fmt: skip
    nodes = (
        Node("gather", ("table", "ids"), ("rows",), {"axis": 0}),
        Node("argmax", ("rows",), ("best",), {"axis": -1, "keepdims": False}),
        Node("cast", ("best",), ("wide",), {"dtype": "float32"}),
        Node("reduce_min", ("rows",), ("least",), {"axes": (1,), "keepdims": False}),
    )
    table = np.random.default_rng(0).normal(size=(7, 5)).astype("float32")
    return Graph(("ids",), ("rows", "best", "wide", "least"), nodes, values, {"table": table})


def test_indices_and_integers(make):
    graph = indices()
    ids = np.array([[0, -1, 6], [3, 3, -7]], np.int64)
    check(graph, make(graph)(ids), {"ids": ids})


def test_verified_kernel_by_kernel(make):
    """Each kernel by itself, with its constants where the network has them."""
    model = make(networks.residual())
    found = at.verify(model)
    assert found.passed, found.summary()
    assert len(found.kernels) == 2


def test_other_weights_and_a_saved_network(make, tmp_path):
    graph = networks.perceptron((3, 5))
    model = make(graph)
    changed = {name: 2 * array for name, array in graph.constants.items()}
    given = inputs_of(graph)
    found = model.with_weights(changed)(**given)
    check(Graph(graph.inputs, graph.outputs, graph.nodes, graph.values, changed), found, given)
    with pytest.raises(UsageError, match="exported for processors"):
        model.export(tmp_path / "model.so")
    model.save(tmp_path / "model.asc")
    check(graph, at.load(tmp_path / "model.asc", threads=1)(**given), given)


def test_parts_begin_where_a_device_can_have_them():
    """Rows of 15 floats begin at multiples of 60 bytes: views for a processor, moved for a GPU."""
    graph = networks.parts()
    assert any(isinstance(s, Alias) and s.offset for s in partition(graph))
    rates = rates_of(parse_target("opencl"), 1)
    assert not any(isinstance(s, Alias) and s.offset * 4 % rates.part_alignment for s in partition(graph, rates))


def test_arrays_of_the_device_stay_there():
    opencl_target()
    graph = networks.perceptron((3, 5))
    model, given = compile_graph(graph, target="opencl"), inputs_of(graph)
    x = at.to_device(given["x"], "opencl")
    for _ in range(3):
        y = model(x)
        assert y.device == "opencl"
        check(graph, y.numpy(), given)


def test_events_time_the_kernels_and_the_whole(monkeypatch):
    """Beside what the device can do, which is measured in seconds, and elsewhere."""
    opencl_target()
    monkeypatch.setattr("autosched.executor.profile.BUDGET_S", 0.01)
    monkeypatch.setattr("autosched.kernel.measured_roofline.measure_gpu_roof", lambda *_: Roof(1e12, 1e10))
    found = at.explain(compile_graph(networks.residual(), target="opencl"))
    assert len(found.layers) == 2
    assert all(layer.seconds > 0 for layer in found.layers)
    assert found.call_s >= max(layer.seconds for layer in found.layers)


def test_only_cuda_is_simulated():
    with pytest.raises(UsageError, match="--target cuda with --simulate"):
        compile_graph(networks.perceptron((3, 5)), target="opencl", simulate=True)


def heads(length: int = 33, heads: int = 2, width: int = 16) -> Graph:
    """Queries, keys and values of one product, taken apart into heads; attention, put together again; in float16."""
    size = heads * width
    values = {
        "x": Value("x", (1, length, size), "float16"),
        "w": Value("w", (3 * size, size), "float16"),
        "qkv": Value("qkv", (1, length, 3 * size), "float16"),
        "mixed": Value("mixed", (1, heads, length, width), "float16"),
        "turned": Value("turned", (1, length, heads, width), "float16"),
    }
    nodes = [Node("linear", ("x", "w"), ("qkv",))]
    for n, name in enumerate("qkv"):
        part, taken, turned = f"{name}.part", f"{name}.heads", name
        values[part] = Value(part, (1, length, size), "float16")
        values[taken] = Value(taken, (1, length, heads, width), "float16")
        values[turned] = Value(turned, (1, heads, length, width), "float16")
        ends = {"starts": (n * size,), "stops": ((n + 1) * size,), "axes": (2,)}
        nodes.append(Node("slice", ("qkv",), (part,), ends))
        nodes.append(Node("reshape", (part,), (taken,), {"shape": (1, length, heads, width)}))
        nodes.append(Node("transpose", (taken,), (turned,), {"perm": (0, 2, 1, 3)}))
    nodes.append(Node("attention", ("q", "k", "v"), ("mixed",)))
    nodes.append(Node("transpose", ("mixed",), ("turned",), {"perm": (0, 2, 1, 3)}))
    weights = np.random.default_rng(0).normal(size=(3 * size, size)) / np.sqrt(size)
    return Graph(("x",), ("turned",), tuple(nodes), values, {"w": weights.astype("float16")})


def test_attention_is_one_kernel_on_tensor_cores():
    """As heads of one product's result: what is between the two products is in registers."""
    model = maker("cuda")(heads())
    (task,) = (task for task in model.tasks if "attention" in task.name)
    assert task.name.endswith("attention-transpose")
    source = decode_source(task.kernel.code)
    assert len(source.launches) == 1
    assert source.matrices
    found = at.verify(model)
    assert found.passed, found.summary()


def test_one_value_as_two_outputs(make: Make) -> None:
    given = {"x": np.ones((2, 3), np.float32)}
    values = {name: Value(name, (2, 3), "float32") for name in "xy"}
    graph = Graph(("x",), ("y", "y"), (Node("relu", ("x",), ("y",)),), values)
    results = several(make(graph)(**given))
    assert len(results) == 2
    check(graph, results, given)
