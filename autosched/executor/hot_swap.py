"""Hot swap: a background job makes a faster program for a network that is in use, which replaces it between two calls.

One thread runs one job at a time, because processes would disturb each other's measurements.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from autosched.executor.model import Clocks, Model
from autosched.graph.graph import Array, Graph
from autosched.passes import DUMP, debug_level
from autosched.runtime.spec import ArraySpec

if TYPE_CHECKING:
    from autosched.executor.sized_network import SizedNetwork
    from autosched.planning.execution_plan import NetworkProgram

DELAY_S = 2.0  # before a network is improved: many are loaded, called a few times and dropped
Job: TypeAlias = Callable[[], None]
T = TypeVar("T")


class HotSwapModel(Model):
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
    def original(self) -> Graph:  # type: ignore[override]
        return self.model.original

    @property
    def program(self) -> NetworkProgram:  # type: ignore[override]
        return self.model.program

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

    def with_program(self, original: Graph, program: NetworkProgram) -> Model:
        return self.model.with_program(original, program)

    def with_shared_weights(self, original: Graph, program: NetworkProgram, other: Model | SizedNetwork) -> Model:
        return self.model.with_shared_weights(original, program, other)

    def link_program(self, original: Graph, program: NetworkProgram) -> Model:
        return self.model.link_program(original, program)

    def export(self, path: str | Path) -> list[Path]:
        return self.model.export(path)

    def run_step(self, number: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return self.model.run_step(number, arrays)

    def clocks(self, arrays: Mapping[str, Array]) -> Clocks:
        return self.model.clocks(arrays)


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
