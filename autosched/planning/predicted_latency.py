"""Predicted latency of groups by the analytic model, to compare fused kernels with unfused ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosched.graph.fusion.choice import PredictedGroup
from autosched.graph.fusion.cost import rates_of
from autosched.graph.group_description import flops_of
from autosched.graph.memory.storage import nbytes_of
from autosched.graph.steps import Group
from autosched.ir.size import value_of
from autosched.kernel.pool import choose_schedules
from autosched.kernel.request import Request
from autosched.kernel.spec import KernelSpec
from autosched.kernel.transfer import NearestSchedules
from autosched.planning.extract_tasks import GroupKernels
from autosched.runtime.disk_cache import read, write
from autosched.runtime.versions import code_key
from autosched.target import Target


@dataclass(frozen=True)
class LatencyPredictor:
    """Predicts the latency of groups of a graph.

    `nearest` has the predictions and schedules of the same groups at other sizes, so that a network for another batch
    size makes the same fusion choices without new predictions. Groups of which the model predicts no latency take as
    many seconds per cycle that they need at least as a group of the same structure.
    """

    kernels_of: GroupKernels
    nearest: NearestSchedules

    @property
    def target(self) -> Target:
        return self.kernels_of.device.target

    @property
    def threads(self) -> int:
        return self.kernels_of.device.threads

    @property
    def max_groups(self) -> int:
        """Groups that a rule of the search space fuses."""
        from search_spaces.cpu.fused_reductions import MOST_MEMBERS

        return MOST_MEMBERS

    def predict(self, groups: Sequence[Group]) -> list[PredictedGroup[KernelSpec]]:
        """Return the groups with the seconds that the analytic model predicts, infinity if no code can be made."""
        kernel_specs = [self.kernels_of.spec(group) for group in groups]
        earlier = {kernel_spec: self.nearest.seconds_of(kernel_spec.workload) for kernel_spec in kernel_specs}
        cycles = dict(zip(kernel_specs, map(self._least_cycles, groups), strict=True))
        unknown = list(dict.fromkeys(kernel_spec for kernel_spec, seconds in earlier.items() if seconds is None))
        chosen = self.nearest.without_rates(unknown)
        schedules = choose_schedules(chosen)
        self.nearest.add_predicted(
            (kernel_spec.workload, schedule.steps) for kernel_spec, schedule in schedules.items()
        )
        own = {spec: schedules[spec].estimate_s if spec in schedules else math.inf for spec in chosen}
        self.nearest.add_rates((spec, seconds / cycles[spec]) for spec, seconds in own.items())
        predicted = {
            spec: own[spec] if spec in own else self.nearest.rate_of(spec.workload) * cycles[spec] for spec in unknown
        }
        self.nearest.add_seconds((kernel_spec.workload, seconds) for kernel_spec, seconds in predicted.items())
        every = [
            predicted[kernel_spec] if (seconds := earlier[kernel_spec]) is None else seconds
            for kernel_spec in kernel_specs
        ]
        return [PredictedGroup(*each) for each in zip(groups, kernel_specs, every, strict=True)]

    def _least_cycles(self, group: Group) -> float:
        """Return the cycles of a group's arithmetic, or of its traffic with the shared cache if those are more."""
        graph, rates = self.kernels_of.graph, rates_of(self.target, self.threads)
        n_bytes = value_of(sum(nbytes_of(graph, name) for name in (*group.inputs, *group.outputs)))
        operations = flops_of(graph, group) / 2
        return max(operations / rates.operations_per_cycle, n_bytes / rates.bytes_per_cycle)

    def can_fuse(self, fused: Group, unfused: Sequence[Group]) -> bool:
        """Whether a rule of the search space has a sketch for the fused group; kept in the disk cache."""
        kernel_spec = self.kernels_of.spec(fused)
        spec = kernel_spec.workload
        if (seconds := self.nearest.seconds_of(spec)) is not None:
            return math.isfinite(seconds)
        if all(self.nearest.knows(self.kernels_of.spec(group).workload) for group in unfused):
            return False
        key = code_key(f"chain {spec.text}", self.target)
        if (known := self.nearest.can_fuse(kernel_spec)) is not None:
            has_sketch = known
        elif (cached := read(key)) is None:
            has_sketch = has_fused_sketch(kernel_spec.request)
            write(key, {"is_chain": has_sketch}, b"")
        else:
            has_sketch = cached[0].get("is_chain") is True
        if not has_sketch:
            self.nearest.add_seconds([(spec, math.inf)])
        return has_sketch


def has_fused_sketch(request: Request) -> bool:
    """Whether a rule of the search space has a sketch that fuses all reductions of a kernel."""
    sketches = request.device.hardware.sketches(request.collapsed, request.device, ())
    return any(sketch.fuses_reductions for sketch in sketches)
