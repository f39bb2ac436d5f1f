"""Disk cache of compiled code, for processors and GPUs: a file for each key in the user's own directory.

A key is a hash of everything that the code depends on. A file has a digest of its key and its content, a line of JSON
with facts about the code, and the code. Files are written under another name and renamed, so that a file is complete
whichever process writes it; a corrupt entry is a miss. If all files together are too large, the least recently used are
removed. A complete cache may be on a read-only file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autosched.errors import UsageError
from autosched.runtime.state import kernels_directory, usable

LIMIT_BYTES = 1 << 30
_DIGEST_BYTES = 64  # of SHA-256 in hexadecimal


def key_of(*parts: str) -> str:
    """Return the key of code that depends on `parts`; different lists of parts have different keys."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def read(key: str) -> tuple[dict[str, Any], bytes] | None:
    """Return the facts and the code of a key; None for a miss. Raises UsageError if the directory cannot be used."""
    entry = read_view(key)
    return None if entry is None else (entry[0], bytes(entry[1]))


def read_view(key: str) -> tuple[dict[str, Any], memoryview] | None:
    """Return what `read` does, but the code, which may be large, as a view of the file's content in memory."""
    path = path_of(key)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read()
        head, code = (data.index(b"\n", start) + 1 for start in (0, _DIGEST_BYTES + 1))
        if data[: head - 1] != _digest(key, memoryview(data)[head:]):
            return None
        facts = json.loads(data[head : code - 1])
    except (OSError, ValueError, RecursionError):
        return None
    with contextlib.suppress(OSError):  # what was used last is removed last
        os.utime(path)
    return (facts, memoryview(data)[code:]) if isinstance(facts, dict) else None


def write(key: str, facts: Mapping[str, object], *code: bytes | memoryview) -> None:
    """Write code, in one part or several, with its facts. Raises UsageError if the directory cannot be used."""
    content = (json.dumps(facts).encode() + b"\n", *code)
    for attempt in range(2):
        path = path_of(key)
        try:
            with usable(path):
                _write(path, _digest(key, *content) + b"\n", *content)
            return
        except UsageError as error:  # a directory that was removed since it was looked for is made once more
            if attempt or not isinstance(error.__cause__, FileNotFoundError):
                raise


def read_code(key: str) -> bytes | None:
    """Return the code of a key; None for a miss, and if the directory cannot be used."""
    with contextlib.suppress(UsageError):
        entry = read(key)
        return None if entry is None else entry[1]
    return None


def write_code(key: str, code: bytes) -> None:
    """Write code without facts; do nothing if the directory cannot be used or the disk is full."""
    with contextlib.suppress(UsageError):
        write(key, {}, code)


def shrink() -> None:
    """Remove the least recently used files until the others are within LIMIT_BYTES."""
    files = []
    with contextlib.suppress(FileNotFoundError, UsageError), os.scandir(kernels_directory()) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process shrinks it too
                info = entry.stat()
                files.append((info.st_mtime, info.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= LIMIT_BYTES:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size


def path_of(key: str) -> Path:
    return kernels_directory() / key


def _write(path: Path, *content: bytes | memoryview) -> None:
    import tempfile

    descriptor, part = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(content)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _digest(key: str, *content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(f"{key}\n".encode())
    for part in content:
        digest.update(part)
    return digest.hexdigest().encode()
