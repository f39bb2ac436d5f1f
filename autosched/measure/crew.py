"""The worker processes of one `Measurer`: builders that compile in parallel, and runners, of which one works."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autosched.errors import DeviceError
from autosched.measure import host
from autosched.measure.host import ScratchDirectory
from autosched.measure.problem import Problem
from autosched.measure.process import Worker, WorkerError, kill_all, wait
from autosched.measure.protocol import Build, Built, Canary, Failed, LoadData, ProtocolError, Samples, Setup
from autosched.measure.results import FAULTS, Failure, Job
from autosched.runtime.gpu.compile import Resources
from autosched.target import Target

START_DEADLINE_S = 60.0  # imports on a cold disk and a loaded machine
LOAD_DEADLINE_S = 120.0
CANARY_DEADLINE_S = 10.0
RUNNER_LIFE = 600  # requests after which a runner is replaced: linked code leaves a little memory behind
_ATTEMPTS = 3
# Why a builder was lost -> the candidate's class.
_BUILD_FAULT = {"hang": "build_timeout", "crash": "build_error"}


class Crew:
    """Spawns workers and ends them all. `close` may be called from a finaliser."""

    def __init__(self, problem: Problem, target: Target, memory_limit: int) -> None:
        self._problem, self._target, self._memory_limit = problem, target, memory_limit
        self._scratch = ScratchDirectory()
        # Linux sends PDEATHSIG when the *thread* that made the child ends, so one thread makes them all and stays.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="autosched-spawner")
        self._workers: list[Worker] = []
        self._n_spawned = 0

    @property
    def directory(self) -> Path:
        return self._scratch.path

    def spawn(self, role: str) -> Worker:
        """A worker that is starting; its `answer` is Done when it is ready. Does not wait."""
        worker = self._spawner.submit(self._start, role).result()
        setup = Setup(
            worker.next_id(),
            role,
            self._target,
            self._memory_limit,
            str(self._problem.directory),
            self._problem.inputs,
            self._problem.outputs,
        )
        worker.request(setup, START_DEADLINE_S)
        return worker

    def _start(self, role: str) -> Worker:
        """In the spawner's thread, so that a Ctrl-C cannot come between a process and its place in the list."""
        self._n_spawned += 1
        worker = Worker.spawn(self.directory, f"{role}{self._n_spawned}")
        self._workers = [w for w in self._workers if w.alive] + [worker]
        return worker

    def close(self) -> None:
        self._spawner.shutdown()
        for worker in self._workers:
            worker.kill()
        self._workers = []
        self._scratch.close()


def abandon() -> None:
    """Kills all workers and removes all scratch directories of this process, which is about to end, whatever it was
    doing. For a signal handler too."""
    kill_all()
    host.remove_all()


class Builders:
    """Up to `n` workers that turn sources into what runners load. `resources`: what a device's kernels take, by key."""

    def __init__(self, crew: Crew, n: int, deadline_s: float) -> None:
        self._crew, self._deadline_s = crew, deadline_s
        self._n = n
        self.resources: dict[str, tuple[Resources, ...]] = {}
        self._n_failed_starts = 0
        self._idle: list[Worker] = []
        self._busy: dict[Worker, tuple[Job, Path] | None] = {}  # None: still starting

    def start(self, n_jobs: int) -> None:
        """Lets as many builders start as `n_jobs` can use, without waiting for them."""
        while len(self._idle) + len(self._busy) < min(self._n, n_jobs):
            self._busy[self._crew.spawn("build")] = None

    def build(self, jobs: Iterator[tuple[Job, Path]]) -> dict[str, Failure]:
        """Writes each job's object to its path; the failures by key. On return all builders are idle.

        `jobs` is asked for the next ones while others compile: making a source takes as long as half a compilation.
        """
        failures: dict[str, Failure] = {}
        repeated: set[str] = set()
        pending: deque[tuple[Job, Path]] = deque()
        more = True
        try:
            while more or pending or self._busy:
                if more and len(pending) <= self._n:
                    following = next(jobs, None)
                    more = following is not None
                    pending += [] if following is None else [following]
                self._idle = [w for w in self._idle if w.alive]
                self.start(len(pending))
                while pending and self._idle:
                    job, path = pending.popleft()
                    failure = self._assign(self._idle[-1], job, path)
                    if failure is not None:
                        failures[job.key] = failure
                if self._busy:
                    wait(list(self._busy), longest_s=0.0 if more and len(pending) <= self._n else float("inf"))
                for worker, task in list(self._busy.items()):
                    failure = self._advance(worker)
                    if failure is None:
                        continue
                    if task is not None and FAULTS[failure.kind].repeated and failure.key not in repeated:
                        repeated.add(failure.key)
                        pending.append(task)
                    else:
                        failures[failure.key] = failure
        except BaseException:
            self._kill_busy()
            raise
        return failures

    def _assign(self, worker: Worker, job: Job, path: Path) -> Failure | None:
        try:
            worker.request(Build(worker.next_id(), job.source, str(path)), self._deadline_s)
        except ProtocolError as error:  # the text is longer than a frame
            return Failure(job.key, "build_error", str(error))
        self._idle.remove(worker)
        self._busy[worker] = job, path
        return None

    def _advance(self, worker: Worker) -> Failure | None:
        task = self._busy[worker]
        job = None if task is None else task[0]
        try:
            reply = worker.poll()
        except WorkerError as lost:
            del self._busy[worker]
            if job is None:
                self._n_failed_starts += 1
                if self._n_failed_starts >= _ATTEMPTS:
                    raise DeviceError(f"build workers do not start: {lost}") from None
                return None
            return Failure(job.key, _BUILD_FAULT.get(lost.fault, lost.fault), f"while compiling: {lost}")
        if reply is None:
            return None
        del self._busy[worker]
        self._idle.append(worker)
        self._n_failed_starts = 0
        if job is not None and isinstance(reply, Built):
            self.resources[job.key] = reply.resources
        if isinstance(reply, Failed):
            if job is None:
                raise DeviceError(f"build workers do not start: {reply.message}")
            return Failure(job.key, reply.fault, reply.message)
        return None

    def _kill_busy(self) -> None:
        for worker in self._busy:
            worker.kill()
        self._busy.clear()


class Runners:
    """The one runner that works, and a spare that is ready to take its place after the first was lost."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._current: Worker | None = None
        self._fresh = True  # `_current` has not loaded the problem yet
        self._spare: Worker | None = None
        self._lost = False  # whether a runner was
        self.canary_s = 0.0  # time of the last canary, one call

    def prepare(self) -> None:
        """Starts what is missing, a runner and, once one was lost, a spare, and retires an old one. Does not wait.

        To be called when nothing is being timed: a starting worker keeps a core busy. Most sessions need no spare.
        """
        if self._current is not None and self._current.n_requests > RUNNER_LIFE:
            self.discard()
        if self._current is None:
            self._promote()
        elif self._spare is None and self._lost:
            self._spare = self._crew.spawn("run")

    def discard(self) -> None:
        """Ends the runner: it has seen a fault."""
        if self._current is not None:
            self._current.kill()
        self._current = None
        self._lost = True

    def ready(self) -> tuple[Worker, bool]:
        """(a runner that has loaded the problem and passed its canary, whether it is another than before).

        When it returns, no worker is starting. Raises DeviceError when runner after runner fails its canary.
        """
        if self._spare is not None:
            try:
                self._settle(self._spare)
            except WorkerError:
                self._spare = None
        if self._current is not None and not self._fresh and self._current.alive:
            return self._current, False
        reason = ""
        for _ in range(_ATTEMPTS):
            if self._current is None or not self._current.alive:
                self._promote()
            assert self._current is not None
            try:
                self._settle(self._current)
                self._begin(self._current)
                self._fresh = False
                return self._current, True
            except WorkerError as lost:
                reason = str(lost)
                self.discard()
        raise DeviceError(f"{_ATTEMPTS} runners in a row failed before any candidate ran, the last: {reason}")

    def _promote(self) -> None:
        spare, self._spare = self._spare, None
        self._current = spare if spare is not None and spare.alive else self._crew.spawn("run")
        self._fresh = True

    @staticmethod
    def _settle(worker: Worker) -> None:
        """Waits for the answer to Setup, if it is still to come."""
        if worker.waiting:
            worker.answer()

    def _begin(self, worker: Worker) -> None:
        reply = worker.ask(LoadData(worker.next_id()), LOAD_DEADLINE_S)
        if isinstance(reply, Failed):
            if reply.fault != "out_of_memory":
                raise WorkerError(reply.fault, reply.message)
            raise DeviceError(f"the problem's data does not fit into a worker: {reply.message}")
        reply = worker.ask(Canary(worker.next_id()), CANARY_DEADLINE_S)
        if isinstance(reply, Failed):
            raise WorkerError(reply.fault, f"the canary failed ({reply.fault}): {reply.message}")
        if not isinstance(reply, Samples):
            raise WorkerError("protocol", f"the canary was answered with {str(reply)[:200]}")
        self.canary_s = min(reply.samples, default=0.0)
