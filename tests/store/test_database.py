import math
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import StoreError
from autosched.store import Database, Finding, TargetRow, WorkloadRow, default_path
from tests.store.tasks import TASK, add, start, steps


def test_a_record_is_read_as_it_was_written(database: Database, run: int) -> None:
    values = {"b": np.int64(8), "a": 4}
    row = database.append(run, "s", '[ {"b": 1, "a": [2]} ]', values, 3, Finding(2e-3, (2e-3, 3e-3)))
    record = database.record(row)
    assert (record.id, record.run_id, record.workload, record.target, record.threads) == (row, run, *TASK)
    assert record.steps == '[{"a":[2],"b":1}]'
    assert record.values == {"a": 4, "b": 8}
    assert (record.seconds, record.samples, record.round) == (2e-3, (2e-3, 3e-3), 3)
    assert record.failure is None
    assert not record.certified


def test_failures_are_kept_with_class_and_message(database: Database, run: int) -> None:
    row = add(database, run, 1, None, "hang")
    record = database.record(row)
    assert (record.seconds, record.failure, record.message) == (None, "hang", "why")
    assert database.best(*TASK) == []


def test_equal_candidates_share_a_row_and_keep_both_measurements(database: Database, run: int) -> None:
    first = add(database, run, 1, 2e-3)
    again = database.append(run, "sketch0", '[["split",   "C", 1]]', {"C.i": 1}, 9, Finding(1e-3))
    assert again == first
    assert add(database, run, 2) != first
    assert len(database.records(*TASK)) == 2
    assert database.record(first).seconds == 1e-3  # the latest
    assert database.record(first).round == 0  # of the first attempt


def test_certified_beats_later_plain_measurements_but_not_a_later_failure(database: Database, run: int) -> None:
    row = add(database, run, 1, 3e-3)
    database.certify(row, 2e-3, (1.9e-3, 2.1e-3))
    add(database, run, 1, 1e-3)
    record = database.record(row)
    assert record.certified
    assert (record.seconds, record.ci) == (2e-3, (1.9e-3, 2.1e-3))
    add(database, run, 1, None, "wrong_result")
    assert database.record(row).failure == "wrong_result"
    assert database.best(*TASK) == []


def test_best_puts_certified_first_then_time(database: Database, run: int) -> None:
    slow, fast, lucky, certified = (add(database, run, n, t) for n, t in enumerate([4e-3, 2e-3, 1e-3, 3e-3]))
    add(database, run, 9, None, "crash")
    assert [r.id for r in database.best(*TASK, n=9)] == [lucky, fast, certified, slow]
    database.certify(certified, 3e-3, (3e-3, 3e-3))
    assert [r.id for r in database.best(*TASK, n=2)] == [certified, lucky]


def test_the_best_of_several_tasks_at_once(database: Database, run: int) -> None:
    slow, fast = add(database, run, 1, 4e-3), add(database, run, 2, 2e-3)
    add(database, run, 3, None, "crash")
    other = database.start_run(WorkloadRow("o" * 64, "o", "{}"), TargetRow(TASK[1], "{}"), TASK[2], 0)
    alone = add(database, other, 1, 5e-3)
    failed = database.start_run(WorkloadRow("f" * 64, "f", "{}"), TargetRow(TASK[1], "{}"), TASK[2], 0)
    add(database, failed, 1, None, "crash")
    names = (TASK[0], "o" * 64, "f" * 64, "n" * 64)

    def best() -> dict[str, list[int]]:
        found = database.best_of(names, *TASK[1:])
        return {name: [record.id for record in records] for name, records in found.items()}

    assert best() == {TASK[0]: [fast, slow], "o" * 64: [alone]}
    database.certify(slow, 3e-3, (2.9e-3, 3.1e-3))
    assert best() == {TASK[0]: [slow], "o" * 64: [alone]}  # the certified ones alone
    add(database, run, 1, None, "wrong_result")
    assert best() == {TASK[0]: [fast], "o" * 64: [alone]}
    assert database.best_of((), *TASK[1:]) == {}


def test_ties_do_not_depend_on_the_order_of_writing(tmp_path: Path) -> None:
    winners = set()
    for name, order in (("a", (1, 2, 3)), ("b", (3, 2, 1))):
        with Database(tmp_path / name) as database:
            run = start(database)
            for n in order:
                add(database, run, n)
            winners.add(database.best(*TASK)[0].steps)
    assert len(winners) == 1


def test_tasks_are_kept_apart(database: Database, run: int) -> None:
    add(database, run, 1)
    other = database.start_run(WorkloadRow(TASK[0], "matmul", "{}"), TargetRow(TASK[1], "{}"), 1, 0)
    assert add(database, other, 1) != 1
    assert len(database.records(TASK[0], TASK[1], 1)) == 1
    assert database.records("other", TASK[1], TASK[2]) == []


def test_runs_workloads_and_targets(database: Database, run: int) -> None:
    database.finish_run(run, "interrupted")
    (read,) = database.runs()
    assert (read.id, read.seed, read.threads, read.status) == (run, 7, 2, "interrupted")
    assert read.finished is not None
    assert database.workload(TASK[0]).name == "matmul"
    assert database.targets() == {"cpu-x": '{"kind":"cpu"}'}
    with pytest.raises(StoreError, match="one of running"):
        database.finish_run(run, "odd")


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_refused(database: Database, run: int, seconds: float) -> None:
    with pytest.raises(StoreError, match="finite and above 0"):
        add(database, run, 1, seconds)
    assert database.records(*TASK) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1, NaN]", "NaN"),
        ("[", "cannot be read"),
        ("[" * 40 + "]" * 40, "nested deeper"),
        ("[" * 100_000, "cannot be read"),
        ("[99999999999999999999]", "64 bits"),
        ("[1e999]", "not finite"),
        ('["' + "x" * 1_000_001 + '"]', "characters"),
    ],
)
def test_steps_are_bounded_data(database: Database, run: int, text: str, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence):
        database.append(run, "s", text, {}, 0, Finding(1.0))


def test_neither_or_both_of_time_and_failure_are_refused(database: Database, run: int) -> None:
    with pytest.raises(StoreError, match="both or neither"):
        database.append(run, "s", "[]", {}, 0, Finding(None))
    with pytest.raises(StoreError, match="both or neither"):
        database.append(run, "s", "[]", {}, 0, Finding(1.0, (), "crash"))


def test_unknown_ids_are_one_sentence(database: Database) -> None:
    with pytest.raises(StoreError, match="no record 99"):
        database.record(99)
    with pytest.raises(StoreError, match="no run 99"):
        add(database, 99, 1)
    with pytest.raises(StoreError, match="no workload"):
        database.workload("x")


def test_rows_survive_reopening(path: Path) -> None:
    with Database(path) as database:
        run = start(database)
        row = add(database, run, 1)
    with Database(path, create=False) as database:
        assert database.record(row).steps == '[["split","C",1]]'
        assert add(database, run, 1) == row
        assert database.check().ok


def test_default_path_is_under_the_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_path() == tmp_path / "data" / "autosched" / "records.db"
    with Database():
        pass
    assert default_path().stat().st_mode & 0o777 == 0o600
    assert default_path().parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "share" / "autosched" / "records.db"


def test_steps_helper_is_canonicalised(database: Database, run: int) -> None:
    row = add(database, run, 5)
    assert database.record(row).steps == steps(5).replace(" ", "")
