"""Tuner of one task of networks: a tuning session that is created in the first round and paused between rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from autosched.errors import AutoschedError, DeviceError, StoreError
from autosched.network_tuning.shared_tasks import SharedTask
from autosched.network_tuning.task_state import TaskState, TuningRound
from autosched.tuner.progress import Stopwatch
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.session import Session

TRIALS = 64  # of a task: sizes of its rounds and phases of its search are those of a session of so many trials
RIVAL_RATIO = 1.1  # schedules at most this times as slow as the best one are timed in the network too
RECORDED_TRIAL_S = 0.1  # cost of a measurement that is resumed from a record


@dataclass(frozen=True)
class TaskSession:
    """A tuning session, and the function that gives the steps of one of its candidates as JSON."""

    session: Session
    steps: Callable[[Candidate], str]


@dataclass(frozen=True)
class RecordedRound:
    """A round on record; `first`: the smallest id of its records."""

    first: int
    round: int


StartSession: TypeAlias = Callable[[SharedTask], TaskSession]


@dataclass
class TaskTuner:
    """`bound_s`: lower bound of the kernel's time. `start_s`: its time when tuning began. `recorded`: rounds on record
    that are resumed. `error`: why the search of this task has ended. `preparation_s`: seconds of preparing the next
    round, which count as part of it. `overlapped_s`: seconds of preparing other tasks within this one's rounds."""

    task: SharedTask
    bound_s: float
    start_s: float
    start_session: StartSession
    watch: Stopwatch
    recorded: tuple[RecordedRound, ...] = ()
    running: TaskSession | None = None
    rounds: list[TuningRound] = field(default_factory=list)
    error: str | None = None
    is_exhausted: bool = False
    has_lost_device: bool = False
    preparation_s: float = 0.0
    overlapped_s: float = 0.0

    def state(self, weight: float) -> TaskState:
        """Return the state that the scheduler sees; `weight`: derivative of the objective by the kernel's seconds."""
        return TaskState(
            weight=weight,
            bound_s=self.bound_s,
            start_s=self.start_s,
            rounds=tuple(self.rounds),
            is_finished=self.is_exhausted or self.error is not None,
            similarity_key=self.task.similarity_key,
            flops=self.task.flops,
        )

    @property
    def has_begun(self) -> bool:
        return self.running is not None

    @property
    def now_s(self) -> float:
        """Seconds of a call of the kernel."""
        return self.state(0.0).now_s

    @property
    def trials(self) -> list[Trial]:
        """All trials, including those resumed from records."""
        return self.running.session.progress.trials if self.running else []

    @property
    def n_resumed(self) -> int:
        """Number of trials that were resumed from records."""
        return self.running.session.progress.resumed if self.running else 0

    @property
    def build_s(self) -> float:
        return self.running.session.measurer.build_s - self.overlapped_s if self.running else 0.0

    @property
    def best(self) -> Trial | None:
        return self.running.session.progress.best if self.running else None

    @property
    def best_s(self) -> float | None:
        return None if self.best is None else self.best.seconds

    @property
    def best_steps(self) -> str | None:
        """The schedule of the best candidate; None where the kernel that the networks began with is as fast."""
        if self.running is None or self.best is None or self.best_s is None:
            return None
        known_s = self.running.session.recorder.known_s
        if self.task.has_schedule and known_s is not None and known_s <= self.best_s:
            return None
        return self.running.steps(self.best.candidate)

    def schedules(self, most: int) -> tuple[str, ...]:
        """Return at most `most` schedules, the best one and those about as fast, fastest first; none where the kernel
        that the networks began with is as fast."""
        best = self.best_steps
        if self.running is None or self.best is None or best is None:
            return ()
        timed = self.running.session.progress.timed()
        fastest_s = timed[0].undisturbed_s or 0.0
        rivals = [t for t in timed if (t.undisturbed_s or 0.0) <= RIVAL_RATIO * fastest_s][:most]
        return tuple(dict.fromkeys([best, *(self.running.steps(t.candidate) for t in rivals)]))[:most]

    def run_round(self, most: int, to_prepare: TaskTuner | None = None) -> None:
        """Measure a round of at most `most` candidates, and prepare another task while they are built.

        An exception ends the search of this task only. Raises DeviceError and StoreError, which concern all tasks.
        """
        with self._keep_failures():
            self._step(self._session(), most, to_prepare)

    def prepare(self) -> float:
        """Make sketches, draft and data of the first round; return the seconds that it took.

        A DeviceError is left to that round. Raises StoreError.
        """
        start = self.watch.elapsed()
        with suppress(DeviceError), self._keep_failures():
            session, prepared_from = self._session(), self.watch.elapsed()
            session.prepare()
            self.preparation_s += self.watch.elapsed() - prepared_from
        return self.watch.elapsed() - start

    def resume_round(self, round: int, most: int) -> None:
        """Repeat the rounds up to `round` from records, and complete that one by at most `most` new measurements.

        Raises what `run_round` raises.
        """
        with self._keep_failures():
            session = self._session()
            while session.progress.round < round and session.has_history_left:
                self._step(session, 0)
            self._step(session, most)

    def mark_device_lost(self, error: DeviceError) -> None:
        """End the search of this task, whose workers fail."""
        self.error, self.has_lost_device = str(error), True

    def compare(self) -> None:
        """Measure the fastest candidates again side by side, and certify the best one in the database."""
        if self.running is not None and self.error is None and self.best is not None:
            self.running.session.compare()

    def finish(self, interrupted: bool) -> None:
        """Close the session's row in the database."""
        if self.running is not None:
            with suppress(AutoschedError):  # the database is gone: no later write can help
                self.running.session.finish(interrupted or not self.rounds)

    def _session(self) -> Session:
        if self.running is None:
            start = self.watch.elapsed()
            self.running = self.start_session(self.task)
            self.running.session.load_history()
            self.preparation_s += self.watch.elapsed() - start
        return self.running.session

    @contextmanager
    def _keep_failures(self) -> Iterator[None]:
        """Keep an exception as `error`, but for those of the device and the database."""
        try:
            yield
        except (DeviceError, StoreError):
            raise
        except Exception as error:
            self.error = str(error) if isinstance(error, AutoschedError) else f"{type(error).__name__}: {error}"

    def _step(self, session: Session, most: int, to_prepare: TaskTuner | None = None) -> None:
        def meanwhile() -> None:
            if to_prepare is not None:
                self.overlapped_s += to_prepare.prepare()

        size = session.settings.policy.round_size(session.progress.round, TRIALS)
        progress = min(max(len(self.trials) / TRIALS, self.watch.spent()), 1.0)
        start, before, resumed = self._own_s(), len(self.trials), self.n_resumed
        self.is_exhausted = not session.step(min(size, most), progress, meanwhile)
        n_resumed = self.n_resumed - resumed
        seconds = self._own_s() - start + RECORDED_TRIAL_S * n_resumed + self.preparation_s
        self.preparation_s = 0.0
        self.rounds.append(TuningRound(seconds, self.best_s, len(self.trials) - before))

    def _own_s(self) -> float:
        """Return the seconds so far without those of preparing other tasks."""
        return self.watch.elapsed() - self.overlapped_s
