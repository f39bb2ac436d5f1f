"""Model on a processor: the linked program with its packed weights."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from autosched.codegen.calls import ARENA, ARGUMENT, WEIGHTS, Pointer
from autosched.codegen.llvm.program import emit_program
from autosched.errors import DeviceError
from autosched.executor.model import Clock, Clocks, Model, caller_specs
from autosched.graph.graph import Array, Graph
from autosched.graph.loops import with_constants
from autosched.graph.mapped_arrays import GraphConstants
from autosched.graph.steps import Group
from autosched.ir.dtype import DTYPES
from autosched.kernel.device import Device
from autosched.kernel.pool import compile_entry
from autosched.kernel.spec import KernelObject
from autosched.measure.timing import python_clock
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.extract_tasks import objects_of
from autosched.planning.loop_program import LoopProgram, loop_modules
from autosched.runtime.linked_network import (
    ENTRY,
    LinkedNetwork,
    LinkPlan,
    NetworkKernel,
    PackingCall,
    WeightsPlan,
    link_network,
    pack_weights,
)
from autosched.runtime.tensors import address_of, aligned_empty, are_equal, as_input, new_outputs
from autosched.runtime.versions import code_key

if TYPE_CHECKING:
    from autosched.executor.sized_network import SizedNetwork

EMPTY_CALLS = 2000


class CpuModel(NetworkKernel, Model):
    """The network of an execution plan, linked on a processor."""

    def __init__(self, original: Graph, program: NetworkProgram, linked: LinkedNetwork, device: Device) -> None:
        super().__init__(linked)
        self.original, self.program, self.device = original, program, device

    def with_program(self, original: Graph, program: NetworkProgram) -> CpuModel:
        with GraphConstants(program.constants) as constants:
            block = pack_weights(self.linked.plan.weights, self.linked.functions, constants)
        return self._with_block(original, program, block)

    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model | SizedNetwork) -> CpuModel:
        block = self.block
        if hasattr(other, "block") and are_equal(block, other.block):
            block = other.block
        return self._with_block(original, program, block)

    def _with_block(self, original: Graph, program: NetworkProgram, block: Array) -> CpuModel:
        return CpuModel(original, program, replace(self.linked, block=block), self.device)

    def link_program(self, original: Graph, program: NetworkProgram) -> CpuModel:
        return link(original, program, self.device)

    def export(self, path: str | Path) -> list[Path]:
        from autosched.artifacts.network import export_model

        return export_model(self, Path(path))

    @property
    def bodies(self) -> tuple[Model, ...]:
        return tuple(map(self._body, self.program.loops.values()))

    def _body(self, loop: LoopProgram) -> CpuModel:
        """Return the body of a loop as a network, with the code and the weights that the loop has."""
        original = with_constants(loop.graph, loop.step.node)
        plan, _ = link_inputs(original, loop.body, self.device)
        functions = {**self.linked.functions, ENTRY: self.linked.functions[loop.body.symbol]}
        block = self.block[loop.weights_at : loop.weights_at + max(loop.body.weights_bytes, 1)]
        return CpuModel(original, loop.body, LinkedNetwork(plan, functions, block), self.device)

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
        code = self.linked.functions[kernel.name](ctypes.addressof(block), address_of(workspace))
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
        overhead_s, kernels = _empty_call_s(), dict[int, Clock]()
        steps = [n for n, step in enumerate(self.program.steps) if isinstance(step, Group)]
        for step, call in zip(steps, self.program.launches(), strict=True):
            addresses = [0 if p is None else _address(p, arguments, bases) for p in call.pointers]
            block = (ctypes.c_size_t * len(addresses))(*addresses)
            workspace = bases[call.workspace.place] + call.workspace.at
            function = self.linked.functions[call.entry].function
            run = partial(_run, function, ctypes.addressof(block), workspace, self.threads)
            held = block, arena, inputs, results
            kernels[self.program.first_step + step] = partial(_seconds, run, overhead_s, held)
        for body in self.bodies:
            ones = {spec.name: np.ones(spec.shape, spec.numpy_dtype) for spec in body.inputs}
            kernels |= body.clocks(ones).kernels
        out = results[0] if len(results) == 1 else tuple(results)
        return Clocks(kernels, python_clock(partial(self, *inputs, out=out)))


def link(original: Graph, program: NetworkProgram, device: Device, linked: LinkedNetwork | None = None) -> CpuModel:
    """Link the program into this process, and pack its weights. `linked`: a network with the same constants, which is
    taken if it was linked from the same plan."""
    plan, objects = link_inputs(original, program, device)
    if linked is None or linked.plan != plan:
        with GraphConstants(program.constants) as constants:
            linked = link_network(plan, objects, constants, device.threads)
    return CpuModel(original, program, linked, device)


def link_inputs(original: Graph, program: NetworkProgram, device: Device) -> tuple[LinkPlan, list[bytes]]:
    """Return the link plan of a program, and the object files."""
    tasks = program.all_tasks
    inputs, outputs = caller_specs(original, program.graph)
    n_arguments = len(inputs) + len(outputs)
    entry, _ = emit_program(ENTRY, tuple(program.calls()), n_arguments, device.target, tuple(program.copies()))
    modules = [entry, *loop_modules(program, device.target)]
    kernels = (name for t in tasks for name in (t.kernel.name, t.kernel.prepare) if name is not None)
    bodies = (each.symbol for each in program.programs if each is not program)
    plan = LinkPlan(
        tuple(inputs),
        tuple(outputs),
        code_key("".join(modules), device.target),
        tuple(dict.fromkeys((*kernels, *bodies))),
        program.workspace_bytes,
        program.memory.nbytes,
        program.memory.bound_bytes,
        tuple(program.in_place.items()),
        tuple((check.reader, check.low, check.high) for check in program.checks),
        weights_plan(program),
    )
    return plan, [*(compile_entry(module, device) for module in modules), *objects_of(tasks)]


def weights_plan(program: NetworkProgram) -> WeightsPlan:
    """Return the contents of the block of weights of a program, those of its loops included."""
    steps = {at: n for n, at in program.packed_offsets.items()}
    calls = [packing_call(program, n, program.kernels[n], at) for at, n in steps.items()]
    raw = [*program.raw_offsets.items()]
    for loop in program.loops.values():
        inner = weights_plan(loop.body)
        raw += ((loop.constant(name), loop.weights_at + at) for name, at in inner.raw_offsets)
        for call in inner.packing:
            names = tuple(None if name is None else loop.constant(name) for name in call.arguments)
            calls.append(replace(call, at=loop.weights_at + call.at, arguments=names))
    return WeightsPlan(program.weights_bytes, tuple(raw), tuple(calls))


def packing_call(program: NetworkProgram, number: int, kernel: KernelObject, at: int = 0) -> PackingCall:
    """Return the call that packs the weights of step `number` for its `kernel` to the byte `at`."""
    step = program.steps[number]
    assert isinstance(step, Group)
    assert kernel.prepare is not None
    constants = (name if program.graph.is_constant(name) else None for name in step.inputs)
    return PackingCall(kernel.prepare, at, kernel.workspace_bytes, (*constants, *(None for _ in step.outputs)))


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
