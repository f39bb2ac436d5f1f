"""Tasks in forked processes with deadlines, so that a crash and a hang are verdicts.

A process serves one task after the other until it dies, is late or has served enough. A task reports the phase that it
enters, so that a process which dies says how far it came. The processes that a task starts itself are of its process
group and end with it. A task during which a process dies that had served others is repeated in a fresh process: the
memory may have been damaged before.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeAlias, TypeVar

from autosched.errors import AutoschedError

Facts: TypeAlias = Mapping[str, Any]
Report: TypeAlias = Callable[[str], None]
T = TypeVar("T")
CONTEXT = multiprocessing.get_context("fork")  # the parent has imported what takes seconds
TASKS_EACH = 25  # that a process serves
LAST_BYTES = 400  # of what a dead process wrote, such as the C library's word about its heap
EXIT_S = 5.0
DEAD = ("crashed", "hung")
PYTHON = "Python"  # the phase of an exception


@dataclass
class Child(Generic[T]):
    """A running process: `served` are its tasks, the last one is in work, `phase` is the last one that was reported,
    `log` what it writes to its streams."""

    process: BaseProcess
    pipe: Connection
    log: Any
    served: list[T] = field(default_factory=list)
    phase: str = "start"
    deadline: float = 0.0

    def give(self, task: T, limit_s: float) -> None:
        self.served.append(task)
        self.phase, self.deadline = "start", time.monotonic() + limit_s
        try:
            self.pipe.send(task)
        except OSError:  # dead already: `facts` says so
            return

    def facts(self) -> Facts | None:
        """The result of the task in work or the verdict on the process; None while neither is there."""
        try:
            while self.pipe.poll(0):
                kind, content = self.pipe.recv()
                if kind == "result":
                    return dict(content)
                self.phase = content
        except (EOFError, OSError):
            self.process.join(EXIT_S)
            code = self.process.exitcode
            died = f"died of {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
            return {"verdict": "crashed", "phase": self.phase, "reason": f"{died} {self._last_words()}".strip()}
        if time.monotonic() < self.deadline:
            return None
        return {"verdict": "hung", "phase": self.phase, "reason": f"no result within the deadline, in {self.phase!r}"}

    def end(self) -> None:
        """Kill the process and those that it started."""
        for kill in (os.killpg, os.kill):
            try:
                if self.process.pid is not None:
                    kill(self.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        self.process.join(EXIT_S)
        self.pipe.close()
        self.log.close()

    def _last_words(self) -> str:
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - LAST_BYTES))
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def run_in_children(
    tasks: Iterable[T], run: Callable[[T, Report], Facts], limit_s: float, n_jobs: int = 1
) -> Iterator[tuple[T, Facts]]:
    """Yield each task with its facts in the order in which they end, `n_jobs` at a time. `run` must return picklable
    facts with a `verdict`; a process that dies or takes more than `limit_s` has "crashed" or "hung". The next task is
    taken from `tasks` when a process is free."""
    left, again = iter(tasks), list[tuple[T, Facts]]()
    running, idle = list[Child[T]](), list[Child[T]]()
    repeated: dict[int, Facts] = {}  # by the process id: what the task was before
    try:
        while True:
            while len(running) < n_jobs:
                if again:
                    task, before = again.pop()
                    child = _start(run)
                    repeated[child.process.pid or 0] = before
                else:
                    try:
                        task = next(left)
                    except StopIteration:
                        break
                    child = idle.pop() if idle else _start(run)
                child.give(task, limit_s)
                running.append(child)
            if not running:
                return
            wait([child.pipe for child in running], max(0.0, min(c.deadline for c in running) - time.monotonic()))
            for child in list(running):
                facts = child.facts()
                if facts is None:
                    continue
                running.remove(child)
                task, first = child.served[-1], repeated.pop(child.process.pid or 0, None)
                is_dead = facts["verdict"] in DEAD and facts["phase"] != PYTHON
                if is_dead or first is not None or len(child.served) >= TASKS_EACH:
                    child.end()
                else:
                    idle.append(child)
                if is_dead and len(child.served) > 1:
                    again.append((task, {**facts, "after": [str(t) for t in child.served[:-1]]}))
                    continue
                yield task, first if first is not None and facts["verdict"] not in DEAD else facts
    finally:
        for child in (*running, *idle):
            child.end()


def _start(run: Callable[[T, Report], Facts]) -> Child[T]:
    here, there = CONTEXT.Pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child
    process = CONTEXT.Process(target=_serve, args=(run, here, there, log.fileno()))
    process.start()
    there.close()
    return Child(process, here, log)


def _serve(run: Callable[[T, Report], Facts], parent: Connection, pipe: Connection, log: int) -> None:
    parent.close()  # else the end of the parent would not be the end of the pipe
    os.setsid()
    sys.stdout.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            os._exit(0)  # destructors of a process whose memory may be damaged are no part of a result
        pipe.send(("result", _facts(task, run, pipe)))


def _facts(task: T, run: Callable[[T, Report], Facts], pipe: Connection) -> Facts:
    try:
        return run(task, lambda phase: pipe.send(("phase", phase)))
    except AutoschedError as error:
        return {"verdict": "refused", "reason": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"verdict": "crashed", "phase": PYTHON, "reason": f"{type(error).__name__}: {error}"[:500]}
