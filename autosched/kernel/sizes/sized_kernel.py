"""Kernels of sizes that are known at a call: code for ranges of sizes, which reads them from a table.

The code of a schedule is emitted once with symbols for the sizes (`ir.size`). It is right for the sizes for which the
guards of the emission hold; for others there are more `variants`, in this process and in the disk cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from autosched.errors import UsageError
from autosched.ir.expr import Expr
from autosched.ir.instructions.precision import EXACT
from autosched.ir.size import Guards, class_of, form_of
from autosched.kernel.device import find_device
from autosched.kernel.pool import build_kernels
from autosched.kernel.request import Request
from autosched.kernel.sizes.description import VariantDescription, describe
from autosched.kernel.sizes.stored import tuned_steps
from autosched.kernel.sizes.variants import KernelVariant, KernelVariants, variants_at
from autosched.kernel.spec import KernelSpec
from autosched.runtime.jit import LoadedKernel
from autosched.runtime.kernel import Kernel
from autosched.runtime.spec import ArraySpec, in_order
from autosched.runtime.tensors import Array, address_of
from autosched.te import Tensor
from autosched.te.sizes import at_sizes
from autosched.tuner.definition import Definition, Workload, dag_of_sizes, define
from autosched.tuner.options import WorkloadOptions
from autosched.tuner.sized_workload import OpenWorkload, TracedWorkload, size_symbol

if TYPE_CHECKING:
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.target import GpuFacts

MAX_KERNELS = 256  # choices of sizes that are kept, the last used ones


@dataclass(frozen=True)
class Extent:
    """Where a size is in the arguments: axis `axis` of input `input`."""

    input: int
    axis: int


class _TableKernel(Kernel):
    """A kernel whose last pointer is the table, which it holds."""

    def __init__(self, table: Array, variant: KernelVariant, inputs: Any, outputs: Any, workspace_bytes: int) -> None:
        arrays = (None,) * (len(inputs) + len(outputs))
        assert isinstance(variant.loaded, LoadedKernel)
        super().__init__(variant.loaded, inputs, outputs, workspace_bytes, (*arrays, address_of(table)))
        self._table = table


@dataclass
class SizedKernel:
    """A kernel of any sizes within the `ranges` of a workload: `kernel(A, B)`, `kernel(A, B, out=C)`, as a `Kernel`, on
    a GPU as a `GpuKernel`.

    A call with sizes that no variant is right for compiles one, which takes as long as `compile`, or takes it from the
    disk cache. A call with sizes that are new for an existing variant makes its table, in about a millisecond.

    `variants`: those that this process has, the last MAX_VARIANTS. `of` returns the kernel of given sizes. Schedules
    are those of records in `db`, None: the default, of sizes of the same class, else the analytic model's.
    """

    workload: OpenWorkload = field(repr=False)
    target_text: str = field(repr=False)
    threads: int
    gpu: GpuFacts | None = field(repr=False, default=None)
    db: Path | str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._kernels: dict[tuple[int, ...], Kernel | GpuKernel] = {}
        self._calls: dict[tuple[tuple[int, ...], ...], Callable[..., Any]] = {}
        self._last: Kernel | None = None
        self._lock = threading.Lock()
        smallest = self.workload.smallest
        with Guards() as guards:
            symbols = {name: size_symbol(guards, name, n, self.ranges[name]) for name, n in smallest.items()}
            self.dag = self.workload.make_dag(symbols)
        self.inputs = tuple(t.name for t in self.dag.inputs)
        self._extents = [_extent(name, form_of(size), self.dag.inputs) for name, size in symbols.items()]
        self._first, self._second = self._extents[0].input, self._extents[-1].input
        traced = TracedWorkload.trace(self.workload, smallest)
        kernel_spec = KernelSpec(traced.typical, self.target_text, self.threads, "", self.gpu, traced)
        self._code, self.device = KernelVariants(kernel_spec), kernel_spec.device

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a kernel is machine code of this process, which can be neither copied nor pickled: compile it"
        )

    def __repr__(self) -> str:
        ranges = ", ".join(f"{name} {allowed.start} to {allowed[-1]}" for name, allowed in self.ranges.items())
        return f"<kernel of {self.workload.definition.name}, {ranges}, {len(self.variants)} variants>"

    @property
    def ranges(self) -> Mapping[str, range]:
        return self.workload.ranges

    @property
    def variants(self) -> list[KernelVariant]:
        return self._code.variants

    def __call__(self, *arrays: Any, out: object = None, **named: Any) -> Any:
        if out is not None and not named and self._last is not None and self._last.passes((*arrays, out)):
            return out
        if out is None and not named:
            try:
                call = self._calls[arrays[self._first].shape, arrays[self._second].shape]
            except (AttributeError, IndexError, KeyError, TypeError):
                pass
            else:
                return call(*arrays)
        stream = {"stream": named.pop("stream")} if self.device.target.backend.is_gpu and "stream" in named else {}
        arrays = in_order(self.inputs, arrays, named)
        kernel = self._kernel_of(arrays)
        self._last = kernel if isinstance(kernel, Kernel) else None
        return kernel(*arrays, out=out, **stream)

    def _kernel_of(self, arrays: Sequence[Any]) -> Kernel | GpuKernel:
        try:
            key = tuple([arrays[e.input].shape[e.axis] for e in self._extents])
        except (AttributeError, IndexError):
            key = tuple(r.start for r in self.ranges.values())  # any kernel says what is wrong with the arrays
        kernel = self._kernels.get(key) or self._kernel(key)
        if {self._first, self._second}.issuperset(e.input for e in self._extents):
            self._calls[self._shapes(kernel)] = kernel.__call__
        return kernel

    def _shapes(self, kernel: Kernel | GpuKernel) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the two inputs that tell all sizes."""
        return kernel.inputs[self._first].shape, kernel.inputs[self._second].shape

    def of(self, **sizes: int) -> Kernel | GpuKernel:
        """Return the kernel of these sizes. Raises UsageError for sizes that are missing, unknown or out of range."""
        if set(sizes) != set(self.ranges):
            raise UsageError(
                f"the kernel varies in {', '.join(self.ranges)}, got sizes of {', '.join(sizes) or 'none'}"
            )
        return self._kernel(tuple(sizes[name] for name in self.ranges))

    def _kernel(self, key: tuple[int, ...]) -> Kernel | GpuKernel:
        sizes = dict(zip(self.ranges, map(int, key), strict=True))
        for name, allowed in self.ranges.items():
            if sizes[name] not in allowed:
                step = f" in steps of {allowed.step}" if allowed.step > 1 else ""
                raise UsageError(f"{name} is {sizes[name]}, and may be {allowed.start} to {allowed[-1]}{step}")
        with self._lock:
            kernel = self._kernels.pop(key, None) or self._table_kernel(sizes)
            self._kernels[key] = kernel
            while len(self._kernels) > MAX_KERNELS:
                oldest = self._kernels.pop(next(iter(self._kernels)))
                self._calls.pop(self._shapes(oldest), None)
        return kernel

    def _table_kernel(self, sizes: Mapping[str, int]) -> Kernel | GpuKernel:
        """Return the kernel of sizes. Raises NoValidCandidate if no schedule is legal."""
        symbols = self._code.symbols(sizes)
        if self._code.at(symbols) is None:
            self._add_tuned(sizes)
        variant = variants_at({0: self._code}, sizes)[0]
        table, _, workspace_bytes = variant.sizes.numbers(symbols)
        tensors, n = (*self.dag.inputs, *self.dag.outputs), len(self.dag.inputs)
        shapes = zip(tensors, variant.sizes.shapes_at(symbols), strict=True)
        specs = [ArraySpec(tensor.name, shape, tensor.dtype) for tensor, shape in shapes]
        if isinstance(variant.loaded, LoadedKernel):
            return _TableKernel(np.array(table or [0], np.int64), variant, specs[:n], specs[n:], workspace_bytes)
        from autosched.runtime.gpu.kernel import GpuKernel

        return GpuKernel(variant.loaded, variant.loaded.source.renumbered(table), specs[:n], specs[n:])

    def describe(self) -> list[VariantDescription]:
        """Return the variants as data that can be printed: guards, schedules, and the last sizes that they served."""
        served: dict[str, list[dict[str, int]]] = {}
        for sizes in [dict(zip(self.ranges, key, strict=True)) for key in self._kernels]:
            if (variant := self._code.at(self._code.symbols(sizes))) is not None:
                served.setdefault(variant.kernel.name, []).append(sizes)
        return describe(self.variants, self.ranges, served)

    def _add_tuned(self, sizes: Mapping[str, int]) -> None:
        """Take the steps of records for the class of sizes, if there are some."""
        classes = tuple(map(class_of, sizes.values()))
        steps = None if classes in self._code.steps else tuned_steps(self.db, self.workload, self.device, sizes)
        if steps is not None:
            self._code.steps[classes] = steps

    def request(self, sizes: Mapping[str, int]) -> Request:
        """Return the request of the kernel of exact sizes."""
        return Request(self.workload.define(sizes), self.device, self.target_text)

    def fits(self, steps: str, sizes: Mapping[str, int]) -> bool:
        """Whether steps, which may be those of exact sizes, give code for the class of sizes."""
        kernel_spec = replace(self._code.spec_at(sizes), steps=steps)
        return not build_kernels([kernel_spec])[1]


def compile_sizes(
    workload: Workload,
    options: WorkloadOptions,
    sizes: Mapping[str, range | tuple[int, int]] | None = None,
    db: Path | str | None = None,
) -> SizedKernel:
    """Return the kernel of a workload for ranges of some of its integer arguments, the ends of pairs included; without
    `sizes` for those that its expression declares. Its schedules are those of records of `db`, or the analytic model's.

    Raises UsageError for arguments that cannot vary, ranges that are empty or negative, weights, Winograd, reduced
    precision.
    """
    ranges = {name: _range(name, given) for name, given in (sizes or {}).items()}
    for name, allowed in ranges.items():
        if not allowed or allowed.start < 0 or allowed.step < 1:
            ends = f"{allowed.start} to {allowed.stop - 1}"
            raise UsageError(f"the range of {name} has no size of at least 0 in ascending order: {ends}")
    if options.weights or options.winograd or options.precision != EXACT:
        raise UsageError("a kernel of varying sizes has no weights, Winograd or reduced precision")
    device = find_device(options.target, options.threads)
    opened = _open(workload, options, ranges)
    if not opened.ranges:
        raise UsageError('a kernel of varying sizes has at least one, as in sizes={"M": (1, 4096)}')
    return SizedKernel(opened, options.target or "cpu", device.threads, device.target.gpu, db)


def _open(workload: Workload, options: WorkloadOptions, ranges: Mapping[str, range]) -> OpenWorkload:
    """Return the workload with open sizes: arguments with `ranges`, or those that its expression declares."""

    def define_at(sizes: Mapping[str, int]) -> Definition:
        return define(workload, replace(options, settings={**(options.settings or {}), **sizes}))

    first = define_at({name: allowed.start for name, allowed in ranges.items()})
    declared = first.sizes
    if not declared:
        return OpenWorkload(ranges, first, define_at, lambda symbols: dag_of_sizes(workload, first, symbols))
    if ranges:
        raise UsageError(f"the expression declares its sizes ({', '.join(declared)}): compile it without sizes=")

    def replaced(sizes: Mapping[str, int]) -> Definition:
        return replace(first, dag=at_sizes(first.dag, sizes), shape=tuple(sizes.values()))

    return OpenWorkload(declared, first, replaced, lambda symbols: at_sizes(first.dag, symbols))


def _range(name: str, given: object) -> range:
    """Return a range of sizes from a range or a pair of its ends. Raises UsageError for anything else."""
    match given:
        case range():
            return given
        case (int(first), int(last)):
            return range(first, last + 1)
    raise UsageError(f"the sizes of {name} are a range or its ends, as in (1, 4096), got {given!r}")


def _extent(name: str, symbol: Expr, inputs: Sequence[Tensor]) -> Extent:
    """Return the first extent of an input that is this size. Raises UsageError if there is none."""
    for n, tensor in enumerate(inputs):
        for axis, extent in enumerate(tensor.public_shape):
            if form_of(extent) is symbol:
                return Extent(n, axis)
    raise UsageError(f"{name} is the extent of no input's axis, so that arrays do not tell it: fix it to a number")
