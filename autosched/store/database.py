"""Append-only database of records in one SQLite file, which several processes may write at the same time."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from autosched.errors import StoreError
from autosched.runtime.data_files import default_path
from autosched.store import jsonl, rows
from autosched.store.records import (
    LOST,
    MAX_INT,
    MAX_MESSAGE,
    RUN_STATES,
    CandidateRow,
    Finding,
    FusionDecision,
    Outcome,
    Record,
    Run,
    TargetRow,
    WorkloadRow,
    canonical_json,
    canonical_steps,
    checked_outcome,
    checked_times,
    checked_values,
    now,
    rank,
    to_record,
)
from autosched.store.schema import MALFORMED, absolute_path, command, one_sentence, open_connection, write_transaction
from autosched.store.signing import installation_key, is_signed, signature

BATCH = 256  # the number of candidates read, or lines imported, at a time
MIN_ROW_BYTES = 100  # a candidate's row holds two sha256 in hex, so it is longer

T = TypeVar("T")


@dataclass(frozen=True)
class Health:
    """The result of a check: `problems` as reported by SQLite (empty: the file is sound), the number of readable
    records, the number of rows with a wrong hash.
    """

    problems: tuple[str, ...]
    n_records: int
    n_damaged: int

    @property
    def ok(self) -> bool:
        return not self.problems and self.n_damaged == 0


class Database:
    """The records of one file. A context manager; every method that writes is durable when it returns.

    `path=None` is the default file. With `create=False` a missing file is an error, and a read-only one may be read.
    All errors are StoreError with one sentence. Rows with a wrong hash are left out and counted in `damaged`.
    """

    def __init__(self, path: Path | str | None = None, *, create: bool = True) -> None:
        self.path = absolute_path(default_path() if path is None else path)
        self._connection = open_connection(self.path, create=create)
        with one_sentence(self.path):
            self._inode = self.path.stat().st_ino
        self._damaged: set[tuple[str, object]] = set()
        self._runs: dict[int, Run] = {}
        self._key = installation_key()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def damaged(self) -> int:
        """The number of different damaged rows in all reads so far."""
        return len(self._damaged)

    # Writing

    def start_run(self, workload: WorkloadRow, target: TargetRow, threads: int, seed: int) -> int:
        """Add a search with its workload and target; return the run's id."""
        uid, begun = uuid.uuid4().hex, now()
        run = Run(0, uid, workload.hash, target.fingerprint, threads, seed, begun, None, RUN_STATES[0])
        with self._write():
            rows.insert_task(self._connection, workload, target)
            return rows.insert_run(self._connection, run)

    def finish_run(self, run_id: int, status: str = "finished") -> None:
        """Set the status of a run, one of RUN_STATES."""
        if status not in RUN_STATES:
            raise StoreError(f"a run's status is one of {', '.join(RUN_STATES)}, got {status!r}")
        with self._write():
            self._connection.execute("UPDATE runs SET status = ?, finished = ? WHERE id = ?", (status, now(), run_id))

    def append(
        self, run_id: int, sketch: str, steps_json: str, values: Mapping[str, int], round: int, finding: Finding
    ) -> int:
        """Add a worker's result for a candidate, and return the record's id.

        A candidate of the same identity (workload, target, threads, sketch, steps) keeps its id and gets one more
        outcome.
        """
        steps, plain = canonical_steps(steps_json), checked_values(values)
        run = self._run(run_id)
        candidate = CandidateRow(
            0, run_id, run.workload, run.target, run.threads, sketch, steps, plain, int(round), created := now()
        )
        outcome = self._signed(candidate, _outcome(run_id, finding, created))
        with self._write():
            candidate_id = rows.insert_candidate(self._connection, candidate)
            rows.insert_outcome(self._connection, candidate_id, outcome)
        return candidate_id

    def append_to(self, record: Record, finding: Finding) -> None:
        """Add a worker's new result to a record, as `append` does."""
        signed = self._signed(record, _outcome(record.run_id, finding, now()))
        with self._write():
            rows.insert_outcome(self._connection, record.id, signed)

    def certify(self, record_id: int, seconds: float, ci: tuple[float, float], run_id: int | None = None) -> None:
        """Add the final, interleaved measurement of a record: median and interval (lo, hi) in seconds."""
        record = self.record(record_id)
        run = record.run_id if run_id is None else run_id
        interval = (float(ci[0]), float(ci[1]))
        outcome = self._signed(record, Outcome(0, run, float(seconds), (), interval, None, "", now()))
        with self._write():
            rows.insert_outcome(self._connection, record_id, outcome)

    def add_fusion_decision(self, workload: WorkloadRow, target: TargetRow, decision: FusionDecision) -> None:
        """Add a measured decision. `workload`: the fused kernel. The time of creation and the signature are added."""
        checked_times((*decision.fused_s, *decision.unfused_s))
        decision = replace(decision, created=now())
        self._key = self._key or installation_key(make=True)
        if self._key is not None:
            decision = replace(decision, signature=signature(self._key, decision.workload, decision))
        with self._write():
            rows.insert_task(self._connection, workload, target)
            rows.insert_fusion_decision(self._connection, decision)

    # Reading

    def fusion_decision(self, workload_hash: str, target: str, threads: int) -> FusionDecision | None:
        """Return the latest decision of this installation about a fused kernel; None without one."""
        given = (workload_hash, target, threads)
        with one_sentence(self.path):
            found = rows.select_fusion_decisions(self._connection, rows.BY_TASK, given, self._damage)
        ours = [decision for decision in found if is_signed(self._key, decision.workload, decision)]
        return max(ours, key=lambda decision: decision.created, default=None)

    def best(self, workload_hash: str, target: str, threads: int, n: int | None = 1) -> list[Record]:
        """Return the `n` best records, best first, without failures.

        Records that this installation has verified precede the others; among both, certified ones precede the rest;
        then the time decides.
        """
        measured = [r for r in self.records(workload_hash, target, threads) if r.seconds is not None]
        return sorted(measured, key=rank)[:n]

    def best_of(self, workload_hashes: Iterable[str], target: str, threads: int) -> dict[str, list[Record]]:
        """Return the records of `best` for each of several workloads; workloads without records are left out.

        If the best record of a workload is certified, only its certified ones are returned, which are few: the others
        are not read.
        """
        wanted = set(workload_hashes)
        found = self._grouped(rows.CERTIFIED_BY_TASKS, wanted, target, threads)
        certified = {name: records for name, records in found.items() if records[0].verified and records[0].certified}
        return self._grouped(rows.BY_TASKS, wanted - set(certified), target, threads) | certified

    def _grouped(self, where: str, workload_hashes: set[str], target: str, threads: int) -> dict[str, list[Record]]:
        """Return measured records by workload, the best first."""
        given = (canonical_json(sorted(workload_hashes)), target, threads)
        with one_sentence(self.path):
            found = rows.select(self._connection, where, given, self._damage) if workload_hashes else []
        measured = [r for pair in found if (r := self._record(*pair)) is not None and r.seconds is not None]
        grouped: dict[str, list[Record]] = {}
        for record in sorted(measured, key=rank):
            grouped.setdefault(record.workload, []).append(record)
        return grouped

    def records(self, workload_hash: str, target: str, threads: int) -> list[Record]:
        """Return all records of a task, including failures, in the order of their first trial."""
        with one_sentence(self.path):
            found = rows.select(self._connection, rows.BY_TASK, (workload_hash, target, threads), self._damage)
        return [r for r in (self._record(*pair) for pair in found) if r is not None]

    def record(self, record_id: int) -> Record:
        """Return the record with this id. Raises StoreError if there is none, or if its row is damaged."""
        with one_sentence(self.path):
            try:
                found = rows.select(self._connection, rows.BY_ID_RANGE, (record_id, record_id), self._damage)
            except OverflowError:  # beyond the integers of SQLite
                found = []
        record = self._record(*found[0]) if found else None
        if record is None:
            listing = command("best", self.path)
            raise StoreError(f"there is no record {record_id} in {self.path}: `{listing}` lists the ids")
        return record

    def workload(self, workload_hash: str) -> WorkloadRow:
        found = [w for w in self.workloads() if w.hash == workload_hash]
        if not found:
            listing = command("best", self.path)
            raise StoreError(f"there is no workload {workload_hash} in {self.path}: `{listing}` lists what is")
        return found[0]

    def workloads(self) -> list[WorkloadRow]:
        query = "SELECT hash, name, spec, sha256 FROM workloads ORDER BY rowid"
        return self._read("workloads", query, lambda row: WorkloadRow(*row[:-1]), slice(0, 3))

    def targets(self) -> dict[str, str]:
        """Return the target's description as JSON by fingerprint."""
        query = "SELECT fingerprint, json, sha256 FROM targets ORDER BY rowid"
        return dict(self._read("targets", query, lambda row: (row["fingerprint"], row["json"]), slice(0, 2)))

    def runs(self) -> list[Run]:
        columns = "id, uid, workload, target, threads, seed, started, finished, status, sha256"
        return self._read("runs", f"SELECT {columns} FROM runs ORDER BY id", lambda row: Run(*row[:-1]), slice(1, 7))

    # Whole file

    def export_jsonl(self, path: Path | str) -> int:
        """Write all readable records to a JSON Lines file, complete or not at all; return their number."""
        return jsonl.write(absolute_path(path), self._lines())

    def import_jsonl(self, path: Path | str) -> tuple[int, int]:
        """Add the records of a JSON Lines file; return the numbers of lines kept and of lines skipped as damaged. A
        second import adds nothing.
        """
        kept = skipped = 0
        batch: list[jsonl.Line | jsonl.FusionLine] = []
        for line in jsonl.read(absolute_path(path)):
            if line is None:
                skipped += 1
                continue
            kept += 1
            batch.append(line)
            if len(batch) == BATCH:
                self._merge(batch)
                batch = []
        self._merge(batch)
        return kept, skipped

    def check(self) -> Health:
        """Check the file by SQLite's integrity check and the hash of every row."""
        with one_sentence(self.path):
            try:
                answers = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check")]
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # too damaged even to be checked
                answers = [str(error)]
        n_records = sum(1 for _ in self._lines())
        problems = tuple(a for a in answers if a != "ok")
        return Health(problems, n_records, self.damaged)

    # Inside

    @contextmanager
    def _write(self) -> Iterator[None]:
        with one_sentence(self.path):
            if not self.path.exists() or self.path.stat().st_ino != self._inode:
                raise StoreError(f"the database {self.path} was moved or deleted while it was in use: start again")
            with write_transaction(self._connection):
                yield

    def _read(self, table: str, query: str, make: Callable[[sqlite3.Row], T], hashed: slice) -> list[T]:
        """Read rows of a small table through `make`, up to the first page that cannot be read.

        The last column is the hash over the columns `hashed`.
        """
        found = []
        with one_sentence(self.path):
            try:
                for row in self._connection.execute(query):
                    made = rows.checked(row, hashed, make)
                    if made is None:
                        self._damage(table, row[0])
                    else:
                        found.append(made)
            except sqlite3.DatabaseError as error:
                if MALFORMED not in str(error):
                    raise
                self._damage(table, "the rest")
        return found

    def _signed(self, candidate: CandidateRow | Record, outcome: Outcome) -> Outcome:
        """Return an outcome, checked, with its message cut, and signed with the key of this installation, which is
        created on first use.
        """
        checked_outcome(outcome.seconds, (*outcome.samples, *(outcome.ci or ())), outcome.failure)
        outcome = replace(outcome, message=outcome.message[:MAX_MESSAGE])
        self._key = self._key or installation_key(make=True)
        if self._key is None:
            return outcome
        return replace(outcome, signature=signature(self._key, candidate.identity, outcome))

    def _record(self, candidate: CandidateRow, outcomes: Sequence[Outcome]) -> Record | None:
        identity = candidate.identity
        return to_record(candidate, outcomes, lambda outcome: is_signed(self._key, identity, outcome), self.path)

    def _damage(self, table: str, key: object) -> None:
        self._damaged.add((table, key))

    def _run(self, run_id: int) -> Run:
        """Return the constant fields of a run, which are read once."""
        if run_id not in self._runs:
            self._runs.update((run.id, run) for run in self.runs())
        if run_id not in self._runs:
            raise StoreError(f"there is no run {run_id} in {self.path}")
        return self._runs[run_id]

    def _lines(self) -> Iterator[jsonl.Line | jsonl.FusionLine]:
        """Yield every record as a line, with its workload, target and runs."""
        workloads = {w.hash: w for w in self.workloads()}
        targets = self.targets()
        yield from self._fusion_lines(workloads, targets)
        runs = {run.id: run for run in self.runs()}
        last = self._last_id()
        for start in range(1, last + 1, BATCH):
            with one_sentence(self.path):
                found = self._salvage(start, min(start + BATCH - 1, last))
            for candidate, attempts in found:
                if self._record(candidate, attempts) is not None:
                    outcomes = tuple(o for o in attempts if o.failure != LOST)
                    workload = workloads.get(candidate.workload, WorkloadRow(candidate.workload, "unknown", "{}"))
                    needed = {candidate.run_id, *(o.run_id for o in outcomes)}
                    own_runs = tuple(runs.get(i) or jsonl.lost_run(candidate, i) for i in sorted(needed))
                    target_json = targets.get(candidate.target, "{}")
                    yield jsonl.Line(workload, target_json, own_runs, candidate, outcomes)

    def _fusion_lines(
        self, workloads: Mapping[str, WorkloadRow], targets: Mapping[str, str]
    ) -> Iterator[jsonl.FusionLine]:
        with one_sentence(self.path):
            try:
                decisions = rows.select_fusion_decisions(self._connection, rows.BY_ID_RANGE, (1, MAX_INT), self._damage)
            except sqlite3.DatabaseError as error:
                if MALFORMED not in str(error):
                    raise
                self._damage("fusion_decisions", "the rest")
                return
        for decision in decisions:
            workload = workloads.get(decision.workload, WorkloadRow(decision.workload, "unknown", "{}"))
            yield jsonl.FusionLine(workload, targets.get(decision.target, "{}"), decision)

    def _last_id(self) -> int:
        """Return the largest candidate id, bounded by the file's size in case the number itself is damaged."""
        with one_sentence(self.path):
            log = Path(f"{self.path}-wal")
            size = self.path.stat().st_size + (log.stat().st_size if log.exists() else 0)
            bound = size // MIN_ROW_BYTES
            try:
                newest = self._connection.execute("SELECT max(id) FROM candidates").fetchone()[0]
            except sqlite3.DatabaseError as error:
                if MALFORMED not in str(error):
                    raise
                return bound
        if newest is None:
            return 0
        return min(newest, bound) if isinstance(newest, int) else bound  # a damaged index may give anything

    def _salvage(self, first: int, last: int) -> list[tuple[CandidateRow, list[Outcome]]]:
        """Return the readable candidates first..last; in a damaged file the range is halved to find them."""
        try:
            return rows.select(self._connection, rows.BY_ID_RANGE, (first, last), self._damage)
        except sqlite3.DatabaseError as error:
            if MALFORMED not in str(error):
                raise
            if first == last:
                self._damage("candidates", first)
                return []
            middle = (first + last) // 2
            return self._salvage(first, middle) + self._salvage(middle + 1, last)

    def _merge(self, batch: Sequence[jsonl.Line | jsonl.FusionLine]) -> None:
        if batch:
            with self._write():
                for line in batch:
                    self._merge_line(line)

    def _merge_line(self, line: jsonl.Line | jsonl.FusionLine) -> None:
        """Add the new data of a line, whose run numbers are positions in `line.runs`."""
        if isinstance(line, jsonl.FusionLine):
            rows.insert_task(self._connection, line.workload, TargetRow(line.decision.target, line.target_json))
            rows.insert_fusion_decision(self._connection, line.decision)
            return
        rows.insert_task(self._connection, line.workload, TargetRow(line.candidate.target, line.target_json))
        run_ids = {run.id: rows.insert_run(self._connection, run) for run in line.runs}
        candidate = replace(line.candidate, run_id=run_ids[line.candidate.run_id])
        candidate_id = rows.insert_candidate(self._connection, candidate)
        found = rows.select(self._connection, rows.BY_ID_RANGE, (candidate_id, candidate_id), self._damage)
        known = {replace(o, order=0, signature=None) for _, outcomes in found for o in outcomes}
        for outcome in line.outcomes:
            own = replace(outcome, order=0, run_id=run_ids[outcome.run_id])
            if replace(own, signature=None) not in known:
                rows.insert_outcome(self._connection, candidate_id, own)


def _outcome(run_id: int, finding: Finding, created: str) -> Outcome:
    """Return a finding as the next outcome of its candidate, with NumPy's numbers converted for SQLite."""
    seconds = None if finding.seconds is None else float(finding.seconds)
    times = tuple(float(s) for s in finding.samples)
    return Outcome(0, run_id, seconds, times, None, finding.failure, finding.message, created)
