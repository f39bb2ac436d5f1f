"""Model on a processor: the linked program with its packed weights."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from autosched.codegen.calls import ARENA, ARGUMENT, OUT_OF_RANGE, WEIGHTS, Pointer
from autosched.codegen.llvm.program import emit_program
from autosched.errors import AutoschedError, DeviceError, OutOfRangeError
from autosched.executor.model import Clocks, Model, caller_specs
from autosched.graph.graph import Array, Graph
from autosched.graph.mapped_arrays import check_mapped
from autosched.graph.steps import Group
from autosched.ir.dtype import DTYPES
from autosched.kernel.device import Device
from autosched.measure.timing import python_clock
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.extract_tasks import objects_of
from autosched.runtime.jit import LoadedKernel, compile_once, load_objects
from autosched.runtime.kernel import Kernel
from autosched.runtime.tensors import address_of, aligned_empty, aligned_zeros, are_equal, as_input, new_outputs

ENTRY = "network"
EMPTY_CALLS = 2000


class CpuModel(Kernel, Model):
    """`block`: the packed weights. `linked`: the functions of the program and its kernels."""

    def __init__(
        self, original: Graph, program: NetworkProgram, loaded: Mapping[str, LoadedKernel], block: Array, device: Device
    ) -> None:
        inputs, outputs = caller_specs(original, program.graph)
        fixed = (*(None for _ in (*inputs, *outputs)), address_of(block))
        super().__init__(loaded[ENTRY], inputs, outputs, program.workspace_bytes, fixed, program.in_place)
        self.original, self.program, self.device = original, program, device
        self.block, self.linked = block, loaded

    def with_program(self, original: Graph, program: NetworkProgram) -> CpuModel:
        return CpuModel(original, program, self.linked, pack_weights(program, self.linked), self.device)

    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model) -> CpuModel:
        block = self.block
        if isinstance(other, CpuModel) and are_equal(block, other.block):
            block = other.block
        return CpuModel(original, program, self.linked, block, self.device)

    def link_program(self, original: Graph, program: NetworkProgram) -> CpuModel:
        return link(original, program, self.device)

    def export(self, path: str | Path) -> list[Path]:
        from autosched.artifacts.network import export_model

        return export_model(self, Path(path))

    def _failure(self, code: int, workspace: int) -> AutoschedError:
        if code != OUT_OF_RANGE:
            return super()._failure(code, workspace)
        number, index = (ctypes.c_int64 * 2).from_address(workspace)
        return OutOfRangeError(self.program.checks[number].message(index))

    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        program = self.program
        step, kernel = program.steps[number], program.kernels[number]
        assert isinstance(step, Group)
        inputs = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        results = {}
        for name in step.outputs:
            value = program.graph.values[name]
            results[name] = aligned_empty(value.shape, DTYPES[value.dtype].numpy_dtype)
            results[name].reshape(-1).view("uint8")[:] = 0xFF  # NaN: reveals elements that the kernel does not write
        weights = address_of(self.block)
        pointers = []
        for name in step.inputs:
            if program.graph.is_constant(program.bases.get(name, name)):
                pointer = program.pointer(name)
                pointers.append(0 if pointer is None else weights + pointer.at)
            else:
                pointers.append(address_of(inputs[name]))
        pointers += [address_of(array) for array in results.values()]
        if number in program.packed_offsets:
            pointers.append(weights + program.packed_offsets[number])
        block = (ctypes.c_size_t * len(pointers))(*pointers)
        workspace = aligned_empty((max(kernel.workspace_bytes, 1),), "uint8")
        code = self.linked[kernel.name](ctypes.addressof(block), address_of(workspace))
        if code:
            raise DeviceError(f"the kernel of {step} stopped with code {code}")
        return results

    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        """Return clocks of the kernels, called one by one from Python, less the time of an empty call, and of the
        network."""
        inputs = [as_input(spec, arrays[spec.name]) for spec in self.inputs]
        results = new_outputs(self.outputs)
        arena = aligned_empty((max(self.arena_bytes, 1),), "uint8")
        arguments = [address_of(array) for array in (*inputs, *results)]
        bases = {ARENA: address_of(arena), WEIGHTS: address_of(self.block)}
        overhead_s, kernels = _empty_call_s(), {}
        steps = [n for n, step in enumerate(self.program.steps) if isinstance(step, Group)]
        for step, call in zip(steps, self.program.launches(), strict=True):
            addresses = [0 if p is None else _address(p, arguments, bases) for p in call.pointers]
            block = (ctypes.c_size_t * len(addresses))(*addresses)
            workspace = bases[call.workspace.place] + call.workspace.at
            function = self.linked[call.entry].function
            run = partial(_run, function, ctypes.addressof(block), workspace, self.threads)
            kernels[step] = partial(_seconds, run, overhead_s, (block, arena, inputs, results))
        out = results[0] if len(results) == 1 else tuple(results)
        return Clocks(kernels, python_clock(partial(self, *inputs, out=out)))


def link(original: Graph, program: NetworkProgram, device: Device) -> CpuModel:
    """Link the program into this process, and pack its weights."""
    n_arguments = len(program.graph.inputs) + len(program.graph.outputs)
    entry, _ = emit_program(ENTRY, tuple(program.calls()), n_arguments, device.target, tuple(program.copies()))
    objects = [compile_once(entry, device.target), *objects_of(program.tasks)]
    names = [name for t in program.tasks for name in (t.kernel.name, t.kernel.prepare) if name is not None]
    loaded = load_objects(objects, (ENTRY, *names), device.threads)
    return CpuModel(original, program, loaded, pack_weights(program, loaded), device)


def pack_weights(program: NetworkProgram, loaded: Mapping[str, LoadedKernel]) -> Array:
    """Return the block of weights: raw constants, and the packed weights of each kernel."""
    graph = program.graph
    check_mapped(graph.constants)
    block = aligned_zeros(max(program.weights_bytes, 1))  # padding is 0, so that equal weights are equal blocks
    for name, at in program.raw_offsets.items():
        array = np.ascontiguousarray(graph.constants[name])
        block[at : at + array.nbytes] = array.reshape(-1).view("uint8")
    for at, n in {at: n for n, at in program.packed_offsets.items()}.items():
        kernel = program.kernels[n]
        assert kernel.prepare is not None
        pack_step(program, n, loaded[kernel.prepare], kernel.workspace_bytes, address_of(block) + at)
    return block


def pack_step(program: NetworkProgram, number: int, prepare: LoadedKernel, workspace_bytes: int, at: int) -> None:
    """Write the packed weights of a step to the address `at`. `prepare`: the function of its kernel that packs."""
    graph, step = program.graph, program.steps[number]
    assert isinstance(step, Group)
    arrays = [np.ascontiguousarray(graph.constants[x]) if graph.is_constant(x) else None for x in step.inputs]
    addresses = [0 if a is None else address_of(a) for a in arrays]
    pointers = [*addresses, *(0 for _ in step.outputs), at]
    arguments = (ctypes.c_size_t * len(pointers))(*pointers)
    workspace = aligned_empty((max(workspace_bytes, 1),), "uint8")
    code = prepare(ctypes.addressof(arguments), address_of(workspace))
    assert code == 0, f"{prepare.entry} ended with {code}"


def _address(pointer: Pointer, arguments: Sequence[int], bases: Mapping[str, int]) -> int:
    if pointer.place == ARGUMENT:
        return arguments[pointer.at] + pointer.offset
    return bases[pointer.place] + pointer.at


def _run(function: Callable[[int, int, int], int], pointers: int, workspace: int, threads: int) -> None:
    code = function(pointers, workspace, threads)
    if code:
        raise DeviceError(f"a kernel of the network stopped with code {code}")


def _seconds(run: Callable[[], None], overhead_s: float, held: object, times: int) -> float:
    """Return the seconds of `times` runs, less `overhead_s` each. `held`: owner of their memory, to keep it alive."""
    start = time.perf_counter()
    for _ in range(times):
        run()
    return max(0.0, time.perf_counter() - start - times * overhead_s)


def _empty_call_s() -> float:
    """Return the median seconds of calling an empty function from Python."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    address = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    run = partial(_run, prototype(address or 0), 0, 0, 1)
    return median(_seconds(run, 0.0, None, 1) for _ in range(EMPTY_CALLS))
