"""Traced graphs: graphs whose shapes and attributes have symbols for the varying dimensions (`ir.size`).

A guard says for which sizes what was decided holds. Sizes 0 and 1 are never symbols, as they change what operators do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from autosched.graph.graph import Graph, Node
from autosched.graph.steps import Alias, Group, NetworkStep
from autosched.ir.size import Guards, SymbolicSize, has_size

LEAST = 2  # the smallest size that is a symbol
Number: TypeAlias = Callable[[Any], int]  # of a size or of a number


def symbolic_sizes(guards: Guards, sizes: Mapping[str, int], ranges: Mapping[str, range]) -> dict[str, int]:
    """Return sizes by name: symbols with these present values, and numbers for those that are less than LEAST."""

    def low(name: str, size: int) -> int:
        return max(LEAST, ranges[name].start) if size >= LEAST else size

    def high(name: str, size: int) -> int:
        return ranges[name][-1] if size >= LEAST else size

    given = {name: guards.symbol(name, size, low(name, size), high(name, size)) for name, size in sizes.items()}
    return {name: symbol if sizes[name] >= LEAST else sizes[name] for name, symbol in given.items()}


def with_numbers(data: Any, number: Number) -> Any:
    """Return an attribute or a shape with numbers for sizes."""
    if isinstance(data, SymbolicSize):
        return number(data)
    return tuple([with_numbers(part, number) for part in data]) if isinstance(data, tuple) else data


def numbered_node(node: Node, number: Number) -> Node:
    """Return a node of a traced graph with numbers for sizes."""
    if node.body is not None:
        node = replace(node, body=numbered_graph(node.body, number))
    if not has_size(tuple(node.attributes.values())):
        return node
    return replace(node, attributes={key: with_numbers(value, number) for key, value in node.attributes.items()})


def numbered_step(step: NetworkStep, number: Number) -> NetworkStep:
    """Return a step of a traced graph with numbers for sizes."""
    if isinstance(step, Group):
        return replace(step, nodes=tuple(numbered_node(node, number) for node in step.nodes))
    return replace(step, offset=with_numbers(step.offset, number)) if isinstance(step, Alias) else step


def numbered_graph(graph: Graph, number: Number) -> Graph:
    """Return a traced graph with numbers for sizes."""
    values = {
        name: replace(value, shape=with_numbers(value.shape, number)) if has_size(value.shape) else value
        for name, value in graph.values.items()
    }
    return replace(graph, values=values, nodes=tuple(numbered_node(node, number) for node in graph.nodes))
