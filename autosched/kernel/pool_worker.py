"""Worker process that builds kernels of networks: `python -m autosched.kernel.pool_worker PARENT_PID`.

Requests and replies are frames of `measure.protocol` with the messages below. If LLVM ends the process, the pool starts
another one, which builds the kernel from the next candidate.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from autosched.errors import AutoschedError
from autosched.kernel.build import NOT_BUILT, build_kernel, choose_schedule
from autosched.kernel.object_cache import keep_object, keep_schedule
from autosched.kernel.spec import ChosenSchedule, KernelObject, KernelSpec
from autosched.kernel.structure_cache import SCHEDULE, keep_decision
from autosched.measure.protocol import Done, Failed, Numbered, Setup
from autosched.measure.worker import serve
from autosched.runtime.jit import compile_once
from autosched.target import Target
from autosched.tuner.gc_pause import pause_gc


@dataclass(frozen=True)
class BuildKernel:
    """Build the kernel of a specification from a candidate after the first `passed_over`, and cache it."""

    id: int
    kernel_spec: KernelSpec
    passed_over: int

    def run(self) -> KernelObject:
        kernel = build_kernel(self.kernel_spec, self.passed_over)
        keep_object(self.kernel_spec, kernel)
        if not self.kernel_spec.steps:
            _keep(self.kernel_spec, kernel.schedule)
        return kernel


@dataclass(frozen=True)
class ChooseSchedule:
    """Choose the schedule of a specification by the analytic model, after the first `passed_over`, and cache it."""

    id: int
    kernel_spec: KernelSpec
    passed_over: int

    def run(self) -> ChosenSchedule:
        schedule = choose_schedule(self.kernel_spec, self.passed_over)
        _keep(self.kernel_spec, schedule)
        return schedule


@dataclass(frozen=True)
class CompileText:
    """Compile a module of LLVM IR for a processor, and cache its object file."""

    id: int
    ir: str
    target: Target

    def run(self) -> bytes:
        return compile_once(self.ir, self.target)


def _keep(kernel_spec: KernelSpec, schedule: ChosenSchedule) -> None:
    keep_schedule(kernel_spec, schedule)
    if not kernel_spec.device.target.backend.is_gpu:  # only kernels of processors take schedules of other sizes
        keep_decision(SCHEDULE, kernel_spec, schedule.steps)


@dataclass(frozen=True)
class Refused:
    """An error that is not the kernel's: the cache cannot be used, for example."""

    id: int
    reason: str


@dataclass(frozen=True)
class Bug:
    """An exception that no input should cause."""

    id: int
    traceback: str


REQUESTS: dict[str, type] = {c.__name__: c for c in (Setup, BuildKernel, ChooseSchedule, CompileText)}
REPLIES: dict[str, type] = {c.__name__: c for c in (Done, Failed, Refused, Bug)}


def _answer(message: BuildKernel | ChooseSchedule | CompileText) -> Numbered:
    """Run a request; Done says that its result is in the cache, Failed that no code can be made for the kernel."""
    try:
        message.run()
    except NOT_BUILT as error:
        return Failed(message.id, "build_error", str(error))
    except AutoschedError as error:
        return Refused(message.id, str(error))
    except MemoryError:
        return Failed(message.id, "out_of_memory", "its build process ran out of memory")
    except Exception:  # a bug: the pool raises it
        return Bug(message.id, traceback.format_exc())
    return Done(message.id)


if __name__ == "__main__":
    with pause_gc():
        raise SystemExit(serve(lambda setup: _answer, REQUESTS))
