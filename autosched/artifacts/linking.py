"""Shared libraries of object files, by whatever linker is installed, and files that are written whole or not at all."""

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
# Programs that can link, in the order of preference, with what they need besides the object.
LINKERS = (
    ("cc", ("-lm", "-lpthread")),
    ("gcc", ("-lm", "-lpthread")),
    ("clang", ("-lm", "-lpthread")),
    ("ld", ()),  # what is undefined is found in the program that loads the library
    ("ld.lld", ()),
)


def linked(objects: Sequence[bytes], path: Path, version_script: str = "") -> bytes:
    """A shared library of object files; `path` is the name that the library is known by. `version_script` says which
    symbols it shows (GNU ld's language); without it all.

    Raises UsageError where there is no linker, or none that can link them.
    """
    found = next(((which, words) for name, words in LINKERS if (which := shutil.which(name))), None)
    if found is None:
        raise UsageError(
            f"a shared library needs a linker and none of {', '.join(name for name, _ in LINKERS)} is installed: "
            "install one"
        )
    linker, words = found
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "kernel.so"
        sources = [Path(directory) / f"{n}.o" for n in range(len(objects))]
        for source, code in zip(sources, objects, strict=True):
            source.write_bytes(code)
        told = ["-soname", path.name]
        if version_script:
            script = Path(directory) / "exported"
            script.write_text(version_script)
            told += ["--version-script", str(script)]
        if words:  # a compiler that calls the linker
            told = [word for each in told for word in ("-Xlinker", each)]
        command = [linker, "-shared", *told, "-o", str(library), *map(str, sources), *words]
        try:
            done = run_within(LINK_S, command)
        except ProcessLost as error:
            raise UsageError(f"the library cannot be linked: {linker} {error}") from error
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
            raise UsageError(f"{linker} cannot link the library: {lines[-1]}")
        return library.read_bytes()


def write_whole(path: Path, content: bytes) -> None:
    """Writes beside `path`, then renames; raises UsageError where that cannot be done."""
    if path.exists() and not path.is_file() and not path.is_dir():  # a device would be replaced by a file
        raise UsageError(f"{path} cannot be written: it is not a regular file, so name another")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
