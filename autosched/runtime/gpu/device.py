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
    from autosched.runtime.gpu.compile import DeviceCode
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
class DeviceMemory:
    """A piece of device memory. `handle` is what a launch takes: an address (CUDA) or a buffer object (OpenCL)."""

    handle: Any
    nbytes: int


@dataclass(frozen=True)
class LaunchSequence:
    """The launches of one kernel or of several, in order, each bound to its buffers in the driver's own way."""

    launches: tuple[Any, ...]


class GpuDevice(Protocol):
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

    def allocate(self, nbytes: int) -> DeviceMemory: ...

    def free(self, memory: DeviceMemory) -> None: ...

    def view(self, memory: DeviceMemory, offset: int, nbytes: int) -> DeviceMemory:
        """A part of `memory`, which must outlive it."""
        ...

    def adopt(self, address: int, nbytes: int) -> DeviceMemory:
        """Memory of this device that somebody else allocated and frees; for devices with addresses only."""
        ...

    def address(self, memory: DeviceMemory) -> int: ...

    def upload(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None: ...

    def download(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None: ...

    def copy(self, to: DeviceMemory, source: DeviceMemory) -> None: ...

    def fill(self, memory: DeviceMemory, pattern: bytes, offset: int, nbytes: int) -> None:
        """Repeats `pattern`, 1 or 2 bytes; `offset` and `nbytes` are multiples of its length."""
        ...

    def load(self, binary: DeviceCode, source: GpuSource) -> Mapping[str, Any]:
        """The kernels of a compiled source by name."""
        ...

    def prepare(
        self, kernels: Mapping[str, Any], source: GpuSource, buffers: Mapping[str, DeviceMemory]
    ) -> LaunchSequence: ...

    def run(self, call: LaunchSequence, stream: Stream = None) -> None: ...

    def capture(self, call: LaunchSequence) -> LaunchSequence:
        """The same launches in the form that the driver starts quickest, as a CUDA graph; where it has none, `call`.
        Whoever holds it holds what `call` is bound to."""
        ...

    def record(self, stream: Stream = None, again: Any = None) -> Any:
        """An event that happens when everything queued on `stream` so far is done. `again`: an earlier one that may
        become it, if the driver has such; who was told to wait for that waits for what it was then."""
        ...

    def wait(self, event: Any, stream: Stream = None) -> None:
        """What is queued on `stream` from now on runs after `event`; the host need not wait."""
        ...

    def time(self, calls: Sequence[LaunchSequence], repeats: int) -> float:
        """Seconds on the device of `repeats` calls one after the other, which go round `calls`."""
        ...

    def synchronise(self) -> None: ...

    def close(self) -> None: ...


def shortage(device: GpuDevice, sizes: Mapping[str, int]) -> str | None:
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
