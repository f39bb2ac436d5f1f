"""Compile pool: kernels of a network come from the cache, or processes compile them in parallel and write them there.

A process that dies or does not answer in time costs its kernel one attempt; after the last attempt the kernel is
refused.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from autosched.errors import DeviceError, NoValidCandidate, UsageError
from autosched.graph.load_progress import report_stage
from autosched.kernel.build import CANDIDATES, NOT_BUILT
from autosched.kernel.object_cache import find_object, find_schedule
from autosched.kernel.pool_worker import REPLIES, Bug, BuildKernel, ChooseSchedule, Refused, Unbuilt
from autosched.kernel.spec import ChosenSchedule, KernelObject, KernelSpec
from autosched.measure.backends import WORKERS
from autosched.measure.process import Worker, WorkerError, memory_limit, wait, worker_environment
from autosched.measure.protocol import Numbered, ProtocolError
from autosched.runtime.disk_cache import shrink
from autosched.runtime.state import state_directory
from autosched.target import usable_cores

ALONE = 2  # up to so many kernels are built in this process: another one takes as long to start
BUILD_DEADLINE_S = 240.0  # of one kernel: the largest take some 10 s, and other programs may keep the machine busy
LOSSES = 2  # lost processes after which a kernel is refused, if the kernel need not be the reason
SPARE_S = 30.0  # seconds that idle processes wait for more kernels, of the next network or of other sizes


Result = TypeVar("Result")
Made = TypeVar("Made", covariant=True)


class _Request(Numbered, Protocol[Made]):
    """A request message of `pool_worker`, which can be run in this process too."""

    def run(self) -> Made: ...


class UnbuiltKernel(NoValidCandidate):
    """No code can be made for the kernel of `kernel_spec`."""

    def __init__(self, kernel_spec: KernelSpec, reason: str) -> None:
        super().__init__(reason)
        self.kernel_spec = kernel_spec


def build_kernels(kernel_specs: Sequence[KernelSpec]) -> dict[KernelSpec, KernelObject]:
    """Return the compiled kernels, from the cache or compiled in parallel.

    Raises UnbuiltKernel for a kernel that cannot be compiled, UsageError for a cache directory that cannot be used.
    """
    kernels, unbuilt = _results(kernel_specs, BuildKernel, find_object)
    for kernel_spec, reason in unbuilt.items():
        raise UnbuiltKernel(kernel_spec, reason)
    return kernels


def choose_schedules(kernel_specs: Sequence[KernelSpec]) -> dict[KernelSpec, ChosenSchedule]:
    """Return the analytic model's schedules, from the cache or chosen in parallel; nothing is compiled.

    Kernels for which no code can be emitted are left out. Raises UsageError for a cache directory that cannot be used.
    """
    return _results(kernel_specs, ChooseSchedule, find_schedule)[0]


def _results(
    kernel_specs: Sequence[KernelSpec],
    request: Callable[[int, KernelSpec, int], _Request[Result]],
    find: Callable[[KernelSpec], Result | None],
) -> tuple[dict[KernelSpec, Result], dict[KernelSpec, str]]:
    """Return the results, from the cache or of requests, and for kernels without code the reason."""
    results = {kernel_spec: find(kernel_spec) for kernel_spec in kernel_specs}
    missing = [kernel_spec for kernel_spec, result in results.items() if result is None]
    unbuilt: dict[KernelSpec, str] = {}
    if len(missing) > ALONE:
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
    """A process that builds kernels. `origin`: who started it and in which environment, see `_IdleProcesses`."""

    module = "autosched.kernel.pool_worker"
    replies = REPLIES
    origin: _Origin


@dataclass(frozen=True)
class _Origin:
    """What a build process must share with its user: starting process, environment, memory limit in bytes (0: none)."""

    pid: int
    environment: dict[str, str]
    memory_limit: int


def _origin(kernel_specs: Sequence[KernelSpec]) -> _Origin:
    limited = all(WORKERS[kernel_spec.device.target.kind].has_limit for kernel_spec in kernel_specs)
    return _Origin(os.getpid(), worker_environment(os.environ), memory_limit() if limited else 0)


def _started(origin: _Origin) -> BuildProcess:
    try:  # not in a directory that others can write: Python looks for modules in its working directory first
        process = BuildProcess.spawn(state_directory(), Path(os.devnull), (str(origin.memory_limit),))
    except OSError as error:
        raise DeviceError(f"no process can be started to build kernels: {error.strerror or error}") from error
    process.origin = origin
    return process


class _IdleProcesses:
    """Idle build processes, which wait for more kernels.

    A process that was started before a fork, or in another environment, which may name another cache, is not reused.
    """

    def __init__(self) -> None:
        self._waiting: list[BuildProcess] = []
        self._lock = threading.Lock()
        self._end: threading.Timer | None = None

    def take(self, origin: _Origin) -> BuildProcess | None:
        with self._lock:
            for n, process in enumerate(self._waiting):
                if origin == process.origin and process.alive:
                    return self._waiting.pop(n)
        return None

    def keep(self, process: BuildProcess) -> None:
        if any(other.origin != process.origin for other in self._waiting):
            self.end()
        with self._lock:
            self._waiting.append(process)
            if self._end is not None:
                self._end.cancel()
            self._end = threading.Timer(SPARE_S, self.end)
            self._end.daemon = True
            self._end.start()

    def end(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for process in waiting:
            if process.origin.pid == os.getpid():
                process.kill()


_IDLE = _IdleProcesses()
atexit.register(_IDLE.end)


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
    builds = _Builds(kernel_specs, request)
    try:
        builds.finish()
    except BaseException:
        builds.kill()
        raise
    builds.keep_processes()
    return builds.unbuilt


class _Builds:
    """Requests that processes run in parallel, one for each kernel.

    One thread starts and polls all processes: PDEATHSIG ends a process with the thread that has started it.
    """

    def __init__(
        self, kernel_specs: Sequence[KernelSpec], request: Callable[[int, KernelSpec, int], _Request[object]]
    ) -> None:
        self.unbuilt: dict[KernelSpec, str] = {}
        self._request = request
        self._origin = _origin(kernel_specs)
        self._n, self._total = min(usable_cores(), len(kernel_specs)), len(kernel_specs)
        self._waiting = deque(map(_Attempt, kernel_specs))
        self._idle: list[BuildProcess] = []
        self._busy: dict[BuildProcess, _Attempt] = {}

    def finish(self) -> None:
        while self._waiting or self._busy:
            while self._waiting and len(self._busy) < self._n:
                self._begin(self._waiting.popleft())
            report_stage("building kernels", self._total - len(self._waiting) - len(self._busy), self._total)
            if self._busy:
                wait([*self._busy])
            for process in [*self._busy]:
                self._advance(process)

    def keep_processes(self) -> None:
        for process in self._idle:
            _IDLE.keep(process)

    def kill(self) -> None:
        for process in (*self._idle, *self._busy):
            process.kill()

    def _begin(self, attempt: _Attempt) -> None:
        """Hand a kernel to a process: after a loss to a new one, as spares die with the thread that started them."""
        spare = None if attempt.losses else _IDLE.take(self._origin)
        process = self._idle.pop() if self._idle else spare or _started(self._origin)
        self._busy[process] = attempt
        try:
            request = self._request(process.next_id(), attempt.kernel_spec, attempt.passed_over)
            process.request(request, BUILD_DEADLINE_S)
        except ProtocolError as error:  # the description is longer than a frame
            self._settle(process, str(error))

    def _advance(self, process: BuildProcess) -> None:
        """Handle the reply or the loss of a process, if there is any."""
        attempt = self._busy[process]
        try:
            reply = process.poll()
        except WorkerError as lost:
            del self._busy[process]
            again = attempt.after(lost.fault)
            if again is None:
                name = attempt.kernel_spec.request.problem.name
                self.unbuilt[attempt.kernel_spec] = (
                    f"no process could compile the kernel of {name}, the last time because {lost}"
                )
            else:
                self._waiting.appendleft(again)
            return
        if isinstance(reply, Refused):
            raise UsageError(reply.reason)
        if isinstance(reply, Bug):
            raise RuntimeError(
                f"the kernel of {attempt.kernel_spec.request.problem.name} meets a bug:\n{reply.traceback}"
            )
        if reply is not None:
            self._settle(process, reply.reason if isinstance(reply, Unbuilt) else None)

    def _settle(self, process: BuildProcess, reason: str | None) -> None:
        """Mark a process as idle. `reason`: why its kernel has no code, None if it has."""
        kernel_spec = self._busy.pop(process).kernel_spec
        self._idle.append(process)
        if reason is not None:
            self.unbuilt[kernel_spec] = reason
