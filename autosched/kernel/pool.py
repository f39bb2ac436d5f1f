"""All kernels of a network: from the cache, or built by processes in parallel and kept there.

A process that dies or does not answer in time costs its kernel one attempt; after its last one the kernel is refused.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autosched.errors import DeviceError, NoValidCandidate, UsageError
from autosched.graph.load_progress import report_stage
from autosched.kernel.object_cache import find_object, keep_object
from autosched.kernel.pool_worker import REPLIES, Bug, MakeKernel, Refused, Unbuilt
from autosched.kernel.spec import CANDIDATES, NOT_BUILT, KernelObject, KernelSpec, make_kernel
from autosched.measure.backends import WORKERS
from autosched.measure.process import Worker, WorkerError, memory_limit, wait, worker_environment
from autosched.measure.protocol import ProtocolError
from autosched.runtime.disk_cache import shrink
from autosched.runtime.state import state_directory
from autosched.target import usable_cores

ALONE = 2  # kernels are built here: a process takes as long to start
BUILD_DEADLINE_S = 240.0  # of one kernel: the largest take some 10 s, and other programs may keep the machine busy
LOSSES = 2  # of processes, by which a kernel is given up, where the kernel need not be the reason
SPARE_S = 30.0  # that processes wait for more kernels, of the next network or of other sizes


class UnbuiltKernel(NoValidCandidate):
    """No code can be made for the kernel of `kernel_spec`."""

    def __init__(self, kernel_spec: KernelSpec, reason: str) -> None:
        super().__init__(reason)
        self.kernel_spec = kernel_spec


def build_kernels(kernel_specs: Sequence[KernelSpec]) -> dict[KernelSpec, KernelObject]:
    """Return the compiled kernels, from the cache or compiled in parallel.

    Raises UnbuiltKernel for a kernel that cannot be compiled, UsageError for a cache directory that cannot be used.
    """
    found = {kernel_spec: find_object(kernel_spec) for kernel_spec in kernel_specs}
    missing = [kernel_spec for kernel_spec, made in found.items() if made is None]
    if len(missing) > ALONE:
        _build_in_processes(missing)
        found |= {kernel_spec: find_object(kernel_spec) for kernel_spec in missing}
    for kernel_spec in missing:
        if found[kernel_spec] is None:  # alone, or what another process threw away
            try:
                made = found[kernel_spec] = make_kernel(kernel_spec)
            except NOT_BUILT as error:
                raise UnbuiltKernel(kernel_spec, str(error)) from error
            keep_object(kernel_spec, made)
    if missing:
        shrink()
    return {kernel_spec: made for kernel_spec, made in found.items() if made is not None}


class BuildProcess(Worker):
    """One process that builds kernels. `origin`: what it was started for, see `_Spares`."""

    module = "autosched.kernel.pool_worker"
    replies = REPLIES
    origin: _Origin


@dataclass(frozen=True)
class _Origin:
    """What tells build processes apart: who started them, their environment, their limit of memory in bytes or 0."""

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


class _Spares:
    """Processes that have built what they were asked for, and wait for more. One that was started by another process,
    before a fork, or in another environment, which may name another cache, is not used again."""

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


_SPARES = _Spares()
atexit.register(_SPARES.end)


@dataclass(frozen=True)
class _Attempt:
    """A kernel to be compiled. `passed_over`: candidates that were tried; `losses`: processes that were lost, perhaps
    not by the candidate's fault."""

    kernel_spec: KernelSpec
    passed_over: int = 0
    losses: int = 0

    def after(self, fault: str) -> _Attempt | None:
        """The next attempt, after the process was lost by a class of `measure.results.FAULTS`; None after the last."""
        is_candidates_fault = fault in ("crash", "out_of_memory", "hang")
        losses = self.losses + (fault not in ("crash", "out_of_memory"))
        again = replace(self, passed_over=self.passed_over + is_candidates_fault, losses=losses)
        return again if again.passed_over < CANDIDATES and losses < LOSSES else None


def _build_in_processes(kernel_specs: Sequence[KernelSpec]) -> None:
    """Builds all that can be built. Raises UnbuiltKernel for the first that cannot."""
    builds = _Builds(kernel_specs)
    try:
        builds.finish()
    except BaseException:
        builds.kill()
        raise
    builds.keep_processes()
    if builds.unbuilt is not None:
        raise builds.unbuilt


class _Builds:
    """Kernels that processes build in parallel. They are all polled here: PDEATHSIG ends a process with the thread that
    has started it."""

    def __init__(self, kernel_specs: Sequence[KernelSpec]) -> None:
        self.unbuilt: UnbuiltKernel | None = None
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
            _SPARES.keep(process)

    def kill(self) -> None:
        for process in (*self._idle, *self._busy):
            process.kill()

    def _begin(self, attempt: _Attempt) -> None:
        """Hand a kernel to a process: after a loss to a new one, as spares die with the thread that started them."""
        spare = None if attempt.losses else _SPARES.take(self._origin)
        process = self._idle.pop() if self._idle else spare or _started(self._origin)
        self._busy[process] = attempt
        try:
            request = MakeKernel(process.next_id(), attempt.kernel_spec, attempt.passed_over)
            process.request(request, BUILD_DEADLINE_S)
        except ProtocolError as error:  # the description is longer than a frame
            self._settle(process, str(error))

    def _advance(self, process: BuildProcess) -> None:
        """What has come of a process's kernel, if anything."""
        attempt = self._busy[process]
        try:
            reply = process.poll()
        except WorkerError as lost:
            del self._busy[process]
            again = attempt.after(lost.fault)
            if again is None:
                name = attempt.kernel_spec.request.problem.name
                self._refuse(
                    attempt.kernel_spec, f"no process could compile the kernel of {name}, the last time because {lost}"
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
        """The process is free; `reason`: why there is no kernel."""
        kernel_spec = self._busy.pop(process).kernel_spec
        self._idle.append(process)
        if reason is not None:
            self._refuse(kernel_spec, reason)

    def _refuse(self, kernel_spec: KernelSpec, reason: str) -> None:
        if self.unbuilt is None:
            self.unbuilt = UnbuiltKernel(kernel_spec, reason)
