"""The data of a problem in device memory: guarded buffers, poison, copies that calls take in turn. Only workers import
this.

Inputs are uploaded once and stay; outputs are shared by the data sets and poisoned before each check. A guarded buffer
has MARGIN bytes before and behind, in the same allocation, filled as on the processor (see `buffers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from autosched.codegen.c.source import GpuSource
from autosched.measure.buffers import GUARD, POISON_FLOAT, same_bytes
from autosched.measure.check import CandidateError, Expected, compare, describe_clobbered, open_array, open_expected
from autosched.measure.problem import DATA_SETS, Array
from autosched.runtime.gpu.device import DeviceMemory, GpuDevice, shortage
from autosched.runtime.spec import ArraySpec

MARGIN = 1024  # bytes, rounded up to the device's alignment of sub-buffers
MAX_COPIES = 64
L2_FACTOR = 2  # all copies together are so many times as large as the last cache
Buffers: TypeAlias = Mapping[str, DeviceMemory]  # arguments of a kernel, by the names in its source


class Guarded:
    """`nbytes` of device memory between two margins. Raises DeviceFault (out_of_memory)."""

    def __init__(self, device: GpuDevice, nbytes: int, guard: bytes = GUARD) -> None:
        self._device, self._guard = device, guard
        self.margin = margin_bytes(device)
        self.nbytes = nbytes
        self._whole = device.allocate(nbytes + 2 * self.margin)
        self.memory = device.view(self._whole, self.margin, nbytes)
        self.guard()

    def guard(self) -> None:
        margin = np.resize(np.frombuffer(self._guard, np.uint8), self.margin)
        self._device.upload(self._whole, margin, 0)
        self._device.upload(self._whole, margin, self.margin + self.nbytes)

    def upload(self, array: Array) -> None:
        self._device.upload(self.memory, np.ascontiguousarray(array))

    def download(self, dtype: str) -> Array:
        """Return the flat elements."""
        array = np.empty(self.nbytes // np.dtype(dtype).itemsize, dtype)
        self._device.download(self.memory, array)
        return array

    def poison(self, dtype: str) -> None:
        pattern = POISON_FLOAT if dtype.startswith("float") else GUARD
        self._device.fill(self.memory, pattern, 0, self.nbytes - self.nbytes % len(pattern))

    def breach(self) -> str | None:
        """Return a sentence on the bytes of the margins that were overwritten; None if they are intact."""
        margin = np.empty(self.margin, np.uint8)
        wanted = np.resize(np.frombuffer(self._guard, np.uint8), self.margin)
        for offset, side in ((0, "before its start"), (self.margin + self.nbytes, "after its end")):
            self._device.download(self._whole, margin, offset)
            changed = np.flatnonzero(margin != wanted)
            if len(changed):
                nearest = int(changed[0]) + 1 if offset else self.margin - int(changed[-1])
                return f"{len(changed)} bytes {side}, the nearest {nearest} bytes away"
        return None

    def free(self) -> None:
        self._device.free(self._whole)


def margin_bytes(device: GpuDevice) -> int:
    """Return the bytes of a margin on a device."""
    return -(-MARGIN // device.alignment) * device.alignment


@dataclass(frozen=True)
class DataSetCopy:
    """One data set: its inputs on the host and on the device, and the limits of the outputs."""

    name: str
    originals: tuple[Array, ...]
    inputs: tuple[Guarded, ...]
    expected: tuple[Expected, ...]


class GpuData:
    """The data sets of a problem on a device. Raises OSError, ValueError on damaged files, DeviceFault."""

    def __init__(
        self, device: GpuDevice, directory: Path, inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec]
    ) -> None:
        self._device, self.inputs, self.outputs = device, tuple(inputs), tuple(outputs)
        self._check_memory()
        self._out = [Guarded(device, spec.nbytes) for spec in outputs]
        self.sets = tuple(self._load(directory, name) for name in DATA_SETS)
        self._copies = self._make_copies()

    def free(self) -> None:
        """Free the memory; no other method may be called then."""
        for buffer in (*self._out, *(buffer for data_set in self.sets for buffer in data_set.inputs)):
            buffer.free()
        for memory in (memory for copy in self._copies[1:] for memory in copy):
            self._device.free(memory)

    @property
    def n_copies(self) -> int:
        return len(self._copies)

    def buffers(self, source: GpuSource, number: int, workspace: Buffers) -> Buffers:
        """Return the arguments of a checked launch on data set `number`."""
        memory = [*(b.memory for b in self.sets[number].inputs), *(b.memory for b in self._out)]
        return {**_named(source, memory), **workspace}

    def timing_buffers(self, source: GpuSource, workspace: Buffers) -> list[Buffers]:
        """Return the arguments of successive calls of the timing loop: each has another copy of inputs and outputs, the
        first the originals.
        """
        return [{**_named(source, memory), **workspace} for memory in self._copies]

    def poison_outputs(self) -> None:
        for buffer, spec in zip(self._out, self.outputs, strict=True):
            buffer.poison(spec.dtype)

    def examine(self, number: int, workspace: Mapping[str, Guarded]) -> None:
        """Raise CandidateError if the last launch broke anything or its outputs are wrong; then all buffers but the
        outputs are restored.
        """
        data_set = self.sets[number]
        try:
            self._examine_bounds(data_set, workspace)
            for buffer, spec, original in zip(data_set.inputs, self.inputs, data_set.originals, strict=True):
                got = buffer.download(spec.dtype)
                if not same_bytes(got, original):
                    raise CandidateError("clobbered_input", describe_clobbered(spec, got, original))
        except CandidateError:
            self._restore(data_set, workspace)
            raise
        for buffer, spec, expected in zip(self._out, self.outputs, data_set.expected, strict=True):
            message = compare(spec, buffer.download(spec.dtype), expected)
            if message:
                raise CandidateError("wrong_result", f"{message} (data set {data_set.name})")

    def _examine_bounds(self, data_set: DataSetCopy, workspace: Mapping[str, Guarded]) -> None:
        named = [
            *((f"input {s.name}", b) for s, b in zip(self.inputs, data_set.inputs, strict=True)),
            *((f"output {s.name}", b) for s, b in zip(self.outputs, self._out, strict=True)),
            *((f"the workspace {name}", b) for name, b in workspace.items()),
        ]
        for name, buffer in named:
            breach = buffer.breach()
            if breach:
                raise CandidateError("out_of_bounds", f"the kernel wrote outside {name}: {breach}")

    def _restore(self, data_set: DataSetCopy, workspace: Mapping[str, Guarded]) -> None:
        for buffer, original in zip(data_set.inputs, data_set.originals, strict=True):
            buffer.upload(original)
        for buffer in (*data_set.inputs, *self._out, *workspace.values()):
            buffer.guard()

    def _load(self, directory: Path, name: str) -> DataSetCopy:
        originals = tuple(open_array(directory / f"{name}.in{i}.npy", spec) for i, spec in enumerate(self.inputs))
        buffers = tuple(Guarded(self._device, spec.nbytes, POISON_FLOAT) for spec in self.inputs)
        for buffer, original in zip(buffers, originals, strict=True):
            buffer.upload(original)
        expected = tuple(open_expected(directory, name, j, spec) for j, spec in enumerate(self.outputs))
        return DataSetCopy(name, originals, buffers, expected)

    def _check_memory(self) -> None:
        """Raise an error for a problem that does not fit, before anything is allocated."""
        inputs, outputs = (sum(s.nbytes for s in specs) for specs in (self.inputs, self.outputs))
        margins = 2 * margin_bytes(self._device) * (len(DATA_SETS) * len(self.inputs) + len(self.outputs))
        check_free_memory(
            self._device,
            {f"{len(DATA_SETS)} sets of inputs": len(DATA_SETS) * inputs, "outputs": outputs, "margins": margins},
        )

    def _make_copies(self) -> list[list[DeviceMemory]]:
        """Return as many copies as make L2_FACTOR times the cache, but at most half of the free memory."""
        specs = (*self.inputs, *self.outputs)
        nbytes = max(1, sum(s.nbytes for s in specs))
        wanted = -(-L2_FACTOR * self._device.facts().l2_bytes // nbytes)
        room = self._device.memory()[0] // 2 // nbytes
        originals = [*(b.memory for b in self.sets[0].inputs), *(b.memory for b in self._out)]
        copies = [originals]
        for _ in range(min(wanted, MAX_COPIES, 1 + room) - 1):
            copies.append([self._device.allocate(memory.nbytes) for memory in originals])
            for to, source in zip(copies[-1], originals[: len(self.inputs)], strict=False):
                self._device.copy(to, source)
        return copies


def make_workspace(device: GpuDevice, source: GpuSource) -> dict[str, Guarded]:
    """Return poisoned buffers for intermediate results between a kernel's launches. Raises CandidateError if they do
    not fit.
    """
    sizes = {f"workspace {name}": nbytes + 2 * margin_bytes(device) for name, nbytes in source.workspace}
    check_free_memory(device, sizes)
    made = {name: Guarded(device, nbytes) for name, nbytes in source.workspace}
    for buffer in made.values():
        buffer.poison("float32")
    return made


def check_free_memory(device: GpuDevice, sizes: Mapping[str, int]) -> None:
    """Raise CandidateError (out_of_memory), with all sizes, if `sizes` together exceed the free memory."""
    message = shortage(device, sizes)
    if message is not None:
        raise CandidateError("out_of_memory", message)


def _named(source: GpuSource, memory: Sequence[DeviceMemory]) -> dict[str, DeviceMemory]:
    return dict(zip((*source.inputs, *source.outputs), memory, strict=True))
