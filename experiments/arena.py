"""A process that answers requests, as the one that asks sees it: under a deadline, replaced when it is lost.

Requests are JSON lines on its standard input. Its answers are JSON lines too: {"stage": ...} says what it is at, and
{"row": {...}} ends a request.
"""

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

from autosched.measure.worker import harden, take_pipes

_LOG_TAIL = 300


def serve(answer: Callable[[Mapping[str, Any], Callable[[str], None]], Mapping[str, Any]]) -> None:
    """Within such a process, which is the child of argv[1]: answers requests until there are no more. `answer` gives
    the row of one, and says by its second argument what it is at."""
    harden(int(sys.argv[1]))
    requests, replies = take_pipes()

    def send(message: Mapping[str, Any]) -> None:
        replies.write((json.dumps(message) + "\n").encode())

    for line in iter(requests.readline, b""):
        send({"row": answer(json.loads(line), lambda stage: send({"stage": stage}))})


class Lost(Exception):
    """The process ended, or gave no answer in time, at `stage`."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


class ProcessArena:
    """Starts `command` when it is needed. `log`: what the process prints; `variables` are added to its environment."""

    def __init__(self, command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None) -> None:
        self._command, self._log, self._variables = list(command), log, dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    def start(self) -> None:
        """Starts the process now. Linux ends it with the thread that starts it: call this from one that stays."""
        self._running()

    @property
    def is_new(self) -> bool:
        """Whether the next request goes to a process that has yet to start."""
        return self._process is None or self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Of the process, which is started where there is none."""
        return self._running().pid

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
            raise Lost(stage, f"the process ended at {stage}: {self._last_words() or error}") from None
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
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                    env={**os.environ, **self._variables},
                )  # fmt: skip
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
