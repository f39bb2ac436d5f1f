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
    check_form,
    describe,
    place_of,
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
            elif (made := self._fast_path.blocks(results, len(arrays))) is not None:
                blocks += made
            else:
                return None
            ours = [value.block for value in (*arrays, *results) if isinstance(value, DeviceArray)]
            stream = None if len(ours) == len(blocks) else self._fast_path.torch_stream()
            self._launch(blocks, ours, stream)
        return results

    def _by_protocols(self, arrays: Sequence[object], items: Sequence[object], stream: object) -> Sequence[Any]:
        on_host = self._place((*arrays, *items))
        handle = None if stream is None else stream_handle(self._device, stream)
        if on_host:
            return self._on_host(arrays, items, handle)
        with device_errors(self._device):
            return self._on_device(arrays, items, handle, stream is not None)

    def _place(self, values: Sequence[object]) -> bool:
        """Return whether the arrays are on the host. Raises UsageError unless all are there or all on the kernel's
        device.
        """
        here = ArrayLocation(self._device.kind)
        places = [value.place if isinstance(value, DeviceArray) else place_of(value) for value in values]
        for spec, value, place in zip(self._specs, values, places, strict=False):
            if place != here and place.kind != "cpu":
                raise UsageError(
                    f"{spec.name} is a {describe(value)} on {place}, but the kernel runs on {here}; "
                    f'give at.to_device({spec.name}, device="{here.kind}")'
                )
        host = [place.kind == "cpu" for place in places]
        if any(host) and not all(host):
            first, other = host.index(True), host.index(False)
            spec, device = self._specs[first], f'device="{here.kind}")'
            remedy = f"at.to_device({spec.name}, {device}"
            if first >= len(self.inputs):
                remedy = f'at.empty({spec.shape}, "{spec.dtype}", {device}'
            raise UsageError(
                f"{spec.name} is a {describe(values[first])} in host memory, but {self._specs[other].name} is on "
                f"{here}; give {remedy}"
            )
        return all(host)

    def _out_items(self, out: object) -> Sequence[object]:
        items = out if isinstance(out, (tuple, list)) else (out,)
        if len(items) != len(self.outputs):
            raise UsageError(f"out must hold {len(self.outputs)} arrays, one for each output, but has {len(items)}")
        return items

    def _on_host(self, arrays: Sequence[object], items: Sequence[object], stream: Stream) -> Sequence[Any]:
        """Run through device memory for arrays on the host."""
        given = [as_input(spec, array) for spec, array in zip(self.inputs, arrays, strict=True)]
        if items:
            results = [as_output(spec, item) for spec, item in zip(self.outputs, items, strict=True)]
            check_apart(self._specs, [address_of(array) for array in (*given, *results)], len(given))
        else:
            results = new_outputs(self.outputs)
        with self._transfer_blocks() as blocks:
            for block, array in zip(blocks, given, strict=False):
                upload(block, array)
            with device_errors(self._device):
                self._launch(blocks, blocks, stream)
            for block, array in zip(blocks[len(given) :], results, strict=True):
                download(block, array)
        return results if items else like_inputs(arrays, results)

    def _on_device(
        self, arrays: Sequence[object], items: Sequence[object], given: Stream, is_given: bool
    ) -> Sequence[Any]:
        """Run in place. The owners of borrowed arrays are told of the work unless the caller gave the stream."""
        device = self._device
        foreign = [value for value in (*arrays, *items) if not isinstance(value, DeviceArray)]
        stream = given if is_given else callers_stream(device, foreign)
        arguments = [self._argument(s, "input", value, stream) for s, value in zip(self.inputs, arrays, strict=True)]
        results = items or self._new_outputs(arrays, is_given)
        arguments += [
            self._argument(s, "output", value, stream) for s, value in zip(self.outputs, results, strict=True)
        ]
        if items:
            self._check_apart([block for block, _ in arguments])
        lasting = [block for block, found in arguments if found is None]
        self._launch([block for block, _ in arguments], lasting, stream)
        if not is_given:
            self._tell_owners([found for _, found in arguments if found is not None], stream)
        torch = None if items else common_torch(arrays)
        return results if torch is None or not is_given else [torch.from_dlpack(result) for result in results]

    def _new_outputs(self, arrays: Sequence[object], is_given: bool) -> list[Any]:
        """Return uninitialised results; torch's allocator provides them if the work is on torch's stream."""
        torch = common_torch(arrays)
        if torch is not None and not is_given:
            place: Any = arrays[0]
            return [torch.empty(s.shape, dtype=getattr(torch, s.dtype), device=place.device) for s in self.outputs]
        blocks = allocate(self._device, {f"output {s.name}": s.nbytes for s in self.outputs}).values()
        made = [DeviceArray(block, s.shape, s.dtype) for block, s in zip(blocks, self.outputs, strict=True)]
        return made

    def _argument(
        self, spec: ArraySpec, role: str, value: object, stream: Stream
    ) -> tuple[DeviceBlock, ForeignArray | None]:
        """Return the memory of a DeviceArray or of an array that is borrowed for this call. Raises UsageError."""
        if isinstance(value, DeviceArray):
            block = value.block
            check_form(spec, role, ForeignArray(block.memory, value.shape, value.dtype, None, block.read_only, value))
            return block, None
        found = borrow(self._device, spec.name, value, stream)
        check_form(spec, role, found)
        return borrowed_block(self._device, found, stream), found

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

    def _tell_owners(self, borrowed: Sequence[ForeignArray], stream: Stream) -> None:
        """Make the work that owners of borrowed arrays queue from now on run after the kernel."""
        device = self._device
        others = {found.stream for found in borrowed if not found.blind and found.stream != stream}
        blind = any(found.blind for found in borrowed)
        event = device.record(stream) if others or (blind and stream is not None) else None
        for other in others:
            device.wait(event, other)
        if blind:
            if event is not None:
                device.wait(event, None)
            device.synchronise()

    def _sizes(self) -> dict[str, int]:
        """Return the bytes of all inputs and outputs, by their description."""
        names = (*(f"input {s.name}" for s in self.inputs), *(f"output {s.name}" for s in self.outputs))
        return dict(zip(names, (spec.nbytes for spec in self._specs), strict=True))
