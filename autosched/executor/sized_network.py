"""Network for sizes that are known at a call: one program, whose numbers of the sizes are in tables.

The graph is traced with symbols for the varying dimensions (`graph.traces`), so that its plan is right for all sizes
for which the guards hold. Memory offsets, shapes and the addresses of kernels are entries of a table that the entry
function reads; kernels have tables of their own. New sizes have new tables, which take about a millisecond; they need
further code only where no code of a kernel is right for them.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from autosched.codegen.calls import ADDRESS, OUT_OF_RANGE, REPORT_BYTES, BoundsCheck, KernelCall, Pointer, RowWrite
from autosched.codegen.llvm.program import emit_program
from autosched.errors import AutoschedError, OutOfRangeError
from autosched.executor.cpu_model import packing_call, weights_plan
from autosched.graph.graph import Array, Graph
from autosched.graph.mapped_arrays import GraphConstants
from autosched.graph.memory.arena_order import ArenaOrder
from autosched.graph.memory.buffers import workspace_name
from autosched.graph.memory.storage import StorageError, nbytes_of
from autosched.graph.steps import Group
from autosched.graph.traces import Number, numbered_graph
from autosched.ir.expr import Expr
from autosched.ir.size import Forms, Guards, evaluate, form_of
from autosched.kernel.device import Device
from autosched.kernel.pool import compile_entry
from autosched.kernel.sizes.variants import KernelVariant, KernelVariants, Values, load_variant, variants_at
from autosched.kernel.spec import CodeSizes
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.extract_tasks import objects_of
from autosched.runtime.jit import LoadedKernel, load_objects
from autosched.runtime.kernel import Kernel
from autosched.runtime.linked_network import ENTRY, pack_weights, run_packing
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import address_of, aligned_zeros, are_equal

if TYPE_CHECKING:
    from autosched.executor.gpu_model import GpuModel
    from autosched.runtime.gpu.arrays import DeviceBlock
    from autosched.runtime.gpu.device import GpuDevice


class SizedCall(Kernel):
    """The network for certain sizes. `tables` are what its code reads."""

    def __init__(self, network: SizedNetwork, values: Values, tables: Sequence[Array], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._network, self._values, self._tables = network, values, tables

    @property
    def in_place(self) -> Mapping[int, int]:
        """For each output that may alias an input, by index, the index of that input."""
        return self._network.program.in_place

    def _failure(self, code: int, workspace: int) -> AutoschedError:
        if code != OUT_OF_RANGE:
            return super()._failure(code, workspace)
        number, index = (ctypes.c_int64 * 2).from_address(workspace)
        check = self._network.program.checks[number]
        low, high = (int(evaluate(form_of(size), self._values)) for size in (check.low, check.high))
        return OutOfRangeError(replace(check, low=low, high=high).message(index))


class SizedNetwork(ABC):
    """A network over symbols. `original`: the traced graph. `program`: its plan, with code for the present sizes.
    `guards`: of what it depends on. `variants`: the code of each task whose kernel is for sizes."""

    def __init__(self, guards: Guards, original: Graph, program: NetworkProgram, device: Device) -> None:
        self.guards, self.original, self.program, self.device = guards, original, program, device
        self._order = ArenaOrder.of(program.memory, program.buffers, program.backend.array_alignment)
        with guards:
            self._numbers = _NetworkNumbers(original, program, self._order)
        self.variants: dict[int, KernelVariants] = {}

    @abstractmethod
    def at(self, sizes: Mapping[str, int]) -> SizedCall | GpuModel | None:
        """Return the network for sizes of the varying dimensions; None where a guard does not hold.

        Raises NoValidCandidate where no code can be made for a kernel.
        """

    @abstractmethod
    def share_weights(self, others: Iterable[SizedNetwork]) -> None:
        """Take the weights of another network that are equal, to save memory; before the first `at`."""

    def plan(self, sizes: Mapping[str, int]) -> NetworkProgram:
        """Return the plan for sizes that pass the guards, with the memory that `at` gives it; its kernels are those
        for the present sizes, but for their bytes."""
        values = self.guards.values(sizes)
        return self._plan_of(self._planned(values), values)

    def _planned(self, values: Values) -> _PlannedCall:
        """Return the code and the memory of a call for values of the symbols."""
        numbers, kernels = self._numbers.at(values), self.program.kernels
        code, workspaces = dict[int, _CodeNumbers](), {n: k.workspace_bytes for n, k in kernels.items() if not k.sizes}
        for k, variant in variants_at(self.variants, values).items():
            code[k] = _CodeNumbers(variant, *variant.sizes.numbers(self.variants[k].symbols(values)))
            task = self.program.tasks[k]
            if code[k].array_bytes != numbers.array_bytes[k]:
                text = f"has arrays of {code[k].array_bytes} bytes, but its values have {numbers.array_bytes[k]}"
                raise StorageError(f"the kernel of {task.name} {text}")
            workspaces |= dict.fromkeys(task.steps, code[k].workspace_bytes)
        nbytes = numbers.buffer_bytes | {workspace_name(n): size for n, size in workspaces.items()}
        return _PlannedCall(numbers.arrays, code, *self._order.offsets(nbytes))

    def _plan_of(self, planned: _PlannedCall, values: Values) -> NetworkProgram:
        kernels = dict(self.program.kernels)
        for k, code in planned.code.items():
            own, arrays, workspace = code.variant.kernel, code.array_bytes, code.workspace_bytes
            kernel = replace(own, array_bytes=arrays, workspace_bytes=workspace)
            kernels |= dict.fromkeys(self.program.tasks[k].steps, kernel)
        numbered = self.program.numbered(_number_at(values))
        memory = replace(numbered.memory, offsets=planned.offsets, nbytes=planned.arena_bytes)
        return replace(numbered, kernels=kernels, memory=memory)


class CpuSizedNetwork(SizedNetwork):
    """A network over symbols on a processor: its entry function reads a table of the sizes."""

    def __init__(self, guards: Guards, original: Graph, program: NetworkProgram, device: Device) -> None:
        super().__init__(guards, original, program, device)
        with guards:
            text, table = self._entry()
        self._table = Forms(table)
        self._link(text)
        with GraphConstants(program.constants) as constants:
            self.block = pack_weights(weights_plan(program), self.linked, constants)

    def _place(self, name: str) -> int:
        """Return the symbol of an offset or an address."""
        return self.guards.symbol(name, 1 << 12, 0, (1 << 63) - 1)

    def _entry(self) -> tuple[str, tuple[Expr, ...]]:
        """Return the text of the entry, and the closed forms of its table."""
        program, graph = self.program, self.program.graph
        offsets = {name: self._place(_offset(name)) for name in program.memory.offsets}
        moved = replace(program, memory=replace(program.memory, offsets=offsets))
        numbers = {n: k for k, task in enumerate(program.tasks) if task.kernel.sizes for n in task.steps}
        code = {k: (self._place(_code(k)), self._place(_table(k))) for k in {*numbers.values()}}
        groups = iter([n for n, step in enumerate(program.steps) if isinstance(step, Group)])
        calls = list[KernelCall | RowWrite | BoundsCheck]()
        for call in moved.calls():
            if isinstance(call, KernelCall) and (n := next(groups)) in numbers:
                entry, table = code[numbers[n]]
                pointers = call.pointers
                if n in program.packed_offsets:
                    pointers = (*pointers[:-1], Pointer(ADDRESS, self._place(_packed(n))))
                call = replace(call, address=entry, pointers=(*pointers, Pointer(ADDRESS, table)))
            calls.append(call)
        n_arguments = len(graph.inputs) + len(graph.outputs)
        return emit_program(ENTRY, calls, n_arguments, self.device.target, tuple(moved.copies()))

    def _link(self, text: str) -> None:
        tasks, threads = self.program.tasks, self.device.threads
        codes = {task.kernel.name: task.kernel.code for task in tasks if task.kernel.sizes}
        objects = [compile_entry(text, self.device), *codes.values()]
        objects += objects_of([task for task in tasks if not task.kernel.sizes])
        names = [name for t in tasks for name in (t.kernel.name, t.kernel.prepare) if name is not None]
        self.linked = load_objects(objects, (ENTRY, *dict.fromkeys(names)), threads)
        self._packing: dict[int, str] = {}  # the digest of the code that packed the weights, by task
        for k, task in enumerate(tasks):
            if task.kernel.sizes:
                first, sized = load_variant(task.kernel, threads, self.linked), task.kernel_spec.sized
                assert sized is not None
                steps = {sized.classes: task.kernel.schedule.steps}
                self.variants[k] = KernelVariants(task.kernel_spec, [first], steps)
                self._packing[k] = first.sizes.packing
        self._packed: dict[tuple[str, int], Array] = {}  # by the digest of the packing code and the step

    def share_weights(self, others: Iterable[SizedNetwork]) -> None:
        blocks = (other.block for other in others if isinstance(other, CpuSizedNetwork))
        equal = (block for block in blocks if are_equal(self.block, block))
        self.block = next(equal, self.block)

    def at(self, sizes: Mapping[str, int]) -> SizedCall | None:
        if not self.guards.hold(sizes):
            return None
        program, values = self.program, self.guards.values(sizes)
        planned, places, tables = self._planned(values), dict[str, int](), list[Array]()
        for k, code in planned.code.items():
            tables.append(np.array(code.table or [0], np.int64))
            loaded = code.variant.loaded
            assert isinstance(loaded, LoadedKernel)
            places |= {_code(k): loaded.address, _table(k): address_of(tables[-1])}
            packed = [n for n in program.tasks[k].steps if n in program.packed_offsets]
            places |= {_packed(n): self._packed_weights(k, code.variant, n) for n in packed}
        places |= {_offset(name): offset for name, offset in planned.offsets.items()}
        tables.append(np.array(self._table.at(values | self.guards.values(places)) or [0], np.int64))
        fixed = (*(None for _ in planned.arrays), address_of(self.block), address_of(tables[-1]))
        n = len(program.graph.inputs)
        return SizedCall(
            self, values, tables, self.linked[ENTRY], planned.arrays[:n], planned.arrays[n:],
            max(planned.arena_bytes, REPORT_BYTES if program.checks else 0), fixed, program.in_place,
        )  # fmt: skip

    def _packed_weights(self, task: int, variant: KernelVariant, step: int) -> int:
        """Return the address of the packed weights that a step reads."""
        if variant.sizes.packing == self._packing[task]:
            return address_of(self.block) + self.program.packed_offsets[step]
        key = variant.sizes.packing, step
        if key not in self._packed:
            block = self._packed[key] = aligned_zeros(variant.kernel.packed_bytes)
            assert variant.prepare is not None
            call = packing_call(self.program, step, variant.kernel)
            with GraphConstants(self.program.constants) as constants:
                run_packing(call, variant.prepare, constants, address_of(block))
        return address_of(self._packed[key])


class GpuSizedNetwork(SizedNetwork):
    """A network over symbols on a GPU: the network for certain sizes is a model of their plan, with the code of
    kernels for ranges of sizes and buffers of these sizes. All have one block of weights."""

    def __init__(
        self, guards: Guards, original: Graph, program: NetworkProgram, device: Device, gpu: GpuDevice
    ) -> None:
        from autosched.executor.gpu_model import LoadedSource, load_codes

        super().__init__(guards, original, program, device)
        self._gpu, self._fixed = gpu, dict[str, LoadedSource]()
        codes = load_codes(gpu, program, device)
        for k, task in enumerate(program.tasks):
            kernel, code, sized = task.kernel, codes[task.kernel.name], task.kernel_spec.sized
            if not kernel.sizes:
                self._fixed[kernel.name] = LoadedSource(code.source, code.kernels)
                continue
            assert sized is not None
            first, steps = KernelVariant(kernel, CodeSizes.parse(kernel.sizes), code, None), kernel.schedule.steps
            self.variants[k] = KernelVariants(task.kernel_spec, [first], {sized.classes: steps}, gpu)

    @cached_property
    def weights(self) -> DeviceBlock:
        from autosched.executor.gpu_model import upload_weights

        return upload_weights(self._gpu, self.program)

    def share_weights(self, others: Iterable[SizedNetwork]) -> None:
        from autosched.executor.gpu_model import has_equal_weights

        for other in others:
            if isinstance(other, GpuSizedNetwork) and has_equal_weights(self.program, other.program):
                self.weights = other.weights
                return

    def at(self, sizes: Mapping[str, int]) -> GpuModel | None:
        from autosched.executor.gpu_model import GpuModel, LoadedSource

        if not self.guards.hold(sizes):
            return None
        values = self.guards.values(sizes)
        planned, loaded = self._planned(values), dict(self._fixed)
        program = self._plan_of(planned, values)
        kernels = dict(program.kernels)
        for k, code in planned.code.items():  # a variant may be the code of several tasks, each with its own numbers
            name, variant = f"{code.variant.kernel.name} of task {k}", code.variant.loaded
            assert not isinstance(variant, LoadedKernel)
            loaded[name] = LoadedSource(variant.source.renumbered(code.table), variant.kernels)
            kernels |= {n: replace(kernels[n], name=name) for n in program.tasks[k].steps}
        original = numbered_graph(self.original, _number_at(values))
        return GpuModel(original, replace(program, kernels=kernels), self.device, self._gpu, loaded, self.weights)


def _number_at(values: Values) -> Number:
    """Return the function from a size to its number for values of the symbols."""
    return lambda size: int(evaluate(form_of(size), values))


def _offset(buffer: str) -> str:
    return f"offset of {buffer}"


def _code(task: int) -> str:
    return f"code of task {task}"


def _table(task: int) -> str:
    return f"table of task {task}"


def _packed(step: int) -> str:
    return f"weights of step {step}"


@dataclass(frozen=True)
class _CodeNumbers:
    """Code of a kernel, with the numbers of `CodeSizes` for the sizes of a call."""

    variant: KernelVariant
    table: list[int]
    array_bytes: tuple[int, ...]
    workspace_bytes: int


@dataclass(frozen=True)
class _PlannedCall:
    """The plan of a call: the caller's arrays, the code of each task of sizes, and the offsets in an arena."""

    arrays: list[ArraySpec]
    code: dict[int, _CodeNumbers]
    offsets: dict[str, int]
    arena_bytes: int


@dataclass(frozen=True)
class _Numbers:
    """What the plan of a network says for sizes: the caller's arrays, the bytes of buffers of the arena, and those of
    the arrays of each task of sizes."""

    arrays: list[ArraySpec]
    buffer_bytes: dict[str, int]
    array_bytes: dict[int, tuple[int, ...]]


class _NetworkNumbers:
    """The closed forms of `_Numbers`."""

    def __init__(self, original: Graph, program: NetworkProgram, order: ArenaOrder) -> None:
        graph = program.graph
        values = [graph.values[name] for name in (*graph.inputs, *graph.outputs)]
        names = (*original.inputs, *original.outputs)
        self._arrays = [(name, value.dtype, len(value.shape)) for name, value in zip(names, values, strict=True)]
        self._buffers = [name for name in order.below if name in graph.values]
        self._tasks: dict[int, int] = {}
        sizes = [n for value in values for n in value.shape]
        sizes += [nbytes_of(graph, name) for name in self._buffers]
        for k, task in enumerate(program.tasks):
            step = program.steps[task.steps[0]]
            if task.kernel.sizes and isinstance(step, Group):
                own = [nbytes_of(graph, name) for name in (*step.inputs, *step.outputs)]
                self._tasks[k] = len(own)
                sizes += own
        self._forms = Forms(map(form_of, sizes))

    def at(self, values: Values) -> _Numbers:
        numbers = iter(self._forms.at(values))
        arrays = [ArraySpec(name, tuple(islice(numbers, rank)), dtype) for name, dtype, rank in self._arrays]
        buffer_bytes = dict(zip(self._buffers, numbers, strict=False))
        return _Numbers(arrays, buffer_bytes, {k: tuple(islice(numbers, n)) for k, n in self._tasks.items()})
