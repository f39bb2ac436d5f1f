from collections.abc import Iterator
from pathlib import Path

import pytest

from autosched.store import Database, TargetRow, WorkloadRow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with Database(path) as database:
        yield database


@pytest.fixture
def run(database: Database) -> int:
    return database.start_run(
        WorkloadRow("w" * 64, "matmul", '{"workload":"matmul"}'), TargetRow("cpu-x", '{"kind":"cpu"}'), 2, 7
    )
