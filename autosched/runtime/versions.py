"""Versions of LLVM and of autosched, on which the keys of the disk cache depend."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from autosched.runtime import disk_cache
from autosched.target import Target


def code_version() -> tuple[str, str]:
    """Return the version of LLVM and the digest of the compiler's own files."""
    return llvm_version(), source_digest()


def llvm_version() -> str:
    """Return the versions of LLVM and of llvmlite: other versions may generate other code."""
    import llvmlite
    from llvmlite import binding

    return f"{'.'.join(map(str, binding.llvm_version_info))}, llvmlite {llvmlite.__version__}"


def code_key(content: str, target: Target) -> str:
    """Return the key of compiled code: it differs for other content, another target, LLVM or autosched."""
    return disk_cache.key_of(content, target.fingerprint, *code_version())


@cache
def source_digest() -> str:
    """Return a digest of the files of the packages that generate code, by their names, sizes and times of change."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for package in ("autosched", "cost_model", "search_spaces"):
        for folder, folders, files in os.walk(root / package):
            folders.sort()
            name = os.path.relpath(folder, root)
            for file in sorted(f for f in files if f.endswith(".py")):
                info = os.stat(os.path.join(folder, file))
                digest.update(f"{name}/{file} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()
