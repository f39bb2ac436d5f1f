"""Recorder of a session: its trials in the record database, as one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosched.measure.results import FAULTS
from autosched.store.records import Finding, canonical_steps
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.task import Task

if TYPE_CHECKING:
    from autosched.store import Database, Record

RETRIED_FAULTS = {kind for kind, fault in FAULTS.items() if fault.tried_again}


@dataclass(frozen=True)
class DatabaseRecorder:
    """`steps`: returns a candidate's schedule steps as JSON. `resumed`: records that the session resumes from.
    `others`: unverified records of this shape, and records of the operator's other shapes, each best first."""

    database: Database
    run_id: int
    task: Task
    steps: Callable[[Candidate], str]
    resumed: tuple[Record, ...] = ()
    known_s: float | None = None
    others: tuple[tuple[Record, ...], ...] = ()

    def history(self) -> Sequence[Trial]:
        """Return the resumed records that are candidates of this search space by name, values and steps, oldest first.

        Unverified records are left out, because they may be measured here. So are failures that say nothing about the
        candidate: it could not be built, which is an error of the code generator, or its worker was killed.
        """
        valid = [r for r in self.resumed if r.verified and r.failure not in RETRIED_FAULTS]
        pairs = [(r, self.task.candidate(r.sketch, r.values)) for r in sorted(valid, key=lambda r: r.id)]
        return [
            Trial(candidate, r.round, r.seconds, r.samples, r.failure, r.message, r.id)
            for r, candidate in pairs
            if candidate is not None and canonical_steps(self.steps(candidate)) == r.steps
        ]

    def relatives(self) -> Sequence[Candidate]:
        """Return the candidate nearest to the best fitting record of each entry of `others`."""
        nearest = ([c for r in best if (c := self.task.nearest(r.sketch, r.values))] for best in self.others)
        return [candidates[0] for candidates in nearest if candidates]

    def append(self, trial: Trial) -> int:
        return self.database.append(
            self.run_id,
            self.task.sketches[trial.candidate.sketch].name,
            self.steps(trial.candidate),
            self.task.values(trial.candidate),
            trial.round,
            Finding(trial.seconds, trial.samples, trial.failure, trial.message),
        )

    def certify(self, record_id: int, seconds: float, ci: tuple[float, float]) -> None:
        self.database.certify(record_id, seconds, ci, self.run_id)

    def finish(self, status: str) -> None:
        self.database.finish_run(self.run_id, status)
