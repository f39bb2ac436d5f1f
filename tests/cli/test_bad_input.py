"""What is wrong is said in one sentence with the right exit code, before anything is written or allocated."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autosched.cli import main as cli_main
from autosched.cli.main import main
from autosched.store import Database, Finding, TargetRow, WorkloadRow
from tests.helpers import ROOT, python

SMALL = "--shape 1,16,16,16 --trials 2 --threads 1"
OWN = """
from autosched import te

def raises(M=4):
    raise ValueError("first line\\nsecond line")

def nothing(M=4):
    pass

def a_word(M=4):
    return "tensor"

def exits(M=4):
    raise SystemExit(3)

def out_of_range(M=4):
    A = te.placeholder((M, M), name="A")
    return te.compute((M,), lambda i: A[i], name="B")
"""


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("def f(:\n")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ("gmn", 2, "there is no workload 'gmn'; did you mean gmm"),
        ("qqqq", 2, "choose one of c1d, c2d"),
        ("gmm --shape 1,2", 2, "the shape needs 4 numbers (B,N,M,K) but has 2"),
        ("gmm --shape 1,2,3,4,5", 2, "the shape needs 4 numbers"),
        ("gmm --shape 0,2,3,4", 2, "B must be an integer >= 1 but is 0"),
        ("gmm --shape=-1,2,3,4", 2, "whole numbers with commas"),
        ("gmm --set M=-3", 2, "M must be an integer >= 1 but is -3"),
        ("gmm --set CO=3", 2, "gmm has no argument 'CO'"),
        ("conv2d --shape 1,2,2,4,4,5,1,0", 2, ""),  # the window is larger than the image
        ("gmm --shape 1,10000000,10000000,10000000", 2, "more than 2**62"),
        ("gmm --shape 1,2147483647,2147483647,2147483647", 2, "more than 2**62"),
        ("gmm --shape 99999999999,1,1,1", 2, "whole numbers with commas"),
        ("relu --shape 200000,130000", 2, "(104.0 GB)"),
        ("gmm --dtype float8", 2, "dtype must be one of float32, float64"),
        ("sfm --dtype int8", 2, "dtype must be one of float32, float64"),
        ("gmm --weights Z", 2, "Z cannot be a weight, as it is no input; the inputs are X, Y"),
        ("gmm --weights X,Y", 2, "all inputs (X, Y) are weights, so nothing is left to run"),
        ("gmm --weights Y,", 2, "names are written with commas"),
        ("gmm --weights Y --target cuda --no-run", 2, "weights are prepared ahead of time for processors only"),
        ("gmm --threads 0", 2, "--threads"),
        ("gmm --threads 100000", 2, "threads must be a whole number from 1 to 256, got 100000"),
        ("gmm --target tpu", 2, "target 'tpu' is not known"),
        ("gmm --target llvm -mcpu=haswall", 2, "did you mean haswell"),
        ("gmm --target llvm -mcpu=neoverse-v9", 2, "did you mean neoverse"),
        ("gmm --target cuda --threads 2", 2, "threads are those of a processor"),
        ("gmm --target cuda -arch=sm_1", 2, "sm_1"),
        ("no_file.py:f", 2, "there is no file no_file.py"),
        ("own.py", 2, "written path/to/file.py:function"),
        ("own.py:raise", 2, "did you mean raises"),
        ("own.py:raises", 2, "own.py:5: raises failed: ValueError: first line second line"),
        ("own.py:raises --set N=1", 2, "has no argument 'N'"),
        ("own.py:exits", 2, "own.py:14: exits failed: SystemExit: 3"),
        ("gmm --set dtype=int8 --dtype float32", 2, "is given twice, as 'float32' and in the settings as 'int8'"),
        ("gmm --set M=3 --set M=4", 2, "M has two values, 3 and 4"),
        ("gmm --no-run --resume", 2, "but by the model alone (--no-run) nothing is"),
        ("gmm --target cuda -arch=sm_90 --arch sm_80 --no-run", 2, "has -arch twice"),
        ("gmm --target  --no-run", 2, "target '' is not known"),
        ("gmm --no-run --out-dir out\udce9", 2, "the argument 'out\\udce9' is not UTF-8"),
        ("own.py:nothing", 2, "or tensors made by te.compute"),
        ("own.py:a_word", 2, "or tensors made by te.compute"),
        ("own.py:out_of_range", 2, "A has 2 dimensions but is indexed with 1"),
        ("broken.py:f", 2, "broken.py:1: the file cannot be imported"),
        (f"gmm {SMALL} --out-dir own.py", 2, "cannot be written to own.py"),
        (f"gmm {SMALL} --out-dir own.py/out", 2, "cannot be written to own.py/out"),
        (f"gmm {SMALL} --db own.py", 2, "own.py is not an autosched database"),
        (f"gmm {SMALL} --db cache", 2, "cache is a directory"),
        (f"gmm {SMALL} --db own.py/records.db", 2, "could not be used"),
        (f"gmm {SMALL} --db /proc/autosched/records.db", 2, "could not be used"),
    ],
)
def test_tune_refuses(cli: Any, tmp_path: Path, words: str, code: int, sentence: str) -> None:
    given = words.replace(" -mcpu", "\x00-mcpu").replace(" -arch", "\x00-arch").split(" ")  # one word for the shell
    given = [word.replace("\x00", " ") for word in given]
    answer = cli("tune", *given, *(() if "--db" in given else ("--db", "records.db")))
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("autosched: error: ")
    assert answer.err.count("\n") == 1
    assert sentence in answer.err
    left = {p.name for p in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"own.py", "broken.py", "cache"}, "something was written"
    assert (tmp_path / "own.py").read_text() == OWN


def test_a_processor_that_this_one_is_not(cli: Any) -> None:
    foreign = "x86-64-v3" if os.uname().machine in ("aarch64", "arm64") else "neoverse-n1"
    answer = cli("tune", "gmm", "--mcpu", foreign)
    assert answer.code == 5
    assert "cannot be measured on this machine" in answer.err


def test_a_database_of_somebody_else_or_of_the_future(cli: Any, tmp_path: Path) -> None:
    other, newer = tmp_path / "other.db", tmp_path / "newer.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    Database(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    for path, sentence in ((other, "of another program"), (newer, "schema version 99")):
        before = path.read_bytes()
        for words in (("tune", "gmm", *SMALL.split()), ("best",), ("show", 1), ("db", "check")):
            answer = cli(*words, "--db", path)
            assert (answer.code, answer.err.count("\n")) == (2, 1)
            assert sentence in answer.err
        assert path.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_path_without_permission(cli: Any, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    for option in ("--db", "--out-dir"):
        answer = cli("tune", "gmm", *SMALL.split(), option, locked / "x")
        assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_an_import_that_describes_its_workload_with_nonsense(cli: Any, tmp_path: Path) -> None:
    db = tmp_path / "records.db"
    with Database(db) as database:
        for n, spec in enumerate(('{"name":"gmm"}', "[]", '{"name":"gmm","args":{"B":"x"},"dtype":"float32"}', "{}")):
            run = database.start_run(WorkloadRow(f"{n}" * 64, "gmm", spec), TargetRow("t", "{}"), 1, 0)
            database.append(run, "s", "[]", {}, 0, Finding(1e-3))
    for record in (1, 2, 3, 4):
        answer = cli("show", record, "--db", db)
        assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_an_import_of_something_else(cli: Any) -> None:
    answer = cli("db", "import", "own.py", "--db", "records.db")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "lines of own.py is a record" in answer.err


def test_a_workload_says_its_types(cli: Any) -> None:
    assert "--dtype    float32, float64, float8_e4m3fn, float8_e5m2, float16, bfloat16\n" in cli("workloads", "sfm").out


def test_debug_shows_the_traceback() -> None:
    command = ("-m", "autosched.cli.main", "tune", "gmn")
    plain = python(*command)
    assert (plain.returncode, plain.stderr.count("\n")) == (2, 1)
    debug = python(*command, AUTOSCHED_DEBUG="1")
    assert debug.returncode != 0
    assert "Traceback" in debug.stderr
    assert "UsageError: there is no workload 'gmn'" in debug.stderr


def test_a_command_begins_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time; from autosched.cli.main import process_start; print(time.monotonic() - process_start())"
    done = python("-c", code, check=True)
    assert 0.0 <= float(done.stdout) < 30.0
    monkeypatch.setattr(cli_main.os, "sysconf", lambda _: 0.001)  # a process of many years
    before = cli_main.time.monotonic()
    assert cli_main.process_start() >= before


def test_a_refused_word_comes_as_json_too(cli: Any) -> None:
    answer = cli("tune", "gmm", "--trials", "0", "--json")
    assert answer.code == 2
    assert answer.json["error"]["exit_code"] == 2


def test_a_relative_path_in_a_directory_that_is_gone(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for words in (
        ("best", "--db", "records.db"),
        ("db", "path", "--db", "r.db"),
        ("best", "--db", "~nobody-here/r.db"),
    ):
        answer = cli(*words)
        assert (answer.code, answer.err.count("\n")) == (2, 1)


def command(words: str, redirections: str) -> subprocess.CompletedProcess[str]:
    script = f"{sys.executable} -m autosched {words} {redirections}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)


def test_closed_streams(tmp_path: Path) -> None:
    """Nothing that a command opens gets their numbers, and its text."""
    made = tmp_path / "records.db"
    Database(made).close()
    for redirections in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = command(f"db check --db {made}", redirections)
        assert (done.returncode, done.stderr) == (0, "")
        assert (done.stdout == "") == (">&-" in redirections.replace("2>&-", ""))
    assert command(f"best --db {made}x", ">&- 2>&-").returncode == 2


def test_ctrl_c_while_the_command_is_imported(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from autosched.__main__ import main; main()"
    done = python("-c", code, PYTHONPATH=f"{ROOT}:{tmp_path}")
    said = "autosched: error: interrupted before anything began\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_main_returns_what_the_shell_gets() -> None:
    assert main(["tune", "gmn"]) == 2
