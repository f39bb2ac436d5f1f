"""Compile pool: kernels of a network come from the cache, or processes compile them in parallel and write them there.

A process that dies or does not answer in time costs its kernel one attempt; after the last attempt the kernel is
refused.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

from autosched.errors import NoValidCandidate, UsageError
from autosched.graph.load_progress import report_stage
from autosched.kernel.build import CANDIDATES, NOT_BUILT
from autosched.kernel.device import Device
from autosched.kernel.object_cache import find_object, find_schedule
from autosched.kernel.pool_worker import REPLIES, Bug, BuildKernel, ChooseSchedule, CompileText, Refused
from autosched.kernel.spec import ChosenSchedule, KernelObject, KernelSpec
from autosched.measure.process import Worker, WorkerError, worker_environment
from autosched.measure.process_pool import ProcessPool
from autosched.measure.protocol import Failed, Numbered
from autosched.runtime.disk_cache import read_code, shrink
from autosched.runtime.gate import gate_module
from autosched.runtime.jit import compile_once, thread_modules
from autosched.runtime.versions import code_key
from autosched.target import Target, parse_target, usable_cores

ALONE = 2  # up to so many kernels are built in this process: another one takes as long to start
BUILD_DEADLINE_S = 240.0  # of one kernel: the largest take some 10 s, and other programs may keep the machine busy
LOSSES = 2  # lost processes after which a kernel is refused, if the kernel need not be the reason
KERNELS_EACH = 8  # for which a process is started ahead: it builds so many in the time that its start takes
SPARE_S = 30.0  # seconds that idle processes wait for more kernels, of the next network or of other sizes


Result = TypeVar("Result")
Made = TypeVar("Made", covariant=True)
W = TypeVar("W", bound=Worker)


class _Request(Numbered, Protocol[Made]):
    """A request message of `pool_worker`, which can be run in this process too."""

    def run(self) -> Made: ...


class UnbuiltKernel(NoValidCandidate):
    """No code can be made for the kernel of `kernel_spec`."""

    def __init__(self, kernel_spec: KernelSpec, reason: str) -> None:
        super().__init__(reason)
        self.kernel_spec = kernel_spec


def build_kernels(kernel_specs: Sequence[KernelSpec]) -> tuple[dict[KernelSpec, KernelObject], dict[KernelSpec, str]]:
    """Return the compiled kernels, from the cache or compiled in parallel, and for those without code the reason.

    Raises UsageError for a cache directory that cannot be used.
    """
    return _results(kernel_specs, BuildKernel, find_object)


def choose_schedules(kernel_specs: Sequence[KernelSpec]) -> dict[KernelSpec, ChosenSchedule]:
    """Return the analytic model's schedules, from the cache or chosen in parallel; nothing is compiled.

    Kernels for which no code can be emitted are left out. Raises UsageError for a cache directory that cannot be used.
    """
    return _results(kernel_specs, ChooseSchedule, find_schedule)[0]


def start_processes(target: Target, n_kernels: int) -> None:
    """Start processes for about `n_kernels` kernels that will be built soon, one on each core but this process's.

    It does not wait for them: they take a second, for which a network is planned meanwhile.
    """
    if n := min(usable_cores() - 1, n_kernels // KERNELS_EACH):
        pool = _SPARE.take(target)
        pool.start(n)
        _SPARE.keep(pool)


def compile_entry(ir: str, device: Device) -> bytes:
    """Return the object file of a network's entry point, as `compile_once` does. Where a process waits for kernels, it
    compiles the entry and what it is linked with: LLVM's code generator, which it has used before, takes 25 MB."""
    linked = (*thread_modules(device.threads), gate_module())
    texts = [(ir, device.target), *((text, parse_target("cpu")) for text in linked)]
    missing = [each for each in texts if read_code(code_key(*each)) is None]
    if missing and (pool := _SPARE.waiting(device.target)) is not None:
        with _closed_on_error(pool):
            if pool.has_idle:
                pool.run(iter(missing), lambda id, each: CompileText(id, *each), lambda *_: None)
        _SPARE.keep(pool)
    return compile_once(ir, device.target)


def _results(
    kernel_specs: Sequence[KernelSpec],
    request: Callable[[int, KernelSpec, int], _Request[Result]],
    find: Callable[[KernelSpec], Result | None],
) -> tuple[dict[KernelSpec, Result], dict[KernelSpec, str]]:
    """Return the results, from the cache or of requests, and for kernels without code the reason."""
    results = {kernel_spec: find(kernel_spec) for kernel_spec in kernel_specs}
    missing = [kernel_spec for kernel_spec, result in results.items() if result is None]
    unbuilt: dict[KernelSpec, str] = {}
    if len(missing) > _SOURCE.get().alone:
        unbuilt = _run_in_processes(missing, request)
        results |= {kernel_spec: find(kernel_spec) for kernel_spec in missing}
    for kernel_spec in missing:
        if results[kernel_spec] is None and kernel_spec not in unbuilt:  # few, or dropped from the cache
            try:
                results[kernel_spec] = request(0, kernel_spec, 0).run()
            except NOT_BUILT as error:
                unbuilt[kernel_spec] = str(error)
    if missing:
        shrink()
    return {kernel_spec: result for kernel_spec, result in results.items() if result is not None}, unbuilt


class BuildProcess(Worker):
    """A process that builds kernels."""

    module = "autosched.kernel.pool_worker"
    replies = REPLIES


class IdleBuildProcess(BuildProcess):
    """A process that builds kernels at idle priority (SCHED_IDLE), beside a network that is in use."""

    @classmethod
    def spawn(cls: type[W], directory: Path, log: Path) -> W:
        process = super().spawn(directory, log)
        with suppress(ProcessLookupError):
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        return process


class _SparePool:
    """The pool of the last network, whose processes wait SPARE_S for more kernels."""

    alone = ALONE

    def __init__(self) -> None:
        self._pool: ProcessPool | None = None
        self._lock = threading.Lock()
        self._end: threading.Timer | None = None

    def take(self, target: Target) -> ProcessPool:
        """Return the waiting pool or a new one."""
        return self.waiting(target) or ProcessPool(target, usable_cores(), BUILD_DEADLINE_S, BuildProcess)

    def waiting(self, target: Target) -> ProcessPool | None:
        """Return the waiting pool; None without one, and if it is of the process that this one was forked from, or of
        another environment, which may name another cache."""
        with self._lock:
            pool, self._pool = self._pool, None
        needed = (os.getpid(), worker_environment(os.environ), target.kind, usable_cores())
        if pool is not None:
            if needed == (pool.pid, pool.environment, pool.target.kind, pool.n) and pool.directory.is_dir():
                return pool
            pool.close()
        return None

    def check(self) -> None:
        """Kernels are wanted until their build has ended."""

    def keep(self, pool: ProcessPool) -> None:
        with self._lock:
            waiting, self._pool = self._pool, pool
            if self._end is not None:
                self._end.cancel()
            self._end = threading.Timer(SPARE_S, self.close)
            self._end.daemon = True
            self._end.start()
        if waiting is not None:
            waiting.close()

    def close(self) -> None:
        with self._lock:
            waiting, self._pool = self._pool, None
        if waiting is not None:
            waiting.close()


class NotWanted(Exception):
    """Kernels that are compiled at idle priority are not wanted any more."""


class _IdlePool:
    """A pool of one process at idle priority, which compiles kernels as long as `is_wanted` says so."""

    alone = 0

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        self._is_wanted = is_wanted
        self._pool: ProcessPool | None = None

    def take(self, target: Target) -> ProcessPool:
        if self._pool is None:
            self._pool = ProcessPool(target, 1, BUILD_DEADLINE_S, IdleBuildProcess)
        return self._pool

    def keep(self, pool: ProcessPool) -> None:
        self.check()

    def check(self) -> None:
        if not self._is_wanted():
            raise NotWanted

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


_SPARE = _SparePool()
_SOURCE: ContextVar[_SparePool | _IdlePool] = ContextVar("source of processes", default=_SPARE)
atexit.register(_SPARE.close)


@contextmanager
def idle_builds(is_wanted: Callable[[], bool]) -> Iterator[None]:
    """Let kernels of this context be compiled by one process at idle priority. Raises NotWanted as soon as `is_wanted`
    returns False."""
    source = _IdlePool(is_wanted)
    token = _SOURCE.set(source)
    try:
        yield
    finally:
        _SOURCE.reset(token)
        source.close()


@dataclass(frozen=True)
class _Attempt:
    """A kernel to be compiled. `passed_over`: the number of candidates that were tried, `losses`: that of processes
    which were lost, perhaps not by the candidate's fault."""

    kernel_spec: KernelSpec
    passed_over: int = 0
    losses: int = 0

    def after(self, fault: str) -> _Attempt | None:
        """The next attempt, after the process was lost by a class of `measure.results.FAULTS`; None after the last."""
        is_candidates_fault = fault in ("crash", "out_of_memory", "hang")
        losses = self.losses + (fault not in ("crash", "out_of_memory"))
        again = replace(self, passed_over=self.passed_over + is_candidates_fault, losses=losses)
        return again if again.passed_over < CANDIDATES and losses < LOSSES else None


def _run_in_processes(
    kernel_specs: Sequence[KernelSpec], request: Callable[[int, KernelSpec, int], _Request[object]]
) -> dict[KernelSpec, str]:
    """Run the request of each kernel; return for those without code the reason."""
    unbuilt: dict[KernelSpec, str] = {}
    n_settled = count(1)

    def settle(attempt: _Attempt, reply: Numbered | WorkerError) -> _Attempt | None:
        kernel_spec = attempt.kernel_spec
        if isinstance(reply, Refused):
            raise UsageError(reply.reason)
        if isinstance(reply, Bug):
            raise RuntimeError(f"the kernel of {kernel_spec.request.problem.name} meets a bug:\n{reply.traceback}")
        if isinstance(reply, WorkerError):
            if (again := attempt.after(reply.fault)) is not None:
                return again
            name = kernel_spec.request.problem.name
            unbuilt[kernel_spec] = f"no process could compile the kernel of {name}, the last time because {reply}"
        elif isinstance(reply, Failed):
            unbuilt[kernel_spec] = reply.message
        report_stage("building kernels", next(n_settled), len(kernel_specs))
        return None

    def attempts() -> Iterator[_Attempt]:
        for kernel_spec in kernel_specs:
            source.check()
            yield _Attempt(kernel_spec)

    report_stage("building kernels", 0, len(kernel_specs))
    source = _SOURCE.get()
    pool = source.take(kernel_specs[0].device.target)
    with _closed_on_error(pool):
        pool.run(attempts(), lambda id, a: request(id, a.kernel_spec, a.passed_over), settle)
    source.keep(pool)
    return unbuilt


@contextmanager
def _closed_on_error(pool: ProcessPool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        pool.close()
        raise
