"""Topological order of the nodes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from onnx import AttributeProto, GraphProto, NodeProto

from autosched.errors import GraphError


def in_order(nodes: Iterable[NodeProto], known: Container[str]) -> list[NodeProto]:
    """Return the nodes in topological order, unchanged if they are, as ONNX requires.

    Raises GraphError for a value that no node or several nodes compute, and for a cycle.
    """
    waiting, makers = list(nodes), dict[str, NodeProto]()
    for node in waiting:
        for name in filter(None, node.output):
            if name in makers or name in known:
                raise GraphError(f"the model makes the value {name} twice")
            makers[name] = node
    read = {id(node): list(reads(node)) for node in waiting}
    for node in waiting:
        for name in read[id(node)]:
            if name not in makers and name not in known:
                raise GraphError(f"the node {label(node)} reads {name}, which nothing makes")
    made: set[str] = set()
    ordered: list[NodeProto] = []
    while waiting:
        late = []
        for node in waiting:
            if all(name in made or name not in makers for name in read[id(node)]):
                made.update(node.output)
                ordered.append(node)
            else:
                late.append(node)
        if len(late) == len(waiting):
            raise GraphError(f"the model has a cycle, through the nodes {', '.join(label(n) for n in late[:5])}")
        waiting = late
    return ordered


def label(node: NodeProto) -> str:
    """Return the name of a node, else that of its first result."""
    return node.name or next(filter(None, node.output), "(without name)")


def reads(node: NodeProto) -> Iterator[str]:
    """Yield the values that a node reads, also within its subgraphs."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield from _from_outside(attribute.g)
        for graph in attribute.graphs:
            yield from _from_outside(graph)


def _from_outside(graph: GraphProto) -> Iterator[str]:
    own = {*(i.name for i in graph.input), *(t.name for t in graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in own)
    yield from (o.name for o in graph.output if o.name not in own)
