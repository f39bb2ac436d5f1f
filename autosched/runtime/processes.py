"""Limits of child processes: each is killed with its process group at a deadline, or if a signal has stopped it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

LOOK_S = 5.0  # seconds between two checks of a silent process, which is given up if it is stopped at both
_REAP_S = 10.0  # seconds in which a killed process ends; inside a driver's call it may never end


class ProcessLost(Exception):
    """A process that gave no answer; it is dead. The message is the end of a sentence about it: "gave no answer"."""


class StopWatch:
    """Distinguishes a process that a signal stopped (SIGSTOP, for example) from a busy one.

    By two checks, LOOK_S apart, so that tools that stop and continue a process to slow it down do no harm.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._was_stopped = pid, False
        self.next_look = 0.0  # monotonic time
        self.restart()

    def restart(self) -> None:
        """Forget earlier checks, at the start of a request."""
        self._was_stopped, self.next_look = False, time.monotonic() + LOOK_S

    def has_stopped(self) -> bool:
        """Return whether the process was stopped at this check and at the one before; checks when the next check is
        due.
        """
        if time.monotonic() < self.next_look:
            return False
        before, self._was_stopped = self._was_stopped, is_stopped(self._pid)
        self.next_look = time.monotonic() + LOOK_S
        return before and self._was_stopped


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process, as Ctrl-Z does; False on systems other than Linux."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def end_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Send SIGKILL to the process group that the process leads, and wait for its end."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)


def run_within(
    seconds: float, command: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program without input and return its output. Raises ProcessLost after `seconds`."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ProcessLost(f"could not be started: {error.strerror or error}") from error
    deadline, watch = time.monotonic() + seconds, StopWatch(process.pid)
    with process:
        try:
            while True:
                pause = max(0.0, min(deadline, watch.next_look) - time.monotonic())
                try:
                    out, err = process.communicate(timeout=pause)
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    if watch.has_stopped():
                        raise ProcessLost("was stopped by a signal and gave no answer") from None
                    if time.monotonic() >= deadline:
                        raise ProcessLost(f"gave no answer within {seconds:g} s, the deadline") from None
        except BaseException:
            end_group(process)
            raise


def ask_within(seconds: float, process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Send a line to a process that answers each line with one, and return the answer; both end in a newline. The
    process is unbuffered and leads its group. Raises ProcessLost after `seconds`, and if it ended.
    """
    if process.poll() is not None:
        raise ProcessLost(f"ended with {process.returncode}")
    assert process.stdin is not None
    assert process.stdout is not None
    to, answers, got = process.stdin.fileno(), process.stdout.fileno(), bytearray()
    deadline, watch = time.monotonic() + seconds, StopWatch(process.pid)
    os.set_blocking(to, False)
    try:
        while not got.endswith(b"\n"):
            pause = max(0.0, min(deadline, watch.next_look) - time.monotonic())
            readable, writable, _ = select.select([answers], [to] if line else [], [], pause)
            if writable:
                line = line[os.write(to, line[: select.PIPE_BUF]) :]
            if readable:
                if not (data := os.read(answers, 1 << 16)):
                    raise BrokenPipeError
                got += data
            elif watch.has_stopped():
                raise ProcessLost("was stopped by a signal and gave no answer")
            elif time.monotonic() >= deadline:
                raise ProcessLost(f"gave no answer within {seconds:g} s, the deadline")
    except BrokenPipeError:
        end_group(process)
        raise ProcessLost(f"ended with {process.returncode}") from None
    except BaseException:
        end_group(process)
        raise
    return bytes(got)
