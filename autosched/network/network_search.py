"""The search for a whole network: its tasks take turns, and those who watch hear of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autosched.errors import DeviceError
from autosched.network.task_search import TRIALS, TaskSearch
from autosched.network.tuned import NetworkCallback, NetworkEvent, NetworkPoint, task_results
from autosched.network.turns import Standing, first_turns, network_s, whose_turn
from autosched.tuner.progress import Stopwatch


@dataclass
class NetworkSearch:
    """The searches of a network's tasks, which take turns until `most_trials` are measured or the time is up."""

    searches: Sequence[TaskSearch]
    watch: Stopwatch
    most_trials: int | None = None
    callbacks: Sequence[NetworkCallback] = ()
    curve: list[NetworkPoint] = field(default_factory=list)
    interrupted: bool = False

    def run(self) -> None:
        """All turns, and the final comparisons. Raises DeviceError; whatever it raises, what was measured is stored."""
        try:
            self._take_turns()
            self._tell("on_end", None)
            self._compare()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            for search in self.searches:
                search.finish(self.interrupted)

    @property
    def n_measured(self) -> int:
        return sum(search.n_measured for search in self.searches)

    @property
    def in_order(self) -> list[TaskSearch]:
        """Those that take most of the network's time first."""
        return sorted(self.searches, key=lambda search: -search.standing.network_s)

    @property
    def standings(self) -> list[Standing]:
        return [search.standing for search in self.searches]

    def may_go_on(self) -> bool:
        """Whether there is time left, with what is kept for the end."""
        budget_s = self.watch.budget_s
        return not self.interrupted and (budget_s is None or self.watch.elapsed() < budget_s)

    def _take_turns(self) -> None:
        while self.watch.spent() < 1.0 and (left := self._trials_left()) > 0:
            turn = whose_turn(self.standings)
            if turn is None:
                return
            self._tell("on_turn", turn)
            self._take_turn(self.searches[turn], left)
            if (now_s := self._kernels_s()) is not None:
                self.curve.append(NetworkPoint(self.n_measured, self.watch.elapsed(), now_s))

    def _take_turn(self, search: TaskSearch, most: int) -> None:
        """Raises DeviceError when workers fail for a second task: for the first it may be its data."""
        try:
            search.take_turn(most)
        except DeviceError as error:
            if any(other.lost_device for other in self.searches):
                raise
            search.lose_device(error)

    def _kernels_s(self) -> float | None:
        """None while times in the network stand for those of tasks that are going to be measured."""
        standings = self.standings
        return None if first_turns(standings) else network_s(standings)

    def _trials_left(self) -> int:
        return TRIALS if self.most_trials is None else self.most_trials - self.n_measured

    def _compare(self) -> None:
        for search in self.in_order:
            if self.may_go_on():  # whole calls, which come after, need little of what is kept for the end
                search.compare()

    def _tell(self, moment: str, turn: int | None) -> None:
        if not self.callbacks:
            return
        elapsed = self.watch.elapsed()
        event = NetworkEvent(
            tasks=task_results(self.searches),
            turn=turn,
            trials=self.n_measured,
            most_trials=self.most_trials,
            elapsed_s=elapsed,
            eta_s=self._eta_s(elapsed),
            start_s=self.curve[0].kernels_s if self.curve else None,
            kernels_s=self._kernels_s(),
            gain_s=sum(standing.gain_s for standing in self.standings),
        )
        for callback in self.callbacks:
            getattr(callback, moment)(event)

    def _eta_s(self, elapsed: float) -> float | None:
        """Seconds to the end of the budget, or of the trials at the pace so far; None where there is neither."""
        ends = [] if self.watch.budget_s is None else [max(self.watch.budget_s - elapsed, 0.0)]
        if self.most_trials is not None and (done := self.n_measured):
            ends.append((self.most_trials - done) * elapsed / done)
        return min(ends, default=None)
