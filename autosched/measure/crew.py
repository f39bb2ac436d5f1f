"""Worker processes of a device: builders, which compile in parallel, and runners, of which one runs at a time."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from autosched.errors import DeviceError, UsageError
from autosched.measure import host
from autosched.measure.backends import WORKERS, lock_name
from autosched.measure.host import ScratchDirectory
from autosched.measure.problem import Problem
from autosched.measure.process import Worker, WorkerError, kill_all, memory_limit, wait
from autosched.measure.protocol import Build, Built, Canary, Failed, LoadData, ProtocolError, Samples, Setup
from autosched.measure.results import FAULTS, Failure, Job
from autosched.runtime.gpu.compile import Resources
from autosched.target import Target, usable_cores

START_DEADLINE_S = 60.0  # imports on a cold disk and a loaded machine
LOAD_DEADLINE_S = 120.0
CANARY_DEADLINE_S = 10.0
RUNNER_LIFE = 600  # requests after which a runner is replaced: linked code leaves a little memory behind
_BUILD_DEADLINE_S = 30.0  # deadline of one compilation
_ATTEMPTS = 3
# Why a builder was lost -> the candidate's class.
_BUILD_FAULT = {"hang": "build_timeout", "crash": "build_error"}


class Crew:
    """The processes of a worker pool: it spawns workers and ends them all. `close` may be called from a finaliser."""

    def __init__(self, target: Target, memory_limit: int) -> None:
        self._target, self._memory_limit = target, memory_limit
        self._scratch = ScratchDirectory()
        # Linux sends PDEATHSIG when the *thread* that started the child ends, so one lasting thread starts all.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="autosched-spawner")
        self._workers: list[Worker] = []
        self._n_spawned = 0
        self._numbers = count()

    @property
    def directory(self) -> Path:
        return self._scratch.path

    def new_object(self) -> Path:
        """Return a path where a builder may write an object; the crew removes it when it is closed."""
        return self.directory / f"{next(self._numbers)}.o"

    def check_directory(self) -> None:
        """Raise UsageError if the directory was removed: then failures are not the candidates' fault."""
        if not self.directory.is_dir():
            raise UsageError(
                f"{self.directory} was removed while a search needed it: leave the files of running searches alone, "
                "and start the search again"
            )

    def spawn(self, role: str) -> Worker:
        """Start a worker without waiting for it; its `answer` is Done when it is ready."""
        worker = self._spawner.submit(self._start, role).result()
        worker.request(Setup(worker.next_id(), role, self._target, self._memory_limit), START_DEADLINE_S)
        return worker

    def _start(self, role: str) -> Worker:
        """Start a worker in the spawner's thread, so that Ctrl-C cannot come between its start and its registration."""
        self.check_directory()
        self._n_spawned += 1
        log = self.directory / f"{role}{self._n_spawned}.log"
        worker = Worker.spawn(self.directory, log, more={"POCL_CACHE_DIR": str(self.directory / "pocl")})
        self._workers = [w for w in self._workers if w.alive] + [worker]
        return worker

    def close(self) -> None:
        self._spawner.shutdown()
        for worker in self._workers:
            worker.kill()
        self._workers = []
        self._scratch.close()


def abandon() -> None:
    """Kill all workers and remove all scratch directories of this process, which is about to end. A signal handler may
    call this.
    """
    kill_all()
    host.remove_all()


class Builders:
    """Up to `n` workers that compile sources into files that runners load."""

    def __init__(self, crew: Crew, n: int, deadline_s: float) -> None:
        self._crew, self._deadline_s = crew, deadline_s
        self._n = n
        self._n_failed_starts = 0
        self._idle: list[Worker] = []
        self._busy: dict[Worker, tuple[Job, Path] | None] = {}  # None: still starting

    def start(self, n_jobs: int) -> None:
        """Start as many builders as `n_jobs` can use, without waiting for them."""
        while len(self._idle) + len(self._busy) < min(self._n, n_jobs):
            self._busy[self._crew.spawn("build")] = None

    def build(self, jobs: Iterator[tuple[Job, Path]]) -> dict[str, tuple[Resources, ...] | Failure]:
        """Compile each job to its path; return by key the resources of its kernels or the failure. Then all builders
        are idle.

        The next of `jobs` are made while others compile: making a source takes half as long as compiling it.
        """
        answers: dict[str, tuple[Resources, ...] | Failure] = {}
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
                    refused = self._assign(self._idle[-1], job, path)
                    if refused is not None:
                        answers[job.key] = refused
                if self._busy:
                    wait(list(self._busy), longest_s=0.0 if more and len(pending) <= self._n else float("inf"))
                for worker, task in list(self._busy.items()):
                    answer = self._advance(worker)
                    if task is None or answer is None:
                        continue
                    key = task[0].key
                    if isinstance(answer, Failure) and FAULTS[answer.kind].repeated and key not in repeated:
                        repeated.add(key)
                        pending.append(task)
                    else:
                        answers[key] = answer
        except BaseException:
            self._kill_busy()
            raise
        return answers

    def _assign(self, worker: Worker, job: Job, path: Path) -> Failure | None:
        try:
            worker.request(Build(worker.next_id(), job.source, str(path)), self._deadline_s)
        except ProtocolError as error:  # the text is longer than a frame
            return Failure(job.key, "build_error", str(error))
        self._idle.remove(worker)
        self._busy[worker] = job, path
        return None

    def _advance(self, worker: Worker) -> tuple[Resources, ...] | Failure | None:
        """Return the result of a busy worker's job; None while it compiles or starts, and after its start."""
        task = self._busy[worker]
        job = None if task is None else task[0]
        try:
            reply = worker.poll()
        except WorkerError as lost:
            del self._busy[worker]
            self._crew.check_directory()
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
        if isinstance(reply, Failed):
            if job is None:
                raise DeviceError(f"build workers do not start: {reply.message}")
            return Failure(job.key, reply.fault, reply.message)
        return reply.resources if isinstance(reply, Built) else None

    def _kill_busy(self) -> None:
        for worker in self._busy:
            worker.kill()
        self._busy.clear()


class Runners:
    """The runner in use, and a spare one that replaces it, ready once a runner was lost."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
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
            self._spare = self._crew.spawn("run")

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
        for _ in range(_ATTEMPTS):
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
        raise DeviceError(f"{_ATTEMPTS} runners in a row failed before any candidate ran, the last: {reason}")

    def _promote(self) -> None:
        spare, self._spare = self._spare, None
        self._current = spare if spare is not None and spare.alive else self._crew.spawn("run")
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
        self.crew = Crew(target, memory_limit())
        self._end = weakref.finalize(self, Crew.close, self.crew)  # also without a call of close
        # One more than cores: a builder that is done waits while its next source is made.
        self.builders = Builders(self.crew, build_workers or usable_cores() + 1, _BUILD_DEADLINE_S)
        self.runners = Runners(self.crew)
        self.builders.start(build_workers or usable_cores())
        self.runners.prepare()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers. May be called again."""
        self._end()
