"""Functions of arrays on a device or on the host, which run on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from autosched.errors import UsageError
from autosched.runtime.gpu.arrays import (
    DeviceArray,
    DeviceBlock,
    allocate,
    borrowed_block,
    device_errors,
    download,
    upload,
)
from autosched.runtime.gpu.device import GpuDevice, Stream
from autosched.runtime.gpu.devices import GPUS
from autosched.runtime.gpu.fast_path import FastPath
from autosched.runtime.gpu.foreign_arrays import (
    ArrayLocation,
    ForeignArray,
    borrow,
    callers_stream,
    check_argument,
    describe,
    location_of,
    stream_handle,
)
from autosched.runtime.kernel import common_torch, like_inputs
from autosched.runtime.spec import ArraySpec, in_order
from autosched.runtime.tensors import address_of, as_input, as_output, check_apart, materialised, new_outputs


class DeviceFunction(ABC):
    """`function(A, B)` returns a new array (a tuple for several outputs); `function(A, B, out=C)` writes C and returns
    it.

    NumPy arrays are copied to the device and the result comes back as one. Arrays that live on the device are used
    where they are, and the call returns when its work is queued: on `stream` where one is given, else on the stream of
    the first array that knows its own (torch's current one, CuPy's), else on the device's. Without `stream`, the owners
    of the arrays see the work in the order of their calls; with it, the order is the caller's. Results are torch
    tensors when every input was one, otherwise `DeviceArray`. May be called from several Python threads at a time.
    """

    def __init__(self, device: GpuDevice, inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._specs = self.inputs + self.outputs
        self._device = device
        self._fast_path = FastPath(device, self._specs, len(self.inputs))

    @abstractmethod
    def _transfer_blocks(self) -> AbstractContextManager[Sequence[DeviceBlock]]:
        """Return device memory for all inputs and outputs of a call whose arrays are on the host."""

    @abstractmethod
    def _launch(self, blocks: Sequence[DeviceBlock], lasting: Sequence[DeviceBlock], stream: Stream) -> None:
        """Queue the work on `stream` after the last use of its memory; `lasting`: blocks that are used again later."""

    def __call__(self, *arrays: object, out: object = None, stream: object = None, **named: object) -> Any:
        if named or len(arrays) != len(self.inputs):
            arrays = in_order([spec.name for spec in self.inputs], arrays, named)
        items = () if out is None else self._out_items(out)
        results = self._on_fast_path(arrays, items) if stream is None else None
        if results is None:
            results = self._by_protocols(tuple(map(materialised, arrays)), items, stream)
        if out is not None:
            return out
        return results[0] if len(results) == 1 else tuple(results)

    def _on_fast_path(self, arrays: Sequence[object], items: Sequence[object]) -> Sequence[Any] | None:
        """Run on the device, in place; None if the fast path does not accept the arrays."""
        blocks = self._fast_path.blocks((*arrays, *items))
        if not blocks:
            return None
        with device_errors(self._device):
            results = items or self._new_outputs(arrays, False)
            if items:
                self._check_apart(blocks)
            elif (result_blocks := self._fast_path.blocks(results, len(arrays))) is not None:
                blocks += result_blocks
            else:
                return None
            own_blocks = [value.block for value in (*arrays, *results) if isinstance(value, DeviceArray)]
            stream = None if len(own_blocks) == len(blocks) else self._fast_path.torch_stream()
            self._launch(blocks, own_blocks, stream)
        return results

    def _by_protocols(self, arrays: Sequence[object], items: Sequence[object], stream: object) -> Sequence[Any]:
        on_host = self._are_on_host((*arrays, *items))
        handle = None if stream is None else stream_handle(self._device, stream)
        if on_host:
            return self._on_host(arrays, items, handle)
        with device_errors(self._device):
            return self._on_device(arrays, items, handle, stream is not None)

    def _are_on_host(self, values: Sequence[object]) -> bool:
        """Return whether the arrays are on the host. Raises UsageError unless all are there or all on the kernel's
        device.
        """
        own_location = ArrayLocation(self._device.kind)
        locations = [value.place if isinstance(value, DeviceArray) else location_of(value) for value in values]
        for spec, value, location in zip(self._specs, values, locations, strict=False):
            if location != own_location and location.kind != "cpu":
                raise UsageError(
                    f"{spec.name} is a {describe(value)} on {location}, but the kernel runs on {own_location}; "
                    f'give at.to_device({spec.name}, device="{own_location.kind}")'
                )
        is_on_host = [location.kind == "cpu" for location in locations]
        if any(is_on_host) and not all(is_on_host):
            first, other = is_on_host.index(True), is_on_host.index(False)
            spec, device = self._specs[first], f'device="{own_location.kind}")'
            remedy = f"at.to_device({spec.name}, {device}"
            if first >= len(self.inputs):
                remedy = f'at.empty({spec.shape}, "{spec.dtype}", {device}'
            raise UsageError(
                f"{spec.name} is a {describe(values[first])} in host memory, but {self._specs[other].name} is on "
                f"{own_location}; give {remedy}"
            )
        return all(is_on_host)

    def _out_items(self, out: object) -> Sequence[object]:
        items = out if isinstance(out, (tuple, list)) else (out,)
        if len(items) != len(self.outputs):
            raise UsageError(f"out must hold {len(self.outputs)} arrays, one for each output, but has {len(items)}")
        return items

    def _on_host(self, arrays: Sequence[object], items: Sequence[object], stream: Stream) -> Sequence[Any]:
        """Run through device memory for arrays on the host."""
        host_inputs = [as_input(spec, array) for spec, array in zip(self.inputs, arrays, strict=True)]
        if items:
            results = [as_output(spec, item) for spec, item in zip(self.outputs, items, strict=True)]
            check_apart(self._specs, [address_of(array) for array in (*host_inputs, *results)], len(host_inputs))
        else:
            results = new_outputs(self.outputs)
        with self._transfer_blocks() as blocks:
            for block, array in zip(blocks, host_inputs, strict=False):
                upload(block, array)
            with device_errors(self._device):
                self._launch(blocks, blocks, stream)
            for block, array in zip(blocks[len(host_inputs) :], results, strict=True):
                download(block, array)
        return results if items else like_inputs(arrays, results)

    def _on_device(
        self, arrays: Sequence[object], items: Sequence[object], caller_stream: Stream, has_caller_stream: bool
    ) -> Sequence[Any]:
        """Run in place. Later work of the owners of borrowed arrays is ordered after the kernel unless the caller gave
        the stream."""
        device = self._device
        foreign = [value for value in (*arrays, *items) if not isinstance(value, DeviceArray)]
        stream = caller_stream if has_caller_stream else callers_stream(device, foreign)
        arguments = [
            self._block_of_argument(s, "input", value, stream) for s, value in zip(self.inputs, arrays, strict=True)
        ]
        results = items or self._new_outputs(arrays, has_caller_stream)
        arguments += [
            self._block_of_argument(s, "output", value, stream) for s, value in zip(self.outputs, results, strict=True)
        ]
        if items:
            self._check_apart([block for block, _ in arguments])
        lasting = [block for block, foreign_array in arguments if foreign_array is None]
        self._launch([block for block, _ in arguments], lasting, stream)
        if not has_caller_stream:
            self._order_owners_after(
                [foreign_array for _, foreign_array in arguments if foreign_array is not None], stream
            )
        torch = None if items else common_torch(arrays)
        return results if torch is None or not has_caller_stream else [torch.from_dlpack(result) for result in results]

    def _new_outputs(self, arrays: Sequence[object], has_caller_stream: bool) -> list[Any]:
        """Return uninitialised results; torch's allocator provides them if the work is on torch's stream."""
        torch = common_torch(arrays)
        if torch is not None and not has_caller_stream:
            like: Any = arrays[0]
            return [torch.empty(s.shape, dtype=getattr(torch, s.dtype), device=like.device) for s in self.outputs]
        sizes = [*self._sizes().items()][len(self.inputs) :]
        blocks = allocate(self._device, dict(sizes)).values()
        return [DeviceArray(block, s.shape, s.dtype) for block, s in zip(blocks, self.outputs, strict=True)]

    def _block_of_argument(
        self, spec: ArraySpec, role: str, value: object, stream: Stream
    ) -> tuple[DeviceBlock, ForeignArray | None]:
        """Return the memory of a DeviceArray or of an array that is borrowed for this call. Raises UsageError."""
        if isinstance(value, DeviceArray):
            block = value.block
            check_argument(
                spec, role, ForeignArray(block.memory, value.shape, value.dtype, None, block.read_only, value)
            )
            return block, None
        foreign = borrow(self._device, spec.name, value, stream)
        check_argument(spec, role, foreign)
        return borrowed_block(self._device, foreign, stream), foreign

    def _check_apart(self, blocks: Sequence[DeviceBlock]) -> None:
        """Raise UsageError if an output shares memory with any array before it."""
        n = len(self.inputs)
        if GPUS[self._device.kind].has_addresses:
            check_apart(self._specs, [self._device.address(block.memory) for block in blocks], n)
            return
        for i in range(n, len(blocks)):  # buffers have no addresses: only identical ones overlap
            for j in range(i):
                if blocks[i].memory.handle == blocks[j].memory.handle:
                    name, other = self._specs[i].name, self._specs[j].name
                    raise UsageError(f"output {name} overlaps {other} in memory; give it an array of its own")

    def _order_owners_after(self, borrowed: Sequence[ForeignArray], stream: Stream) -> None:
        """Make the work that owners of borrowed arrays queue from now on run after the kernel."""
        device = self._device
        owner_streams = {array.stream for array in borrowed if not array.must_synchronise and array.stream != stream}
        must_synchronise = any(array.must_synchronise for array in borrowed)
        event = device.record(stream) if owner_streams or (must_synchronise and stream is not None) else None
        for owner_stream in owner_streams:
            device.wait(event, owner_stream)
        if must_synchronise:
            if event is not None:
                device.wait(event, None)
            device.synchronise()

    def _sizes(self) -> dict[str, int]:
        """Return the bytes of all inputs and outputs, by their description; a value may be several outputs."""
        sizes: dict[str, int] = {}
        for role, specs in (("input", self.inputs), ("output", self.outputs)):
            for n, spec in enumerate(specs):
                name = f"{role} {spec.name}"
                sizes[f"{name} as number {n}" if name in sizes else name] = spec.nbytes
        return sizes
