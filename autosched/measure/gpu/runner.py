"""Runner of kernels for GPUs: it loads a kernel, checks it and times it. Only workers import this.

The context on the device is created when the problem is loaded, so that a spare runner takes no memory there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autosched.codegen.c.source import GpuSource
from autosched.errors import DeviceError
from autosched.measure import timing
from autosched.measure.check import CandidateError
from autosched.measure.gpu.data import GpuData, Guarded, make_workspace
from autosched.measure.problem import DATA_SETS
from autosched.measure.protocol import (
    Done,
    Failed,
    Hold,
    LoadData,
    Message,
    Peak,
    ProtocolError,
    Rate,
    Setup,
    source_as,
)
from autosched.measure.slots import Slots
from autosched.runtime.gpu.compile import CompileError, DeviceCode, compile_source
from autosched.runtime.gpu.device import DeviceFault, DeviceMemory, GpuDevice, LaunchSequence
from autosched.runtime.gpu.devices import compiler_for, open_device
from autosched.runtime.gpu.handwritten import canary_source
from autosched.runtime.gpu.peak import measure_gpu_peak

_CANARY_ELEMENTS = 1024


@dataclass
class HeldGpuKernel:
    """A checked kernel; `reps` calls fill a short sample of the interleaved comparison, 0 when not yet known."""

    source: GpuSource
    kernels: Mapping[str, Any]
    workspace: dict[str, Guarded]
    timing_buffers: tuple[LaunchSequence, ...]
    reps: int = 0


class GpuRunner(Slots[HeldGpuKernel]):
    """State of a runner: the device, the data sets on it, the kernels held by slot."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self._setup = setup
        self._opened: GpuDevice | None = None
        self._loaded: GpuData | None = None

    def handle(self, message: Message) -> Message:
        try:
            return super().handle(message)
        except DeviceFault as fault:
            return Failed(message.id, fault.kind, str(fault))
        except DeviceError as error:
            return Failed(message.id, "device_lost", str(error))

    def _carry_out(self, message: Message) -> Message:
        match message:
            case Hold():
                return self._hold(message)
            case Peak(pipe=pipe):
                return Rate(message.id, measure_gpu_peak(self._device, pipe))
        return super()._carry_out(message)

    @property
    def _device(self) -> GpuDevice:
        if self._opened is None:
            raise ProtocolError("nothing is loaded")
        return self._opened

    @property
    def _data(self) -> GpuData:
        if self._loaded is None:
            raise ProtocolError("nothing is loaded")
        return self._loaded

    def _load(self, message: LoadData) -> None:
        if self._opened is None:
            self._opened = open_device(self._setup.target.kind)
        if self._loaded is not None:
            self._loaded.free()
            self._loaded = None
        self._loaded = GpuData(self._opened, Path(message.directory), message.inputs, message.outputs)

    def _hold(self, message: Hold) -> Message:
        self._release(message.slot)  # frees its scratch before more is allocated
        source = source_as(GpuSource, message)
        binary = DeviceCode.from_bytes(Path(message.object_path).read_bytes())
        workspace = make_workspace(self._device, source)
        try:
            held = self._checked(source, binary, workspace)
        except BaseException:
            _free(workspace)
            raise
        self._held[message.slot] = held
        return Done(message.id)

    def _checked(self, source: GpuSource, binary: DeviceCode, workspace: dict[str, Guarded]) -> HeldGpuKernel:
        """Launch once on each data set, each time with poisoned scratch. Raises CandidateError."""
        device, data = self._device, self._data
        kernels = device.load(binary, source)
        prepare = partial(device.prepare, kernels, source)
        scratch = _memory(workspace)
        for number in range(len(DATA_SETS)):
            for buffer in workspace.values():
                buffer.poison("float32")
            self._launch(prepare(data.buffers(source, number, scratch)), number, workspace)
        calls = tuple(prepare(buffers) for buffers in data.timing_buffers(source, scratch))
        return HeldGpuKernel(source, kernels, workspace, calls)

    def _launch(self, call: LaunchSequence, number: int, workspace: dict[str, Guarded]) -> None:
        self._data.poison_outputs()
        self._device.run(call)
        self._device.synchronise()
        self._data.examine(number, workspace)

    def _release(self, slot: int) -> None:
        held = self._held.pop(slot, None)
        if held is not None:
            _free(held.workspace)

    def _launch_again(self, held: HeldGpuKernel) -> None:
        buffers = self._data.buffers(held.source, 0, _memory(held.workspace))
        self._launch(self._device.prepare(held.kernels, held.source, buffers), 0, held.workspace)

    def _clock(self, held: HeldGpuKernel) -> Callable[[int], float]:
        return lambda reps: self._device.time(held.timing_buffers, reps)

    def _canary(self) -> tuple[float, ...]:
        device, target = self._device, self._setup.target
        source = canary_source(target.kind, _CANARY_ELEMENTS)
        arch = device.facts().arch
        try:
            binary = compile_source(source, compiler_for(target.kind, arch))
        except CompileError as error:
            raise CandidateError("build_error", f"the canary kernel does not compile: {error}") from None
        given = np.arange(_CANARY_ELEMENTS, dtype=np.float32)
        result = np.full_like(given, np.nan)
        memory = [device.allocate(given.nbytes) for _ in range(2)]
        try:
            for to, array in zip(memory, (given, result), strict=True):
                device.upload(to, array)
            buffers = dict(zip((*source.inputs, *source.outputs), memory, strict=True))
            call = device.prepare(device.load(binary, source), source, buffers)
            samples, _ = timing.take_samples(lambda reps: device.time([call], reps), 0.0, None)
            device.download(memory[1], result)
        finally:
            for allocated in memory:
                device.free(allocated)
        if not np.array_equal(result, given + given):
            raise CandidateError("wrong_result", "the canary kernel's result is wrong")
        return samples


def _memory(workspace: Mapping[str, Guarded]) -> dict[str, DeviceMemory]:
    return {name: buffer.memory for name, buffer in workspace.items()}


def _free(workspace: Mapping[str, Guarded]) -> None:
    for buffer in workspace.values():
        buffer.free()
