"""Loader of networks: an ONNX or GGUF file, a saved network, a torch module or exported program becomes a graph."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from autosched.errors import UsageError
from autosched.graph.file_formats import ACCEPTED, ARCHIVE
from autosched.graph.graph import Graph
from autosched.graph.load_progress import LoadCallback, report_stage, reported_load
from autosched.tuner.gc_pause import pause_gc
from autosched.tuner.memory_check import free_memory, size_text

if TYPE_CHECKING:
    from autosched.planning.extract_tasks import Choices

PROGRAM = ".pt2"
GGUF = ".gguf"
FILES = (".onnx", ARCHIVE, PROGRAM, GGUF)  # suffixes of networks' files


@contextmanager
def loading(model: object, progress: bool | LoadCallback | None) -> Iterator[None]:
    """Report a load by `progress`, and raise UsageError with the sizes if memory runs out."""
    name = network_name(model)
    with reported_load(name, progress), pause_gc():
        try:
            yield
        except (MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            reason = f" ({text})" if (text := " ".join(str(error).split())) else ""
            raise UsageError(
                f"this machine has not enough memory to load {name}{reason}: "
                f"it has {_size_text(model)}, and {size_text(free_memory())} are free"
            ) from error


def _size_text(model: object) -> str:
    """Return a text with the bytes of a network's file or constants."""
    if isinstance(model, (str, Path)):
        path = Path(model)
        return f"{size_text(path.stat().st_size)} in {path}" if path.is_file() else "no file"
    if isinstance(model, Graph):
        return f"{size_text(sum(array.nbytes for array in model.constants.values()))} of constants"
    parameters = getattr(model, "state_dict", dict)
    state = parameters() if callable(parameters) else parameters
    return f"{size_text(sum(getattr(tensor, 'nbytes', 0) for tensor in state.values()))} of parameters"


def is_network_file(model: object) -> bool:
    return isinstance(model, (str, Path)) and Path(model).suffix.lower() in FILES


def is_program(model: object) -> bool:
    """Return whether the model is a torch.export.ExportedProgram; does not import torch."""
    if "torch" not in sys.modules or not hasattr(model, "graph_signature"):
        return False
    from autosched.graph.torch import program

    return bool(program.is_program(model))


def load_network(
    model: object,
    example_inputs: Sequence[object] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    winograd: bool = False,
) -> tuple[Graph, Choices]:
    """Return the graph of a network, and the saved choices of its kernels.

    `sizes`: values of the symbolic dimensions of an ONNX file, or of the `tokens` and `context` of a GGUF file.
    `inputs`: values of inputs that become constants.
    `winograd` accepts the larger error of Winograd convolutions; a saved network may have accepted it before.
    """
    from autosched.graph.fixed_inputs import fix_inputs
    from autosched.planning.archive import load_archive
    from autosched.planning.extract_tasks import BY_MODEL

    report_stage("reading")
    path, choices, fixed = Path(model) if isinstance(model, (str, Path)) else None, BY_MODEL, inputs or {}
    if path is None or path.suffix.lower() == PROGRAM:
        graph = fix_inputs(_graph(model, path, example_inputs), fixed)
    elif path.suffix.lower() == ARCHIVE:
        graph, choices = load_archive(path)
        graph = fix_inputs(graph, fixed)
    elif path.suffix.lower() == GGUF:
        from autosched.graph.gguf import load_gguf

        graph = fix_inputs(load_gguf(path, sizes or {}), fixed)
    else:
        from autosched.graph.onnx import load_onnx

        graph = load_onnx(path, sizes or {}, fixed)
    return replace(graph, winograd=winograd or graph.winograd), choices


def _graph(model: Any, path: Path | None, example_inputs: Sequence[object] | None) -> Graph:
    """Return the graph of a torch module, an exported program or a graph. Raises UsageError for other objects."""
    if isinstance(model, Graph):
        return model
    graph: Graph
    if path is not None or is_program(model):
        from autosched.graph.torch.program import load_program, read_program

        program, name = (model, "program") if path is None else (read_program(path), path.stem)
        graph = load_program(program, example_inputs, name)
        return graph
    if example_inputs is None or not hasattr(model, "forward"):
        raise UsageError(f"{ACCEPTED}; got {type(model).__name__}")
    from autosched.graph.torch.load import load_torch

    graph = load_torch(model, example_inputs)
    return graph


def networks_by_name(networks: Sequence[object] | Mapping[str, object]) -> dict[str, object]:
    """Return the networks by name: the key in a mapping, else the name of file, graph or module, with a number appended
    to repeated names. Raises UsageError for an empty sequence."""
    if not networks:
        raise UsageError("there is no network to tune in an empty list: give at least one")
    if isinstance(networks, Mapping):
        return dict(networks)
    by_name: dict[str, object] = {}
    for network in networks:
        name = network_name(network)
        repeated = sum(other == name or other.rpartition("-")[0] == name for other in by_name)
        by_name[f"{name}-{repeated + 1}" if repeated else name] = network
    return by_name


def network_name(network: object) -> str:
    """Return the default name of a network: that of its file, its graph or its class."""
    if isinstance(network, (str, Path)):
        return Path(network).stem
    graph = getattr(network, "original", network)
    return graph.name if isinstance(graph, Graph) else type(network).__name__
