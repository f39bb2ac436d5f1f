"""What a driver of a device must do, and the faults that it reports. The drivers: `devices.GPUS`.

A driver is a thin layer over one Python package. Everything that decides something (what to poison, how often to
launch, which copies to rotate) is above it, so that it holds for all drivers and for the scripted one of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from autosched.codegen.c.source import GpuSource
    from autosched.runtime.gpu.compile import Binary
    from autosched.target import GpuFacts

Array: TypeAlias = npt.NDArray[Any]
Stream: TypeAlias = Any  # an integer handle (CUDA), a queue (OpenCL); None is the device's own


# Faults after which nothing works any more in this process.
STICKY = ("illegal_address", "misaligned_address", "launch_failure", "device_lost", "hang")


class DeviceFault(Exception):
    """Something that a kernel or a request did to the device; `kind` is a class of `measure.results.FAULTS`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Memory:
    """A piece of device memory. `handle` is what a launch takes: an address (CUDA) or a buffer object (OpenCL)."""

    handle: Any
    nbytes: int


@dataclass(frozen=True)
class Call:
    """The launches of one kernel, in order, each bound to its buffers in the driver's own way."""

    launches: tuple[Any, ...]


class Device(Protocol):
    """One device and the context on it. Every method may raise DeviceFault.

    `alignment`: bytes that the offset of a `view` must be a multiple of. `stream`: the device's own, as a caller would
    name it. Transfers return when they are done; `fill`, `copy` and `run` may only have been queued, in order, and
    their faults may come with a later call.
    """

    name: str
    kind: str  # one of GPUS
    alignment: int

    @property
    def stream(self) -> Stream: ...

    def visiting(self) -> AbstractContextManager[None]:
        """What is done inside leaves the thread's current device as it was, for whoever else uses one in this process;
        a thread that calls the device outside keeps it as its own."""
        ...

    def facts(self) -> GpuFacts: ...

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes; free may be an estimate."""
        ...

    def allocate(self, nbytes: int) -> Memory: ...

    def free(self, memory: Memory) -> None: ...

    def view(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        """A part of `memory`, which must outlive it."""
        ...

    def adopt(self, address: int, nbytes: int) -> Memory:
        """Memory of this device that somebody else allocated and frees; for devices with addresses only."""
        ...

    def address(self, memory: Memory) -> int: ...

    def upload(self, memory: Memory, array: Array, offset: int = 0) -> None: ...

    def download(self, memory: Memory, array: Array, offset: int = 0) -> None: ...

    def copy(self, to: Memory, source: Memory) -> None: ...

    def fill(self, memory: Memory, pattern: bytes, offset: int, nbytes: int) -> None:
        """Repeats `pattern`, 1 or 2 bytes; `offset` and `nbytes` are multiples of its length."""
        ...

    def load(self, binary: Binary, source: GpuSource) -> Mapping[str, Any]:
        """The kernels of a compiled source by name."""
        ...

    def prepare(self, kernels: Mapping[str, Any], source: GpuSource, buffers: Mapping[str, Memory]) -> Call: ...

    def run(self, call: Call, stream: Stream = None) -> None: ...

    def record(self, stream: Stream = None) -> Any:
        """An event that happens when everything queued on `stream` so far is done."""
        ...

    def wait(self, event: Any, stream: Stream = None) -> None:
        """What is queued on `stream` from now on runs after `event`; the host need not wait."""
        ...

    def time(self, calls: Sequence[Call], repeats: int) -> float:
        """Seconds on the device of `repeats` calls one after the other, which go round `calls`."""
        ...

    def synchronise(self) -> None: ...

    def close(self) -> None: ...


def shortage(device: Device, sizes: Mapping[str, int]) -> str | None:
    """A sentence with all sizes when `sizes` (bytes by what they are for) together are more than what is free."""
    free, total = device.memory()
    need = sum(sizes.values())
    if need <= free:
        return None
    parts = ", ".join(f"{name} {_size(nbytes)}" for name, nbytes in sizes.items())
    return (
        f"{_size(need)} of device memory are needed ({parts}), but {_size(free)} of the {_size(total)} of "
        f"{device.name} are free"
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.3f} MB"


def raw(array: Array) -> npt.NDArray[np.uint8]:
    """The bytes of a C-contiguous array, without a copy."""
    assert array.flags.c_contiguous
    return array.reshape(-1).view(np.uint8)
