"""Programs whose kernels are the reference's: what they compute depends on the plan of memory alone.

Each step reads and writes the bytes of a network's buffers at the homes that the plan gives, in float64 and rounded to
the type of the value; workspaces are filled with garbage.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from autosched.codegen.calls import ARENA, ARGUMENT, WEIGHTS
from autosched.graph.fusion.node_properties import weights_of
from autosched.graph.fusion.partition import dag_of
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import exact
from autosched.graph.memory.buffers import workspace_name
from autosched.graph.memory.storage import Buffer, Home, nbytes_of
from autosched.graph.steps import Group, NetworkStep, Write
from autosched.ir.dtype import DTYPES
from autosched.kernel.device import Device
from autosched.kernel.spec import ChosenSchedule, KernelObject
from autosched.planning.device_passes import prepare_graph
from autosched.planning.execution_plan import NetworkProgram, steps_of, with_storage

GARBAGE = 0xFF
GUARD_BYTES = 256


def stand_in(graph: Graph, group: Group, number: int, rng: random.Random) -> KernelObject:
    """What is known of a kernel without code: some of them have workspaces, and pack their weights."""
    arrays = tuple(nbytes_of(graph, name) for name in (*group.inputs, *group.outputs))
    packs = bool(weights_of(graph, group.nodes, group.inputs)) and rng.random() < 0.5
    workspace, packed = rng.choice((0, 0, 1, 200, 5000)), rng.randint(1, 300) * packs
    return KernelObject(f"kernel {number}", arrays, workspace, packed, 0, ChosenSchedule(""), b"")


def planned(graph: Graph, device: Device, rng: random.Random) -> NetworkProgram:
    """The program of a graph with such kernels. Raises StorageError for a plan that does not hold."""
    after = prepare_graph(graph, device)
    steps = steps_of(after, device)
    kernels = {n: stand_in(after, step, n, rng) for n, step in enumerate(steps) if isinstance(step, Group)}
    return with_storage(after, steps, kernels, device.target.backend)


def run_in_memory(program: NetworkProgram, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
    """The outputs. Raises AssertionError where anything is written that is no home of what a step writes."""
    memory = _Memory(program)
    graph = program.graph
    for name in graph.inputs:
        memory.store(name, arrays[name])
    for name in program.raw_offsets:
        memory.store(name, graph.constants[name])
    for copy in program.copies():
        memory.copy((ARGUMENT, copy.source), (ARGUMENT, copy.to))
    for n, step in enumerate(program.steps):
        if isinstance(step, Group | Write):
            memory.run(n, step)
    inputs_after = [memory.array(name) for name in graph.inputs]
    for name, after in zip(graph.inputs, inputs_after, strict=True):
        np.testing.assert_array_equal(after, arrays[name], err_msg=f"the input {name} was written to")
    memory.check_guards()
    return tuple(memory.argument(len(graph.inputs) + n, name) for n, name in enumerate(graph.outputs))


class _Memory:
    """The buffers of a program, with guards behind them."""

    def __init__(self, program: NetworkProgram) -> None:
        self._program, graph = program, program.graph
        ends = enumerate((*graph.inputs, *graph.outputs))
        sizes: dict[Buffer, int] = {(ARGUMENT, n): nbytes_of(graph, name) for n, name in ends}
        sizes |= {(ARENA, 0): program.memory.nbytes, (WEIGHTS, 0): program.weights_bytes}
        self._sizes = sizes
        self._buffers = {key: np.full(nbytes + GUARD_BYTES, GARBAGE, np.uint8) for key, nbytes in sizes.items()}

    def array(self, name: str) -> Array:
        """A copy of what is at a value's home."""
        return self._at(self._program.homes[name], name)

    def argument(self, number: int, name: str) -> Array:
        return self._at(Home((ARGUMENT, number), 0, nbytes_of(self._program.graph, name)), name)

    def _at(self, home: Home, name: str) -> Array:
        value = self._program.graph.values[name]
        found = self._buffers[home.buffer][home.start : home.start + home.nbytes].copy()
        made: Array = found.view(DTYPES[value.dtype].numpy_dtype).reshape(value.shape)
        return made

    def store(self, name: str, array: Array) -> None:
        home = self._program.homes[name]
        dtype = DTYPES[self._program.graph.values[name].dtype].numpy_dtype
        given = np.ascontiguousarray(array.astype(dtype)).reshape(-1).view("uint8")
        assert given.nbytes == home.nbytes
        self._buffers[home.buffer][home.start : home.start + home.nbytes] = given

    def copy(self, source: Buffer, to: Buffer) -> None:
        self._buffers[to][:] = self._buffers[source]

    def run(self, number: int, step: NetworkStep) -> None:
        program = self._program
        if isinstance(step, Write):
            self.store(step.output, step.of(*(self.array(name) for name in step.reads)))
            return
        assert isinstance(step, Group)
        given = {f"x{n}": self._read(name) for n, name in enumerate(step.inputs)}
        found = exact(dag_of(program.graph, step), given)
        workspace = program.homes.get(workspace_name(number))
        if workspace is not None:
            self._buffers[workspace.buffer][workspace.start : workspace.start + workspace.nbytes] = GARBAGE
        for name, array in zip(step.outputs, found, strict=True):
            self.store(name, array.reshape(program.graph.values[name].shape))

    def _read(self, name: str) -> Array:
        return self.array(name) if name in self._program.homes else self._program.graph.constants[name]

    def check_guards(self) -> None:
        for buffer, array in self._buffers.items():
            assert (array[self._sizes[buffer] :] == GARBAGE).all(), f"{buffer} was written behind its end"
