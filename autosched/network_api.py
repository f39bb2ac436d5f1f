"""What users do with a network that is loaded: the verbs of `autosched.api` for models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from autosched.backends import BACKENDS, forms
from autosched.errors import UsageError
from autosched.executor.load import load_network, named
from autosched.executor.lookup import plan_with_records
from autosched.executor.model import Model
from autosched.graph.graph import Array, Graph
from autosched.inspection.render import MEMORY, TEXTS, Steps, memory_text
from autosched.kernel.device import Device, find_device
from autosched.network_tuning.estimate import code_text
from autosched.network_tuning.results import Effort, NetworkCallback, NetworkResult, NetworksResult
from autosched.network_tuning.tune import tune_networks
from autosched.passes import report
from autosched.plan.device_passes import prepared
from autosched.plan.execution_plan import NetworkProgram, steps_of
from autosched.plan.extract_tasks import DRAFTED
from autosched.runtime.spec import in_order
from autosched.runtime.tensors import as_input
from autosched.verification.onnx_runtime import run_onnxruntime
from autosched.verification.sample_inputs import input_sets
from autosched.verification.verify import Verification, verify_network


def verify_model(
    model: Model,
    inputs: Mapping[str, object] | Sequence[object] | None = None,
    *,
    locate: bool = False,
    onnxruntime: Path | None = None,
    fixed: Mapping[str, npt.ArrayLike] | None = None,
) -> Verification:
    """A network against the reference, see `network.check`. `onnxruntime`: the ONNX file that it is, whose results
    by that package are compared, too; it is given what the inputs were `fixed` to."""
    sets = input_sets(model.original, None if inputs is None else _by_name(model, inputs))
    foreign = None
    if onnxruntime is not None:
        foreign = {given.kind: run_onnxruntime(onnxruntime, given.arrays, fixed or {}) for given in sets}
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


def tune_models(
    networks: Any, load: Callable[[Any], Model], effort: Effort, db: Path | str | None,
    callbacks: Sequence[NetworkCallback],
) -> NetworkResult | NetworksResult:  # fmt: skip
    """Tunes a network, or several in a list or by names, of which `load` makes models. Raises as `tune_networks`."""
    several = isinstance(networks, (list, Mapping))
    given = named(networks if several else [networks])
    found = tune_networks(lambda: {name: load(network) for name, network in given.items()}, effort, db, callbacks)
    return found if several else found.networks[0]


def show_network(
    what: Any,
    as_: str = "graph",
    *,
    example_inputs: Sequence[object] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    target: str | None = "cpu",
    threads: int | None = None,
) -> str:
    """A network, loaded or not, as text: one of TEXTS or PROGRAM_TEXTS. `target` may be a device that is elsewhere."""
    program_text = PROGRAM_TEXTS.get(as_)
    if as_ not in (*TEXTS, PASSES) and program_text is None:
        raise UsageError(f"a network is shown as {', '.join((*TEXTS, PASSES, *PROGRAM_TEXTS))}, got {as_!r}")
    if isinstance(what, Model):
        if as_ in TEXTS:
            program = what.program
            return TEXTS[as_](Steps(program.graph, program.steps, program.alternatives))
        graph, device, choices = what.original, what.device, DRAFTED
    else:
        graph, choices = load_network(what, example_inputs, sizes, inputs)
        device = find_device(target, threads, runs=False)
    if as_ == PASSES:
        return _passes_text(graph, device)
    if program_text is None:
        return show_graph(graph, as_, device)
    if (kind := forms().get(as_)) not in (None, device.target.kind):
        raise UsageError(f"a network for {device.target.kind} has no code as {as_}: give --target {kind}")
    program = what.program if isinstance(what, Model) else plan_with_records(graph, target, threads, choices)
    return program_text(program)


def show_graph(graph: Graph, form: str, device: Device) -> str:
    """A network as text, as it is cut into kernels for `device`, without one being built: one of TEXTS."""
    found = prepared(graph, device)
    return TEXTS[form](Steps(found, steps_of(found, device)))


def _passes_text(graph: Graph, device: Device) -> str:
    """The graph as each pass leaves it, and the names of passes that change nothing."""
    parts: list[str] = []
    prepared(graph, device, report(parts, str))
    return "\n".join(parts)


PASSES = "passes"
# What is shown of a program: the plan of its arena, and the code of its kernels.
PROGRAM_TEXTS: Mapping[str, Callable[[NetworkProgram], str]] = {
    MEMORY: memory_text,
    **{backend.forms[0]: code_text for backend in BACKENDS.values()},
}
