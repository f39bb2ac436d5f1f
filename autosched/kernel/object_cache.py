"""Compiled kernels and schedules in the disk cache, by the key of their specification.

The entry of a kernel has the fields of its `KernelObject`, the keys of its compilation units, and its code. A kernel
with a unit that is not in the cache is a miss. Code of sizes that are known at run time has an entry for the sizes that
it was compiled for, and is taken for all sizes for which its guards hold.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from autosched.kernel.compilation_units import find_unit
from autosched.kernel.spec import MAX_VARIANTS, ChosenSchedule, CodeSizes, KernelObject, KernelSpec, kernel_name
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.disk_cache import key_of, read, write
from autosched.runtime.versions import code_version


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


@dataclass(frozen=True)
class _Variants:
    """The keys of the code for sizes of one workload and schedule, the last MAX_VARIANTS."""

    keys: tuple[str, ...] = ()


def find_object(kernel_spec: KernelSpec) -> KernelObject | None:
    """Return the compiled kernel of a specification; None for a miss."""
    own = _find(kernel_spec.key)
    if own is not None or kernel_spec.sized is None:
        return own
    values = kernel_spec.sized.named_values
    for key in reversed(_variants(kernel_spec).keys):
        variant = _find(key)
        if variant is not None and (sizes := CodeSizes.parse(variant.sizes)).hold(values):
            _, array_bytes, workspace_bytes = sizes.numbers(values)
            return replace(variant, array_bytes=array_bytes, workspace_bytes=workspace_bytes)
    return None


def _find(key: str) -> KernelObject | None:
    entry = read(key)
    if entry is None:
        return None
    try:
        fields: _Entry = checked(entry[0], _Entry, "a kernel")
    except ProtocolError:
        return None
    if fields.name != kernel_name(key) or min(fields.workspace_bytes, fields.packed_bytes, fields.winograd) < 0:
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
    if kernel_spec.sized is not None:
        others = [key for key in _variants(kernel_spec).keys if key != kernel_spec.key]
        keys = (*others[1 - MAX_VARIANTS :], kernel_spec.key)
        write(_variants_key(kernel_spec), asdict(_Variants(keys)), b"")


def _variants(kernel_spec: KernelSpec) -> _Variants:
    entry = read(_variants_key(kernel_spec))
    try:
        return _Variants() if entry is None else checked(entry[0], _Variants, "variants")
    except ProtocolError:
        return _Variants()


def _variants_key(kernel_spec: KernelSpec) -> str:
    assert kernel_spec.sized is not None
    device = kernel_spec.device
    text = kernel_spec.sized.text
    return key_of("variants", text, device.target.fingerprint, str(device.threads), kernel_spec.steps, *code_version())


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
