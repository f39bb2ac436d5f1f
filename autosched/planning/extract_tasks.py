"""Task extraction: the kernels of a network, one for all steps that compute the same, whatever their values' names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosched.backends import Backend
from autosched.graph.fusion.node_properties import weights_of
from autosched.graph.fusion.partition import dag_of
from autosched.graph.graph import Graph
from autosched.graph.group_description import describe
from autosched.graph.steps import Group, NetworkStep
from autosched.kernel.device import Device
from autosched.kernel.pool import UnbuiltKernel, build_kernels
from autosched.kernel.request import Request
from autosched.kernel.spec import KernelObject, KernelSpec
from autosched.kernel.transfer import NearestSchedules
from autosched.target.far_weights import weights_place
from autosched.tuner.workload_spec import WorkloadSpec

# Returns the given specifications in order, those with a known schedule with its steps.
ChooseSchedules = Callable[[Sequence[KernelSpec]], Sequence[KernelSpec]]


def keep_unscheduled(kernel_specs: Sequence[KernelSpec]) -> Sequence[KernelSpec]:
    return kernel_specs


def undecided(kernel_spec: KernelSpec) -> bool | None:
    return None


@dataclass(frozen=True)
class Choices:
    """Schedules and fusion decisions for the kernels of a network; the analytic model makes those that are missing.

    `schedules` adds known schedules to kernels. `is_fused` maps the fused kernel of a `FusionChoice` to whether it is
    the faster variant, None if that was not measured. `nearest` transfers schedules from other sizes.
    """

    schedules: ChooseSchedules = keep_unscheduled
    is_fused: Callable[[KernelSpec], bool | None] = undecided
    nearest: NearestSchedules | None = None


BY_MODEL = Choices()


@dataclass(frozen=True)
class NetworkTask:
    """A kernel of a network. `steps`: the numbers of the steps that call it."""

    kernel_spec: KernelSpec
    kernel: KernelObject
    steps: tuple[int, ...]

    @property
    def name(self) -> str:
        """The operators that the kernel fuses."""
        return self.request.problem.name

    @property
    def request(self) -> Request:
        return self.kernel_spec.request

    @property
    def count(self) -> int:
        return len(self.steps)


def extract_tasks(
    graph: Graph, steps: Sequence[NetworkStep], target_text: str, device: Device, choices: Choices = BY_MODEL
) -> tuple[NetworkTask, ...]:
    """Return the tasks of the groups among `steps`, compiled. Raises UnbuiltKernel."""
    target, residency = device.target, weight_residency(graph, steps, device)
    numbers: dict[KernelSpec, list[int]] = {}
    for n, step in enumerate(steps):
        if isinstance(step, Group):
            kernel_spec = KernelSpec(
                spec_of(graph, step, target.backend, residency), target_text, device.threads, gpu=target.gpu
            )
            numbers.setdefault(kernel_spec, []).append(n)
    kernel_specs = list(numbers)
    chosen = dict(zip(kernel_specs, choices.schedules(kernel_specs), strict=True))
    kernels = _build(chosen)
    return tuple(
        NetworkTask(chosen[kernel_spec], kernels[chosen[kernel_spec]], tuple(ns)) for kernel_spec, ns in numbers.items()
    )


def _build(chosen: dict[KernelSpec, KernelSpec]) -> dict[KernelSpec, KernelObject]:
    """Return the kernels of the specifications with schedules, the values of `chosen`.

    A schedule that gives no code, as one of other sizes may, is dropped: `chosen` then maps the kernel to itself.
    """
    while True:
        try:
            return build_kernels(list(chosen.values()))
        except UnbuiltKernel as failure:
            misfits = [kernel_spec for kernel_spec, own in chosen.items() if own == failure.kernel_spec != kernel_spec]
            if not misfits:
                raise
            chosen.update(zip(misfits, misfits, strict=True))


def objects_of(tasks: Sequence[NetworkTask]) -> list[bytes]:
    """Return the object files of all kernels, each shared compilation unit once."""
    units = {unit.key: unit.code for task in tasks for unit in task.kernel.parts}
    return [*(task.kernel.code for task in tasks), *units.values()]


def spec_of(graph: Graph, group: Group, backend: Backend, residency: str) -> WorkloadSpec:
    """Return the workload of a group's kernel. `residency`: the cache level of the weights."""
    name = "-".join(node.operator for node in group.nodes)
    dtype, described = graph.values[group.outputs[0]].dtype, describe(graph, group, backend.has_weights)
    accepted: dict[str, bool | str] = {"winograd": True} if graph.winograd and _may_transform(graph, group) else {}
    if residency and described["weights"]:
        accepted["weights_in"] = residency
    return WorkloadSpec.of({"name": name, "args": {}, "dtype": dtype, "graph": described, **accepted})


def weight_residency(graph: Graph, steps: Sequence[NetworkStep], device: Device) -> str:
    """Return the cache level in which kernels find their weights, by the bytes of weights that one call reads."""
    read = {x for step in steps if isinstance(step, Group) for x in weights_of(graph, step.nodes, step.inputs)}
    return weights_place(sum(graph.constants[name].nbytes for name in read), device.target)


def _may_transform(graph: Graph, group: Group) -> bool:
    """Whether a reduction of the group is a convolution that Winograd's transforms compute."""
    from autosched.te.rewrites.winograd import match_stage

    return any(match_stage(op) is not None for op in dag_of(graph, group).stages)
