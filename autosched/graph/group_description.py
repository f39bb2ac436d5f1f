"""A group as data that says all of what its kernel computes, and nothing of what its values are called in a network.

    {"inputs": [[shape, dtype], ...], "weights": n, "nodes": [[operator, inputs, outputs, attributes], ...],
     "outputs": [...]}

Values are numbered: inputs first, of which the last `weights` are constants that kernels may pack, then results in the
order of the nodes; an input that is left out is null. Groups that compute the same have the same description, so it
tells tasks apart, goes to processes that build kernels, and stands in records. It is JSON without infinities: these are
{"number": "inf"}.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autosched.errors import GraphError
from autosched.graph.fusion.node_properties import weights_of
from autosched.graph.fusion.partition import dag_of
from autosched.graph.graph import Attribute, Graph, Node, Value
from autosched.graph.operators import operators, results_of
from autosched.graph.steps import Group
from autosched.ir.dtype import DTYPES
from autosched.te import ComputeDAG


def describe(graph: Graph, group: Group, has_weights: bool = True) -> dict[str, Any]:
    """What the kernel of `group` computes. Constants are inputs as others are for a target that prepares none, which
    `has_weights` says."""
    numbers = {name: n for n, name in enumerate(group.inputs)}
    nodes = []
    for node in group.nodes:
        used = [None if name is None else numbers[name] for name in node.inputs]
        for name in node.outputs:
            numbers[name] = len(numbers)
        attributes = {name: attribute_data(value) for name, value in sorted(node.attributes.items())}
        nodes.append([node.operator, used, [numbers[name] for name in node.outputs], attributes])
    inputs = [[list(graph.values[name].shape), graph.values[name].dtype] for name in group.inputs]
    weights = len(weights_of(graph, group.nodes, group.inputs)) if has_weights else 0
    return {"inputs": inputs, "weights": weights, "nodes": nodes, "outputs": [numbers[name] for name in group.outputs]}


def described_dag(description: object) -> ComputeDAG:
    """The stages of a group that is described. Raises GraphError for a description that is none."""
    try:
        graph, group = _read(description)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise GraphError(f"the description of a network's kernel cannot be understood: {error}") from error
    return dag_of(graph, group)


def _read(description: Any) -> tuple[Graph, Group]:
    values: dict[str, Value] = {}
    for n, (shape, dtype) in enumerate(description["inputs"]):
        if dtype not in DTYPES or not all(isinstance(size, int) and size >= 1 for size in shape):
            raise ValueError(f"an input of {dtype}{shape}")
        values[_name(n)] = Value(_name(n), tuple(shape), dtype)
    inputs = tuple(values)
    first_weight = len(inputs) - int(description["weights"])
    nodes = []
    for operator, used, made, attributes in description["nodes"]:
        if operator not in operators():
            raise ValueError(f"there is no operator {operator}")
        given = tuple(None if n is None else _name(n) for n in used)
        node = Node(operator, given, tuple(map(_name, made)), {k: attribute_of(v) for k, v in attributes.items()})
        values.update((value.name, value) for value in results_of(node, values))
        nodes.append(node)
    outputs = tuple(map(_name, description["outputs"]))
    # A constant's elements do not matter here: one stands for all.
    constants = {
        name: np.broadcast_to(np.zeros((), DTYPES[values[name].dtype].numpy_dtype), values[name].shape)
        for name in inputs[first_weight:]
    }
    graph = Graph(inputs[:first_weight], outputs, tuple(nodes), values, constants)
    return graph, Group(tuple(nodes), inputs, outputs)


def _name(number: object) -> str:
    if not isinstance(number, int):
        raise TypeError(f"a value has a number, not {number!r}")
    return f"v{number}"


def attribute_data(value: Attribute) -> Any:
    """An attribute as JSON without infinities."""
    if isinstance(value, tuple):
        return [attribute_data(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    return value


def attribute_of(data: Any) -> Attribute:
    """What `attribute_data` was made of. Raises TypeError, ValueError or KeyError for other data."""
    if isinstance(data, list):
        return tuple(attribute_of(part) for part in data)
    if isinstance(data, dict):
        return float(data["number"])
    if data is None or isinstance(data, bool | int | float | str):
        return data
    raise TypeError(f"{data!r} is no attribute")
