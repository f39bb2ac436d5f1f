"""What the verbs say of records that this installation has not verified, and commands that name the database again."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autosched import api
from autosched.cli.plot import Curve, _verified_curve
from autosched.cli.stored_tasks import StoredTask
from autosched.errors import RecordWarning
from autosched.runtime.data_files import key_path
from autosched.store import Database, Finding, TargetRow, WorkloadRow, command, default_path
from autosched.store.signing import installation_key


@pytest.fixture
def foreign(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The records of `db`, looked at by another installation."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another home"))
    return db


def test_best_says_what_is_unverified(cli: Any, foreign: Path) -> None:
    answer = cli("best", "matmul", "-n", "9", "--db", foreign)
    _, *rows, last = answer.out.splitlines()
    assert len(rows) == 4
    assert all(", unverified" in row for row in rows)
    assert (
        last
        == f"unverified: from elsewhere, and never run here; `autosched verify ID --db {foreign}` has a worker check one"
    )
    found = cli("best", "matmul", "-n", "9", "--db", foreign, "--json").json["records"]
    assert [r["verified"] for r in found] == [False] * 4


def test_best_puts_the_unverified_last(cli: Any, foreign: Path) -> None:
    with Database(foreign) as database:
        database.append_to(database.record(4), Finding(1.0, (1.0,)))
    found = cli("best", "matmul", "-n", "9", "--db", foreign, "--json").json["records"]
    assert [(r["record_id"], r["verified"]) for r in found] == [(4, True), (2, False), (3, False), (1, False)]
    assert cli("best", "matmul", "--db", foreign).out.count("unverified") == 0


def test_best_of_ours_says_nothing(cli: Any, db: Path) -> None:
    answer = cli("best", "--db", db)
    assert "unverified" not in answer.out
    assert all(r["verified"] for r in cli("best", "--db", db, "--json").json["records"])


def test_explain_says_what_is_unverified(cli: Any, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "explain", lambda *_, **__: {})
    assert "2.00 us [1.90, 2.10], unverified, number 1 of 4" in cli("explain", "2", "--db", foreign).out
    assert cli("explain", "2", "--db", foreign, "--json").json["verified"] is False


def test_a_curve_is_of_verified_records_where_there_are_any(foreign: Path) -> None:
    with Database(foreign) as database:
        run = database.runs()[0]
        key = (run.workload, run.target, run.threads)
        task = StoredTask(run.workload, "matmul", (64, 32, 16), "float32", None, run.target, 2)
        claimed = _verified_curve(task, database.records(*key))
        database.append_to(database.record(4), Finding(9e-6, (9e-6,)))
        ours = _verified_curve(task, database.records(*key))
    assert (len(claimed.points), claimed.label) == (5, "matmul (64,32,16), 2 threads, unverified")
    assert ours == Curve(task, [(1, 9e-6)], True)


def test_a_warning_about_records_is_one_line(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(*_: object, **__: object) -> object:
        warnings.warn("record 7 was not recorded:\n the disk is full", RecordWarning, stacklevel=1)
        return SimpleNamespace(seconds=2e-6)

    monkeypatch.setattr(api, "verify", verify)
    answer = cli("verify", "7", "--json")
    assert answer.err == "autosched: record 7 was not recorded: the disk is full\n"
    assert answer.json["verified"] is True


def test_commands_name_the_database_again(cli: Any, db: Path, tmp_path: Path) -> None:
    named = f" --db {db}`"
    assert (
        f"`autosched best{named} lists all, `autosched tune conv2d{named} makes"
        in cli("best", "conv2d", "--db", db).err
    )
    assert f"`autosched best{named} lists the ids" in cli("explain", "99", "--db", db).err
    assert f"`autosched best{named} lists the ids" in cli("verify", "99", "--db", db).err
    missing = tmp_path / "a b.db"
    assert f"`autosched tune --db '{missing}'` makes one" in cli("best", "--db", missing).err
    with Database(db) as database:
        run = database.start_run(WorkloadRow("a" * 64, "conv2d", "{}"), TargetRow("t", "{}"), 1, 0)
        database.append(run, "s", "[]", {}, 0, Finding(None, (), "crash"))
    assert f"run `autosched tune conv2d{named}" in cli("plot", "conv2d", "--db", db).err
    content = bytearray(db.read_bytes())
    content[content.index(b"signal 11")] ^= 1
    db.write_bytes(content)
    assert f"`autosched db export{named} rescues" in cli("db", "check", "--db", db).out
    assert f"`autosched db export{named} rescues" in cli("doctor", "--threads", "1", "--db", db).out


def test_the_default_database_needs_no_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert command("show 7") == command("show 7", default_path()) == "autosched show 7"
    assert command("show 7", "my records.db") == "autosched show 7 --db 'my records.db'"
    monkeypatch.setattr("autosched.store.schema.default_path", lambda: tmp_path / "x")
    assert command("show 7", tmp_path / "x") == "autosched show 7"


def test_doctor_tells_of_a_key_that_cannot_be_used(cli: Any, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def line() -> str:
        out = cli("doctor", "--threads", "1", "--db", foreign).out
        return next(text for text in out.splitlines() if text[2:].startswith("key "))

    assert line() == f"  {'key'.ljust(len(line().split(str(key_path()))[0]) - 2)}{key_path()} (made by the first tune)"
    assert installation_key(make=True) is not None
    assert line().endswith(str(key_path()))
    key_path().chmod(0o644)
    assert line().startswith("! ")
    assert "`chmod 600` it" in line()
