"""What users call a network, as a graph: an ONNX file, a saved network, a torch module or program, or a graph."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from autosched.errors import UsageError
from autosched.graph.file_formats import ACCEPTED
from autosched.graph.fixed_inputs import fix_inputs
from autosched.graph.graph import Graph
from autosched.graph.load_progress import LoadCallback, report_stage, reported_load
from autosched.planning.archive import SUFFIX, load_archive
from autosched.planning.extract_tasks import BY_MODEL, Choices
from autosched.tuner.memory_check import free_memory, size_text

PROGRAM = ".pt2"
FILES = (".onnx", SUFFIX, PROGRAM)  # suffixes of what is a network by its name


@contextmanager
def loading(model: object, progress: bool | LoadCallback | None) -> Iterator[None]:
    """A load, which is reported as `progress` says. Raises UsageError with the sizes where the memory does not do."""
    with reported_load(name_of(model), progress):
        try:
            yield
        except (MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            reason = f" ({text})" if (text := " ".join(str(error).split())) else ""
            raise UsageError(
                f"this machine has not enough memory to load {name_of(model)}{reason}: it has {_size_text(model)}, and "
                f"{size_text(free_memory())} are free"
            ) from error


def _size_text(model: object) -> str:
    """Bytes of a network's file, or of its constants."""
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
    """Whether it is a torch.export.ExportedProgram; without importing torch for what cannot be one."""
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
    """The graph of anything that is a network, and what was saved with it of its kernels. `sizes` says what symbolic
    dimensions of an ONNX file are, `inputs` has values of inputs that are constants then. `winograd` accepts the larger
    error of such convolutions, which a saved network may do already."""
    report_stage("reading")
    path, choices, fixed = Path(model) if isinstance(model, (str, Path)) else None, BY_MODEL, inputs or {}
    if path is not None and path.suffix.lower() == SUFFIX:
        graph, choices = load_archive(path)
        graph = fix_inputs(graph, fixed)
    elif path is not None and path.suffix.lower() != PROGRAM:
        from autosched.graph.onnx import load_onnx

        graph = load_onnx(path, sizes or {}, fixed)
    else:
        graph = fix_inputs(_graph(model, path, example_inputs), fixed)
    return replace(graph, winograd=winograd or graph.winograd), choices


def _graph(model: Any, path: Path | None, example_inputs: Sequence[object] | None) -> Graph:
    """The graph of a torch module, an exported program or a graph as it is. Raises UsageError for anything else."""
    if isinstance(model, Graph):
        return model
    found: Graph
    if path is not None or is_program(model):
        from autosched.graph.torch.program import load_program, read_program

        program, name = (model, "program") if path is None else (read_program(path), path.stem)
        found = load_program(program, example_inputs, name)
        return found
    if example_inputs is None or not hasattr(model, "forward"):
        raise UsageError(f"{ACCEPTED}; got {type(model).__name__}")
    from autosched.graph.torch.load import load_torch

    found = load_torch(model, example_inputs)
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
