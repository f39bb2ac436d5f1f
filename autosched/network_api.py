"""Public functions for networks: loading, and the verbs of `autosched.api` on models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from autosched.backends import BACKENDS, forms
from autosched.errors import RefusedNodes, UnknownSizes, UsageError
from autosched.executor.compile_options import DEFAULTS, NOW, CompileKeywords, CompileOptions
from autosched.keywords import spelled_out

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from autosched.executor.model import Model
    from autosched.executor.model_cache.request import LoadRequest
    from autosched.graph.graph import Array, Graph
    from autosched.graph.load_progress import LoadCallback
    from autosched.kernel.device import Device
    from autosched.network_tuning.results import Effort, NetworkCallback, NetworkResult, NetworksResult
    from autosched.planning.execution_plan import NetworkProgram
    from autosched.planning.extract_tasks import Choices
    from autosched.verification.verify import Verification

MEMORY, PASSES = "memory", "passes"  # forms of `show_network` beside those of `inspection.render.TEXTS` and code
NODES_EACH = 4  # of the nodes of a network there are about so many for each kernel that is built


@spelled_out(CompileOptions)
def load(
    model: str | Path | Graph,
    example_inputs: Sequence[object] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    progress: bool | LoadCallback | None = None,
    options: CompileOptions | None = None,
    **keywords: Unpack[CompileKeywords],
) -> Model:
    """Load a network and compile it as one program, without measurements.

    Args:
        model: an ONNX file, a saved model *.asc, a torch module, a program of torch.export (an ExportedProgram or a
            file *.pt2), a language model *.gguf, or a graph.
        example_inputs: tensors with which a torch module is exported.
        sizes: sizes of symbolic dimensions of an ONNX file by name, {"batch": 1}; those without one vary.
            Of a GGUF file the `tokens` of a call, 1 by default, and the `context` that its caches have room for.
        inputs: values of inputs that never change, {"sr": 16000}. They become constants, and calls do not take them.
        progress: True shows a line on stderr; a function is called with each `LoadEvent` (`graph.load_progress`). The
            logger "autosched" has the events, too.
        options: a `CompileOptions`; `keywords`: fields of it, which override those of `options`.

    Returns a `Model`, a function of arrays; for an ONNX file with dimensions that vary a `VaryingModel`, as
    `load_dynamic` does with more options. Its kernels have the schedules that were saved with the network, else those
    of the best records in the database that this installation has verified, else the best by the analytic model: with
    `specialise` "background", the default, some of them only after a while.

    ONNX nodes without a rule run by onnxruntime if it is installed, else by onnx's reference evaluator, which a
    FallbackWarning names, unless `strict` refuses them.

    Raises GraphError for an unsupported network, with all unknown operators, UsageError and DeviceError. Warns
    (RecordWarning) of records that do not fit any more.
    """
    chosen = replace(options or CompileOptions(), **keywords)
    try:
        return load_fixed(model, example_inputs, sizes, inputs, progress, chosen)
    except UnknownSizes:
        from autosched.executor.load_dynamic import load_dynamic

        return load_dynamic(model, sizes=sizes, inputs=inputs, options=chosen)


def load_fixed(
    model: str | Path | Graph,
    example_inputs: Sequence[object] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    progress: bool | LoadCallback | None = None,
    options: CompileOptions = DEFAULTS,
) -> Model:
    """Load a network as `load` does. Raises UnknownSizes for symbolic dimensions without a size."""
    from autosched.executor.load import load_network, loading
    from autosched.executor.model_cache.load import load_cached
    from autosched.executor.model_cache.request import load_request

    with loading(model, progress):
        request = load_request(model, sizes, inputs, options)
        if request is not None and (cached := load_cached(request)) is not None:
            return cached
        read = partial(load_network, model, example_inputs, sizes, inputs, options.winograd)
        return _compile(read, options, request)


def _compile(
    read: Callable[[], tuple[Graph, Choices]], options: CompileOptions, request: LoadRequest | None = None
) -> Model:
    """Compile the network that `read` returns. With a `request` its entry in the model cache is written, unless there
    are warnings, which a later load has to repeat."""
    from autosched.executor.compile_graph import compile_network
    from autosched.executor.model_cache.entry import keep_linked
    from autosched.kernel.pool import start_processes
    from autosched.kernel.trust import collect_warnings
    from autosched.target import parse_target

    def keep(compiled: Model, is_final: bool) -> None:
        if request is not None and not warnings:
            keep_linked(request, compiled, is_final)

    with collect_warnings() as warnings:
        try:
            graph, choices = read()
        except RefusedNodes as error:
            from autosched.executor.partitioned_model import compile_parts

            return compile_parts(error, options)
        if request is not None:  # a network that was not loaded before
            start_processes(parse_target(options.target), len(graph.nodes) // NODES_EACH)
        return compile_network(graph, options, choices, keep)


def is_network(value: object) -> bool:
    """Return whether the value is a network, or the name of a file that may be one."""
    from autosched.executor.load import is_program
    from autosched.executor.model import Model
    from autosched.graph.graph import Graph

    return isinstance(value, (str, Path, Graph, Model)) or hasattr(value, "forward") or is_program(value)


def loaded(network: Any, **options: Any) -> Model:
    """Return a model, or any other network loaded with `options`, with a schedule of its own for each kernel.

    But for the one in progress, no kernels are compiled beside it any more, which would disturb what is timed.
    """
    from autosched.executor.hot_swap import HotSwapModel
    from autosched.executor.load import load_network, loading
    from autosched.executor.model import Model
    from autosched.executor.specialise import with_own_schedules

    if isinstance(network, HotSwapModel):
        return with_own_schedules(network)
    if isinstance(network, Model):
        return network
    arguments = {name: options.pop(name, None) for name in ("example_inputs", "sizes", "inputs")}
    chosen = CompileOptions(specialise=NOW, **options)
    with loading(network, None):
        return _compile(partial(load_network, network, winograd=chosen.winograd, **arguments), chosen)


def verify_model(
    model: Model,
    inputs: Mapping[str, object] | Sequence[object] | None = None,
    *,
    locate: bool = False,
    onnxruntime: Path | None = None,
    fixed: Mapping[str, npt.ArrayLike] | None = None,
) -> Verification:
    """Verify a network against the reference, see `verification.verify`.

    `onnxruntime`: its ONNX file, whose results by onnxruntime are compared too. `fixed`: values of the inputs that were
    fixed when it was loaded.
    """
    from autosched.verification.onnx_runtime import run_onnxruntime
    from autosched.verification.sample_inputs import input_sets
    from autosched.verification.verify import join, verify_network, with_bodies

    if model.compiled_parts != (model,):
        if inputs is not None or onnxruntime is not None:
            raise UsageError("a network in parts is verified part by part, on drawn inputs: leave out inputs")
        return join([verify_model(part, locate=locate) for part in model.compiled_parts])
    sets = input_sets(model.original, None if inputs is None else _by_name(model, inputs))
    onnxruntime_outputs = None
    if onnxruntime is not None:
        onnxruntime_outputs = {
            input_set.kind: run_onnxruntime(onnxruntime, input_set.arrays, fixed or {}) for input_set in sets
        }
    whole = verify_network(model, sets, locate, onnxruntime_outputs)
    return with_bodies(whole, [verify_model(body, locate=locate) for body in model.bodies])


def _by_name(model: Model, inputs: Mapping[str, object] | Sequence[object]) -> dict[str, Array]:
    """Return the arrays by the names of the network's inputs. Raises UsageError for arrays that do not fit."""
    from autosched.runtime.spec import in_order
    from autosched.runtime.tensors import as_input

    names = [spec.name for spec in model.inputs]
    if isinstance(inputs, Mapping):
        arrays = in_order(names, (), {str(name): array for name, array in inputs.items()})
    elif isinstance(inputs, Sequence):
        arrays = in_order(names, tuple(inputs), {})
    else:
        raise UsageError(f"inputs are arrays in order, or by name, got {type(inputs).__name__}")
    return {spec.name: as_input(spec, array) for spec, array in zip(model.inputs, arrays, strict=True)}


def tune_models(
    networks: Any, load: Callable[[Any], Model], effort: Effort, db: Path | str | None,
    callbacks: Sequence[NetworkCallback],
) -> NetworkResult | NetworksResult:  # fmt: skip
    """Load and tune a network, or the networks of a list or a mapping of names. The compiled parts of one that another
    engine runs parts of are networks of their own. Raises what `tune_networks` raises."""
    from autosched.executor.load import networks_by_name
    from autosched.network_tuning.tune import tune_networks

    has_many = isinstance(networks, (list, Mapping))
    by_name = networks_by_name(networks if has_many else [networks])
    result = tune_networks(lambda: _parts_by_name(by_name, load), effort, db, callbacks)
    return result if has_many or len(result.networks) > 1 else result.networks[0]


def _parts_by_name(by_name: Mapping[str, Any], load: Callable[[Any], Model]) -> dict[str, Model]:
    """Return the compiled parts of networks, with numbers after the names of networks that have several."""
    models: dict[str, Model] = {}
    for name, network in by_name.items():
        parts = load(network).compiled_parts
        if not parts:
            raise UsageError(f"no part of {name} is compiled: there is nothing to tune")
        models |= {name if len(parts) == 1 else f"{name}.{n}": part for n, part in enumerate(parts, 1)}
    return models


def show_network(
    network: Any,
    as_: str = "graph",
    *,
    example_inputs: Sequence[object] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    target: str | None = "cpu",
    threads: int | None = None,
) -> str:
    """Return a network, loaded or not, as text: one of `inspection.render.TEXTS`, its `passes`, its `memory`, or the
    code of its kernels. The device of `target` may be absent."""
    from autosched.executor.compile_graph import plan_network
    from autosched.executor.load import load_network
    from autosched.executor.model import Model
    from autosched.inspection.render import TEXTS, PlannedGraph
    from autosched.kernel.device import find_device
    from autosched.planning.extract_tasks import BY_MODEL

    program_text = program_texts().get(as_)
    if as_ not in (*TEXTS, PASSES) and program_text is None:
        raise UsageError(f"a network is shown as {', '.join((*TEXTS, PASSES, *program_texts()))}, got {as_!r}")
    if isinstance(network, Model):
        if as_ in TEXTS:
            program = network.program
            return TEXTS[as_](PlannedGraph(program.graph, program.steps, program.fusion_choices))
        graph, device, choices = network.original, network.device, BY_MODEL
    else:
        graph, choices = load_network(network, example_inputs, sizes, inputs)
        device = find_device(target, threads, runs=False)
    if as_ == PASSES:
        return _passes_text(graph, device)
    if program_text is None:
        return show_graph(graph, as_, device)
    if (kind := forms().get(as_)) not in (None, device.target.kind):
        raise UsageError(f"a network for {device.target.kind} has no code as {as_}: give --target {kind}")
    if isinstance(network, Model):
        return program_text(network.program)
    return program_text(plan_network(graph, CompileOptions(target, threads), choices))


def show_graph(graph: Graph, as_: str, device: Device) -> str:
    """Return a network as text, one of TEXTS: its partition into kernels for `device`, none of which is built."""
    from autosched.inspection.render import TEXTS, PlannedGraph
    from autosched.planning.device_passes import prepare_graph
    from autosched.planning.execution_plan import steps_of

    optimised = prepare_graph(graph, device)
    return TEXTS[as_](PlannedGraph(optimised, steps_of(optimised, device)))


def program_texts() -> Mapping[str, Callable[[NetworkProgram], str]]:
    """Return the functions for texts of an execution plan: its arena, and the code of its kernels."""
    from autosched.inspection.render import memory_text
    from autosched.network_tuning.estimate import code_text

    return {MEMORY: memory_text, **{backend.forms[0]: code_text for backend in BACKENDS.values()}}


def _passes_text(graph: Graph, device: Device) -> str:
    """Return the graph after each pass, and only the names of passes that change nothing."""
    from autosched.passes import report
    from autosched.planning.device_passes import prepare_graph

    texts: list[str] = []
    prepare_graph(graph, device, report(texts, str))
    return "\n".join(texts)
