"""What kernels are made for: a target with a number of threads, and what it can do at most."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

from autosched.errors import DeviceError, UsageError
from autosched.ir.dtype import DTYPES
from autosched.target import Target, parse_target

if TYPE_CHECKING:
    from autosched.te.dag import ComputeDAG

PEAK_SHARE = {"float32": 1.0, "float64": 0.5}  # of the single-precision peak; other types have none


@dataclass(frozen=True)
class Device:
    target: Target
    threads: int


def find_device(target: str | None, threads: int | None, *, runs: bool = True) -> Device:
    """The device that `target` names: a processor with all its cores unless `threads` says how many, or a GPU.

    Raises DeviceError, if `runs`, for one that is not of this machine, and UsageError for a bad number of threads.
    """
    found = parse_target(target)
    return _processor(found, threads, runs) if found.kind == "cpu" else _gpu(found, target or "", threads, runs)


def check_runs_here(target: Target) -> None:
    """Raises DeviceError for a processor whose code this machine cannot execute."""
    if not target.runs_here:
        lacks = ", ".join(target.missing_features) or f"the architecture {target.arch}"
        raise DeviceError(
            f"kernels for {target.mcpu} ({target.arch}) cannot be measured on this machine, which lacks {lacks}; "
            "use cpu"
        )


def check_dtypes(dag: ComputeDAG, target: Target) -> None:
    """Raises UsageError for a type that kernels for `target` cannot have."""
    from autosched.te.tensor import postorder

    inside = {e.dtype for op in dag.stages for e in postorder(op.body)}
    for dtype in sorted({t.dtype for t in dag.tensors.values()} | inside):
        if target.kind != "cpu" and DTYPES[dtype].is_stored_only:
            instead = f"use {DTYPES[dtype].computes_in} there, or the target cpu"
            raise UsageError(f"{dtype} is not supported on {target.kind} yet: {instead}")


def _processor(found: Target, threads: int | None, runs: bool) -> Device:
    from autosched.runtime.pool import MAX_THREADS

    if runs:
        check_runs_here(found)
    number: object = threads
    if number is None:
        return Device(found, min(found.cores, MAX_THREADS))
    if isinstance(number, bool) or not (isinstance(number, Integral) and 1 <= int(number) <= MAX_THREADS):
        raise UsageError(f"threads must be a whole number from 1 to {MAX_THREADS}, got {threads!r}")
    return Device(found, int(number))


def _gpu(found: Target, text: str, threads: int | None, runs: bool) -> Device:
    if threads is not None:
        raise UsageError(f"threads are those of a processor, but the target is {found.kind}: leave them out")
    if not runs:
        return Device(found, 1)

    from autosched.runtime.gpu.devices import device_facts

    facts = device_facts(found.kind)
    if "-arch" in text and facts.arch != found.arch:
        raise DeviceError(
            f"the GPU of this machine ({facts.name}) is of {facts.arch}, so kernels for {found.arch} cannot be "
            "measured on it: leave -arch out, or search by the model alone (--no-run)"
        )
    return Device(found.with_gpu(facts), 1)


def peak_gflops(device: Device, dtype: str) -> float | None:
    """What the processor can do at most, measured now; None for integer types."""
    if dtype not in PEAK_SHARE:
        return None

    from autosched.measure.host import device_lock
    from autosched.runtime.peak import measure_fma_gflops

    with device_lock("cpu"):
        return PEAK_SHARE[dtype] * measure_fma_gflops(device.target, device.threads)
