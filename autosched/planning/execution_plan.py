"""From a graph to one program: kernels of its groups, a plan of its memory, and where its weights lie."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autosched.backends import Backend
from autosched.codegen.calls import (
    ARENA,
    ARGUMENT,
    REPORT_BYTES,
    WEIGHTS,
    ArgumentCopy,
    BoundsCheck,
    KernelCall,
    Pointer,
    RowWrite,
)
from autosched.graph.fusion.cost import rates_of
from autosched.graph.fusion.node_properties import weights_of
from autosched.graph.fusion.partition import partition
from autosched.graph.graph import Graph, Value
from autosched.graph.index_checks import IndexCheck, checks_of, reports_of
from autosched.graph.memory.arena import ArenaPlan, plan
from autosched.graph.memory.liveness import KernelRun, Tenant, live
from autosched.graph.memory.order import order
from autosched.graph.memory.storage import (
    Home,
    Region,
    Storage,
    StorageError,
    homes_of,
    nbytes_of,
    regions_of,
    verify_storage,
)
from autosched.graph.steps import Alias, Group, Join, NetworkStep, Write, views_of
from autosched.ir.dtype import DTYPES
from autosched.kernel.device import Device
from autosched.kernel.pool import UnbuiltKernel
from autosched.kernel.spec import KernelObject
from autosched.kernel.transfer import NearestSchedules
from autosched.planning.extract_tasks import DRAFTED, Choices, NetworkTask, place_of_weights, spec_of, tasks_of
from autosched.planning.fusion_candidates import chains_of
from autosched.planning.fusion_choice import Alternative, with_forms
from autosched.planning.predicted_latency import Prices
from autosched.runtime.spec import ArraySpec


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
    that may be one kernel or several; `checks`: of indices, which each call makes.
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
    checks: tuple[IndexCheck, ...] = ()

    @cached_property
    def views(self) -> Mapping[str, Alias]:
        """Of each value that is a view of another where it lies in that."""
        return views_of(self.steps)

    @cached_property
    def bases(self) -> Mapping[str, str]:
        """Of each value that is a view of another that one."""
        return _bases(self.steps)

    @cached_property
    def regions(self) -> Mapping[str, Region]:
        """Of each value that is stored within another, as views and parts are, where."""
        return regions_of(self.graph, self.steps)

    @cached_property
    def homes(self) -> Mapping[str, Home]:
        """Where each value is stored; a constant that kernels have packed alone is nowhere."""
        homes = homes_of(self.graph, self.regions, self.memory.offsets, self.raw)
        for n, kernel in self.kernels.items():
            if (name := workspace_name(n)) in self.memory.offsets:
                homes[name] = Home((ARENA, 0), self.memory.offsets[name], kernel.workspace_bytes)
        packed = {at: self.kernels[n].packed_bytes for n, at in self.packed.items()}
        return homes | {packed_name(at): Home((WEIGHTS, 0), at, nbytes) for at, nbytes in packed.items()}

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

    @property
    def workspace_bytes(self) -> int:
        """What a call on a processor needs besides inputs and results: the arena, in which a failed check reports."""
        return max(self.memory.nbytes, REPORT_BYTES if self.checks else 0)

    def calls(self) -> Iterator[KernelCall | RowWrite | BoundsCheck]:
        def checks(step: int) -> Iterator[BoundsCheck]:
            for number in self._checks_after(step):
                check = self.checks[number]
                if (ids := self.pointer(check.ids)) is not None:
                    yield _bounds_check(number, check, ids, self.graph.values[check.ids])

        yield from checks(-1)
        for n, step in enumerate(self.steps):
            if isinstance(step, Group):
                packed = [Pointer(WEIGHTS, self.packed[n])] if n in self.packed else []
                pointers = (*map(self.pointer, step.inputs), *map(self.pointer, step.outputs), *packed)
                workspace = self.pointer(workspace_name(n)) or Pointer(ARENA, 0)
                yield KernelCall(self.kernels[n].name, pointers, workspace)
            elif isinstance(step, Write):
                yield self._row_write(step, *(self.homes[name].pointer for name in (step.output, step.at, step.rows)))
            yield from checks(n)

    def _checks_after(self, step: int) -> Iterator[int]:
        """The numbers of the checks of what is complete after a step, or before all for -1; on a GPU kernels check."""
        checks = () if self.backend.is_gpu else self.checks
        yield from (n for n, check in enumerate(checks) if self._completed.get(self.root(check.ids), -1) == step)

    @cached_property
    def _completed(self) -> Mapping[str, int]:
        """The last step that writes to each value that is stored within no other."""
        groups = ((n, step) for n, step in enumerate(self.steps) if isinstance(step, Group))
        return {self.root(name): n for n, step in groups for name in step.outputs}

    def _row_write(self, write: Write, to: Pointer, at: Pointer, rows: Pointer) -> RowWrite:
        values, axis = self.graph.values, write.axis
        whole = values[write.base]
        outer, inner = math.prod(whole.shape[:axis]), math.prod(whole.shape[axis + 1 :])
        *sets, count = values[write.at].shape
        nbytes, index_bytes = inner * DTYPES[whole.dtype].nbytes, DTYPES[values[write.at].dtype].nbytes
        shape, sharing = (outer, whole.shape[axis], count), outer // math.prod(sets)
        return RowWrite(to, at, rows, shape, sharing, nbytes, index_bytes)

    def pointer(self, name: str) -> Pointer | None:
        """Where a value is stored; None for a constant that kernels have packed alone."""
        home = self.homes.get(name)
        return None if home is None else home.pointer

    def start(self, name: str) -> int:
        """The byte at which a value begins in the value that it is stored within."""
        region = self.regions.get(name)
        return 0 if region is None else region.offset * DTYPES[self.graph.values[name].dtype].nbytes

    def root(self, name: str) -> str:
        """The value that a value is stored within."""
        return self.regions[name].base if name in self.regions else name

    def verify(self) -> None:
        """Raises StorageError where kernels would read or write other bytes than those of their values."""
        backend, graph = self.backend, self.graph
        runs = list(self._runs())
        sizes = {(ARENA, 0): self.memory.nbytes, (WEIGHTS, 0): self.weights_bytes}
        arguments = (*graph.inputs, *graph.outputs)
        sizes |= {(ARGUMENT, n): nbytes_of(graph, name) for n, name in enumerate(arguments)}
        verify_storage(Storage(graph, self.steps, runs, self.regions, self.homes, sizes, backend.array_alignment))

    def _runs(self) -> Iterator[tuple[str, KernelRun]]:
        """What each step and each check of indices reads and writes, in order, with what it is called in messages."""
        for n in range(-1, len(self.steps)):
            if n >= 0 and (run := self._run(n, self.steps[n])) is not None:
                yield str(self.steps[n]), run
            for number in self._checks_after(n):
                ids = self.checks[number].ids
                if ids in self.homes:
                    yield f"the check of {ids}", KernelRun((ids,), ())

    def _run(self, number: int, step: NetworkStep) -> KernelRun | None:
        """What a step reads and writes of memory; None for one that is no more than a declaration."""
        if isinstance(step, Write):
            return _run_of(step)
        if not isinstance(step, Group):
            return None
        self._check_arrays(number, step)
        reads, writes = step.inputs, step.outputs
        if number in self.packed:
            kept = (name for name in reads if name in self.homes or not self.graph.is_constant(name))
            reads = (*kept, packed_name(self.packed[number]))
        if self.kernels[number].workspace_bytes:
            writes = (*writes, workspace_name(number))
        return KernelRun(reads, writes)

    def _check_arrays(self, number: int, step: Group) -> None:
        """That the kernel's arrays are as large as the values that they stand for: it was made, and kept, apart."""
        values = (*step.inputs, *step.outputs)
        wanted = tuple(nbytes_of(self.graph, name) for name in values)
        found = self.kernels[number].array_bytes
        if found != wanted:
            raise StorageError(f"the kernel of {step} has arrays of {found} bytes, but its values have {wanted}")


def build_program(graph: Graph, target_text: str, device: Device, choices: Choices = DRAFTED) -> NetworkProgram:
    """Kernels, memory and weights of a graph whose outputs have memory of their own.

    Where no code can be made for a group of nodes, each of them is a kernel of its own. Raises UnbuiltKernel for a
    single node.
    """
    alone, backend = frozenset[str](), device.target.backend
    nearest = choices.nearest or NearestSchedules()
    checks, split = checks_of(graph), list[SplitGroup]()
    kept = [name for report in reports_of(graph) for name in report]
    if not backend.is_gpu:
        kept = [check.ids for check in checks if check.ids in graph.producers]
    stored = replace(graph, outputs=tuple(dict.fromkeys((*graph.outputs, *kept))))
    while True:
        single = steps_of(graph, device, alone, stored)
        place = place_of_weights(graph, single, device)
        prices = Prices(graph, target_text, device, place, nearest)
        alternatives = chains_of(stored, single, device, prices.priced, prices.may_join, alone)
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
    program = with_storage(graph, steps, kernels, backend, checks)
    return replace(program, tasks=tasks, split=tuple(split), alternatives=alternatives)


def with_storage(
    graph: Graph,
    steps: Sequence[NetworkStep],
    kernels: Mapping[int, KernelObject],
    backend: Backend,
    checks: Sequence[IndexCheck] = (),
) -> NetworkProgram:
    """The program of these kernels, by the numbers of their steps, with a plan of its memory that has been verified.
    Raises StorageError, which is a bug."""
    raw, packed, size = _layout(graph, steps, kernels, backend.array_alignment)
    memory = plan(_tenants(graph, steps, kernels, backend))
    program = NetworkProgram(graph, tuple(steps), (), kernels, backend, memory, raw, packed, size, checks=tuple(checks))
    program.verify()
    return program


def _decided(part: Alternative, choices: Choices) -> Alternative:
    """The part in the form that was measured to be faster, where that is known and can be built."""
    known = choices.is_joined(part.recipe)
    found = part if known is None else replace(part, is_joined=known)
    return found if math.isfinite(found.present.estimate_s) else part


def _bases(steps: Sequence[NetworkStep]) -> dict[str, str]:
    return {name: view.base for name, view in views_of(steps).items()}


def workspace_name(step: int) -> str:
    """The tenant of the arena that a step's kernel computes in; no value is called like that."""
    return f"workspace of step {step}"


def packed_name(at: int) -> str:
    """The packed weights of kernels at a byte of the weights; no value is called like that."""
    return f"packed weights at byte {at}"


def _sizes(graph: Graph, steps: Sequence[NetworkStep]) -> dict[str, int]:
    """Bytes of the values that neither the caller nor the weights hold, nor another value."""
    regions = regions_of(graph, steps)

    def roots(names: Iterable[str]) -> dict[str, None]:
        return dict.fromkeys(regions[name].base if name in regions else name for name in names)

    held = roots((*graph.inputs, *graph.outputs, *graph.constants))
    made = roots(name for step in steps if isinstance(step, Group) for name in step.outputs)
    return {name: nbytes_of(graph, name) for name in made if name not in held}


def steps_of(
    graph: Graph, device: Device, alone: frozenset[str] = frozenset(), stored: Graph | None = None
) -> tuple[NetworkStep, ...]:
    """The steps of a network, so that few bytes are alive at once; views cost nothing and go first. The nodes that make
    values of `alone` are kernels of their own. `stored`: the graph with more outputs, which have memory as well."""
    rates = rates_of(device.target, device.threads)
    steps = partition(stored or graph, rates, alone, not device.target.backend.is_gpu)
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
            own = (workspace_name(n),) if kernels[n].workspace_bytes else ()
            sizes |= dict.fromkeys(own, kernels[n].workspace_bytes)
            runs.append(KernelRun(step.inputs, (*step.outputs, *own)))
        elif isinstance(step, Write):
            runs.append(_run_of(step))
    roots = {name: region.base for name, region in regions_of(graph, steps).items()}
    found = live(runs, sizes, aliases=roots).tenants
    if not backend.is_gpu:
        return found
    return tuple(replace(t, nbytes=aligned(t.nbytes, backend.array_alignment), beside=()) for t in found)


def _bounds_check(number: int, check: IndexCheck, ids: Pointer, value: Value) -> BoundsCheck:
    """`ids`: where the value lies."""
    before = check.column * DTYPES[value.dtype].nbytes
    first = replace(ids, offset=ids.offset + before) if ids.place == ARGUMENT else replace(ids, at=ids.at + before)
    count = math.prod(value.shape) // check.columns
    return BoundsCheck(number, first, value.dtype, count, check.columns, check.low, check.high)


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
