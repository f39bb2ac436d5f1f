"""Arrays of other libraries in device memory: their location, shape and type, and their owner's stream.

Three protocols, all without copies: `__cuda_array_interface__` (Numba's documentation, version 3), `__dlpack__` (the
array API standard) and pyopencl's own types. The first two order streams differently: with the interface the consumer
waits for the owner's stream, with `__dlpack__` the owner makes the consumer's stream wait.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES
from autosched.runtime.gpu import dlpack
from autosched.runtime.gpu.device import DeviceMemory, GpuDevice, Stream
from autosched.runtime.gpu.devices import GPUS
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import check_type, is_lazy, is_torch

VECTOR_BYTES = 16  # the widest access of generated code, which must be aligned
_INTERFACE = "__cuda_array_interface__"


@dataclass(frozen=True)
class ArrayLocation:
    """The location of an array: a kind of device ("cpu", "cuda", "opencl", or a text for any other), its number."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return "host memory" if self.kind == "cpu" else f"{self.kind}:{self.number}"


@dataclass(frozen=True)
class ForeignArray:
    """An array of another library. `strides` in bytes, None if dense. `owner` keeps the memory alive.

    `stream`: that of its owner; None if the order is established already. `must_synchronise`: the owner's later work
    cannot be ordered after the kernel, so the host has to wait.
    """

    memory: DeviceMemory
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None  # None: bytes without shape and type
    strides: tuple[int, ...] | None
    read_only: bool
    owner: object
    stream: Stream = None
    must_synchronise: bool = False


def location_of(value: Any) -> ArrayLocation:
    """Return the location of an array. Objects without a device are taken to be on the host, where reading them shows
    an error.
    """
    if type(value) is np.ndarray:
        return ArrayLocation("cpu")
    if _is_pyopencl(value):
        return ArrayLocation("opencl")
    if hasattr(value, "__dlpack_device__"):
        device, number = map(int, value.__dlpack_device__())
        return ArrayLocation(dlpack.DEVICES.get(device, f"DLPack device {device}"), number)
    return ArrayLocation("cuda" if _interface(value) else "cpu")


def describe(value: object) -> str:
    """Return the qualified name of the value's type, for messages."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def stream_handle(device: GpuDevice, stream: Any) -> Stream:
    """Return the driver's handle of a caller's stream; None for the device's own. Raises UsageError."""
    if not GPUS[device.kind].has_addresses:
        if not hasattr(stream, "int_ptr") or stream.context != device.stream.context:
            raise UsageError(
                f"stream must be a pyopencl.CommandQueue of the kernel's context, but got a {describe(stream)}; "
                "the `stream` of any array on opencl is one"
            )
        return None if stream == device.stream else stream
    if hasattr(stream, "__cuda_stream__"):
        pair = stream.__cuda_stream__() if callable(stream.__cuda_stream__) else stream.__cuda_stream__
        stream = pair[1]
    else:
        for name in ("cuda_stream", "ptr", "handle"):  # torch, CuPy, pycuda
            stream = getattr(stream, name, stream)
    if isinstance(stream, bool) or not hasattr(stream, "__index__") or int(stream) < 0:
        raise UsageError(
            f"stream must be the number of a CUDA stream, or an object with cuda_stream, ptr or __cuda_stream__, "
            f"but got a {describe(stream)}"
        )
    handle = int(stream) or dlpack.LEGACY_STREAM
    return None if handle == device.stream else handle


def callers_stream(device: GpuDevice, values: Iterable[Any]) -> Stream:
    """Return the current stream of the first array whose library reports one; None if none does."""
    for value in values:
        stream = _owners_stream(value)
        has_context = stream is not None and not GPUS[device.kind].has_addresses
        is_foreign_context = has_context and stream.context != device.stream.context
        if stream is not None and not is_foreign_context:  # `borrow` rejects arrays of another context
            return stream_handle(device, stream)
    return None


def _owners_stream(value: Any) -> Any:
    if is_torch(value):
        return sys.modules["torch"].cuda.current_stream(value.device.index).cuda_stream
    if _is_pyopencl(value):
        return getattr(value, "queue", None)
    return _interface(value).get("stream")


def borrow(device: GpuDevice, name: str, value: Any, stream: Stream) -> ForeignArray:
    """Return the memory of `value`, which is on `device`, for work on `stream`. Raises UsageError."""
    try:
        if _is_pyopencl(value):
            return _from_pyopencl(device, value)
        if is_lazy(value):
            raise ValueError("its memory does not hold its elements; give its clone()")
        interface = getattr(value, _INTERFACE) if is_torch(value) else _interface(value)
        owner_stream = _owners_stream(value) if is_torch(value) else interface.get("stream")
        if owner_stream is not None or not hasattr(value, "__dlpack__"):
            return _from_interface(
                device, value, interface, dlpack.LEGACY_STREAM if owner_stream is None else owner_stream
            )
        return _from_dlpack(device, value, stream)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"{name} is a {describe(value)} that cannot be shared: {' '.join(str(error).split())}"
        ) from error


def _from_interface(device: GpuDevice, value: Any, interface: dict[str, Any], owner_stream: Any) -> ForeignArray:
    if interface.get("mask") is not None:
        raise ValueError("it has a mask")
    shape, dtype = tuple(map(int, interface["shape"])), _dtype(value, interface["typestr"])
    address, read_only = interface["data"]
    memory = device.adopt(int(address), math.prod(shape) * dtype.itemsize)
    strides = interface.get("strides")
    return ForeignArray(
        memory=memory,
        shape=shape,
        dtype=dtype,
        strides=None if strides is None else tuple(strides),
        read_only=bool(read_only),
        owner=value,
        stream=stream_handle(device, owner_stream),
    )


def _dtype(value: Any, typestr: str) -> np.dtype[Any]:
    """Return the type of the elements. For types that NumPy lacks, the interface has the size and the array the
    name."""
    numpy_type = np.dtype(typestr)
    named = DTYPES.get(str(getattr(value, "dtype", "")).rpartition(".")[2])  # as in torch.bfloat16
    is_named = numpy_type.kind == "V" and named is not None and named.numpy_dtype.itemsize == numpy_type.itemsize
    return named.numpy_dtype if is_named and named is not None else numpy_type


def _from_dlpack(device: GpuDevice, value: Any, stream: Stream) -> ForeignArray:
    handle = device.stream if stream is None else stream
    try:
        capsule = value.__dlpack__(stream=handle, max_version=(1, 0))
    except TypeError:  # made before DLPack 1.0
        capsule = value.__dlpack__(stream=handle)
    tensor = dlpack.read_capsule(capsule)
    size = tensor.dtype.itemsize
    return ForeignArray(
        memory=device.adopt(tensor.address, math.prod(tensor.shape) * size),
        shape=tensor.shape,
        dtype=tensor.dtype,
        strides=None if tensor.strides is None else tuple(size * n for n in tensor.strides),
        read_only=tensor.read_only,
        owner=capsule,
        must_synchronise=True,
    )


def _from_pyopencl(device: GpuDevice, value: Any) -> ForeignArray:
    """Return a pyopencl Array, or a Buffer, which has no shape and type. Raises ValueError for another OpenCL
    context."""
    is_array = hasattr(value, "base_data")
    buffer = value.base_data if is_array else value
    if buffer.context != device.stream.context:
        raise ValueError("it is of another OpenCL context; make it with the queue that is the `stream` of our arrays")
    memory = DeviceMemory(buffer, int(buffer.size))
    if not is_array:
        return ForeignArray(memory, (), None, None, False, value)
    if value.offset % device.alignment:
        raise ValueError(f"it begins {value.offset} bytes into its buffer, not at a multiple of {device.alignment}")
    if value.offset:
        memory = device.view(memory, int(value.offset), int(value.nbytes))
    owner_stream = None if value.queue is None else stream_handle(device, value.queue)
    return ForeignArray(
        memory, tuple(value.shape), np.dtype(value.dtype), tuple(value.strides), False, value, owner_stream
    )


def check_argument(spec: ArraySpec, role: str, array: ForeignArray) -> None:
    """Raise UsageError unless the kernel can use the memory without a copy."""
    if array.dtype is None:
        if array.memory.nbytes < spec.nbytes:
            raise UsageError(
                f"{role} {spec.name} must be {spec}, but got a {describe(array.owner)} of {array.memory.nbytes} bytes, "
                f"which are fewer than {spec.nbytes}"
            )
        return
    check_type(spec, role, array.shape, array.dtype)
    if not is_dense(array):
        raise UsageError(
            f"{role} {spec.name} is not dense and row-major (its strides are {array.strides} bytes); "
            "give a contiguous array, in torch x.contiguous(), in CuPy cupy.ascontiguousarray(x)"
        )
    if isinstance(array.memory.handle, int) and array.memory.handle % VECTOR_BYTES:
        raise UsageError(
            f"{role} {spec.name} begins at an address that is no multiple of {VECTOR_BYTES} bytes, which the kernel's "
            "vector accesses need; give a copy, in torch x.clone(), in CuPy x.copy()"
        )
    if role == "output" and array.read_only:
        raise UsageError(f"output {spec.name} is read-only; give an array that can be written")


def is_dense(array: ForeignArray) -> bool:
    """Return whether an array is row-major without gaps; the stride of an axis of size 1 does not matter."""
    if array.strides is None or array.dtype is None or 0 in array.shape:
        return True
    expected_stride = array.dtype.itemsize
    for size, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if size != 1 and stride != expected_stride:
            return False
        expected_stride *= size
    return True


def _is_pyopencl(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "pyopencl"


def _interface(value: Any) -> dict[str, Any]:
    """Return the array's `__cuda_array_interface__`; an empty dict if it has none."""
    interface: dict[str, Any] = getattr(value, _INTERFACE, {})
    return interface
