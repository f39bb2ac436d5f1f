"""The user's own directory for what may be thrown away: locks, scratch files, compiled kernels."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autosched.errors import UsageError


def state_directory() -> Path:
    """`$XDG_CACHE_HOME/autosched`, or under `~/.cache` where that is unset or not absolute, made 0700.

    The path is absolute: workers have a working directory of their own. Raises UsageError if it cannot be used.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the specification of XDG says to take no notice of it
        base = _home() / ".cache"
    path = base / "autosched"
    with usable(path):
        path = path.absolute()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        raise UsageError(
            f"{path} must be a directory of the user's own that nobody else can write; set XDG_CACHE_HOME to another"
        )
    return path


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Makes one sentence of what the system says against files at `path` in or around the state directory."""
    try:
        yield
    except OSError as error:
        where, why = error.filename or path, error.strerror or error
        raise UsageError(
            f"{where} cannot be used ({why}): make it writable, with room for some files, or set XDG_CACHE_HOME to "
            "another directory"
        ) from error


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise UsageError("there is no home directory for locks and scratch files: set XDG_CACHE_HOME") from error
