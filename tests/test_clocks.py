"""What the wall clock does is nothing to a search: it may jump by an hour or by ten years at any look."""

from __future__ import annotations

import ast
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.store import Database
from tests.helpers import ROOT

# Where the wall clock is read: dates for people, and the age of a file, which has no other.
DATES = {"autosched/store/records.py", "autosched/measure/host.py", "autosched/executor/model_cache/file_digest.py"}
WALL = {
    *(("time", name) for name in ("time", "time_ns", "ctime", "localtime", "gmtime", "strftime")),
    *(("datetime", name) for name in ("now", "utcnow", "today")),
}
JUMPS_S = (0.0, 3600.0, -3600.0, 3.2e8, -3.2e8)


def wall_clock_reads(path: Path) -> list[int]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Attribute)
        and (
            (getattr(node.value, "id", getattr(node.value, "attr", "")), node.attr) in WALL
            or node.attr == "CLOCK_REALTIME"
        )
    ]


def test_durations_are_of_monotonic_clocks() -> None:
    paths = [path for folder in ("autosched", "cost_model", "search_spaces") for path in (ROOT / folder).rglob("*.py")]
    reads = {str(path.relative_to(ROOT)) for path in paths if wall_clock_reads(path)}
    assert reads == DATES


class Jumping:
    """Stands for `datetime` and for `time.time`."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._real = time.time
        self.looks = 0

    def time(self) -> float:
        self.looks += 1
        return self._real() + float(self._rng.choice(JUMPS_S))

    def now(self, zone: timezone) -> datetime:
        return datetime.fromtimestamp(self.time(), zone)


def test_a_search_under_a_wall_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Jumping()
    monkeypatch.setattr(time, "time", clock.time)
    monkeypatch.setattr("autosched.store.records.datetime", clock)
    words: dict[str, Any] = {"shape": (16, 16, 16), "threads": 1, "db": tmp_path / "r.db"}
    result = at.tune("matmul", trials=6, budget_s=60.0, **words)
    assert clock.looks > 6
    assert (result.trials, result.failed) == (6, 0)
    parts = [
        getattr(result, f"{part}_s") for part in ("prepare", "search", "model", "build", "check", "measure", "other")
    ]
    assert all(0.0 <= part < 60.0 for part in parts)
    assert sum(parts) == pytest.approx(result.wall_s)
    assert 0.0 < result.best_s < 1e-3
    with Database(tmp_path / "r.db") as database:
        (run,) = database.runs()
        records = database.records(run.workload, run.target, run.threads)
        assert database.check().ok
    assert len(records) == 6
    assert all(0.0 < s < 1e-3 for record in records for s in record.samples)
    again = at.tune("matmul", trials=8, resume=True, **words)
    assert (again.trials, again.resumed) == (8, 6)
