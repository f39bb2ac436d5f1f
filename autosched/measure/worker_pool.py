"""Workers of a device that measures: a process pool that compiles, and runners, of which one runs at a time."""

from __future__ import annotations

import weakref

from autosched.errors import DeviceError
from autosched.measure.backends import WORKERS, lock_name
from autosched.measure.problem import Problem
from autosched.measure.process import Worker, WorkerError
from autosched.measure.process_pool import ATTEMPTS, ProcessPool
from autosched.measure.protocol import Canary, Failed, LoadData, Samples
from autosched.target import Target, usable_cores

LOAD_DEADLINE_S = 120.0
CANARY_DEADLINE_S = 10.0
RUNNER_LIFE = 600  # requests after which a runner is replaced: linked code leaves a little memory behind
_BUILD_DEADLINE_S = 30.0  # deadline of one compilation


class Runners:
    """The runner in use, and a spare one that replaces it, ready once a runner was lost."""

    def __init__(self, processes: ProcessPool) -> None:
        self._processes = processes
        self._current: Worker | None = None
        self._loaded: Problem | None = None  # the problem of `_current`; None: its canary has not passed yet
        self._spare: Worker | None = None
        self._lost = False  # whether a runner was
        self.canary_s = 0.0  # time of the last canary, one call

    def prepare(self) -> None:
        """Start a runner, and a spare one once a runner was lost, if they are missing; retire an old one. Does not
        wait.

        To be called when nothing is being timed: a starting worker keeps a core busy. Most sessions need no spare.
        """
        if self._current is not None and self._current.n_requests > RUNNER_LIFE:
            self.discard()
        if self._current is None:
            self._promote()
        elif self._spare is None and self._lost:
            self._spare = self._processes.spawn("run")

    def discard(self) -> None:
        """End the runner after a fault."""
        if self._current is not None:
            self._current.kill()
        self._current = None
        self._lost = True

    def ready(self, problem: Problem) -> tuple[Worker, bool]:
        """Return a runner that has loaded `problem` and passed its canary, and whether it was loaded now and holds no
        kernels.

        On return no worker is starting. Raises DeviceError if runner after runner fails its canary.
        """
        if self._spare is not None:
            try:
                self._settle(self._spare)
            except WorkerError:
                self._spare = None
        if self._current is not None and self._loaded is problem and self._current.alive:
            return self._current, False
        reason = ""
        for _ in range(ATTEMPTS):
            if self._current is None or not self._current.alive:
                self._promote()
            assert self._current is not None
            try:
                self._settle(self._current)
                self._begin(self._current, problem)
                self._loaded = problem
                return self._current, True
            except WorkerError as lost:
                reason = str(lost)
                self.discard()
        raise DeviceError(f"{ATTEMPTS} runners in a row failed before any candidate ran, the last: {reason}")

    def _promote(self) -> None:
        spare, self._spare = self._spare, None
        self._current = spare if spare is not None and spare.alive else self._processes.spawn("run")
        self._loaded = None

    @staticmethod
    def _settle(worker: Worker) -> None:
        """Wait for the answer to Setup if it has not come yet."""
        if worker.waiting:
            worker.answer()

    def _begin(self, worker: Worker, problem: Problem) -> None:
        load = LoadData(worker.next_id(), str(problem.directory), problem.inputs, problem.outputs, problem.weights_in)
        reply = worker.ask(load, LOAD_DEADLINE_S)
        if isinstance(reply, Failed):
            if reply.fault != "out_of_memory":
                raise WorkerError(reply.fault, reply.message)
            self._loaded = None
            raise DeviceError(f"the problem's data does not fit into a worker: {reply.message}")
        if self._loaded is not None:  # its canary has passed
            return
        reply = worker.ask(Canary(worker.next_id()), CANARY_DEADLINE_S)
        if isinstance(reply, Failed):
            raise WorkerError(reply.fault, f"the canary failed ({reply.fault}): {reply.message}")
        if not isinstance(reply, Samples):
            raise WorkerError("protocol", f"the canary was answered with {str(reply)[:200]}")
        self.canary_s = min(reply.samples, default=0.0)


class WorkerPool:
    """The workers of a device, which serve the measurers of several problems, one after the other. A context manager;
    `close` ends all workers and removes all their files.

    `threads`: the largest number of threads of a candidate.
    """

    def __init__(self, target: Target, threads: int, build_workers: int | None = None) -> None:
        self.threads = threads
        self.lock = lock_name(target.kind)
        self.launch_build_s = WORKERS[target.kind].launch_build_s
        # One more than cores: a builder that is done waits while its next source is made.
        self.processes = ProcessPool(target, build_workers or usable_cores() + 1, _BUILD_DEADLINE_S)
        self._end = weakref.finalize(self, ProcessPool.close, self.processes)  # also without a call of close
        self.runners = Runners(self.processes)
        self.processes.start(build_workers or usable_cores())
        self.runners.prepare()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers. May be called again."""
        self._end()
