"""Specification of a kernel of a network, and its compilation: to an object file for a processor, to source text for a
GPU, whose driver compiles it for the device that is present."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from autosched.codegen.c.source import GpuSource
from autosched.errors import ExpressionError, GraphError, NoValidCandidate, ScheduleError
from autosched.ir.expr import Const
from autosched.kernel.compilation_units import EmittedKernel, ObjectPart, compile_kernel, emit_kernel
from autosched.kernel.device import Device, find_device
from autosched.kernel.request import Request
from autosched.kernel.task import analytic_best, make_task
from autosched.kernel.versions import code_version
from autosched.runtime.disk_cache import key_of
from autosched.runtime.gpu.compile import CompileError
from autosched.schedule import steps_to_json
from autosched.target import GpuFacts
from autosched.tuner.definition import redefine
from autosched.tuner.workload_spec import WorkloadSpec

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.ir.stmt import Func
    from autosched.schedule import Step
    from autosched.tuner.protocols import Candidate

Code = TypeVar("Code")

CANDIDATES = 4  # that are tried for a kernel
NOT_BUILT = (NoValidCandidate, GraphError, ExpressionError, ScheduleError)  # that a kernel has no code


@dataclass(frozen=True)
class KernelObject:
    """Code for one kernel; the fields are those of its `KernelSource`, with an object file for the text, which needs
    those of its `parts`. Of a GPU's the code is that of `kernel.gpu_kernel`. `array_bytes` are those of its inputs
    and outputs, in order. `steps` is its schedule, in JSON; `sketch` and `estimate_s` are what the analytic model took
    and the seconds that it expects, nothing and 0 where the schedule was given."""

    name: str
    array_bytes: tuple[int, ...]
    workspace_bytes: int
    packed_bytes: int
    winograd: int
    steps: str
    code: bytes
    sketch: str = ""
    estimate_s: float = 0.0
    parts: tuple[ObjectPart, ...] = ()

    @property
    def prepare(self) -> str | None:
        """The function that packs the weights; None where there are none."""
        return f"{self.name}.prepare" if self.packed_bytes else None


@dataclass(frozen=True)
class DraftedCode(Generic[Code]):
    """Code with its schedule; of a sketch the model's seconds, see `KernelObject`."""

    code: Code
    array_bytes: tuple[int, ...]
    steps: str
    sketch: str = ""
    estimate_s: float = 0.0


@dataclass(frozen=True)
class KernelSpec:
    """What a kernel of a network is compiled from: its identity in the pool and in the cache.

    `workload`: what it computes. `steps`: its schedule in JSON, empty for the best by the analytic model. `gpu`: facts
    of a GPU, which are read once.
    """

    workload: WorkloadSpec
    target_text: str
    threads: int
    steps: str = ""
    gpu: GpuFacts | None = None

    @cached_property
    def device(self) -> Device:
        if self.gpu is None:
            return find_device(self.target_text, self.threads, runs=False)
        found = find_device(self.target_text, None, runs=False)
        return Device(found.target.with_gpu(self.gpu), self.threads)

    @cached_property
    def key(self) -> str:
        """Differs between kernels that may have other code: by what they compute, where, or by which autosched."""
        return key_of(
            self.workload.text, self.device.target.fingerprint, str(self.threads), self.steps, *code_version()
        )

    @property
    def name(self) -> str:
        """The symbol of the kernel, which no other of any network has."""
        return f"kernel_{self.key}"

    @cached_property
    def request(self) -> Request:
        return Request(redefine(self.workload.text, None), self.device, self.target_text, in_network=True)

    def source(self, place: int = 0) -> DraftedCode[Source]:
        """The code of the schedule that is given or, by its place from 0, of one that the analytic model likes.

        Raises ScheduleError for steps that do not fit, NoValidCandidate where nothing can be generated.
        """
        return self._drafted(place, self.request.source)

    def emitted(self, place: int = 0) -> DraftedCode[EmittedKernel]:
        """As `source`, of a kernel for a processor in pieces."""
        target = self.device.target

        def emit(nest: Func, steps: tuple[Step, ...], values: Mapping[str, int]) -> EmittedKernel:
            return emit_kernel(nest, steps, values, target, self.threads)

        return self._drafted(place, emit)

    def _drafted(
        self, place: int, emit: Callable[[Func, tuple[Step, ...], Mapping[str, int]], Code]
    ) -> DraftedCode[Code]:
        from autosched.lower import lower
        from autosched.schedule import check_target, replay

        if self.steps:
            state = replay(self.request.collapsed, self.steps)
            check_target(state, self.device.target.kind)
            nest = lower(state, self.name)
            return DraftedCode(emit(nest, state.steps, {}), _array_bytes(nest), self.steps)
        task, sketches = make_task(self.request, name=self.name)

        def make(candidate: Candidate) -> tuple[Code, tuple[int, ...]]:
            state = sketches[candidate.sketch].state
            nest = lower(state, self.name)
            return emit(nest, state.steps, task.values(candidate)), _array_bytes(nest)

        candidate, (code, array_bytes) = analytic_best(task, place + 1, make)[-1]
        sketch, row = sketches[candidate.sketch], np.array([candidate.values], np.int64)
        (estimate_s,) = task.model.analytic_latency(candidate.sketch, row)
        steps = steps_to_json(sketch.state, task.values(candidate))
        return DraftedCode(code, array_bytes, steps, sketch.name, float(estimate_s))


def _array_bytes(nest: Func) -> tuple[int, ...]:
    """Of the arrays that a nest has as parameters, whose shapes are numbers."""
    extents = [[dim.value for dim in array.shape if isinstance(dim, Const)] for array in nest.params]
    return tuple(math.prod(map(int, found)) * array.itemsize for found, array in zip(extents, nest.params, strict=True))


def make_kernel(kernel_spec: KernelSpec, passed_over: int = 0) -> KernelObject:
    """Builds a kernel, without the first candidates of the analytic model that are `passed_over`, nor those of which
    the compiler says that they are slow, where there are others.

    Raises NoValidCandidate where no compiler takes its code.
    """
    error: Exception | None = None
    slow: KernelObject | None = None
    for place in range(passed_over, CANDIDATES):
        try:
            if not kernel_spec.device.target.backend.is_gpu:
                return _for_processor(kernel_spec.emitted(place), kernel_spec)
            made, is_slow = _for_gpu(kernel_spec.source(place), kernel_spec)
        except (RuntimeError, CompileError) as failure:
            error = failure
            continue
        if not is_slow:
            return made
        slow = slow or made
        if kernel_spec.steps:  # all candidates are the one
            break
    if slow is not None:
        return slow
    raise NoValidCandidate(f"no candidate of {kernel_spec.request.problem.name} can be compiled: {error}") from error


def _for_processor(drafted: DraftedCode[EmittedKernel], kernel_spec: KernelSpec) -> KernelObject:
    code, parts = compile_kernel(drafted.code, kernel_spec.device.target)
    entries = drafted.code.entries
    return KernelObject(
        entries.name, drafted.array_bytes, entries.workspace_bytes, entries.packed_bytes, entries.winograd,
        drafted.steps, code, drafted.sketch, drafted.estimate_s, parts,
    )  # fmt: skip


def _for_gpu(drafted: DraftedCode[Source], kernel_spec: KernelSpec) -> tuple[KernelObject, bool]:
    """With whether it is slow, as far as a compiler says. Raises CompileError."""
    from autosched.kernel.gpu_kernel import encoded, try_compile, workspace_of

    source, target = drafted.code, kernel_spec.device.target
    assert isinstance(source, GpuSource)
    code = try_compile(source, target)
    _, nbytes = workspace_of(source, target.backend.array_alignment)
    is_slow = code is not None and bool(code.spills or code.warnings)
    made = KernelObject(
        source.name, drafted.array_bytes, nbytes, 0, 0, drafted.steps, encoded(source), drafted.sketch,
        drafted.estimate_s,
    )  # fmt: skip
    return made, is_slow
