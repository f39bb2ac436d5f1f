"""The reference of a network: node by node, without any pass, fusion or generated code.

`rounded` has float64 within an operator and the type of each value between operators, `exact` float64 throughout.
`plain` computes in the values' own types, as any program does that knows nothing better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph, Node
from autosched.graph.operators import build, own_result
from autosched.ir.dtype import DTYPES
from autosched.te import ComputeDAG, placeholder
from autosched.te.reference.evaluate import evaluate_exactly
from autosched.te.reference.plain import evaluate_plainly

Arithmetic: TypeAlias = Callable[[ComputeDAG, Mapping[str, Array]], tuple[Array, ...]]


def exact(dag: ComputeDAG, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """In float64, which nothing rounds; integers in their own types."""
    return evaluate_exactly(dag, inputs)


def rounded(dag: ComputeDAG, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """In float64, the results rounded to their types."""
    types = [DTYPES[t.dtype].numpy_dtype for t in dag.outputs]
    return tuple(value.astype(dtype) for value, dtype in zip(exact(dag, inputs), types, strict=True))


plain: Arithmetic = evaluate_plainly


def interpret(graph: Graph, inputs: Mapping[str, Array], arithmetic: Arithmetic = rounded) -> dict[str, Array]:
    """The outputs of `graph` for `inputs`, by name; with `exact` floats are float64."""
    kept = set(graph.outputs)
    found = {name: array for name, array in each_value(graph, inputs, arithmetic) if name in kept}
    return {name: found[name] for name in graph.outputs}


def each_value(
    graph: Graph, inputs: Mapping[str, Array], arithmetic: Arithmetic = rounded
) -> Iterator[tuple[str, Array]]:
    """(name, array) of every value in the order in which they are made; inputs and constants first. What no node reads
    any more is not held."""
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        value, array = graph.values[name], np.asarray(inputs[name])
        if (array.shape, array.dtype) != (value.shape, DTYPES[value.dtype].numpy_dtype):
            raise GraphError(f"the input {value} is given as {array.dtype}{list(array.shape)}")
        values[name] = array
    yield from list(values.items())
    last = {name: n for n, node in enumerate(graph.nodes) for name in node.used}
    for n, node in enumerate(graph.nodes):
        for name, array in zip(node.outputs, evaluate_node(node, graph, values, arithmetic), strict=True):
            values[name] = array
            yield name, array
        for name in (*node.used, *node.outputs):
            if last.get(name, n) <= n:
                values.pop(name, None)


def evaluate_node(
    node: Node, graph: Graph, values: Mapping[str, Array], arithmetic: Arithmetic = rounded
) -> tuple[Array, ...]:
    """The results of one node for arrays of what it reads."""
    labels = {name: f"x{n}" for n, name in enumerate(node.used)}
    tensors = {n: placeholder(graph.values[n].shape, graph.values[n].dtype, labels[n]) for n in node.used}
    made = build(node, [None if name is None else tensors[name] for name in node.inputs])
    dag = ComputeDAG([own_result(t) for t in made])
    given = {labels[n]: values[n] for n in node.used}
    return arithmetic(dag, {t.name: given[t.name] for t in dag.inputs})
