"""Shared resources of this host: the lock of a device, and scratch directories that are removed with their owner.

Both are in the user's own cache directory (0700), never in a world-writable directory under a guessable name.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autosched.errors import DeviceError
from autosched.runtime.state import state_directory, usable

_LOCK_WAIT_S = 600.0
_ABANDONED_S = 60.0  # a directory this old without a live owner is removed; younger ones may still be on their way up
_ALIVE = "alive"
_TRIES = 20
_scratch: set[Path] = set()  # directories of this process


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def device_lock(name: str, wait_s: float = _LOCK_WAIT_S) -> Iterator[None]:
    """Hold the lock of the device `name` of this host and user, so that nothing else is timed on it.

    The system releases the lock of a dead process, but not of one that Ctrl-Z stopped: the file has its holder's
    number. Raises DeviceError if the lock is not free within `wait_s` seconds.
    """
    path = state_directory() / f"{name}.lock"
    with usable(path):
        descriptor = _open_lock(path)
    try:
        give_up, pause = time.monotonic() + wait_s, 0.001
        while not _try_lock(descriptor):
            if time.monotonic() > give_up:
                raise DeviceError(
                    f"another tuner, {_holder(descriptor)}, has held {path} for {wait_s:.0f} s, "
                    f"so nothing can be timed on {name}; end it, or let it go on if it is stopped"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    number = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
    return f"process {number}" if number.isdecimal() else "of an older version"


class ScratchDirectory:
    """A new 0700 directory for one run; `close` removes it. Directories of killed runs are removed by the next run."""

    def __init__(self) -> None:
        home = state_directory() / "runs"
        with usable(home):
            home.mkdir(mode=0o700, exist_ok=True)
            _sweep(home)
            self.path = Path(tempfile.mkdtemp(dir=home))
            _scratch.add(self.path)
            self._alive = _open_lock(self.path / _ALIVE)
            _try_lock(self._alive)

    def close(self) -> None:
        """Remove the directory and its files. May be called again."""
        if self._alive >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            _scratch.discard(self.path)
            os.close(self._alive)
            self._alive = -1

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_all() -> None:
    """Remove the scratch directories of this process, which is about to end and has killed its workers."""
    for path in list(_scratch):
        for _ in range(_TRIES):  # a killed worker may have created one more file
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
            time.sleep(0.005)


def _sweep(home: Path) -> None:
    """Remove the directories whose owner, which holds the lock on `alive`, is gone."""
    now = time.time()
    for path in home.iterdir():
        try:
            if abs(now - path.stat().st_mtime) < _ABANDONED_S:  # of the future: the clock was set back
                continue
            descriptor = _open_lock(path / _ALIVE)
        except OSError:  # another tuner is removing it
            continue
        try:
            if _try_lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
