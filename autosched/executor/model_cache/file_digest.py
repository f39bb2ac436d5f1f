"""Digest of a file's content, kept in the disk cache for the state of the file: identity, size and times of change.

Times on file systems have a granularity (Linux: mostly 4 ms, FAT: 2 s). A file that was changed a moment ago may be
changed again with no other state, so a digest is kept, and a state compared, only SETTLED_S seconds after a change.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autosched.runtime.disk_cache import key_of, read_code, write_code

SETTLED_S = 2.0
_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileState:
    """The state of a file as text, and when it was last changed, in seconds since 1970."""

    text: str
    changed_s: float

    @property
    def is_settled(self) -> bool:
        """Whether a change from now on gives another state."""
        return time.time() - self.changed_s > SETTLED_S


def file_state(file: Path | int) -> FileState | None:
    """Return the state of a file, given by its path or descriptor; None if there is no such file. Raises OSError."""
    with suppress(FileNotFoundError, NotADirectoryError):
        info = os.stat(file)
        times = info.st_mtime_ns, info.st_ctime_ns
        text = " ".join(map(str, (info.st_dev, info.st_ino, info.st_size, *times)))
        return FileState(text, max(times) / 1e9)
    return None


def content_digest(path: Path) -> str:
    """Return SHA-256 of a file's content, which takes 1.1 s per GB if it is not in the disk cache. Raises OSError."""
    with path.open("rb") as file:
        state = file_state(file.fileno())
        assert state is not None
        key = key_of("digest of a file", state.text)
        if state.is_settled and (digest := read_code(key)) is not None:
            return digest.decode()
        hashed = hashlib.sha256()
        while block := file.read(_BLOCK):
            hashed.update(block)
        if state.is_settled and file_state(file.fileno()) == state:
            write_code(key, hashed.hexdigest().encode())
    return hashed.hexdigest()
