"""What tuning networks leaves behind: the networks, their tasks, and what it cost; and how far it is meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from autosched.errors import UsageError
from autosched.network_tuning.objectives import AskedObjective, asked_objective
from autosched.network_tuning.strategies import DEFAULT, strategy_named
from autosched.network_tuning.task_scheduler import TurnRules
from autosched.network_tuning.task_state import Standing, total
from autosched.tuner.options import Asked
from autosched.tuner.policy import SearchSetup
from autosched.tuner.session import Settings

if TYPE_CHECKING:
    from autosched.executor.model import Model
    from autosched.network_tuning.task_tuner import TaskSearch
    from autosched.planning.extract_tasks import NetworkTask
    from autosched.planning.fusion_records import FusionTimes
    from autosched.runtime.spec import ArraySpec

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Effort:
    """What tuning networks may cost, and where it goes.

    At most `trials` measurements and `budget_s` seconds since `started` (on time.monotonic; None: now), drawn by
    `seed`; with neither, until no task promises half a percent. `resume` goes on from the measurements on record, which
    count as trials. `strategy`: of STRATEGIES. `objective`: what is made small, see `network.objectives`.

    Raises UsageError for numbers that make no sense, and for what is no strategy or objective.
    """

    trials: int | None = None
    budget_s: float | None = None
    seed: int = 0
    resume: bool = False
    started: float | None = None
    strategy: str = DEFAULT
    objective: str | Callable[[dict[str, float]], float] = "sum"

    def __post_init__(self) -> None:
        _ = self.settings, self.asked
        strategy_named(self.strategy)
        if not isinstance(self.resume, bool):
            raise UsageError(f"resume must be True or False, got {self.resume!r}")

    @cached_property
    def asked(self) -> AskedObjective:
        return asked_objective(self.objective)

    @property
    def settings(self) -> Settings:
        """The numbers, as a search for a workload checks them."""
        return Settings(1 if self.trials is None else self.trials, self.budget_s, self.seed)

    @property
    def rules(self) -> TurnRules:
        """By which tasks take turns. Where there are seconds, these are what rounds cost, else measurements."""
        strategy, numbers = strategy_named(self.strategy), self.settings
        if numbers.budget_s is None and self.trials is not None:
            return TurnRules(strategy, float(numbers.trials), in_trials=True)
        return TurnRules(strategy, numbers.budget_s)


@dataclass(frozen=True)
class TaskResult:
    """A task of a network: `share` of the time that its kernels take together; seconds of one call, in the network at
    the start and the best that was measured; how much was, with what is on record. `fraction_of_roofline` is 1 where
    nothing can be faster. `record_id`: of the best candidate. `error`: why its search ended early; the task keeps the
    schedule that it had."""

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

    @property
    def now_s(self) -> float:
        """Of a call: the best time, or what it took in the network at the start."""
        return self.start_s if self.best_s is None else self.best_s


@dataclass(frozen=True)
class NetworkPoint:
    """A step of the tuning curve: after `trials` measurements and `elapsed_s` seconds all kernels of one call took
    `kernels_s` together."""

    trials: int
    elapsed_s: float
    kernels_s: float


@dataclass(frozen=True)
class SessionPoint:
    """As a NetworkPoint, of all networks that are tuned together: `latencies` in their order."""

    trials: int
    elapsed_s: float
    latencies: tuple[float, ...]

    def of(self, network: int) -> NetworkPoint:
        return NetworkPoint(self.trials, self.elapsed_s, self.latencies[network])


@dataclass(frozen=True)
class NetworkEvent:
    """A search for networks at one moment. `turn`: the task of the next round. `kernels_s`: what all kernels of one
    call of each take together, None until all that are worth it have been measured; `start_s` the first that there was.
    `gain`: what is expected of a further round of each task, as a fraction of the objective. `trials` of `most_trials`
    are done; `eta_s` is the time left at most, None without end."""

    tasks: tuple[TaskResult, ...]
    turn: int | None
    trials: int
    most_trials: int | None
    elapsed_s: float
    eta_s: float | None
    start_s: float | None
    kernels_s: float | None
    gain: float


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
    `first_result_s`: until there was a network that runs. `resumed` of the `trials` are on record from earlier runs; of
    networks that are tuned together, these and the time are those of all. `verified`: whether the outputs are as near
    to the reference as `network.check` asks; `max_error`: the largest difference over the largest number. `parts`:
    those that were timed in two forms, and which was kept.
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
    name: str = ""
    strategy: str = DEFAULT
    objective: str = "sum"
    resumed: int = 0
    interrupted: bool = False
    verified: bool = False
    max_error: float = math.inf
    parts: tuple[FusionTimes, ...] = ()

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
            "resumed": self.resumed,
            "failed": self.failed,
            "strategy": self.strategy,
            "objective": self.objective,
            "wall_s": self.wall_s,
            "first_result_s": self.first_result_s,
            "start_latency_s": self.start_latency_s,
            "latency_s": self.latency_s,
            "latency_ci_s": list(self.latency_ci_s),
            "kernels_s": self.kernels_s,
            "arena_bytes": model.arena_bytes,
            "tasks": [asdict(task) for task in self.tasks],
            "parts": [part.to_json() for part in self.parts],
            "curve": [[p.trials, p.elapsed_s, p.kernels_s] for p in self.curve],
            "interrupted": self.interrupted,
            "verified": self.verified,
            "max_error": self.max_error,
        }


@dataclass(frozen=True)
class NetworksResult:
    """The outcome of `tune` for several networks. `start_value` and `value`: of the objective, for the latencies of
    whole calls before and after."""

    networks: tuple[NetworkResult, ...]
    start_value: float
    value: float

    @property
    def interrupted(self) -> bool:
        return any(network.interrupted for network in self.networks)

    @property
    def verified(self) -> bool:
        return all(network.verified for network in self.networks)

    def to_json(self) -> dict[str, object]:
        """The object that `tune --json` prints for several networks, JSON data: theirs is in `networks`, by name."""
        first = self.networks[0]
        return {
            "schema_version": SCHEMA_VERSION,
            "strategy": first.strategy,
            "objective": first.objective,
            "start_value": self.start_value,
            "value": self.value,
            "trials": first.trials,
            "resumed": first.resumed,
            "failed": first.failed,
            "wall_s": first.wall_s,
            "networks": {network.name: network.to_json() for network in self.networks},
            "interrupted": self.interrupted,
            "verified": self.verified,
        }


def check_tuning(given: Mapping[str, object], setup: object, callbacks: object) -> None:
    """Raises UsageError for what is said of a search for a network, but is of workloads only."""
    plain = {name: value for name, value in given.items() if not value or value == getattr(Asked, name, None)}
    others = [name for name in given if name not in plain and name not in ("target", "threads", "winograd")]
    if not isinstance(setup, SearchSetup) or setup != SearchSetup(started=setup.started):
        others.append("search")
    if others:
        raise UsageError(f"{others[0]} is of workloads, and not taken for a network: leave it out")
    known = isinstance(callbacks, Sequence) and all(hasattr(c, "on_turn") and hasattr(c, "on_end") for c in callbacks)
    if not known:
        raise UsageError(
            f"callbacks must be a sequence of network callbacks (autosched.network_tuning.results), got {callbacks!r}"
        )


def event_tasks(searches: Sequence[TaskSearch], standings: Sequence[Standing]) -> tuple[TaskResult, ...]:
    """How far each task is, of all networks: `share` is that of the objective."""
    whole = max(total(standings), 1e-12)
    return tuple(
        _task_result(search, sum(search.task.counts), standing.share / whole)
        for search, standing in zip(searches, standings, strict=True)
    )


def task_results(searches: Sequence[TaskSearch], network: int, tasks: Sequence[NetworkTask]) -> tuple[TaskResult, ...]:
    """How far each task of a network is, which has the `tasks` now; those of the slower form of a part are called 0
    times."""
    mine = [(search, specs) for search in searches if (specs := search.task.specs(network))]
    counts = [sum(task.count for task in tasks if task.recipe.spec in specs) for _, specs in mine]
    shares = [count * search.now_s for count, (search, _) in zip(counts, mine, strict=True)]
    whole = max(sum(shares), 1e-12)
    each = zip(mine, counts, shares, strict=True)
    return tuple(_task_result(search, count, share / whole) for (search, _), count, share in each)


def _task_result(search: TaskSearch, count: int, share: float) -> TaskResult:
    best_s, best = search.best_s, search.best
    return TaskResult(
        name=search.task.name,
        count=count,
        share=share,
        start_s=search.start_s,
        best_s=best_s,
        trials=len(search.trials),
        failed=sum(trial.failure is not None for trial in search.trials),
        fraction_of_roofline=None if best_s is None else search.bound_s / best_s,
        record_id=None if best is None else best.record_id,
        error=search.error,
    )
