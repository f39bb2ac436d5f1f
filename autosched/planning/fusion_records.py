"""Recorded fusion decisions: whether a subgraph was faster fused or unfused in its network, for later loads.

The record database holds a subgraph as a workload of its own, beside that of its fused kernel, with two candidates that
have no schedule: fused and unfused. Their times are those in the network. The faster one is certified, and so is the
other one if it was slower: the latest comparison counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from autosched.kernel.spec import KernelSpec
from autosched.measure.results import median_interval
from autosched.store import Database, TargetRow, WorkloadRow
from autosched.store.records import Finding, digest

FUSED, UNFUSED = "joined", "apart"  # the candidates' names in databases; names of sketches have colons
NO_STEPS = "[]"


@dataclass(frozen=True)
class FusionTimes:
    """Seconds of a subgraph in the running network, fused and unfused, one per profile.

    `kernel_spec` is that of the fused kernel; `is_fused`: whether it was kept.
    """

    kernel_spec: KernelSpec
    fused_s: tuple[float, ...]
    unfused_s: tuple[float, ...]
    is_fused: bool

    @property
    def operators(self) -> str:
        return self.kernel_spec.request.problem.name

    def to_json(self) -> dict[str, object]:
        return {
            "operators": self.operators,
            "joined_s": min(self.fused_s),
            "apart_s": min(self.unfused_s),
            "is_joined": self.is_fused,
        }

    def __str__(self) -> str:
        kept = "one kernel" if self.is_fused else "kernels apart"
        return (
            f"{kept} of {self.operators.replace('-', ' ')}: "
            f"{1e6 * min(self.fused_s):.0f} us in the network as one, {1e6 * min(self.unfused_s):.0f} us apart"
        )


def store_fusion_decisions(database: Database, comparisons: Iterable[FusionTimes]) -> None:
    """Store the times and the decision of each comparison. Raises StoreError."""
    for comparison in comparisons:
        device, workload = comparison.kernel_spec.device, _workload(comparison.kernel_spec)
        target = TargetRow(device.target.fingerprint, json.dumps(asdict(device.target), sort_keys=True))
        run = database.start_run(workload, target, device.threads, 0)
        times: Mapping[str, tuple[float, ...]] = {FUSED: comparison.fused_s, UNFUSED: comparison.unfused_s}
        kept = FUSED if comparison.is_fused else UNFUSED
        for name, seconds in times.items():
            record = database.append(run, name, NO_STEPS, {}, 0, Finding(min(seconds), seconds))
            if name == kept or min(seconds) > min(times[kept]):
                database.certify(record, min(seconds), median_interval(seconds), run)
        database.finish_run(run)


def stored_fusion_decision(database: Database, kernel_spec: KernelSpec) -> bool | None:
    """Return whether the latest comparison on this device kept the fused kernel of `kernel_spec`; None without one."""
    workload, device = _workload(kernel_spec).hash, kernel_spec.device
    best = database.best(workload, device.target.fingerprint, device.threads)
    certified = [record.sketch for record in best if record.verified and record.certified]
    return certified[0] == FUSED if certified else None


def _workload(kernel_spec: KernelSpec) -> WorkloadRow:
    data = {**kernel_spec.workload.data, "forms": [FUSED, UNFUSED]}
    spec = json.dumps(data, sort_keys=True)
    return WorkloadRow(digest(spec), f"{kernel_spec.request.problem.name}, joined or apart", spec)
