"""Compiled kernels and schedules in the disk cache, by the key of their specification.

The entry of a kernel has the fields of its `KernelObject`, the keys of its compilation units, and its code. A kernel
with a unit that is not in the cache is a miss.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from autosched.kernel.compilation_units import find_unit
from autosched.kernel.spec import ChosenSchedule, KernelObject, KernelSpec
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.disk_cache import key_of, read, write


@dataclass(frozen=True)
class _Entry:
    """The fields of a `KernelObject` without its code; `units`: the keys of its units."""

    name: str
    array_bytes: tuple[int, ...]
    workspace_bytes: int
    packed_bytes: int
    winograd: int
    schedule: ChosenSchedule
    units: tuple[str, ...]
    sizes: str = ""


def find_object(kernel_spec: KernelSpec) -> KernelObject | None:
    """Return the compiled kernel of a specification; None for a miss."""
    entry = read(kernel_spec.key)
    if entry is None:
        return None
    try:
        fields: _Entry = checked(entry[0], _Entry, "a kernel")
    except ProtocolError:
        return None
    if fields.name != kernel_spec.name or min(fields.workspace_bytes, fields.packed_bytes, fields.winograd) < 0:
        return None
    units = tuple(unit for key in fields.units if (unit := find_unit(key)) is not None)
    if len(units) < len(fields.units):
        return None
    return KernelObject(
        fields.name, fields.array_bytes, fields.workspace_bytes, fields.packed_bytes, fields.winograd, fields.schedule,
        entry[1], units, fields.sizes,
    )  # fmt: skip


def keep_object(kernel_spec: KernelSpec, kernel: KernelObject) -> None:
    """Write a kernel whose units are in the cache. Raises UsageError where the directory cannot be used."""
    fields = _Entry(
        kernel.name, kernel.array_bytes, kernel.workspace_bytes, kernel.packed_bytes, kernel.winograd, kernel.schedule,
        tuple(unit.key for unit in kernel.units), kernel.sizes,
    )  # fmt: skip
    write(kernel_spec.key, asdict(fields), kernel.code)


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
