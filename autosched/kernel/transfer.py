"""Schedule transfer between kernels that differ in their sizes alone: a kernel takes the steps of the nearest sizes.

Steps apply to other sizes, as loops that they do not divide are guarded. Transfer takes a tenth of the time of a choice
by the analytic model. Whether the steps fit is seen when the kernel is built, as axes are merged by their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from autosched.kernel.spec import KernelSpec
from autosched.tuner.workload_spec import WorkloadSpec, distance


@dataclass
class NearestSchedules:
    """Known schedules, by structure and sizes; called with kernels, it gives those without steps the steps of the
    nearest sizes, of equally near ones those that were added first.

    It also has predicted latencies, so that fusion is decided once for all numbers of images: n times as many images
    are predicted to take n times as long.
    """

    _known: dict[str, dict[tuple[int, ...], str]] = field(default_factory=dict)  # steps, by structure and sizes
    _seconds: dict[str, dict[tuple[int, ...], float]] = field(default_factory=dict)
    _drafted: set[WorkloadSpec] = field(default_factory=set)  # workloads whose own best schedule by the model is known

    def add(self, known: Iterable[tuple[WorkloadSpec, str]]) -> None:
        """Add the steps of workloads."""
        for spec, steps in known:
            form = spec.sized
            self._known.setdefault(form.structure, {}).setdefault(form.sizes, steps)

    def __call__(self, kernel_specs: Sequence[KernelSpec]) -> list[KernelSpec]:
        return [kernel_spec if kernel_spec.steps else self._nearest(kernel_spec) for kernel_spec in kernel_specs]

    def _nearest(self, kernel_spec: KernelSpec) -> KernelSpec:
        if kernel_spec.workload in self._drafted:
            return kernel_spec
        form = kernel_spec.workload.sized
        known = self._known.get(form.structure)
        if not known:
            return kernel_spec
        return replace(kernel_spec, steps=known[min(known, key=lambda sizes: distance(form.sizes, sizes))])

    def knows(self, spec: WorkloadSpec) -> bool:
        """Whether a schedule is known for a workload of any sizes."""
        return spec.sized.structure in self._known

    def add_drafted(self, known: Iterable[tuple[WorkloadSpec, str]]) -> None:
        """Add steps that are the best by the analytic model for their own sizes."""
        for spec, steps in known:
            self._drafted.add(spec)
            self.add([(spec, steps)])

    def add_seconds(self, known: Iterable[tuple[WorkloadSpec, float]]) -> None:
        """Add the predicted seconds of workloads."""
        for spec, seconds in known:
            form = spec.sized
            self._seconds.setdefault(form.structure, {}).setdefault(form.sizes, seconds)

    def seconds_of(self, spec: WorkloadSpec) -> float | None:
        """Return the predicted seconds; None if no workload is known whose sizes differ by one factor at most."""
        form = spec.sized
        for sizes, seconds in self._seconds.get(form.structure, {}).items():
            factors = {Fraction(a, b) for a, b in zip(form.sizes, sizes, strict=True) if a != b}
            if len(factors) <= 1:
                return seconds * float(next(iter(factors), 1))
        return None
