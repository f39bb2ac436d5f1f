"""Arrays mapped from files: where they begin, and whether their files still have them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array


def map_bytes(path: Path, offset: int, nbytes: int) -> Array:
    """Bytes of a file, read only. Raises OSError, and ValueError for bytes that are not there."""
    return np.asarray(np.memmap(path, np.uint8, "r", offset, (nbytes,)))


def check_mapped(constants: Mapping[str, Array]) -> None:
    """Raises GraphError where a file has become shorter than what is mapped from it: to read that ends the process."""
    for name, array in constants.items():
        source: object = array
        while not isinstance(mapping := getattr(source, "base", None), mmap.mmap) and mapping is not None:
            source = mapping
        if not isinstance(source, np.memmap) or mapping is None:
            continue
        needed, there = source.offset + source.nbytes, mapping.size()
        if there < needed:
            raise GraphError(
                f"{source.filename} has become shorter: the constant {name} needs its first {needed} bytes, and it has "
                f"{there}; restore the file and load the network again"
            )
