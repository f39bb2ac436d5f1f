"""What users call a network, as a graph: an ONNX file, a saved network, a torch module, or a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autosched.errors import UsageError
from autosched.graph.graph import Graph
from autosched.network.archive import SUFFIX, load_archive
from autosched.network.tasks import DRAFTED, Choices


def load_network(
    model: object, example_inputs: Sequence[object] | None, sizes: Mapping[str, int], winograd: bool = False
) -> tuple[Graph, Choices]:
    """The graph of anything that is a network, and what was saved with it of its kernels. `winograd` accepts
    the larger error of such convolutions, which a saved network may do already."""
    if isinstance(model, (str, Path)) and Path(model).suffix.lower() == SUFFIX:
        graph, choices = load_archive(Path(model))
    else:
        graph, choices = load_graph(model, example_inputs, sizes), DRAFTED
    return replace(graph, winograd=winograd or graph.winograd), choices


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


def named(networks: Sequence[object] | Mapping[str, object]) -> dict[str, object]:
    """Networks by their names: those that are given, else a file's, a graph's or a module's; of several that are called
    the same, the later ones with a number. Raises UsageError for none."""
    if not networks:
        raise UsageError("there is no network to tune in an empty list: give at least one")
    if isinstance(networks, Mapping):
        return dict(networks)
    found: dict[str, object] = {}
    for network in networks:
        name = name_of(network)
        alike = sum(known == name or known.rpartition("-")[0] == name for known in found)
        found[f"{name}-{alike + 1}" if alike else name] = network
    return found


def name_of(network: object) -> str:
    """What a network is called by whoever has no name for it."""
    if isinstance(network, (str, Path)):
        return Path(network).stem
    graph = getattr(network, "original", network)
    return graph.name if isinstance(graph, Graph) else type(network).__name__
