"""Model on a GPU: weights and one arena in device memory, kernels queued on one stream.

The host does not synchronise between kernels, and copies only the callers' host arrays. Launches whose arguments are
the same at every call are bound once. The second call with the same arrays is captured where the driver can, and later
calls launch that graph (CUDA graphs).
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
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from autosched.codegen.c.source import SIZES, GpuSource
from autosched.codegen.calls import ARENA, ARGUMENT, WEIGHTS, KernelCall, Pointer
from autosched.errors import DeviceError, OutOfRangeError, UsageError
from autosched.executor.constant_kernels import find_constant_launches
from autosched.executor.gpu_timer import GpuClock
from autosched.executor.model import Clocks, Model, caller_specs
from autosched.graph.graph import Array, Graph
from autosched.graph.index_checks import reports_of
from autosched.graph.mapped_arrays import GraphConstants
from autosched.graph.steps import Group
from autosched.kernel.device import Device
from autosched.kernel.gpu_kernel import load_source, workspace_layout
from autosched.planning.execution_plan import NetworkProgram, array_spec
from autosched.runtime.gpu.arrays import DeviceBlock, allocate, device_errors, download, mark_used, queue_after, upload
from autosched.runtime.gpu.device import DeviceMemory, GpuDevice, LaunchSequence, Stream
from autosched.runtime.gpu.devices import GPUS
from autosched.runtime.gpu.function import DeviceFunction
from autosched.runtime.gpu.kernel import LoadedCode, upload_sizes
from autosched.runtime.tensors import are_equal, as_input
from autosched.target import usable_cores

if TYPE_CHECKING:
    from autosched.executor.sized_network import SizedNetwork

MAX_CAPTURED = 4  # captured calls, with different arrays: repeated calls have the same arrays, or cycle through a few
PREPARED = "prepare_graph"  # block of the results of constant launches
REPORTS = "reports"  # block of the bounds checks' results: the first index out of range, and its position


@dataclass(frozen=True)
class LoadedSource:
    """A source, and its kernels loaded on a device."""

    source: GpuSource
    kernels: Mapping[str, Any]


@dataclass(frozen=True)
class _BoundCall:
    """All launches of a call, bound to its arrays; `is_captured`: as a graph of the driver."""

    sequence: LaunchSequence
    is_captured: bool


class GpuModel(DeviceFunction, Model):
    """`loaded`: kernels by name. `weights`: the block of weights, by default an own one. Concurrent calls are
    serialised, because they use one arena."""

    def __init__(
        self,
        original: Graph,
        program: NetworkProgram,
        device: Device,
        gpu: GpuDevice,
        loaded: Mapping[str, LoadedSource],
        weights: DeviceBlock | None = None,
    ) -> None:
        super().__init__(gpu, *caller_specs(original, program.graph))
        self.original, self.program, self.device, self.loaded = original, program, device, loaded
        self.weights = upload_weights(gpu, program) if weights is None else weights
        self._blocks = {WEIGHTS: self.weights, **allocate(gpu, {ARENA: max(program.memory.nbytes, 1)})}
        used = ((call.entry, loaded[call.entry].source.sizes) for call in program.launches())
        self._sizes_of = {entry: upload_sizes(gpu, sizes) for entry, sizes in dict(used).items() if sizes}
        reports = [name for report in reports_of(program.graph) for name in report]
        stride = program.backend.array_alignment
        self._report_offsets = {name: n * stride for n, name in enumerate(reports)}
        if reports:
            self._blocks |= allocate(gpu, {REPORTS: len(reports) * stride})
        self._staging: tuple[DeviceBlock, ...] | None = None
        self._calls: dict[tuple[object, ...], _BoundCall] = {}
        self._transferring, self._launching = threading.Lock(), threading.Lock()
        self._used: Any = None  # event of the last call on a caller's stream
        steps = [n for n, step in enumerate(program.steps) if isinstance(step, Group)]
        self._kernel_calls = dict(zip(steps, program.launches(), strict=True))
        self._run_constant_launches()
        with device_errors(gpu):
            self._fixed = {n: self._bind(n, ()) for n, call in self._kernel_calls.items() if not _has_argument(call)}

    def __reduce__(self) -> NoReturn:
        raise UsageError("a network on a GPU can be neither copied nor pickled: save it, and load the file")

    @property
    def threads(self) -> int:
        return self.device.threads

    def with_program(self, original: Graph, program: NetworkProgram) -> GpuModel:
        return GpuModel(original, program, self.device, self._device, self.loaded)

    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model | SizedNetwork) -> GpuModel:
        weights = getattr(other, "weights", None)  # models on processors have none
        if weights is None or not has_equal_weights(program, other.program):
            weights = self.weights
        return GpuModel(original, program, self.device, self._device, self.loaded, weights)

    def link_program(self, original: Graph, program: NetworkProgram) -> GpuModel:
        return load_on_gpu(self._device, original, program, self.device)

    def export(self, path: str | Path) -> NoReturn:
        raise UsageError(
            f"networks are exported for processors so far, and this one is for {self.device.target.kind}: save it as "
            "*.asc, which at.load takes"
        )

    def launch(self, addresses: Sequence[int]) -> None:
        memory = [self._device.adopt(at, spec.nbytes) for at, spec in zip(addresses, self._specs, strict=True)]
        with device_errors(self._device):
            self._launch([DeviceBlock(self._device, m, owner=self) for m in memory], (), None)

    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        graph, step, device = self.program.graph, self.program.steps[number], self._device
        assert isinstance(step, Group)
        entry = self._kernel_calls[number].entry
        source = self.loaded[entry].source
        inputs = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        specs = {name: array_spec(graph, name) for name in (*inputs, *step.outputs)}
        sizes = {name: spec.nbytes for name, spec in specs.items()}
        blocks = allocate(device, sizes | {f"workspace {name}": nbytes for name, nbytes in source.workspace})
        for name, array in inputs.items():
            upload(blocks[name], array)
        results = {name: np.empty(specs[name].shape, specs[name].numpy_dtype) for name in step.outputs}
        with device_errors(device):
            for name in results:  # NaN: reveals elements that the kernel does not write
                device.fill(blocks[name].memory, b"\xff", 0, sizes[name])
            memory = [self._step_memory(name, blocks) for name in (*step.inputs, *step.outputs)]
            buffers = dict(zip((*source.inputs, *source.outputs), memory, strict=True))
            buffers |= {name: blocks[f"workspace {name}"].memory for name, _ in source.workspace}
            buffers |= self._buffer_of_sizes(entry)
            device.run(device.prepare(self.loaded[entry].kernels, source, buffers))
        for name, array in results.items():
            download(blocks[name], array)
        return results

    def _buffer_of_sizes(self, entry: str) -> dict[str, DeviceMemory]:
        """Return the buffer SIZES of a kernel for sizes that are known at a call; nothing for others."""
        block = self._sizes_of.get(entry)
        return {} if block is None else {SIZES: block.memory}

    def _step_memory(self, name: str, blocks: Mapping[str, DeviceBlock]) -> DeviceMemory:
        """Return the memory of a value for a single kernel: its block of `blocks`, or that of the weights."""
        if name in blocks:
            return blocks[name].memory
        pointer = self.program.pointer(name)
        assert pointer is not None
        return self._memory(pointer, array_spec(self.program.graph, name).nbytes, ())

    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        """Return clocks that use the device's events, with all arrays in device memory. Layers of the same kernel are
        timed in turn."""
        device = self._device
        blocks = tuple(allocate(device, self._sizes()).values())
        for block, spec in zip(blocks, self.inputs, strict=False):
            upload(block, as_input(spec, arrays[spec.name]))
        memory = [block.memory for block in blocks]
        with device_errors(device):
            all_launches = self._all_launches(memory)
            steps = {n: self._fixed.get(n) or self._bind(n, memory) for n in self._kernel_calls}

        def seconds(held: object, calls: Sequence[LaunchSequence], times: int) -> float:
            with self._launching, device_errors(device):
                queue_after(device, self._blocks.values(), None)
                elapsed_s = device.time(calls, times)
                mark_used(device, self._blocks.values(), None)
            return elapsed_s

        same_kernel: dict[str, list[LaunchSequence]] = {}
        for n, bound in steps.items():
            same_kernel.setdefault(self._kernel_calls[n].entry, []).extend([bound] if bound.launches else [])
        kernels = {
            n: GpuClock(same_kernel[call.entry], partial(seconds, blocks)) for n, call in self._kernel_calls.items()
        }
        return Clocks(kernels, partial(seconds, blocks, [all_launches]))

    # Calls

    @contextmanager
    def _transfer_blocks(self) -> Iterator[Sequence[DeviceBlock]]:
        with self._transferring:
            if self._staging is None:
                self._staging = tuple(allocate(self._device, self._sizes()).values())
            yield self._staging
            self.check_indices()

    def check_indices(self) -> None:
        """Wait for the last call, and raise OutOfRangeError if an index of its data was out of range.

        Calls with host arrays do this themselves; calls with device arrays do not wait.
        """
        if not self._report_offsets:
            return
        reports = np.empty((len(self.program.checks), 2, self.program.backend.array_alignment // 8), np.int64)
        download(self._blocks[REPORTS], reports)
        for check, (index, position) in zip(self.program.checks, reports[..., 0].tolist(), strict=True):
            if position < math.prod(self.program.graph.values[check.ids].shape) // check.columns:
                raise OutOfRangeError(check.message(index))

    def _launch(self, blocks: Sequence[DeviceBlock], lasting: Sequence[DeviceBlock], stream: Stream) -> None:
        device, arena = self._device, self._blocks[ARENA]
        with self._launching:
            call = self._bound_call(blocks)
            queue_after(device, (*blocks, arena), stream)
            device.run(call, stream)
            # Calls are serialised, so the last event implies all earlier ones.
            own = (arena, self._blocks[REPORTS]) if self._report_offsets else (arena,)
            self._used = mark_used(device, (*lasting, *own), stream, self._used) or self._used

    def _bound_call(self, blocks: Sequence[DeviceBlock]) -> LaunchSequence:
        """Return the launches on these arrays: bound at the first call with them, captured at the second."""
        memory = [block.memory for block in blocks]
        if GPUS[self._device.kind].has_addresses:
            key: tuple[object, ...] = tuple(map(self._device.address, memory))
        elif blocks is self._staging:
            key = ()
        else:  # without addresses a freed buffer cannot be told from a new one
            return self._all_launches(memory)
        bound = self._calls.pop(key, None)
        if bound is None:
            bound = _BoundCall(self._all_launches(memory), False)
        elif not bound.is_captured:
            bound = _BoundCall(self._device.capture(bound.sequence), True)
        self._calls[key] = bound
        if len(self._calls) > MAX_CAPTURED:
            del self._calls[next(iter(self._calls))]
        return bound.sequence

    def _all_launches(self, arguments: Sequence[DeviceMemory]) -> LaunchSequence:
        calls = [self._fixed.get(n) or self._bind(n, arguments) for n in self._kernel_calls]
        return LaunchSequence(tuple(chain.from_iterable(call.launches for call in calls)))

    def _run_constant_launches(self) -> None:
        """Run the launches that depend on constants alone, once."""
        device, program = self._device, self.program
        sources = {name: loaded.source for name, loaded in self.loaded.items()}
        constant = self._constant = find_constant_launches(program, sources)
        if constant.nbytes:
            self._blocks |= allocate(device, {PREPARED: constant.nbytes})
        with device_errors(device):
            for n in constant.steps_to_run:
                device.run(self._bind_launches(n, constant.of_step(n), ()))
            device.synchronise()

    def _bind(self, number: int, arguments: Sequence[DeviceMemory]) -> LaunchSequence:
        """Return the launches of a step's kernel that are not constant, bound to the caller's arrays."""
        source, constant = self.loaded[self._kernel_calls[number].entry].source, self._constant.of_step(number)
        return self._bind_launches(number, frozenset(range(len(source.launches))) - constant, arguments)

    def _bind_launches(
        self, number: int, launches: frozenset[int], arguments: Sequence[DeviceMemory]
    ) -> LaunchSequence:
        """Return the launches with these indices of a step's kernel, bound to the caller's arrays."""
        step, call = self.program.steps[number], self._kernel_calls[number]
        assert isinstance(step, Group)
        loaded = self.loaded[call.entry]
        source = _with_launches(loaded.source, launches)
        names = (*loaded.source.inputs, *loaded.source.outputs)
        buffers = {}
        for name, value, pointer in zip(names, (*step.inputs, *step.outputs), call.pointers, strict=True):
            if name in (*source.inputs, *source.outputs):
                assert pointer is not None
                buffers[name] = self._value_memory(value, pointer, arguments)
        offsets, _ = workspace_layout(loaded.source, self.program.backend.array_alignment)
        for name, nbytes in source.workspace:
            at = self._constant.offsets.get((number, name))
            pointer = Pointer(ARENA, call.workspace.at + offsets[name]) if at is None else Pointer(PREPARED, at)
            buffers[name] = self._memory(pointer, nbytes, ())
        return self._device.prepare(loaded.kernels, source, buffers | self._buffer_of_sizes(call.entry))

    def _value_memory(self, value: str, pointer: Pointer, arguments: Sequence[DeviceMemory]) -> DeviceMemory:
        if (at := self._constant.offset_of_value(self.program, value)) is not None:
            pointer = Pointer(PREPARED, at)
        if value in self._report_offsets:
            pointer = Pointer(REPORTS, self._report_offsets[value])
        return self._memory(pointer, array_spec(self.program.graph, value).nbytes, arguments)

    def _memory(self, pointer: Pointer, nbytes: int, arguments: Sequence[DeviceMemory]) -> DeviceMemory:
        if pointer.place == ARGUMENT:
            argument = arguments[pointer.at]
            return self._device.view(argument, pointer.offset, nbytes) if pointer.offset else argument
        return self._device.view(self._blocks[pointer.place].memory, pointer.at + pointer.offset, nbytes)


def upload_weights(gpu: GpuDevice, program: NetworkProgram) -> DeviceBlock:
    """Return the block of weights of a program, in the memory of a device. Raises GraphError and DeviceError."""
    (block,) = allocate(gpu, {WEIGHTS: max(program.weights_bytes, 1)}).values()
    with device_errors(gpu), GraphConstants(program.graph.constants) as constants:
        for name, at in program.raw_offsets.items():
            gpu.upload(block.memory, constants.arrays([name])[0], at)
    return block


def has_equal_weights(program: NetworkProgram, other: NetworkProgram) -> bool:
    """Whether two programs have the same constants at the same places of their blocks of weights."""
    constants, others = program.graph.constants, other.graph.constants
    return program.raw_offsets == other.raw_offsets and all(
        name in others and are_equal(constants[name], others[name]) for name in program.raw_offsets
    )


def load_on_gpu(gpu: GpuDevice, original: Graph, program: NetworkProgram, device: Device) -> GpuModel:
    """Load the program's kernels on a device, and upload its weights. Raises DeviceError."""
    codes = load_codes(gpu, program, device)
    loaded = {name: LoadedSource(code.source, code.kernels) for name, code in codes.items()}
    return GpuModel(original, program, device, gpu, loaded)


def load_codes(gpu: GpuDevice, program: NetworkProgram, device: Device) -> dict[str, LoadedCode]:
    """Return the code of the program's kernels by their names, loaded on a device. Raises DeviceError."""
    if program.backend.array_alignment % gpu.alignment:
        raise DeviceError(
            f"{gpu.name} needs parts of buffers at multiples of {gpu.alignment} bytes, and networks have them at "
            f"multiples of {program.backend.array_alignment}: run the network on another device"
        )
    texts = {task.kernel.name: task.kernel.code for task in program.tasks}
    with ThreadPoolExecutor(usable_cores()) as pool:
        codes = pool.map(lambda text: load_source(text, device.target, gpu), texts.values())
        return dict(zip(texts, codes, strict=True))


def _with_launches(source: GpuSource, numbers: frozenset[int]) -> GpuSource:
    """Return the source with the launches of these indices and the buffers that they use. A launch starts early only
    if the launch before it is among them."""
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
