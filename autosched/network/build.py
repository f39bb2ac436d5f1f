"""All kernels of a network: from the cache, or built by processes in parallel and kept there."""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO

from autosched.errors import NoValidCandidate, UsageError
from autosched.measure.process import worker_environment
from autosched.network.kept_files import shrink
from autosched.network.object_cache import find_object, keep_object
from autosched.network.recipe import CANDIDATES, NOT_BUILT, KernelObject, Recipe, make_kernel

ALONE = 2  # kernels are built here: a process takes as long to start
SPARE_S = 30.0  # that processes wait for more kernels, of the next network or of other sizes


class UnbuiltKernel(NoValidCandidate):
    """No code can be made for the kernel of `recipe`."""

    def __init__(self, recipe: Recipe, reason: str) -> None:
        super().__init__(reason)
        self.recipe = recipe


def build_kernels(recipes: Sequence[Recipe]) -> dict[Recipe, KernelObject]:
    """The kernels of all recipes. Raises UnbuiltKernel for one that cannot be built, UsageError for a directory that
    cannot be used."""
    found = {recipe: find_object(recipe) for recipe in recipes}
    missing = [recipe for recipe, made in found.items() if made is None]
    if len(missing) > ALONE:
        _build_in_processes(missing)
        found |= {recipe: find_object(recipe) for recipe in missing}
    for recipe in missing:
        if found[recipe] is None:  # alone, or what another process threw away
            try:
                made = found[recipe] = make_kernel(recipe)
            except NOT_BUILT as error:
                raise UnbuiltKernel(recipe, str(error)) from error
            keep_object(recipe, made)
    if missing:
        shrink()
    return {recipe: made for recipe, made in found.items() if made is not None}


def _build_in_processes(recipes: Sequence[Recipe]) -> None:
    jobs: queue.SimpleQueue[Recipe] = queue.SimpleQueue()
    for recipe in recipes:
        jobs.put(recipe)
    n = min(len(os.sched_getaffinity(0)), len(recipes))
    builders = [_Builder(jobs, _SPARES.take() or _started()) for _ in range(n)]
    try:
        for builder in builders:
            builder.start()
        for builder in builders:
            builder.join()
    except BaseException:
        for builder in builders:
            builder.end()
        raise
    for builder in builders:
        if builder.error is not None:
            raise builder.error


class _Spares:
    """Processes that have built what they were asked for, and wait for more. One that was started by another process,
    before a fork, or in another environment, which may name another cache, is not used again."""

    def __init__(self) -> None:
        self._waiting: list[tuple[tuple[int, dict[str, str]], subprocess.Popen[bytes]]] = []
        self._lock = threading.Lock()
        self._end: threading.Timer | None = None

    def take(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            for n, (origin, process) in enumerate(self._waiting):
                if origin == _origin() and process.poll() is None:
                    return self._waiting.pop(n)[1]
        return None

    def keep(self, process: subprocess.Popen[bytes]) -> None:
        origin = _origin()
        if any(other != origin for other, _ in self._waiting):
            self.end()
        with self._lock:
            self._waiting.append((origin, process))
            if self._end is not None:
                self._end.cancel()
            self._end = threading.Timer(SPARE_S, self.end)
            self._end.daemon = True
            self._end.start()

    def end(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for (pid, _), process in waiting:
            if pid == os.getpid():
                _kill(process)


def _origin() -> tuple[int, dict[str, str]]:
    return os.getpid(), worker_environment(os.environ)


_SPARES = _Spares()
atexit.register(_SPARES.end)


class _Builder(threading.Thread):
    """Hands jobs to a process of its own, one after the other, and starts another process where LLVM has ended it."""

    def __init__(self, jobs: queue.SimpleQueue[Recipe], process: subprocess.Popen[bytes]) -> None:
        super().__init__(name="autosched-builder", daemon=True)
        self.error: Exception | None = None
        self._jobs = jobs
        self._given = self._process = process
        self._ended = False

    def run(self) -> None:
        try:
            while self.error is None and not self._ended:
                self._build(self._jobs.get_nowait())
        except queue.Empty:
            self._leave()
        except UnbuiltKernel as error:
            self.error = error
            self._leave()
        except Exception as error:
            self.error = error
            self.end()

    def _leave(self) -> None:
        """The process waits for more, unless this thread has started it: then they end together."""
        if self._process is self._given and not self._ended:
            _SPARES.keep(self._process)
        else:
            self.end()

    def end(self) -> None:
        self._ended = True
        _kill(self._process)

    def _build(self, recipe: Recipe) -> None:
        job: dict[str, object] = {
            "spec": recipe.spec,
            "target": recipe.target_text,
            "threads": recipe.threads,
            "steps": recipe.steps,
        }
        job["gpu"] = None if recipe.gpu is None else asdict(recipe.gpu)
        for passed_over in range(CANDIDATES):
            answer = self._ask({**job, "passed_over": passed_over})
            if answer is not None or self._ended:
                break
        if answer is None:
            raise UnbuiltKernel(recipe, f"LLVM ends the process that compiles {recipe.request.problem.name}")
        if "error" in answer:
            raise UnbuiltKernel(recipe, answer["error"])
        if "refused" in answer:
            raise UsageError(answer["refused"])
        if "bug" in answer:
            raise RuntimeError(f"the kernel of {recipe.request.problem.name} meets a bug:\n{answer['bug']}")

    def _ask(self, job: dict[str, object]) -> dict[str, str] | None:
        """The answer of the process, None if it ended."""
        if self._process.poll() is not None:
            self._process = _started()
        to, answers = _pipes(self._process)
        try:
            to.write(json.dumps(job).encode() + b"\n")
            to.flush()
            line = answers.readline()
        except OSError:
            line = b""
        if not line:
            self._process.wait()
            return None
        answer: dict[str, str] = json.loads(line)
        return answer


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "autosched.network.worker", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tempfile.gettempdir(),
        env=worker_environment(os.environ),
        start_new_session=True,
    )


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
