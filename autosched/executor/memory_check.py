"""Memory check of a network, before its kernels are built and again before its weights are packed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autosched.errors import UsageError
from autosched.graph.graph import Graph
from autosched.ir.dtype import DTYPES
from autosched.ir.size import value_of
from autosched.tuner.memory_check import free_memory, size_text


def check_memory(graph: Graph, weights_bytes: int = 0, arena_bytes: int = 0) -> None:
    """Check that the free memory holds inputs, outputs, weights and arena. Raises UsageError with the sizes."""
    inputs, outputs = _bytes(graph, graph.inputs), _bytes(graph, graph.outputs)
    needed, free = inputs + outputs + weights_bytes + arena_bytes, free_memory()
    if needed > free:
        summands = {"inputs": inputs, "outputs": outputs, "weights": weights_bytes, "values in between": arena_bytes}
        sizes = ", ".join(f"{name} {size_text(n)}" for name, n in summands.items() if n)
        raise UsageError(
            f"the network {graph.name} needs {size_text(needed)} of memory ({sizes}), but {size_text(free)} are free: "
            "use smaller sizes"
        )


def _bytes(graph: Graph, names: Iterable[str]) -> int:
    values = (graph.values[name] for name in names)
    return sum(value_of(math.prod(value.shape)) * DTYPES[value.dtype].nbytes for value in values)
