"""Fusion decisions in the database: the latest of this installation counts, in exports they travel as lines."""

import json
import sqlite3
from pathlib import Path

import pytest

from autosched.errors import StoreError
from autosched.store import Database, FusionDecision, TargetRow, WorkloadRow
from autosched.store.records import canonical_json, digest
from tests.store.tasks import TASK, add

WORKLOAD, TARGET = WorkloadRow(TASK[0], "conv-clip-conv", '{"graph":{}}'), TargetRow(TASK[1], "{}")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


def decide(database: Database, is_fused: bool, threads: int = TASK[2]) -> None:
    decision = FusionDecision(TASK[0], TASK[1], threads, is_fused, (2e-6, 3e-6), (1e-6,))
    database.add_fusion_decision(WORKLOAD, TARGET, decision)


def test_the_latest_decision_of_a_task_counts(database: Database, path: Path) -> None:
    assert database.fusion_decision(*TASK) is None
    for is_fused in (True, False):
        decide(database, is_fused)
        decide(database, not is_fused, threads=TASK[2] + 1)
        with Database(path) as again:
            decision = again.fusion_decision(*TASK)
        assert decision is not None
        assert (decision.is_fused, decision.fused_s, decision.unfused_s) == (is_fused, (2e-6, 3e-6), (1e-6,))
    assert database.records(*TASK) == []
    assert database.workloads() == [WORKLOAD]


def test_decisions_are_exported_and_imported_once(database: Database, run: int, tmp_path: Path) -> None:
    add(database, run, 1)
    decide(database, True)
    assert database.export_jsonl(tmp_path / "records.jsonl") == database.check().n_records == 2
    with Database(tmp_path / "other.db") as other:
        for _ in range(2):
            assert other.import_jsonl(tmp_path / "records.jsonl") == (2, 0)
        assert other.check().n_records == 2
        assert other.fusion_decision(*TASK) == database.fusion_decision(*TASK)


def test_decisions_from_elsewhere_do_not_count(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(database, True)
    database.export_jsonl(tmp_path / "records.jsonl")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another home"))
    with Database(tmp_path / "other.db") as other:
        other.import_jsonl(tmp_path / "records.jsonl")
        assert other.check().n_records == 1
        assert other.fusion_decision(*TASK) is None
        decide(other, False)
        decision = other.fusion_decision(*TASK)
        assert decision is not None
        assert not decision.is_fused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("is_fused", 1),
        ("fused_s", [0.0]),
        ("fused_s", [True]),
        ("unfused_s", ["1"]),
        ("unfused_s", {}),
        ("threads", 0),
        ("created", None),
    ],
)
def test_damaged_lines_are_skipped(database: Database, tmp_path: Path, name: str, value: object) -> None:
    decide(database, True)
    database.export_jsonl(tmp_path / "records.jsonl")
    header, line = (tmp_path / "records.jsonl").read_text().splitlines()
    content = {**json.loads(line), name: value}
    content.pop("sha256")
    changed = canonical_json({**content, "sha256": digest(content)})
    (tmp_path / "changed.jsonl").write_text(f"{header}\n{changed}\n")
    with Database(tmp_path / "other.db") as other:
        assert other.import_jsonl(tmp_path / "changed.jsonl") == (0, 1)


@pytest.mark.parametrize("change", ["is_fused = 1 - is_fused", "fused_s = '[1e-9]'", "threads = 'x'"])
def test_damaged_rows_are_left_out_and_counted(database: Database, path: Path, change: str) -> None:
    decide(database, True)
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE fusion_decisions SET {change}")
    raw.close()
    with Database(path) as again:
        assert again.fusion_decision(*TASK) is None
        assert (again.check().ok, again.damaged) == (False, 1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(database: Database, seconds: float) -> None:
    decision = FusionDecision(*TASK, True, (seconds,), (1e-6,))
    with pytest.raises(StoreError, match="finite and above 0"):
        database.add_fusion_decision(WORKLOAD, TARGET, decision)
    assert database.workloads() == []


def test_an_upgrade_removes_what_version_2_kept_as_candidates(path: Path) -> None:
    with Database(path) as database:
        old = WorkloadRow("o" * 64, "conv-clip-conv, joined or apart", "{}")
        run = database.start_run(old, TARGET, 1, 0)
        add(database, run, 1)
        kept = database.start_run(WORKLOAD, TARGET, TASK[2], 0)
        add(database, kept, 2)
    with sqlite3.connect(path) as raw:
        raw.execute("DROP TABLE fusion_decisions")
        raw.execute("PRAGMA user_version = 2")
    raw.close()
    with Database(path) as database:
        assert database.workloads() == [WORKLOAD]
        assert [run.id for run in database.runs()] == [kept]
        assert len(database.records(*TASK)) == 1
        assert database.records("o" * 64, TASK[1], 1) == []
        assert database.check().ok
        decide(database, True)
