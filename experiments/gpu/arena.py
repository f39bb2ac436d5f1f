"""The process in which contests are held, as the script sees it: asked under a deadline, replaced when it is lost."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments.gpu.cases import Case

_LOG_TAIL = 300


class Lost(Exception):
    """The process ended, or gave no answer in time, at `stage`."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


class Arena:
    """Starts `command` when it is needed. `log`: what the process prints."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = list(command), log
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    def ask(self, request: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """The row that answers `request`. Raises Lost; the next request then goes to a new process."""
        stage, give_up = "start", time.monotonic() + deadline_s
        try:
            process = self._running()
            assert process.stdin is not None
            process.stdin.write((json.dumps(request) + "\n").encode())
            process.stdin.flush()
            while True:
                message = self._next(stage, give_up)
                if "row" in message:
                    return dict(message["row"])
                stage = str(message["stage"])
        except (OSError, ValueError, KeyError) as error:
            self.close()
            raise Lost(stage, f"the process of the contest ended at {stage}: {self._last_words() or error}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the process with all its children."""
        process, self._process, self._received = self._process, None, b""
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
                )
        return self._process

    def _next(self, stage: str, give_up: float) -> dict[str, Any]:
        """The next line of the process. Raises Lost at the deadline, OSError when it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._received:
            left = give_up - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                self.close()
                raise Lost(stage, f"no answer in time, at {stage}")
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise OSError("it closed its output")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("its answer is no object")
        return message

    def _last_words(self) -> str:
        with suppress(OSError):
            return " ".join(self._log.read_text(errors="replace")[-_LOG_TAIL:].split())
        return ""


def contest_command(target: str) -> list[str]:
    return [sys.executable, "-m", "experiments.gpu.contest", str(os.getpid()), target]


def hold_contest(
    arena: Arena,
    case: Case,
    database: Path,
    names: Sequence[str],
    *,
    rounds: int,
    sample_s: float,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """The row of a case. A peer at which the process is lost is left out of another try; its entry says why."""
    give_up, left_out = clock() + deadline_s, dict[str, Any]()
    while True:
        present = [name for name in names if name not in left_out]
        request = {
            "workload": case.workload,
            "shape": list(case.shape),
            "memory": case.memory,
            "db": str(database),
            "peers": present,
            "rounds": rounds,
            "sample_s": sample_s,
        }
        # What is slow to start is the last of `present`: it may take half of the time, and a try without it the rest.
        seconds = give_up - clock()
        try:
            row = arena.ask(request, seconds / 2 if present else seconds)
        except Lost as lost:
            if lost.stage not in present or clock() >= give_up:
                return {"error": str(lost)}
            left_out[lost.stage] = {"right": False, "reason": str(lost)}
            continue
        row.setdefault("peers", {})
        row["peers"] = {name: (left_out | row["peers"]).get(name) for name in names if name in left_out | row["peers"]}
        return row
