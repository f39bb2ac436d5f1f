"""Schedule transfer between kernels that differ in their sizes alone: a kernel takes the steps of the nearest sizes.

Steps apply to other sizes, as loops that they do not divide are guarded. Transfer takes a tenth of the time of a choice
by the analytic model. Steps that do not fit, as axes are merged by their sizes, fail when the kernel is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from autosched.kernel.spec import KernelSpec
from autosched.tuner.workload_spec import WorkloadSpec, distance


@dataclass
class NearestSchedules:
    """Schedules and predicted latencies of workloads, by structure and sizes.

    Called with kernels, it gives those without steps the steps of the nearest sizes; of equally near ones those that
    were added first. By the predicted latencies fusion is decided once for all numbers of images: n times as many
    images are predicted to take n times as long.
    """

    _steps: dict[str, dict[tuple[int, ...], str]] = field(default_factory=dict)  # steps, by structure and sizes
    _seconds: dict[str, dict[tuple[int, ...], float]] = field(default_factory=dict)
    _predicted: set[WorkloadSpec] = field(default_factory=set)  # with the best schedule by the analytic model

    def add(self, schedules: Iterable[tuple[WorkloadSpec, str]]) -> None:
        """Add the steps of workloads."""
        for spec, steps in schedules:
            sized = spec.sized
            self._steps.setdefault(sized.structure, {}).setdefault(sized.sizes, steps)

    def __call__(self, kernel_specs: Sequence[KernelSpec]) -> list[KernelSpec]:
        return [kernel_spec if kernel_spec.steps else self._nearest(kernel_spec) for kernel_spec in kernel_specs]

    def _nearest(self, kernel_spec: KernelSpec) -> KernelSpec:
        if kernel_spec.workload in self._predicted:
            return kernel_spec
        sized = kernel_spec.workload.sized
        steps = self._steps.get(sized.structure)
        if not steps:
            return kernel_spec
        return replace(kernel_spec, steps=steps[min(steps, key=lambda sizes: distance(sized.sizes, sizes))])

    def knows(self, spec: WorkloadSpec) -> bool:
        """Whether a schedule is known for a workload of any sizes."""
        return spec.sized.structure in self._steps

    def add_predicted(self, schedules: Iterable[tuple[WorkloadSpec, str]]) -> None:
        """Add steps that are the best by the analytic model for their own sizes."""
        for spec, steps in schedules:
            self._predicted.add(spec)
            self.add([(spec, steps)])

    def add_seconds(self, latencies: Iterable[tuple[WorkloadSpec, float]]) -> None:
        """Add the predicted seconds of workloads."""
        for spec, seconds in latencies:
            sized = spec.sized
            self._seconds.setdefault(sized.structure, {}).setdefault(sized.sizes, seconds)

    def seconds_of(self, spec: WorkloadSpec) -> float | None:
        """Return the predicted seconds; None if no workload is known whose sizes differ by one factor at most."""
        sized = spec.sized
        for sizes, seconds in self._seconds.get(sized.structure, {}).items():
            factors = {Fraction(a, b) for a, b in zip(sized.sizes, sizes, strict=True) if a != b}
            if len(factors) <= 1:
                return seconds * float(next(iter(factors), 1))
        return None
