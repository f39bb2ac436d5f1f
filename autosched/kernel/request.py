"""Kernel request: a workload and a device; from a lowered schedule to code, and from code to a callable kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from autosched.errors import ScheduleError, UsageError
from autosched.ir.instructions.precision import EXACT
from autosched.kernel.device import Device

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.ir.stmt import Func
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.runtime.spec import ArraySpec
    from autosched.schedule import State, Step
    from autosched.target import Target
    from autosched.te import ComputeDAG, Tensor
    from autosched.tuner.definition import Definition


@dataclass(frozen=True)
class Request:
    """A kernel to be compiled: `problem` is its computation, `device` where it runs, `target_text` the user's name.

    `in_network`: the kernel is a part of a network.
    """

    problem: Definition
    device: Device
    target_text: str = "cpu"
    in_network: bool = False

    @cached_property
    def collapsed(self) -> ComputeDAG:
        """The rewritten graph, to which schedules apply; the user's own is that of `problem`."""
        from autosched.te.rewrites.collapse import collapse

        return collapse(self.problem.dag)

    def of(self, dag: ComputeDAG) -> Request:
        """Return the request of the same workload with other sizes."""
        return replace(self, problem=replace(self.problem, dag=dag))

    def replay(self, steps: str) -> State:
        """Return the schedule of steps in JSON. Raises ScheduleError if they do not fit the workload or the device.

        In a network steps may come from other sizes, of which the workload lacked a stage, such as the padding of an
        image whose last window is not whole. They do not fit either: the stage would be computed element by element.
        """
        from autosched.schedule import check_target, initial_state, replay

        state = replay(self.collapsed, steps)
        check_target(state, self.device.target.kind)
        if self.in_network:
            unscheduled = [stage for stage in initial_state(self.collapsed).stages if stage.loops]
            if left := [stage.name for stage in state.stages if stage in unscheduled]:
                raise ScheduleError(f"the steps do not schedule the stage {left[0]}")
        return state

    def check(self) -> None:
        """Raise UsageError for weights, Winograd or reduced precision if the device does not support them."""
        from autosched.te.rewrites.precision import allowed_precision

        dag, target = self.problem.dag, self.device.target
        if dag.winograd:
            check_winograd(target)
        precision = allowed_precision(dag)
        if precision != EXACT and not target.backend.has_matrices:
            raise UsageError(
                f"products by {precision} are for CUDA only, and the target is {target.kind}: leave out precision"
            )
        if dag.weights and not target.backend.has_weights:
            raise UsageError(
                f"weights are prepared ahead of time for processors only so far, and the target is {target.kind}: "
                f"leave out the weights ({', '.join(dag.weights)})"
            )

    def source(
        self, nest: Func, steps: tuple[Step, ...], values: Mapping[str, int], target: Target | None = None
    ) -> Source:
        """Generate the code of a schedule, lowered to `nest`, with `values` for the parameters of its `steps`.

        The code is for `target`, by default that of the device.
        """
        from autosched.codegen import Origin, build_source

        problem = self.problem
        title = f"autosched: {problem.name.rpartition(':')[2]} {problem.shape} {problem.dtype}"
        origin = Origin(title, steps, values)
        return build_source(nest, values, target or self.device.target, self.device.threads, origin)

    def load(self, source: Source) -> Kernel | GpuKernel:
        """Load code as a callable kernel over arrays of the user's shapes."""
        from autosched.runtime.backends import load

        dag = self.problem.dag
        return load(source, self.device.target, array_specs(dag.inputs), array_specs(dag.outputs), dag.weights)


def array_specs(tensors: Sequence[Tensor]) -> tuple[ArraySpec, ...]:
    """Return the names, types and shapes of `tensors`: the user's shapes, not those of the collapsed graph."""
    from autosched.runtime.spec import ArraySpec

    return tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in tensors)


def check_winograd(target: Target) -> None:
    """Raise UsageError for a kind of target without Winograd kernels."""
    if not target.backend.has_winograd:
        raise UsageError(
            f"Winograd convolutions are for processors only so far, and the target is {target.kind}: leave out winograd"
        )
