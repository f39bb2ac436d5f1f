"""Ctrl-C, SIGTERM and SIGHUP: once, twice, and where Python would lose them; each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import ROOT

PATIENCE_S = 60.0
SAVED = "everything measured so far is saved\n"
COMMAND = """
import sys, time
from autosched.cli import db, main
from autosched.errors import UsageError
from autosched.measure import Measurer, Problem, WorkerPool
from autosched.measure.host import ScratchDirectory
from autosched.target import parse_target

def run(args):
{body}

db.run_path = run
sys.argv = ["autosched", "db", "path"]
sys.exit(main.main())
"""
MEASURING = """
    with ScratchDirectory() as scratch, Measurer(Problem((), (), scratch), WorkerPool(parse_target("cpu"), 1, 1)):
        try:
            print("begun", flush=True)
            time.sleep(60)
        finally:
            print("closing", flush=True)
            time.sleep(60)
"""


def start(home: Path, body: str) -> subprocess.Popen[str]:
    """A command that does `body` in place of its own work."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(body=body)],
        env={**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


def processes(home: Path) -> list[str]:
    mark, found = f"HOME={home}".encode(), []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and mark in (path / "environ").read_bytes().split(b"\0"):
                found.append(path.name)
        except OSError:
            continue
    return found


def processes_soon(home: Path, number: int) -> int:
    """How many there are once it is `number`, or after a while: one that starts shows its environment late."""
    give_up = time.monotonic() + 5.0
    while len(processes(home)) != number and time.monotonic() < give_up:
        time.sleep(0.01)
    return len(processes(home))


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGINT)],
)
def test_the_second_ends_at_once_and_leaves_nothing(
    tmp_path: Path, first: signal.Signals, second: signal.Signals
) -> None:
    """While the first one's end takes long, for whatever reason."""
    process = start(tmp_path, MEASURING)
    wait_for(process, "begun")
    assert processes_soon(tmp_path, 3) == 3
    process.send_signal(first)
    wait_for(process, "closing")
    process.send_signal(second)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (130, "", f"autosched: error: interrupted twice; {SAVED}")
    assert list((tmp_path / "autosched" / "runs").iterdir()) == []
    assert processes_soon(tmp_path, 0) == 0


@pytest.mark.parametrize(
    "body",
    [
        "    print('begun', flush=True)\n    time.sleep(60)",
        # An import that is cut short tells of it in words of its own.
        """
    try:
        print("begun", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        raise ImportError("numpy._core.multiarray failed to import")
""",
        # Python gives up what a finaliser raises.
        """
    class Slow:
        def __del__(self):
            print("begun", flush=True)
            time.sleep(60)
    slow = Slow()
    del slow
    time.sleep(60)
""",
        # What the end itself left when a signal met it.
        """
    scratch = ScratchDirectory()
    print("begun", flush=True)
    time.sleep(60)
""",
    ],
)
def test_the_first_is_an_orderly_end_wherever_it_comes(tmp_path: Path, body: str) -> None:
    process = start(tmp_path, body)
    wait_for(process, "begun")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (130, "", f"autosched: error: interrupted; {SAVED}")
    runs = tmp_path / "autosched" / "runs"
    assert not runs.exists() or list(runs.iterdir()) == []


def test_another_error_of_a_finaliser_is_told_as_ever(tmp_path: Path) -> None:
    body = """
    class Bad:
        def __del__(self):
            raise ValueError("a bug")
    bad = Bad()
    del bad
    return 0
"""
    _, err = (process := start(tmp_path, body)).communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "ValueError: a bug" in err


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    body = "    print('begun', flush=True)\n    time.sleep(0.3)\n    return 0"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        process = start(tmp_path, body)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for(process, "begun")
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE_S) == 0
