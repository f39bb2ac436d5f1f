"""Decisions by structure: schedules and predicted rates of kernels that differ in sizes alone.

The shipped table has decisions for common structures, the disk cache those of earlier networks. An entry of the cache
has the decisions for several sizes of one structure, for a target, a number of threads and a version of the compiler.
A network takes the decisions for the nearest sizes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from autosched.kernel.shipped.table import Decision, Sizes, find_shipped
from autosched.kernel.spec import KernelSpec
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.disk_cache import key_of, read, write
from autosched.runtime.versions import code_version

SCHEDULE, RATE = "schedules", "rates"  # what is decided
MAX_SIZES = 32  # of an entry: the latest


@dataclass(frozen=True)
class _Decision:
    """A decision in JSON for the sizes of a structure."""

    sizes: Sizes
    decision: str


@dataclass(frozen=True)
class _Entry:
    decisions: tuple[_Decision, ...] = ()


def find_decisions(what: str, kernel_spec: KernelSpec, hint: type[Decision]) -> dict[Sizes, Decision]:
    """Return the decisions for the structure of a kernel, by sizes: `what`, of the type `hint`.

    Those of the disk cache are for the processor itself, and replace shipped ones for the same sizes.
    """
    shipped = find_shipped(what, kernel_spec.workload.sized.structure, kernel_spec.device, hint)
    entry, n = _read(what, kernel_spec), len(kernel_spec.workload.sized.sizes)
    decisions = {row.sizes: json.loads(row.decision) for row in entry.decisions if len(row.sizes) == n}
    return shipped | {sizes: decision for sizes, decision in decisions.items() if isinstance(decision, hint)}


def keep_decision(what: str, kernel_spec: KernelSpec, decision: str | float) -> None:
    """Add a decision for the sizes of a kernel. Raises UsageError where the directory cannot be used.

    Of two processes that write to an entry at a time, the decision of one may be lost.
    """
    sizes = kernel_spec.workload.sized.sizes
    others = [row for row in _read(what, kernel_spec).decisions if row.sizes != sizes]
    entry = _Entry((*others[1 - MAX_SIZES :], _Decision(sizes, json.dumps(decision))))
    write(_key(what, kernel_spec), asdict(entry), b"")


def _read(what: str, kernel_spec: KernelSpec) -> _Entry:
    entry = read(_key(what, kernel_spec))
    try:
        return _Entry() if entry is None else checked(entry[0], _Entry, "decisions")
    except ProtocolError:
        return _Entry()


def _key(what: str, kernel_spec: KernelSpec) -> str:
    structure, device = kernel_spec.workload.sized.structure, kernel_spec.device
    return key_of(f"{what} by structure", structure, device.target.fingerprint, str(device.threads), *code_version())
