"""The verbs that read records: best, show, explain, verify, export, plot, db."""

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autosched import api
from autosched.cli.plot import curve
from autosched.errors import VerificationError
from autosched.store import Database, Finding, TargetRow, WorkloadRow


def test_best_lists_every_task(cli: Any, db: Path) -> None:
    answer = cli("best", "--db", db)
    header, matmul, own = answer.out.splitlines()
    assert header.split() == ["id", "workload", "threads", "time", "rate", "target"]
    assert matmul.startswith("2   matmul (64,32,16)")
    assert "2.00 us [1.90, 2.10]" in matmul
    assert "32.8 GFLOP/s" in matmul
    assert "mine?[31m" in own  # a name from elsewhere does not steer the terminal
    assert "\x1b" not in answer.out


def test_best_of_one_workload(cli: Any, db: Path) -> None:
    rows = cli("best", "matmul", "-n", "9", "--db", db, "--json").json["records"]
    assert [r["record_id"] for r in rows] == [2, 3, 1, 4]
    assert rows[0]["shape"] == [64, 32, 16]
    assert rows[0]["best_ci_s"] == [1.9e-6, 2.1e-6]
    assert rows[0]["values"] == {"i": 1, "j": 8}
    assert cli("best", "matmul", "--shape", "64,32,16", "--threads", "2", "--target", "cpu", "--db", db).code == 0


def test_best_of_an_own_workload_by_any_path(cli: Any, db: Path) -> None:
    with Database(db) as database:
        spec = '{"name":"ops/f.py:mine","args":{},"dtype":"float32"}'
        run = database.start_run(WorkloadRow("e" * 64, "ops/f.py:mine", spec), TargetRow("t", "{}"), 1, 0)
        own = database.append(run, "s", "[]", {}, 0, Finding(1e-3))
    for path in ("ops/f.py", "./ops/f.py", "f.py", "/home/me/ops/f.py"):
        (row,) = cli("best", f"{path}:mine", "--db", db, "--json").json["records"]
        assert row["record_id"] == own
    assert cli("best", "ops/f.py:other", "--db", db).code == 2
    assert cli("best", "mine", "--db", db).code == 2


@pytest.mark.parametrize("words", [("conv2d",), ("matmul", "--shape", "1,1,1"), ("matmul", "--threads", "1")])
def test_best_of_nothing_is_one_sentence(cli: Any, db: Path, words: tuple[str, ...]) -> None:
    answer = cli("best", *words, "--db", db)
    assert answer.code == 2
    assert "has no records of" in answer.err


def test_show(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def show(record_id: int, db: Path, form: str, **_: object) -> str:
        return f"{record_id} {db.name} {form}"

    monkeypatch.setattr(api, "show", show)
    assert cli("show", "7", "--as", "llvm", "--db", tmp_path / "r.db").out == "7 r.db llvm\n"
    assert cli("show", "7", "--db", tmp_path / "r.db", "--json").json == {
        "schema_version": 1,
        "record_id": 7,
        "as": "ir",
        "text": "7 r.db ir",
    }


def test_verify(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "verify", lambda *_, **__: SimpleNamespace(seconds=2e-6))
    assert "record 7 is verified" in cli("verify", "7").out
    assert cli("verify", "7", "--json").json == {"schema_version": 1, "record_id": 7, "verified": True, "seconds": 2e-6}


def test_failed_verification_exits_4(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(*_: object, **__: object) -> None:
        raise VerificationError("element 3 is wrong")

    monkeypatch.setattr(api, "verify", verify)
    assert cli("verify", "7").code == 4
    answer = cli("verify", "7", "--json")
    assert answer.code == 4
    assert answer.json["verified"] is False
    assert answer.json["message"] == "element 3 is wrong"


def test_export(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []

    def export(*words: object, **_: object) -> tuple[Path, ...]:
        seen.append(words)
        return (Path("k.so"), Path("k.h"))

    monkeypatch.setattr(api, "export", export, raising=False)
    assert cli("export", "7", "--kind", "so", "--out", "k.so").out == "k.so\nk.h\n"
    assert seen == [(7, None, "so", Path("k.so"))]
    assert cli("export", "7", "--json").json["files"] == ["k.so", "k.h"]


def test_explain_names_the_runner_up_and_its_differences(cli: Any, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"predicted_s": 2.5e-6, "flops": 65536, "intensity": 4.567891, "bound_by": "compute"}
    monkeypatch.setattr(api, "explain", lambda *_, **__: facts, raising=False)
    lines = cli("explain", "2", "--db", db).out.splitlines()
    assert lines == [
        "record 2, sketch tiled: 2.00 us [1.90, 2.10], number 1 of 4",
        "  predicted s: 2.50 us",
        "  flops: 65536",
        "  intensity: 4.568",
        "  bound by: compute",
        "  next best: record 3, 1.500 times this one's time; it has",
        "    i = 2 instead of 1",
    ]
    answer = cli("explain", "5", "--db", db, "--json").json
    assert (answer["failure"], answer["rank"], answer["runner_up"]) == ("crash", None, None)
    assert "failed (crash): signal 11" in cli("explain", "5", "--db", db).out


def test_plot_draws_a_png(cli: Any, db: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    png = tmp_path / "curve.png"
    answer = cli("plot", "matmul", "--db", db, "--out", png, "--json")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert answer.json["curves"][0]["best_s"] == [[1, 4e-6], [2, 2e-6], [3, 2e-6], [4, 2e-6], [5, 2e-6]]
    assert "cannot be written" in cli("plot", "matmul", "--db", db, "--out", tmp_path / "no" / "x.png").err
    assert "cannot be written" in cli("plot", "matmul", "--db", db, "--out", tmp_path / "x.nonsense").err


def test_curve_starts_at_the_first_time(db: Path) -> None:
    with Database(db) as database:
        run = database.runs()[0]
        records = database.records(run.workload, run.target, run.threads)
    assert curve(records[::-1]) == [(2, 5e-6), (3, 3e-6), (4, 2e-6), (5, 2e-6)]
    assert curve([]) == []


def test_db_moves_records(cli: Any, db: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "records.jsonl", tmp_path / "new" / "other.db"
    assert cli("db", "export", file, "--db", db).out == f"6 records written to {file}\n"
    with file.open("a") as stream:
        stream.write("nonsense\n")
    assert cli("db", "import", file, "--db", other, "--json").json == {
        "schema_version": 1,
        "kept": 6,
        "skipped": 1,
        "db": str(other),
    }
    assert cli("best", "--db", other).out == cli("best", "--db", db).out


def test_db_check_and_path(cli: Any, db: Path) -> None:
    assert cli("db", "check", "--db", db).out == f"{db} is sound: 6 records\n"
    assert cli("db", "path", "--db", db).out == f"{db}\n"
    with sqlite3.connect(db) as raw:
        raw.execute("UPDATE candidates SET sketch = 'x' WHERE id = 1")
    raw.close()
    answer = cli("db", "check", "--db", db, "--json")
    assert answer.code == 2
    assert (answer.json["ok"], answer.json["records"], answer.json["damaged"]) == (False, 5, 1)
    assert "1 damaged rows left out" in cli("db", "export", db.with_name("x.jsonl"), "--db", db).out


def test_reading_makes_no_database(cli: Any, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    for words in (("best",), ("db", "check"), ("db", "export", tmp_path / "x"), ("plot", "matmul"), ("explain", "1")):
        answer = cli(*words, "--db", missing)
        assert answer.code == 2
        assert "there is no database at" in answer.err
    assert list(tmp_path.iterdir()) == []


OWN = """
from autosched import te

def product(rows=9, columns=5, depth=7):
    P, Q = te.placeholder((rows, depth), name="P"), te.placeholder((depth, columns), name="Q")
    r = te.reduce_axis(depth, name="r")
    return te.compute((rows, columns), lambda i, j: te.sum(P[i, r] * Q[r, j], axis=r), name="R")
"""


@pytest.mark.parametrize("order", [("own", "matmul"), ("matmul", "own")])
def test_a_function_of_the_content_of_a_built_in_one(cli: Any, tmp_path, order):
    """Each has the names of its stages in its records, and its own arguments."""
    (tmp_path / "own.py").write_text(OWN)
    db, own = tmp_path / "records.db", f"{tmp_path / 'own.py'}:product"
    numbers = {}
    for number, which in enumerate(order, start=1):
        words = (own,) if which == "own" else ("matmul", "--shape", "9,5,7")
        assert cli("tune", *words, "--trials", "1", "--threads", "1", "--db", db).code == 0
        numbers[which] = number
    assert "in  A: float32[9, 7]" in cli("show", numbers["matmul"], "--db", db).out
    assert "in  A: float32[9, 7]" in cli("show", numbers["matmul"], "--workload", "matmul", "--db", db).out
    assert cli("verify", numbers["matmul"], "--db", db).code == 0
    assert cli("export", numbers["matmul"], "--kind", "object", "--out", tmp_path / "k.o", "--db", db).code == 0
    answer = cli("show", numbers["own"], "--db", db)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "whose stages are called otherwise than those of matmul" in answer.err
    assert f"(--workload {own})" in answer.err
    assert "in  P: float32[9, 7]" in cli("show", numbers["own"], "--workload", own, "--db", db).out
    assert cli("verify", numbers["own"], "--workload", own, "--db", db).code == 0
    assert cli("db", "check", "--db", db).code == 0
    exported, again = tmp_path / "all.jsonl", tmp_path / "again.db"
    assert cli("db", "export", exported, "--db", db).code == cli("db", "import", exported, "--db", again).code == 0
    assert "in  P: float32[9, 7]" in cli("show", numbers["own"], "--workload", own, "--db", again).out
    assert "in  A: float32[9, 7]" in cli("show", numbers["matmul"], "--db", again).out
