"""Driver by pycuda, for installations that have it instead of NVIDIA's package.

pycuda wraps neither graphs nor early launches, and aborts the process when a thread ends with a context on pycuda's own
stack. So it only finds the driver library; all calls are made there by ctypes, and the driver does what `cuda_core.py`
does, in the same primary context, which pycuda can share (`Device.retain_primary_context`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autosched.errors import DeviceError
from autosched.runtime.gpu import cuda_core
from autosched.runtime.gpu.driver_api import DriverApi

if TYPE_CHECKING:
    from autosched.target import GpuFacts


class PyCudaDevice(cuda_core.CudaCoreDevice):
    """The first device that CUDA_VISIBLE_DEVICES leaves, in its primary context; DeviceError if there is none."""

    @staticmethod
    def start() -> Any:
        return start()


def read_facts() -> GpuFacts:
    """Return the properties of the first device, without a context on it. Raises DeviceError."""
    return cuda_core.facts_by(start())


def start() -> Any:
    """Return the initialised driver API. Raises DeviceError that names what is missing."""
    try:
        import pycuda.driver  # noqa: F401
    except ImportError as error:
        if "pycuda" in str(error) and "libcuda" not in str(error):
            raise DeviceError('CUDA needs a package: pip install "autosched[cuda]"') from None
        raise DeviceError(
            f"pycuda cannot load the CUDA driver library ({error}): install NVIDIA's driver, or use "
            "`autosched tune --target cuda --no-run`, which needs none"
        ) from None
    try:
        api = DriverApi()
    except OSError:
        raise DeviceError(cuda_core.NO_LIBRARY) from None
    return cuda_core.checked(api)
