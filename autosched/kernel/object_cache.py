"""Compiled kernels in the disk cache, by the key of their specification: the fields of a `KernelObject`, the keys of
its compilation units, and its code. A kernel with a unit that is not in the cache is a miss."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from autosched.kernel.compilation_units import find_part
from autosched.kernel.spec import KernelObject, KernelSpec
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.disk_cache import read, write


@dataclass(frozen=True)
class _Facts:
    """The fields of a `KernelObject` beside its code; `parts`: the keys of its parts."""

    name: str
    array_bytes: tuple[int, ...]
    workspace_bytes: int
    packed_bytes: int
    winograd: int
    steps: str
    sketch: str
    estimate_s: float
    parts: tuple[str, ...]


def find_object(kernel_spec: KernelSpec) -> KernelObject | None:
    """Return the compiled kernel of a specification; None for a miss."""
    found = read(kernel_spec.key)
    if found is None:
        return None
    try:
        facts: _Facts = checked(found[0], _Facts, "a kernel")
    except ProtocolError:
        return None
    if facts.name != kernel_spec.name or min(facts.workspace_bytes, facts.packed_bytes, facts.winograd) < 0:
        return None
    parts = [find_part(key) for key in facts.parts]
    kept = tuple(part for part in parts if part is not None)
    if len(kept) < len(parts):
        return None
    return KernelObject(
        facts.name, facts.array_bytes, facts.workspace_bytes, facts.packed_bytes, facts.winograd, facts.steps,
        found[1], facts.sketch, facts.estimate_s, kept,
    )  # fmt: skip


def keep_object(kernel_spec: KernelSpec, made: KernelObject) -> None:
    """Writes a kernel for later; its parts are there. Raises UsageError where the directory cannot be used."""
    facts = _Facts(
        made.name, made.array_bytes, made.workspace_bytes, made.packed_bytes, made.winograd, made.steps, made.sketch,
        made.estimate_s, tuple(part.key for part in made.parts),
    )  # fmt: skip
    write(kernel_spec.key, asdict(facts), made.code)
