"""A network on a GPU: its weights and one arena in device memory, its kernels queued one after the other.

Nothing waits between kernels, and nothing goes through the host but what callers give and get there. Kernels whose
pointers are the same at every call are bound once. A call with the same arrays as one before it is captured, where the
driver can, and from then on started at once (CUDA's graphs).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from autosched.codegen.c.source import GpuSource
from autosched.codegen.calls import ARENA, ARGUMENT, WEIGHTS, KernelCall, Pointer
from autosched.errors import DeviceError, OutOfRangeError, UsageError
from autosched.executor.constant_kernels import ahead_of
from autosched.executor.gpu_timer import GpuClock
from autosched.executor.model import Clocks, Model, ends_of
from autosched.graph.graph import Array, Graph
from autosched.graph.index_checks import reports_of
from autosched.graph.mapped_arrays import check_mapped
from autosched.graph.steps import Group
from autosched.kernel.device import Device
from autosched.kernel.gpu_kernel import decoded, workspace_of
from autosched.planning.execution_plan import NetworkProgram, array_spec
from autosched.runtime.gpu.arrays import DeviceBlock, allocate, device_errors, download, mark_used, queue_after, upload
from autosched.runtime.gpu.device import DeviceMemory, GpuDevice, LaunchSequence, Stream
from autosched.runtime.gpu.devices import GPUS
from autosched.runtime.gpu.function import DeviceFunction
from autosched.runtime.gpu.kernel import device_code
from autosched.runtime.tensors import are_equal, as_input
from autosched.target import usable_cores

KEPT_CALLS = 4  # with different arrays: what repeats comes with the same, or goes round a few
PREPARED = "prepared"  # the block of what depends on constants alone
REPORTS = "reports"  # the block of what bounds checks of indices find: of each the first one outside and its number


@dataclass(frozen=True)
class LoadedSource:
    """A source with its kernels on a device."""

    source: GpuSource
    kernels: Mapping[str, Any]


@dataclass(frozen=True)
class _Bound:
    """All launches of a call on certain arrays; `is_captured`: in the driver's quickest form."""

    sequence: LaunchSequence
    is_captured: bool


class GpuModel(DeviceFunction, Model):
    """`loaded`: its kernels by name; `weights`: the block of them, where another network has it on the device already.
    Calls take their turns: there is one arena."""

    def __init__(
        self,
        original: Graph,
        program: NetworkProgram,
        device: Device,
        gpu: GpuDevice,
        loaded: Mapping[str, LoadedSource],
        weights: DeviceBlock | None = None,
    ) -> None:
        super().__init__(gpu, *ends_of(original, program.graph))
        self.original, self.program, self.device, self.loaded = original, program, device, loaded
        sizes = {WEIGHTS: max(program.weights_bytes, 1)} if weights is None else {}
        self._blocks = allocate(gpu, sizes | {ARENA: max(program.memory.nbytes, 1)})
        if weights is None:
            self._upload_weights()
        else:
            self._blocks[WEIGHTS] = weights
        words = [name for report in reports_of(program.graph) for name in report]
        apart = program.backend.array_alignment
        self._words = {name: n * apart for n, name in enumerate(words)}
        if words:
            self._blocks |= allocate(gpu, {REPORTS: len(words) * apart})
        self._transfer: tuple[DeviceBlock, ...] | None = None
        self._calls: dict[tuple[object, ...], _Bound] = {}
        self._transferring, self._launching = threading.Lock(), threading.Lock()
        self._used: Any = None  # the event of the last call on a stream of a caller
        steps = [n for n, step in enumerate(program.steps) if isinstance(step, Group)]
        self._kernel_calls = dict(zip(steps, program.launches(), strict=True))
        self._prepare()
        with device_errors(gpu):
            self._fixed = {n: self._bind(n, ()) for n, call in self._kernel_calls.items() if not _has_argument(call)}

    def __reduce__(self) -> NoReturn:
        raise UsageError("a network on a GPU can be neither copied nor pickled: save it, and load the file")

    @property
    def threads(self) -> int:
        return self.device.threads

    def with_program(self, original: Graph, program: NetworkProgram) -> GpuModel:
        return GpuModel(original, program, self.device, self._device, self.loaded)

    def sharing(self, original: Graph, program: NetworkProgram, other: Model) -> GpuModel:
        mine, weights = program.graph.constants, self._blocks[WEIGHTS]
        if isinstance(other, GpuModel) and program.raw_offsets == other.program.raw_offsets:
            theirs = other.program.graph.constants
            if all(name in theirs and are_equal(mine[name], theirs[name]) for name in program.raw_offsets):
                weights = other._blocks[WEIGHTS]
        return GpuModel(original, program, self.device, self._device, self.loaded, weights)

    def relinked(self, original: Graph, program: NetworkProgram) -> GpuModel:
        return load_on(self._device, original, program, self.device)

    def export(self, path: str | Path) -> NoReturn:
        raise UsageError(
            f"networks are exported for processors so far, and this one is for {self.device.target.kind}: save it as "
            "*.asc, which at.load takes"
        )

    def launch(self, addresses: Sequence[int]) -> None:
        memory = [self._device.adopt(at, spec.nbytes) for at, spec in zip(addresses, self._specs, strict=True)]
        with device_errors(self._device):
            self._launch([DeviceBlock(self._device, m, keeper=self) for m in memory], (), None)

    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        graph, step, device = self.program.graph, self.program.steps[number], self._device
        assert isinstance(step, Group)
        entry = self._kernel_calls[number].entry
        source = self.loaded[entry].source
        given = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        specs = {name: array_spec(graph, name) for name in (*given, *step.outputs)}
        sizes = {name: spec.nbytes for name, spec in specs.items()}
        blocks = allocate(device, sizes | {f"workspace {name}": nbytes for name, nbytes in source.workspace})
        for name, array in given.items():
            upload(blocks[name], array)
        made = {name: np.empty(specs[name].shape, specs[name].numpy_dtype) for name in step.outputs}
        with device_errors(device):
            for name in made:  # what the kernel leaves out shows
                device.fill(blocks[name].memory, b"\xff", 0, sizes[name])
            memory = [self._of_step(name, blocks) for name in (*step.inputs, *step.outputs)]
            buffers = dict(zip((*source.inputs, *source.outputs), memory, strict=True))
            buffers |= {name: blocks[f"workspace {name}"].memory for name, _ in source.workspace}
            device.run(device.prepare(self.loaded[entry].kernels, source, buffers))
        for name, array in made.items():
            download(blocks[name], array)
        return made

    def _of_step(self, name: str, blocks: Mapping[str, DeviceBlock]) -> DeviceMemory:
        """The memory of a value for a kernel by itself: a block of its own, or where the weights are."""
        if name in blocks:
            return blocks[name].memory
        pointer = self.program.pointer(name)
        assert pointer is not None
        return self._memory(pointer, array_spec(self.program.graph, name).nbytes, ())

    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        """On the device, by its events, with all arrays there. Kernels of the same code take turns."""
        device = self._device
        blocks = tuple(allocate(device, self._sizes()).values())
        for block, spec in zip(blocks, self.inputs, strict=False):
            upload(block, as_input(spec, arrays[spec.name]))
        memory = [block.memory for block in blocks]
        with device_errors(device):
            whole = self._whole(memory)
            steps = {n: self._fixed.get(n) or self._bind(n, memory) for n in self._kernel_calls}

        def seconds(held: object, calls: Sequence[LaunchSequence], times: int) -> float:
            with self._launching, device_errors(device):
                queue_after(device, self._blocks.values(), None)
                found = device.time(calls, times)
                mark_used(device, self._blocks.values(), None)
            return found

        alike: dict[str, list[LaunchSequence]] = {}
        for n, bound in steps.items():
            alike.setdefault(self._kernel_calls[n].entry, []).extend([bound] if bound.launches else [])
        kernels = {n: GpuClock(alike[call.entry], partial(seconds, blocks)) for n, call in self._kernel_calls.items()}
        return Clocks(kernels, partial(seconds, blocks, [whole]))

    # Calls

    @contextmanager
    def _transfer_blocks(self) -> Iterator[Sequence[DeviceBlock]]:
        with self._transferring:
            if self._transfer is None:
                self._transfer = tuple(allocate(self._device, self._sizes()).values())
            yield self._transfer
            self.check_indices()

    def check_indices(self) -> None:
        """Waits until the last call is done, and raises OutOfRangeError where an index of its data was out of range. A
        call with arrays of the host does so itself; one whose arrays are on the device does not wait."""
        if not self._words:
            return
        found = np.empty((len(self.program.checks), 2, self.program.backend.array_alignment // 8), np.int64)
        download(self._blocks[REPORTS], found)
        for check, (index, number) in zip(self.program.checks, found[..., 0].tolist(), strict=True):
            if number < math.prod(self.program.graph.values[check.ids].shape) // check.columns:
                raise OutOfRangeError(check.message(index))

    def _launch(self, blocks: Sequence[DeviceBlock], lasting: Sequence[DeviceBlock], stream: Stream) -> None:
        device, arena = self._device, self._blocks[ARENA]
        with self._launching:
            call = self._call_on(blocks)
            queue_after(device, (*blocks, arena), stream)
            device.run(call, stream)
            # All calls come one after the other, so that the last event stands for those before it.
            own = (arena, self._blocks[REPORTS]) if self._words else (arena,)
            self._used = mark_used(device, (*lasting, *own), stream, self._used) or self._used

    def _call_on(self, blocks: Sequence[DeviceBlock]) -> LaunchSequence:
        """The launches on these arrays: bound at the first call with them, captured at the second one."""
        memory = [block.memory for block in blocks]
        if GPUS[self._device.kind].has_addresses:
            key: tuple[object, ...] = tuple(map(self._device.address, memory))
        elif blocks is self._transfer:
            key = ()
        else:  # a buffer may be freed, and another one have its name
            return self._whole(memory)
        known = self._calls.pop(key, None)
        if known is None:
            known = _Bound(self._whole(memory), False)
        elif not known.is_captured:
            known = _Bound(self._device.capture(known.sequence), True)
        self._calls[key] = known
        if len(self._calls) > KEPT_CALLS:
            del self._calls[next(iter(self._calls))]
        return known.sequence

    def _whole(self, arguments: Sequence[DeviceMemory]) -> LaunchSequence:
        calls = [self._fixed.get(n) or self._bind(n, arguments) for n in self._kernel_calls]
        return LaunchSequence(tuple(chain.from_iterable(call.launches for call in calls)))

    def _prepare(self) -> None:
        """Makes what depends on constants alone."""
        device, program = self._device, self.program
        sources = {name: loaded.source for name, loaded in self.loaded.items()}
        ahead = self._ahead = ahead_of(program, sources)
        if ahead.nbytes:
            self._blocks |= allocate(device, {PREPARED: ahead.nbytes})
        with device_errors(device):
            for n in ahead.runs:
                device.run(self._bound(n, ahead.of_step(n), ()))
            device.synchronise()

    def _bind(self, number: int, arguments: Sequence[DeviceMemory]) -> LaunchSequence:
        """The launches of one kernel that each call has, with the caller's arrays where it has such."""
        source, done = self.loaded[self._kernel_calls[number].entry].source, self._ahead.of_step(number)
        return self._bound(number, frozenset(range(len(source.launches))) - done, arguments)

    def _bound(self, number: int, launches: frozenset[int], arguments: Sequence[DeviceMemory]) -> LaunchSequence:
        """Some launches of a kernel, by their numbers."""
        step, call = self.program.steps[number], self._kernel_calls[number]
        assert isinstance(step, Group)
        loaded = self.loaded[call.entry]
        source = _with_launches(loaded.source, launches)
        names = (*loaded.source.inputs, *loaded.source.outputs)
        buffers = {}
        for name, value, pointer in zip(names, (*step.inputs, *step.outputs), call.pointers, strict=True):
            if name in (*source.inputs, *source.outputs):
                assert pointer is not None
                buffers[name] = self._of_value(value, pointer, arguments)
        offsets, _ = workspace_of(loaded.source, self.program.backend.array_alignment)
        for name, nbytes in source.workspace:
            at = self._ahead.offsets.get((number, name))
            place = Pointer(ARENA, call.workspace.at + offsets[name]) if at is None else Pointer(PREPARED, at)
            buffers[name] = self._memory(place, nbytes, ())
        return self._device.prepare(loaded.kernels, source, buffers)

    def _of_value(self, value: str, pointer: Pointer, arguments: Sequence[DeviceMemory]) -> DeviceMemory:
        at = self._ahead.of_value(self.program, value)
        place = pointer if at is None else Pointer(PREPARED, at)
        place = Pointer(REPORTS, self._words[value]) if value in self._words else place
        return self._memory(place, array_spec(self.program.graph, value).nbytes, arguments)

    def _memory(self, pointer: Pointer, nbytes: int, arguments: Sequence[DeviceMemory]) -> DeviceMemory:
        if pointer.place == ARGUMENT:
            whole = arguments[pointer.at]
            return self._device.view(whole, pointer.offset, nbytes) if pointer.offset else whole
        return self._device.view(self._blocks[pointer.place].memory, pointer.at + pointer.offset, nbytes)

    def _upload_weights(self) -> None:
        block = self._blocks[WEIGHTS]
        check_mapped(self.program.graph.constants)
        with device_errors(self._device):
            for name, at in self.program.raw_offsets.items():
                self._device.upload(block.memory, np.ascontiguousarray(self.program.graph.constants[name]), at)


def load_on(gpu: GpuDevice, original: Graph, program: NetworkProgram, device: Device) -> GpuModel:
    """The program on a device: its kernels loaded there, its weights uploaded. Raises DeviceError."""
    if program.backend.array_alignment % gpu.alignment:
        raise DeviceError(
            f"{gpu.name} needs parts of buffers at multiples of {gpu.alignment} bytes, and networks have them at "
            f"multiples of {program.backend.array_alignment}: run the network on another device"
        )
    sources = {task.kernel.name: decoded(task.kernel.code) for task in program.tasks}

    def load(source: GpuSource) -> LoadedSource:
        code = device_code(gpu, source, device.target)
        with device_errors(gpu):
            return LoadedSource(source, gpu.load(code, source))

    with ThreadPoolExecutor(usable_cores()) as pool:
        loaded = dict(zip(sources, pool.map(load, sources.values()), strict=True))
    return GpuModel(original, program, device, gpu, loaded)


def _with_launches(source: GpuSource, numbers: frozenset[int]) -> GpuSource:
    """A source of some of its launches, and of the buffers that these touch. The first one waits for what was before
    as any kernel does."""
    if len(numbers) == len(source.launches):
        return source
    launches = tuple(
        replace(launch, is_early=launch.is_early and n - 1 in numbers)
        for n, launch in enumerate(source.launches)
        if n in numbers
    )
    touched = {buffer for launch in launches for buffer in launch.buffers}
    inputs, outputs = ([name for name in names if name in touched] for names in (source.inputs, source.outputs))
    workspace = tuple((name, nbytes) for name, nbytes in source.workspace if name in touched)
    return replace(source, launches=launches, inputs=tuple(inputs), outputs=tuple(outputs), workspace=workspace)


def _has_argument(call: KernelCall) -> bool:
    return any(pointer is not None and pointer.place == ARGUMENT for pointer in call.pointers)
