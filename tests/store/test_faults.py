"""What must not lose or harm anything: kill -9, other programs' files, flipped bits, a full disk, several writers."""

import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from autosched.errors import StoreError
from autosched.store import Database, Finding
from autosched.store.records import digest
from autosched.store.rows import CANDIDATE_COLUMNS
from autosched.store.schema import SCHEMA_VERSION
from tests.store.tasks import TASK, add, start

WRITER = """
import sys
from pathlib import Path
from autosched.store import Database, Finding, TargetRow, WorkloadRow
with Database(Path(sys.argv[1])) as database:
    run = database.start_run(WorkloadRow("w" * 64, "matmul", "{}"), TargetRow("cpu-x", "{}"), 2, 0)
    for n in range(int(sys.argv[3])):
        key = int(sys.argv[2]) * 1_000_000 + n
        row = database.append(run, "s", f"[{key}]", {"n": n}, 0, Finding(1e-3, (1e-3,)))
        print(row, key, flush=True)
"""


def writer(path: Path, key: int, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), str(key), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def test_no_acknowledged_row_is_lost_by_kill_9(path: Path) -> None:
    rng = random.Random(1)
    acknowledged: dict[int, int] = {}
    for round_ in range(10):
        child = writer(path, round_, 1_000_000)
        assert child.stdout is not None
        select.select([child.stdout], [], [], 20.0)  # wait for the first row, then let it run for a moment
        time.sleep(rng.uniform(0.0, 0.05))
        child.send_signal(signal.SIGKILL)
        text = child.stdout.read()
        child.wait()
        child.stdout.close()
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                row, key = map(int, line.split())
                acknowledged[row] = key
    assert len(acknowledged) >= 10
    with Database(path, create=False) as database:
        steps = {r.id: r.steps for r in database.records(*TASK)}
        assert {row: steps.get(row) for row in acknowledged} == {row: f"[{key}]" for row, key in acknowledged.items()}
        assert database.check().ok


def test_several_processes_may_write_one_new_file(path: Path) -> None:
    children = [writer(path, key, 25) for key in range(3)]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    rows = [int(line.split()[0]) for text in outputs for line in text.splitlines()]
    assert len(set(rows)) == 75
    with Database(path) as database:
        assert len(database.records(*TASK)) == 75
        assert database.check().ok


def test_a_file_that_becomes_a_database_while_it_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, questions = sqlite3.connect, []

    class Watched(sqlite3.Connection):
        """Before the third question about the file another process makes its tables, if it can."""

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql.startswith(("PRAGMA application_id", "PRAGMA user_version", "SELECT count")):
                questions.append(sql)
                if len(questions) == 3:
                    other = real(path, timeout=0)
                    with suppress(sqlite3.OperationalError):  # "database is locked": it has to wait for us
                        other.executescript(f"CREATE TABLE t (x); PRAGMA user_version = {SCHEMA_VERSION}")
                    other.close()
            return super().execute(sql, *arguments)

    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: real(*args, factory=Watched, **options))
    with Database(path) as database:
        assert len(questions) >= 3
        assert database.check().ok


def test_bad_rows_are_skipped_and_counted(path: Path, database: Database, run: int) -> None:
    ids = [add(database, run, n) for n in range(4)]
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE candidates SET threads = 3 WHERE id = ?", (ids[0],))
        raw.execute("UPDATE candidates SET steps = '[666]' WHERE id = ?", (ids[1],))
        raw.execute("UPDATE measurements SET seconds = 1e-9 WHERE candidate = ?", (ids[2],))
        raw.execute("UPDATE workloads SET spec = x'ff00'")
    raw.close()
    assert [r.id for r in database.records(*TASK)] == [ids[3]]
    assert database.damaged == 2
    health = database.check()
    assert not health.ok
    assert (health.problems, health.n_records, health.n_damaged) == ((), 1, 4)


def test_random_byte_flips_never_crash(tmp_path: Path) -> None:
    original = tmp_path / "original.db"
    with Database(original) as database:
        run = start(database)
        truth = {}
        for n in range(60):
            row = add(database, run, n)
            truth[row] = database.record(row)
    content = original.read_bytes()
    rng = random.Random(2)
    sentences = []
    for case in range(60):
        broken = bytearray(content)
        for _ in range(rng.choice([1, 4, 64])):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        path = tmp_path / f"{case}.db"
        path.write_bytes(broken)
        try:
            with Database(path) as database:
                database.check()
                for record in database.records(*TASK):
                    assert record == truth[record.id]  # what is shown is right
                database.export_jsonl(tmp_path / "out.jsonl")
        except StoreError as error:
            sentences.append(str(error))
    assert not any("\n" in sentence for sentence in sentences)


def test_what_can_be_reached_of_a_damaged_file_is_exported(tmp_path: Path, path: Path) -> None:
    with Database(path) as database:
        run = start(database)
        for n in range(200):
            add(database, run, n)
    content = bytearray(path.read_bytes())
    page = 4096
    pages = range(len(content) // page)
    is_leaf = [content[i * page] == 13 and b"sketch0" in content[i * page : (i + 1) * page] for i in pages]
    target = is_leaf.index(True)
    content[target * page : target * page + 100] = b"\xff" * 100
    path.write_bytes(content)
    with Database(path) as database:
        assert not database.check().ok
        n_rescued = database.export_jsonl(tmp_path / "rescued.jsonl")
    assert 100 < n_rescued < 200
    with Database(tmp_path / "new.db") as database:
        assert database.import_jsonl(tmp_path / "rescued.jsonl") == (n_rescued, 0)
        assert database.check().ok
    path.write_bytes(content[: 3 * page])
    with pytest.raises(StoreError, match=r"damaged: rescue what can be read .*, or name another"):  # nothing can
        Database(path)


def test_foreign_files_are_refused_untouched(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("dear diary, " * 100)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as raw:
        raw.execute("CREATE TABLE t (x)")
    raw.close()
    newer = tmp_path / "newer.db"
    Database(newer).close()
    with sqlite3.connect(newer) as raw:
        raw.execute("PRAGMA user_version = 99")
    raw.close()
    for path, sentence in ((text, "not an SQLite file"), (foreign, "another program"), (newer, "schema version 99")):
        before = path.read_bytes()
        with pytest.raises(StoreError, match=sentence):
            Database(path)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("ALTER TABLE candidates RENAME TO c; CREATE VIEW candidates AS SELECT * FROM c", "the view 'candidates'"),
        ("CREATE VIEW extra AS SELECT 1", "the view 'extra'"),
        ("CREATE TRIGGER t AFTER INSERT ON candidates BEGIN DELETE FROM measurements; END", "the trigger 't'"),
        ("DROP TABLE failures; CREATE INDEX failures ON runs (uid)", "the table failures"),
        ("DROP TABLE failures; CREATE VIRTUAL TABLE failures USING fts4(x)", "the table failures"),
        ("ALTER TABLE failures RENAME COLUMN class TO kind", "the table failures"),
        ("DROP TABLE workloads", "the table workloads"),
    ],
)
def test_tables_are_tables(path: Path, change: str, sentence: str) -> None:
    Database(path).close()
    with sqlite3.connect(path) as raw:
        raw.executescript(change)
    raw.close()
    before = path.read_bytes()
    for create in (True, False):
        with pytest.raises(StoreError, match=sentence):
            Database(path, create=create)
    assert path.read_bytes() == before


def test_a_column_that_is_computed_is_refused(path: Path) -> None:
    Database(path).close()
    with sqlite3.connect(path) as raw:
        raw.executescript(
            "DROP TABLE targets; CREATE TABLE targets (fingerprint TEXT, json TEXT, sha256 TEXT AS ('x'))"
        )
    raw.close()
    with pytest.raises(StoreError, match="the table targets"):
        Database(path)


READER = """
import sys
from pathlib import Path
from autosched.errors import StoreError
from autosched.store import Database, TargetRow, WorkloadRow
path = Path(sys.argv[1])
with Database(path, create=False) as database:
    assert database.check().ok
    (best,) = database.best("w" * 64, "cpu-x", 2)
    assert database.export_jsonl(sys.argv[2]) == 3
    try:
        database.start_run(WorkloadRow("w", "w", "{}"), TargetRow("x", "{}"), 1, 0)
    except StoreError as error:
        print(error)
try:
    Database(path)
except StoreError as error:
    print(error)
path.with_name("left.db-wal").exists() and print("with log")
try:
    Database(path.with_name("left.db"), create=False)
except StoreError as error:
    print(error)
"""


def seal(directory: Path, way: str) -> list[str]:
    """Makes a directory read only for a program, which begins with the words returned; skips where that cannot be."""
    if way == "permissions":
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        for file in directory.iterdir():
            file.chmod(0o400)
        directory.chmod(0o500)
        return []
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" "$0" && exec "$@"'
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(directory)]
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this machine lets nobody mount")
    return words


@pytest.mark.parametrize("way", ["permissions", "mount"])
def test_reading_needs_nothing_to_be_written(tmp_path: Path, way: str) -> None:
    directory = tmp_path / "sealed #1?"  # the name goes into a URI
    directory.mkdir()
    path = directory / "records.db"
    with Database(path) as database:
        run = start(database)
        for n in range(3):
            add(database, run, n)
        left = directory / "left.db"
        left.write_bytes(path.read_bytes())
        Path(f"{left}-wal").write_bytes(Path(f"{path}-wal").read_bytes())  # as a killed tuner leaves it
    words = seal(directory, way)
    try:
        command = [*words, sys.executable, "-c", READER, str(path), str(tmp_path / "out.jsonl")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        directory.chmod(0o700)
    assert done.returncode == 0, done.stderr
    refused, again, log, unreadable = done.stdout.splitlines()
    assert "cannot be written" in refused
    assert "cannot be written" in again
    assert log == "with log"
    assert "the last rows of the database" in unreadable


def test_a_full_disk_is_told_as_full(tmp_path: Path, path: Path) -> None:
    """The write-ahead log's index cannot be made, which SQLite calls an I/O error."""
    with Database(path) as database:
        run = start(database)
        add(database, run, 1)
    program = f"""
import resource
from autosched.errors import StoreError
from autosched.store import Database
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
for open_ in (lambda: Database({str(path)!r}), lambda: Database({str(tmp_path / "new.db")!r})):
    try:
        open_()
    except StoreError as error:
        print(error)
with Database({str(path)!r}, create=False) as database:
    print(len(database.runs()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    first, second, n_runs = done.stdout.splitlines()
    assert "is full" in first
    assert "is full" in second
    assert n_runs == "1"


def test_a_file_cut_short_is_read_as_far_as_it_goes(tmp_path: Path, path: Path) -> None:
    with Database(path) as database:
        run = start(database)
        truth = {(n := add(database, run, i)): database.record(n).steps for i in range(300)}
    content = path.read_bytes()
    path.write_bytes(content[:-8192])
    with pytest.raises(StoreError, match=r"damaged: rescue what can be read"):
        Database(path)
    with Database(path, create=False) as database:
        assert not database.check().ok
        assert database.export_jsonl(tmp_path / "out.jsonl") > 200
    with Database(tmp_path / "new.db") as database:
        database.import_jsonl(tmp_path / "out.jsonl")
        assert {r.steps for r in database.records(*TASK)} <= set(truth.values())
    path.write_bytes(b"\xff" * 16 + content[16:])
    with pytest.raises(StoreError, match="not an SQLite file"):
        Database(path, create=False)
    assert path.read_bytes() == b"\xff" * 16 + content[16:]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("steps", "[" * 5000 + "]" * 5000),
        ("bindings", '{"a":[1]}'),
        ("bindings", "[]"),
        ("steps", "[" + "9" * 5000 + "]"),
    ],
)
def test_a_row_with_a_right_hash_and_wrong_content_is_damaged(
    path: Path, database: Database, run: int, column: str, text: str
) -> None:
    good, bad = add(database, run, 1), add(database, run, 2)
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE candidates SET {column} = ? WHERE id = ?", (text, bad))
        (*fields, _) = raw.execute(f"SELECT {CANDIDATE_COLUMNS} FROM candidates WHERE id = ?", (bad,)).fetchone()
        raw.execute("UPDATE candidates SET sha256 = ? WHERE id = ?", (digest(*fields[1:]), bad))
    raw.close()
    assert [r.id for r in database.records(*TASK)] == [good]
    assert database.damaged == 1


def test_paths_that_cannot_be_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory"):
        Database(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="could not be used"):
        Database(tmp_path / "file" / "records.db")
    with pytest.raises(StoreError, match="not a regular file"):
        Database(Path("/dev/null"))
    with pytest.raises(StoreError, match="no database at"):
        Database(tmp_path / "missing.db", create=False)
    with pytest.raises(StoreError, match="no records in"):
        Database(tmp_path / "file", create=False)
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_file_is_one_sentence(path: Path) -> None:
    Database(path).close()
    path.chmod(0o400)
    with pytest.raises(StoreError, match="cannot be written"):
        Database(path)


def test_full_disk_is_one_sentence_and_keeps_everything(database: Database, run: int) -> None:
    database.export_jsonl(database.path.with_name("warm.jsonl"))
    pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
    database._connection.execute(f"PRAGMA max_page_count = {pages}")
    saved: list[int] = []
    with pytest.raises(StoreError, match="is full"):
        saved.extend(add(database, run, n) for n in range(10_000))
    assert saved
    assert [r.id for r in database.records(*TASK)] == saved
    database._connection.execute("PRAGMA max_page_count = 100000")
    saved.append(add(database, run, 10_000))
    assert [r.id for r in database.records(*TASK)] == saved
    assert database.check().ok


def test_deleted_while_in_use(path: Path, database: Database, run: int) -> None:
    path.unlink()
    with pytest.raises(StoreError, match="moved or deleted"):
        add(database, run, 1)


def test_an_interrupt_in_a_transaction_leaves_nothing_behind(
    database: Database, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("autosched.store.rows.insert_outcome", interrupt)
        with pytest.raises(KeyboardInterrupt):
            add(database, run, 1)
    assert database.records(*TASK) == []
    assert add(database, run, 1) == 1


def damage(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute(statement)
    raw.close()


def flip(path: Path, text: bytes) -> None:
    """One bit of `text`, in the pages of a database that is not open."""
    content = bytearray(path.read_bytes())
    content[content.index(text)] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE failures SET message = 'x'",
        "UPDATE failures SET class = x'ff'",
        "UPDATE failures SET attempt = 0",
        "UPDATE failures SET attempt = 7",
        "UPDATE failures SET sha256 = ''",
    ],
)
def test_a_damaged_failure_does_not_revive_its_kernel(path: Path, database: Database, run: int, statement: str) -> None:
    wrong, right = add(database, run, 1, 1e-6), add(database, run, 2)
    database.certify(wrong, 1e-6, (1e-6, 1e-6))
    add(database, run, 1, None, "wrong_result")
    damage(path, statement)
    assert [r.id for r in database.best(*TASK, n=9)] == [right]
    assert [r.id for r in database.records(*TASK)] == [right]
    assert database.damaged == 1
    with pytest.raises(StoreError, match="no record 1"):
        database.record(wrong)


def test_a_failure_that_a_flipped_bit_gives_to_another_candidate(path: Path) -> None:
    """SQLite's index still knows whose it is."""
    with Database(path) as database:
        run = start(database)
        for n in range(30):
            add(database, run, n)
        add(database, run, 28, None, "wrong_result")
    content = bytearray(path.read_bytes())
    number = content.rindex(29, 0, content.index(b"wrong_result"))  # the candidate's, in the row of the failure
    content[number] ^= 64
    path.write_bytes(content)
    with Database(path) as database:
        assert 29 not in {r.id for r in database.best(*TASK, n=99)}
        assert not database.check().ok


def test_two_outcomes_of_one_number_are_not_to_be_told_apart(path: Path, database: Database, run: int) -> None:
    row, other = add(database, run, 1), add(database, run, 2)
    add(database, run, 1, None, "wrong_result")
    damage(path, f"UPDATE failures SET candidate = {other}, attempt = 0")
    assert [r.id for r in database.records(*TASK)] == [row]


def test_what_was_measured_after_a_lost_outcome_counts(path: Path, database: Database, run: int) -> None:
    row = add(database, run, 1)
    add(database, run, 1, None, "wrong_result")
    damage(path, "UPDATE failures SET message = 'x'")
    assert database.records(*TASK) == []
    add(database, run, 1, 3e-3)
    assert database.record(row).seconds == 3e-3
    assert [r.id for r in database.best(*TASK)] == [row]


def test_an_export_does_not_revive_what_has_a_damaged_failure(tmp_path: Path, path: Path) -> None:
    with Database(path) as database:
        run = start(database)
        add(database, run, 1)
        add(database, run, 2)
        database.append(
            run, "sketch0", '[["split", "C", 1]]', {"C.i": 1}, 0, Finding(None, (), "wrong_result", "element 77")
        )
    flip(path, b"element 77")
    with Database(path) as database, Database(tmp_path / "other.db") as other:
        assert database.export_jsonl(tmp_path / "out.jsonl") == 1
        assert other.import_jsonl(tmp_path / "out.jsonl") == (1, 0)
        assert len(other.records(*TASK)) == 1
        assert not database.check().ok


def test_random_cuts_and_insertions_never_crash(tmp_path: Path) -> None:
    original = tmp_path / "original.db"
    with Database(original) as database:
        run = start(database)
        truth = {(row := add(database, run, n)): database.record(row) for n in range(60)}
    content, rng, n_read, sentences = original.read_bytes(), random.Random(4), 0, []
    for case in range(24):
        at, size = rng.randrange(len(content)), rng.choice([1, 7, 512, 4096])
        page = at - at % 4096
        broken = (
            content[:at],
            content[:at] + rng.randbytes(size) + content[at:],
            content[:at] + content[at + size :],
            content[:page] + bytes(4096) + content[page + 4096 :],
        )[case % 4]
        path = tmp_path / f"{case}.db"
        path.write_bytes(broken)
        for create in (False, True):
            try:
                with Database(path, create=create) as database:
                    database.check()
                    n_read += database.export_jsonl(tmp_path / "out.jsonl")
                    for record in database.records(*TASK):
                        assert record == truth[record.id]  # what is shown is right
            except StoreError as error:
                sentences.append(str(error))
    assert n_read > 0
    assert not any("\n" in sentence for sentence in sentences)


BUSY = """
import sqlite3, sys, time
from pathlib import Path
from autosched.store import Database
kind, path, end = sys.argv[1], Path(sys.argv[2]), time.monotonic() + 3
while time.monotonic() < end:
    if kind == "vacuum":
        with sqlite3.connect(path, timeout=30) as raw:
            raw.execute("VACUUM")
        raw.close()
        continue
    with Database(path, create=False) as database:
        if kind == "best":
            assert database.best("w" * 64, "cpu-x", 2)
        elif kind == "check":
            assert database.check().ok
        else:
            assert database.export_jsonl(path.with_name("out.jsonl")) > 0
"""


def test_a_tuner_and_all_its_readers_at_once(path: Path, database: Database, run: int) -> None:
    add(database, run, 0)
    kinds = ("best", "check", "export", "vacuum")
    children = [
        subprocess.Popen([sys.executable, "-c", BUSY, kind, str(path)], stderr=subprocess.PIPE, text=True)
        for kind in kinds
    ]
    n = 0
    while any(child.poll() is None for child in children):
        n += 1
        add(database, run, n)
        time.sleep(0.01)
    errors = [child.communicate(timeout=30)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0, 0], errors
    assert len(database.records(*TASK)) == n + 1
    assert database.check().ok
