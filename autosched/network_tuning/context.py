"""Where the tasks of networks are tuned: one workshop, one database, one clock for the sessions of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autosched.kernel.device import Device, peak_reader
from autosched.kernel.task import make_task, start_run, task_key
from autosched.measure import Measurer, Workshop, make_problem
from autosched.network_tuning.shared_tasks import SharedTask
from autosched.network_tuning.task_tuner import TRIALS, Begun, RecordedRound
from autosched.store import Database
from autosched.tuner.memory_check import check_room
from autosched.tuner.progress import Stopwatch
from autosched.tuner.session import Settings, begin
from cost_model.experience import Experience


@dataclass
class Place:
    """What the sessions of networks' tasks share. `watch` has the budget of all of them, `experience` what their cost
    models learn from."""

    device: Device
    database: Database
    workshop: Workshop
    scratch: Path
    watch: Stopwatch
    seed: int
    resume: bool
    n_begun: int = 0
    experience: Experience = field(default_factory=Experience)

    def recorded_rounds(self, task: SharedTask) -> tuple[RecordedRound, ...]:
        """The rounds that a search for the task goes on from; none where it begins anew."""
        first: dict[int, int] = {}
        for record in self.database.records(*task_key(task.request)) if self.resume else ():
            if record.verified:
                first[record.round] = min(record.id, first.get(record.round, record.id))
        return tuple(RecordedRound(number, round) for round, number in sorted(first.items()))

    def begin(self, task: SharedTask) -> Begun:
        """Workers, data, sketches and records of a task. Raises UsageError where there is no room for its data."""
        request = task.request
        request.check()
        directory = self.scratch / str(self.n_begun)
        self.n_begun += 1
        directory.mkdir(mode=0o700)
        dag = request.problem.dag
        check_room(dag, directory)
        measurer = Measurer(make_problem(dag, directory, self.seed), self.workshop)
        made, sketches = make_task(request, experience=self.experience)
        recorder = start_run(self.database, request, made, sketches, self.seed, self.resume)
        settings = Settings(TRIALS, self.watch.budget_s, self.seed)
        session = begin(
            made, settings, measurer, recorder, self.watch,
            read_peak=peak_reader(self.device, request.problem.dtype, made.source, measurer),
        )  # fmt: skip
        return Begun(session, recorder.steps)
