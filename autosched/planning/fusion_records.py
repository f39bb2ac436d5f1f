"""Which form of a part of a network was faster when both ran in it: kept in the record database, found at load.

A part is a workload of its own beside that of its one kernel, with two candidates that have no schedule: the part as
one kernel, and as several. Their times are those in the network. The faster one is certified, and so is the other where
it took longer: the latest contest counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from autosched.kernel.spec import Recipe
from autosched.measure.results import median_interval
from autosched.store import Database, TargetRow, WorkloadRow
from autosched.store.records import Finding, digest

JOINED, APART = "joined", "apart"  # candidates; sketches have names with colons
NO_STEPS = "[]"


@dataclass(frozen=True)
class PartTimes:
    """A part of a network as it ran there: seconds as one kernel and as several, of a few profiles; `is_joined`:
    which of them was kept."""

    recipe: Recipe
    joined_s: tuple[float, ...]
    apart_s: tuple[float, ...]
    is_joined: bool

    @property
    def operators(self) -> str:
        return self.recipe.request.problem.name

    def to_json(self) -> dict[str, object]:
        """JSON data."""
        return {
            "operators": self.operators,
            "joined_s": min(self.joined_s),
            "apart_s": min(self.apart_s),
            "is_joined": self.is_joined,
        }

    def __str__(self) -> str:
        form = "one kernel" if self.is_joined else "kernels apart"
        return (
            f"{form} of {self.operators.replace('-', ' ')}: "
            f"{1e6 * min(self.joined_s):.0f} us in the network as one, {1e6 * min(self.apart_s):.0f} us apart"
        )


def keep_forms(database: Database, parts: Iterable[PartTimes]) -> None:
    """Stores what a contest has found. Raises StoreError."""
    for part in parts:
        device, workload = part.recipe.device, _workload(part.recipe)
        target = TargetRow(device.target.fingerprint, json.dumps(asdict(device.target), sort_keys=True))
        run = database.start_run(workload, target, device.threads, 0)
        times: Mapping[str, tuple[float, ...]] = {JOINED: part.joined_s, APART: part.apart_s}
        kept = JOINED if part.is_joined else APART
        for name, seconds in times.items():
            found = Finding(min(seconds), seconds)
            record = database.append(run, name, NO_STEPS, {}, 0, found)
            if name == kept or min(seconds) > min(times[kept]):
                database.certify(record, min(seconds), median_interval(seconds), run)
        database.finish_run(run)


def stored_form(database: Database, recipe: Recipe) -> bool | None:
    """Whether the part of a recipe is one kernel, by the latest contest on this device; None where there was none."""
    workload, device = _workload(recipe).hash, recipe.device
    best = database.best(workload, device.target.fingerprint, device.threads)
    known = [record.sketch for record in best if record.verified and record.certified]
    return known[0] == JOINED if known else None


def _workload(recipe: Recipe) -> WorkloadRow:
    data = {**json.loads(recipe.spec), "forms": [JOINED, APART]}
    spec = json.dumps(data, sort_keys=True)
    return WorkloadRow(digest(spec), f"{recipe.request.problem.name}, joined or apart", spec)
