"""Hot swap: a background job makes a faster program for a network that is in use, which replaces it between two calls.

One thread runs one job at a time, because processes would disturb each other's measurements.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from autosched.executor.model import DelegatingModel, Model
from autosched.passes import DUMP, debug_level
from autosched.runtime.spec import ArraySpec

if TYPE_CHECKING:
    pass

DELAY_S = 2.0  # before a network is improved: many are loaded, called a few times and dropped
Job: TypeAlias = Callable[[], None]
T = TypeVar("T")


class HotSwapModel(DelegatingModel):
    """A network whose program is replaced by a faster one between two calls. `model`: the program in use."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.ended = threading.Event()  # set after the background job that makes the faster program

    def swap(self, model: Model) -> None:
        self.model = model

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the background job, `seconds` at most, and return whether it has ended. An error of
        tuning has given a RecordWarning then."""
        return self.ended.wait(seconds)

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not set yet
            raise AttributeError(name)
        return getattr(self.model, name)

    def __call__(self, *arrays: object, out: object = None, **named: object) -> Any:
        return self.model(*arrays, out=out, **named)

    def __repr__(self) -> str:
        return repr(self.model)

    def __reduce__(self) -> Any:
        return self.model.__reduce__()

    @property
    def whole(self) -> Model:
        return self.model

    @property
    def inputs(self) -> tuple[ArraySpec, ...]:  # type: ignore[override]
        return self.model.inputs

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:  # type: ignore[override]
        return self.model.outputs

    @property
    def threads(self) -> int:
        return self.model.threads

    def launch(self, addresses: Sequence[int]) -> None:
        self.model.launch(addresses)


def improve_later(owner: T, improve: Callable[[weakref.ref[T]], None], ended: threading.Event) -> None:
    """Enqueue a job that calls `improve` with a reference to `owner`, unless that is gone DELAY_S from now.

    `ended` is set at the end. An error leaves the owner as it is.
    """
    enqueue(partial(_improve, weakref.ref(owner), improve, ended, time.monotonic() + DELAY_S))


def _improve(
    reference: weakref.ref[T], improve: Callable[[weakref.ref[T]], None], ended: threading.Event, start: float
) -> None:
    try:
        while reference() is not None and (remaining_s := start - time.monotonic()) > 0:
            time.sleep(min(remaining_s, 0.1))
        if reference() is not None:
            improve(reference)
    except Exception as error:  # no caller waits for the thread, and the network in use does not depend on it
        if debug_level() >= DUMP:
            print(f"a network in use is not improved: {error}", file=sys.stderr)
    finally:
        ended.set()


def enqueue(job: Job) -> None:
    """Run a job, which must not raise, after those that were enqueued before."""
    _jobs().put(job)


@cache
def _jobs() -> queue.SimpleQueue[Job]:
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, name="autosched-background", daemon=True).start()
    return jobs
