"""Conversion between rows and objects: the SQL of candidates and outcomes, with the hash check of every row that is
read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import index
from typing import TypeVar

from autosched.errors import StoreError
from autosched.store.records import (
    CandidateRow,
    FusionDecision,
    Outcome,
    Run,
    TargetRow,
    WorkloadRow,
    canonical_json,
    checked_outcome,
    checked_times,
    checked_values,
    digest,
    lost_outcome,
    parse_data,
    with_alternative,
)

T = TypeVar("T")
Damage = Callable[[str, object], None]  # called with (table, row key) for a row whose hash does not fit

CANDIDATE_COLUMNS = "id, run_id, workload, target, threads, sketch, steps, bindings, round, created, identity, sha256"
MEASUREMENT_COLUMNS = "id, candidate, attempt, run_id, seconds, samples, ci_lo, ci_hi, created, signature, sha256"
FAILURE_COLUMNS = "id, candidate, attempt, run_id, class, message, created, signature, sha256"
FUSION_COLUMNS = "id, workload, target, threads, is_fused, fused_s, unfused_s, created, signature, sha256"
SIGNED_SINCE = 2  # the schema version that has the column `signature`
FUSION_SINCE = 3  # the schema version that has the table `fusion_decisions`

HASHED = slice(1, -1)  # all columns but the row's id and the hash itself

# Conditions of queries for candidates, with bound parameters only. Several workloads are a JSON list.
BY_TASK = "workload = ? AND target = ? AND threads = ?"
BY_TASKS = "workload IN (SELECT value FROM json_each(?)) AND target = ? AND threads = ?"
CERTIFIED_BY_TASKS = f"""{BY_TASKS} AND EXISTS (
    SELECT 1 FROM measurements WHERE measurements.candidate = candidates.id AND ci_lo IS NOT NULL)"""
BY_ID_RANGE = "id BETWEEN ? AND ?"


def insert_candidate(connection: sqlite3.Connection, candidate: CandidateRow) -> int:
    """Return the id of the candidate's row: a new one, or the one that has the same identity already."""
    identity = candidate.identity
    found = connection.execute("SELECT id FROM candidates WHERE identity = ?", (identity,)).fetchone()
    if found is not None:
        return int(found[0])
    c = candidate
    what = (c.run_id, c.workload, c.target, c.threads, c.sketch, c.steps, canonical_json(c.values))
    return _insert(connection, "candidates", CANDIDATE_COLUMNS, (*what, c.round, c.created, identity))


def insert_outcome(connection: sqlite3.Connection, candidate_id: int, outcome: Outcome) -> None:
    """Append an attempt to a candidate; `outcome.order` is ignored, the next free number is taken."""
    attempt = connection.execute(
        "SELECT (SELECT count(*) FROM measurements WHERE candidate = ?1) "
        "+ (SELECT count(*) FROM failures WHERE candidate = ?1)",
        (candidate_id,),
    ).fetchone()[0]
    key = (candidate_id, attempt, outcome.run_id)
    if outcome.failure is None:
        ci = outcome.ci or (None, None)
        row = (*key, outcome.seconds, canonical_json(outcome.samples), *ci, outcome.created, outcome.signature)
        _insert(connection, "measurements", MEASUREMENT_COLUMNS, row, outcome_digest)
    else:
        row = (*key, outcome.failure, outcome.message, outcome.created, outcome.signature)
        _insert(connection, "failures", FAILURE_COLUMNS, row, outcome_digest)


def outcome_digest(*columns: object) -> str:
    """Return the hash of an outcome's row. The last of `columns`, the signature, is hashed if it is there: rows of
    schema version 1 have none.
    """
    return digest(*(columns[:-1] if columns[-1] is None else columns))


def _insert(
    connection: sqlite3.Connection,
    table: str,
    columns: str,
    row: tuple[object, ...],
    hashing: Callable[..., str] = digest,
) -> int:
    """Insert a row of all `columns` and return its id: the first column is the id, the last the hash, `row` is between
    them.
    """
    _, names = columns.split(", ", 1)
    places = ", ".join("?" * (len(row) + 1))
    cursor = connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", (*row, hashing(*row)))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def select(
    connection: sqlite3.Connection, where: str, keys: Sequence[object], damage: Damage
) -> list[tuple[CandidateRow, list[Outcome]]]:
    """Return candidates in id order with their outcomes in order of attempts. `where`: one of the conditions above.

    The last outcome is a substitute if any could not be read (see `records.LOST`).
    """
    candidates = connection.execute(f"SELECT {CANDIDATE_COLUMNS} FROM candidates WHERE {where} ORDER BY id", keys)
    found: dict[int, tuple[CandidateRow, list[Outcome]]] = {}
    n_rows: dict[object, int] = {}
    for row in candidates:
        candidate = checked(row, HASHED, _candidate)
        if candidate is None:
            damage("candidates", row["id"])
        else:
            found[candidate.id] = (candidate, [])
    has_signatures = connection.execute("PRAGMA user_version").fetchone()[0] >= SIGNED_SINCE
    outcomes = (("measurements", MEASUREMENT_COLUMNS, _measurement), ("failures", FAILURE_COLUMNS, _failure))
    for table, columns, read in outcomes:
        if not has_signatures:  # a file of version 1 that may not be written
            columns = columns.replace("signature", "NULL AS signature")
        query = f"SELECT {columns} FROM {table} WHERE candidate IN (SELECT id FROM candidates WHERE {where})"
        for row in connection.execute(query, keys):
            n_rows[row["candidate"]] = n_rows.get(row["candidate"], 0) + 1
            outcome = checked(row, HASHED, read, outcome_digest)
            if outcome is None:
                damage(table, row["id"])
            elif row["candidate"] in found:
                found[row["candidate"]][1].append(outcome)
    for number, (_, attempts) in found.items():
        attempts.extend(_lost(attempts, n_rows.get(number, 0)))
        attempts.sort(key=lambda o: o.order)
    return list(found.values())


def _lost(outcomes: Sequence[Outcome], n_rows: int) -> list[Outcome]:
    """Return a substitute for the last outcome that is not readable.

    Attempts are numbered 0, 1, 2, ... without gaps, so a missing number shows a damaged or missing row. The content of
    damaged rows is not used.
    """
    places = {o.order for o in outcomes}
    place = max(n_rows, 1 + max(places, default=-1)) - 1
    while place in places:
        place -= 1
    return [lost_outcome(place)] if place >= 0 else []


def insert_fusion_decision(connection: sqlite3.Connection, decision: FusionDecision) -> None:
    """Append a decision; one that is there already is not added again."""
    d = decision
    times = (canonical_json(d.fused_s), canonical_json(d.unfused_s))
    row = (d.workload, d.target, d.threads, int(d.is_fused), *times, d.created, d.signature)
    if not connection.execute("SELECT 1 FROM fusion_decisions WHERE sha256 = ?", (digest(*row),)).fetchone():
        _insert(connection, "fusion_decisions", FUSION_COLUMNS, row)


def select_fusion_decisions(
    connection: sqlite3.Connection, where: str, keys: Sequence[object], damage: Damage
) -> list[FusionDecision]:
    """Return decisions in the order in which they were added. `where`: BY_TASK or BY_ID_RANGE."""
    if connection.execute("PRAGMA user_version").fetchone()[0] < FUSION_SINCE:  # a file that may not be written
        return []
    query = f"SELECT {FUSION_COLUMNS} FROM fusion_decisions WHERE {where} ORDER BY id"
    decisions = []
    for row in connection.execute(query, keys):
        decision = checked(row, HASHED, _fusion_decision)
        if decision is None:
            damage("fusion_decisions", row["id"])
        else:
            decisions.append(decision)
    return decisions


def _fusion_decision(row: sqlite3.Row) -> FusionDecision:
    fused_s, unfused_s = (checked_times(parse_data(row[name])) for name in ("fused_s", "unfused_s"))
    task = (row["workload"], row["target"], index(row["threads"]))
    return FusionDecision(*task, bool(row["is_fused"]), fused_s, unfused_s, row["created"], row["signature"])


def insert_task(connection: sqlite3.Connection, workload: WorkloadRow, target: TargetRow) -> None:
    row = (workload.hash, workload.name, workload.spec)
    connection.execute("INSERT OR IGNORE INTO workloads VALUES (?, ?, ?, ?)", (*row, digest(*row)))
    name, spec = connection.execute("SELECT name, spec FROM workloads WHERE hash = ?", (workload.hash,)).fetchone()
    if (joined := with_alternative(spec, workload.spec)) != spec:
        fresh = (joined, digest(workload.hash, name, joined), workload.hash)
        connection.execute("UPDATE workloads SET spec = ?, sha256 = ? WHERE hash = ?", fresh)
    pair = (target.fingerprint, target.json)
    connection.execute("INSERT OR IGNORE INTO targets VALUES (?, ?, ?)", (*pair, digest(*pair)))


def insert_run(connection: sqlite3.Connection, run: Run) -> int:
    """Return the id of the run with this uid, inserted if it is new; `run.id` is ignored."""
    fixed = (run.uid, run.workload, run.target, run.threads, run.seed, run.started)
    connection.execute(
        "INSERT OR IGNORE INTO runs (uid, workload, target, threads, seed, started, finished, status, sha256) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*fixed, run.finished, run.status, digest(*fixed)),
    )
    return int(connection.execute("SELECT id FROM runs WHERE uid = ?", (run.uid,)).fetchone()[0])


def checked(
    row: sqlite3.Row, hashed: slice, read: Callable[[sqlite3.Row], T], hashing: Callable[..., str] = digest
) -> T | None:
    """Return the object that `read` gives for a row; None if the hash (last column) over the columns `hashed` is wrong,
    or if the row has invalid values.
    """
    try:
        return read(row) if hashing(*row[hashed]) == row["sha256"] else None
    except (
        StoreError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
    ):  # a flipped bit, or a row of another program
        return None


def _candidate(row: sqlite3.Row) -> CandidateRow:
    data = dict(zip((f.name for f in fields(CandidateRow)), row, strict=False))  # its identity and the hash follow
    parse_data(row["steps"])  # may come from elsewhere with a right hash, so it is bounded as imports are
    return CandidateRow(**{**data, "values": checked_values(_bindings(row["bindings"]))})


def _bindings(text: str) -> dict[str, int]:
    found = parse_data(text)
    if not isinstance(found, dict) or not all(type(value) is int for value in found.values()):
        raise TypeError("parameter values are integers by name")
    return found


def _measurement(row: sqlite3.Row) -> Outcome:
    ci = None if row["ci_lo"] is None else (row["ci_lo"], row["ci_hi"])
    samples = parse_data(row["samples"])
    if not isinstance(samples, list):
        raise TypeError("samples are a list")
    checked_outcome(row["seconds"], (*samples, *(ci or ())), None)
    made = (row["created"], row["signature"])
    return Outcome(index(row["attempt"]), row["run_id"], row["seconds"], tuple(samples), ci, None, "", *made)


def _failure(row: sqlite3.Row) -> Outcome:
    made = (row["created"], row["signature"])
    return Outcome(index(row["attempt"]), row["run_id"], None, (), None, row["class"], row["message"], *made)
