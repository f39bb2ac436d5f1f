"""Schedule transfer between kernels that differ in their sizes alone: a kernel takes the steps of the nearest sizes.

Steps apply to other sizes, as loops that they do not divide are guarded. Transfer takes a tenth of the time of a choice
by the analytic model. Steps that do not fit, as axes are merged by their sizes, fail when the kernel is built.

With the schedule of the largest kernel of each structure the kernels of a network are predicted to take 1.00 to 1.14
times as long as with their own schedules, 1.05 in the geometric mean of seven networks (48 of 341 kernels, for which
the model has no prediction with that schedule, count as unchanged).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from autosched.kernel.object_cache import find_schedule
from autosched.kernel.pool import build_kernels
from autosched.kernel.shipped.table import Sizes
from autosched.kernel.spec import KernelSpec
from autosched.kernel.structure_cache import RATE, SCHEDULE, find_decisions, keep_decision
from autosched.tuner.workload_spec import WorkloadSpec, distance

NEAR_VOLUME = 2  # how many times larger than known sizes, by the product, a kernel may be to take their decisions
V = TypeVar("V", str, float)


@dataclass
class NearestSchedules:
    """Schedules and predicted latencies of workloads, by structure and sizes.

    By the predicted latencies fusion is decided once for all numbers of images: n times as many images are predicted to
    take n times as long. With `one_of_each` kernels take the schedules and rates that the shipped table and the disk
    cache have for their structures; for one kernel of each other structure the analytic model chooses a schedule, and
    the others take it.
    Without it kernels take only schedules that were added before.
    """

    one_of_each: bool = False
    _steps: dict[str, dict[Sizes, str]] = field(default_factory=dict)  # steps, by structure and sizes
    _seconds: dict[str, dict[Sizes, float]] = field(default_factory=dict)
    _rates: dict[str, dict[Sizes, float]] = field(default_factory=dict)  # by structure and sizes
    _predicted: set[WorkloadSpec] = field(default_factory=set)  # with the best schedule by the analytic model
    _own: set[str] = field(default_factory=set)  # structures whose steps were added, not found

    def add(self, schedules: Iterable[tuple[WorkloadSpec, str]]) -> None:
        """Add the steps of workloads."""
        for spec, steps in schedules:
            sized = spec.sized
            self._own.add(sized.structure)
            self._steps.setdefault(sized.structure, {}).setdefault(sized.sizes, steps)

    def transfer(self, kernel_specs: Sequence[KernelSpec]) -> dict[KernelSpec, KernelSpec]:
        """Return those of the kernels without steps that take the steps of the nearest sizes, with these steps.

        Of equally near sizes those are taken that were added first.
        """
        undecided = [kernel_spec for kernel_spec in kernel_specs if not kernel_spec.steps]
        if self.one_of_each:
            kept = ((kernel_spec, find_schedule(kernel_spec)) for kernel_spec in undecided)
            self.add_predicted((spec.workload, schedule.steps) for spec, schedule in kept if schedule is not None)
            self._add_cached(undecided, SCHEDULE, self._steps, str)
            first = [
                spec for spec in self.representatives(undecided, self._steps) if spec.workload not in self._predicted
            ]
            kernels, _ = build_kernels(first)
            self.add_predicted((spec.workload, kernel.schedule.steps) for spec, kernel in kernels.items())
        others = [spec for spec in undecided if spec.workload not in self._predicted]
        nearest = {spec: _nearest(spec.workload, self._steps) for spec in others}
        return {spec: replace(spec, steps=steps) for spec, steps in nearest.items() if steps is not None}

    def without_rates(self, kernel_specs: Sequence[KernelSpec]) -> list[KernelSpec]:
        """Return the kernels whose latency the analytic model predicts, `representatives` for structures with rates."""
        if self.one_of_each:
            self._add_cached(kernel_specs, RATE, self._rates, float)
        return self.representatives(kernel_specs, self._rates)

    def _add_cached(
        self, kernel_specs: Sequence[KernelSpec], what: str, known: dict[str, dict[Sizes, V]], hint: type[V]
    ) -> None:
        """Add known decisions for the structures of kernels, if some are for sizes nearly as large.

        A schedule of much smaller sizes has tiles that are chosen for them.
        """
        largest = {spec.workload.sized.structure: spec for spec in sorted(kernel_specs, key=_volume)}
        for spec in largest.values():
            cached = find_decisions(what, spec, hint)
            if any(NEAR_VOLUME * math.prod(sizes) >= _volume(spec) for sizes in cached):
                by_sizes = known.setdefault(spec.workload.sized.structure, {})
                by_sizes.update((sizes, value) for sizes, value in cached.items() if sizes not in by_sizes)

    def representatives(self, kernel_specs: Sequence[KernelSpec], structures: Iterable[str]) -> list[KernelSpec]:
        """Return the kernels for which the analytic model chooses a schedule of their own: all without `one_of_each`.

        Otherwise the largest of each structure that is not one of the given, known ones, and those for which it has
        chosen a schedule before.
        """
        if not self.one_of_each:
            return [*kernel_specs]
        known, chosen = set(structures), []
        for kernel_spec in sorted(kernel_specs, key=_volume, reverse=True):
            is_first = kernel_spec.workload.sized.structure not in known
            if is_first or kernel_spec.workload in self._predicted:
                chosen.append(kernel_spec)
                known.add(kernel_spec.workload.sized.structure)
        return chosen

    def knows(self, spec: WorkloadSpec) -> bool:
        """Whether a schedule was added for a workload of any sizes."""
        return spec.sized.structure in self._own

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

    def add_rates(self, rates: Iterable[tuple[KernelSpec, float]]) -> None:
        """Add predicted seconds per cycle of the least that kernels can take, finite ones to the disk cache too."""
        for spec, rate in rates:
            sized = spec.workload.sized
            self._rates.setdefault(sized.structure, {}).setdefault(sized.sizes, rate)
            if self.one_of_each and math.isfinite(rate):
                keep_decision(RATE, spec, rate)

    def can_fuse(self, kernel_spec: KernelSpec) -> bool | None:
        """Return whether a fused kernel of the nearest sizes has a finite rate; None if no rate is known."""
        if self.one_of_each:
            self._add_cached([kernel_spec], RATE, self._rates, float)
        rate = _nearest(kernel_spec.workload, self._rates)
        return None if rate is None else math.isfinite(rate)

    def rate_of(self, spec: WorkloadSpec) -> float:
        """Return the rate of the nearest sizes, infinity if there are none."""
        rate = _nearest(spec, self._rates)
        return math.inf if rate is None else rate

    def seconds_of(self, spec: WorkloadSpec) -> float | None:
        """Return the predicted seconds; None if no workload is known whose sizes differ by one factor at most."""
        sized = spec.sized
        for sizes, seconds in self._seconds.get(sized.structure, {}).items():
            factors = {Fraction(a, b) for a, b in zip(sized.sizes, sizes, strict=True) if a != b}
            if len(factors) <= 1:
                return seconds * float(next(iter(factors), 1))
        return None


def _volume(kernel_spec: KernelSpec) -> int:
    return math.prod(kernel_spec.workload.sized.sizes)


def _nearest(spec: WorkloadSpec, known: Mapping[str, Mapping[Sizes, V]]) -> V | None:
    """Return what is known of the nearest sizes of a structure, the first of equally near ones."""
    sized = spec.sized
    by_sizes = known.get(sized.structure)
    return by_sizes[min(by_sizes, key=lambda sizes: distance(sized.sizes, sizes))] if by_sizes else None
