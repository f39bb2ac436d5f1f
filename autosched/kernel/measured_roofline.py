"""Measured rooflines of a device, for the kernels of networks: peak arithmetic and bandwidth, measured on demand."""

from __future__ import annotations

from functools import cached_property

from autosched.ir.dtype import DTYPES
from autosched.kernel.device import PEAK_SHARE, Device
from autosched.kernel.request import Request
from autosched.kernel.roofline import LARGEST, SMALLEST, Roof, compulsory_bytes, measure_gpu_roof, measure_roof
from autosched.measure.host import device_lock
from autosched.runtime.gpu.tensor_pipes import pipes_of
from autosched.runtime.peak import measure_fma_gflops
from autosched.target import GpuFacts


class MeasuredRooflines:
    """The rooflines of a device for each size and type, measured when first needed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bandwidths: dict[int, float] = {}
        self._of_gpu: dict[str, Roof] = {}

    @cached_property
    def _peak_gflops(self) -> float:
        with device_lock("cpu"):
            return measure_fma_gflops(self._device.target, self._device.threads)

    def roof(self, n_bytes: int, dtype: str) -> Roof:
        """Return the roofline for kernels that move `n_bytes`, which are rounded down to a power of 4 on processors."""
        gpu = self._device.target.gpu
        if gpu is not None:
            return self._gpu_roof(gpu, dtype)
        exponent = min(max(n_bytes, SMALLEST), LARGEST).bit_length() - 1
        size = 1 << (exponent - exponent % 2)
        if size not in self._bandwidths:
            self._bandwidths[size] = measure_roof(self._device.target, self._device.threads, size, None).bandwidth
        return Roof(1e9 * PEAK_SHARE.get(dtype, 0.0) * self._peak_gflops, self._bandwidths[size])

    def _gpu_roof(self, gpu: GpuFacts, dtype: str) -> Roof:
        """Return the roofline of the fastest pipe that multiplies the type, and of DRAM, as candidates are timed.

        In a network a kernel's operands may be in the last cache, so that it may be faster than this roofline.
        """
        pipes = [name for name in pipes_of(gpu) if name.partition(".")[2] == dtype]
        pipe = pipes[-1] if pipes and self._device.target.backend.has_matrices else DTYPES[dtype].computes_in
        if pipe not in self._of_gpu:
            self._of_gpu[pipe] = measure_gpu_roof(self._device.target, LARGEST, pipe)
        return self._of_gpu[pipe]

    def least_s(self, request: Request) -> float:
        """Return the roofline time of a kernel in seconds, by its operations and its compulsory traffic."""
        problem = request.problem
        n_bytes = compulsory_bytes(problem.dag)
        return self.roof(n_bytes, problem.dtype).seconds(problem.dag.flops, n_bytes)
