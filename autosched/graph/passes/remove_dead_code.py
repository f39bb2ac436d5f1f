"""Dead code elimination."""

from __future__ import annotations

from autosched.graph.graph import Graph
from autosched.graph.passes.rewrite import without_dead


def remove_dead_code(graph: Graph) -> Graph:
    """Remove nodes, values and constants that no output depends on. Inputs stay."""
    return without_dead(graph)
