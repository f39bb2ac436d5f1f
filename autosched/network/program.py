"""From a graph to one program: kernels of its groups, a plan of its memory, and where its weights lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from autosched.backends import Backend
from autosched.codegen.calls import ARENA, ARGUMENT, WEIGHTS, ArgumentCopy, KernelCall, Pointer, RowWrite
from autosched.graph.fusion_cost import rates_of
from autosched.graph.graph import Graph, Node, Value, fresh_name
from autosched.graph.liveness import KernelRun, Tenant, live
from autosched.graph.memory import ArenaPlan, plan
from autosched.graph.node_facts import Kind, facts_of, weights_of
from autosched.graph.order import order
from autosched.graph.partition import partition
from autosched.graph.passes import run_passes
from autosched.graph.passes.split_batches import split_batches
from autosched.graph.passes.turn_weights import turn_weights
from autosched.graph.passes.view_heads import view_heads
from autosched.graph.steps import Alias, Group, Join, NetworkStep, Write, views_of
from autosched.ir.dtype import DTYPES
from autosched.network.alternatives import Alternative, with_forms
from autosched.network.build import UnbuiltKernel
from autosched.network.chains import chains_of
from autosched.network.nearest import NearestSchedules
from autosched.network.prices import Prices
from autosched.network.recipe import KernelObject
from autosched.network.tasks import DRAFTED, Choices, NetworkTask, place_of_weights, spec_of, tasks_of
from autosched.runtime.spec import ArraySpec
from autosched.session.device import Device


@dataclass(frozen=True)
class SplitGroup:
    """Nodes that would be one kernel, but each is one of its own, as no code can be made for all: their operators, and
    why not."""

    operators: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operators}: each operator is its own kernel, as no code could be made for one ({self.reason})"


@dataclass(frozen=True)
class NetworkProgram:
    """What a network becomes before it is linked.

    `kernels`: the code of each step that is one, by its number. `raw`: offsets, in the block of weights, of
    constants that kernels read as they are; `packed`: for each step that of its packed weights, which are the same for
    steps of one kernel with the same constants. `split`: what are more kernels than were wanted; `alternatives`: parts
    that may be one kernel or several.
    """

    graph: Graph
    steps: tuple[NetworkStep, ...]
    tasks: tuple[NetworkTask, ...]
    kernels: Mapping[int, KernelObject]
    backend: Backend
    memory: ArenaPlan
    raw: Mapping[str, int]
    packed: Mapping[int, int]
    weights_bytes: int
    split: tuple[SplitGroup, ...] = ()
    alternatives: tuple[Alternative, ...] = ()

    @cached_property
    def views(self) -> Mapping[str, Alias]:
        """Of each value that is a view of another where it lies in that."""
        return views_of(self.steps)

    @cached_property
    def bases(self) -> Mapping[str, str]:
        """Of each value that is a view of another that one."""
        return _bases(self.steps)

    @cached_property
    def places(self) -> Mapping[str, Alias]:
        """Of each value that lies in the memory of another, as views and parts do, where."""
        return _places(self.graph, self.steps)

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """What lies in the arena, with the kernels, in the order in which they run, from and to which it is needed."""
        return _tenants(self.graph, self.steps, self.kernels, self.backend)

    @property
    def in_place(self) -> Mapping[int, int]:
        """Of each output that may be in the memory of an input, by their numbers, which."""
        inputs, outputs = self.graph.inputs, self.graph.outputs
        writes = [step for step in self.steps if isinstance(step, Write)]
        return {outputs.index(write.output): inputs.index(write.base) for write in writes}

    def copies(self) -> Iterator[ArgumentCopy]:
        """What is copied before anything else, where a caller has other memory for a result than for that input."""
        for output, base in self.in_place.items():
            nbytes = array_spec(self.graph, self.graph.outputs[output]).nbytes
            yield ArgumentCopy(base, len(self.graph.inputs) + output, nbytes)

    def launches(self) -> Iterator[KernelCall]:
        """The calls of kernels alone."""
        return (call for call in self.calls() if isinstance(call, KernelCall))

    def calls(self) -> Iterator[KernelCall | RowWrite]:
        arguments = (*self.graph.inputs, *self.graph.outputs)
        numbers = {self.home(name): n for n, name in enumerate(arguments)}

        def pointer(name: str) -> Pointer | None:
            base = self.home(name)
            if base in numbers:
                return Pointer(ARGUMENT, numbers[base], self.start(name))
            if self.graph.is_constant(base):
                return self.constant(name)
            return Pointer(ARENA, self.memory.offsets[base] + self.start(name))

        for n, step in enumerate(self.steps):
            if isinstance(step, Group):
                packed = [Pointer(WEIGHTS, self.packed[n])] if n in self.packed else []
                pointers = (*map(pointer, step.inputs), *map(pointer, step.outputs), *packed)
                workspace = Pointer(ARENA, self.memory.offsets.get(_workspace(n), 0))
                yield KernelCall(self.kernels[n].name, pointers, workspace)
            elif isinstance(step, Write):
                found = [place for name in (step.output, step.at, step.rows) if (place := pointer(name)) is not None]
                yield self._row_write(step, *found)

    def _row_write(self, write: Write, to: Pointer, at: Pointer, rows: Pointer) -> RowWrite:
        values, axis = self.graph.values, write.axis
        whole = values[write.base]
        outer, inner = math.prod(whole.shape[:axis]), math.prod(whole.shape[axis + 1 :])
        *sets, count = values[write.at].shape
        nbytes, index_bytes = inner * DTYPES[whole.dtype].nbytes, DTYPES[values[write.at].dtype].nbytes
        shape, sharing = (outer, whole.shape[axis], count), outer // math.prod(sets)
        return RowWrite(to, at, rows, shape, sharing, nbytes, index_bytes)

    def constant(self, name: str) -> Pointer | None:
        """Where a constant lies, or a view of one; None where kernels have it packed alone."""
        base = self.home(name)
        return Pointer(WEIGHTS, self.raw[base] + self.start(name)) if base in self.raw else None

    def start(self, name: str) -> int:
        """The byte at which a value begins in the memory that it is a view of."""
        place = self.places.get(name)
        return 0 if place is None else place.offset * DTYPES[self.graph.values[name].dtype].nbytes

    def home(self, name: str) -> str:
        """The value in whose memory a value lies."""
        return self.places[name].base if name in self.places else name


def prepared(graph: Graph, device: Device) -> Graph:
    """A graph as it was imported, as `build_program` takes it for a device. Of a processor, each core has a share of
    the images that are a part of the batch."""
    found, target = run_passes(graph)[0], device.target
    if target.backend.is_gpu:
        return with_own_outputs(turn_weights(view_heads(found)))
    return split_batches(with_own_outputs(found), rates_of(target, device.threads), device.threads * target.l2_bytes)


def with_own_outputs(graph: Graph) -> Graph:
    """The graph with a copy for each output that is no result of its own: an input, a constant, another output in
    another shape, a part of a value."""
    taken = {*graph.inputs, *graph.constants}
    nodes, outputs, values = list(graph.nodes), list[str](), list[Value]()
    for name in graph.outputs:
        base, maker = name, graph.producers.get(name)
        while maker is not None and facts_of(maker, graph).kind is Kind.VIEW:
            (base,) = maker.used
            maker = graph.producers.get(base)
        if base in taken or math.prod(graph.values[base].shape) > math.prod(graph.values[name].shape):
            value = replace(graph.values[name], name=fresh_name(graph.values, f"{name}.copy"))
            nodes.append(Node("identity", (name,), (value.name,)))
            values.append(value)
            base = name = value.name
        taken.add(base)
        outputs.append(name)
    return graph.with_nodes(nodes, values, outputs=outputs) if values else graph


def build_program(graph: Graph, target_text: str, device: Device, choices: Choices = DRAFTED) -> NetworkProgram:
    """Kernels, memory and weights of a graph whose outputs have memory of their own.

    Where no code can be made for a group of nodes, each of them is a kernel of its own. Raises UnbuiltKernel for a
    single node.
    """
    alone, backend = frozenset[str](), device.target.backend
    nearest = choices.nearest or NearestSchedules()
    split: list[SplitGroup] = []
    while True:
        single = steps_of(graph, device, alone)
        place = place_of_weights(graph, single, device)
        prices = Prices(graph, target_text, device, place, nearest)
        alternatives = chains_of(graph, single, device, prices.priced, prices.may_join, alone)
        alternatives = tuple(_decided(each, choices) for each in alternatives)
        steps = with_forms(single, alternatives)
        try:
            tasks = tasks_of(graph, steps, target_text, device, choices)
            break
        except UnbuiltKernel as failure:
            groups = [step for step in steps if isinstance(step, Group)]
            place = place_of_weights(graph, steps, device)
            failed = [group for group in groups if spec_of(graph, group, backend, place) == failure.recipe.spec]
            apart = frozenset(name for group in failed for node in group.nodes for name in node.outputs)
            if apart <= alone or all(len(group.nodes) == 1 for group in failed):
                raise
            alone |= apart
            split.append(SplitGroup(" ".join(node.operator for node in failed[0].nodes), str(failure)))
    kernels = {n: task.kernel for task in tasks for n in task.steps}
    raw, packed, size = _layout(graph, steps, kernels, backend.array_alignment)
    memory = plan(_tenants(graph, steps, kernels, backend))
    return NetworkProgram(graph, steps, tasks, kernels, backend, memory, raw, packed, size, tuple(split), alternatives)


def _decided(part: Alternative, choices: Choices) -> Alternative:
    """The part in the form that was measured to be faster, where that is known and can be built."""
    known = choices.is_joined(part.recipe)
    found = part if known is None else replace(part, is_joined=known)
    return found if math.isfinite(found.present.estimate_s) else part


def _places(graph: Graph, steps: Sequence[NetworkStep]) -> dict[str, Alias]:
    """Where views and parts lie in values that are neither."""
    parts: dict[str, Alias] = {}
    for step in steps:
        if isinstance(step, Join):
            ends = accumulate(math.prod(graph.values[name].shape) for name in step.parts)
            starts = [0, *ends]
            parts |= {name: Alias(name, step.output, at) for name, at in zip(step.parts, starts, strict=False)}
    return views_of([*parts.values(), *(step for step in steps if isinstance(step, Alias))])


def _bases(steps: Sequence[NetworkStep]) -> dict[str, str]:
    return {name: view.base for name, view in views_of(steps).items()}


def _workspace(step: int) -> str:
    """The tenant of the arena that a step's kernel computes in; no value is called like that."""
    return f"workspace of step {step}"


def _sizes(graph: Graph, steps: Sequence[NetworkStep]) -> dict[str, int]:
    """Bytes of the values that neither the caller nor the weights hold, nor another value."""
    bases = _bases(steps)
    held = {bases.get(name, name) for name in (*graph.inputs, *graph.outputs, *graph.constants)}
    made = [name for step in steps if isinstance(step, Group) for name in step.outputs]
    joins = [step for step in steps if isinstance(step, Join)]
    held.update(name for join in joins for name in join.parts)
    return {name: array_spec(graph, name).nbytes for name in (*made, *(j.output for j in joins)) if name not in held}


def steps_of(graph: Graph, device: Device, alone: frozenset[str] = frozenset()) -> tuple[NetworkStep, ...]:
    """The steps of a network, so that few bytes are alive at once; views cost nothing and go first. The nodes that make
    values of `alone` are kernels of their own."""
    steps = partition(graph, rates_of(device.target, device.threads), alone, not device.target.backend.is_gpu)
    found = [step for step in steps if not isinstance(step, Alias)]
    runs = [_run_of(step) for step in found]
    numbers = order(runs, _sizes(graph, steps), aliases=_bases(steps))
    return (*(step for step in steps if isinstance(step, Alias)), *(found[n] for n in numbers))


def _tenants(
    graph: Graph, steps: Sequence[NetworkStep], kernels: Mapping[int, KernelObject], backend: Backend
) -> tuple[Tenant, ...]:
    """Values and the workspaces of kernels, with the kernels from and to which they are needed. What is as long as
    arrays are aligned lies aligned; a GPU has no pages on which arrays had better be apart."""
    sizes = _sizes(graph, steps)
    runs = []
    for n, step in enumerate(steps):
        if isinstance(step, Group):
            own = (_workspace(n),) if kernels[n].workspace_bytes else ()
            sizes |= dict.fromkeys(own, kernels[n].workspace_bytes)
            runs.append(KernelRun(step.inputs, (*step.outputs, *own)))
        elif isinstance(step, Write):
            runs.append(_run_of(step))
    homes = {name: place.base for name, place in _places(graph, steps).items()}
    found = live(runs, sizes, aliases=homes).tenants
    if not backend.is_gpu:
        return found
    return tuple(replace(t, nbytes=aligned(t.nbytes, backend.array_alignment), beside=()) for t in found)


def _run_of(step: Group | Join | Write) -> KernelRun:
    if isinstance(step, Group):
        return KernelRun(step.inputs, step.outputs)
    return KernelRun(step.reads if isinstance(step, Write) else step.parts, (step.output,))


def _layout(
    graph: Graph, steps: Sequence[NetworkStep], kernels: Mapping[int, KernelObject], alignment: int
) -> tuple[dict[str, int], dict[int, int], int]:
    raw: dict[str, int] = {}
    packed: dict[int, int] = {}
    shared: dict[tuple[str, ...], int] = {}  # by kernel and constants
    bases, used = _bases(steps), 0
    for n, step in enumerate(steps):
        if isinstance(step, Alias | Join):
            continue
        read = step.inputs if isinstance(step, Group) else step.reads
        own = [name for name in read if graph.is_constant(name)]
        if isinstance(step, Group) and kernels[n].prepare is not None:
            weights = weights_of(graph, step.nodes, step.inputs)
            packed[n] = shared.setdefault((kernels[n].name, *weights), used)
            used += aligned(kernels[n].packed_bytes, alignment) if packed[n] == used else 0
            own = [name for name in own if name not in weights]
        for name in (*own, *(bases[name] for name in read if graph.is_constant(bases.get(name)))):
            if name not in raw:
                raw[name] = used
                used += aligned(array_spec(graph, name).nbytes, alignment)
    return raw, packed, used


def array_spec(graph: Graph, value: str, name: str | None = None) -> ArraySpec:
    """What callers and kernels see of a value, called as it is or `name`."""
    found = graph.values[value]
    return ArraySpec(name or value, found.shape, found.dtype)


def aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
