"""Child processes that stop, hang, end or never start: each is one sentence, and nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autosched.artifacts.linking import link_library
from autosched.codegen import GpuSource
from autosched.errors import UsageError
from autosched.runtime import processes
from autosched.runtime.gpu.compile import CompileError, NvccCompiler
from autosched.runtime.processes import ProcessLost, ask_within, end_group, run_within

STOP = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
CHILD = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOOK_S", 0.05)


def program(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


@pytest.mark.parametrize(
    ("command", "seconds", "words"),
    [
        (program(STOP), 60.0, "was stopped by a signal"),
        (program("import time; time.sleep(60)"), 0.2, r"gave no answer within 0\.2 s"),
        (["/nowhere/program"], 1.0, "could not be started: No such file"),
    ],
)
def test_a_program_that_gives_no_answer_is_lost(command: list[str], seconds: float, words: str) -> None:
    with pytest.raises(ProcessLost, match=words):
        run_within(seconds, command)


def test_a_program_answers_with_its_output_and_its_exit_code(tmp_path: Path) -> None:
    text = "import os, sys; print(os.getcwd()); print('x' * 100000, file=sys.stderr); sys.exit(3)"
    done = run_within(60.0, program(text), cwd=str(tmp_path))
    assert (done.returncode, done.stdout, len(done.stderr)) == (3, f"{tmp_path}\n", 100001)


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    with pytest.raises(ProcessLost):
        run_within(2.0, program(f"import sys; sys.stdout = open({str(started)!r}, 'w'); {CHILD}"))
    stat = Path(f"/proc/{int(started.read_text())}/stat")
    give_up = time.monotonic() + 10.0
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import time; time.sleep(60)", r"gave no answer within 0\.3 s"),
        ("print('half', end='', flush=True); import time; time.sleep(60)", r"gave no answer within 0\.3 s"),
        (STOP, "was stopped by a signal"),
        ("import sys; sys.exit(7)", "ended with 7"),
    ],
)
def test_a_line_that_is_not_answered(text: str, words: str) -> None:
    seconds = 0.3 if "0" in words else 60.0
    process = subprocess.Popen(
        program(text), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
    )
    with process, pytest.raises(ProcessLost, match=words):
        ask_within(seconds, process, b"x" * 1_000_000 + b"\n")  # more than a pipe holds
    assert process.returncode is not None


def test_lines_are_answered_in_turn() -> None:
    text = "import sys\nfor line in sys.stdin: print(len(line), flush=True)"
    process = subprocess.Popen(
        program(text), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
    )
    with process:
        assert ask_within(60.0, process, b"x" * 300_000 + b"\n") == b"300001\n"
        assert ask_within(60.0, process, b"\n") == b"1\n"
        end_group(process)


@pytest.mark.parametrize("fault", ["kill -STOP $$", "kill -KILL $$"])
def test_linkers_and_compilers_that_are_struck_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    for name in ("cc", "nvcc"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{fault}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UsageError, match=r"cc (cannot link the library: exit code -9|was stopped by a signal)"):
        link_library([b""], tmp_path / "x.so")
    source = GpuSource("f", "cuda", "", (), (), (), ())
    with pytest.raises(CompileError, match=r"nvcc (exited with status -9|was stopped by a signal)"):
        NvccCompiler("sm_80", str(tmp_path / "nvcc"), "12").compile(source)
