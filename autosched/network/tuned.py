"""What tuning a network leaves behind: the network, its tasks, and what it cost; and how far it is meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol

from autosched.errors import UsageError
from autosched.network.turns import network_s
from autosched.tuner.asked import Asked
from autosched.tuner.policy import SearchSetup

if TYPE_CHECKING:
    from autosched.network.model import Model
    from autosched.network.task_search import TaskSearch
    from autosched.runtime.spec import ArraySpec

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Effort:
    """What tuning a network may cost, as `network.tune` has it; the time counts from `started`, on time.monotonic."""

    trials: int | None
    budget_s: float | None
    seed: int
    resume: bool
    started: float


@dataclass(frozen=True)
class TaskResult:
    """A task of a network: `share` of the time that its kernels take together; seconds of one call, in the network at
    the start and the best that was measured; how much was. `fraction_of_roofline` is 1 where nothing can be faster.
    `record_id`: of the best candidate. `error`: why its search ended early; the task keeps the schedule that it had."""

    name: str
    count: int
    share: float
    start_s: float
    best_s: float | None
    trials: int
    failed: int
    fraction_of_roofline: float | None
    record_id: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class NetworkPoint:
    """A step of the tuning curve: after `trials` measurements and `elapsed_s` seconds all kernels of one call took
    `kernels_s` together."""

    trials: int
    elapsed_s: float
    kernels_s: float


@dataclass(frozen=True)
class NetworkEvent:
    """A network's search at one moment. `turn`: the task of the next round. `kernels_s`: what all kernels of one call
    take together, None until all that are worth it have been measured; `start_s` the first that there was. `gain_s`:
    what is expected of a further round of each. `trials` of `most_trials` are done; `eta_s` is the time left at most,
    None without end."""

    tasks: tuple[TaskResult, ...]
    turn: int | None
    trials: int
    most_trials: int | None
    elapsed_s: float
    eta_s: float | None
    start_s: float | None
    kernels_s: float | None
    gain_s: float


class NetworkCallback(Protocol):
    """Watches the search of a network."""

    def on_turn(self, event: NetworkEvent) -> None:
        """Before each round."""

    def on_end(self, event: NetworkEvent) -> None:
        """After the last one."""


@dataclass(frozen=True)
class NetworkResult:
    """The outcome of `tune` for a network. Times in seconds.

    `start_latency_s` and `latency_s` are medians of whole calls before and after, measured side by side, with a 95 %
    interval of the latter; `kernels_s` is the sum over all kernels of a call, timed alone where they were.
    `first_result_s`: until there was a network that runs. `verified`: whether the outputs are as near to the reference
    as `network.check` asks; `max_error`: the largest difference over the largest number.
    """

    model: Model = field(repr=False)
    tasks: tuple[TaskResult, ...]
    trials: int
    failed: int
    wall_s: float
    first_result_s: float
    start_latency_s: float
    latency_s: float
    latency_ci_s: tuple[float, float]
    kernels_s: float
    curve: tuple[NetworkPoint, ...]
    interrupted: bool = False
    verified: bool = False
    max_error: float = math.inf

    def to_json(self) -> dict[str, object]:
        """The object that `tune --json` prints, JSON data."""
        model = self.model

        def ends(specs: Sequence[ArraySpec]) -> list[dict[str, object]]:
            return [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype} for s in specs]

        return {
            "schema_version": SCHEMA_VERSION,
            "model": model.original.name,
            "inputs": ends(model.inputs),
            "outputs": ends(model.outputs),
            "target": model.device.target.fingerprint,
            "threads": model.device.threads,
            "trials": self.trials,
            "failed": self.failed,
            "wall_s": self.wall_s,
            "first_result_s": self.first_result_s,
            "start_latency_s": self.start_latency_s,
            "latency_s": self.latency_s,
            "latency_ci_s": list(self.latency_ci_s),
            "kernels_s": self.kernels_s,
            "arena_bytes": model.arena_bytes,
            "tasks": [asdict(task) for task in self.tasks],
            "curve": [[p.trials, p.elapsed_s, p.kernels_s] for p in self.curve],
            "interrupted": self.interrupted,
            "verified": self.verified,
            "max_error": self.max_error,
        }


def check_tuning(given: Mapping[str, object], setup: object, callbacks: object) -> None:
    """Raises UsageError for what is said of a search for a network, but is of workloads only."""
    plain = {name: value for name, value in given.items() if not value or value == getattr(Asked, name, None)}
    others = [name for name in given if name not in plain and name not in ("target", "threads")]
    if not isinstance(setup, SearchSetup) or setup != SearchSetup(started=setup.started):
        others.append("search")
    if others:
        raise UsageError(f"{others[0]} is of workloads, and not taken for a network: leave it out")
    known = isinstance(callbacks, Sequence) and all(hasattr(c, "on_turn") and hasattr(c, "on_end") for c in callbacks)
    if not known:
        raise UsageError(
            f"callbacks must be a sequence of network callbacks (autosched.network.tuned), got {callbacks!r}"
        )


def task_results(searches: Sequence[TaskSearch]) -> tuple[TaskResult, ...]:
    """How far each task is."""
    total = network_s([search.standing for search in searches])
    return tuple(_task_result(search, total) for search in searches)


def _task_result(search: TaskSearch, total: float) -> TaskResult:
    best_s, best = search.best_s, search.best
    return TaskResult(
        name=search.task.name,
        count=search.task.count,
        share=search.standing.network_s / max(total, 1e-12),
        start_s=search.start_s,
        best_s=best_s,
        trials=len(search.trials),
        failed=sum(trial.failure is not None for trial in search.trials),
        fraction_of_roofline=None if best_s is None else search.bound_s / best_s,
        record_id=None if best is None else best.record_id,
        error=search.error,
    )
