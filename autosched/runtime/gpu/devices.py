"""Which driver opens a device, in the order of preference, and what is missing when none does."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from autosched.errors import DeviceError, UsageError
from autosched.runtime.gpu.compile import Compiler, cuda_compiler
from autosched.runtime.gpu.device import DeviceFault

if TYPE_CHECKING:
    from autosched.runtime.gpu.device import Device
    from autosched.target import GpuFacts

# Kind of target -> its drivers, the preferred first.
DRIVERS: dict[str, tuple[str, ...]] = {"cuda": ("pycuda", "cuda-core"), "opencl": ("pyopencl",)}
CHOICE = "AUTOSCHED_CUDA_DRIVER"  # names one of DRIVERS["cuda"], which is then used or fails
SCRIPT = "AUTOSCHED_DEVICE_SCRIPT"  # a file for the scripted device of the tests, which then stands for any device


def open_device(kind: str) -> Device:
    """The device of `kind` ("cuda", "opencl") in this process. Raises DeviceError with what is missing."""
    return _driver(kind)[0]()


def device_facts(kind: str) -> GpuFacts:
    """What the device of `kind` on this machine can do, asked without a context on it. Raises DeviceError."""
    return _driver(kind)[1]()


def _driver(kind: str) -> tuple[Callable[[], Device], Callable[[], GpuFacts]]:
    """(what opens a device of `kind`, what reads its facts)."""
    if script := os.environ.get(SCRIPT):
        from autosched.runtime.gpu.fake import FakeDevice

        return lambda: FakeDevice.read(script, kind), lambda: FakeDevice.read(script, kind).facts()
    if kind == "opencl":
        from autosched.runtime.gpu import opencl

        return opencl.OpenClDevice, opencl.read_facts
    if kind != "cuda":
        raise DeviceError(f"{kind} is no device that this package drives: use {' or '.join(DRIVERS)}")
    if cuda_driver() == "pycuda":
        from autosched.runtime.gpu import pycuda

        return pycuda.PyCudaDevice, pycuda.read_facts
    from autosched.runtime.gpu import cuda_core

    return cuda_core.CudaCoreDevice, cuda_core.read_facts


_shared: dict[tuple[str, str | None], Device] = {}
_opening = threading.Lock()


def shared_device(kind: str) -> Device:
    """The device of `kind` that all arrays and kernels of this process live on, opened once. Raises DeviceError."""
    key = (kind, os.environ.get(SCRIPT))
    with _opening:
        if key not in _shared:
            _shared[key] = open_device(kind)
            atexit.register(_close, _shared[key])
        return _shared[key]


def _close(device: Device) -> None:
    with suppress(DeviceFault):  # of a kernel that nobody waited for
        device.close()


def compiler_for(kind: str, arch: str) -> Compiler:
    """What compiles for `kind`; CUDA C needs no device for it. Raises DeviceError."""
    if kind == "cuda" and not os.environ.get(SCRIPT):
        return cuda_compiler(arch)
    device: Any = open_device(kind)  # which compiles what it runs
    compiler: Compiler = device
    return compiler


def cuda_driver() -> str:
    """The driver to use: the one that the environment names, else pycuda where it is installed, else cuda-core."""
    from importlib.util import find_spec

    chosen = os.environ.get(CHOICE)
    if chosen is not None:
        if chosen not in DRIVERS["cuda"]:
            raise UsageError(f"{CHOICE} must be one of {', '.join(DRIVERS['cuda'])}, got {chosen!r}")
        return chosen
    return "pycuda" if find_spec("pycuda") is not None else "cuda-core"
