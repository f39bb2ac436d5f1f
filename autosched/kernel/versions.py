"""What code depends on beside what it computes and where it runs: the versions of LLVM and of autosched."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from autosched.runtime import disk_cache
from autosched.runtime.jit import llvm_version
from autosched.target import Target


def code_version() -> tuple[str, str]:
    return llvm_version(), own_code()


def code_key(what: str, target: Target) -> str:
    """Differs between what may have other code, by what it is, where it runs, or by which autosched."""
    return disk_cache.key_of(what, target.fingerprint, *code_version())


@cache
def own_code() -> str:
    """Of the packages that decide what a kernel's code is: changes whenever one of their files does."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for package in ("autosched", "cost_model", "search_spaces"):
        for folder, folders, files in os.walk(root / package):
            folders.sort()
            for file in sorted(f for f in files if f.endswith(".py")):
                info = os.stat(os.path.join(folder, file))
                digest.update(f"{os.path.relpath(folder, root)}/{file} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()
