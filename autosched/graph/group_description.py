"""Description of a group as data: everything that its kernel computes, without the names of values in the network.

    {"inputs": [[shape, dtype], ...], "weights": n, "nodes": [[operator, inputs, outputs, attributes], ...],
     "outputs": [...]}

Values are numbered: inputs first, of which the last `weights` are constants that kernels may pack, then results in the
order of the nodes; an optional input that is left out is null. Equal groups have equal descriptions. A description
identifies a task, is sent to the processes that compile kernels, and is stored in records. It is JSON; infinities are
{"number": "inf"}.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any, cast

import numpy as np

from autosched.errors import GraphError
from autosched.graph.fusion.node_properties import weights_of
from autosched.graph.fusion.partition import dag_of
from autosched.graph.graph import Attribute, Graph, Node, Value
from autosched.graph.operators import operators, results_of
from autosched.graph.steps import Group
from autosched.ir.dtype import DTYPES
from autosched.ir.size import SymbolicSize, value_of
from autosched.te import ComputeDAG


def describe(graph: Graph, group: Group, has_weights: bool = True) -> dict[str, Any]:
    """Return the description of `group`. `has_weights`: whether the target packs constants; else they are inputs."""
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


def has_winograd_stage(graph: Graph, group: Group) -> bool:
    """Whether a reduction of the group is a convolution that Winograd's transforms compute."""
    from autosched.te.rewrites.winograd import match_stage

    return any(match_stage(op) is not None for op in dag_of(graph, group).stages)


def flops_of(graph: Graph, group: Group) -> int:
    """Return the floating-point operations of a group; those of equal groups are counted once."""
    return _flops(json.dumps(describe(graph, group), default=value_of))


@lru_cache(maxsize=4096)
def _flops(description: str) -> int:
    return described_dag(json.loads(description)).flops


def described_dag(description: object) -> ComputeDAG:
    """Return the stages of a described group. Raises GraphError for an invalid description."""
    try:
        graph, group = _read(description)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise GraphError(f"the description of a network's kernel cannot be understood: {error}") from error
    return dag_of(graph, group)


def _read(description: Any) -> tuple[Graph, Group]:
    values: dict[str, Value] = {}
    for n, (shape, dtype) in enumerate(description["inputs"]):
        if dtype not in DTYPES or not all(map(_is_extent, shape)):
            raise ValueError(f"an input of {dtype}{shape}")
        values[_name(n)] = Value(_name(n), tuple(shape), dtype)
    inputs = tuple(values)
    first_weight = len(inputs) - int(description["weights"])
    nodes = []
    for operator, used, results, attributes in description["nodes"]:
        if operator not in operators():
            raise ValueError(f"there is no operator {operator}")
        operands = tuple(None if n is None else _name(n) for n in used)
        node = Node(operator, operands, tuple(map(_name, results)), {k: attribute_of(v) for k, v in attributes.items()})
        values.update((value.name, value) for value in results_of(node, values))
        nodes.append(node)
    outputs = tuple(map(_name, description["outputs"]))
    # The stages do not depend on the elements of constants, so zeros that share memory are enough.
    constants = {
        name: np.broadcast_to(np.zeros((), DTYPES[values[name].dtype].numpy_dtype), values[name].shape)
        for name in inputs[first_weight:]
    }
    graph = Graph(inputs[:first_weight], outputs, tuple(nodes), values, constants)
    return graph, Group(tuple(nodes), inputs, outputs)


def _is_extent(size: Any) -> bool:
    is_number: bool = isinstance(size, int | SymbolicSize)
    return is_number and bool(size >= 1)


def _name(number: object) -> str:
    if not isinstance(number, int):
        raise TypeError(f"a value has a number, not {number!r}")
    return f"v{number}"


def attribute_data(value: Attribute) -> Any:
    """Return an attribute as JSON data without infinities."""
    if isinstance(value, tuple):
        return [attribute_data(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    return value


def attribute_of(data: Any) -> Attribute:
    """Return the attribute of the result of `attribute_data`. Raises TypeError, ValueError or KeyError."""
    if isinstance(data, SymbolicSize):
        return cast(int, data)
    if isinstance(data, list):
        return tuple(attribute_of(part) for part in data)
    if isinstance(data, dict):
        return float(data["number"])
    if data is None or isinstance(data, bool | int | float | str):
        return data
    raise TypeError(f"{data!r} is no attribute")
