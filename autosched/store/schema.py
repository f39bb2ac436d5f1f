"""The file behind a `Database`: where it lies, its tables, and how it is opened without ever harming a foreign file.

Durability: write-ahead log with synchronous=FULL, so a commit that returned is on the disk (measured at about 3.4 ms
a commit, against the 50 ms and more of a measurement). Writers take the lock at once (BEGIN IMMEDIATE) and wait for
each other up to 30 s.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from autosched.errors import StoreError

APPLICATION_ID = 0x61736368  # "asch"
SCHEMA_VERSION = 2
BUSY_TIMEOUT_S = 30.0

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

# What each later version adds: a new file takes all these steps too.
UPGRADES = {2: ("ALTER TABLE measurements ADD COLUMN signature TEXT", "ALTER TABLE failures ADD COLUMN signature TEXT")}

DAMAGED = (
    "the database {path} is damaged: rescue what can be read of it with `{export}` and import it anew, "
    "or name another with --db"
)

# What SQLite says -> what the user reads. The first match counts.
SENTENCES = (
    ("is full", "the disk under the database {path} is full: free some space and try again, all saved rows are kept"),
    ("not a database", "{path} is not an autosched database (not an SQLite file): name another file with --db"),
    ("malformed", DAMAGED),
    ("no such", DAMAGED),
    ("locked", "the database {path} was locked by another process for 30 s: end that process or use another --db"),
    ("busy", "the database {path} was locked by another process for 30 s: end that process or use another --db"),
    ("readonly", "the database {path} cannot be written: check its permissions or use another --db"),
    ("unable to open", "the database {path} cannot be opened for writing: check its permissions or use another --db"),
    ("I/O error", "the disk failed to read or write the database {path}: check the disk or use another --db"),
)


def default_path() -> Path:
    """`$XDG_DATA_HOME/autosched/records.db`, or under `~/.local/share` where that is unset or not absolute."""
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data_home.is_absolute():
        try:
            data_home = Path.home() / ".local" / "share"
        except RuntimeError as error:
            raise StoreError("there is no home directory for the record database: name a file with --db") from error
    return data_home / "autosched" / "records.db"


def named_path(path: Path | str) -> Path:
    """`path` with `~` resolved. Raises StoreError for what is no path, or for a home directory that is not known."""
    try:
        return Path(path).expanduser()
    except (TypeError, RuntimeError) as error:
        raise StoreError(f"{path!r} names no file: {error}") from error


def absolute_path(path: Path | str) -> Path:
    """`named_path` from the root; a relative one needs a working directory that is still there."""
    with one_sentence(named := named_path(path)):
        return named.absolute()


def command(words: str, path: Path | str | None = None) -> str:
    """A command for the user to type, which names the database at `path` where that is not the default one."""
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
        for part, sentence in SENTENCES:
            if part in text:
                raise StoreError(sentence.format(path=path, export=command("db export", path))) from error
        raise StoreError(f"the database {path} could not be used: {text}") from error
    except UnicodeDecodeError as error:  # SQLite's own message, quoting a damaged schema
        raise StoreError(DAMAGED.format(path=path, export=command("db export", path))) from error
    except OSError as error:
        raise StoreError(f"{path} could not be used: {error.strerror or error}; name another file") from error


def open_connection(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection to our database at `path` (absolute), made where it is missing and `create` says so.

    A file that is not ours, or newer than this version, is refused before anything is written to it.
    """
    with one_sentence(path):
        _prepare_file(path, create=create)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            # Damaged text shows as replacement characters and then fails its row's hash, instead of raising.
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA trusted_schema = OFF")
            with _read_transaction(connection):
                is_new = _is_new(connection, path)
            if is_new and not create:
                raise StoreError(f"there are no records in {path}: `{command('tune', path)}` makes some")
            connection.execute("PRAGMA synchronous = FULL")
            _use_write_ahead_log(connection)
            if is_new:
                _create_tables(connection, path)
            _upgrade(connection)
        except BaseException:
            connection.close()
            raise
        return connection


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
    """Missing directories are made for the user alone (0700)."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


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
    if not os.access(path, os.W_OK):
        raise StoreError(f"the database {path} cannot be written: check its permissions or use another --db")


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is still empty. Raises StoreError if it is somebody else's or newer than this version.

    Called inside a transaction: another process may be making the tables between two of these reads.
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
    """SQLite does not wait by itself when two processes switch a new file's journal mode at once."""
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
    """A file of an older version becomes one of this, in one transaction. Its records stay as they are."""
    if _version(connection) < SCHEMA_VERSION:
        with write_transaction(connection):
            _take_steps(connection)


def _take_steps(connection: sqlite3.Connection) -> None:
    """From inside a transaction: another process may have been first."""
    for version in range(_version(connection) + 1, SCHEMA_VERSION + 1):
        for statement in UPGRADES[version]:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
