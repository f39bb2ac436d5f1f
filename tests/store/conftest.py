from collections.abc import Iterator
from pathlib import Path

import pytest

from autosched.store import Database, TargetRow, Workload


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
        Workload("w" * 64, "matmul", '{"workload":"matmul"}'), TargetRow("cpu-x", '{"kind":"cpu"}'), 2, 7
    )
