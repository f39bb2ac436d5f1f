"""Tuning results of networks, the effort that a user allows, and the events that callbacks are given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from autosched.errors import UsageError
from autosched.network_tuning.objectives import ObjectiveSpec, parse_objective
from autosched.network_tuning.strategies import DEFAULT, find_strategy
from autosched.network_tuning.task_scheduler import SchedulerOptions
from autosched.network_tuning.task_state import TaskState, total_contribution
from autosched.tuner.options import WorkloadOptions
from autosched.tuner.policy import SearchSetup
from autosched.tuner.session import Settings

if TYPE_CHECKING:
    from autosched.executor.model import Model
    from autosched.network_tuning.fusion_comparison import FusionTimes
    from autosched.network_tuning.task_tuner import TaskTuner
    from autosched.planning.extract_tasks import NetworkTask
    from autosched.runtime.spec import ArraySpec

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Effort:
    """Budget and options of tuning networks.

    `trials`: most measurements. `budget_s`: seconds since `started` (on time.monotonic; None: now). Without both,
    tuning ends when all tasks together are expected to gain less than half a percent. `resume`: measurements on record
    count as trials. `strategy`: one of STRATEGIES. `objective`: what is minimised, see `network_tuning.objectives`.

    Raises UsageError for numbers out of range, an unknown strategy and an invalid objective.
    """

    trials: int | None = None
    budget_s: float | None = None
    seed: int = 0
    resume: bool = False
    started: float | None = None
    strategy: str = DEFAULT
    objective: str | Callable[[dict[str, float]], float] = "sum"

    def __post_init__(self) -> None:
        _ = self.settings, self.objective_spec
        find_strategy(self.strategy)
        if not isinstance(self.resume, bool):
            raise UsageError(f"resume must be True or False, got {self.resume!r}")

    @cached_property
    def objective_spec(self) -> ObjectiveSpec:
        return parse_objective(self.objective)

    @property
    def settings(self) -> Settings:
        """Trials, budget and seed as settings of a session, which checks them."""
        return Settings(1 if self.trials is None else self.trials, self.budget_s, self.seed)

    @property
    def scheduler(self) -> SchedulerOptions:
        """Options of the task scheduler. Rounds cost seconds, or measurements if only `trials` are given."""
        strategy, numbers = find_strategy(self.strategy), self.settings
        if numbers.budget_s is None and self.trials is not None:
            return SchedulerOptions(strategy, float(numbers.trials), counts_trials=True)
        return SchedulerOptions(strategy, numbers.budget_s)


@dataclass(frozen=True)
class TaskResult:
    """A task of a network: `count` calls of its kernel, and their `share` of the time of all kernels (0 to 1).

    `start_s`: seconds of a call before tuning. `best_s`: the least measured. `trials`: measurements, including those on
    record, of which `failed` failed. `fraction_of_roofline`: lower bound over `best_s`, at most 1. `record_id`: record
    of the best candidate. `error`: why its search ended early; the task keeps its earlier schedule then.
    """

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
        """Seconds of a call: the least measured, or that before tuning."""
        return self.start_s if self.best_s is None else self.best_s


@dataclass(frozen=True)
class NetworkPoint:
    """A point of the tuning curve: after `trials` measurements and `elapsed_s` seconds, the kernels of one call take
    `kernels_s` seconds together."""

    trials: int
    elapsed_s: float
    kernels_s: float


@dataclass(frozen=True)
class SessionPoint:
    """A point of the tuning curves of all networks tuned together: `latencies` in seconds, in their order."""

    trials: int
    elapsed_s: float
    latencies: tuple[float, ...]

    def of(self, network: int) -> NetworkPoint:
        return NetworkPoint(self.trials, self.elapsed_s, self.latencies[network])


@dataclass(frozen=True)
class NetworkEvent:
    """Progress of tuning networks, as given to callbacks.

    `turn`: index of the task of the next round. `kernels_s`: seconds of all kernels of one call of each network, None
    during warm-up; `start_s`: its first value. `gain`: expected gain of one more round of each task, as a fraction of
    the objective. `trials` of `most_trials` are done; `eta_s`: seconds left at most, None without a budget.
    """

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
    """Observer of the tuning of networks."""

    def on_turn(self, event: NetworkEvent) -> None:
        """Called before each round."""

    def on_end(self, event: NetworkEvent) -> None:
        """Called after the last round."""


@dataclass(frozen=True)
class NetworkResult:
    """The outcome of `tune` for a network. Times in seconds.

    `start_latency_s` and `latency_s`: medians of whole calls before and after tuning, interleaved, the latter with a
    95 % confidence interval. `kernels_s`: sum over the kernels of a call, each timed alone if it was measured.
    `first_result_s`: seconds until a network could run. `resumed`: how many of the `trials` are from earlier records;
    trials and times are those of all networks tuned together. `verified`: whether the outputs are within the
    tolerances of `verification`; `max_error`: largest difference over largest absolute value. `parts`: the undecided
    fusions, with the times of both choices and which was kept.
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
        """Return the object that `tune --json` prints, as JSON data."""
        model = self.model

        def arrays(specs: Sequence[ArraySpec]) -> list[dict[str, object]]:
            return [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype} for s in specs]

        return {
            "schema_version": SCHEMA_VERSION,
            "model": model.original.name,
            "inputs": arrays(model.inputs),
            "outputs": arrays(model.outputs),
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
    """The outcome of `tune` for several networks. `start_value` and `value`: the objective of the latencies of whole
    calls before and after tuning."""

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
        """Return the object that `tune --json` prints for several networks, as JSON data; `networks` has those of each
        network by name."""
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
    """Check the options of tuning a network. Raises UsageError for options that only workloads have, and for callbacks
    that are no NetworkCallbacks."""
    unset = {name for name, value in given.items() if not value or value == getattr(WorkloadOptions, name, None)}
    others = [name for name in given if name not in unset and name not in ("target", "threads", "winograd")]
    if not isinstance(setup, SearchSetup) or setup != SearchSetup(started=setup.started):
        others.append("search")
    if others:
        raise UsageError(f"{others[0]} is of workloads, and not taken for a network: leave it out")
    if not isinstance(callbacks, Sequence) or not all(
        hasattr(c, "on_turn") and hasattr(c, "on_end") for c in callbacks
    ):
        raise UsageError(
            f"callbacks must be a sequence of network callbacks (autosched.network_tuning.results), got {callbacks!r}"
        )


def event_tasks(tuners: Sequence[TaskTuner], states: Sequence[TaskState]) -> tuple[TaskResult, ...]:
    """Return the results so far of the tasks of all networks; `share` is that of the objective."""
    total = max(total_contribution(states), 1e-12)
    return tuple(
        _task_result(tuner, sum(tuner.task.counts), state.contribution / total)
        for tuner, state in zip(tuners, states, strict=True)
    )


def task_results(tuners: Sequence[TaskTuner], network: int, tasks: Sequence[NetworkTask]) -> tuple[TaskResult, ...]:
    """Return the results of a network's tasks. `tasks`: those of the tuned network; tasks of a fusion choice that it
    does not have are called 0 times."""
    own = [(tuner, specs) for tuner in tuners if (specs := tuner.task.specs(network))]
    counts = [sum(task.count for task in tasks if task.kernel_spec.workload in specs) for _, specs in own]
    seconds = [count * tuner.now_s for count, (tuner, _) in zip(counts, own, strict=True)]
    total_s = max(sum(seconds), 1e-12)
    each = zip(own, counts, seconds, strict=True)
    return tuple(_task_result(tuner, count, task_s / total_s) for (tuner, _), count, task_s in each)


def _task_result(tuner: TaskTuner, count: int, share: float) -> TaskResult:
    best_s, best = tuner.best_s, tuner.best
    return TaskResult(
        name=tuner.task.name,
        count=count,
        share=share,
        start_s=tuner.start_s,
        best_s=best_s,
        trials=len(tuner.trials),
        failed=sum(trial.failure is not None for trial in tuner.trials),
        fraction_of_roofline=None if best_s is None else tuner.bound_s / best_s,
        record_id=None if best is None else best.record_id,
        error=tuner.error,
    )
