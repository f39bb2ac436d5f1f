"""State directory of the user, for files that may be deleted: locks, scratch files, compiled kernels."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autosched.errors import AutoschedWarning, UsageError

_OTHERS = 9  # directories that are tried where the first is not to be trusted


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
        try:
            info = path.lstat()
        except FileNotFoundError:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = path.lstat()
    if not _is_own(info):
        raise UsageError(
            f"{path} must be a directory of the user's own that nobody else can write; set XDG_CACHE_HOME to another"
        )
    return path


def kernels_directory() -> Path:
    """Return the directory of compiled kernels in the state directory, made with mode 0700: a user who can write there
    can make this process run code.

    A directory that belongs to another user, or that others can write, is not used; a warning says so, and another one
    is taken. Raises UsageError if none can be used.
    """
    home = state_directory()
    first = path = home / "kernels"
    for n in range(1, _OTHERS):
        with usable(path):
            try:
                info = path.stat()
            except FileNotFoundError:
                path.mkdir(mode=0o700, exist_ok=True)
                info = path.stat()
        if _is_own(info):
            if path != first:
                warnings.warn(
                    f"{first} is not used, because it is not yours or others can write it: `chmod 700` it or remove "
                    f"it; compiled kernels are kept in {path}",
                    AutoschedWarning,
                    stacklevel=2,
                )
            return path
        path = home / f"kernels-{n}"
    raise UsageError(f"{first} is not yours or others can write it: `chmod 700` it or remove it")


def _is_own(info: os.stat_result) -> bool:
    """Return whether it is a directory of the user that nobody else can write."""
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o022


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turn the system's errors about `path` into a UsageError of one sentence."""
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
