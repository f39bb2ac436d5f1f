"""A network that runs: its program linked, its weights packed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from autosched.codegen.llvm.program import emit_program
from autosched.graph.graph import Array, Graph
from autosched.graph.partition import Group
from autosched.graph.passes import run_passes
from autosched.graph.verify import verify
from autosched.lower.pipeline import DUMP, debug_level
from autosched.network.archive import save_archive
from autosched.network.kernel_table import kernel_table
from autosched.network.program import NetworkProgram, array_spec, build_program, with_own_outputs
from autosched.network.room import check_memory
from autosched.network.tasks import Choose
from autosched.runtime.jit import LoadedKernel, compile_object, load_objects
from autosched.runtime.kernel import Kernel
from autosched.runtime.tensors import address_of, aligned_empty, aligned_zeros
from autosched.session.device import Device, find_device

ENTRY = "network"


class Model(Kernel):
    """A network as a function of arrays: `model(x)`, `model(x, out=y)`, with everything that a kernel accepts.

    `original` is the graph as it came, `program` what became of it, `tasks` its kernels; `arena_bytes` is what one call
    needs besides inputs and results, `bound_bytes` the most that is alive at a time; `block` holds the weights as the
    kernels read them, `linked` their functions.
    """

    def __init__(
        self, original: Graph, program: NetworkProgram, loaded: Mapping[str, LoadedKernel], block: Array, device: Device
    ) -> None:
        graph = program.graph
        ends = (*graph.inputs, *graph.outputs)
        specs = [
            array_spec(graph, end, name) for name, end in zip((*original.inputs, *original.outputs), ends, strict=True)
        ]
        inputs, outputs = specs[: len(graph.inputs)], specs[len(graph.inputs) :]
        fixed = (*(None for _ in specs), address_of(block))
        super().__init__(loaded[ENTRY], inputs, outputs, program.memory.nbytes, fixed)
        self.original, self.program, self.device = original, program, device
        self.tasks = program.tasks
        self.arena_bytes, self.bound_bytes = program.memory.nbytes, program.memory.bound_bytes
        self.block, self.linked = block, loaded

    def with_weights(self, constants: Mapping[str, Array]) -> Model:
        """The network with other constants of the same shapes and types, by their names in `original`: the same
        program with weights packed anew. Only where passes make other nodes of them, another program."""
        original = replace(self.original, constants={**self.original.constants, **constants})
        graph = with_own_outputs(run_passes(original)[0])
        if _structure(graph) != _structure(self.program.graph):
            known = {task.recipe.spec: task.recipe for task in self.tasks}
            target = next((recipe.target_text for recipe in known.values()), "cpu")
            return compile_graph(
                original, target, self.device.threads, lambda made: [known.get(r.spec, r) for r in made]
            )
        program = replace(self.program, graph=graph)
        return Model(original, program, self.linked, _weights(program, self.linked), self.device)

    def save(self, path: str | Path) -> None:
        """Writes the network and the schedules of its kernels to a file *.asc, which `autosched.load` takes."""
        save_archive(Path(path), self.original, self.tasks, self.device)

    def export(self, path: str | Path) -> list[Path]:
        """Writes a shared library *.so that needs no autosched, its header and its weights; see `network.export`."""
        from autosched.network.export import export_model

        return export_model(self, Path(path))


def compile_graph(
    graph: Graph, target: str | None = "cpu", threads: int | None = None, choose: Choose | None = None
) -> Model:
    """The network as one program of the kernels that the analytic model likes best, or of those that `choose` has
    schedules for: nothing is measured.

    Raises GraphError for a graph that is none, UsageError for one that this machine has no memory for, and what kernels
    raise.
    """
    verify(graph)
    check_memory(graph)
    device = find_device(target, threads)
    program = build_program(with_own_outputs(run_passes(graph)[0]), target or "cpu", device, choose)
    check_memory(graph, program.weights_bytes, program.memory.nbytes)
    if debug_level() >= DUMP:
        print(kernel_table(program.tasks, device), file=sys.stderr)
    entry = emit_program(ENTRY, tuple(program.launches()), len(graph.inputs) + len(graph.outputs), device.target)
    objects = [compile_object(entry, device.target), *(task.kernel.code for task in program.tasks)]
    names = [name for t in program.tasks for name in (t.kernel.name, t.kernel.prepare) if name is not None]
    loaded = load_objects(objects, (ENTRY, *names), device.threads)
    return Model(graph, program, loaded, _weights(program, loaded), device)


def _structure(graph: Graph) -> tuple[object, ...]:
    """All of a graph but the elements of its constants."""
    return graph.inputs, graph.outputs, graph.nodes, graph.values, [*graph.constants]


def _weights(program: NetworkProgram, loaded: Mapping[str, LoadedKernel]) -> Array:
    """The block of weights, filled: constants as they are, and what each kernel prepares of its own."""
    graph = program.graph
    block = aligned_zeros(max(program.weights_bytes, 1))  # what lies between them is the same each time
    for name, at in program.raw.items():
        array = np.ascontiguousarray(graph.constants[name])
        block[at : at + array.nbytes] = array.reshape(-1).view("uint8")
    for at, n in {at: n for n, at in program.packed.items()}.items():
        step = program.steps[n]
        assert isinstance(step, Group)
        kernel = program.kernels[n]
        arrays = [np.ascontiguousarray(graph.constants[x]) if graph.is_constant(x) else None for x in step.inputs]
        addresses = [0 if a is None else address_of(a) for a in arrays]
        pointers = [*addresses, *(0 for _ in step.outputs), address_of(block) + at]
        given = (ctypes.c_size_t * len(pointers))(*pointers)
        workspace = aligned_empty((max(kernel.workspace_bytes, 1),), "uint8")
        assert kernel.prepare is not None
        code = loaded[kernel.prepare](ctypes.addressof(given), address_of(workspace))
        assert code == 0, f"{kernel.prepare} ended with {code}"
    return block
