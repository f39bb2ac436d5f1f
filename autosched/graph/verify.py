"""Graph verifier, which runs after importing, and in tests after each pass."""

from __future__ import annotations

from autosched.errors import GraphError
from autosched.graph.graph import Graph
from autosched.graph.index_checks import check_constants
from autosched.graph.operators import results_of


def verify(graph: Graph) -> None:
    """Check that a graph is well-formed.

    Raises GraphError for a value that is computed twice, never, or after it is read; a constant or a result whose shape
    or type differs from its value's; an unknown operator; a constant index that is out of range.
    """
    defined = {*graph.inputs, *graph.constants}
    if len(set(graph.inputs)) != len(graph.inputs):
        raise GraphError(f"the graph {graph.name} has an input twice: {', '.join(graph.inputs)}")
    for name, array in graph.constants.items():
        value = graph.values.get(name)
        if value is None or (array.shape, array.dtype.name) != (value.shape, value.dtype):
            raise GraphError(f"the constant {name} is {array.dtype.name}{list(array.shape)}, but its value is {value}")
    for node in graph.nodes:
        missing = [name for name in node.used if name not in defined]
        if missing:
            raise GraphError(f"{node} reads {missing[0]}, which nothing before it makes")
        twice = [name for name in node.outputs if name in defined]
        if twice:
            raise GraphError(f"{node} makes {twice[0]}, which is there already")
        if node.body is not None:
            verify(node.body)
        for name, value in zip(node.outputs, results_of(node, graph.values), strict=True):
            if graph.values.get(name) != value:
                raise GraphError(f"{node} makes {value}, but the graph says {graph.values.get(name)}")
        defined.update(node.outputs)
    undefined = [name for name in graph.outputs if name not in defined]
    if undefined:
        raise GraphError(f"the output {undefined[0]} of the graph {graph.name} is made by nothing")
    check_constants(graph)
