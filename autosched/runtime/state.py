"""The user's own directory for what may be thrown away: locks, scratch files, compiled kernels."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from autosched.errors import DeviceError


def state_directory() -> Path:
    """`$XDG_CACHE_HOME/autosched` (default ~/.cache/autosched), made 0700. Raises DeviceError if it cannot be used."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "autosched"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        raise DeviceError(f"the directory {path} cannot be made ({error.strerror}); set XDG_CACHE_HOME") from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        raise DeviceError(
            f"{path} must be a directory of the user's own that nobody else can write; set XDG_CACHE_HOME to another"
        )
    return path
