"""A faster program for one that runs: searched for at once, or by a thread while the slower one is in use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from autosched.network.model import Model
from autosched.session.trust import tell

_Job: TypeAlias = Callable[[], None]


def improved(model: Model, budget_s: float) -> Model:
    """The model with kernels that were measured, after so many seconds. Raises what `tune_network` does."""
    from autosched.network.tune import tune_network

    return tune_network(model, budget_s=budget_s).model if model.tasks else model


def improve_later(model: Model, budget_s: float, then: Callable[[Model], None]) -> None:
    """Hands the improved model to `then`, in a thread that has one such search at a time: they would disturb each
    other's measurements. An error becomes a warning, and the model stays in use."""

    def job() -> None:
        try:
            then(improved(model, budget_s))
        except Exception as error:  # nobody waits for it who could be told otherwise
            tell(f"the search for faster kernels beside a running network ended, which runs as it was: {error}")

    _jobs().put(job)


@cache
def _jobs() -> queue.SimpleQueue[_Job]:
    jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, name="autosched-improve", daemon=True).start()
    return jobs
