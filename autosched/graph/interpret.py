"""Reference interpreter of networks: node by node, without passes, fusion or generated code.

The arithmetic `rounded` computes each operator in float64 and rounds its results to their types, `exact` computes in
float64 throughout, `plain` in the types of the values, as straightforward programs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph, Node
from autosched.graph.loops import run_loop
from autosched.graph.operators import build, own_result
from autosched.ir.dtype import DTYPES
from autosched.te import ComputeDAG, placeholder

Arithmetic: TypeAlias = Callable[[ComputeDAG, Mapping[str, Array]], tuple[Array, ...]]


def exact(dag: ComputeDAG, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """Evaluate in float64 without rounding to smaller types; integers in their own types."""
    from autosched.te.reference.evaluate import evaluate_exactly

    return evaluate_exactly(dag, inputs)


def rounded(dag: ComputeDAG, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """Evaluate in float64 and round the results to their types."""
    types = [DTYPES[t.dtype].numpy_dtype for t in dag.outputs]
    return tuple(value.astype(dtype) for value, dtype in zip(exact(dag, inputs), types, strict=True))


def plain(dag: ComputeDAG, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """Evaluate in the types of the values."""
    from autosched.te.reference.plain import evaluate_plainly

    return evaluate_plainly(dag, inputs)


def interpret(graph: Graph, inputs: Mapping[str, Array], arithmetic: Arithmetic = rounded) -> dict[str, Array]:
    """Return the outputs of `graph` for `inputs`, by name; with `exact` floats are float64."""
    outputs = set(graph.outputs)
    arrays = {name: array for name, array in each_value(graph, inputs, arithmetic) if name in outputs}
    return {name: arrays[name] for name in graph.outputs}


def each_value(
    graph: Graph, inputs: Mapping[str, Array], arithmetic: Arithmetic = rounded
) -> Iterator[tuple[str, Array]]:
    """Yield (name, array) of every value in the order of computation, inputs and constants first.

    Dead values are not kept in memory. Raises GraphError for an input of another shape or type.
    """
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
    """Return the results of one node, given the arrays of its operands."""
    if (body := node.body) is not None:
        return run_loop(node, values, lambda given: _run_body(body, given, arithmetic))
    labels = {name: f"x{n}" for n, name in enumerate(node.used)}
    tensors = {n: placeholder(graph.values[n].shape, graph.values[n].dtype, labels[n]) for n in node.used}
    results = build(node, [None if name is None else tensors[name] for name in node.inputs])
    dag = ComputeDAG([own_result(t) for t in results])
    arrays = {labels[n]: values[n] for n in node.used}
    return arithmetic(dag, {t.name: arrays[t.name] for t in dag.inputs})


def _run_body(body: Graph, given: Mapping[str, Array], arithmetic: Arithmetic) -> list[Array]:
    """Return the outputs of the body of a loop for its inputs, whose types may be wider than those of its values."""
    values = dict(given)
    for node in body.nodes:
        values.update(zip(node.outputs, evaluate_node(node, body, values, arithmetic), strict=True))
    return [values[name] for name in body.outputs]
