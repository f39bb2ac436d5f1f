"""Choice of the driver of a device, in the order of preference, and the error if there is none."""

from __future__ import annotations

import atexit
import importlib
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from autosched.errors import DeviceError, UsageError
from autosched.runtime.gpu.compile import Compiler, cuda_compiler
from autosched.runtime.gpu.device import DeviceFault

if TYPE_CHECKING:
    from autosched.runtime.gpu.device import GpuDevice
    from autosched.target import GpuFacts

SCRIPT = "AUTOSCHED_DEVICE_SCRIPT"  # a file for the scripted device of the tests, which then stands for any device


@dataclass(frozen=True)
class Driver:
    """A Python `package` that drives devices, by the class `device` in `module` of this package, which has
    `read_facts`. `lacks`: what others can do, in words.
    """

    package: str
    module: str
    device: str
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """Devices of one kind: their `drivers` by name, the preferred first.

    `choice`: the environment variable that names a driver, which is then used or fails. `compiler`: a compiler by
    architecture that needs no device; without it the device compiles. `has_addresses`: memory has addresses and streams
    are numbers, as on CUDA, and other libraries share both; else they are a driver's objects.
    """

    drivers: Mapping[str, Driver]
    has_addresses: bool
    choice: str | None = None
    compiler: Callable[[str], Compiler] | None = None


OPENCL_LACKS = ("graphs", "early launches", "arrays of other libraries")
GPUS: dict[str, Gpu] = {
    "cuda": Gpu(
        {
            "cuda-core": Driver("cuda.bindings", "autosched.runtime.gpu.cuda_core", "CudaCoreDevice"),
            "pycuda": Driver("pycuda", "autosched.runtime.gpu.pycuda", "PyCudaDevice"),
        },
        has_addresses=True,
        choice="AUTOSCHED_CUDA_DRIVER",
        compiler=cuda_compiler,
    ),
    "opencl": Gpu(
        {"pyopencl": Driver("pyopencl", "autosched.runtime.gpu.opencl", "OpenClDevice", OPENCL_LACKS)},
        has_addresses=False,
    ),
}


def open_device(kind: str) -> GpuDevice:
    """Open the device of `kind`, one of GPUS, in this process. Raises DeviceError that names what is missing."""
    return _driver(kind)[0]()


def device_facts(kind: str) -> GpuFacts:
    """Return the properties of the device of `kind` on this machine, without a context on it. Raises DeviceError."""
    return _driver(kind)[1]()


def _driver(kind: str) -> tuple[Callable[[], GpuDevice], Callable[[], GpuFacts]]:
    """Return the functions that open a device of `kind` and read its properties."""
    if script := os.environ.get(SCRIPT):
        from autosched.runtime.gpu.fake import FakeDevice

        return lambda: FakeDevice.read(script, kind), lambda: FakeDevice.read(script, kind).facts()
    if kind not in GPUS:
        raise DeviceError(f"{kind} is no device that this package drives: use {' or '.join(GPUS)}")
    driver = GPUS[kind].drivers[driver_name(kind)]
    module = importlib.import_module(driver.module)
    return getattr(module, driver.device), module.read_facts


def driver_name(kind: str) -> str:
    """Return the driver to use: the one that the environment names, else the first that is installed, or is not."""
    gpu = GPUS[kind]
    chosen = os.environ.get(gpu.choice) if gpu.choice else None
    if chosen is not None:
        if chosen not in gpu.drivers:
            raise UsageError(f"{gpu.choice} must be one of {', '.join(gpu.drivers)}, got {chosen!r}")
        return chosen
    installed = (name for name, driver in gpu.drivers.items() if _is_installed(driver.package))
    return next(installed, next(iter(gpu.drivers)))


def lacking(kind: str) -> tuple[str, ...]:
    """Return what the driver to use cannot do, in words."""
    from autosched.runtime.gpu import driver_api

    return (*GPUS[kind].drivers[driver_name(kind)].lacks, *(driver_api.lacking() if kind == "cuda" else ()))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # what it is a part of
        return False


_shared: dict[tuple[str, str | None], GpuDevice] = {}
_opening = threading.Lock()


def shared_device(kind: str) -> GpuDevice:
    """Return the device of `kind` of all arrays and kernels of this process, opened once. Raises DeviceError."""
    key = (kind, os.environ.get(SCRIPT))
    with _opening:
        if key not in _shared:
            _shared[key] = open_device(kind)
            atexit.register(_close, _shared[key])
        return _shared[key]


def _close(device: GpuDevice) -> None:
    with suppress(DeviceFault):  # the fault of a kernel that nothing waited for
        device.close()


def compiler_for(kind: str, arch: str) -> Compiler:
    """Return the compiler for `kind`. Raises DeviceError."""
    compiler = GPUS[kind].compiler
    if compiler is not None and not os.environ.get(SCRIPT):
        return compiler(arch)
    device: Any = open_device(kind)
    its_own: Compiler = device
    return its_own
