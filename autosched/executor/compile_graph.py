"""Compiler driver: a graph becomes a model on a processor, a GPU or a simulated GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from autosched.errors import SplitWarning, UsageError, locating_bugs
from autosched.executor.compile_options import BACKGROUND, DEFAULTS, NOW, CompileOptions
from autosched.executor.memory_check import check_memory
from autosched.executor.model import Model
from autosched.executor.specialise import Keep, has_transferred, specialise
from autosched.graph.graph import Graph
from autosched.graph.load_progress import report_stage
from autosched.graph.mapped_arrays import check_mapped
from autosched.graph.operator_facts import save_facts
from autosched.graph.passes.unroll_loops import unroll_loops
from autosched.graph.verify import verify
from autosched.kernel.device import Device, find_device
from autosched.kernel.lookup import stored_schedules
from autosched.kernel.request import check_winograd
from autosched.kernel.spec import KernelSpec
from autosched.kernel.transfer import NearestSchedules
from autosched.kernel.trust import warn_user
from autosched.passes import DUMP, debug_level
from autosched.planning.device_passes import prepare_graph
from autosched.planning.execution_plan import NetworkProgram, build_program
from autosched.planning.extract_tasks import BY_MODEL, Choices
from autosched.planning.kernel_table import kernel_table
from autosched.runtime.linked_network import LinkedNetwork
from autosched.target import parse_target

if TYPE_CHECKING:
    from autosched.executor.sized_network import SizedNetwork
    from autosched.ir.size import Guards
    from autosched.runtime.gpu.device import GpuDevice

SIMULATED = "cuda"  # kind of the targets that can be simulated


def compile_graph(
    graph: Graph,
    target: str | None = "cpu",
    threads: int | None = None,
    choices: Choices = BY_MODEL,
    simulate: bool = False,
) -> Model:
    """Compile a network with the schedules of `choices`, else with the best by the analytic model; nothing is measured.

    `simulate`: the target is an absent GPU, whose kernels are executed on the processor. Raises GraphError for an
    invalid graph or constants that can no longer be read, UsageError if memory is too small, DeviceError for an absent
    device, and the errors of kernels. A SplitWarning names operators that should be one kernel but could not be.
    """
    device = _device_of(target, threads, simulate)
    program = _program(graph, target, device, choices)
    if debug_level() >= DUMP:
        print(kernel_table(program.all_tasks, device), file=sys.stderr)
    report_stage("packing weights")
    return _linked(graph, program, device, simulate)


def _device_of(target: str | None, threads: int | None, simulate: bool) -> Device:
    """Return the device of a target. With `simulate` this machine may be without it. Raises UsageError, DeviceError."""
    device = find_device(target, threads, runs=not simulate)
    if simulate and device.target.kind != SIMULATED:
        raise UsageError("the simulator executes CUDA C: give --target cuda with --simulate")
    return device


def _gpu_of(device: Device, simulate: bool) -> GpuDevice:
    """Return the driver of a GPU, or its simulator."""
    if not simulate:
        from autosched.runtime.gpu.devices import shared_device

        return shared_device(device.target.kind)
    from autosched.runtime.simulator.device import SimulatedDevice

    assert device.target.gpu is not None
    return SimulatedDevice(device.target.gpu)


def plan_graph(
    graph: Graph, target: str | None = "cpu", threads: int | None = None, choices: Choices = BY_MODEL
) -> tuple[NetworkProgram, Device]:
    """Return the execution plan that `compile_graph` links, and the device, which may be absent. Raises the same errors
    otherwise."""
    device = find_device(target, threads, runs=False)
    return _program(graph, target, device, choices), device


def compile_network(
    graph: Graph, options: CompileOptions = DEFAULTS, choices: Choices = BY_MODEL, keep: Keep | None = None
) -> Model:
    """Compile a network with the schedules and fusion decisions of `choices`, else with stored ones, else with those of
    the nearest sizes where `choices` has some, else with the best by the analytic model. `keep`: a function that is
    called with the model, and whether all kernels have schedules of their own; again when they have.

    Raises what `compile_graph` raises, and StoreError for a file that is no database.
    """
    with _completed(choices, options) as completed:
        model = compile_graph(graph, options.target, options.threads, completed, options.simulate)
    is_improved = options.specialise == BACKGROUND and choices.nearest is None and has_transferred(model)
    if keep is not None:
        keep(model, not is_improved)
    return specialise(model, keep) if is_improved else model


def compile_linked(graph: Graph, options: CompileOptions, choices: Choices, linked: LinkedNetwork) -> Model:
    """Compile a network for a processor as `compile_network` does. `linked`: the same network as it was linked before,
    which is taken if the execution plan is the same."""
    from autosched.executor.cpu_model import link

    with _completed(choices, options) as completed:
        program, device = plan_graph(graph, options.target, options.threads, completed)
    return link(graph, program, device, linked)


def compile_for_sizes(
    guards: Guards, make_graph: Callable[[], Graph], options: CompileOptions = DEFAULTS, choices: Choices = BY_MODEL
) -> SizedNetwork:
    """Compile a network for all sizes for which the guards hold. `make_graph` returns the traced graph, whose loops are
    unrolled.

    Raises what `compile_network` raises.
    """
    from autosched.executor.sized_network import CpuSizedNetwork, GpuSizedNetwork

    device = _device_of(options.target, options.threads, options.simulate)
    with guards:
        graph = unroll_loops(make_graph(), lambda *_: True)
        with _completed(choices, options) as completed:
            program = _program(graph, options.target, device, completed)
    if not device.target.backend.is_gpu:
        return CpuSizedNetwork(guards, graph, program, device)
    return GpuSizedNetwork(guards, graph, program, device, _gpu_of(device, options.simulate))


def plan_network(graph: Graph, options: CompileOptions = DEFAULTS, choices: Choices = BY_MODEL) -> NetworkProgram:
    """Return the execution plan that `compile_network` links with specialise="now"; the device may be absent."""
    with _completed(choices, replace(options, specialise=NOW)) as completed:
        return plan_graph(graph, options.target, options.threads, completed)[0]


@contextmanager
def _completed(choices: Choices, options: CompileOptions) -> Iterator[Choices]:
    """Yield the given choices, completed by stored ones and by transfer from the nearest sizes."""
    nearest = choices.nearest
    if nearest is None and options.specialise != NOW and not parse_target(options.target).backend.is_gpu:
        nearest = NearestSchedules(one_of_each=True)
    with stored_schedules(options.db) if options.records else nullcontext() as stored:

        def schedules(kernel_specs: Sequence[KernelSpec]) -> Sequence[KernelSpec]:
            chosen = choices.schedules(kernel_specs)
            if stored is not None:
                chosen = stored(chosen)
                if choices.nearest is not None:
                    choices.nearest.add(
                        stored.transferable([kernel_spec for kernel_spec in chosen if not kernel_spec.steps])
                    )
            return chosen

        def is_fused(kernel_spec: KernelSpec) -> bool | None:
            given = choices.is_fused(kernel_spec)
            return given if given is not None or stored is None else stored.is_fused(kernel_spec)

        yield Choices(schedules, is_fused, nearest)


def _program(graph: Graph, target: str | None, device: Device, choices: Choices) -> NetworkProgram:
    verify(graph)
    check_mapped(graph.constants)
    check_memory(graph)
    if graph.winograd:
        check_winograd(device.target)
    report_stage("planning kernels")
    with locating_bugs(lambda error: _bug_in(graph, error)):
        prepared = prepare_graph(graph, device)
        save_facts()  # processes that build kernels read them
        program = build_program(prepared, target or "cpu", device, choices)
    save_facts()
    for group in (group for each in program.programs for group in each.split):
        warn_user(str(group), SplitWarning)
    return program


def _bug_in(graph: Graph, error: Exception) -> str:
    """Return a message with the network and the node whose value is named in the error's arguments."""
    nodes = (graph.producers.get(x) for x in error.args if isinstance(x, str))
    node = next((f" at {node.origin or node}" for node in nodes if node is not None), "")
    return f"a bug of autosched: the network {graph.name} cannot be compiled{node}"


def _linked(graph: Graph, program: NetworkProgram, device: Device, simulate: bool) -> Model:
    """Return the model of an execution plan."""
    if device.target.backend.is_gpu:
        from autosched.executor.gpu_model import load_on_gpu

        return load_on_gpu(_gpu_of(device, simulate), graph, program, device)
    from autosched.executor.cpu_model import link

    check_memory(graph, program.weights_bytes, program.memory.nbytes)
    return link(graph, program, device)
