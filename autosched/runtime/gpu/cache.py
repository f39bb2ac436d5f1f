"""Compiled kernels on disk, by the hash of everything that they are made from.

The directory is the user's own (0700); a file holds the digest of the rest of itself, so that a torn or damaged one
is compiled again instead of loaded.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from autosched.errors import UsageError
from autosched.runtime.state import kernels_directory

LIMIT_BYTES = 512 << 20
_DIGEST = hashlib.sha256().digest_size


def key_of(*parts: str) -> str:
    """A name for what `parts` determine; no two lists of parts share one."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def read(key: str) -> bytes | None:
    """What was written under `key`, None if nothing whole is there."""
    directory = _directory()
    if directory is None:
        return None
    path = directory / key
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read()
    digest, data = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(data).digest() != digest:
        with suppress(OSError):
            path.unlink()
        return None
    with suppress(OSError):
        os.utime(path)  # what was used last is removed last
    return data


def write(key: str, data: bytes) -> None:
    """Keeps `data`; does nothing where the directory cannot be used or the disk is full."""
    directory = _directory()
    if directory is None:
        return
    part = directory / f"{key}.{os.getpid()}.part"
    with suppress(OSError):
        part.write_bytes(hashlib.sha256(data).digest() + data)
        part.replace(directory / key)


def prune(limit: int = LIMIT_BYTES) -> None:
    """Removes what has not been used for longest, until at most `limit` bytes are left."""
    directory = _directory()
    if directory is None:
        return
    files = []
    paths = []
    with suppress(FileNotFoundError):  # somebody has removed it
        paths = [*directory.iterdir()]
    for path in paths:
        with suppress(OSError):
            info = path.stat()
            files.append((info.st_mtime, info.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            return
        with suppress(OSError):
            path.unlink()
            total -= size


def _directory() -> Path | None:
    try:
        return kernels_directory()
    except UsageError:
        return None
