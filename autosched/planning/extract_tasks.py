"""Task extraction: the kernels of a network, one for all steps that compute the same, whatever their values' names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosched.errors import NoValidCandidate
from autosched.graph.graph import Graph
from autosched.graph.group_description import describe, has_winograd_stage
from autosched.graph.steps import Group, NetworkStep
from autosched.kernel.device import Device
from autosched.kernel.pool import UnbuiltKernel, build_kernels
from autosched.kernel.request import Request
from autosched.kernel.spec import KernelObject, KernelSpec
from autosched.kernel.transfer import NearestSchedules
from autosched.tuner.sized_workload import SizedWorkload
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


class UnbuiltTask(NoValidCandidate):
    """No code can be made for the kernel of the groups that are the steps of these numbers."""

    def __init__(self, steps: Sequence[int], reason: str) -> None:
        super().__init__(reason)
        self.steps = steps


@dataclass(frozen=True)
class NetworkTask:
    """A kernel of a network. `steps`: the numbers of the steps that call it. `repeats`: how many times each of them
    runs in a call of the network."""

    kernel_spec: KernelSpec
    kernel: KernelObject
    steps: tuple[int, ...]
    repeats: int = 1

    @property
    def name(self) -> str:
        """The operators that the kernel fuses."""
        return self.request.problem.name

    @property
    def request(self) -> Request:
        return self.kernel_spec.request

    @property
    def count(self) -> int:
        return len(self.steps) * self.repeats


@dataclass(frozen=True)
class GroupKernels:
    """The kernels of groups of a graph on a device. `residency`: the cache level of the weights."""

    graph: Graph
    target_text: str
    device: Device
    residency: str

    def spec(self, group: Group) -> KernelSpec:
        """Return the specification of a group's kernel, without a schedule."""
        graph, target = self.graph, self.device.target
        name = "-".join(node.operator for node in group.nodes)
        dtype, described = graph.values[group.outputs[0]].dtype, describe(graph, group, target.backend.has_weights)
        options: dict[str, bool | str] = {}
        if graph.winograd and has_winograd_stage(graph, group):
            options["winograd"] = True
        if self.residency and described["weights"]:
            options["weights_in"] = self.residency
        data = {"name": name, "args": {}, "dtype": dtype, "graph": described, **options}
        sized = SizedWorkload.of(data)
        workload = WorkloadSpec.of(data) if sized is None else sized.typical
        return KernelSpec(workload, self.target_text, self.device.threads, gpu=target.gpu, sized=sized)


def extract_tasks(
    kernels_of: GroupKernels, steps: Sequence[NetworkStep], choices: Choices = BY_MODEL
) -> tuple[NetworkTask, ...]:
    """Return the tasks of the groups among `steps`, compiled. Raises UnbuiltTask."""
    numbers: dict[KernelSpec, list[int]] = {}
    for n, step in enumerate(steps):
        if isinstance(step, Group):
            numbers.setdefault(kernels_of.spec(step), []).append(n)
    kernel_specs = list(numbers)
    chosen = dict(zip(kernel_specs, choices.schedules(kernel_specs), strict=True))
    scheduled = dict(chosen)
    if choices.nearest is not None:
        transferred = choices.nearest.transfer(list(chosen.values()))
        scheduled = {kernel_spec: transferred.get(own, own) for kernel_spec, own in chosen.items()}
    try:
        kernels = _build(scheduled)
    except UnbuiltKernel as failure:
        raise UnbuiltTask(numbers[failure.kernel_spec], str(failure)) from failure
    return tuple(
        NetworkTask(kernel_spec if built == kernel_spec else chosen[kernel_spec], kernels[built], tuple(ns))
        for (kernel_spec, ns), built in zip(numbers.items(), scheduled.values(), strict=True)
    )


def _build(scheduled: dict[KernelSpec, KernelSpec]) -> dict[KernelSpec, KernelObject]:
    """Return the kernels of the specifications with schedules, the values of `scheduled`.

    A schedule that gives no code, as one of other sizes may, is dropped: `scheduled` then maps the kernel to itself.
    """
    kernels, unbuilt = build_kernels(list(scheduled.values()))
    misfits = [kernel_spec for kernel_spec, own in scheduled.items() if own in unbuilt and own != kernel_spec]
    if misfits:
        scheduled.update(zip(misfits, misfits, strict=True))
        own_kernels, own_unbuilt = build_kernels(misfits)
        kernels, unbuilt = kernels | own_kernels, unbuilt | own_unbuilt
    for kernel_spec in scheduled.values():
        if kernel_spec not in kernels:
            raise UnbuiltKernel(kernel_spec, unbuilt[kernel_spec])
    return kernels


def objects_of(tasks: Sequence[NetworkTask]) -> list[bytes]:
    """Return the object files of all kernels, each kernel and each shared compilation unit once."""
    units = {unit.key: unit.code for task in tasks for unit in task.kernel.units}
    return [*{task.kernel.name: task.kernel.code for task in tasks}.values(), *units.values()]
