"""Makes the packages and `tests.helpers` importable from a checkout, installed or not."""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = str(TESTS.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

pytest.register_assert_rewrite("tests.helpers")

from autosched.cli.main import main  # noqa: E402
from autosched.ir.dtype import DTYPES  # noqa: E402
from autosched.runtime.gpu.opencl import ENVIRONMENT  # noqa: E402
from tests.float8 import NEW  # noqa: E402
from tests.guards import guarded_results  # noqa: E402, F401
from tests.quick import has_quick, is_quick  # noqa: E402

for name, value in ENVIRONMENT.items():  # also for tests that call pyopencl themselves
    os.environ.setdefault(name, value)


YOUNG = 100_000  # new objects before a collection: expressions are many, and hardly any are in cycles
gc.set_threshold(YOUNG, 10, 10)


def name_in_tests(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick`, a file without quick tests is not even read: reading all takes as long as these tests do."""
    other = collection_path.name.startswith("test_") and not has_quick(name_in_tests(collection_path))
    return True if other and config.getoption("markexpr") == "quick" else None


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and is_quick(name_in_tests(item.path), item.originalname):
            item.add_marker("quick")


def pytest_collection_finish() -> None:
    """What was imported and collected stays, and is not looked through again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def float8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more dtypes, as rows of the table."""
    for row in NEW:
        monkeypatch.setitem(DTYPES, row.name, row)


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The key of this installation, and the default database, are not the user's."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@dataclass(frozen=True)
class Answer:
    """Of a command: its exit code, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command in this process."""
    monkeypatch.delenv("AUTOSCHED_DEBUG", raising=False)

    def run(*words: object) -> Answer:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture(autouse=True)
def nothing_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that a test loads are not improved beside later tests, whose environment the thread would see."""
    monkeypatch.setattr("autosched.executor.hot_swap.enqueue", lambda job: None)
