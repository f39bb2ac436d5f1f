"""Whose records count: what a worker of this installation found is signed, all else is a claim."""

import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from autosched.runtime.data_files import key_path
from autosched.store import Database, Finding, TargetRow, WorkloadRow
from autosched.store.records import Outcome, canonical_json, digest
from autosched.store.rows import BY_TASK, CANDIDATE_COLUMNS, select
from autosched.store.schema import APPLICATION_ID, SCHEMA_VERSION, TABLES
from autosched.store.signing import KEY_BYTES, installation_key, is_signed, signature
from tests.helpers import in_threads
from tests.store.tasks import TASK, add, steps


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *outcomes: tuple[int, float | None]) -> Path:
    """Records of another installation, as JSON Lines: (number, seconds or None for a failure)."""
    file = tmp_path / "elsewhere.jsonl"
    with monkeypatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path / "their home"))
        with Database(tmp_path / "theirs.db") as theirs:
            run = theirs.start_run(WorkloadRow(TASK[0], "matmul", "{}"), TargetRow(TASK[1], "{}"), TASK[2], 0)
            for n, seconds in outcomes:
                add(theirs, run, n, seconds, None if seconds else "crash")
            assert all(r.verified for r in theirs.records(*TASK))
            theirs.export_jsonl(file)
    return file


def test_what_is_measured_here_is_verified(database: Database, run: int, path: Path) -> None:
    row = add(database, run, 1)
    failed = add(database, run, 2, None, "crash")
    assert database.record(row).verified
    assert database.record(failed).verified
    database.certify(row, 2e-3, (1e-3, 3e-3))
    with Database(path) as again:
        record = again.record(row)
        assert (record.verified, record.certified, record.seconds) == (True, True, 2e-3)
    assert key_path().stat().st_mode & 0o777 == 0o600
    assert len(key_path().read_bytes()) == KEY_BYTES
    assert key_path().read_bytes() not in path.read_bytes()


def test_an_import_is_a_claim_and_stands_behind_what_was_verified(
    database: Database, run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = add(database, run, 1, 5e-3)
    database.import_jsonl(elsewhere(tmp_path, monkeypatch, (2, 1e-6), (3, 1e-9)))
    found = database.best(*TASK, n=9)
    assert [(r.steps, r.verified) for r in found] == [
        (database.record(mine).steps, True),
        (steps(3).replace(" ", ""), False),
        (steps(2).replace(" ", ""), False),
    ]


def test_claims_about_a_candidate_of_ours_change_nothing(
    database: Database, run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = add(database, run, 1, 5e-3), add(database, run, 2, None, "wrong_result")
    before = database.records(*TASK)
    database.import_jsonl(elsewhere(tmp_path, monkeypatch, (1, None), (2, 1e-9)))
    assert database.records(*TASK) == before
    assert database.record(good).seconds == 5e-3
    assert database.record(bad).failure == "wrong_result"


def test_a_worker_here_turns_a_claim_into_a_record(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.import_jsonl(elsewhere(tmp_path, monkeypatch, (1, 1e-9), (2, 1e-9)))
    first, second = database.records(*TASK)
    database.append_to(first, Finding(4e-3, (4e-3,)))
    database.append_to(second, Finding(None, (), "wrong_result", "element 3"))
    assert (database.record(first.id).seconds, database.record(first.id).verified) == (4e-3, True)
    assert (database.record(second.id).failure, database.record(second.id).verified) == ("wrong_result", True)
    assert [r.id for r in database.best(*TASK, n=9)] == [first.id]


def test_an_export_comes_home_verified(database: Database, run: int, tmp_path: Path) -> None:
    add(database, run, 1)
    add(database, run, 2, None, "crash")
    database.certify(1, 2e-3, (1e-3, 3e-3))
    database.export_jsonl(tmp_path / "out.jsonl")
    with Database(tmp_path / "new.db") as other:
        other.import_jsonl(tmp_path / "out.jsonl")
        assert [r.verified for r in other.records(*TASK)] == [True, True]


def test_an_older_export_does_not_revive_what_failed_since(tmp_path: Path) -> None:
    """Its measurement gets the greater number, and was made before the failure."""
    for name in ("a", "b"):
        with Database(tmp_path / name) as database:
            run = database.start_run(WorkloadRow(TASK[0], "matmul", "{}"), TargetRow(TASK[1], "{}"), TASK[2], 0)
            row = add(database, run, 1, 1e-3 if name == "a" else None, None if name == "a" else "wrong_result")
            database.export_jsonl(tmp_path / f"{name}.jsonl")
    with Database(tmp_path / "b") as database:
        database.import_jsonl(tmp_path / "a.jsonl")
        assert database.record(row).failure == "wrong_result"
        add(database, run, 1, 2e-3)
        assert database.record(row).seconds == 2e-3


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE measurements SET seconds = 1e-9, sha256 = ?1 WHERE id = 2",
        "UPDATE measurements SET signature = (SELECT signature FROM measurements WHERE id = 1), sha256 = ?1 WHERE id = 2",
        "UPDATE measurements SET signature = 'ff', sha256 = ?1 WHERE id = 2",
    ],
)
def test_a_forged_row_is_a_claim(path: Path, database: Database, run: int, statement: str) -> None:
    """By somebody who knows how rows are hashed."""
    mine, forged = add(database, run, 1, 5e-3), add(database, run, 2, 9e-3)
    with sqlite3.connect(path) as raw:
        raw.row_factory = sqlite3.Row
        raw.execute(statement, ("",))
        columns = "candidate, attempt, run_id, seconds, samples, ci_lo, ci_hi, created, signature"
        row = raw.execute(f"SELECT {columns} FROM measurements WHERE id = 2").fetchone()
        raw.execute("UPDATE measurements SET sha256 = ? WHERE id = 2", (digest(*row),))
    raw.close()
    assert [(r.id, r.verified) for r in database.best(*TASK, n=2)] == [(mine, True), (forged, False)]
    assert database.damaged == 0


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seconds", -1.0),
        ("seconds", 0.0),
        ("seconds", "soon"),
        ("samples", "[NaN]"),
        ("samples", '["x"]'),
        ("samples", "7"),
        ("samples", f"[1{'0' * 400}]"),
        ("samples", "[" * 100_000),
        ("attempt", "first"),
        ("attempt", 0.5),
        ("attempt", 2**62),
        ("ci_lo", 1e-3),
        ("signature", "\u2713"),
    ],
)
def test_what_nobody_writes_is_damaged_whatever_its_hash(
    path: Path, database: Database, run: int, column: str, value: object
) -> None:
    row = add(database, run, 1)
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE measurements SET {column} = ?", (value,))
        columns = "candidate, attempt, run_id, seconds, samples, ci_lo, ci_hi, created, signature"
        raw.execute(
            "UPDATE measurements SET sha256 = ?",
            (digest(*raw.execute(f"SELECT {columns} FROM measurements").fetchone()),),
        )
    raw.close()
    assert [r.id for r in database.records(*TASK) if r.verified] == (
        [row] if column == "attempt" and value == 2**62 else []
    )
    assert [r.id for r in database.best(*TASK)] == ([row] if value in (2**62, "\u2713") else [])
    database.check()


def test_the_steps_of_another_candidate_are_not_verified(path: Path, database: Database, run: int) -> None:
    """A measured record whose schedule was put into a row with a better time."""
    slow, fast = add(database, run, 1, 5e-3), add(database, run, 2, 1e-6)
    with sqlite3.connect(path) as raw:
        names = "run_id, workload, target, threads, sketch, steps, bindings, round, created, identity"
        row = list(raw.execute(f"SELECT {names} FROM candidates WHERE id = ?", (fast,)).fetchone())
        row[5] = '[["split","C",77]]'
        raw.execute("UPDATE candidates SET steps = ?, sha256 = ? WHERE id = ?", (row[5], digest(*row), fast))
    raw.close()
    assert [(r.id, r.verified) for r in database.best(*TASK, n=2)] == [(slow, True), (fast, False)]


def test_a_signature_that_was_taken_away_is_damage(path: Path, database: Database, run: int) -> None:
    add(database, run, 1)
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE measurements SET signature = NULL")
    raw.close()
    assert database.records(*TASK) == []
    assert database.damaged == 1


def test_a_line_with_a_signature_of_another_kind_is_damaged(database: Database, run: int, tmp_path: Path) -> None:
    add(database, run, 1)
    database.export_jsonl(tmp_path / "out.jsonl")
    content = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[1])
    del content["sha256"]
    for bad in (3, "x", "\ud800", "f" * 65):
        content["outcomes"][0]["signature"] = bad
        (tmp_path / "bad.jsonl").write_text(canonical_json({**content, "sha256": digest(content)}))
        assert database.import_jsonl(tmp_path / "bad.jsonl") == (0, 1)


def test_the_signature_is_of_candidate_and_content() -> None:
    key, outcome = bytes(KEY_BYTES), Outcome(0, 1, 1e-3, (1e-3,), None, None, "", "2026")
    signed = replace(outcome, signature=signature(key, "a", outcome))
    assert is_signed(key, "a", signed)
    assert is_signed(key, "a", replace(signed, order=3, run_id=9))  # as in another database
    assert not is_signed(key, "b", signed)
    assert not is_signed(bytes([1] * KEY_BYTES), "a", signed)
    assert not is_signed(None, "a", signed)
    assert not is_signed(key, "a", outcome)
    for change in (
        {"seconds": 2e-3}, {"samples": ()}, {"ci": (1e-3, 1e-3)}, {"failure": "crash"}, {"message": "x"}, {"created": ""},
    ):  # fmt: skip
        assert not is_signed(key, "a", replace(signed, **change))  # type: ignore[arg-type]


# The key


@pytest.mark.parametrize("damage", ["replaced", "missing", "short", "long", "open", "link", "directory"])
def test_without_its_key_nothing_is_ours_and_nothing_fails(
    database: Database, run: int, path: Path, tmp_path: Path, damage: str
) -> None:
    row, key = add(database, run, 1), key_path()
    content = key.read_bytes()
    key.unlink()
    match damage:
        case "replaced" | "short" | "long":
            key.write_bytes({"replaced": bytes(KEY_BYTES), "short": content[:-1], "long": content * 2}[damage])
            key.chmod(0o600)
        case "open":  # anybody may have read it
            key.write_bytes(content)
            key.chmod(0o644)
        case "link":
            (tmp_path / "key").write_bytes(content)
            key.symlink_to(tmp_path / "key")
        case "directory":
            key.mkdir()
    with Database(path) as again:
        record = again.record(row)
        assert (record.verified, record.seconds) == (False, 1e-3)
        assert [r.id for r in again.best(*TASK)] == [row]
        another = add(again, run, 2)
        assert again.record(another).verified == (damage in ("replaced", "missing"))


def test_a_home_that_cannot_be_written(path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write_text("a file where the directory would be")
    with Database(path) as database:
        run = database.start_run(WorkloadRow(TASK[0], "matmul", "{}"), TargetRow(TASK[1], "{}"), TASK[2], 0)
        assert not database.record(add(database, run, 1)).verified
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # an unknown user
    assert installation_key(make=True) is None


def test_reading_makes_no_key(path: Path) -> None:
    Database(path).close()
    assert not key_path().exists()


def test_all_who_make_the_key_at_once_have_the_same() -> None:
    found: list[bytes | None] = []
    in_threads(lambda _: found.append(installation_key(make=True)), range(8))
    assert len(found) == 8
    assert len(set(found)) == 1
    assert found[0] is not None
    assert os.listdir(key_path().parent) == [key_path().name]


# Files of schema version 1


def old_file(path: Path) -> None:
    """As version 1 made it, with one measurement and one failure."""
    with sqlite3.connect(path) as raw:
        for statement in TABLES:
            raw.execute(statement)
        raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        raw.execute("PRAGMA user_version = 1")
        run = ("u" * 32, *TASK, 0, "2026", None, "finished")
        names = "uid, workload, target, threads, seed, started, finished, status, sha256"
        raw.execute(f"INSERT INTO runs ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*run, digest(*run[:6])))
        for n in (1, 2):
            text = steps(n).replace(" ", "")
            what = (1, *TASK, "sketch0", text, "{}", 0, "2026", digest(*TASK, "sketch0", text))
            raw.execute(
                f"INSERT INTO candidates ({CANDIDATE_COLUMNS}) VALUES ({n}{', ?' * 11})", (*what, digest(*what))
            )
        measured = (1, 0, 1, 1e-3, "[0.001]", None, None, "2026")
        raw.execute(f"INSERT INTO measurements VALUES (1{', ?' * 9})", (*measured, digest(*measured)))
        failed = (2, 0, 1, "crash", "why", "2026")
        raw.execute(f"INSERT INTO failures VALUES (1{', ?' * 7})", (*failed, digest(*failed)))
    raw.close()


def test_a_file_of_version_1_is_taken_over(path: Path) -> None:
    old_file(path)
    with Database(path) as database:
        assert [(r.seconds, r.failure, r.verified) for r in database.records(*TASK)] == [
            (1e-3, None, False),
            (None, "crash", False),
        ]
        assert database.check().ok
        run = database.runs()[0].id
        add(database, run, 1, 2e-3)
        assert (database.record(1).seconds, database.record(1).verified) == (2e-3, True)
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    raw.close()
    with Database(path) as database:
        assert len(database.records(*TASK)) == 2


def test_a_file_of_version_1_can_be_read_as_it_is(path: Path) -> None:
    old_file(path)
    raw = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    raw.row_factory = sqlite3.Row
    damaged: list[object] = []
    found = select(raw, BY_TASK, TASK, lambda *row: damaged.append(row))
    assert [[(o.seconds, o.signature) for o in outcomes] for _, outcomes in found] == [[(1e-3, None)], [(None, None)]]
    assert not damaged
    raw.close()


def test_an_upgrade_that_is_cut_short_leaves_version_1(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_file(path)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(
            "autosched.store.schema.UPGRADES", {2: ("ALTER TABLE measurements ADD COLUMN signature TEXT", "?")}
        )
        with pytest.raises(Exception, match="could not be used"):
            Database(path)
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (1,)
    raw.close()
    assert b"signature" not in before
    with Database(path) as database:
        assert len(database.records(*TASK)) == 2
