"""Code that was compiled before: a file each under the user's cache directory, by a key that says all that it depends
on.

A file is a line of JSON, facts about the code and its hash, and the code. Files are written beside their place and
renamed, so that one that is there is whole, whoever else writes it; one that is not what it says is as good as absent.
Those that were not used for longest go when all together are too large.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from autosched.runtime.state import state_directory, usable

LIMIT_BYTES = 1 << 30


def read_kept(key: str) -> tuple[dict[str, Any], bytes] | None:
    """The facts and the code of a key; None where there is no such file, or a damaged one."""
    path = path_of(key)
    try:
        head, _, code = path.read_bytes().partition(b"\n")
        facts: dict[str, Any] = json.loads(head)
        if hashlib.sha256(code).hexdigest() != facts.pop("sha256"):
            return None
        os.utime(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return facts, code


def keep(key: str, facts: Mapping[str, object], code: bytes) -> None:
    """Writes code for later. Raises UsageError where the directory cannot be used."""
    head = json.dumps({**facts, "sha256": hashlib.sha256(code).hexdigest()})
    path = path_of(key)
    with usable(path):
        descriptor, part = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(head.encode() + b"\n" + code)
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise


def shrink() -> None:
    """Removes the files that were not used for longest until the rest is within the limit."""
    found = []
    with os.scandir(_directory()) as entries:
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
    return _directory() / key


@cache
def _made(path: Path) -> Path:
    with usable(path):
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def _directory() -> Path:
    return _made(state_directory() / "kernels")
