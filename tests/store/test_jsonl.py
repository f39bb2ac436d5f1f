import json
import os
import random
from pathlib import Path

import pytest

from autosched.errors import StoreError
from autosched.store import Database, Record, TargetRow, WorkloadRow, jsonl
from autosched.store.records import canonical_json, digest
from tests.store.tasks import TASK, add


@pytest.fixture
def exported(database: Database, run: int, tmp_path: Path) -> Path:
    for n in range(5):
        add(database, run, n, 1e-3 * (n + 1))
    database.certify(2, 1e-3, (0.9e-3, 1.1e-3))
    add(database, run, 7, None, "crash")
    add(database, run, 1, 5e-3)
    path = tmp_path / "records.jsonl"
    assert database.export_jsonl(path) == 6
    return path


def facts(records: list[Record]) -> list[tuple[object, ...]]:
    return [(r.sketch, r.steps, r.values, r.seconds, r.samples, r.ci, r.failure, r.created) for r in records]


def test_export_then_import_is_the_same_database(database: Database, exported: Path, tmp_path: Path) -> None:
    with Database(tmp_path / "other.db") as other:
        assert other.import_jsonl(exported) == (6, 0)
        assert facts(other.records(*TASK)) == facts(database.records(*TASK))
        assert other.workloads() == database.workloads()
        assert other.targets() == database.targets()
        assert [r.uid for r in other.runs()] == [r.uid for r in database.runs()]
        again = tmp_path / "again.jsonl"
        other.export_jsonl(again)
    assert again.read_bytes() == exported.read_bytes()


def test_importing_twice_adds_nothing(database: Database, exported: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert database.import_jsonl(exported) == (6, 0)
    again = tmp_path / "again.jsonl"
    assert database.export_jsonl(again) == 6
    assert again.read_bytes() == exported.read_bytes()


def test_two_databases_merge(database: Database, exported: Path, tmp_path: Path) -> None:
    with Database(tmp_path / "other.db") as other:
        run = other.start_run(WorkloadRow(TASK[0], "mine", "{}"), TargetRow(TASK[1], "{}"), TASK[2], 1)
        add(other, run, 1, 9e-3)
        add(other, run, 100, 0.5e-3)
        other.import_jsonl(exported)
        assert len(other.records(*TASK)) == 7
        assert other.workload(TASK[0]).name == "mine"


def test_every_good_line_is_kept_and_every_bad_one_counted(exported: Path, tmp_path: Path) -> None:
    header, *lines = exported.read_bytes().splitlines(keepends=True)
    good, torn = lines[0], lines[1][: len(lines[1]) // 2] + b"\n"
    flipped = lines[2].replace(b'"seconds":', b'"seconds": 1', 1)
    garbage = [b"\x00\xff\xfe\n", b"[1,2]\n", b"{}\n", b"nul\n", b"[" * 5000 + b"\n", b"x" * 3_000_000 + b"\n", b"\n"]
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_bytes(b"".join([header, good, torn, flipped, *garbage, lines[3].rstrip(b"\n")]))
    with Database(tmp_path / "new.db") as database:
        assert database.import_jsonl(mixed) == (2, 8)
        assert len(database.records(*TASK)) == 2
        assert database.check().ok


FORGERIES: list[dict[str, object]] = [
    {"threads": 0},
    {"threads": True},
    {"threads": 2**70},
    {"sketch": None},
    {"run": 1},
    {"runs": []},
    {"values": {"a": 1.5}},
    {"values": [1]},
    {"outcomes": []},
    {"round": -1},
    {"workload": "w"},
    {"sketch": "\ud800"},
    {"values": {"\udfff": 1}},
    {"steps": [["\ud801", 1]]},
    {"steps": json.loads("[" * 40 + "]" * 40)},
    {"outcomes": [{"run": 0, "seconds": 0, "samples": [], "ci": None, "failure": None, "message": "", "created": ""}]},
    {"outcomes": [{"run": 9, "seconds": 1, "samples": [], "ci": None, "failure": None, "message": "", "created": ""}]},
    {"outcomes": [{"run": 0, "seconds": 1, "samples": [], "ci": [1], "failure": None, "message": "", "created": ""}]},
]


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda f: canonical_json(f)[:40])
def test_a_line_with_a_right_hash_and_wrong_content_is_skipped(
    exported: Path, tmp_path: Path, forgery: dict[str, object]
) -> None:
    content = json.loads(exported.read_text().splitlines()[1])
    del content["sha256"]
    content.update(forgery)
    forged = tmp_path / "forged.jsonl"
    forged.write_text(canonical_json({**content, "sha256": digest(content)}) + "\n")
    with Database(tmp_path / "new.db") as database:
        assert database.import_jsonl(forged) == (0, 1)
        assert database.runs() == []


def test_random_damage_never_crashes(exported: Path, tmp_path: Path) -> None:
    rng = random.Random(3)
    content = exported.read_bytes().partition(b"\n")[2]  # without the header, whose version may not change
    broken = bytearray()
    for _ in range(100):
        part = bytearray(content)
        for _ in range(rng.choice([1, 8])):
            part[rng.randrange(len(part))] = rng.randrange(256)
        broken += part[: rng.randrange(len(part))]
    path = tmp_path / "broken.jsonl"
    path.write_bytes(broken)
    with Database(tmp_path / "new.db") as database:
        kept, skipped = database.import_jsonl(path)
        assert kept > 0
        assert skipped > 0
        assert database.check().ok


def test_newer_and_missing_files_are_one_sentence(database: Database, tmp_path: Path) -> None:
    newer = tmp_path / "newer.jsonl"
    newer.write_text('{"format":"autosched records","schema_version":99}\n')
    with pytest.raises(StoreError, match="schema version 99"):
        database.import_jsonl(newer)
    with pytest.raises(StoreError, match=r"missing\.jsonl"):
        database.import_jsonl(tmp_path / "missing.jsonl")
    with pytest.raises(StoreError, match="could not be used"):
        database.import_jsonl(tmp_path)


def test_a_failed_export_leaves_the_old_file(database: Database, exported: Path, tmp_path: Path) -> None:
    before = exported.read_bytes()
    database.close()
    with pytest.raises(StoreError):
        database.export_jsonl(exported)
    assert exported.read_bytes() == before
    with pytest.raises(StoreError, match="could not be used"), Database(tmp_path / "n.db") as other:
        other.export_jsonl(tmp_path / "no" / "such" / "directory.jsonl")
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("version", ["true", "false", "0", "-1", "1.5", "null", '"1"'])
def test_a_header_without_a_real_version_is_refused(database: Database, tmp_path: Path, version: str) -> None:
    odd = tmp_path / "odd.jsonl"
    odd.write_text(f'{{"format":"autosched records","schema_version":{version}}}\n')
    with pytest.raises(StoreError, match="its schema version must be a number"):
        database.import_jsonl(odd)


def test_only_regular_files_are_read_and_replaced(database: Database, run: int, tmp_path: Path) -> None:
    add(database, run, 1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it would wait for a writer
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(StoreError, match="not a regular file"):
            database.import_jsonl(path)
    with pytest.raises(StoreError, match="not a regular file"):
        database.export_jsonl(pipe)
    assert pipe.is_fifo()


def test_reading_ends_where_the_file_ended_at_first(database: Database, exported: Path, tmp_path: Path) -> None:
    with Database(tmp_path / "other.db") as other:
        lines = jsonl.read(exported)
        first = next(lines)
        with exported.open("ab") as file:
            file.write(b"{}\n" * 10)
        assert len([first, *lines]) == 6
        assert other.import_jsonl(exported) == (6, 10)
