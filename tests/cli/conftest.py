import json
from pathlib import Path

import pytest

from autosched.store import Database, Finding, TargetRow, WorkloadRow
from autosched.target import parse_target
from autosched.te.operators.registry import build


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Records of a matmul: four measured (number 2 certified) and one failed, and one of somebody's own workload."""
    path = tmp_path / "records.db"
    dag, spec = build("matmul", (64, 32, 16))
    target = parse_target("cpu").fingerprint
    with Database(path) as database:
        run = database.start_run(
            WorkloadRow(dag.content_hash, "matmul", json.dumps(spec, sort_keys=True)), TargetRow(target, "{}"), 2, 0
        )
        for n, seconds in enumerate([4e-6, 2e-6, 3e-6, 5e-6]):
            database.append(run, "tiled", f"[{n}]", {"i": n, "j": 8}, 0, Finding(seconds, (seconds,)))
        database.append(run, "tiled", "[9]", {"i": 9, "j": 8}, 0, Finding(None, (), "crash", "signal 11"))
        database.certify(2, 2e-6, (1.9e-6, 2.1e-6))
        own = database.start_run(
            WorkloadRow("f" * 64, "mine\x1b[31m", '{"name":"/x/f.py:mine","args":{},"dtype":"float32"}'),
            TargetRow("t", "{}"),
            1,
            0,
        )
        database.append(own, "s", "[]", {}, 0, Finding(1e-3))
    return path
