import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autosched
from autosched import errors
from autosched.cli.main import VERBS, main
from tests.helpers import python

CODES = [
    (errors.UsageError, 2),
    (errors.ExpressionError, 2),
    (errors.ScheduleError, 2),
    (errors.TargetError, 2),
    (errors.StoreError, 2),
    (errors.NoValidCandidate, 3),
    (errors.VerificationError, 4),
    (errors.DeviceError, 5),
    (errors.Interrupted, 130),
]


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run_path(_: object) -> int:
        raise error

    monkeypatch.setattr("autosched.cli.db.run_path", run_path)


@pytest.mark.parametrize(("words", "near"), [("tune matmul --trails 3", "--trials"), ("best matmul --jsn", "--json")])
def test_a_misspelt_option_is_told_the_nearest_one(cli: Any, words: str, near: str) -> None:
    answer = cli(*words.split())
    assert (answer.code, answer.out) == (2, "")
    assert f"did you mean {near}?" in answer.err


@pytest.mark.parametrize(("error", "code"), CODES)
def test_every_error_is_one_sentence_with_its_exit_code(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: type[errors.AutoschedError], code: int
) -> None:
    raising(monkeypatch, error("this is\nwhat went wrong"))
    answer = cli("db", "path")
    assert (answer.code, answer.out, answer.err) == (code, "", "autosched: error: this is what went wrong\n")
    answer = cli("db", "path", "--json")
    assert answer.code == code
    assert answer.json == {
        "schema_version": 1,
        "error": {"class": error.__name__, "message": "this is what went wrong", "exit_code": code},
    }


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted; everything measured so far is saved"),
        (MemoryError(), 2, "error: this machine has not enough memory"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a.ll"),
            2,
            "error: No space left on device in a.ll: make room",
        ),
        (OSError(errno.EMFILE, "Too many open files"), 2, "error: Too many open files: make room and try again"),
        (OSError(errno.EINVAL, "Invalid argument"), 1, "internal error: OSError: [Errno 22] Invalid argument"),
        (KeyError("x"), 1, "internal error: KeyError: 'x'; set AUTOSCHED_DEBUG=1"),
    ],
)
def test_other_exceptions_are_one_sentence_too(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, sentence: str
) -> None:
    raising(monkeypatch, error)
    answer = cli("db", "path")
    assert answer.code == code
    assert answer.err.startswith(f"autosched: {sentence}")
    assert answer.err.count("\n") == 1


def test_debug_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, errors.StoreError("x"))
    monkeypatch.setenv("AUTOSCHED_DEBUG", "1")
    with pytest.raises(errors.StoreError):
        main(["db", "path"])


@pytest.mark.parametrize(
    "words",
    [
        "",
        "tun",
        "tune",
        "tune conv2d --trials 0",
        "tune conv2d --trials 1.5",
        "tune conv2d --trials 99999999999999999999",
        "tune conv2d --threads -1",
        "tune conv2d --seed x",
        "tune conv2d --budget 0",
        "tune conv2d --budget 5y",
        "tune conv2d --budget nan",
        "tune conv2d --shape 1,,2",
        "tune conv2d --shape 1x2",
        "tune conv2d --set CO",
        "tune conv2d --set =3",
        "tune conv2d --unknown",
        "tune conv2d conv2d",
        "tune nothing_like_this",
        "tune conv2d --target tpu",
        "show",
        "show 0",
        "show x",
        "show 1 --as python",
        "export 1 --kind exe",
        "workloads nothing_like_this",
        "db",
        "db drop",
        "db import",
        "plot",
        "bench --peers nobody",
        "bench --shape 1,2,3",
        "bench matmul gmm --shape 1,2,3",
        "doctor --target tpu",
    ],
)
def test_usage_errors_are_one_sentence_and_exit_2(cli: Any, words: str) -> None:
    answer = cli(*words.split())
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("autosched: error: ")
    assert answer.err.count("\n") == 1


def test_help_and_version(cli: Any) -> None:
    answer = cli("--help")
    assert answer.code == 0
    assert all(verb in answer.out for verb in VERBS)
    for verb in VERBS:
        assert "--json" in cli(verb, "--help").out or verb == "db"
    assert cli("--version").out == f"autosched {autosched.__version__}\n"


def test_the_package_runs_as_the_command() -> None:
    done = python("-m", "autosched", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"autosched {autosched.__version__}\n", "")
    assert python("-m", "autosched", "tun").returncode == 2


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from autosched.cli.main import main; main(['--help']);"
        "heavy = {'numpy', 'sqlite3', 'rich', 'llvmlite', 'xgboost', 'networkx', 'matplotlib', 'torch'};"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert python("-c", code).returncode == 0


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "autosched.cli.main", "db", "path", "--db", str(tmp_path / "x.db")]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


def test_json_is_the_last_line_and_has_a_schema_version(cli: Any, db: Path) -> None:
    for words in (("workloads",), ("best", "--db", db), ("db", "path"), ("db", "check", "--db", db)):
        answer = cli(*words, "--json")
        assert answer.code == 0
        assert answer.out.count("\n") == 1
        assert json.loads(answer.out)["schema_version"] == 1
