"""From a graph to one native program: kernels of its groups, a plan of its memory, one entry, weights packed once."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autosched.codegen.llvm.program import ARENA, ARGUMENT, WEIGHTS, KernelCall, Pointer, emit_program
from autosched.codegen.source import KernelSource
from autosched.errors import UsageError
from autosched.graph.graph import Array, Graph, Node, Value, fresh_name
from autosched.graph.liveness import Tenant
from autosched.graph.memory import ArenaPlan, plan
from autosched.graph.partition import ALIAS, Alias, Group, dag_of, partition
from autosched.graph.passes import run_passes
from autosched.graph.verify import verify
from autosched.runtime.jit import LoadedKernel, compile_object, load_objects
from autosched.runtime.kernel import Kernel
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import address_of, aligned_empty
from autosched.session.device import Device, find_device
from autosched.session.request import Request
from autosched.session.task import analytic_best, make_task
from autosched.tuner.definition import Definition

if TYPE_CHECKING:
    from autosched.te import ComputeDAG

ALIGNMENT = 64
ENTRY = "network"


@dataclass(frozen=True)
class NetworkTask:
    """A kernel that steps of a network share: their stages are the same, whatever the values are called."""

    name: str
    request: Request
    source: KernelSource
    steps: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class NetworkProgram:
    """What a network becomes before it is linked.

    `sources`: the code of each step that is a kernel, by its number. `raw`: offsets, in the block of weights, of
    constants that kernels read as they are; `packed`: for each step that of its packed weights.
    """

    graph: Graph
    steps: tuple[Group | Alias, ...]
    tasks: tuple[NetworkTask, ...]
    sources: Mapping[int, KernelSource]
    memory: ArenaPlan
    raw: Mapping[str, int]
    packed: Mapping[int, int]
    weights_bytes: int

    @cached_property
    def bases(self) -> Mapping[str, str]:
        """Of each value that is a view of another the one whose memory it is."""
        return _bases(self.steps)

    def launches(self) -> Iterator[KernelCall]:
        arguments = (*self.graph.inputs, *self.graph.outputs)
        numbers = {self.bases.get(name, name): n for n, name in enumerate(arguments)}

        def pointer(name: str) -> Pointer | None:
            base = self.bases.get(name, name)
            if base in numbers:
                return Pointer(ARGUMENT, numbers[base])
            if self.graph.is_constant(base):
                return Pointer(WEIGHTS, self.raw[base]) if base in self.raw else None
            return Pointer(ARENA, self.memory.offsets[base])

        for n, step in enumerate(self.steps):
            if isinstance(step, Group):
                packed = [Pointer(WEIGHTS, self.packed[n])] if n in self.packed else []
                pointers = (*map(pointer, step.inputs), *map(pointer, step.outputs), *packed)
                workspace = Pointer(ARENA, self.memory.offsets[_workspace(n)])
                yield KernelCall(self.sources[n].name, pointers, workspace)


class Model(Kernel):
    """A network as a function of arrays: `model(x)`, `model(x, out=y)`, with everything that a kernel accepts.

    `tasks` are its kernels, `arena_bytes` what one call needs besides inputs and results, `bound_bytes` the most that
    is alive at a time.
    """

    def __init__(
        self, names: Sequence[str], program: NetworkProgram, loaded: Mapping[str, LoadedKernel], block: Array
    ) -> None:
        graph = program.graph
        ends = (*graph.inputs, *graph.outputs)
        specs = [ArraySpec(name, *_type(graph, end)) for name, end in zip(names, ends, strict=True)]
        inputs, outputs = specs[: len(graph.inputs)], specs[len(graph.inputs) :]
        fixed = (*(None for _ in specs), address_of(block))
        super().__init__(loaded[ENTRY], inputs, outputs, program.memory.nbytes, fixed)
        self.tasks = program.tasks
        self.arena_bytes, self.bound_bytes = program.memory.nbytes, program.memory.bound_bytes
        self._kept = (loaded, block)


def compile_graph(graph: Graph, target: str | None = "cpu", threads: int | None = None) -> Model:
    """The network as one program of the kernels that the analytic model likes best: nothing is measured.

    Raises GraphError for a graph that is none, and what kernels raise.
    """
    verify(graph)
    device = find_device(target, threads)
    program = build_program(with_own_outputs(run_passes(graph)[0]), device)
    entry = emit_program(ENTRY, tuple(program.launches()), len(graph.inputs) + len(graph.outputs), device.target)
    objects = [compile_object(text, device.target) for text in (*(task.source.ir for task in program.tasks), entry)]
    names = [name for t in program.tasks for name in (t.source.name, t.source.prepare) if name is not None]
    loaded = load_objects(objects, (ENTRY, *names), device.threads)
    return Model((*graph.inputs, *graph.outputs), program, loaded, _weights(program, loaded))


def load_graph(model: object, example_inputs: Sequence[object] | None, sizes: Mapping[str, int]) -> Graph:
    """The graph of an ONNX file, a torch module or a graph as it is. Raises UsageError for anything else."""
    if isinstance(model, Graph):
        return model
    if isinstance(model, (str, Path)):
        from autosched.graph.onnx import load_onnx

        return load_onnx(model, sizes)
    if example_inputs is None or not hasattr(model, "forward"):
        raise UsageError(
            "a network is a path of an ONNX file, a torch module with example_inputs, or a Graph; "
            f"got {type(model).__name__}"
        )
    from autosched.graph.torch.load import load_torch

    found: Graph = load_torch(model, example_inputs)
    return found


def with_own_outputs(graph: Graph) -> Graph:
    """The graph with a copy for each output that is no result of its own: an input, a constant, another output in
    another shape."""
    taken = {*graph.inputs, *graph.constants}
    nodes, outputs, values = list(graph.nodes), list[str](), list[Value]()
    for name in graph.outputs:
        base, maker = name, graph.producers.get(name)
        while maker is not None and maker.operator == ALIAS:
            assert maker.inputs[0] is not None
            base = maker.inputs[0]
            maker = graph.producers.get(base)
        if base in taken:
            value = replace(graph.values[name], name=fresh_name(graph.values, f"{name}.copy"))
            nodes.append(Node("identity", (name,), (value.name,)))
            values.append(value)
            name = value.name
        taken.add(base)
        outputs.append(name)
    return graph.with_nodes(nodes, values, outputs=outputs) if values else graph


def build_program(graph: Graph, device: Device) -> NetworkProgram:
    """Kernels, memory and weights of a graph whose outputs have memory of their own."""
    steps = partition(graph)
    tasks = tuple(_tasks(graph, steps, device))
    sources = {n: task.source for task in tasks for n in task.steps}
    raw, packed, size = _layout(graph, steps, sources)
    return NetworkProgram(graph, steps, tasks, sources, plan(list(_tenants(graph, steps, sources))), raw, packed, size)


def _tasks(graph: Graph, steps: Sequence[Group | Alias], device: Device) -> Iterator[NetworkTask]:
    found: dict[str, tuple[Request, list[int]]] = {}
    for n, step in enumerate(steps):
        if isinstance(step, Group):
            dag = dag_of(graph, step)
            if dag.content_hash not in found:
                found[dag.content_hash] = Request(_definition(step, dag), device), []
            found[dag.content_hash][1].append(n)
    for number, (request, places) in enumerate(found.values()):
        name = f"kernel{number}"
        made, _ = make_task(request, name=name)
        source = analytic_best(made, 1)[0][1]
        assert isinstance(source, KernelSource)
        yield NetworkTask(name, request, source, tuple(places))


def _definition(group: Group, dag: ComputeDAG) -> Definition:
    words = "-".join(node.operator for node in group.nodes)
    return Definition(words, (), dag.outputs[0].dtype, dag, json.dumps({"name": words, "args": {}}))


def _bases(steps: Sequence[Group | Alias]) -> dict[str, str]:
    bases: dict[str, str] = {}
    for step in steps:
        if isinstance(step, Alias):
            bases[step.output] = bases.get(step.base, step.base)
    return bases


def _workspace(step: int) -> str:
    """The tenant of the arena that a step's kernel computes in; no value is called like that."""
    return f"workspace of step {step}"


def _tenants(graph: Graph, steps: Sequence[Group | Alias], sources: Mapping[int, KernelSource]) -> Iterator[Tenant]:
    """Values that neither the caller nor the weights hold, and workspaces."""
    bases = _bases(steps)
    held = {bases.get(name, name) for name in (*graph.inputs, *graph.outputs, *graph.constants)}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for n, step in enumerate(steps):
        if isinstance(step, Group):
            for name in step.outputs:
                first[name] = last[name] = n
            for name in step.inputs:
                last[bases.get(name, name)] = n
            yield Tenant(_workspace(n), sources[n].workspace_bytes, n, n)
    for name, begin in first.items():
        if name not in held:
            yield Tenant(name, _nbytes(graph, name), begin, last[name])


def _layout(
    graph: Graph, steps: Sequence[Group | Alias], sources: Mapping[int, KernelSource]
) -> tuple[dict[str, int], dict[int, int], int]:
    raw: dict[str, int] = {}
    packed: dict[int, int] = {}
    used = 0
    for n, step in enumerate(steps):
        if not isinstance(step, Group):
            continue
        if sources[n].prepare is not None:
            packed[n] = used
            used += _aligned(sources[n].packed_bytes)
            continue
        for name in step.inputs:
            if graph.is_constant(name) and name not in raw:
                raw[name] = used
                used += _aligned(_nbytes(graph, name))
    return raw, packed, used


def _weights(program: NetworkProgram, loaded: Mapping[str, LoadedKernel]) -> Array:
    """The block of weights, filled: constants as they are, and what each kernel prepares of its own."""
    graph = program.graph
    block = aligned_empty((max(program.weights_bytes, 1),), "uint8")
    block[:] = 0
    for name, at in program.raw.items():
        array = np.ascontiguousarray(graph.constants[name])
        block[at : at + array.nbytes] = array.reshape(-1).view("uint8")
    for n, at in program.packed.items():
        step = program.steps[n]
        assert isinstance(step, Group)
        source = program.sources[n]
        arrays = [np.ascontiguousarray(graph.constants[x]) if graph.is_constant(x) else None for x in step.inputs]
        addresses = [0 if a is None else address_of(a) for a in arrays]
        pointers = [*addresses, *(0 for _ in step.outputs), address_of(block) + at]
        given = (ctypes.c_size_t * len(pointers))(*pointers)
        workspace = aligned_empty((max(source.workspace_bytes, 1),), "uint8")
        assert source.prepare is not None
        code = loaded[source.prepare](ctypes.addressof(given), address_of(workspace))
        assert code == 0, f"{source.prepare} ended with {code}"
    return block


def _type(graph: Graph, name: str) -> tuple[tuple[int, ...], str]:
    return graph.values[name].shape, graph.values[name].dtype


def _nbytes(graph: Graph, name: str) -> int:
    return ArraySpec(name, *_type(graph, name)).nbytes


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
