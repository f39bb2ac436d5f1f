"""Whether this machine has room for a network: asked before its kernels are built, and again before its weights are."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autosched.errors import UsageError
from autosched.graph.graph import Graph
from autosched.ir.dtype import DTYPES
from autosched.tuner.memory_check import free_memory, size_text


def check_memory(graph: Graph, weights: int = 0, arena: int = 0) -> None:
    """Raises UsageError with the sizes if inputs and outputs, and so many bytes of weights and arena, are too much."""
    inputs, outputs = _bytes(graph, graph.inputs), _bytes(graph, graph.outputs)
    needed, free = inputs + outputs + weights + arena, free_memory()
    if needed > free:
        parts = {"inputs": inputs, "outputs": outputs, "weights": weights, "values in between": arena}
        sizes = ", ".join(f"{what} {size_text(n)}" for what, n in parts.items() if n)
        raise UsageError(
            f"the network {graph.name} needs {size_text(needed)} of memory ({sizes}), but {size_text(free)} are free: "
            "use smaller sizes"
        )


def _bytes(graph: Graph, names: Iterable[str]) -> int:
    return sum(math.prod(v.shape) * DTYPES[v.dtype].nbytes for v in map(graph.values.__getitem__, names))
