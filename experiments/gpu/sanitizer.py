"""The step `sanitizer`: what compute-sanitizer says of the instruction forms that failed on the card."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from experiments.gpu.instructions import BIT, LOST
from experiments.gpu.run_form import FAIL, FAULT, REFUSED
from experiments.gpu.steps import Row, StepRequest, rows_of

TOOLS = ("memcheck", "racecheck")
ONE_S, MOST = 20.0, 6
WORDS = 1500  # of what a tool prints


def predict(request: StepRequest) -> str:
    return "nothing, if all instructions pass; else addresses outside, or misaligned ones"


def failed(rows: Mapping[str, Row]) -> list[str]:
    """The forms to look at: those that ran, and went wrong."""
    return [name for name, row in rows.items() if row["status"] in (FAIL, FAULT, LOST) and BIT not in name][:MOST]


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    give_up = time.monotonic() + request.seconds
    names = failed(rows_of(request.out, "instructions"))
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        yield "tool", {"status": REFUSED, "words": "compute-sanitizer is not installed"}
        return
    for name in names:
        for check in TOOLS:
            left = min(ONE_S, give_up - time.monotonic())
            if left <= 1:
                return
            command = [tool, "--tool", check, sys.executable, "-m", "experiments.gpu.run_form", "--once", name]
            yield f"{check} {name}", watched(command, left)


def watched(command: Sequence[str], seconds: float, most: int | None = WORDS) -> Row:
    """How a command ended and what it printed, at `most` so much; its whole group is killed when time is over."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        printed, _ = process.communicate(timeout=seconds)
        return {"status": process.returncode, "words": printed.decode(errors="replace")[-(most or len(printed)) :]}
    except subprocess.TimeoutExpired:
        return {"status": "killed", "words": f"not done within {seconds:.0f} s"}
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summary(rows: Mapping[str, Row]) -> str:
    return "\n".join(f"{name}: {row['status']}: {' '.join(row['words'].split())[:200]}" for name, row in rows.items())
