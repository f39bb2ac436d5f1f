"""Whether a graph is one: after importing, and in tests after each pass."""

from __future__ import annotations

from autosched.errors import GraphError
from autosched.graph.graph import Graph
from autosched.graph.index_checks import check_constants
from autosched.graph.operators import results_of


def verify(graph: Graph) -> None:
    """Raises GraphError where the graph is not one: a value that nothing makes, or makes twice, or that is read before;
    a constant or a result of another shape or type than its value has; an operator that there is not; a constant index
    that is out of range."""
    known = {*graph.inputs, *graph.constants}
    if len(set(graph.inputs)) != len(graph.inputs):
        raise GraphError(f"the graph {graph.name} has an input twice: {', '.join(graph.inputs)}")
    for name, array in graph.constants.items():
        value = graph.values.get(name)
        if value is None or (array.shape, array.dtype.name) != (value.shape, value.dtype):
            raise GraphError(f"the constant {name} is {array.dtype.name}{list(array.shape)}, but its value is {value}")
    for node in graph.nodes:
        missing = [name for name in node.used if name not in known]
        if missing:
            raise GraphError(f"{node} reads {missing[0]}, which nothing before it makes")
        twice = [name for name in node.outputs if name in known]
        if twice:
            raise GraphError(f"{node} makes {twice[0]}, which is there already")
        made = results_of(node, graph.values)
        for name, value in zip(node.outputs, made, strict=True):
            if graph.values.get(name) != value:
                raise GraphError(f"{node} makes {value}, but the graph says {graph.values.get(name)}")
        known.update(node.outputs)
    lost = [name for name in graph.outputs if name not in known]
    if lost:
        raise GraphError(f"the output {lost[0]} of the graph {graph.name} is made by nothing")
    check_constants(graph)
