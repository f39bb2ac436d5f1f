"""A faster program for one that runs: searched for at once, or by a process of its own while the slower one is in use.

That process has the archive of the network and no time but that in which a processor would be idle: it disturbs nobody,
and what it measures beside a busy program is worth less for it, so that only what is faster in whole calls counts.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from autosched.errors import DeviceError, UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.kernel.trust import tell
from autosched.keywords import spelled_out
from autosched.planning.archive import SUFFIX, load_archive
from autosched.runtime.processes import ProcessLost, run_within

SPARE_S = 1800.0  # beyond its budget, for a search that a busy machine lets run only now and then

_Job: TypeAlias = Callable[[], None]


def improved(model: Model, budget_s: float) -> Model:
    """The model with kernels that were measured, after so many seconds. Raises what `tune_network` does."""
    from autosched.network_tuning.results import Effort
    from autosched.network_tuning.tune import tune_network

    return tune_network(model, Effort(budget_s=budget_s)).model if model.tasks else model


def improved_beside(model: Model, budget_s: float) -> Model:
    """As `improved`, by another process in time that nobody else needs. Raises DeviceError where it fails."""
    from autosched.measure.host import ScratchDirectory

    if not model.tasks:
        return model
    target, threads = model.tasks[0].recipe.target_text, model.device.threads
    with ScratchDirectory() as directory:
        given, made = directory / f"given{SUFFIX}", directory / f"made{SUFFIX}"
        model.save(given)
        words = [str(os.getpid()), str(given), str(made), str(budget_s), str(threads), target]
        command = [sys.executable, "-m", "autosched.network_tuning.background_worker", *words]
        try:
            done = run_within(budget_s + SPARE_S, command, env={**os.environ, "PYTHONPATH": _search_path()})
        except ProcessLost as error:
            raise DeviceError(f"its process {error}") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"]
            raise DeviceError(lines[-1])
        choices = load_archive(made)[1]
    return compile_graph(model.original, target, threads, choices)


class ImprovingModel:
    """A network that goes over to a faster program between two calls, once there is one. `model` is the one in use."""

    def __init__(self, model: Model, budget_s: float) -> None:
        self.model = model
        self._ended = threading.Event()
        improve_later(model, budget_s, self._go_over, self._ended.set)

    def __call__(self, *arrays: object, out: object = None, **named: object) -> Any:
        return self.model(*arrays, out=out, **named)

    def wait(self, seconds: float | None = None) -> bool:
        """Whether the search has ended, after so many seconds at most; with a faster program or, as a RecordWarning
        tells then, by an error."""
        return self._ended.wait(seconds)

    def _go_over(self, model: Model) -> None:
        self.model = model


@spelled_out()
def tune_in_background(model: Model, *, budget_s: float = 600.0) -> ImprovingModel:
    """A network to be called in place of `model`. A process searches faster kernels for it, `budget_s` seconds long, in
    time that nobody else needs; records go to the user's database. Raises UsageError for a budget that is none."""
    if not 0 < budget_s < math.inf:
        raise UsageError(f"budget_s is a number of seconds above 0, got {budget_s}")
    return ImprovingModel(model, budget_s)


def improve_later(
    model: Model, budget_s: float, then: Callable[[Model], None], at_end: Callable[[], None] = lambda: None
) -> None:
    """Hands the improved model to `then`, in a thread that has one such search at a time: they would disturb each
    other's measurements. An error becomes a warning, and the model stays in use. `at_end` is called in any case."""

    def job() -> None:
        try:
            then(improved_beside(model, budget_s))
        except Exception as error:  # nobody waits for it who could be told otherwise
            tell(f"the search for faster kernels beside a running network ended, which runs as it was: {error}")
        finally:
            at_end()

    _jobs().put(job)


@cache
def _jobs() -> queue.SimpleQueue[_Job]:
    jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, name="autosched-improve", daemon=True).start()
    return jobs


def _search_path() -> str:
    """PYTHONPATH with the place of this package, wherever the other process begins."""
    return os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
