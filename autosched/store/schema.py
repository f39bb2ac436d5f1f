"""Database file: its path, its tables, and how it is opened without changing files of other programs.

Durability: write-ahead log with synchronous=FULL, so a commit that returned is on the disk (measured at about 3.4 ms
a commit, against the 50 ms and more of a measurement). Writers take the lock at once (BEGIN IMMEDIATE) and wait for
each other up to 30 s.
"""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from shlex import quote

from autosched.errors import StoreError
from autosched.runtime.data_files import default_path, named_path

APPLICATION_ID = 0x61736368  # "asch"
SCHEMA_VERSION = 3
BUSY_TIMEOUT_S = 30.0
WAL_INDEX_BYTES = 32_768  # bytes by which SQLite extends its -shm file
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# Every row carries a sha256 over its other columns (a run: over those that never change), checked when it is read.
# These are the tables of version 1.
TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE workloads (hash TEXT PRIMARY KEY, name TEXT NOT NULL, spec TEXT NOT NULL, sha256 TEXT NOT NULL)",
    "CREATE TABLE targets (fingerprint TEXT PRIMARY KEY, json TEXT NOT NULL, sha256 TEXT NOT NULL)",
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, workload TEXT NOT NULL, target TEXT NOT NULL,
        threads INTEGER NOT NULL, seed INTEGER NOT NULL, started TEXT NOT NULL, finished TEXT, status TEXT NOT NULL,
        sha256 TEXT NOT NULL)""",
    """CREATE TABLE candidates (
        id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, run_id INTEGER NOT NULL, workload TEXT NOT NULL,
        target TEXT NOT NULL, threads INTEGER NOT NULL, sketch TEXT NOT NULL, steps TEXT NOT NULL,
        bindings TEXT NOT NULL, round INTEGER NOT NULL, created TEXT NOT NULL, sha256 TEXT NOT NULL)""",
    "CREATE INDEX candidates_by_task ON candidates (workload, target, threads)",
    # `attempt` numbers the outcomes of a candidate over both tables.
    """CREATE TABLE measurements (
        id INTEGER PRIMARY KEY, candidate INTEGER NOT NULL, attempt INTEGER NOT NULL, run_id INTEGER NOT NULL,
        seconds REAL NOT NULL, samples TEXT NOT NULL, ci_lo REAL, ci_hi REAL, created TEXT NOT NULL,
        sha256 TEXT NOT NULL, UNIQUE (candidate, attempt))""",
    """CREATE TABLE failures (
        id INTEGER PRIMARY KEY, candidate INTEGER NOT NULL, attempt INTEGER NOT NULL, run_id INTEGER NOT NULL,
        class TEXT NOT NULL, message TEXT NOT NULL, created TEXT NOT NULL,
        sha256 TEXT NOT NULL, UNIQUE (candidate, attempt))""",
)

# Migrations to each later version, which also create new files.
_FUSION = "(SELECT hash FROM workloads WHERE name LIKE '%, joined or apart')"  # kept as candidates before version 3
UPGRADES = {
    2: ("ALTER TABLE measurements ADD COLUMN signature TEXT", "ALTER TABLE failures ADD COLUMN signature TEXT"),
    3: (
        """CREATE TABLE fusion_decisions (
            id INTEGER PRIMARY KEY, workload TEXT NOT NULL, target TEXT NOT NULL, threads INTEGER NOT NULL,
            is_fused INTEGER NOT NULL, fused_s TEXT NOT NULL, unfused_s TEXT NOT NULL, created TEXT NOT NULL,
            signature TEXT, sha256 TEXT NOT NULL UNIQUE)""",
        f"DELETE FROM measurements WHERE candidate IN (SELECT id FROM candidates WHERE workload IN {_FUSION})",
        f"DELETE FROM candidates WHERE workload IN {_FUSION}",
        f"DELETE FROM runs WHERE workload IN {_FUSION}",
        f"DELETE FROM workloads WHERE hash IN {_FUSION}",
    ),
}

DAMAGED = (
    "the database {path} is damaged: rescue what can be read of it with `{export}` and import it anew, "
    "or name another with --db"
)

HOPELESS = "nothing can be read of the database {path}, its first page is damaged: restore a copy or use another --db"
NO_RECORDS = "there are no records in {path}: `{tune}` makes some"
MALFORMED = "malformed"  # SQLite's message for a damaged page

# From SQLite's messages to those for users. The first match counts.
FULL = "the disk under the database {path} is full: free some space and try again, all saved rows are kept"
SENTENCES = (
    ("is full", FULL),
    ("not a database", "{path} is not an autosched database (not an SQLite file): name another file with --db"),
    (MALFORMED, DAMAGED),
    ("no such", DAMAGED),
    ("locked", "the database {path} was locked by another process for 30 s: end that process or use another --db"),
    ("busy", "the database {path} was locked by another process for 30 s: end that process or use another --db"),
    ("readonly", "the database {path} cannot be written: check its permissions or use another --db"),
    ("unable to open", "the database {path} cannot be opened for writing: check its permissions or use another --db"),
    ("I/O error", "the disk failed to read or write the database {path}: check the disk or use another --db"),
)


def absolute_path(path: Path | str) -> Path:
    """Return `named_path` as an absolute path; for a relative one the working directory must exist."""
    with one_sentence(named := named_path(path)):
        return named.absolute()


def command(words: str, path: Path | str | None = None) -> str:
    """Return a command for the user to type, with the option for the database at `path` if that is not the
    default one.
    """
    return f"autosched {words}{_named(path)}"


def _named(path: Path | str | None) -> str:
    if path is None:
        return ""
    try:
        is_default = absolute_path(path) == default_path()
    except StoreError:  # no home: it has to be named
        is_default = False
    return "" if is_default else f" --db {quote(str(path))}"


@contextmanager
def one_sentence(path: Path) -> Iterator[None]:
    """Turns SQLite's and the system's errors into a StoreError of one sentence that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "I/O error" in text and is_full(path):  # as when there is no room for the index of the write-ahead log
            raise StoreError(FULL.format(path=path)) from error
        for part, sentence in SENTENCES:
            if part in text:
                raise StoreError(sentence.format(path=path, export=command("db export", path))) from error
        raise StoreError(f"the database {path} could not be used: {text}") from error
    except UnicodeDecodeError as error:  # SQLite's own message, quoting a damaged schema
        raise StoreError(DAMAGED.format(path=path, export=command("db export", path))) from error
    except OSError as error:
        if error.errno in NO_ROOM:
            sentence = f"there is no room for {path} ({error.strerror}): free some space and try again"
            raise StoreError(sentence) from error
        raise StoreError(f"{path} could not be used: {error.strerror or error}; name another file") from error


def is_full(path: Path) -> bool:
    """Whether the file system of `path` has no room for a page, or the process may not make the file longer."""
    try:
        space = os.statvfs(path.parent)
        size = max(file.stat().st_size for file in (path, *_beside(path)) if file.exists())
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    except (OSError, ValueError):
        return False
    return space.f_bavail * space.f_frsize < WAL_INDEX_BYTES or 0 <= limit < size + WAL_INDEX_BYTES


def open_connection(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection to our database at `path` (absolute), made where it is missing and `create` says so.

    Without `create`, one that cannot be written or is damaged is opened to be read only. A file that is not ours, or
    newer than this version, is refused before anything is written to it.
    """
    with one_sentence(path):
        _prepare_file(path, create=create)
        if create:
            return _open_to_write(path, create=True)
        try:
            if _is_writable(path):
                return _open_to_write(path, create=False)
        except sqlite3.DatabaseError as error:
            if MALFORMED not in str(error):
                raise
        return _open_to_read(path)


def _open_to_write(path: Path, *, create: bool) -> sqlite3.Connection:
    with _connected(path) as connection:
        with _read_transaction(connection):
            is_new = _is_new(connection, path)
        if is_new and not create:
            raise StoreError(NO_RECORDS.format(path=path, tune=command("tune", path)))
        if not is_new:
            check_tables(connection, path)
        connection.execute("PRAGMA synchronous = FULL")
        _use_write_ahead_log(connection)
        if is_new:
            _create_tables(connection, path)
        _upgrade(connection)
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Where SQLite can make no files beside the database, it reads the file alone: `immutable`, without any lock.

    That is right while nobody writes. A writer has a write-ahead log there, which is then refused, not passed over.
    """
    log, _ = _beside(path)
    try:
        return _checked_to_read(path, "mode=ro")
    except sqlite3.DatabaseError as error:
        if MALFORMED in str(error):
            raise StoreError(HOPELESS.format(path=path)) from error
        if "not a database" in str(error):
            raise
        if log.exists() and log.stat().st_size > 0:
            raise StoreError(
                f"the last rows of the database {path} are in {log}, which cannot be read where nothing can be "
                "written: copy both files to another directory and name that one with --db"
            ) from error
    return _checked_to_read(path, "mode=ro&immutable=1")


def _checked_to_read(path: Path, how: str) -> sqlite3.Connection:
    with _connected(f"{path.as_uri()}?{how}") as connection:
        # Lets a file be read that is shorter than it says. It is opened to be read, so nothing else comes of it.
        connection.execute("PRAGMA writable_schema = ON")
        with _read_transaction(connection):
            if _is_new(connection, path):
                raise StoreError(NO_RECORDS.format(path=path, tune=command("tune", path)))
        check_tables(connection, path)
    return connection


@contextmanager
def _connected(place: Path | str) -> Iterator[sqlite3.Connection]:
    """A connection (`place` is a path, or a URI) that is closed if the block raises, and left open if not."""
    connection = sqlite3.connect(place, timeout=BUSY_TIMEOUT_S, isolation_level=None, uri=isinstance(place, str))
    try:
        # Damaged text shows as replacement characters and then fails its row's hash, instead of raising.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA trusted_schema = OFF")
        yield connection
    except BaseException:
        connection.close()
        raise


def check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StoreError unless our tables are tables with our columns, and there are no views and triggers.

    A view in place of a table may never end, and a trigger deletes what was just written.
    """
    found = {name: (kind, sql) for name, kind, sql in connection.execute("SELECT name, type, sql FROM sqlite_master")}
    wrong = [f"the {kind} {name!a:.80}" for name, (kind, _) in found.items() if kind in ("view", "trigger")]
    for name, columns in _our_columns().items():
        kind, sql = found.get(name, ("", ""))
        is_table = kind == "table" and str(sql).upper().startswith("CREATE TABLE")
        if not is_table or not columns <= set(_columns(connection, name)):
            wrong.append(f"the table {name}")
    if wrong:
        raise StoreError(
            f"{path} is not as autosched made it, {wrong[0]} is another program's or damaged: restore a copy of the "
            "database or name another with --db"
        )


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, str, int]]:
    """(name, type, whether it is computed) of each column."""
    rows = connection.execute("SELECT name, type, hidden FROM pragma_table_xinfo(?)", (table,))
    return [(name, kind, hidden) for name, kind, hidden in rows]


@cache
def _our_columns() -> dict[str, set[tuple[str, str, int]]]:
    """Of each of TABLES, as SQLite reads it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in TABLES:
            connection.execute(statement)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {name: set(_columns(connection, name)) for (name,) in names}


@contextmanager
def write_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing: committed (and on the disk) when the block ends, undone when it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled back by itself
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _read_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is read inside is of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def make_directories(directory: Path) -> None:
    """Create missing directories for the user alone (0700)."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def _beside(path: Path) -> tuple[Path, Path]:
    """Return SQLite's files beside the database: the write-ahead log and its index."""
    return Path(f"{path}-wal"), Path(f"{path}-shm")


def _is_writable(path: Path) -> bool:
    """Return whether SQLite can write to the file, and create its own files beside it."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK) and not is_full(path)


def _prepare_file(path: Path, *, create: bool) -> None:
    if not os.path.lexists(path):
        if not create:
            raise StoreError(f"there is no database at {path}: `{command('tune', path)}` makes one, --db names another")
        make_directories(path.parent)
        flags = os.O_CREAT | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)
        os.close(os.open(path, flags, 0o600))
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise StoreError(f"{path} is a directory: --db takes the name of a file in it")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is not a regular file: name another file with --db")
    if create and not os.access(path, os.W_OK):
        raise StoreError(f"the database {path} cannot be written: check its permissions or use another --db")


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file is still empty. Raises StoreError if another program wrote it, or a newer version.

    Called inside a transaction: another process may be creating the tables between two of these reads.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = _version(connection)
    n_objects = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and n_objects == 0:
        return True
    if application != APPLICATION_ID or version < 1:
        raise StoreError(f"{path} is the SQLite database of another program: name another file with --db")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"the database {path} has schema version {version}, newer than the {SCHEMA_VERSION} that this autosched "
            "reads: upgrade autosched or use another --db"
        )
    return False


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log, with retries: SQLite does not wait if two processes switch a new file's mode at
    once.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    with write_transaction(connection):
        if not _is_new(connection, path):  # another process was first
            return
        for statement in TABLES:
            connection.execute(statement)
        connection.execute("INSERT INTO meta VALUES ('format', 'autosched records')")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        _take_steps(connection)


def _upgrade(connection: sqlite3.Connection) -> None:
    """Make a file of an older version one of this version, in one transaction. Records of kernels stay as they are."""
    if _version(connection) < SCHEMA_VERSION:
        with write_transaction(connection):
            _take_steps(connection)


def _take_steps(connection: sqlite3.Connection) -> None:
    """Run the missing migrations, inside a transaction: another process may have run them already."""
    for version in range(_version(connection) + 1, SCHEMA_VERSION + 1):
        for statement in UPGRADES[version]:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
