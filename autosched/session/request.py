"""What is asked for, a kernel of a workload for a device; from a lowered schedule to its code, and on to a callable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from autosched.errors import UsageError
from autosched.session.device import Device, check_dtypes

if TYPE_CHECKING:
    from autosched.codegen import GpuSource, KernelSource
    from autosched.ir.stmt import Func
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.runtime.spec import ArraySpec
    from autosched.te import ComputeDAG, Tensor
    from autosched.tuner.definition import Definition


@dataclass(frozen=True)
class Request:
    """`problem` is what a kernel computes, `device` what it runs on, which the user calls `target_text`."""

    problem: Definition
    device: Device
    target_text: str = "cpu"

    @cached_property
    def collapsed(self) -> ComputeDAG:
        """The graph that schedules are for; the user's own is the problem's."""
        from autosched.te.rewrites.collapse import collapse

        return collapse(self.problem.dag)

    def check(self) -> None:
        """Raises UsageError where weights are declared, Winograd's error is accepted, or a type is used, for a device
        that has nothing of it."""
        dag, kind = self.problem.dag, self.device.target.kind
        if dag.winograd and kind != "cpu":
            raise UsageError(
                f"Winograd convolutions are for processors only so far, and the target is {kind}: leave out winograd"
            )
        if dag.weights and kind != "cpu":
            raise UsageError(
                f"weights are prepared ahead of time for processors only so far, and the target is {kind}: "
                f"leave out the weights ({', '.join(dag.weights)})"
            )
        check_dtypes(dag, self.device.target)

    def source(self, nest: Func, values: Mapping[str, int], steps: str) -> KernelSource | GpuSource:
        """The code of a lowered schedule with `values` for its parameters; `steps`: the schedule as JSON."""
        from autosched.codegen import build_gpu_source, build_source
        from autosched.schedule import largest_tile

        target = self.device.target
        if target.kind == "cpu":
            source = build_source(nest, values, target, self.device.threads)
            return replace(source, winograd=largest_tile(steps))
        return build_gpu_source(nest, values, target.kind, self.head_text(steps))

    def head_text(self, steps: str) -> str:
        """What a reader of the code wants to know first: the workload, and the schedule step by step."""
        from autosched.schedule import steps_text

        problem = self.problem
        return f"autosched: {problem.name.rpartition(':')[2]} {problem.shape} {problem.dtype}\n{steps_text(steps)}"

    def load(self, source: KernelSource | GpuSource) -> Kernel | GpuKernel:
        """A callable kernel over arrays of the user's shapes."""
        from autosched.codegen import KernelSource

        dag, target = self.problem.dag, self.device.target
        inputs, outputs = specs(dag.inputs), specs(dag.outputs)
        if isinstance(source, KernelSource):
            if source.prepare is not None:
                from autosched.runtime.weights import build_weights_kernel

                return build_weights_kernel(source, target, inputs, outputs, dag.weights)
            from autosched.runtime.kernel import build_kernel

            return build_kernel(source.ir, source.name, target, inputs, outputs, source.workspace_bytes, source.threads)
        from autosched.runtime.gpu.kernel import build_gpu_kernel

        return build_gpu_kernel(source, target, inputs, outputs)


def specs(tensors: Sequence[Tensor]) -> tuple[ArraySpec, ...]:
    """What callers pass for `tensors`: the user's shapes, not those of the collapsed graph."""
    from autosched.runtime.spec import ArraySpec

    return tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in tensors)
