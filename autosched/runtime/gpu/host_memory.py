"""Base of simulated and scripted devices: their memory is the host's, and every call is complete when it returns."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from autosched.runtime.gpu.device import Array, DeviceMemory, LaunchSequence, Stream, raw
from autosched.runtime.tensors import aligned_empty

ALIGNMENT_BYTES = 512  # alignment of allocations


class HostMemory:
    """Device memory on the host; a handle is an array of bytes."""

    alignment = 256
    stream: Stream = 16  # a handle as CUDA's

    def visiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def allocate(self, nbytes: int) -> DeviceMemory:
        padded = aligned_empty((nbytes + ALIGNMENT_BYTES,), "uint8")
        offset = -padded.ctypes.data % ALIGNMENT_BYTES
        memory = padded[offset : offset + nbytes]
        memory[:] = 0
        return DeviceMemory(memory, nbytes)

    def free(self, memory: DeviceMemory) -> None:
        self._check()

    def view(self, memory: DeviceMemory, offset: int, nbytes: int) -> DeviceMemory:
        return DeviceMemory(memory.handle[offset : offset + nbytes], nbytes)

    def adopt(self, address: int, nbytes: int) -> DeviceMemory:
        return DeviceMemory(np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)), nbytes)

    def address(self, memory: DeviceMemory) -> int:
        return int(memory.handle.ctypes.data)

    def upload(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None:
        self._check()
        memory.handle[offset : offset + array.nbytes] = raw(array)

    def download(self, memory: DeviceMemory, array: Array, offset: int = 0) -> None:
        self._check()
        raw(array)[:] = memory.handle[offset : offset + array.nbytes]

    def copy(self, to: DeviceMemory, source: DeviceMemory) -> None:
        self._check()
        to.handle[:] = source.handle

    def fill(self, memory: DeviceMemory, pattern: bytes, offset: int, nbytes: int) -> None:
        self._check()
        memory.handle[offset : offset + nbytes].reshape(-1, len(pattern))[:] = np.frombuffer(pattern, np.uint8)

    def capture(self, call: LaunchSequence) -> LaunchSequence:
        return call

    def record(self, stream: Stream = None, reused_event: Any = None) -> Any:
        self._check()

    def wait(self, event: Any, stream: Stream = None) -> None:
        self._check()

    def synchronise(self) -> None:
        self._check()

    def close(self) -> None:
        pass

    def _check(self) -> None:
        """Raise DeviceFault if the context is lost."""
