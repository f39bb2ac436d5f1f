"""The search for networks: their tasks take turns, and those who watch hear of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autosched.errors import DeviceError
from autosched.network_tuning.budget import Closing
from autosched.network_tuning.objectives import Objective
from autosched.network_tuning.results import NetworkCallback, NetworkEvent, SessionPoint, event_tasks
from autosched.network_tuning.task_scheduler import TurnRules, first_turns, whose_turn
from autosched.network_tuning.task_state import Standing, total
from autosched.network_tuning.task_tuner import TRIALS, TaskSearch
from autosched.network_tuning.undecided_fusion import OpenPart
from autosched.tuner.progress import Stopwatch

LEAST_S = 1e-9  # of a network: one without kernels


@dataclass
class NetworkSearch:
    """The searches of networks' tasks, which take turns until `most_trials` are measured or the time is up.

    `networks`: the names of the networks, in the order of the tasks' counts; `parts`: those that are searched for in
    two forms.
    """

    searches: Sequence[TaskSearch]
    networks: Sequence[str]
    objective: Objective
    rules: TurnRules
    closing: Closing
    watch: Stopwatch
    most_trials: int | None = None
    callbacks: Sequence[NetworkCallback] = ()
    parts: Sequence[OpenPart] = ()
    curve: list[SessionPoint] = field(default_factory=list)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.began_s = self.watch.elapsed()
        if self.watch.budget_s is not None:  # what loading has left of it
            self.rules = replace(self.rules, budget=self.watch.budget_s - self.began_s)

    def run(self) -> None:
        """All turns, and the final comparisons. Raises DeviceError, and UsageError for an objective that fails;
        whatever it raises, what was measured is stored."""
        try:
            self._take_over()
            self._take_turns()
            self._tell("on_end", None)
            self._compare()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            for search in self.searches:
                search.finish(self.interrupted)

    @property
    def n_trials(self) -> int:
        """All that there are, with those of records."""
        return sum(len(search.trials) for search in self.searches)

    @property
    def in_order(self) -> list[TaskSearch]:
        """Those that take most of the objective first."""
        shares = [standing.share for standing in self.standings]
        return [self.searches[n] for n in sorted(range(len(shares)), key=lambda n: -shares[n])]

    @property
    def latencies(self) -> dict[str, float]:
        """Seconds that all kernels of a call take together, for each network, in the faster form of its parts."""
        now = [search.now_s for search in self.searches]
        found = {}
        for n, name in enumerate(self.networks):
            whole = sum(search.task.counts[n] * seconds for search, seconds in zip(self.searches, now, strict=True))
            saved = sum(part.gain_s(now) for part in self.parts if part.network == n)
            found[name] = max(whole - saved, LEAST_S)
        return found

    @property
    def standings(self) -> list[Standing]:
        slopes = list(self.objective.derivatives(self.latencies).values())
        now = [search.now_s for search in self.searches]
        weights = [sum(c * slope for c, slope in zip(s.task.counts, slopes, strict=True)) for s in self.searches]
        for part in self.parts:
            for n, calls in part.calls(now):
                weights[n] += calls * slopes[part.network]
        found = []
        for search, weight in zip(self.searches, weights, strict=True):
            patience = self.objective.patience
            stalled = patience is not None and search.standing(weight).has_stalled(patience)
            found.append(search.standing(0.0 if stalled else weight))
        return found

    def may_go_on(self, takes_s: float = 0.0) -> bool:
        """Whether there is time left for what takes so long, and for what must come after it."""
        budget_s = self.watch.budget_s
        if self.interrupted or budget_s is None:
            return not self.interrupted
        return self.watch.elapsed() + takes_s + self._closing_s() < budget_s

    def has_time(self, seconds: float) -> bool:
        """Whether so many seconds are left at the end."""
        budget_s = self.watch.budget_s
        return not self.interrupted and (budget_s is None or self.watch.elapsed() + seconds < budget_s)

    def _closing_s(self) -> float:
        return self.closing.needed_s(*self._builds())

    def _builds(self) -> tuple[int, float | None]:
        """How many kernels are new, and how long building one takes."""
        built = sum(len(search.trials) - search.n_resumed for search in self.searches)
        build_s = sum(search.build_s for search in self.searches) / built if built else None
        return sum(search.best is not None for search in self.searches), build_s

    def _take_over(self) -> None:
        """The turns of earlier searches, in the order in which they were taken."""
        turns = sorted((r.first, n, r.round) for n, search in enumerate(self.searches) for r in search.recorded)
        for place, (_, n, round) in enumerate(turns, start=1):
            if (left := self._trials_left()) <= 0:
                return
            search, most = self.searches[n], left if place == len(turns) else 0
            self._attempt(search, partial(search.take_over, round, most))
            self._note()

    def _take_turns(self) -> None:
        while (left := self._trials_left()) > 0:
            if self.watch.budget_s is not None:
                left_s = self.watch.budget_s - self.began_s
                self.watch.reserve_s = self.closing.reserve_s(left_s, *self._builds())
            if self.watch.spent() >= 1.0 or (turn := whose_turn(self.standings, self.rules)) is None:
                return
            self._tell("on_turn", turn)
            search = self.searches[turn]
            self._attempt(search, partial(search.take_turn, left, self._following(turn)))
            self._note()

    def _following(self, turn: int) -> TaskSearch | None:
        """Whose first round is next, if it is not ready for that."""
        standings = self.standings
        fresh = [n for n in first_turns(standings, self.rules) if n != turn and self.searches[n].begun is None]
        place = max(fresh, key=lambda n: standings[n].share, default=None)
        return None if place is None else self.searches[place]

    def _attempt(self, search: TaskSearch, turn: Callable[[], None]) -> None:
        """Raises DeviceError when workers fail for a second task: for the first it may be its data."""
        try:
            turn()
        except DeviceError as error:
            if any(other.lost_device for other in self.searches):
                raise
            search.lose_device(error)

    def _note(self) -> None:
        if self._is_known():
            self.curve.append(SessionPoint(self.n_trials, self.watch.elapsed(), tuple(self.latencies.values())))

    def _is_known(self) -> bool:
        """Whether no times in the network stand for those of tasks that are going to be measured first."""
        return not first_turns(self.standings, self.rules)

    def _trials_left(self) -> int:
        return TRIALS if self.most_trials is None else self.most_trials - self.n_trials

    def _compare(self) -> None:
        last_s = 0.0
        for search in self.in_order:
            if not self.may_go_on(last_s):
                return
            start = self.watch.elapsed()
            search.compare()
            last_s = self.watch.elapsed() - start

    def _tell(self, moment: str, turn: int | None) -> None:
        if not self.callbacks:
            return
        elapsed, standings = self.watch.elapsed(), self.standings
        event = NetworkEvent(
            tasks=event_tasks(self.searches, standings),
            turn=turn,
            trials=self.n_trials,
            most_trials=self.most_trials,
            elapsed_s=elapsed,
            eta_s=self._eta_s(elapsed),
            start_s=sum(self.curve[0].latencies) if self.curve else None,
            kernels_s=sum(self.latencies.values()) if self._is_known() else None,
            gain=sum(self.rules.strategy.promises(standings)) / max(total(standings), 1e-12),
        )
        for callback in self.callbacks:
            getattr(callback, moment)(event)

    def _eta_s(self, elapsed: float) -> float | None:
        """Seconds to the end of the budget, or of the trials at the pace so far; None where there is neither."""
        ends = [] if self.watch.budget_s is None else [max(self.watch.budget_s - elapsed, 0.0)]
        measured = self.n_trials - sum(search.n_resumed for search in self.searches)
        if self.most_trials is not None and measured:
            ends.append((self.most_trials - self.n_trials) * elapsed / measured)
        return min(ends, default=None)
