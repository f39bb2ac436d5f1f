"""What users do with a network that is loaded: the verbs of `autosched.api` for models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autosched.errors import UsageError
from autosched.graph.graph import Array, Graph
from autosched.graph.passes import run_passes
from autosched.network.check import Verification, verify_network
from autosched.network.inputs import input_sets
from autosched.network.model import Model
from autosched.network.onnx_runtime import run_onnxruntime
from autosched.network.pictures import TEXTS, Steps
from autosched.network.program import steps_of, with_own_outputs
from autosched.runtime.spec import in_order
from autosched.runtime.tensors import as_input
from autosched.session.device import Device


def verify_model(
    model: Model,
    inputs: Mapping[str, object] | Sequence[object] | None = None,
    *,
    locate: bool = False,
    onnxruntime: Path | None = None,
) -> Verification:
    """A network against the reference, see `network.check`. `onnxruntime`: the ONNX file that it is, whose results
    by that package are compared, too."""
    sets = input_sets(model.original, None if inputs is None else _by_name(model, inputs))
    foreign = None
    if onnxruntime is not None:
        foreign = {given.kind: run_onnxruntime(onnxruntime, given.arrays) for given in sets}
    return verify_network(model, sets, locate, foreign)


def _by_name(model: Model, inputs: Mapping[str, object] | Sequence[object]) -> dict[str, Array]:
    """Raises UsageError for arrays that the network does not take."""
    names = [spec.name for spec in model.inputs]
    if isinstance(inputs, Mapping):
        given = in_order(names, (), {str(name): array for name, array in inputs.items()})
    elif isinstance(inputs, Sequence):
        given = in_order(names, tuple(inputs), {})
    else:
        raise UsageError(f"inputs are arrays in order, or by name, got {type(inputs).__name__}")
    return {spec.name: as_input(spec, array) for spec, array in zip(model.inputs, given, strict=True)}


def show_graph(graph: Graph, form: str, device: Device) -> str:
    """A network as text, as it is cut into kernels for `device`, without one being built: one of TEXTS."""
    prepared = with_own_outputs(run_passes(graph)[0])
    return TEXTS[form](Steps(prepared, steps_of(prepared, device)))
