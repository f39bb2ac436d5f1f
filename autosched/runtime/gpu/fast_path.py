"""Fast path of calls with arrays on a device.

The rules for arrays are in `runtime.gpu.foreign_arrays`. The fast path accepts calls for which all rules hold at first
sight: each array is a DeviceArray or exactly a torch tensor, dense, aligned, and of the kernel's shape and type.
Neither is accessed by its protocols, which take 10 us for an array of torch. Other calls use the protocols, which
convert arrays or raise an error with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from autosched.runtime.gpu.arrays import DeviceArray, DeviceBlock
from autosched.runtime.gpu.device import GpuDevice, Stream
from autosched.runtime.gpu.devices import GPUS
from autosched.runtime.gpu.foreign_arrays import VECTOR_BYTES, stream_handle
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import is_lazy


class FastPath:
    """The check of a function's arrays: `specs`, of which the first `n_inputs` are only read."""

    def __init__(self, device: GpuDevice, specs: Sequence[ArraySpec], n_inputs: int) -> None:
        self._device, self._n_inputs = device, n_inputs
        self._expected = [(spec.shape, spec.numpy_dtype, spec.dtype, spec.nbytes) for spec in specs]
        self._has_addresses = GPUS[device.kind].has_addresses

    def blocks(self, values: Sequence[Any], first: int = 0) -> list[DeviceBlock] | None:
        """Return the memory of arrays from number `first` on; None if one is not accepted. Torch's are ordered by
        torch's current stream.
        """
        torch = sys.modules.get("torch") if self._has_addresses else None
        tensor = getattr(torch, "Tensor", None)  # None too while another thread imports it
        accepted = []
        for n, value in enumerate(values, first):
            if type(value) is DeviceArray:
                block = self._own_block(n, value)
            else:
                block = self._torch_block(n, value, torch) if type(value) is tensor else None
            if block is None:
                return None
            accepted.append(block)
        return accepted

    def torch_stream(self) -> Stream:
        """Return torch's current stream."""
        return stream_handle(self._device, sys.modules["torch"].cuda.current_stream(0).cuda_stream)

    def _own_block(self, n: int, array: DeviceArray) -> DeviceBlock | None:
        shape, dtype, _, _ = self._expected[n]
        block = array.block
        fits = array.shape == shape and array.dtype == dtype and block.device is self._device
        is_allowed = n < self._n_inputs or not block.read_only
        is_aligned = not self._has_addresses or self._device.address(block.memory) % VECTOR_BYTES == 0
        return block if fits and is_allowed and is_aligned else None

    def _torch_block(self, n: int, x: Any, torch: Any) -> DeviceBlock | None:
        shape, _, name, nbytes = self._expected[n]
        if not (x.is_cuda and x.get_device() == 0 and x.shape == shape and x.dtype is getattr(torch, name, None)):
            return None
        if not x.is_contiguous() or x.layout is not torch.strided or x.requires_grad or is_lazy(x):
            return None
        try:
            address = x.data_ptr()
        except RuntimeError:  # a tensor of torch's own transforms, without memory
            return None
        if address % VECTOR_BYTES:
            return None
        return DeviceBlock(self._device, self._device.adopt(address, nbytes), x)
