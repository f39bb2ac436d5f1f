"""Search for the kernels of networks: rounds of all tasks within one budget, and events for the callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autosched.errors import DeviceError
from autosched.network_tuning.budget import FinalisationTime
from autosched.network_tuning.objectives import Objective
from autosched.network_tuning.results import NetworkCallback, NetworkEvent, SessionPoint, event_tasks
from autosched.network_tuning.task_scheduler import SchedulerOptions, next_task, warm_up_tasks
from autosched.network_tuning.task_state import TaskState, total_contribution
from autosched.network_tuning.task_tuner import TRIALS, TaskTuner
from autosched.network_tuning.undecided_fusion import UndecidedFusion
from autosched.tuner.progress import Stopwatch

MIN_LATENCY_S = 1e-9  # the latency of a network without kernels


@dataclass
class NetworkSearch:
    """The search of networks' tasks, until `most_trials` are measured or the budget of `watch` is used up.

    `networks`: names, in the order of `SharedTask.counts`. `fusions`: choices whose both sides are searched for.
    """

    tuners: Sequence[TaskTuner]
    networks: Sequence[str]
    objective: Objective
    scheduler: SchedulerOptions
    finalisation: FinalisationTime
    watch: Stopwatch
    most_trials: int | None = None
    callbacks: Sequence[NetworkCallback] = ()
    fusions: Sequence[UndecidedFusion] = ()
    curve: list[SessionPoint] = field(default_factory=list)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.began_s = self.watch.elapsed()
        if self.watch.budget_s is not None:  # what loading has left of it
            self.scheduler = replace(self.scheduler, budget=self.watch.budget_s - self.began_s)

    def run(self) -> None:
        """Run all rounds, then the final comparison of each task.

        Raises DeviceError, and UsageError for an objective that fails; measurements are stored in any case.
        """
        try:
            self._resume_rounds()
            self._run_rounds()
            self._notify("on_end", None)
            self._compare_finalists()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            for tuner in self.tuners:
                tuner.finish(self.interrupted)

    @property
    def n_trials(self) -> int:
        """Trials of all tasks, including those resumed from records."""
        return sum(len(tuner.trials) for tuner in self.tuners)

    @property
    def by_contribution(self) -> list[TaskTuner]:
        """The tasks, largest contribution to the objective first."""
        contributions = [state.contribution for state in self.task_states]
        return [self.tuners[n] for n in sorted(range(len(contributions)), key=lambda n: -contributions[n])]

    @property
    def latencies(self) -> dict[str, float]:
        """Seconds of all kernels of a call for each network, with the faster side of each fusion choice."""
        times = [tuner.now_s for tuner in self.tuners]
        latencies = {}
        for n, name in enumerate(self.networks):
            kernels_s = sum(tuner.task.counts[n] * seconds for tuner, seconds in zip(self.tuners, times, strict=True))
            saved_s = sum(fusion.gain_s(times) for fusion in self.fusions if fusion.network == n)
            latencies[name] = max(kernels_s - saved_s, MIN_LATENCY_S)
        return latencies

    @property
    def task_states(self) -> list[TaskState]:
        """State of each task, weighted by the objective; a task that an objective with patience gives up weighs 0."""
        slopes = list(self.objective.derivatives(self.latencies).values())
        times = [tuner.now_s for tuner in self.tuners]
        weights = [sum(c * slope for c, slope in zip(t.task.counts, slopes, strict=True)) for t in self.tuners]
        for fusion in self.fusions:
            for n, calls in fusion.extra_calls(times):
                weights[n] += calls * slopes[fusion.network]
        states = []
        for tuner, weight in zip(self.tuners, weights, strict=True):
            patience = self.objective.patience
            has_stalled = patience is not None and tuner.state(weight).has_stalled(patience)
            states.append(tuner.state(0.0 if has_stalled else weight))
        return states

    def can_continue(self, takes_s: float = 0.0) -> bool:
        """Return whether the budget has `takes_s` seconds left beside the reserved finalisation time."""
        budget_s = self.watch.budget_s
        if self.interrupted or budget_s is None:
            return not self.interrupted
        return self.watch.elapsed() + takes_s + self.finalisation.needed_s(*self._builds()) < budget_s

    def has_time(self, seconds: float) -> bool:
        """Return whether the budget has so many seconds left, with nothing reserved."""
        budget_s = self.watch.budget_s
        return not self.interrupted and (budget_s is None or self.watch.elapsed() + seconds < budget_s)

    def _builds(self) -> tuple[int, float | None]:
        """Return the number of new kernels, and the mean seconds of building one (None before the first)."""
        built = sum(len(tuner.trials) - tuner.n_resumed for tuner in self.tuners)
        build_s = sum(tuner.build_s for tuner in self.tuners) / built if built else None
        return sum(tuner.best is not None for tuner in self.tuners), build_s

    def _resume_rounds(self) -> None:
        """Repeat the rounds on record, in the order in which they were measured."""
        rounds = sorted((r.first, n, r.round) for n, tuner in enumerate(self.tuners) for r in tuner.recorded)
        for position, (_, n, round) in enumerate(rounds, start=1):
            if (left := self._trials_left()) <= 0:
                return
            tuner, most = self.tuners[n], left if position == len(rounds) else 0
            self._attempt(tuner, partial(tuner.resume_round, round, most))
            self._record_point()

    def _run_rounds(self) -> None:
        while (left := self._trials_left()) > 0:
            if self.watch.budget_s is not None:
                left_s = self.watch.budget_s - self.began_s
                self.watch.reserve_s = self.finalisation.reserve_s(left_s, *self._builds())
            if self.watch.spent() >= 1.0 or (task := next_task(self.task_states, self.scheduler)) is None:
                return
            self._notify("on_turn", task)
            tuner = self.tuners[task]
            self._attempt(tuner, partial(tuner.run_round, left, self._task_to_prepare(task)))
            self._record_point()

    def _task_to_prepare(self, running: int) -> TaskTuner | None:
        """Return the task with the next warm-up round, other than the `running` one, if it is not prepare_graph."""
        states = self.task_states
        fresh = [n for n in warm_up_tasks(states, self.scheduler) if n != running and not self.tuners[n].has_begun]
        chosen = max(fresh, key=lambda n: states[n].contribution, default=None)
        return None if chosen is None else self.tuners[chosen]

    def _attempt(self, tuner: TaskTuner, run: Callable[[], None]) -> None:
        """Run a round. Raises DeviceError when a second task loses its workers: for one task the cause may be its data,
        for two it is the device."""
        try:
            run()
        except DeviceError as error:
            if any(other.has_lost_device for other in self.tuners):
                raise
            tuner.mark_device_lost(error)

    def _record_point(self) -> None:
        if self._is_warm():
            self.curve.append(SessionPoint(self.n_trials, self.watch.elapsed(), tuple(self.latencies.values())))

    def _is_warm(self) -> bool:
        """Return whether warm-up has ended: from then on latencies are comparable from round to round."""
        return not warm_up_tasks(self.task_states, self.scheduler)

    def _trials_left(self) -> int:
        return TRIALS if self.most_trials is None else self.most_trials - self.n_trials

    def _compare_finalists(self) -> None:
        last_s = 0.0
        for tuner in self.by_contribution:
            if not self.can_continue(last_s):
                return
            start = self.watch.elapsed()
            tuner.compare()
            last_s = self.watch.elapsed() - start

    def _notify(self, method: str, task: int | None) -> None:
        if not self.callbacks:
            return
        elapsed, states = self.watch.elapsed(), self.task_states
        event = NetworkEvent(
            tasks=event_tasks(self.tuners, states),
            turn=task,
            trials=self.n_trials,
            most_trials=self.most_trials,
            elapsed_s=elapsed,
            eta_s=self._eta_s(elapsed),
            start_s=sum(self.curve[0].latencies) if self.curve else None,
            kernels_s=sum(self.latencies.values()) if self._is_warm() else None,
            gain=sum(self.scheduler.strategy.expected_gains(states)) / max(total_contribution(states), 1e-12),
        )
        for callback in self.callbacks:
            getattr(callback, method)(event)

    def _eta_s(self, elapsed: float) -> float | None:
        """Return the seconds to the end of the budget or, at the pace so far, of the trials; None without either."""
        ends = [] if self.watch.budget_s is None else [max(self.watch.budget_s - elapsed, 0.0)]
        measured = self.n_trials - sum(tuner.n_resumed for tuner in self.tuners)
        if self.most_trials is not None and measured:
            ends.append((self.most_trials - self.n_trials) * elapsed / measured)
        return min(ends, default=None)
