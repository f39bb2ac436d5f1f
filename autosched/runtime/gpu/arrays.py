"""Arrays in device memory: arguments and results of kernels without copies through the host.

Work on a device is queued on streams. Every block of memory has an event of its last use, and the next use, on
whichever stream, waits for it; the host waits only when it reads.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from autosched.errors import DeviceError, UsageError
from autosched.ir.dtype import numpy_dtype
from autosched.runtime.gpu import dlpack
from autosched.runtime.gpu.device import STICKY, Array, DeviceFault, DeviceMemory, GpuDevice, Stream, shortage
from autosched.runtime.gpu.devices import GPUS, shared_device
from autosched.runtime.gpu.foreign_arrays import ArrayLocation, ForeignArray, borrow, describe, is_dense, location_of
from autosched.runtime.tensors import materialised


@dataclass(frozen=True)
class LastUse:
    """The last operation queued on a block of memory. `event` is None on the device's own stream."""

    stream: Stream
    event: Any


class DeviceBlock:
    """A block of device memory and its last use, None if nothing is pending. `keeper`: the owner of the memory, None if
    this process is to free it.
    """

    def __init__(
        self,
        device: GpuDevice,
        memory: DeviceMemory,
        owner: object = None,
        used: LastUse | None = None,
        read_only: bool = False,
    ) -> None:
        self.device, self.memory, self.owner, self.used, self.read_only = device, memory, owner, used, read_only
        if owner is None:
            weakref.finalize(self, _release, device, memory).atexit = False  # the driver frees the rest at the end


def _release(device: GpuDevice, memory: DeviceMemory) -> None:
    """Free memory; drivers do so after all work that was queued before. After a fault that loses the context nothing
    can be freed.
    """
    with suppress(DeviceFault), device.visiting():
        device.free(memory)


def queue_after(device: GpuDevice, blocks: Iterable[DeviceBlock], stream: Stream) -> None:
    """Make `stream` (None: the device's own) wait for the last use of each block."""
    waiting = [
        (block, block.used) for block in blocks if block.used is not None and not _is_on_stream(block.used, stream)
    ]
    events = {id(use.event): use.event for _, use in waiting if use.event is not None}
    if any(use.event is None for _, use in waiting):
        events[0] = device.record(None)
    for event in events.values():
        device.wait(event, stream)
    if stream is None:
        for block, _ in waiting:
            block.used = LastUse(None, None)


def _is_on_stream(use: LastUse, stream: Stream) -> bool:
    return bool(use.stream == stream) and stream != dlpack.THREAD_STREAM


def mark_used(device: GpuDevice, blocks: Iterable[DeviceBlock], stream: Stream, reused_event: Any = None) -> Any:
    """Record that the work just queued on `stream` uses the blocks; return its event if one is needed. `reused_event`:
    an earlier event that may be reused.
    """
    blocks = list(blocks)
    if not blocks:
        return None
    use = LastUse(stream, None if stream is None else device.record(stream, reused_event))
    for block in blocks:
        block.used = use
    return use.event


class DeviceVisit:
    """See `device_errors`. A class, because a generator would double the time of a call."""

    __slots__ = ("_device", "_inside")

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._inside = self._device.visiting()
        try:
            self._inside.__enter__()
        except DeviceFault as fault:
            raise _error_of(self._device, fault) from None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._inside.__exit__(kind, error, trace)
        if isinstance(error, DeviceFault):
            raise _error_of(self._device, error) from None


def device_errors(device: GpuDevice) -> DeviceVisit:
    """Turn the device's faults into errors that say what still works; another library's device stays current."""
    return DeviceVisit(device)


def _error_of(device: GpuDevice, fault: DeviceFault) -> DeviceError:
    end = "; this process cannot use the device any more, start it again" if fault.kind in STICKY else ""
    return DeviceError(f"{device.name}: {fault} ({fault.kind.replace('_', ' ')}){end}")


def allocate(device: GpuDevice, sizes: Mapping[str, int]) -> dict[str, DeviceBlock]:
    """Return uninitialised memory, bytes by name. Raises DeviceError with all sizes if they do not fit."""
    with device_errors(device):
        message = shortage(device, sizes)
        if message is not None:
            raise DeviceError(message)
        return {name: DeviceBlock(device, device.allocate(nbytes)) for name, nbytes in sizes.items()}


class DeviceArray:
    """A dense row-major array in device memory. `numpy()` copies it to the host.

    On CUDA, torch.from_dlpack, cupy.asarray, jax.dlpack.from_dlpack and the like take it without a copy. The memory is
    freed with the last array that uses it, of whatever library.
    """

    def __init__(self, block: DeviceBlock, shape: Sequence[int], dtype: str | np.dtype[Any]) -> None:
        self._block = block
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)

    @property
    def block(self) -> DeviceBlock:
        return self._block

    @property
    def device(self) -> str:
        return self._block.device.kind

    @property
    def place(self) -> ArrayLocation:
        return ArrayLocation(self._block.device.kind)

    @property
    def stream(self) -> Stream:
        """The device's own stream, on which copies run: a handle on CUDA, a pyopencl.CommandQueue on OpenCL."""
        return self._block.device.stream

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def numpy(self) -> Array:
        """Return a copy on the host, after all work queued on the array. Raises DeviceError."""
        host: Array = np.empty(self.shape, self.dtype)
        download(self._block, host)
        return host

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not GPUS[self.device].has_addresses:
            raise AttributeError(f"an array on {self.device} has no __cuda_array_interface__")
        device = self._block.device
        with device_errors(device):
            queue_after(device, (self._block,), None)  # orders all uses before later work on the stream returned below
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (device.address(self._block.memory), self._block.read_only),
            "strides": None,
            "version": 3,
            "stream": device.stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (next(code for code, kind in dlpack.DEVICES.items() if kind == self.device), 0)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule whose consumer may queue work on `stream` at once: None and 1 are CUDA's default stream, -1
        requests no order. Raises BufferError for arrays that cannot be shared.
        """
        if dl_device is not None and tuple(dl_device) == (dlpack.CPU, 0):
            if copy is False:
                raise BufferError(f"an array on {self.device} cannot go to the host without a copy")
            return self.numpy().__dlpack__()
        if not GPUS[self.device].has_addresses:
            raise BufferError(f"an array on {self.device} is not shared through DLPack; call its numpy()")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on the DLPack device {self.__dlpack_device__()}, not on {dl_device}")
        if stream == 0:
            raise BufferError("the stream 0 is ambiguous: 1 is CUDA's default stream, 2 that of the thread")
        shared = self._copied() if copy else self
        device, block = shared._block.device, shared._block
        if stream != dlpack.NO_ORDER:
            with device_errors(device):
                target = dlpack.LEGACY_STREAM if stream is None else int(stream)
                queue_after(device, (block,), None if target == device.stream else target)
        versioned = max_version is not None and max_version[0] >= 1
        if block.read_only and not versioned:
            raise BufferError("the array is read-only, which DLPack before 1.0 cannot say")
        address, (kind, number) = device.address(block.memory), self.__dlpack_device__()
        tensor = dlpack.DLTensor(address, kind, number, self.shape, self.dtype, None, block.read_only)
        return dlpack.export(tensor, block, versioned)

    def _copied(self) -> DeviceArray:
        device = self._block.device
        (block,) = allocate(device, {"a copy": self.nbytes}).values()
        with device_errors(device):
            queue_after(device, (self._block,), None)
            device.copy(block.memory, self._block.memory)
        block.used = self._block.used = LastUse(None, None)
        return DeviceArray(block, self.shape, self.dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}[{', '.join(map(str, self.shape))}] on {self.device})"

    def __array__(self, *_: object, **__: object) -> Array:
        raise TypeError(f"an array on {self.device} is not copied to the host unasked; call its numpy()")


def download(block: DeviceBlock, host: Array) -> None:
    """Copy device memory into a C-contiguous array. Raises DeviceError."""
    with device_errors(block.device):
        queue_after(block.device, (block,), None)
        block.device.download(block.memory, host)


def upload(block: DeviceBlock, host: Array) -> None:
    """Copy a C-contiguous array into device memory. Raises DeviceError."""
    with device_errors(block.device):
        queue_after(block.device, (block,), None)
        block.device.upload(block.memory, host)


def empty(shape: int | Sequence[int], dtype: str = "float32", device: str = "cuda") -> DeviceArray | Array:
    """Return an uninitialised array of `shape` and `dtype` (a name) on "cuda", "opencl" or "cpu".

    Returns a `DeviceArray`, for "cpu" a NumPy array. Raises UsageError for an invalid shape, type or device name,
    DeviceError if the device is absent or has not enough memory.
    """
    dimensions: tuple[object, ...] = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    sizes, numpy_type = tuple(int(n) for n in dimensions if isinstance(n, Integral)), numpy_dtype(dtype)
    if len(sizes) < len(dimensions) or min(sizes, default=0) < 0:
        raise UsageError(f"a shape is whole numbers of at least 0, got {shape!r}")
    device_kind = _kind(device)
    if device_kind == "cpu":
        return np.empty(sizes, numpy_type)
    name = f"{numpy_type}[{', '.join(map(str, sizes))}]"
    blocks = allocate(shared_device(device_kind), {name: math.prod(sizes) * numpy_type.itemsize})
    return DeviceArray(blocks[name], sizes, numpy_type)


def to_device(value: object, device: str = "cuda") -> DeviceArray | Array:
    """Return an array on "cuda", "opencl" or "cpu", without a copy if it is there already.

    `value`: a NumPy array or a value that NumPy can convert, a `DeviceArray`, or an array with DLPack or
    `__cuda_array_interface__`. Returns a `DeviceArray`, for "cpu" a NumPy array. Raises UsageError for a value that is
    no dense array of numbers and for an unknown device, DeviceError if the device is absent or its memory is full.
    """
    kind = _kind(device)
    if isinstance(value, DeviceArray):
        if value.device == kind:
            return value
        value = value.numpy()
    value = materialised(value)
    location = location_of(value)
    if location.kind == "cpu":
        host = _host_array(value)
        return host if kind == "cpu" else _uploaded(host, kind)
    if location.number or location.kind not in GPUS:
        return to_device(_copy_to_host(value, location), kind)
    wrapped = _wrap_foreign(shared_device(location.kind), value)
    return wrapped if location.kind == kind else to_device(wrapped, kind)


def _uploaded(host: Array, kind: str) -> DeviceArray:
    array = empty(host.shape, host.dtype.name, kind)
    assert isinstance(array, DeviceArray)
    upload(array.block, np.ascontiguousarray(host))
    return array


def _wrap_foreign(device: GpuDevice, value: object) -> DeviceArray:
    """Return an array of another library as a DeviceArray on the same memory."""
    with device_errors(device):
        foreign = borrow(device, "the array", value, None)
        if foreign.dtype is None or not is_dense(foreign):
            raise UsageError(f"the {describe(value)} is not dense and row-major; make it contiguous first")
        return DeviceArray(borrowed_block(device, foreign, None), foreign.shape, foreign.dtype)


def borrowed_block(device: GpuDevice, foreign: ForeignArray, stream: Stream) -> DeviceBlock:
    """Return the block of borrowed memory for work on `stream`, last used by the work that its owner has queued
    so far.
    """
    if foreign.must_synchronise or foreign.stream == stream:
        use = LastUse(stream, None)
    else:
        use = LastUse(foreign.stream, None if foreign.stream is None else device.record(foreign.stream))
    return DeviceBlock(device, foreign.memory, foreign.owner, use, foreign.read_only)


def _copy_to_host(value: Any, location: ArrayLocation) -> Array:
    """Return a copy on the host of an array that this package's device cannot access."""
    for name in ("cpu", "get"):  # torch, CuPy
        if hasattr(value, name):
            return _host_array(getattr(value, name)())
    raise UsageError(
        f"a {describe(value)} on {location} cannot be accessed from this process; copy it to the host first"
    )


def _host_array(value: Any) -> Array:
    try:
        is_foreign = hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)
        array: Array = np.from_dlpack(value) if is_foreign else np.asarray(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"a {describe(value)} cannot be read as an array: {' '.join(str(error).split())}") from error
    if array.dtype.kind not in "biuf":
        raise UsageError(f"a {describe(value)} of {array.dtype} cannot go to a device; its elements must be numbers")
    return array


def _kind(device: str) -> str:
    """Return the kind of a device: "cuda" for "cuda:0"."""
    kind, colon, number = device.partition(":")
    if kind != "cpu" and kind not in GPUS:
        raise UsageError(f"there is no device {device!r}; write {', '.join(GPUS)} or cpu")
    if colon and number != "0":
        raise UsageError(
            f"the device {device!r} is not used by this process: it uses the first one, so choose that one by "
            "CUDA_VISIBLE_DEVICES"
        )
    return kind
