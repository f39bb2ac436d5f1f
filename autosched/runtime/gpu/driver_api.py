"""The CUDA driver API of libcuda by ctypes, in the form of `cuda.bindings.driver`: each function returns its status and
what it writes through pointers, and handles are numbers.

Only the functions that `cuda_core.py` calls, in the versions of CUDA 11.8 and later. Source: CUDA driver API, `cuda.h`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_ushort, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

LIBRARY = "libcuda.so.1"
EARLY_LAUNCH = "cuLaunchKernelEx"
HANDLE = c_size_t  # as c_void_p, but its value 0 is a number


@dataclass(frozen=True)
class Out:
    """A value that a function writes through a pointer."""

    type: Any


OUT_INT, OUT_SIZE, OUT_HANDLE, OUT_TEXT = Out(c_int), Out(c_size_t), Out(HANDLE), Out(c_char_p)
# By name: the symbol's suffix, and the parameters in order.
FUNCTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "cuInit": ("", (c_uint,)),
    "cuDriverGetVersion": ("", (OUT_INT,)),
    "cuGetErrorName": ("", (c_int, OUT_TEXT)),
    "cuGetErrorString": ("", (c_int, OUT_TEXT)),
    "cuDeviceGetCount": ("", (OUT_INT,)),
    "cuDeviceGet": ("", (OUT_INT, c_int)),
    "cuDeviceGetAttribute": ("", (OUT_INT, c_int, c_int)),
    "cuDevicePrimaryCtxRetain": ("", (OUT_HANDLE, c_int)),
    "cuDevicePrimaryCtxRelease": ("_v2", (c_int,)),
    "cuCtxSetCurrent": ("", (HANDLE,)),
    "cuCtxPushCurrent": ("_v2", (HANDLE,)),
    "cuCtxPopCurrent": ("_v2", (OUT_HANDLE,)),
    "cuStreamCreate": ("", (OUT_HANDLE, c_uint)),
    "cuStreamDestroy": ("_v2", (HANDLE,)),
    "cuStreamSynchronize": ("", (HANDLE,)),
    "cuStreamWaitEvent": ("", (HANDLE, HANDLE, c_uint)),
    "cuStreamBeginCapture": ("_v2", (HANDLE, c_int)),
    "cuStreamEndCapture": ("", (HANDLE, OUT_HANDLE)),
    "cuEventCreate": ("", (OUT_HANDLE, c_uint)),
    "cuEventDestroy": ("_v2", (HANDLE,)),
    "cuEventRecord": ("", (HANDLE, HANDLE)),
    "cuEventSynchronize": ("", (HANDLE,)),
    "cuEventElapsedTime": ("", (Out(c_float), HANDLE, HANDLE)),
    "cuMemGetInfo": ("_v2", (OUT_SIZE, OUT_SIZE)),
    "cuMemAlloc": ("_v2", (OUT_HANDLE, c_size_t)),
    "cuMemFree": ("_v2", (HANDLE,)),
    "cuMemcpyHtoDAsync": ("_v2", (HANDLE, c_void_p, c_size_t, HANDLE)),
    "cuMemcpyDtoHAsync": ("_v2", (c_void_p, HANDLE, c_size_t, HANDLE)),
    "cuMemcpyDtoDAsync": ("_v2", (HANDLE, HANDLE, c_size_t, HANDLE)),
    "cuMemsetD8Async": ("", (HANDLE, c_ubyte, c_size_t, HANDLE)),
    "cuMemsetD16Async": ("", (HANDLE, c_ushort, c_size_t, HANDLE)),
    "cuModuleLoadData": ("", (OUT_HANDLE, c_char_p)),
    "cuModuleUnload": ("", (HANDLE,)),
    "cuModuleGetFunction": ("", (OUT_HANDLE, HANDLE, c_char_p)),
    "cuFuncSetAttribute": ("", (HANDLE, c_int, c_int)),
    "cuLaunchKernel": ("", (HANDLE, *[c_uint] * 7, HANDLE, c_void_p, c_void_p)),
    "cuLaunchKernelEx": ("", (c_void_p, HANDLE, c_void_p, c_void_p)),
    "cuGraphInstantiate": ("WithFlags", (OUT_HANDLE, HANDLE, c_ulonglong)),
    "cuGraphDestroy": ("", (HANDLE,)),
    "cuGraphUpload": ("", (HANDLE, HANDLE)),
    "cuGraphLaunch": ("", (HANDLE, HANDLE)),
    "cuGraphExecDestroy": ("", (HANDLE,)),
}


class CUlaunchAttributeValue(ctypes.Union):
    _fields_ = (("pad", c_ubyte * 64), ("programmaticStreamSerializationAllowed", c_int))


class CUlaunchAttribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("pad", c_ubyte * 4), ("value", CUlaunchAttributeValue))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("gridDimX", c_uint), ("gridDimY", c_uint), ("gridDimZ", c_uint),
        ("blockDimX", c_uint), ("blockDimY", c_uint), ("blockDimZ", c_uint),
        ("sharedMemBytes", c_uint), ("hStream", HANDLE), ("attributes", c_void_p), ("numAttrs", c_uint),
    )  # fmt: skip


class CUlaunchConfig(_LaunchConfig):
    @property
    def attrs(self) -> Any:
        return self._kept

    @attrs.setter
    def attrs(self, attributes: Sequence[CUlaunchAttribute]) -> None:
        self._kept = (CUlaunchAttribute * len(attributes))(*attributes)
        self.attributes = ctypes.addressof(self._kept)


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


class DriverApi:
    """The functions as attributes, by the names of FUNCTIONS; a function that the library lacks is none of them.
    Raises OSError without the library."""

    CUlaunchAttribute, CUlaunchConfig, CUstreamCaptureMode = CUlaunchAttribute, CUlaunchConfig, CUstreamCaptureMode
    CUdevice_attribute = CUfunction_attribute = CUlaunchAttributeID = CUstream = int

    def __init__(self) -> None:
        library = ctypes.CDLL(LIBRARY)
        for name, (suffix, parameters) in FUNCTIONS.items():
            symbol = getattr(library, name + suffix, None)
            if symbol is not None:
                setattr(self, name, _function(symbol, parameters))
        self.cuDeviceGetName = partial(_device_name, library.cuDeviceGetName)


def lacking() -> tuple[str, ...]:
    """Return what the driver library of this machine cannot do, in words; nothing without a library."""
    try:
        api = DriverApi()
    except OSError:
        return ()
    return () if hasattr(api, EARLY_LAUNCH) else (f"early launches ({EARLY_LAUNCH}, of CUDA 11.8)",)


def _device_name(symbol: Any, length: int, device: int) -> tuple[int, bytes]:
    text = ctypes.create_string_buffer(length)
    return int(symbol(text, length, device)), text.raw


def _function(symbol: Any, parameters: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
    """Return a function of the parameters that are not written, whose result is the status and those that are."""
    symbol.restype = c_int
    symbol.argtypes = [ctypes.POINTER(p.type) if isinstance(p, Out) else p for p in parameters]
    if not any(isinstance(p, Out) for p in parameters):
        return lambda *given: (symbol(*map(_address, given)),)

    def call(*given: Any) -> tuple[Any, ...]:
        values = iter(given)
        arguments = [p.type() if isinstance(p, Out) else _address(next(values)) for p in parameters]
        written = [a for a, p in zip(arguments, parameters, strict=True) if isinstance(p, Out)]
        status = symbol(*arguments)  # ctypes passes what is for a POINTER by reference
        return (status, *(a.value for a in written))

    return call


def _address(value: Any) -> Any:
    return ctypes.addressof(value) if isinstance(value, ctypes.Structure) else value
