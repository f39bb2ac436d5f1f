"""Files of the user that are to last: the record database, and the key of this installation that signs records."""

from __future__ import annotations

import os
from pathlib import Path

from autosched.errors import StoreError

KEY_NAME = "installation.key"


def default_path() -> Path:
    """Return `$XDG_DATA_HOME/autosched/records.db`, or that under `~/.local/share` if it is unset or not absolute."""
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data_home.is_absolute():
        try:
            data_home = Path.home() / ".local" / "share"
        except RuntimeError as error:
            raise StoreError("there is no home directory for the record database: name a file with --db") from error
    return data_home / "autosched" / "records.db"


def named_path(path: Path | str) -> Path:
    """Return `path` with `~` resolved. Raises StoreError for an invalid path, or if the home directory is unknown."""
    try:
        return Path(path).expanduser()
    except (TypeError, RuntimeError) as error:
        raise StoreError(f"{path!r} names no file: {error}") from error


def key_path() -> Path:
    """Return the path of the key, beside the default database even if another one is used. Raises StoreError without a
    home directory.
    """
    return default_path().with_name(KEY_NAME)
