"""Code that was compiled before: a file each under the user's cache directory, by a key that says all that it depends
on.

A file is a digest of its key and of all that follows, a line of JSON with facts about the code, and the code. Files are
written beside their place and renamed, so that one that is there is whole, whoever else writes it; a damaged one is as
good as absent. Those that were not used for longest go when all together are too large. A complete cache may be on a
file system that cannot be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autosched.errors import UsageError
from autosched.runtime.state import kernels_directory, usable

LIMIT_BYTES = 1 << 30


def read_kept(key: str) -> tuple[dict[str, Any], bytes] | None:
    """The facts and the code of a key; None where there is no such file, or a damaged one."""
    path = path_of(key)
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
        if digest != _digest(key, content):
            return None
        head, _, code = content.partition(b"\n")
        facts = json.loads(head)
    except (OSError, ValueError, RecursionError):
        return None
    with contextlib.suppress(OSError):  # what was used last is removed last
        os.utime(path)
    return (facts, code) if isinstance(facts, dict) else None


def keep(key: str, facts: Mapping[str, object], code: bytes) -> None:
    """Writes code for later. Raises UsageError where the directory cannot be used."""
    content = json.dumps(facts).encode() + b"\n" + code
    for attempt in range(2):
        path = path_of(key)
        try:
            with usable(path):
                _write(path, _digest(key, content) + b"\n" + content)
            return
        except UsageError as error:  # removed by somebody since it was looked for, it is made once more
            if attempt or not isinstance(error.__cause__, FileNotFoundError):
                raise


def _write(path: Path, content: bytes) -> None:
    descriptor, part = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _digest(key: str, content: bytes) -> bytes:
    found = hashlib.sha256(f"{key}\n".encode())
    found.update(content)
    return found.hexdigest().encode()


def shrink() -> None:
    """Removes the files that were not used for longest until the rest is within the limit."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(kernels_directory()) as entries:  # somebody may remove it
        for entry in entries:
            with contextlib.suppress(OSError):  # another process shrinks it too
                info = entry.stat()
                found.append((info.st_mtime, info.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= LIMIT_BYTES:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size


def path_of(key: str) -> Path:
    return kernels_directory() / key
