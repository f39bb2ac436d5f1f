"""What a machine may do to a command: directories that cannot be written, odd variables, streams that end early."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autosched.cli import doctor
from tests.helpers import ROOT

SMALL = ("matmul", "--shape", "16,16,16", "--trials", "2", "--threads", "1")
# Root without its privileges is held to permission bits as everybody else is.
HUMBLE = () if os.geteuid() else ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
PATIENCE_S = 120.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def run(home: Path, *words: object, prefix: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    unwanted = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "AUTOSCHED_DEBUG", "PYTHONOPTIMIZE")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return subprocess.run(
        [*prefix, sys.executable, "-m", "autosched", *map(str, words)],
        env={**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), **variables},
        cwd=home, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def check_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """By one sentence with these words, as something of the user's that is to be put right."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("autosched: error: ")
    for word in words:
        assert word in done.stderr


@pytest.fixture
def no_entry(home: Path) -> Path:
    """A directory under `home` that `HUMBLE` commands cannot write."""
    if HUMBLE and shutil.which(HUMBLE[0]) is None:
        pytest.skip("root may write everywhere, and there is no setpriv to give that up")
    directory = home / "closed"
    directory.mkdir()
    directory.chmod(0o500)
    if subprocess.run([*HUMBLE, "mkdir", str(directory / "x")], capture_output=True, check=False).returncode == 0:
        pytest.skip("this user writes where permissions forbid it")
    return directory


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_a_cache_that_cannot_be_made(home: Path, no_entry: Path, variable: str) -> None:
    done = run(home, "tune", *SMALL, "--db", home / "r.db", prefix=HUMBLE, **{variable: str(no_entry)})
    check_refused(done, " cannot be used (Permission denied): make it writable", "set XDG_CACHE_HOME")


@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_cache_without_permissions(home: Path, no_entry: Path, mode: int) -> None:
    cache = home / ".cache" / "autosched"
    cache.mkdir(parents=True)
    cache.chmod(mode)
    done = run(home, "tune", *SMALL, prefix=HUMBLE)
    cache.chmod(0o700)
    check_refused(done, ".cache/autosched/runs cannot be used (Permission denied)", "set XDG_CACHE_HOME")


def test_a_relative_cache_is_that_of_no_variable(home: Path) -> None:
    """Workers have another directory, and nothing was built there."""
    done = run(home, "tune", *SMALL, XDG_CACHE_HOME="here", XDG_DATA_HOME="there", TMPDIR="nowhere")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in home.iterdir()) == [".cache", ".local"]


def test_doctor_names_a_cache_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor._cache().ok
    (tmp_path / "autosched" / "runs").rmdir()
    (tmp_path / "autosched" / "runs").touch()
    found = doctor._cache()
    assert not found.ok
    assert "runs cannot be used (File exists)" in found.hint


def test_without_docstrings_nothing_could_be_learned(home: Path) -> None:
    check_refused(run(home, "tune", *SMALL, PYTHONOPTIMIZE="2"), "PYTHONOPTIMIZE=2 or -OO", "or set it to 1")
    assert run(home, "workloads", "matmul", PYTHONOPTIMIZE="2").returncode == 0
    assert list(home.iterdir()) == []


def test_a_search_without_assertions(home: Path) -> None:
    """Long enough for the learned model; a wrong word is refused as well."""
    done = run(home, "tune", "matmul", "--shape", "16,16,16", "--trials", 13, "--threads", 1, PYTHONOPTIMIZE="1")
    assert (done.returncode, done.stderr) == (0, "")
    check_refused(run(home, "tune", "matmul", "--shape", "0,16,16", PYTHONOPTIMIZE="1"), "M must be an integer >= 1")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("workloads >/dev/full", 2),
        ("workloads --json >/dev/full", 2),
        ("tune nothing 2>/dev/full", 2),
        ("tune nothing --json >/dev/full 2>/dev/full", 2),
        ("tune nothing 2>&1 | true", 2),
        ("tune nothing --json 2>&- | true", 2),
        ("workloads --json | true", 141),
    ],
)
def test_streams_that_take_nothing(home: Path, words: str, code: int) -> None:
    """They change at most the exit code, and nothing but sentences of ours is printed."""
    script = f"{sys.executable} -m autosched {words}\nexit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == code
    assert all(line.startswith("autosched: error: ") for line in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "ascii:strict", "latin-1", "utf-8"])
def test_names_that_the_encoding_lacks(home: Path, encoding: str) -> None:
    done = run(home, "db", "path", "--db", home / "\u0394.db", PYTHONIOENCODING=encoding, LC_ALL="C", LANG="xx_YY")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(("\u0394.db\n", "\\u0394.db\n"))
