"""Compiled kernels and schedules in the disk cache, by the key of their specification.

The entry of a kernel has the fields of its `KernelObject`, the keys of its compilation units, and its code. A kernel
with a unit that is not in the cache is a miss.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from autosched.kernel.compilation_units import find_part
from autosched.kernel.spec import ChosenSchedule, KernelObject, KernelSpec
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.disk_cache import key_of, read, write


@dataclass(frozen=True)
class _Facts:
    """The fields of a `KernelObject` beside its code; `parts`: the keys of its parts."""

    name: str
    array_bytes: tuple[int, ...]
    workspace_bytes: int
    packed_bytes: int
    winograd: int
    schedule: ChosenSchedule
    parts: tuple[str, ...]


def find_object(kernel_spec: KernelSpec) -> KernelObject | None:
    """Return the compiled kernel of a specification; None for a miss."""
    entry = read(kernel_spec.key)
    if entry is None:
        return None
    try:
        facts: _Facts = checked(entry[0], _Facts, "a kernel")
    except ProtocolError:
        return None
    if facts.name != kernel_spec.name or min(facts.workspace_bytes, facts.packed_bytes, facts.winograd) < 0:
        return None
    parts = tuple(part for key in facts.parts if (part := find_part(key)) is not None)
    if len(parts) < len(facts.parts):
        return None
    return KernelObject(
        facts.name, facts.array_bytes, facts.workspace_bytes, facts.packed_bytes, facts.winograd, facts.schedule,
        entry[1], parts,
    )  # fmt: skip


def keep_object(kernel_spec: KernelSpec, kernel: KernelObject) -> None:
    """Write a kernel whose parts are in the cache. Raises UsageError where the directory cannot be used."""
    facts = _Facts(
        kernel.name, kernel.array_bytes, kernel.workspace_bytes, kernel.packed_bytes, kernel.winograd, kernel.schedule,
        tuple(part.key for part in kernel.parts),
    )  # fmt: skip
    write(kernel_spec.key, asdict(facts), kernel.code)


def find_schedule(kernel_spec: KernelSpec) -> ChosenSchedule | None:
    """Return the analytic model's schedule of a specification; None for a miss."""
    entry = read(_schedule_key(kernel_spec))
    if entry is None:
        return None
    try:
        schedule: ChosenSchedule = checked(entry[0], ChosenSchedule, "a schedule")
    except ProtocolError:
        return None
    return schedule


def keep_schedule(kernel_spec: KernelSpec, schedule: ChosenSchedule) -> None:
    """Write the analytic model's schedule. Raises UsageError where the directory cannot be used."""
    write(_schedule_key(kernel_spec), asdict(schedule), b"")


def _schedule_key(kernel_spec: KernelSpec) -> str:
    return key_of("schedule", kernel_spec.key)
