"""Work in a forked process: what crashes or hangs there is known by the last thing it said it would do.

Forking is safe here because the process that forks runs no threads and has loaded no kernel. Messages are lines of
JSON; a child that says nothing for `deadline_s` is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

Message = dict[str, Any]
Send = Callable[[Message], None]
_PR_SET_PDEATHSIG = 1
_MEMORY_LIMIT = 16 << 30  # bytes of address space
_LOOK_S = 2.0  # children are looked at at least this often


class Child:
    """`work(send)` in a process of its own, started at once."""

    def __init__(self, work: Callable[[Send], None], deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._silent_s, self._looked = 0.0, time.monotonic()
        self._rest = b""
        self.descriptor, to_parent = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _child(work, self.descriptor, to_parent)
        os.close(to_parent)

    def messages(self) -> Iterator[Message]:
        """What has arrived; a last message {"ended": reason} when the process is gone, reason None for a normal end."""
        now = time.monotonic()
        self._silent_s += min(now - self._looked, _LOOK_S)  # a pause of all processes is no silence
        self._looked = now
        if select.select([self.descriptor], [], [], 0)[0]:
            block = os.read(self.descriptor, 1 << 16)
            self._silent_s = 0.0
            *lines, self._rest = (self._rest + block).split(b"\n")
            yield from (json.loads(line) for line in lines)
            if not block:
                yield {"ended": self._reason(os.waitpid(self.pid, 0)[1])}
        elif self._silent_s > self._deadline_s:
            self.kill()
            yield {"ended": f"hang: silent for {self._deadline_s:.0f} s"}

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        os.close(self.descriptor)

    @staticmethod
    def _reason(status: int) -> str | None:
        if os.WIFSIGNALED(status):
            return f"crash: {signal.Signals(os.WTERMSIG(status)).name}"
        code = os.waitstatus_to_exitcode(status)
        return None if code == 0 else f"crash: exit status {code}"


def _child(work: Callable[[Send], None], from_parent: int, to_parent: int) -> None:
    """Never returns."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(from_parent)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))

        def send(message: Message) -> None:
            data = json.dumps(message).encode() + b"\n"
            while data:
                data = data[os.write(to_parent, data) :]

        work(send)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(children: list[Child], seconds: float = 1.0) -> None:
    """Returns when one of the children has said something, or after `seconds`."""
    select.select([c.descriptor for c in children], [], [], seconds)


def conversation(work: Callable[[Send], None], deadline_s: float) -> Iterator[Message]:
    """The messages of `work` in a process of its own, the end included; leaving the loop early ends the process."""
    child = Child(work, deadline_s)
    ended = False
    try:
        while not ended:
            wait([child])
            for message in child.messages():
                ended = "ended" in message
                yield message
    finally:
        if not ended:
            child.kill()
        child.close()
