"""The search for one task of a network: a session that begins at the task's first turn, and rests between its turns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from autosched.errors import AutoschedError, DeviceError, StoreError
from autosched.network.tasks import NetworkTask
from autosched.network.turns import Standing, Turn
from autosched.tuner.progress import Stopwatch
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.session import Session

TRIALS = 64  # of a task: its rounds are as large, and its search goes through its phases, as if it had so many


@dataclass(frozen=True)
class Begun:
    """A session, and what gives the steps of a candidate of its as JSON."""

    session: Session
    steps: Callable[[Candidate], str]


Begin: TypeAlias = Callable[[NetworkTask], Begun]


@dataclass
class TaskSearch:
    """`bound_s`: no schedule takes less. `start_s`: what the kernel takes that the network has. `error`: why there is
    no further turn; the task keeps what it has."""

    task: NetworkTask
    bound_s: float
    start_s: float
    begin: Begin
    watch: Stopwatch
    begun: Begun | None = None
    rounds: list[Turn] = field(default_factory=list)
    error: str | None = None
    is_used_up: bool = False
    lost_device: bool = False

    @property
    def standing(self) -> Standing:
        is_over = self.is_used_up or self.error is not None
        return Standing(self.task.count, self.bound_s, self.start_s, tuple(self.rounds), is_over)

    @property
    def trials(self) -> list[Trial]:
        """All that there are, those taken over from records first."""
        return self.begun.session.progress.trials if self.begun else []

    @property
    def n_measured(self) -> int:
        """Of the trials, those of this search."""
        return len(self.trials) - (self.begun.session.progress.resumed if self.begun else 0)

    @property
    def best(self) -> Trial | None:
        return self.begun.session.progress.best if self.begun else None

    @property
    def best_s(self) -> float | None:
        return None if self.best is None else self.best.seconds

    @property
    def best_steps(self) -> str | None:
        """The schedule of the best candidate; None where the kernel that the network began with is as good."""
        if self.begun is None or self.best is None or self.best_s is None:
            return None
        known_s = self.begun.session.recorder.known_s
        if self.task.recipe.steps and known_s is not None and known_s <= self.best_s:
            return None
        return self.begun.steps(self.best.candidate)

    def take_turn(self, most: int) -> None:
        """A round of at most `most` candidates; the first turn takes over what records have before. What goes wrong
        ends this search alone, be it a bug, unless it is of the device or the database. Raises DeviceError, StoreError.
        """
        try:
            if self.begun is None:
                self.begun = self.begin(self.task)
                self._recall(self.begun.session)
            self._step(self.begun.session, most)
        except (DeviceError, StoreError):
            raise
        except Exception as error:
            self.error = str(error) if isinstance(error, AutoschedError) else f"{type(error).__name__}: {error}"

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
                self.begun.session.finish(interrupted)

    def _recall(self, session: Session) -> None:
        session.recall()
        while session.is_behind:
            session.step(0, 0.0)

    def _step(self, session: Session, most: int) -> None:
        size = session.settings.policy.round_size(session.progress.round, TRIALS)
        share = min(max(len(self.trials) / TRIALS, self.watch.spent()), 1.0)
        start = self.watch.elapsed()
        self.is_used_up = not session.step(min(size, most), share)
        self.rounds.append(Turn(self.watch.elapsed() - start, self.best_s))
