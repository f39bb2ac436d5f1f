"""Buffers of a network: what is live in the arena and when, and where constants are in the block of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from autosched.backends import Backend
from autosched.graph.graph import Graph
from autosched.graph.memory.liveness import KernelRun, LiveBuffer, analyse_liveness
from autosched.graph.memory.order import order_steps
from autosched.graph.memory.storage import nbytes_of, regions_of
from autosched.graph.steps import Alias, Group, Join, NetworkStep, Repeat, Write, views_of
from autosched.ir.size import value_of
from autosched.runtime.decisions import decided_once


@dataclass(frozen=True)
class PackedWeights:
    """Constants that the kernel of this name reads packed, and the bytes that they take then."""

    kernel: str
    names: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True)
class WeightsLayout:
    """The block of weights: first bytes of constants that are read unpacked, by name, and of packed weights, by the
    number of the step; `nbytes` in all."""

    raw: Mapping[str, int]
    packed: Mapping[int, int]
    nbytes: int


def workspace_name(step: int) -> str:
    """Return the name of the arena buffer that a step's kernel or loop has as scratch; no value has such a name."""
    return f"workspace of step {step}"


def aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def run_of(step: Group | Join | Write | Repeat) -> KernelRun:
    """Return what a step reads and writes."""
    if isinstance(step, Group | Repeat):
        return KernelRun(step.inputs if isinstance(step, Group) else step.reads, step.outputs)
    return KernelRun(step.reads if isinstance(step, Write) else step.parts, (step.output,))


def in_memory_order(graph: Graph, steps: Sequence[NetworkStep]) -> tuple[NetworkStep, ...]:
    """Return views first, then the other steps in an order in which few bytes are live at once."""
    others = [step for step in steps if not isinstance(step, Alias)]
    bases = {name: view.base for name, view in views_of(steps).items()}
    runs, sizes = [run_of(step) for step in others], _arena_sizes(graph, steps)
    depends = [[astuple(run) for run in runs], sizes, bases]
    numbers = decided_once("order of steps", depends, lambda: order_steps(runs, sizes, aliases=bases))
    return (*(step for step in steps if isinstance(step, Alias)), *(others[n] for n in numbers))


def arena_buffers(
    graph: Graph, steps: Sequence[NetworkStep], workspaces: Mapping[int, int], backend: Backend
) -> tuple[LiveBuffer, ...]:
    """Return the buffers of the arena, values and `workspaces` (bytes by step), with their live ranges in kernels.

    On a GPU sizes are rounded up to the alignment of arrays, and page offsets do not matter, so `read_with` is empty.
    """
    sizes = _arena_sizes(graph, steps)
    runs = []
    for n, step in enumerate(steps):
        if isinstance(step, Group | Repeat):
            own = (workspace_name(n),) if workspaces.get(n) else ()
            sizes |= dict.fromkeys(own, value_of(workspaces[n]))
            run = run_of(step)
            runs.append(KernelRun(run.reads, (*run.writes, *own)))
        elif isinstance(step, Write):
            runs.append(run_of(step))
    roots = {name: region.base for name, region in regions_of(graph, steps).items()}
    buffers = analyse_liveness(runs, sizes, aliases=roots).buffers
    if not backend.is_gpu:
        return buffers
    return tuple(replace(t, nbytes=aligned(t.nbytes, backend.array_alignment), read_with=()) for t in buffers)


def place_weights(
    graph: Graph, steps: Sequence[NetworkStep], packed: Mapping[int, PackedWeights], alignment: int
) -> WeightsLayout:
    """Return the layout of the block of weights. `packed`: by step; steps of one kernel with the same constants share
    the packed copy."""
    raw: dict[str, int] = {}
    places: dict[int, int] = {}
    shared: dict[tuple[str, ...], int] = {}  # by kernel and constants
    bases, used = {name: view.base for name, view in views_of(steps).items()}, 0
    for n, step in enumerate(steps):
        if isinstance(step, Alias | Join):
            continue
        read = step.inputs if isinstance(step, Group) else step.reads
        own = [name for name in read if graph.is_constant(name)]
        if n in packed:
            weights = packed[n]
            places[n] = shared.setdefault((weights.kernel, *weights.names), used)
            used += aligned(weights.nbytes, alignment) if places[n] == used else 0
            own = [name for name in own if name not in weights.names]
        for name in (*own, *(bases[name] for name in read if graph.is_constant(bases.get(name)))):
            if name not in raw:
                raw[name] = used
                used += aligned(nbytes_of(graph, name), alignment)
    return WeightsLayout(raw, places, used)


def _arena_sizes(graph: Graph, steps: Sequence[NetworkStep]) -> dict[str, int]:
    """Return the bytes of the values that need memory in the arena: no arguments, weights, views or parts."""
    regions = regions_of(graph, steps)

    def roots(names: Iterable[str]) -> dict[str, None]:
        return dict.fromkeys(regions[name].base if name in regions else name for name in names)

    elsewhere = roots((*graph.inputs, *graph.outputs, *graph.constants))
    written = roots(name for step in steps if isinstance(step, Group | Repeat) for name in step.outputs)
    return {name: value_of(nbytes_of(graph, name)) for name in written if name not in elsewhere}
