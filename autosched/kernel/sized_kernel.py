"""Kernels of sizes that are known at a call: code for ranges of sizes, which reads them from a table.

The code of a schedule is emitted once with symbols for the sizes (`ir.size`). It is right for the sizes for which the
guards of the emission hold; for others the schedule is chosen and emitted anew, as another of its `variants`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np

from autosched.codegen.source import KernelSource
from autosched.errors import AutoschedError, UsageError
from autosched.ir.expr import Expr
from autosched.ir.instructions.precision import EXACT
from autosched.ir.size import SIZE_CLASSES, Guards, class_of, evaluate, form_of
from autosched.kernel.device import find_device
from autosched.kernel.request import Request
from autosched.kernel.task import analytic_best, make_task
from autosched.runtime.jit import LoadedKernel, load_object
from autosched.runtime.kernel import Kernel, build_object
from autosched.runtime.spec import ArraySpec, in_order
from autosched.runtime.tensors import Array, address_of
from autosched.te import ComputeDAG, Tensor
from autosched.tuner.definition import Definition, Workload, dag_of_sizes, define
from autosched.tuner.options import WorkloadOptions

MAX_KERNELS = 256  # choices of sizes that are kept, the last used ones
MAX_VARIANTS = 64
MakeDag = Callable[[Mapping[str, int]], ComputeDAG]
MakeRequest = Callable[[Mapping[str, int]], Request]


@dataclass(frozen=True)
class Extent:
    """Where a size is in the arguments: axis `axis` of input `input`."""

    input: int
    axis: int


@dataclass(frozen=True)
class SizedCode:
    """Code for the sizes for which the `guards` hold. `schedule`: its steps in JSON. `table`: the closed forms that the
    code reads. `shapes`: those of inputs and outputs, and `workspace_bytes`, may be sizes."""

    guards: Guards
    schedule: str
    loaded: LoadedKernel
    table: tuple[Expr, ...]
    shapes: tuple[tuple[int, ...], ...]
    workspace_bytes: int

    def kernel(self, sizes: Mapping[str, int], dag: ComputeDAG) -> Kernel:
        """Return the kernel of arrays of these sizes; `dag` has their names and types."""
        tensors, values = (*dag.inputs, *dag.outputs), self.guards.values(sizes)
        specs = [
            ArraySpec(t.name, tuple(_number(n, values) for n in shape), t.dtype)
            for t, shape in zip(tensors, self.shapes, strict=True)
        ]
        table = np.array([evaluate(form, values) for form in self.table] or [0], np.int64)
        workspace_bytes, n = _number(self.workspace_bytes, values), len(dag.inputs)
        return _TableKernel(table, self.loaded, specs[:n], specs[n:], workspace_bytes)


class _TableKernel(Kernel):
    """A kernel whose last pointer is the table, which it holds."""

    def __init__(self, table: Array, loaded: LoadedKernel, inputs: Any, outputs: Any, workspace_bytes: int) -> None:
        arrays = (None,) * (len(inputs) + len(outputs))
        super().__init__(loaded, inputs, outputs, workspace_bytes, (*arrays, address_of(table)))
        self._table = table


@dataclass
class SizedKernel:
    """A kernel of any sizes within `ranges`: `kernel(A, B)`, `kernel(A, B, out=C)`, as a `Kernel`.

    A call with sizes that no variant is right for compiles one, which takes as long as `compile`. A call with sizes
    that are new for an existing variant makes its table, in about a millisecond.

    `variants`: those that are compiled, the last MAX_VARIANTS. `of` returns the kernel of given sizes.
    """

    ranges: Mapping[str, range]
    make_dag: MakeDag = field(repr=False)
    make_request: MakeRequest = field(repr=False)
    variants: list[SizedCode] = field(default_factory=list)
    _kernels: dict[tuple[int, ...], Kernel] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        with Guards() as guards:
            smallest = _symbols(guards, {name: r.start for name, r in self.ranges.items()}, self.ranges)
            self._dag = self.make_dag(smallest)
        self.inputs = tuple(t.name for t in self._dag.inputs)
        self._extents = {name: _extent(name, form_of(size), self._dag.inputs) for name, size in smallest.items()}

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a kernel is machine code of this process, which can be neither copied nor pickled: compile it"
        )

    def __call__(self, *arrays: Any, out: object = None, **named: object) -> Any:
        if named or len(arrays) != len(self.inputs):
            arrays = in_order(self.inputs, arrays, named)
        try:
            key = tuple([arrays[e.input].shape[e.axis] for e in self._extents.values()])
        except (AttributeError, IndexError):
            key = tuple(r.start for r in self.ranges.values())  # any kernel says what is wrong with the arrays
        kernel = self._kernels.get(key) or self._kernel(key)
        return kernel(*arrays, out=out)

    def of(self, **sizes: int) -> Kernel:
        """Return the kernel of these sizes. Raises UsageError for sizes that are missing, unknown or out of range."""
        if set(sizes) != set(self.ranges):
            raise UsageError(
                f"the kernel varies in {', '.join(self.ranges)}, got sizes of {', '.join(sizes) or 'none'}"
            )
        return self._kernel(tuple(sizes[name] for name in self.ranges))

    def _kernel(self, key: tuple[int, ...]) -> Kernel:
        sizes = dict(zip(self.ranges, map(int, key), strict=True))
        for name, allowed in self.ranges.items():
            if sizes[name] not in allowed:
                step = f" in steps of {allowed.step}" if allowed.step > 1 else ""
                raise UsageError(f"{name} is {sizes[name]}, and may be {allowed.start} to {allowed[-1]}{step}")
        with self._lock:
            kernel = self._kernels.pop(key, None) or self._variant(sizes).kernel(sizes, self._dag)
            self._kernels[key] = kernel
            while len(self._kernels) > MAX_KERNELS:
                del self._kernels[next(iter(self._kernels))]
        return kernel

    def _variant(self, sizes: Mapping[str, int]) -> SizedCode:
        for variant in self.variants:
            if variant.guards.hold(sizes):
                return variant
        variant = self._compiled(sizes)
        assert variant.guards.hold(sizes), f"the code that was emitted for {sizes} has a guard that they do not fulfil"
        self.variants = [*self.variants[1 - MAX_VARIANTS :], variant]
        return variant

    def _compiled(self, sizes: Mapping[str, int]) -> SizedCode:
        """Choose the schedule by the analytic model for typical sizes of the classes that these are in, or if that is
        none for these, for them; and compile its code for all its guards allow.

        Raises NoValidCandidate if no schedule is legal.
        """
        typical = {name: _typical(size, self.ranges[name]) for name, size in sizes.items()}
        try:
            return self._scheduled_for(typical, sizes)
        except AutoschedError:
            if typical == sizes:
                raise
            return self._scheduled_for(sizes, sizes)

    def _scheduled_for(self, chosen: Mapping[str, int], sizes: Mapping[str, int]) -> SizedCode:
        from autosched.lower import lower
        from autosched.schedule import steps_to_json

        request = self.make_request(chosen)
        task, sketches = make_task(request)
        ((candidate, _),) = analytic_best(task, 1, task.source)
        steps = steps_to_json(sketches[candidate.sketch].state, task.values(candidate))
        with Guards() as guards:
            symbols = {n: guards.symbol_of_class(n, sizes[n], r.start, r[-1]) for n, r in self.ranges.items()}
            dag = self.make_dag(symbols)
            own = request.of(dag)
            state = own.replay(steps)
            source = own.source(lower(state, "kernel"), state.steps, {})
        assert isinstance(source, KernelSource)
        loaded = load_object(build_object(source.text, request.device.target), source.name, source.threads)
        shapes = tuple(t.public_shape for t in (*dag.inputs, *dag.outputs))
        return SizedCode(guards, steps, loaded, source.sizes, shapes, source.workspace_bytes)


def compile_sizes(
    workload: Workload, options: WorkloadOptions, sizes: Mapping[str, range | tuple[int, int]]
) -> SizedKernel:
    """Return the kernel of a workload for ranges of some of its integer arguments, the ends of pairs included.

    Raises UsageError for arguments that cannot vary, ranges that are empty or negative, weights, Winograd, reduced
    precision, and targets other than processors.
    """
    ranges = {name: _range(name, given) for name, given in sizes.items()}
    for name, allowed in ranges.items():
        if not allowed or allowed.start < 0 or allowed.step < 1:
            raise UsageError(f"the range of {name} has no size of at least 0 in ascending order: {allowed}")
    if not ranges or options.weights or options.winograd or options.precision != EXACT:
        raise UsageError("a kernel of varying sizes has at least one, and no weights, Winograd or reduced precision")
    target, settings = options.target or "cpu", dict(options.settings or {})
    device = find_device(target, options.threads)
    if device.target.backend.is_gpu:
        raise UsageError(f"kernels of varying sizes are for processors so far, and the target is {device.target.kind}")

    def define_at(numbers: Mapping[str, int]) -> Definition:
        return define(workload, replace(options, settings={**settings, **numbers}))

    smallest = define_at({name: r.start for name, r in ranges.items()})
    return SizedKernel(
        ranges,
        lambda symbols: dag_of_sizes(workload, smallest, symbols),
        lambda numbers: Request(define_at(numbers), device, target),
    )


def _range(name: str, given: object) -> range:
    """Return a range of sizes from a range or a pair of its ends. Raises UsageError for anything else."""
    match given:
        case range():
            return given
        case (int(first), int(last)):
            return range(first, last + 1)
    raise UsageError(f"the sizes of {name} are a range or its ends, as in (1, 4096), got {given!r}")


def _symbols(guards: Guards, sizes: Mapping[str, int], ranges: Mapping[str, range]) -> dict[str, int]:
    return {name: guards.symbol(name, n, ranges[name].start, ranges[name][-1]) for name, n in sizes.items()}


def _typical(size: int, allowed: range) -> int:
    """Return the size that the schedule for this one is chosen for."""
    least = SIZE_CLASSES[class_of(size)]
    return size if size >= least else next((n for n in allowed if n >= least), size)


def _number(number: int, values: Mapping[str, int]) -> int:
    return int(evaluate(form_of(number), values))


def _extent(name: str, symbol: Expr, inputs: Sequence[Tensor]) -> Extent:
    """Return the first extent of an input that is this size. Raises UsageError if there is none."""
    for n, tensor in enumerate(inputs):
        for axis, extent in enumerate(tensor.public_shape):
            if form_of(extent) is symbol:
                return Extent(n, axis)
    raise UsageError(f"{name} is the extent of no input's axis, so that arrays do not tell it: fix it in settings")
