"""Networks as files: what is loaded computes the same, with the schedules that were saved; what is no such file is
refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autosched
from autosched.errors import GraphError, RecordWarning, UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.saved import load_saved, save_graph
from autosched.kernel.spec import KernelSpec
from autosched.kernel.task import analytic_best, make_task
from autosched.planning.extract_tasks import Choices
from autosched.schedule import steps_to_json
from tests.graph import networks


@pytest.mark.parametrize("make", [networks.residual, networks.perceptron, networks.attention_block, networks.views_out])
def test_a_graph_is_read_back(make: Callable[[], Graph], tmp_path: Path) -> None:
    graph = make()
    save_graph(tmp_path / "x", graph, {"more": "text"})
    found, facts = load_saved(tmp_path / "x")
    assert (found.inputs, found.outputs, found.nodes) == (graph.inputs, graph.outputs, graph.nodes)
    assert (found.values, found.name) == (graph.values, graph.name)
    assert facts == {"more": "text", "digest": facts["digest"]}
    for name, array in graph.constants.items():
        np.testing.assert_array_equal(found.constants[name], array)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
)
def test_constants_of_all_types(dtype: str, tmp_path: Path) -> None:
    from autosched.ir.dtype import numpy_dtype

    array = np.arange(15).reshape(3, 5).astype(numpy_dtype(dtype))
    odd = np.array([True])
    values = {n: Value(n, a.shape, a.dtype.name) for n, a in (("odd", odd), ("c", array))}
    graph = Graph((), ("c",), (), values, {"odd": odd, "c": array})
    save_graph(tmp_path / "x", graph, {})
    found = load_saved(tmp_path / "x")[0].constants["c"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found.view("uint8"), array.view("uint8"))


def test_attributes_may_be_infinite(tmp_path: Path) -> None:
    values = {name: Value(name, (3,), "float32") for name in "xy"}
    graph = Graph(("x",), ("y",), (Node("clip", ("x",), ("y",), {"low": -math.inf}, "from here"),), values)
    save_graph(tmp_path / "x", graph, {})
    assert load_saved(tmp_path / "x")[0].nodes == graph.nodes


def second_best(kernel_specs: Sequence[KernelSpec]) -> list[KernelSpec]:
    """The specifications with other schedules than the analytic model's first."""
    return [other_schedule(kernel_spec) for kernel_spec in kernel_specs]


def other_schedule(kernel_spec: KernelSpec) -> KernelSpec:
    task, sketches = make_task(kernel_spec.request)
    candidate, _ = analytic_best(task, 2, make=lambda candidate: None)[1]
    return replace(kernel_spec, steps=steps_to_json(sketches[candidate.sketch].state, task.values(candidate)))


def saved(path: Path) -> tuple[Model, Model]:
    model = compile_graph(networks.perceptron(), threads=1, choices=Choices(second_best))
    model.save(path)
    return model, autosched.load(path, threads=1)


def test_a_model_keeps_its_schedules(tmp_path: Path) -> None:
    model, found = saved(tmp_path / "model.asc")
    assert [task.kernel_spec for task in found.tasks] == [task.kernel_spec for task in model.tasks]
    assert all(task.kernel_spec.steps for task in found.tasks)
    spec = model.inputs[0]
    x = np.random.default_rng(1).normal(size=spec.shape).astype(spec.dtype)
    np.testing.assert_array_equal(found(x), model(x))
    with pytest.warns(
        RecordWarning, match=r"are for cpu-.* and 1 thread.*kernels for cpu-.* and 2: the analytic model"
    ):
        other = autosched.load(tmp_path / "model.asc", threads=2)
    assert not any(task.kernel_spec.steps for task in other.tasks)


def changed(path: Path, change: Callable[[dict[str, str]], None]) -> None:
    """The file with other facts beside its graph."""
    graph, facts = load_saved(path)
    constants = {name: np.array(array) for name, array in graph.constants.items()}
    change(facts)
    save_graph(path, replace(graph, constants=constants), facts)


def test_a_schedule_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "model.asc"
    saved(path)

    def forge(facts: dict[str, str]) -> None:
        facts["schedules"] = json.dumps(dict.fromkeys(json.loads(facts["schedules"]), '[["no such step"]]'))

    changed(path, forge)
    with pytest.warns(RecordWarning, match="does not fit this version"):
        found = autosched.load(path, threads=1)
    assert not any(task.kernel_spec.steps for task in found.tasks)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: (1 << 62).to_bytes(8, "little") + data[8:],
        lambda data: data.replace(b'"F32"', b'"C64"', 1),
        lambda data: data.replace(b"relu", b"rely"),
        lambda data: data.replace(b'"data_offsets": [0', b'"data_offsets": [4', 1),
        lambda data: b"\x08\0\0\0\0\0\0\0[1, 2  ]" + data,
        lambda data: b"PK\3\4" + data,
    ],
)
def test_what_is_no_archive(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.asc"
    compile_graph(networks.perceptron(), threads=1).save(path)
    whole = path.read_bytes()
    assert damage(whole) != whole
    path.write_bytes(damage(whole))
    with pytest.raises(GraphError):
        autosched.load(path)


def test_other_versions_and_places(tmp_path: Path) -> None:
    path = tmp_path / "model.asc"
    model = compile_graph(networks.perceptron(), threads=1)
    model.save(path)
    changed(path, lambda facts: facts.update(autosched="3"))
    with pytest.raises(GraphError, match="is an archive of version 3"):
        autosched.load(path)
    with pytest.raises(GraphError, match="cannot be read: No such file"):
        autosched.load(tmp_path / "other.asc")
    with pytest.raises(UsageError, match=r"is saved as a file \*.asc"):
        model.save(tmp_path / "model.zip")
    with pytest.raises(UsageError, match="cannot be saved as"):
        model.save(tmp_path / "nowhere" / "model.asc")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.asc"]
