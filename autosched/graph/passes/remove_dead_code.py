"""What no output needs."""

from __future__ import annotations

from autosched.graph.graph import Graph
from autosched.graph.passes.rewrite import without_dead


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without nodes, values and constants of which no output is made. Inputs stay."""
    return without_dead(graph)
