"""Trials in the record database: the `Recorder` of a session, bound to one run."""

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

TRIED_AGAIN = {kind for kind, fault in FAULTS.items() if fault.tried_again}


@dataclass(frozen=True)
class DatabaseRecorder:
    """`steps` gives a candidate's schedule steps as JSON; `resumed` are the records that the session starts from,
    `others` the best claims about this shape, which are to be measured here, and the best of the operator's other
    shapes, for each shape the best first."""

    database: Database
    run_id: int
    task: Task
    steps: Callable[[Candidate], str]
    resumed: tuple[Record, ...] = ()
    known_s: float | None = None
    others: tuple[tuple[Record, ...], ...] = ()

    def history(self) -> Sequence[Trial]:
        """The resumed records that are candidates of this search space, by name, numbers and steps, oldest first.

        What this installation has not verified counts for nothing: it may be measured here. Nor does a failure that
        says nothing of the candidate: it could not be built, which is a fault of the code generator, or its worker was
        killed by somebody.
        """
        counted = [r for r in self.resumed if r.verified and r.failure not in TRIED_AGAIN]
        found = [(r, self.task.candidate(r.sketch, r.values)) for r in sorted(counted, key=lambda r: r.id)]
        return [
            Trial(candidate, r.round, r.seconds, r.samples, r.failure, r.message, r.id)
            for r, candidate in found
            if candidate is not None and canonical_steps(self.steps(candidate)) == r.steps
        ]

    def relatives(self) -> Sequence[Candidate]:
        """Of the claims and of each other shape the best record that this search space has something like."""
        found = ([c for r in best if (c := self.task.nearest(r.sketch, r.values))] for best in self.others)
        return [candidates[0] for candidates in found if candidates]

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
