"""What kernels are made for: a target with a number of threads, and what it can do at most."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.errors import DeviceError, UsageError
from autosched.target import Target, parse_target

PEAK_SHARE = {"float32": 1.0, "float64": 0.5}  # of the single-precision peak; other types have none


@dataclass(frozen=True)
class Device:
    target: Target
    threads: int


def find_device(target: str | None, threads: int | None, *, runs: bool = True) -> Device:
    """The device that `target` names, with all its cores unless `threads` says how many.

    Raises DeviceError for one that this build has no code generator for, and, if `runs`, one that is not this machine.
    """
    from autosched.runtime.pool import MAX_THREADS

    found = parse_target(target)
    if found.kind != "cpu":
        raise DeviceError(
            f"the target {found.kind} is not supported by this build yet: it lacks a code generator for it; use cpu"
        )
    if runs and not found.runs_here:
        lacks = ", ".join(found.missing_features) or f"the architecture {found.arch}"
        raise DeviceError(
            f"kernels for {found.mcpu} ({found.arch}) cannot be measured on this machine, which lacks {lacks}; use cpu"
        )
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads must be from 1 to {MAX_THREADS}, got {threads}")
    return Device(found, threads or min(found.cores, MAX_THREADS))


def peak_gflops(device: Device, dtype: str) -> float | None:
    """What the processor can do at most, measured now; None for integer types."""
    if dtype not in PEAK_SHARE:
        return None

    from autosched.measure.host import device_lock
    from autosched.runtime.peak import measure_fma_gflops

    with device_lock("cpu"):
        return PEAK_SHARE[dtype] * measure_fma_gflops(device.target, device.threads)
