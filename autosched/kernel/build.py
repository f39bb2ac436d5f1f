"""Compilation of a kernel: to object files for a processor, to source text for a GPU.

The driver of the GPU compiles the text when the kernel is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from autosched.codegen.c.source import GpuSource
from autosched.codegen.source import KernelSource
from autosched.errors import AutoschedError, ExpressionError, GraphError, NoValidCandidate, ScheduleError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Const, Expr
from autosched.ir.size import Guards, form_of, value_of
from autosched.kernel.compilation_units import EmittedKernel, compile_kernel, emit_kernel
from autosched.kernel.object_cache import find_schedule
from autosched.kernel.spec import ChosenSchedule, CodeSizes, KernelObject, KernelSpec
from autosched.kernel.task import analytic_best, make_task
from autosched.runtime.disk_cache import key_of
from autosched.runtime.gpu.compile import CompileError
from autosched.runtime.jit import compile_object
from autosched.schedule import steps_to_json

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.ir.stmt import Func
    from autosched.schedule import Step
    from autosched.target import Target
    from autosched.tuner.protocols import Candidate
    from autosched.tuner.sized_workload import SizedWorkload

Code = TypeVar("Code")
Emit = Callable[["Func", "tuple[Step, ...]", Mapping[str, int]], Code]  # of a nest, its steps and their values

CANDIDATES = 4  # the number of candidates of the analytic model that are tried for a kernel
NOT_BUILT = (NoValidCandidate, GraphError, ExpressionError, ScheduleError)  # no code can be emitted for a kernel


@dataclass(frozen=True)
class EmittedCode(Generic[Code]):
    """Code that is not compiled, its schedule, and the bytes of its inputs and outputs in order."""

    code: Code
    schedule: ChosenSchedule
    array_bytes: tuple[int, ...]


def choose_schedule(kernel_spec: KernelSpec, passed_over: int = 0) -> ChosenSchedule:
    """Return the best schedule by the analytic model, after the first `passed_over`, for which code can be emitted.

    Nothing is compiled. Raises the exceptions of NOT_BUILT.
    """
    if kernel_spec.device.target.backend.is_gpu:
        return _emitted(kernel_spec, passed_over, kernel_spec.request.source).schedule
    return _emitted(kernel_spec, passed_over, _emit_units(kernel_spec)).schedule


def build_kernel(kernel_spec: KernelSpec, passed_over: int = 0) -> KernelObject:
    """Compile a kernel from the best schedule by the analytic model, after the first `passed_over`.

    Schedules whose code spills or makes the GPU's compiler warn are taken only if the others do as well. Raises
    NoValidCandidate if the compiler rejects all candidates, and the exceptions of NOT_BUILT.
    """
    error: Exception | None = None
    slow: KernelObject | None = None
    for number in range(passed_over, CANDIDATES):
        try:
            if kernel_spec.sized is not None:
                return _for_sizes(kernel_spec, kernel_spec.sized, number)
            if not kernel_spec.device.target.backend.is_gpu:
                return _for_processor(_emitted(kernel_spec, number, _emit_units(kernel_spec)), kernel_spec)
            kernel, is_slow = _for_gpu(_emitted(kernel_spec, number, kernel_spec.request.source), kernel_spec)
        except (RuntimeError, CompileError) as failure:
            error = failure
            continue
        if not is_slow:
            return kernel
        slow = slow or kernel
        if kernel_spec.steps:  # the specification has the only schedule
            break
    if slow is not None:
        return slow
    raise NoValidCandidate(f"no candidate of {kernel_spec.request.problem.name} can be compiled: {error}") from error


def _emit_units(kernel_spec: KernelSpec) -> Emit[EmittedKernel]:
    """Return the function that emits the compilation units of a kernel for a processor."""
    target, threads = kernel_spec.device.target, kernel_spec.threads
    return lambda nest, steps, values: emit_kernel(nest, steps, values, target, threads)


def _emitted(kernel_spec: KernelSpec, number: int, emit: Emit[Code]) -> EmittedCode[Code]:
    """Emit the schedule of the specification; without one the analytic model's schedule of this number, from 0.

    Raises ScheduleError for steps that do not fit, NoValidCandidate where nothing can be generated.
    """
    if kernel_spec.steps:
        return _with_steps(kernel_spec, ChosenSchedule(kernel_spec.steps), emit)
    if number == 0 and (kept := find_schedule(kernel_spec)) is not None:
        return _with_steps(kernel_spec, kept, emit)
    return _by_model(kernel_spec, number, emit)


def _with_steps(kernel_spec: KernelSpec, schedule: ChosenSchedule, emit: Emit[Code]) -> EmittedCode[Code]:
    from autosched.lower import lower

    state = kernel_spec.request.replay(schedule.steps)
    nest = lower(state, kernel_spec.name)
    return EmittedCode(emit(nest, state.steps, {}), schedule, _array_bytes(nest))


def _by_model(kernel_spec: KernelSpec, number: int, emit: Emit[Code]) -> EmittedCode[Code]:
    from autosched.lower import lower
    from autosched.tuner.policy import FULL, QUICK

    task, sketches = make_task(kernel_spec.request, name=kernel_spec.name)

    def make(candidate: Candidate) -> tuple[Code, tuple[int, ...]]:
        state = sketches[candidate.sketch].state
        nest = lower(state, kernel_spec.name)
        return emit(nest, state.steps, task.values(candidate)), _array_bytes(nest)

    request = kernel_spec.request
    policy = QUICK if request.in_network and not request.device.target.backend.is_gpu else FULL
    candidate, (code, array_bytes) = analytic_best(task, number + 1, make, policy)[-1]
    sketch, row = sketches[candidate.sketch], np.array([candidate.values], np.int64)
    (estimate_s,) = task.model.analytic_latency(candidate.sketch, row)
    steps = steps_to_json(sketch.state, task.values(candidate))
    return EmittedCode(code, ChosenSchedule(steps, sketch.name, float(estimate_s)), array_bytes)


def _array_bytes(nest: Func) -> tuple[int, ...]:
    """Return the bytes of the parameters of a nest, whose shapes are constant."""
    extents = [[dim.value for dim in array.shape if isinstance(dim, Const)] for array in nest.params]
    return tuple(math.prod(map(int, dims)) * array.itemsize for dims, array in zip(extents, nest.params, strict=True))


def _for_processor(emitted: EmittedCode[EmittedKernel], kernel_spec: KernelSpec) -> KernelObject:
    code, units = compile_kernel(emitted.code, kernel_spec.device.target)
    entries = emitted.code.entries
    return KernelObject(
        entries.name, emitted.array_bytes, entries.workspace_bytes, entries.packed_bytes, entries.winograd,
        emitted.schedule, code, units,
    )  # fmt: skip


def _for_sizes(kernel_spec: KernelSpec, sized: SizedWorkload, number: int) -> KernelObject:
    """Return code for all sizes for which the guards of its emission hold, the present ones among them.

    Without a schedule in the specification it has the one for typical sizes, or if that does not fit for the present.
    """
    if kernel_spec.steps:
        return _with_sizes(kernel_spec, sized, ChosenSchedule(kernel_spec.steps))
    chosen = replace(kernel_spec, sized=None)
    try:
        return _with_sizes(kernel_spec, sized, choose_schedule(chosen, number))
    except AutoschedError:
        if kernel_spec.workload == sized.numbered:
            raise
    present = replace(kernel_spec, workload=sized.numbered)
    return _with_sizes(present, sized, choose_schedule(replace(present, sized=None), number))


def _with_sizes(kernel_spec: KernelSpec, sized: SizedWorkload, schedule: ChosenSchedule) -> KernelObject:
    from autosched.lower import lower

    with Guards() as guards:
        request = kernel_spec.request.of(sized.dag(guards))
        state = request.replay(schedule.steps)
        source = request.source(lower(state, kernel_spec.name), state.steps, {})
        code = _sized_code(source, kernel_spec.device.target)
    arrays = (*request.problem.dag.inputs, *request.problem.dag.outputs)
    shapes = tuple(tuple(map(form_of, t.public_shape)) for t in arrays)
    itemsizes = tuple(DTYPES[t.dtype].nbytes for t in arrays)
    workspace = form_of(code.workspace_bytes)
    forms = CodeSizes(tuple(guards.conditions), code.table, shapes, itemsizes, workspace, code.packing)
    array_bytes = tuple(value_of(math.prod(t.public_shape)) * n for t, n in zip(arrays, itemsizes, strict=True))
    return KernelObject(
        source.name, array_bytes, value_of(code.workspace_bytes), code.packed_bytes, code.winograd, schedule, code.code,
        sizes=forms.text(guards.names),
    )  # fmt: skip


@dataclass(frozen=True)
class _SizedCode:
    """Compiled code, or the source for a GPU, for sizes; the fields are those of `KernelObject` and `CodeSizes`."""

    code: bytes
    table: tuple[Expr, ...]
    workspace_bytes: int = 0
    packed_bytes: int = 0
    winograd: int = 0
    packing: str = ""


def _sized_code(source: Source, target: Target) -> _SizedCode:
    """Compile a source for sizes, under the guards of its emission. The table of a GPU has all numbers of the source.

    Raises CompileError where the compiler of this machine rejects it.
    """
    if isinstance(source, KernelSource):
        packed_bytes = int(source.packed_bytes)  # a guard says that packed weights have it
        return _SizedCode(
            compile_object(source.text, target), source.sizes, source.workspace_bytes, packed_bytes, source.winograd,
            _packing(source),
        )  # fmt: skip
    from autosched.kernel.gpu_kernel import encode_source, try_compile, workspace_layout

    try_compile(source, target)
    _, workspace_bytes = workspace_layout(source, target.backend.array_alignment)
    code = encode_source(source.with_numbers(value_of))
    return _SizedCode(code, tuple(map(form_of, source.numbers)), workspace_bytes)


def _packing(source: KernelSource) -> str:
    """Return a digest of the code that packs weights, equal for kernels that pack equally; empty without weights.

    Raises NoValidCandidate where the places of packed weights depend on sizes.
    """
    if source.prepare is None:
        return ""
    own = [part for part in source.ir.split("\n\n") if f"@{source.prepare}" in part.partition("\n")[0]]
    text = "\n\n".join(own).replace(source.name, "")
    if "%sizes" in text:
        raise NoValidCandidate("where packed weights are depends on the sizes")
    return key_of(text)


def _for_gpu(emitted: EmittedCode[Source], kernel_spec: KernelSpec) -> tuple[KernelObject, bool]:
    """Return the kernel, and whether it spills or the compiler of this machine warns. Raises CompileError."""
    from autosched.kernel.gpu_kernel import encode_source, try_compile, workspace_layout

    source, target = emitted.code, kernel_spec.device.target
    assert isinstance(source, GpuSource)
    code = try_compile(source, target)
    _, nbytes = workspace_layout(source, target.backend.array_alignment)
    is_slow = code is not None and bool(code.spills or code.warnings)
    return KernelObject(
        source.name, emitted.array_bytes, nbytes, 0, 0, emitted.schedule, encode_source(source)
    ), is_slow


def emit_source(kernel_spec: KernelSpec) -> Source:
    """Return the code of a kernel as one text. Raises the exceptions of NOT_BUILT."""
    return _emitted(kernel_spec, 0, kernel_spec.request.source).code
