"""From a lowered schedule to code for its device, and from code to a callable kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autosched.device import Device
from autosched.errors import UsageError

if TYPE_CHECKING:
    from autosched.codegen import GpuSource, KernelSource
    from autosched.ir.stmt import Func
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.runtime.spec import ArraySpec
    from autosched.te import Tensor
    from autosched.tune.definition import Definition


def generate(
    nest: Func, values: Mapping[str, int], device: Device, problem: Definition, steps: str
) -> KernelSource | GpuSource:
    """The code of a lowered schedule with `values` for its parameters; `steps`: the schedule as JSON, for its head."""
    from autosched.codegen import build_gpu_source, build_source
    from autosched.schedule import largest_tile

    target = device.target
    if target.kind == "cpu":
        source = build_source(nest, values, target, device.threads)
        return replace(source, winograd=largest_tile(steps))
    return build_gpu_source(nest, values, target.kind, head_text(problem, steps))


def check_device(problem: Definition, device: Device) -> None:
    """Raises UsageError where weights are declared, or Winograd's error accepted, for a device that cannot use it."""
    if problem.dag.winograd and device.target.kind != "cpu":
        raise UsageError(
            f"Winograd convolutions are for processors only so far, and the target is {device.target.kind}: "
            "leave out winograd"
        )
    if problem.dag.weights and device.target.kind != "cpu":
        raise UsageError(
            f"weights are prepared ahead of time for processors only so far, and the target is {device.target.kind}: "
            f"leave out the weights ({', '.join(problem.dag.weights)})"
        )


def head_text(problem: Definition, steps: str) -> str:
    """What a reader of the code wants to know first: the workload, and the schedule step by step."""
    from autosched.schedule import steps_text

    return f"autosched: {problem.name.rpartition(':')[2]} {problem.shape} {problem.dtype}\n{steps_text(steps)}"


def load(problem: Definition, device: Device, source: KernelSource | GpuSource) -> Kernel | GpuKernel:
    """A callable kernel over arrays of the user's shapes."""
    from autosched.codegen import KernelSource

    inputs, outputs = specs(problem.dag.inputs), specs(problem.dag.outputs)
    if isinstance(source, KernelSource):
        if source.prepare is not None:
            from autosched.runtime.weights import build_weights_kernel

            return build_weights_kernel(source, device.target, inputs, outputs, problem.dag.weights)
        from autosched.runtime.kernel import build_kernel

        return build_kernel(
            source.ir, source.name, device.target, inputs, outputs, source.workspace_bytes, source.threads
        )
    from autosched.runtime.gpu.kernel import build_gpu_kernel

    return build_gpu_kernel(source, device.target, inputs, outputs)


def specs(tensors: Sequence[Tensor]) -> tuple[ArraySpec, ...]:
    """What callers pass for `tensors`: the user's shapes, not those of the collapsed graph."""
    from autosched.runtime.spec import ArraySpec

    return tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in tensors)
