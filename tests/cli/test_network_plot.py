"""`autosched plot` of networks: one curve of all their tasks' records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autosched
from autosched.cli.network.plot import TaskRecords, network_curve
from autosched.store import Database, Finding, Record, TargetRow, WorkloadRow
from tests.graph import networks

RECORD = Record(1, 1, "w", "t", 1, "s", "[]", {}, 1.0, (), None, "", 0, "2026-01-01", None, True)


def records(*tried: tuple[int, float | None]) -> list[Record]:
    """Records by the moment when they were first tried, which is their id too, and their seconds."""
    return [replace(RECORD, id=n, created=f"2026-01-{n:02}", seconds=seconds) for n, seconds in tried]


def test_the_curve_is_of_all_tasks_in_the_order_of_their_trials() -> None:
    first = TaskRecords(2, records((1, 5.0), (4, None), (5, 4.0)))
    second = TaskRecords(1, records((2, None), (3, 7.0), (6, 8.0)))
    assert network_curve([first, second]) == [(3, 17.0), (4, 17.0), (5, 15.0), (6, 15.0)]
    claims = TaskRecords(1, [replace(r, verified=False) for r in first.records])
    assert network_curve([claims, second]) == []


def test_a_network_is_drawn(cli: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, db, png = tmp_path / "net.asc", tmp_path / "records.db", tmp_path / "net.png"
    model = autosched.load(networks.perceptron((3, 17, 17, 5)), threads=1, records=False)
    model.save(path)
    words = ("plot", path, "--db", db, "--threads", 1, "--out", png)
    for n, task in enumerate(model.tasks[:2]):
        dag, device = task.request.problem.dag, task.request.device
        with Database(db) as database:
            workload = WorkloadRow(dag.content_hash, task.name, task.kernel_spec.workload.text)
            run = database.start_run(workload, TargetRow(device.target.fingerprint, "{}"), 1, 0)
            if n == 1:
                assert "no kernel of" in cli(*words).err
            database.append(run, "s", "[]", {}, 0, Finding(1e-3 if n else None, (), None if n else "crash"))
            database.append(run, "s", "[1]", {}, 0, Finding(2e-3, ()) if n else Finding(None, (), "crash"))
    answer = cli(*words, "--json")
    assert answer.code == 0
    assert (answer.json["tasks"], answer.json["recorded"]) == (3, 1)
    assert answer.json["kernels_s"] == [[1, 1e-3], [2, 1e-3]]
    assert png.read_bytes().startswith(b"\x89PNG")
