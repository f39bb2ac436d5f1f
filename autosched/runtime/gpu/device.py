"""Protocol of device drivers, and the faults that they report. The drivers: `devices.GPUS`.

A driver is a thin layer over one Python package. All decisions (which memory to poison, how often to launch, which
copies to rotate) are made by its callers, so that they hold for all drivers and for the scripted one of the tests.
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


# Faults after which this process cannot use the device any more.
STICKY = ("illegal_address", "misaligned_address", "launch_failure", "device_lost", "hang")


class DeviceFault(Exception):
    """A fault of a kernel or a request on the device; `kind` is a class of `measure.results.FAULTS`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class DeviceMemory:
    """A block of device memory. `handle`: the argument of a launch, an address (CUDA) or a buffer object (OpenCL)."""

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
        """A context in which the thread may use the device, and which restores the thread's current device at
        its end.
        """
        ...

    def facts(self) -> GpuFacts: ...

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes; free may be an estimate."""
        ...

    def allocate(self, nbytes: int) -> DeviceMemory: ...

    def free(self, memory: DeviceMemory) -> None: ...

    def view(self, memory: DeviceMemory, offset: int, nbytes: int) -> DeviceMemory:
        """Return a part of `memory`, which must outlive it."""
        ...

    def adopt(self, address: int, nbytes: int) -> DeviceMemory:
        """Return memory of this device that another library allocated and frees; for devices with addresses only."""
        ...

    def address(self, memory: DeviceMemory) -> int: ...

    def upload(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None: ...

    def download(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None: ...

    def copy(self, to: DeviceMemory, source: DeviceMemory) -> None: ...

    def fill(self, memory: DeviceMemory, pattern: bytes, offset: int, nbytes: int) -> None:
        """Repeat `pattern`, 1 or 2 bytes; `offset` and `nbytes` are multiples of its length."""
        ...

    def load(self, binary: DeviceCode, source: GpuSource) -> Mapping[str, Any]:
        """Return the kernels of a compiled source by name."""
        ...

    def prepare(
        self, kernels: Mapping[str, Any], source: GpuSource, buffers: Mapping[str, DeviceMemory]
    ) -> LaunchSequence: ...

    def run(self, call: LaunchSequence, stream: Stream = None) -> None: ...

    def capture(self, call: LaunchSequence) -> LaunchSequence:
        """Return the launches in the form that the driver starts fastest, a CUDA graph, or `call` if it has none. The
        result keeps the buffers of `call` alive.
        """
        ...

    def record(self, stream: Stream = None, reused_event: Any = None) -> Any:
        """Return an event that happens when all work queued on `stream` so far is done. `reused_event`: an earlier
        event that may be reused; waits for it that were queued before are not affected.
        """
        ...

    def wait(self, event: Any, stream: Stream = None) -> None:
        """Make the work queued on `stream` from now on run after `event`; the host need not wait."""
        ...

    def time(self, calls: Sequence[LaunchSequence], repeats: int) -> float:
        """Return the seconds on the device of `repeats` successive calls, which take `calls` in turn."""
        ...

    def synchronise(self) -> None: ...

    def close(self) -> None: ...


def shortage(device: GpuDevice, sizes: Mapping[str, int]) -> str | None:
    """Return a sentence with all sizes if `sizes` (bytes by purpose) together exceed the free memory, else None."""
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
    """Return the bytes of a C-contiguous array, without a copy."""
    assert array.flags.c_contiguous
    return array.reshape(-1).view(np.uint8)
