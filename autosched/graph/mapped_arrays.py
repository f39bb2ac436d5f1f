"""Memory-mapped arrays: mapping of files, the check that they have not changed since, the release of their pages."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array


class _MappedFile(np.memmap[Any, np.dtype[np.uint8]]):
    """The bytes of a whole file, read only. `status`: that of the file when it was mapped."""

    path: Path
    status: os.stat_result

    @property
    def mapping(self) -> mmap.mmap:
        mapping: Any = self.base  # NumPy's type of it is that of arrays
        assert isinstance(mapping, mmap.mmap)
        return mapping

    @property
    def has_changed(self) -> bool:
        """Whether the file was written since. A file that took its path has no effect."""
        if self.mapping.size() != self.nbytes:
            return True
        try:
            now = self.path.stat()
        except OSError:  # the path was removed, the file is there as long as it is mapped
            return False
        return (now.st_dev, now.st_ino) == _inode(self.status) and now.st_mtime_ns != self.status.st_mtime_ns

    def release(self) -> None:
        self.mapping.madvise(mmap.MADV_DONTNEED)


_FILES: WeakValueDictionary[tuple[int, ...], _MappedFile] = WeakValueDictionary()  # those in use, by their state


def map_file(file: BinaryIO) -> Array:
    """Map the bytes of an open file, read only; once for all its users, because each mapping has a descriptor. Raises
    OSError."""
    status = os.fstat(file.fileno())
    if not status.st_size:  # which cannot be mapped
        return np.empty(0, np.uint8)
    state = (*_inode(status), status.st_size, status.st_mtime_ns)
    if (whole := _FILES.get(state)) is None:
        whole = _MappedFile(file, np.uint8, "r", 0, (status.st_size,))
        whole.path, whole.status = Path(file.name).resolve(), status
        _FILES[state] = whole
    return np.asarray(whole)


def map_bytes(path: Path, offset: int, nbytes: int) -> Array:
    """Map bytes of a file, read only. Raises OSError, and ValueError for bytes beyond the end of the file."""
    with path.open("rb") as file:
        whole = map_file(file)
    if offset + nbytes > whole.nbytes:
        raise ValueError(f"{path} has {whole.nbytes} bytes: none from {offset} to {offset + nbytes}")
    return whole[offset : offset + nbytes]


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _file_of(array: Array) -> _MappedFile | None:
    """Return the file that `array` is mapped from, itself or as a view of such an array."""
    source: object = array
    while source is not None and not isinstance(source, _MappedFile):
        source = getattr(source, "base", None)
    return source


def mapped_range(array: Array) -> tuple[Path, int] | None:
    """Return the file and the offset there of a contiguous array that is mapped from a file; None for others."""
    if (file := _file_of(array)) is None or not array.flags.c_contiguous:
        return None
    return file.path, array.ctypes.data - file.ctypes.data


def _files_of(constants: Mapping[str, Array]) -> dict[int, tuple[str, _MappedFile]]:
    """Return the files that constants are mapped from, by identity, each with the name of one of its constants."""
    files = ((name, _file_of(array)) for name, array in constants.items())
    return {id(file): (name, file) for name, file in files if file is not None}


def check_mapped(constants: Mapping[str, Array]) -> None:
    """Raise GraphError if a file that constants are mapped from has changed: they may be others, and reading beyond its
    end would kill the process."""
    for name, file in _files_of(constants).values():
        if file.has_changed:
            raise GraphError(
                f"{file.path} has changed since the constant {name} was mapped from it: it had {file.nbytes} bytes, "
                f"and has {file.mapping.size()}; load the network again"
            )


class GraphConstants:
    """The constants of a network, for those who copy them. Raises GraphError if a file that they are mapped from has
    changed.

    The pages of such files are released before each constant and at the end, so that no more of them is in memory than
    what is read at a time.
    """

    def __init__(self, constants: Mapping[str, Array]) -> None:
        check_mapped(constants)
        self._constants = constants
        self._files = [file for _, file in _files_of(constants).values()]

    def __enter__(self) -> GraphConstants:
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        for file in self._files:
            file.release()

    def arrays(self, names: Sequence[str]) -> list[Array]:
        """Return contiguous arrays with the elements of constants at multiples of their sizes in memory."""
        self._release()
        return [np.require(self._constants[name], requirements=("C", "ALIGNED")) for name in names]

    def copy(self, name: str, memory: Array) -> None:
        """Copy the elements of a constant to the beginning of `memory`, an array of bytes."""
        self._release()
        array = np.ascontiguousarray(self._constants[name])
        memory[: array.nbytes] = array.reshape(-1).view("uint8")
