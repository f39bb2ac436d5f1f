"""Memory-mapped arrays: mapping of file ranges, and the check that files were not truncated since."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array


def map_bytes(path: Path, offset: int, nbytes: int) -> Array:
    """Map bytes of a file, read only. Raises OSError, and ValueError for bytes beyond the end of the file."""
    if not nbytes:  # which cannot be mapped
        return np.empty(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, "r", offset, (nbytes,)))


def check_mapped(constants: Mapping[str, Array]) -> None:
    """Raise GraphError if a file is shorter than what is mapped from it: reading that would kill the process."""
    for name, array in constants.items():
        source: object = array
        while not isinstance(mapping := getattr(source, "base", None), mmap.mmap) and mapping is not None:
            source = mapping
        if not isinstance(source, np.memmap) or mapping is None:
            continue
        needed, available = source.offset + source.nbytes, mapping.size()
        if available < needed:
            raise GraphError(
                f"{source.filename} has become shorter: the constant {name} needs its first {needed} bytes, and it has "
                f"{available}; restore the file and load the network again"
            )
