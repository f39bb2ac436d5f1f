"""Tuning context: device, worker processes, database and clock that the sessions of all tasks share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autosched.kernel.device import Device, peak_reader
from autosched.kernel.measuring import start_measurer
from autosched.kernel.task import make_task, start_run, task_key
from autosched.measure import WorkerPool
from autosched.network_tuning.shared_tasks import SharedTask
from autosched.network_tuning.task_tuner import TRIALS, RecordedRound, TaskSession
from autosched.store import Database
from autosched.tuner.progress import Stopwatch
from autosched.tuner.session import Settings, begin
from cost_model.experience import Experience


@dataclass
class TuningContext:
    """`watch`: clock with the budget of all sessions. `experience`: training data of their cost models. `scratch`:
    folder for their inputs and references."""

    device: Device
    database: Database
    worker_pool: WorkerPool
    scratch: Path
    watch: Stopwatch
    seed: int
    resume: bool
    n_sessions: int = 0
    experience: Experience = field(default_factory=Experience)

    def recorded_rounds(self, task: SharedTask) -> tuple[RecordedRound, ...]:
        """Return the rounds on record of a task, oldest first; none if `resume` is false."""
        first: dict[int, int] = {}
        for record in self.database.records(*task_key(task.request)) if self.resume else ():
            if record.verified:
                first[record.round] = min(record.id, first.get(record.round, record.id))
        return tuple(RecordedRound(id, round) for round, id in sorted(first.items()))

    def start_session(self, task: SharedTask) -> TaskSession:
        """Start the session of a task: workers, data, sketches and records. Raises UsageError where memory or disk are
        too small for its data."""
        request = task.request
        request.check()
        directory = self.scratch / str(self.n_sessions)
        self.n_sessions += 1
        directory.mkdir(mode=0o700)
        measurer = start_measurer(request, directory, self.seed, self.worker_pool)
        tuned_task, sketches = make_task(request, experience=self.experience)
        recorder = start_run(self.database, request, tuned_task, sketches, self.seed, self.resume)
        settings = Settings(TRIALS, self.watch.budget_s, self.seed)
        session = begin(
            tuned_task, settings, measurer, recorder, self.watch,
            read_peak=peak_reader(self.device, request.problem.dtype, tuned_task.source, measurer),
        )  # fmt: skip
        return TaskSession(session, recorder.steps)
