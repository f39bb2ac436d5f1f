"""Memory-mapped arrays: mapping of file ranges, and the check that files were not truncated since."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array


def map_bytes(path: Path, offset: int, nbytes: int) -> Array:
    """Map bytes of a file, read only. Raises OSError, and ValueError for bytes beyond the end of the file."""
    if not nbytes:  # which cannot be mapped
        return np.empty(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, "r", offset, (nbytes,)))


def _mapping(array: Array) -> tuple[np.memmap[Any, Any], mmap.mmap] | None:
    """Return the array that was mapped and the mapping, if `array` is mapped from a file or a view of such an array."""
    source: object = array
    while not isinstance(mapping := getattr(source, "base", None), mmap.mmap) and mapping is not None:
        source = mapping
    return None if not isinstance(source, np.memmap) or mapping is None else (source, mapping)


def mapped_range(array: Array) -> tuple[Path, int] | None:
    """Return the file and the offset there of a contiguous array that is mapped from a file; None for others."""
    if (mapped := _mapping(array)) is None or not array.flags.c_contiguous:
        return None
    source, _ = mapped
    return Path(str(source.filename)), source.offset + array.ctypes.data - source.ctypes.data


def check_mapped(constants: Mapping[str, Array]) -> None:
    """Raise GraphError if a file is shorter than what is mapped from it: reading that would kill the process."""
    for name, array in constants.items():
        if (mapped := _mapping(array)) is None:
            continue
        source, mapping = mapped
        needed, available = source.offset + source.nbytes, mapping.size()
        if available < needed:
            raise GraphError(
                f"{source.filename} has become shorter: the constant {name} needs its first {needed} bytes, and it has "
                f"{available}; restore the file and load the network again"
            )
