"""Pool of worker processes, which carry out tasks in parallel: compilations for the tuner, kernels of networks.

A worker that dies, breaks the protocol or misses its deadline is killed, and another one takes its place.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from autosched.errors import DeviceError, UsageError
from autosched.measure import host
from autosched.measure.host import ScratchDirectory
from autosched.measure.process import Worker, WorkerError, kill_all, memory_limit, wait, worker_environment
from autosched.measure.protocol import Failed, Numbered, ProtocolError, Setup
from autosched.target import Target

START_DEADLINE_S = 60.0  # imports on a cold disk and a loaded machine
ATTEMPTS = 3  # workers that may be lost in a row before any of them was ready

Task = TypeVar("Task")


class ProcessPool:
    """Workers of the class `worker` for a target, of which up to `n` carry out tasks at a time.

    `deadline_s`: seconds that a task may take. `pid`, `environment`: of the process that owns the workers.
    `directory`: scratch files, among them the workers' error logs.
    """

    def __init__(self, target: Target, n: int, deadline_s: float, worker: type[Worker] = Worker) -> None:
        self.pid, self.environment = os.getpid(), worker_environment(os.environ)
        self.target, self.n = target, n
        self._deadline_s, self._worker = deadline_s, worker
        self._scratch = ScratchDirectory()
        self.directory = self._scratch.path
        # Linux sends PDEATHSIG when the *thread* that started the child ends, so one lasting thread starts all.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="autosched-spawner")
        self._workers: list[Worker] = []
        self._numbers = count()
        self._n_failed_starts = 0
        self._idle: list[Worker] = []
        self._busy: dict[Worker, Any] = {}  # the task of each worker, None while it starts

    @property
    def has_idle(self) -> bool:
        """Whether a worker can take a task at once."""
        return any(worker.alive for worker in self._idle)

    def new_object(self) -> Path:
        """Return a path where a worker may write an object; `close` removes it."""
        return self.directory / f"{next(self._numbers)}.o"

    def check_directory(self) -> None:
        """Raise UsageError if the directory was removed: then failures are not the tasks' fault."""
        if not self.directory.is_dir():
            raise UsageError(
                f"{self.directory} was removed while worker processes needed it: leave the files of running processes "
                "alone, and start again"
            )

    def spawn(self, role: str) -> Worker:
        """Start a worker without waiting for it; its `answer` is Done when it is ready."""
        try:
            starting = self._spawner.submit(self._start, role)
        except RuntimeError:  # in an exit handler, before which Python ends the spawner
            worker = self._start(role)
        else:
            worker = starting.result()
        worker.request(Setup(worker.next_id(), role, self.target, memory_limit()), START_DEADLINE_S)
        return worker

    def _start(self, role: str) -> Worker:
        """Start a worker in the spawner's thread, so that Ctrl-C cannot come between its start and its registration."""
        self.check_directory()
        try:
            worker = self._worker.spawn(self.directory, self.directory / f"{role}{next(self._numbers)}.log")
        except OSError as error:
            raise DeviceError(f"no worker process can be started: {error.strerror or error}") from error
        self._workers = [w for w in self._workers if w.alive] + [worker]
        return worker

    def start(self, n_tasks: int) -> None:
        """Start as many workers as `n_tasks` more tasks can use, without waiting for them."""
        n_tasks += sum(task is not None for task in self._busy.values())
        while len(self._idle) + len(self._busy) < min(self.n, n_tasks):
            self._busy[self.spawn("build")] = None

    def run(
        self,
        tasks: Iterator[Task],
        request: Callable[[int, Task], Numbered],
        settle: Callable[[Task, Numbered | WorkerError], Task | None],
    ) -> None:
        """Carry out all tasks; on return all workers are idle.

        `request` gives the message of a task, with a number as its id. `settle` takes the reply or the loss of the
        worker as soon as it is there, and returns None or a task to be carried out next. The next of `tasks` are made
        while others are carried out: making a source takes half as long as compiling it.
        """
        pending: deque[Task] = deque()
        more = True
        try:
            while more or pending or self._busy:
                if more and len(pending) <= self.n:
                    following = next(tasks, None)
                    more = following is not None
                    pending += [] if following is None else [following]
                self._idle = [worker for worker in self._idle if worker.alive]
                self.start(len(pending))
                settled: list[tuple[Task, Numbered | WorkerError]] = []
                while pending and self._idle:
                    task = pending.popleft()
                    refused = self._assign(self._idle[-1], task, request)
                    settled += [] if refused is None else [(task, refused)]
                if self._busy:
                    wait(list(self._busy), longest_s=0.0 if more and len(pending) <= self.n else float("inf"))
                for worker, task in list(self._busy.items()):
                    reply = self._advance(worker)
                    settled += [] if task is None or reply is None else [(task, reply)]
                pending.extendleft(again for task, reply in settled if (again := settle(task, reply)) is not None)
        except BaseException:
            for worker in self._busy:
                worker.kill()
            self._busy.clear()
            raise

    def _assign(self, worker: Worker, task: Task, request: Callable[[int, Task], Numbered]) -> Failed | None:
        """Hand a task to an idle worker; return the failure if its message is longer than a frame."""
        number = worker.next_id()
        try:
            worker.request(request(number, task), self._deadline_s)
        except ProtocolError as error:
            return Failed(number, "build_error", str(error))
        self._idle.remove(worker)
        self._busy[worker] = task
        return None

    def _advance(self, worker: Worker) -> Numbered | WorkerError | None:
        """Return the reply or the loss of a busy worker; None while it is silent."""
        is_starting = self._busy[worker] is None
        try:
            reply = worker.poll()
        except WorkerError as lost:
            del self._busy[worker]
            self.check_directory()
            self._n_failed_starts += is_starting
            if self._n_failed_starts >= ATTEMPTS:
                raise DeviceError(f"build workers do not start: {lost}") from None
            return lost
        if reply is not None:
            del self._busy[worker]
            self._idle.append(worker)
            self._n_failed_starts = 0
            if is_starting and isinstance(reply, Failed):
                raise DeviceError(f"build workers do not start: {reply.message}")
        return reply

    def close(self) -> None:
        """End all workers and remove all files, if this process owns them. May be called again, and in a finaliser."""
        if self.pid == os.getpid():
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
