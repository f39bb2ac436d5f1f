"""Groups as data: what is described computes the same."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.fusion.partition import dag_of, partition
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.group_description import describe, described_dag
from autosched.graph.steps import Group
from autosched.tuner.definition import redefine
from tests.graph import networks


@pytest.mark.parametrize("make", [networks.residual, networks.perceptron, networks.attention_block, networks.views_out])
def test_a_description_is_the_same_stages(make) -> None:
    graph = make()
    for step in partition(graph):
        if isinstance(step, Group):
            data = json.loads(json.dumps(describe(graph, step), allow_nan=False))
            assert described_dag(data).content_hash == dag_of(graph, step).content_hash


def test_values_may_have_other_names() -> None:
    graph = networks.residual()
    other = {name: f"other {name}" for name in graph.values}
    renamed = replace(
        graph,
        inputs=tuple(other[name] for name in graph.inputs),
        outputs=tuple(other[name] for name in graph.outputs),
        nodes=tuple(
            replace(
                node,
                inputs=tuple(None if name is None else other[name] for name in node.inputs),
                outputs=tuple(other[name] for name in node.outputs),
            )
            for node in graph.nodes
        ),
        values={other[name]: replace(value, name=other[name]) for name, value in graph.values.items()},
        constants={other[name]: array for name, array in graph.constants.items()},
    )

    def texts(graph: Graph) -> list[str]:
        return [json.dumps(describe(graph, step)) for step in partition(graph) if isinstance(step, Group)]

    assert texts(graph) == texts(renamed)


def test_a_number_may_be_infinite() -> None:
    values = {name: Value(name, (3,), "float32") for name in "xy"}
    graph = Graph(("x",), ("y",), (Node("clip", ("x",), ("y",), {"low": -math.inf, "high": 1.0}),), values)
    (group,) = partition(graph)
    assert isinstance(group, Group)
    assert described_dag(describe(graph, group)).content_hash == dag_of(graph, group).content_hash


def test_a_record_is_read_back() -> None:
    graph = networks.perceptron()
    group = next(step for step in partition(graph) if isinstance(step, Group))
    spec = {"name": "first", "args": {}, "dtype": "float32", "graph": describe(graph, group)}
    found = redefine(json.dumps(spec), None)
    assert found.dag.content_hash == dag_of(graph, group).content_hash
    assert found.dag.weights
    assert found.shape == graph.values[group.outputs[0]].shape
    assert json.loads(found.spec) == spec


GOOD = {"inputs": [[[2], "float32"]], "weights": 0, "nodes": [["relu", [0], [1], {}]], "outputs": [1]}


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": [[[0], "float32"]]},
        {"inputs": [[[2], "complex64"]]},
        {"nodes": [["system", [0], [1], {}]]},
        {"nodes": [["relu", [5], [1], {}]]},
        {"nodes": [["relu", ["x"], [1], {}]]},
        {"nodes": [["relu", [0], [1], {"x": object}]]},
        {"nodes": [["relu", [0], [1], {"slope": 1}]]},
        {"outputs": None},
        {"weights": "many"},
    ],
)
def test_what_is_no_description(change) -> None:
    assert described_dag(GOOD).outputs[0].shape == (2,)
    with pytest.raises(GraphError):
        described_dag({**GOOD, **change})


def test_a_weight_is_prepared() -> None:
    data = {**GOOD, "inputs": [[[2, 3], "float32"], [[3, 4], "float32"]], "weights": 1}
    dag = described_dag({**data, "nodes": [["matmul", [0, 1], [2], {}]], "outputs": [2]})
    assert dag.weights == ("x1",)
    assert np.dtype(dag.outputs[0].dtype) == np.float32
