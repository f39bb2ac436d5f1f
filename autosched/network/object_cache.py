"""Kernels that were built before, one file each under the user's cache directory, by the key of their recipe.

A file is a line of JSON, the fields of a `KernelObject` and the hash of its code, and the code. Files are written
beside their place and renamed, so that one that is there is whole; one that is not what it says is as good as absent.
Those that were not used for longest go when all together are too large.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path

from autosched.network.recipe import KernelObject, Recipe
from autosched.runtime.state import state_directory, usable

LIMIT_BYTES = 1 << 30
_FIELDS = ("name", "workspace_bytes", "packed_bytes", "winograd", "steps", "sketch", "estimate_s")


def find_object(recipe: Recipe) -> KernelObject | None:
    """The kernel of a recipe if it was built before."""
    path = _path(recipe)
    try:
        head, _, code = path.read_bytes().partition(b"\n")
        facts = json.loads(head)
        if hashlib.sha256(code).hexdigest() != facts["sha256"] or facts["name"] != recipe.name:
            return None
        found = KernelObject(code=code, **{name: facts[name] for name in _FIELDS})
        os.utime(path)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def keep_object(recipe: Recipe, made: KernelObject) -> None:
    """Writes a kernel for later. Raises UsageError where the directory cannot be used."""
    facts = {name: getattr(made, name) for name in _FIELDS} | {"sha256": hashlib.sha256(made.code).hexdigest()}
    path = _path(recipe)
    with usable(path):
        descriptor, part = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(facts).encode() + b"\n" + made.code)
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise


def shrink() -> None:
    """Removes the kernels that were not used for longest until the rest is within the limit."""
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


def _path(recipe: Recipe) -> Path:
    return _directory() / recipe.key


@cache
def _made(path: Path) -> Path:
    with usable(path):
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def _directory() -> Path:
    return _made(state_directory() / "kernels")
