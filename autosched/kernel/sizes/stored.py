"""Tuned schedules for sizes: the steps of records of exact sizes, for all sizes of their class.

Records are of exact workloads. Where some of a class have one, that schedule is taken which is fast at most of them: a
schedule that was tuned over sizes has a record at each. Of equals the one of the nearest sizes is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from autosched.errors import AutoschedError
from autosched.ir.size import class_of
from autosched.kernel.device import Device
from autosched.kernel.lookup import open_stored
from autosched.store import Database
from autosched.tuner.sized_workload import OpenWorkload
from autosched.tuner.workload_spec import WorkloadSpec, distance

FAST = 1.25  # of the time of the best record for the same sizes: that of a schedule which counts as fast there
Sizes = tuple[int, ...]


def classes_of(sizes: Sizes) -> Sizes:
    """Return the classes of sizes, which have a schedule together."""
    return tuple(map(class_of, sizes))


def tuned_steps(db: Path | str | None, workload: OpenWorkload, device: Device, sizes: Mapping[str, int]) -> str | None:
    """Return the steps for the class of sizes, in JSON; None without verified records of sizes of the class."""
    asked = tuple(sizes[name] for name in workload.ranges)
    with open_stored(db) as database:
        times = {} if database is None else _times(database, workload, device, classes_of(asked))
    if not times:
        return None

    def order(steps: str) -> tuple[int, float]:
        n_fast = sum(steps in own and own[steps] <= FAST * min(own.values()) for own in times.values())
        return -n_fast, min(distance(asked, others) for others, own in times.items() if steps in own)

    return min(dict.fromkeys(min(own, key=own.__getitem__) for own in times.values()), key=order)


def _times(database: Database, workload: OpenWorkload, device: Device, classes: Sizes) -> dict[Sizes, dict[str, float]]:
    """Return the seconds of verified records by steps, for each sizes of the class that have some."""
    times: dict[Sizes, dict[str, float]] = {}
    for row in database.workloads():
        sizes = _sizes_of(row.spec, workload)
        if sizes is None or classes_of(sizes) != classes or not _has_hash(row.hash, workload, sizes):
            continue
        own = times.setdefault(sizes, {})
        for record in database.best(row.hash, device.target.fingerprint, device.threads, None):
            if record.verified and record.seconds is not None:
                own[record.steps] = min(record.seconds, own.get(record.steps, record.seconds))
    return {sizes: own for sizes, own in times.items() if own}


def _sizes_of(spec: str, workload: OpenWorkload) -> Sizes | None:
    """Return the sizes of a stored workload that differs from this one in them alone; None for other workloads."""
    positions = [f"args {name}" for name in workload.ranges]
    structure, numbers = WorkloadSpec(workload.definition.spec).numbers
    with suppress(AutoschedError, ValueError, TypeError, AttributeError, KeyError):  # of another version, or elsewhere
        other_structure, others = WorkloadSpec.from_record(spec).numbers
        if other_structure == structure and others == {**numbers, **{p: others[p] for p in positions}}:
            sizes = tuple(others[p] for p in positions)
            is_allowed = all(n in allowed for n, allowed in zip(sizes, workload.ranges.values(), strict=True))
            return sizes if is_allowed else None
    return None


def _has_hash(content_hash: str, workload: OpenWorkload, sizes: Sizes) -> bool:
    """Whether a stored hash is that of these sizes: what a function of the same name computes may have changed."""
    try:
        return workload.make_dag(dict(zip(workload.ranges, sizes, strict=True))).content_hash == content_hash
    except AutoschedError:
        return False
