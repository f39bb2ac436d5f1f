"""Devices that kernels are compiled for: a target with a number of threads.

HARDWARE has a row for each kind of target: how its devices are found, its search space, its peaks and roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

from autosched.errors import DeviceError, UsageError
from autosched.ir.dtype import DTYPES
from autosched.target import Target, parse_target

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.kernel import roofline
    from autosched.measure import Measurer
    from autosched.te.dag import ComputeDAG
    from autosched.tuner.protocols import Candidate
    from search_spaces.partial_sketch import SketchRule
    from search_spaces.space import Sketch

PEAK_SHARE = {"float32": 1.0, "float64": 0.5}  # share of the single-precision peak; the peak of other types is unknown


@dataclass(frozen=True)
class Device:
    """A target and the number of threads of its kernels, 1 for a GPU."""

    target: Target
    threads: int

    @property
    def hardware(self) -> Hardware:
        return HARDWARE[self.target.kind]


@dataclass(frozen=True)
class Hardware:
    """The operations that differ between processors and GPUs.

    `find(target, its text, threads, whether code is to run)`: find the device of a target, see `find_device`.
    `check_present(target)`: raise DeviceError if code for it cannot run on this machine.
    `sketches(graph, device, rules of the user)`: generate the search space.
    `pipe(a kernel's source, dtype)`: the pipe of the kernel's arithmetic, a dtype or a row of tensor cores.
    `peak(device, pipe, measurer)`: measure the peak in GFLOP/s; None for a type whose peak is unknown.
    `roof(device, bytes, pipe)`: measure the roofline; None if the device is not of this machine.
    """

    find: Callable[[Target, str, int | None, bool], Device]
    check_present: Callable[[Target], None]
    sketches: Callable[[ComputeDAG, Device, Sequence[SketchRule]], tuple[Sketch, ...]]
    pipe: Callable[[Callable[[], Source], str], str]
    peak: Callable[[Device, str, Measurer], float | None]
    roof: Callable[[Device, int, str], roofline.Roof | None]


def peak_reader(
    device: Device, dtype: str, source: Callable[[Candidate], Source], measurer: Measurer
) -> Callable[[Candidate | None], float | None]:
    """Return a function that measures the peak, in GFLOP/s, of the pipe that the best candidate so far uses."""

    def read(best: Candidate | None) -> float | None:
        pipe = dtype if best is None else device.hardware.pipe(lambda: source(best), dtype)
        return device.hardware.peak(device, pipe, measurer)

    return read


def find_device(target: str | None, threads: int | None, *, runs: bool = True) -> Device:
    """Return the device that `target` names: a processor with `threads` threads (default: all its cores), or a GPU.

    Raises DeviceError, if `runs`, for a device of another machine, and UsageError for a bad number of threads.
    """
    parsed = parse_target(target)
    return HARDWARE[parsed.kind].find(parsed, target or "", threads, runs)


# Processors


def _find_processor(target: Target, text: str, threads: int | None, runs: bool) -> Device:
    from autosched.runtime.pool import MAX_THREADS

    if runs:
        _check_runs_here(target)
    number: object = threads
    if number is None:
        return Device(target, min(target.cores, MAX_THREADS))
    if isinstance(number, bool) or not (isinstance(number, Integral) and 1 <= int(number) <= MAX_THREADS):
        raise UsageError(f"threads must be a whole number from 1 to {MAX_THREADS}, got {threads!r}")
    return Device(target, int(number))


def _check_runs_here(target: Target) -> None:
    if not target.runs_here:
        lacks = ", ".join(target.missing_features) or f"the architecture {target.arch}"
        raise DeviceError(
            f"kernels for {target.mcpu} ({target.arch}) cannot be measured on this machine, which lacks {lacks}; "
            "use cpu"
        )


def _processor_sketches(dag: ComputeDAG, device: Device, rules: Sequence[SketchRule]) -> tuple[Sketch, ...]:
    from search_spaces import cpu

    return cpu.sketches(dag, device.target, device.threads, (*rules, *cpu.RULES))


def _processor_peak(device: Device, dtype: str) -> float | None:
    if dtype not in PEAK_SHARE:
        return None

    from autosched.measure.host import device_lock
    from autosched.runtime.peak import measure_fma_gflops

    with device_lock("cpu"):
        return PEAK_SHARE[dtype] * measure_fma_gflops(device.target, device.threads)


def _processor_roof(device: Device, n_bytes: int, dtype: str) -> roofline.Roof | None:
    from autosched.kernel import roofline

    if not device.target.runs_here:
        return None
    return roofline.measure_roof(device.target, device.threads, n_bytes, _processor_peak(device, dtype))


# GPUs


def _find_gpu(target: Target, text: str, threads: int | None, runs: bool) -> Device:
    if threads is not None:
        raise UsageError(f"threads are those of a processor, but the target is {target.kind}: leave them out")
    if not runs:
        return Device(target, 1)

    from autosched.runtime.gpu.devices import device_facts

    facts = device_facts(target.kind)
    if "-arch" in text and facts.arch != target.arch:
        raise DeviceError(
            f"the GPU of this machine ({facts.name}) is of {facts.arch}, so kernels for {target.arch} cannot be "
            "measured on it: leave -arch out, or search by the model alone (`autosched tune --no-run`)"
        )
    return Device(target.with_gpu(facts), 1)


def _check_is_here(target: Target) -> None:
    here = find_device(target.kind, None).target.fingerprint
    if here != target.fingerprint:
        raise DeviceError(
            f"the record's device is {target.fingerprint}, but this machine has {here}: tune here with "
            f"--target {target.kind}"
        )


def _gpu_sketches(dag: ComputeDAG, device: Device, rules: Sequence[SketchRule]) -> tuple[Sketch, ...]:
    from search_spaces import gpu

    return gpu.sketches(dag, device.target, (*rules, *gpu.RULES))


def _gpu_pipe(source: Callable[[], Source], dtype: str) -> str:
    """Return the pipe of the tensor cores if the kernel has their instructions, else that of `dtype`."""
    from autosched.codegen.c.source import GpuSource
    from autosched.ir.instructions.matrices import MATRICES

    code = source()
    assert isinstance(code, GpuSource)
    return MATRICES[code.matrices[-1]].pipe if code.matrices else DTYPES[dtype].computes_in


def _gpu_peak(device: Device, pipe: str, measurer: Measurer) -> float | None:
    """Measure the peak in the worker that holds the GPU."""
    from autosched.kernel import roofline

    return measurer.peak_gflops(pipe) if roofline.has_peak(device.target, pipe) else None


def _gpu_roof(device: Device, n_bytes: int, pipe: str) -> roofline.Roof | None:
    from autosched.kernel import roofline

    with suppress(DeviceError):
        _check_is_here(device.target)
        return roofline.measure_gpu_roof(device.target, n_bytes, pipe)
    return None


_PROCESSOR = Hardware(
    _find_processor,
    _check_runs_here,
    _processor_sketches,
    lambda source, dtype: dtype,
    lambda device, dtype, measurer: _processor_peak(device, dtype),
    _processor_roof,
)
_GPU = Hardware(_find_gpu, _check_is_here, _gpu_sketches, _gpu_pipe, _gpu_peak, _gpu_roof)
HARDWARE: dict[str, Hardware] = {"cpu": _PROCESSOR, "cuda": _GPU, "opencl": _GPU}
