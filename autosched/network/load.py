"""What users call a network, as a graph: an ONNX file, a saved network, a torch module, or a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autosched.errors import UsageError
from autosched.graph.graph import Graph
from autosched.network.archive import SUFFIX, load_archive
from autosched.network.tasks import Choose


def load_network(
    model: object, example_inputs: Sequence[object] | None, sizes: Mapping[str, int]
) -> tuple[Graph, Choose | None]:
    """The graph of anything that is a network, and what says which schedules were saved with it."""
    if isinstance(model, (str, Path)) and Path(model).suffix.lower() == SUFFIX:
        return load_archive(Path(model))
    return load_graph(model, example_inputs, sizes), None


def load_graph(model: object, example_inputs: Sequence[object] | None, sizes: Mapping[str, int]) -> Graph:
    """The graph of an ONNX file, a torch module or a graph as it is. Raises UsageError for anything else."""
    if isinstance(model, Graph):
        return model
    if isinstance(model, (str, Path)):
        from autosched.graph.onnx import load_onnx

        return load_onnx(model, sizes)
    if example_inputs is None or not hasattr(model, "forward"):
        raise UsageError(
            "a network is a path of an ONNX file, a torch module with example_inputs, or a Graph; "
            f"got {type(model).__name__}"
        )
    from autosched.graph.torch.load import load_torch

    found: Graph = load_torch(model, example_inputs)
    return found
