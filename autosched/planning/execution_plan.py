"""Execution plan of a graph: the kernels of its groups, a plan of its memory, and the offsets of its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from autosched.graph.fusion.candidates import find_fusion_candidates
from autosched.graph.fusion.choice import FusionChoice, apply_fusion_choices
from autosched.graph.fusion.cost import rates_of
from autosched.graph.fusion.node_properties import weights_bytes, weights_of
from autosched.graph.fusion.partition import partition
from autosched.graph.graph import Array, Graph, Value
from autosched.graph.index_checks import IndexCheck, checks_of, reports_of
from autosched.graph.loops import loop_of, with_constants
from autosched.graph.memory.arena import ArenaPlan, find_arena
from autosched.graph.memory.buffers import (
    PackedWeights,
    aligned,
    arena_buffers,
    in_memory_order,
    place_weights,
    run_of,
    workspace_name,
)
from autosched.graph.memory.liveness import KernelRun, LiveBuffer
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
from autosched.graph.steps import Alias, Group, NetworkStep, Repeat, Write, views_of
from autosched.graph.traces import Number, numbered_graph, numbered_step
from autosched.ir.dtype import DTYPES
from autosched.ir.size import value_of
from autosched.kernel.device import Device
from autosched.kernel.spec import KernelObject, KernelSpec
from autosched.kernel.transfer import NearestSchedules
from autosched.planning.device_passes import prepare_graph
from autosched.planning.extract_tasks import BY_MODEL, Choices, GroupKernels, NetworkTask, UnbuiltTask, extract_tasks
from autosched.planning.loop_program import BODY, LoopProgram
from autosched.planning.predicted_latency import LatencyPredictor
from autosched.runtime.linked_network import ENTRY
from autosched.runtime.spec import ArraySpec
from autosched.target.far_weights import weights_place


@dataclass(frozen=True)
class SplitGroup:
    """A group for which no code could be generated, so that each of its nodes is a kernel: its operators and why."""

    operators: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operators}: each operator is its own kernel, as no code could be made for one ({self.reason})"


@dataclass(frozen=True)
class NetworkProgram:
    """The execution plan of a network before it is linked.

    `kernels`: the kernel of each group, by the number of its step. `raw_offsets`: offsets in the block of weights of
    constants that kernels read unpacked, by name. `packed_offsets`: those of packed weights, by step; steps of one
    kernel with the same constants share them. `split`: groups that had to be several kernels. `checks`: the bounds
    checks of indices that each call makes. `loops`: the plan of each loop, by the number of its step. `symbol`: the
    name of the entry function, which a call of the network runs `repeats` times. `first_step`: by what tasks, profiles
    and checks number the first step, as bodies of loops go on after the steps of the network.
    """

    graph: Graph
    steps: tuple[NetworkStep, ...]
    tasks: tuple[NetworkTask, ...]
    kernels: Mapping[int, KernelObject]
    backend: Backend
    memory: ArenaPlan
    raw_offsets: Mapping[str, int]
    packed_offsets: Mapping[int, int]
    weights_bytes: int
    split: tuple[SplitGroup, ...] = ()
    fusion_choices: tuple[FusionChoice[KernelSpec], ...] = ()
    checks: tuple[IndexCheck, ...] = ()
    loops: Mapping[int, LoopProgram] = field(default_factory=dict)
    symbol: str = ENTRY
    repeats: int = 1
    first_step: int = 0

    @property
    def programs(self) -> Iterator[NetworkProgram]:
        """This program and those of the bodies of its loops, also of the loops within them."""
        yield self
        for loop in self.loops.values():
            yield from loop.body.programs

    @property
    def all_tasks(self) -> tuple[NetworkTask, ...]:
        """The tasks of `programs`."""
        return tuple(task for program in self.programs for task in program.tasks)

    @property
    def all_fusion_choices(self) -> tuple[FusionChoice[KernelSpec], ...]:
        """The fusion choices of `programs`."""
        return tuple(choice for program in self.programs for choice in program.fusion_choices)

    def group(self, number: int) -> Group:
        """Return the group of the step of a task."""
        program = next(p for p in self.programs if 0 <= number - p.first_step < len(p.steps))
        step = program.steps[number - program.first_step]
        assert isinstance(step, Group)
        return step

    @cached_property
    def constants(self) -> Mapping[str, Array]:
        """The constants of the graph and of the bodies of its loops, by the names of `LoopProgram.constant`."""
        loops = self.loops.values()
        inner = {loop.constant(name): array for loop in loops for name, array in loop.body.constants.items()}
        return {**self.graph.constants, **inner}

    @cached_property
    def views(self) -> Mapping[str, Alias]:
        """The region of each view in the value that it is a view of."""
        return views_of(self.steps)

    @cached_property
    def bases(self) -> Mapping[str, str]:
        """The value that each view is a view of."""
        return {name: view.base for name, view in self.views.items()}

    @cached_property
    def regions(self) -> Mapping[str, Region]:
        """The region of each value that is stored within another one: views and operands of concatenations."""
        return regions_of(self.graph, self.steps)

    @cached_property
    def homes(self) -> Mapping[str, Home]:
        """The home of each value, workspace and packed weight; constants that are only read packed have none."""
        homes = homes_of(self.graph, self.regions, self.memory.offsets, self.raw_offsets)
        runs: dict[int, KernelObject | LoopProgram] = {**self.kernels, **self.loops}
        for n, step in runs.items():
            if (name := workspace_name(n)) in self.memory.offsets:
                homes[name] = Home((ARENA, 0), self.memory.offsets[name], step.workspace_bytes)
        packed = {at: self.kernels[n].packed_bytes for n, at in self.packed_offsets.items()}
        packed |= {loop.weights_at: n for loop in self.loops.values() if (n := loop.body.weights_bytes)}
        return homes | {packed_name(at): Home((WEIGHTS, 0), at, nbytes) for at, nbytes in packed.items()}

    @property
    def buffers(self) -> tuple[LiveBuffer, ...]:
        """The buffers of the arena with their live ranges, in kernels in the order in which they run."""
        return arena_buffers(self.graph, self.steps, _workspaces({**self.kernels, **self.loops}), self.backend)

    @property
    def in_place(self) -> Mapping[int, int]:
        """The number of the input whose memory an output may share, by the number of the output."""
        inputs, outputs = self.graph.inputs, self.graph.outputs
        writes = [step for step in self.steps if isinstance(step, Write)]
        return {outputs.index(write.output): inputs.index(write.base) for write in writes}

    def copies(self) -> Iterator[ArgumentCopy]:
        """Yield the copies that begin a call where the caller gives other memory for an output of `in_place`."""
        for output, base in self.in_place.items():
            nbytes = array_spec(self.graph, self.graph.outputs[output]).nbytes
            yield ArgumentCopy(base, len(self.graph.inputs) + output, nbytes)

    def launches(self) -> Iterator[KernelCall]:
        """Yield the calls of kernels, without loops, row writes and checks."""
        loops = {loop.symbol for loop in self.loops.values()}
        return (call for call in self.calls() if isinstance(call, KernelCall) and call.entry not in loops)

    @property
    def workspace_bytes(self) -> int:
        """The bytes of scratch memory of a call on a processor: the arena, in which a failed check reports."""
        return max(self.memory.nbytes, REPORT_BYTES if self.checks else 0)

    def calls(self) -> Iterator[KernelCall | RowWrite | BoundsCheck]:
        """Yield what one run of the network calls, in order."""

        def checks(step: int) -> Iterator[BoundsCheck]:
            for number in self._checks_after(step):
                check = self.checks[number]
                if (ids := self.pointer(check.ids)) is not None:
                    yield _bounds_check(number, check, ids, self.graph.values[check.ids])

        yield from checks(-1)
        for n, step in enumerate(self.steps):
            if isinstance(step, Group):
                packed = [Pointer(WEIGHTS, self.packed_offsets[n])] if n in self.packed_offsets else []
                pointers = (*map(self.pointer, step.inputs), *map(self.pointer, step.outputs), *packed)
                workspace = self.pointer(workspace_name(n)) or Pointer(ARENA, 0)
                yield KernelCall(self.kernels[n].name, pointers, workspace)
            elif isinstance(step, Repeat):
                loop, workspace = self.loops[n], self.pointer(workspace_name(n)) or Pointer(ARENA, 0)
                pointers = (*map(self.pointer, (*step.reads, *step.outputs)), Pointer(WEIGHTS, loop.weights_at))
                yield KernelCall(loop.symbol, pointers, workspace)
            elif isinstance(step, Write):
                yield self._row_write(step, *(self.homes[name].pointer for name in (step.output, step.at, step.rows)))
            yield from checks(n)

    def _checks_after(self, step: int) -> Iterator[int]:
        """Yield the numbers of the checks whose indices are complete after a step, -1: before all. GPU kernels check
        by themselves."""
        checks = () if self.backend.is_gpu else self.checks
        yield from (n for n, check in enumerate(checks) if self._completed.get(self.root(check.ids), -1) == step)

    @cached_property
    def _completed(self) -> Mapping[str, int]:
        """The last step that writes to each root value."""
        groups = ((n, step) for n, step in enumerate(self.steps) if isinstance(step, Group | Repeat))
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
        """Return the pointer to a value; None for a constant that kernels only read packed."""
        home = self.homes.get(name)
        return None if home is None else home.pointer

    def start(self, name: str) -> int:
        """Return the byte at which a value begins in its root."""
        region = self.regions.get(name)
        return 0 if region is None else region.offset * DTYPES[self.graph.values[name].dtype].nbytes

    def root(self, name: str) -> str:
        """Return the outermost value that a value is stored within, or its own name."""
        return self.regions[name].base if name in self.regions else name

    def numbered(self, number: Number) -> NetworkProgram:
        """Return the program of a traced graph with numbers for sizes; kernels and memory stay."""
        checks = (replace(check, low=number(check.low), high=number(check.high)) for check in self.checks)
        steps = (numbered_step(step, number) for step in self.steps)
        return replace(self, graph=numbered_graph(self.graph, number), steps=tuple(steps), checks=tuple(checks))

    def verify(self) -> None:
        """Check that kernels read and write the bytes of their values and no others. Raises StorageError."""
        backend, graph = self.backend, self.graph
        for loop in self.loops.values():
            loop.verify()
        runs = list(self._runs())
        sizes = {(ARENA, 0): self.memory.nbytes, (WEIGHTS, 0): self.weights_bytes}
        arguments = (*graph.inputs, *graph.outputs)
        sizes |= {(ARGUMENT, n): nbytes_of(graph, name) for n, name in enumerate(arguments)}
        verify_storage(Storage(graph, self.steps, runs, self.regions, self.homes, sizes, backend.array_alignment))

    def _runs(self) -> Iterator[tuple[str, KernelRun]]:
        """Yield the reads and writes of each step and each bounds check in order, with a description for messages."""
        for n in range(-1, len(self.steps)):
            if n >= 0 and (run := self._run(n, self.steps[n])) is not None:
                yield str(self.steps[n]), run
            for number in self._checks_after(n):
                ids = self.checks[number].ids
                if ids in self.homes:
                    yield f"the check of {ids}", KernelRun((ids,), ())

    def _run(self, number: int, step: NetworkStep) -> KernelRun | None:
        """Return the reads and writes of a step; None for a view or a concatenation in place, which touch no memory."""
        if isinstance(step, Write):
            return run_of(step)
        if isinstance(step, Repeat):
            loop = self.loops[number]
            weights = (packed_name(loop.weights_at),) if loop.body.weights_bytes else ()
            workspace = (workspace_name(number),) if loop.workspace_bytes else ()
            return KernelRun((*step.reads, *weights), (*step.outputs, *workspace))
        if not isinstance(step, Group):
            return None
        self._check_arrays(number, step)
        reads, writes = step.inputs, step.outputs
        if number in self.packed_offsets:
            kept = (name for name in reads if name in self.homes or not self.graph.is_constant(name))
            reads = (*kept, packed_name(self.packed_offsets[number]))
        if self.kernels[number].workspace_bytes:
            writes = (*writes, workspace_name(number))
        return KernelRun(reads, writes)

    def _check_arrays(self, number: int, step: Group) -> None:
        """Check that a kernel, which may come from the disk cache, has arrays of the sizes of its values."""
        values = (*step.inputs, *step.outputs)
        expected = tuple(nbytes_of(self.graph, name) for name in values)
        actual = self.kernels[number].array_bytes
        if actual != expected:
            raise StorageError(f"the kernel of {step} has arrays of {actual} bytes, but its values have {expected}")


def build_program(
    graph: Graph,
    target_text: str,
    device: Device,
    choices: Choices = BY_MODEL,
    symbol: str = ENTRY,
    repeats: int = 1,
    first_step: int = 0,
) -> NetworkProgram:
    """Return the execution plan of a graph from `prepare_graph`, with compiled kernels and a plan of its memory.

    `symbol`, `repeats`, `first_step`: those of the program. A group for which no code can be generated is split into
    its nodes. Raises UnbuiltTask for a single node.
    """
    unfusible, backend = frozenset[str](), device.target.backend
    nearest = choices.nearest or NearestSchedules()
    checks, split = checks_of(graph), list[SplitGroup]()
    kept = [name for report in reports_of(graph) for name in report]
    if not backend.is_gpu:
        kept = [check.ids for check in checks if check.ids in graph.producers]
    stored = replace(graph, outputs=tuple(dict.fromkeys((*graph.outputs, *kept))))
    while True:
        single = steps_of(graph, device, unfusible, stored)
        residency = weights_place(weights_bytes(graph, single), device.target)
        kernels_of = GroupKernels(graph, target_text, device, residency)
        candidates = find_fusion_candidates(stored, single, LatencyPredictor(kernels_of, nearest), unfusible)
        fusion_choices = tuple(_with_measured_decision(candidate, choices) for candidate in candidates)
        steps = apply_fusion_choices(single, fusion_choices)
        try:
            tasks = extract_tasks(kernels_of, steps, choices)
            break
        except UnbuiltTask as failure:
            groups = [group for n in failure.steps if isinstance(group := steps[n], Group)]
            values = frozenset(name for group in groups for node in group.nodes for name in node.outputs)
            if values <= unfusible or all(len(group.nodes) == 1 for group in groups):
                raise
            unfusible |= values
            split.append(SplitGroup(" ".join(node.operator for node in groups[0].nodes), str(failure)))
    kernels = {n: task.kernel for task in tasks for n in task.steps}
    bodies, next_step = dict[int, NetworkProgram](), first_step + len(steps)
    for n, step in enumerate(steps):
        if isinstance(step, Repeat):
            body, inner = prepare_graph(with_constants(graph, step.node), device), f"{symbol}.loop{n}{BODY}"
            count = repeats * loop_of(step.node).steps
            bodies[n] = build_program(body, target_text, device, choices, inner, count, next_step)
            next_step += sum(len(each.steps) for each in bodies[n].programs)
    program = with_storage(graph, steps, kernels, backend, checks, bodies)
    tasks = tuple(replace(task, repeats=repeats, steps=tuple(first_step + n for n in task.steps)) for task in tasks)
    named = replace(program, tasks=tasks, split=tuple(split), fusion_choices=fusion_choices)
    return replace(named, symbol=symbol, repeats=repeats, first_step=first_step)


def with_kernels(program: NetworkProgram, kernel_of: Callable[[NetworkTask], KernelObject]) -> NetworkProgram:
    """Return the program with other kernels for its tasks, also for those in the bodies of its loops."""
    tasks = tuple(replace(task, kernel=kernel_of(task)) for task in program.tasks)
    kernels = {n - program.first_step: task.kernel for task in tasks for n in task.steps}
    bodies = {n: with_kernels(loop.body, kernel_of) for n, loop in program.loops.items()}
    stored = with_storage(program.graph, program.steps, kernels, program.backend, program.checks, bodies)
    own = replace(stored, tasks=tasks, split=program.split, fusion_choices=program.fusion_choices)
    return replace(own, symbol=program.symbol, repeats=program.repeats, first_step=program.first_step)


def with_storage(
    graph: Graph,
    steps: Sequence[NetworkStep],
    kernels: Mapping[int, KernelObject],
    backend: Backend,
    checks: Sequence[IndexCheck] = (),
    bodies: Mapping[int, NetworkProgram] | None = None,
) -> NetworkProgram:
    """Plan the memory of `kernels` and of loops with these `bodies`, by the numbers of their steps, and verify the
    plan. StorageError means a bug.

    The memory of a traced graph is planned for the present values of its sizes.
    """
    packed = dict(_packed_weights(graph, steps, kernels))
    weights = place_weights(graph, steps, packed, backend.array_alignment)
    loops, end = dict[int, LoopProgram](), weights.nbytes
    for n, body in (bodies or {}).items():
        step = steps[n]
        assert isinstance(step, Repeat)
        loops[n] = LoopProgram(graph, step, body, end)
        end += aligned(body.weights_bytes, backend.array_alignment)
    memory = find_arena(arena_buffers(graph, steps, _workspaces({**kernels, **loops}), backend))
    program = NetworkProgram(
        graph, tuple(steps), (), kernels, backend, memory, weights.raw, weights.packed, end,
        checks=tuple(checks), loops=loops,
    )  # fmt: skip
    (program.numbered(value_of) if graph.is_traced else program).verify()
    return program


def _workspaces(steps: Mapping[int, KernelObject | LoopProgram]) -> dict[int, int]:
    """Return the bytes of scratch memory of kernels and loops, by step. Kernels of sizes have some in the plan, because
    their code for other sizes may need it."""

    def nbytes(step: KernelObject | LoopProgram) -> int:
        return step.workspace_bytes or int(isinstance(step, KernelObject) and bool(step.sizes))

    return {n: nbytes(step) for n, step in steps.items()}


def _packed_weights(
    graph: Graph, steps: Sequence[NetworkStep], kernels: Mapping[int, KernelObject]
) -> Iterator[tuple[int, PackedWeights]]:
    """Yield the weights of each step whose kernel packs them."""
    for n, step in enumerate(steps):
        if isinstance(step, Group) and (kernel := kernels[n]).prepare is not None:
            weights = tuple(weights_of(graph, step.nodes, step.inputs))
            yield n, PackedWeights(kernel.name, weights, kernel.packed_bytes)


def _with_measured_decision(choice: FusionChoice[KernelSpec], choices: Choices) -> FusionChoice[KernelSpec]:
    """Replace the model's selection by the measured decision, where there is one whose kernels can be built."""
    is_fused = choices.is_fused(choice.kernel_spec)
    measured = choice if is_fused is None else replace(choice, is_fused=is_fused)
    return measured if math.isfinite(measured.selected.estimate_s) else choice


def packed_name(at: int) -> str:
    """Return the name of the packed weights at an offset in the block of weights; no value has such a name."""
    return f"packed weights at byte {at}"


def steps_of(
    graph: Graph, device: Device, unfusible: frozenset[str] = frozenset(), stored: Graph | None = None
) -> tuple[NetworkStep, ...]:
    """Return the steps of a network, views first, the others in an order in which few bytes are alive at once.

    Nodes that compute values of `unfusible` are not fused. `stored`: the graph with further outputs that need memory.
    """
    rates = rates_of(device.target, device.threads)
    return in_memory_order(graph, partition(stored or graph, rates, unfusible, not device.target.backend.is_gpu))


def _bounds_check(number: int, check: IndexCheck, ids: Pointer, value: Value) -> BoundsCheck:
    """Return the check of a column of indices; `ids` points to `value`."""
    before = check.column * DTYPES[value.dtype].nbytes
    first = replace(ids, offset=ids.offset + before) if ids.place == ARGUMENT else replace(ids, at=ids.at + before)
    count = math.prod(value.shape) // check.columns
    return BoundsCheck(number, first, value.dtype, count, check.columns, check.low, check.high)


def array_spec(graph: Graph, value: str, name: str | None = None) -> ArraySpec:
    """Return the shape and type of a value as an array called `name`, by default as the value."""
    described = graph.values[value]
    return ArraySpec(name or value, described.shape, described.dtype)
