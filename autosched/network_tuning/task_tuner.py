"""The search for one task of networks: a session that begins at the task's first turn, and rests between its turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from autosched.errors import AutoschedError, DeviceError, StoreError
from autosched.network_tuning.shared_tasks import SharedTask
from autosched.network_tuning.task_state import Standing, Turn
from autosched.tuner.progress import Stopwatch
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.session import Session

TRIALS = 64  # of a task: its rounds are as large, and its search goes through its phases, as if it had so many
ABOUT_AS_FAST = 1.1  # times as long: a network may see it otherwise
RECORDED_TRIAL_S = 0.1  # that a measurement counts which is taken from a record


@dataclass(frozen=True)
class Begun:
    """A session, and what gives the steps of a candidate of its as JSON."""

    session: Session
    steps: Callable[[Candidate], str]


@dataclass(frozen=True)
class RecordedRound:
    """A round of a task that records have; `first`: the number of the first of them."""

    first: int
    round: int


Begin: TypeAlias = Callable[[SharedTask], Begun]


@dataclass
class TaskSearch:
    """`bound_s`: no schedule takes less. `start_s`: what the kernel takes that the networks have. `recorded`: the
    rounds of earlier searches that this one goes on from. `error`: why there is no further turn; the task keeps what it
    has. `ready_s`: seconds in which it got ready for its first turn; `shaded_s`: those that others did in its turns."""

    task: SharedTask
    bound_s: float
    start_s: float
    begin: Begin
    watch: Stopwatch
    recorded: tuple[RecordedRound, ...] = ()
    begun: Begun | None = None
    rounds: list[Turn] = field(default_factory=list)
    error: str | None = None
    is_used_up: bool = False
    lost_device: bool = False
    ready_s: float = 0.0
    shaded_s: float = 0.0

    def standing(self, weight: float) -> Standing:
        """How far it is, where a second of its kernel is worth `weight`."""
        is_over = self.is_used_up or self.error is not None
        return Standing(
            weight, self.bound_s, self.start_s, tuple(self.rounds), is_over, self.task.kind, self.task.flops
        )

    @property
    def now_s(self) -> float:
        """What a call of its kernel takes."""
        return self.standing(0.0).now_s

    @property
    def trials(self) -> list[Trial]:
        """All that there are, those taken over from records too."""
        return self.begun.session.progress.trials if self.begun else []

    @property
    def n_resumed(self) -> int:
        """Of the trials, those that were taken over."""
        return self.begun.session.progress.resumed if self.begun else 0

    @property
    def build_s(self) -> float:
        return self.begun.session.measurer.build_s - self.shaded_s if self.begun else 0.0

    @property
    def best(self) -> Trial | None:
        return self.begun.session.progress.best if self.begun else None

    @property
    def best_s(self) -> float | None:
        return None if self.best is None else self.best.seconds

    @property
    def best_steps(self) -> str | None:
        """The schedule of the best candidate; None where the kernel that the networks began with is as good."""
        if self.begun is None or self.best is None or self.best_s is None:
            return None
        known_s = self.begun.session.recorder.known_s
        if self.task.has_steps and known_s is not None and known_s <= self.best_s:
            return None
        return self.begun.steps(self.best.candidate)

    def schedules(self, most: int) -> tuple[str, ...]:
        """The best candidate's, and those of at most `most` in all that are about as fast, the fastest first; none
        where the kernel that the networks began with is as good."""
        best = self.best_steps
        if self.begun is None or self.best is None or best is None:
            return ()
        timed = self.begun.session.progress.timed()
        fastest_s = timed[0].undisturbed_s or 0.0
        near = [t for t in timed if (t.undisturbed_s or 0.0) <= ABOUT_AS_FAST * fastest_s][:most]
        return tuple(dict.fromkeys([best, *(self.begun.steps(t.candidate) for t in near)]))[:most]

    def take_turn(self, most: int, following: TaskSearch | None = None) -> None:
        """A round of at most `most` candidates; while these are built, another search gets ready for its first turn,
        the `following`. What goes wrong ends this search alone, be it a bug, unless it is of the device or the
        database. Raises DeviceError, StoreError."""
        with self._own_failures():
            self._step(self._session(), most, following)

    def get_ready(self) -> float:
        """Sketches, draft and data, with which the first turn begins; the seconds that it took. What goes wrong with
        the device is for that turn to raise. Raises StoreError."""
        start = self.watch.elapsed()
        with suppress(DeviceError), self._own_failures():
            session, begun = self._session(), self.watch.elapsed()
            session.prepare()
            self.ready_s += self.watch.elapsed() - begun
        return self.watch.elapsed() - start

    def take_over(self, round: int, most: int) -> None:
        """The rounds up to `round`, from records; that one is completed by what is left of `most` candidates. Raises
        as `take_turn` does."""
        with self._own_failures():
            session = self._session()
            while session.progress.round < round and session.is_behind:
                self._step(session, 0)
            self._step(session, most)

    def lose_device(self, error: DeviceError) -> None:
        """Ends this search, whose workers fail."""
        self.error, self.lost_device = str(error), True

    def compare(self) -> None:
        """Certifies the best of a few in the database, measured again side by side."""
        if self.begun is not None and self.error is None and self.best is not None:
            self.begun.session.compare()

    def finish(self, interrupted: bool) -> None:
        """Closes the record of the session."""
        if self.begun is not None:
            with suppress(AutoschedError):  # the database is gone: what was measured is there or not
                self.begun.session.finish(interrupted or not self.rounds)

    def _session(self) -> Session:
        if self.begun is None:
            start = self.watch.elapsed()
            self.begun = self.begin(self.task)
            self.begun.session.recall()
            self.ready_s += self.watch.elapsed() - start
        return self.begun.session

    @contextmanager
    def _own_failures(self) -> Iterator[None]:
        try:
            yield
        except (DeviceError, StoreError):
            raise
        except Exception as error:
            self.error = str(error) if isinstance(error, AutoschedError) else f"{type(error).__name__}: {error}"

    def _step(self, session: Session, most: int, following: TaskSearch | None = None) -> None:
        def meanwhile() -> None:
            if following is not None:
                self.shaded_s += following.get_ready()

        size = session.settings.policy.round_size(session.progress.round, TRIALS)
        share = min(max(len(self.trials) / TRIALS, self.watch.spent()), 1.0)
        start, before, resumed = self._own_s(), len(self.trials), self.n_resumed
        self.is_used_up = not session.step(min(size, most), share, meanwhile)
        taken_over = self.n_resumed - resumed
        seconds = self._own_s() - start + RECORDED_TRIAL_S * taken_over + self.ready_s
        self.ready_s = 0.0
        self.rounds.append(Turn(seconds, self.best_s, len(self.trials) - before))

    def _own_s(self) -> float:
        """The time, but for what others did in this one's turns."""
        return self.watch.elapsed() - self.shaded_s
