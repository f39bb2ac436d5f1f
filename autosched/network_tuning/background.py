"""Background tuning: a process tunes a network that is in use, and the faster program is swapped in (hot swap).

The process reads an archive of the network and runs at idle priority (SCHED_IDLE), so it does not slow down the program
in use. Its measurements are disturbed by that program; only networks that are faster in whole calls are swapped in.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from autosched.errors import DeviceError, UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.executor.hot_swap import HotSwapModel, enqueue
from autosched.executor.model import Model
from autosched.graph.file_formats import ARCHIVE
from autosched.kernel.trust import warn_user
from autosched.keywords import spelled_out
from autosched.planning.archive import load_archive
from autosched.runtime.processes import ProcessLost, run_within

SPARE_S = 1800.0  # time-out beyond the budget: on a busy machine a process at idle priority is often suspended


def tune_here(model: Model, budget_s: float) -> Model:
    """Tune the model in this process for `budget_s` seconds. Raises what `tune_network` raises."""
    from autosched.network_tuning.results import Effort
    from autosched.network_tuning.tune import tune_network

    return tune_network(model, Effort(budget_s=budget_s)).model if model.tasks else model


def tune_in_process(model: Model, budget_s: float) -> Model:
    """Tune the model for `budget_s` seconds in a process at idle priority. Raises DeviceError if it fails."""
    from autosched.measure.host import ScratchDirectory

    if not model.tasks:
        return model
    target, threads = model.tasks[0].kernel_spec.target_text, model.device.threads
    with ScratchDirectory() as directory:
        archive, tuned_archive = directory / f"given{ARCHIVE}", directory / f"tuned{ARCHIVE}"
        model.save(archive)
        arguments = [str(os.getpid()), str(archive), str(tuned_archive), str(budget_s), str(threads), target]
        command = [sys.executable, "-m", "autosched.network_tuning.background_worker", *arguments]
        try:
            done = run_within(budget_s + SPARE_S, command, env={**os.environ, "PYTHONPATH": _search_path()})
        except ProcessLost as error:
            raise DeviceError(f"its process {error}") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"]
            raise DeviceError(lines[-1])
        choices = load_archive(tuned_archive)[1]
    return compile_graph(model.original, target, threads, choices)


@spelled_out()
def tune_in_background(model: Model, *, budget_s: float = 600.0) -> HotSwapModel:
    """Tune a network in a process at idle priority for `budget_s` seconds, while it is in use.

    Returns a `HotSwapModel` to call in place of `model`; its program is replaced by the tuned one between two calls.
    Records go to the user's database. Raises UsageError unless `budget_s` is a positive number.
    """
    if not 0 < budget_s < math.inf:
        raise UsageError(f"budget_s is a number of seconds above 0, got {budget_s}")
    net = HotSwapModel(model)
    enqueue_tuning(model, budget_s, net.swap, net.ended.set)
    return net


def enqueue_tuning(
    model: Model, budget_s: float, on_result: Callable[[Model], None], on_end: Callable[[], None] = lambda: None
) -> None:
    """Enqueue the model for background tuning, and call `on_result` with the tuned one.

    Models are tuned one at a time. An error becomes a warning. `on_end` is called in any case.
    """

    def job() -> None:
        try:
            on_result(tune_in_process(model, budget_s))
        except Exception as error:  # no caller waits for the thread
            warn_user(f"the search for faster kernels beside a running network ended, which runs as it was: {error}")
        finally:
            on_end()

    enqueue(job)


def _search_path() -> str:
    """Return PYTHONPATH with the folder of this package, for any working directory of the process."""
    return os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
