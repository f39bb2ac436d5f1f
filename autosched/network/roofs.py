"""What the machine can do at most: the yardstick of a network's kernels."""

from __future__ import annotations

from functools import cached_property

from autosched.measure.host import device_lock
from autosched.network.tasks import NetworkTask
from autosched.runtime.peak import measure_fma_gflops
from autosched.session.device import PEAK_SHARE, Device
from autosched.session.roofline import LARGEST, SMALLEST, Roof, compulsory_bytes, measure_roof


class Roofs:
    """What the machine can do, measured when first asked."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bandwidths: dict[int, float] = {}

    @cached_property
    def _peak_gflops(self) -> float:
        with device_lock("cpu"):
            return measure_fma_gflops(self._device.target, self._device.threads)

    def roof(self, n_bytes: int, dtype: str) -> Roof:
        """For that many bytes, rounded down to a power of 4: fewer lie nearer."""
        exponent = min(max(n_bytes, SMALLEST), LARGEST).bit_length() - 1
        size = 1 << (exponent - exponent % 2)
        if size not in self._bandwidths:
            self._bandwidths[size] = measure_roof(self._device.target, self._device.threads, size, None).bandwidth
        return Roof(1e9 * PEAK_SHARE.get(dtype, 0.0) * self._peak_gflops, self._bandwidths[size])

    def least_s(self, task: NetworkTask) -> float:
        """The least seconds of a task's kernel, by its operations and by the bytes that it must read and write."""
        problem = task.request.problem
        n_bytes = compulsory_bytes(problem.dag)
        return self.roof(n_bytes, problem.dtype).seconds(problem.dag.flops, n_bytes)
