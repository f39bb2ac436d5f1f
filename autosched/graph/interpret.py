"""The reference of a network: node by node, in float64, without any pass, fusion or generated code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph, Node
from autosched.graph.operators import build
from autosched.ir.dtype import DTYPES
from autosched.te import ComputeDAG, placeholder
from autosched.te.reference.evaluate import evaluate


def interpret(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of `graph` for `inputs`, by name. Floats are evaluated in float64 within an operator, and rounded to
    the type of their value between operators."""
    found = dict(each_value(graph, inputs))
    return {name: found[name] for name in graph.outputs}


def each_value(graph: Graph, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """(name, array) of every value in the order in which they are made; inputs and constants first."""
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        value, array = graph.values[name], np.asarray(inputs[name])
        if (array.shape, array.dtype) != (value.shape, DTYPES[value.dtype].numpy_dtype):
            raise GraphError(f"the input {value} is given as {array.dtype}{list(array.shape)}")
        values[name] = array
    yield from values.items()
    for node in graph.nodes:
        for name, array in zip(node.outputs, evaluate_node(node, graph, values), strict=True):
            values[name] = array
            yield name, array


def evaluate_node(node: Node, graph: Graph, values: Mapping[str, Array]) -> tuple[Array, ...]:
    """The results of one node for arrays of what it reads."""
    labels = {name: f"x{n}" for n, name in enumerate(node.used)}
    tensors = {n: placeholder(graph.values[n].shape, graph.values[n].dtype, labels[n]) for n in node.used}
    made = build(node, [None if name is None else tensors[name] for name in node.inputs])
    dag = ComputeDAG(made)
    given = {labels[n]: values[n] for n in node.used}
    results = evaluate(dag, {t.name: given[t.name] for t in dag.inputs})
    types = [DTYPES[graph.values[name].dtype].numpy_dtype for name in node.outputs]
    return tuple(r.value.astype(dtype) for r, dtype in zip(results, types, strict=True))
