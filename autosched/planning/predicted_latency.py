"""Predicted latency of groups by the analytic model, to compare fused kernels with unfused ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosched.graph.graph import Graph
from autosched.graph.steps import Group
from autosched.kernel.device import Device
from autosched.kernel.pool import UnbuiltKernel, build_kernels
from autosched.kernel.spec import KernelSpec
from autosched.kernel.transfer import NearestSchedules
from autosched.kernel.versions import key_of
from autosched.planning.extract_tasks import spec_of
from autosched.planning.fusion_candidates import has_fused_sketch
from autosched.planning.fusion_choice import PredictedGroup
from autosched.runtime.disk_cache import read, write


@dataclass(frozen=True)
class LatencyPredictor:
    """Predicts the latency of groups of a graph whose weights are in the cache level `residency`.

    `nearest` has the predictions and schedules of the same groups at other sizes, so that a network for another batch
    size makes the same fusion choices without new predictions.
    """

    graph: Graph
    target_text: str
    device: Device
    residency: str
    nearest: NearestSchedules

    def predict(self, groups: Sequence[Group]) -> list[PredictedGroup]:
        """Return the groups with the seconds that the analytic model predicts, infinity if no code can be made."""
        kernel_specs = [self._kernel_spec(group) for group in groups]
        earlier = {kernel_spec: self.nearest.seconds_of(kernel_spec.workload) for kernel_spec in kernel_specs}
        unbuilt = dict[KernelSpec, float]()
        predicted = {kernel_spec: math.inf for kernel_spec, seconds in earlier.items() if seconds is None}
        while predicted:
            try:
                kernels = build_kernels(list(predicted))
                self.nearest.add_drafted(
                    (kernel_spec.workload, kernel.steps) for kernel_spec, kernel in kernels.items()
                )
                predicted = {kernel_spec: kernel.estimate_s for kernel_spec, kernel in kernels.items()}
                break
            except UnbuiltKernel as failure:
                unbuilt[failure.kernel_spec] = predicted.pop(failure.kernel_spec)
        predicted |= unbuilt
        self.nearest.add_seconds((kernel_spec.workload, seconds) for kernel_spec, seconds in predicted.items())
        every = [
            predicted[kernel_spec] if (seconds := earlier[kernel_spec]) is None else seconds
            for kernel_spec in kernel_specs
        ]
        return [PredictedGroup(*each) for each in zip(groups, kernel_specs, every, strict=True)]

    def can_fuse(self, fused: Group, unfused: Sequence[Group]) -> bool:
        """Whether a rule of the search space has a sketch for the fused group; kept in the disk cache."""
        spec = self._kernel_spec(fused).workload
        if (seconds := self.nearest.seconds_of(spec)) is not None:
            return math.isfinite(seconds)
        if all(self.nearest.knows(self._kernel_spec(group).workload) for group in unfused):
            return False
        key = key_of(f"chain {spec.text}", self.device.target)
        if (cached := read(key)) is None:
            has_sketch = has_fused_sketch(self.graph, fused, self.device)
            write(key, {"is_chain": has_sketch}, b"")
        else:
            has_sketch = cached[0].get("is_chain") is True
        if not has_sketch:
            self.nearest.add_seconds([(spec, math.inf)])
        return has_sketch

    def _kernel_spec(self, group: Group) -> KernelSpec:
        target = self.device.target
        spec = spec_of(self.graph, group, target.backend, self.residency)
        return KernelSpec(spec, self.target_text, self.device.threads, gpu=target.gpu)
