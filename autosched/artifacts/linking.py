"""Linking of object files to shared libraries by an installed linker, and atomic writing of files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from autosched.errors import UsageError
from autosched.runtime.processes import ProcessLost, run_within

LINK_S = 120.0  # deadline
EXPORTED = "{ global: autosched_*; local: autosched_parallel; *; };\n"  # the thread pool is shared by libraries
# Programs that can link, in the order of preference, with their further arguments.
LINKERS = (
    ("cc", ("-lm", "-lpthread")),
    ("gcc", ("-lm", "-lpthread")),
    ("clang", ("-lm", "-lpthread")),
    ("ld", ()),  # undefined symbols resolve in the program that loads the library
    ("ld.lld", ()),
)


def link_library(objects: Sequence[bytes], path: Path, version_script: str = "") -> bytes:
    """Return the bytes of a shared library of object files.

    `path`: its file name becomes the soname. `version_script`: the exported symbols, in the language of GNU ld; all if
    empty. Raises UsageError without a linker, or if linking fails.
    """
    installed = next(((which, words) for name, words in LINKERS if (which := shutil.which(name))), None)
    if installed is None:
        raise UsageError(
            f"a shared library needs a linker and none of {', '.join(name for name, _ in LINKERS)} is installed: "
            "install one"
        )
    linker, words = installed
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "kernel.so"
        sources = [Path(directory) / f"{n}.o" for n in range(len(objects))]
        for source, code in zip(sources, objects, strict=True):
            source.write_bytes(code)
        options = ["-soname", path.name]
        if version_script:
            script = Path(directory) / "exported"
            script.write_text(version_script)
            options += ["--version-script", str(script)]
        if words:  # a compiler that calls the linker
            options = [word for each in options for word in ("-Xlinker", each)]
        command = [linker, "-shared", *options, "-o", str(library), *map(str, sources), *words]
        try:
            done = run_within(LINK_S, command)
        except ProcessLost as error:
            raise UsageError(f"the library cannot be linked: {linker} {error}") from error
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
            raise UsageError(f"{linker} cannot link the library: {lines[-1]}")
        return library.read_bytes()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically, by renaming a temporary one. Raises UsageError."""
    if path.exists() and not path.is_file() and not path.is_dir():  # renaming would replace a device by a file
        raise UsageError(f"{path} cannot be written: it is not a regular file, so name another")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
