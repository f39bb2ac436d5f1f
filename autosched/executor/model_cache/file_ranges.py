"""Constants as ranges of the files that they come from, so that the cache has no copy of a network's weights.

A constant that passes left as it was in the ONNX file, but perhaps for its shape, is a range of that file or of its
external data. All others, and small ones, are stored in the entry of the cache.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autosched.runtime.tensors import ALIGNMENT, Array, aligned_empty

if TYPE_CHECKING:
    from autosched.graph.onnx.tensor_ranges import FileBytes

STORED = -1  # number of the file of a constant that is stored in the entry
SMALL_BYTES = 1 << 14  # constants up to this size are stored; a look for one in the file takes a page or more
_HEAD_BYTES = 64  # by which ranges of the same length are told apart before they are compared


@dataclass(frozen=True)
class FileRange:
    """`nbytes` bytes from `at` on. `file`: the number of the file, 0 for the ONNX file, or STORED."""

    file: int
    at: int
    nbytes: int


def find_ranges(
    path: Path, constants: Mapping[str, Array]
) -> tuple[dict[str, FileRange], tuple[Path, ...], tuple[Array, ...]]:
    """Return the ranges of constants of the ONNX file `path`, the files of the numbers from 1 on, and the arrays to
    be stored one after the other. Raises OSError and ValueError for a file that is no ONNX file any more."""
    from autosched.graph.mapped_arrays import mapped_range
    from autosched.graph.onnx.tensor_ranges import FileBytes

    ranges: dict[str, FileRange] = {}
    external: dict[Path, int] = {}
    stored: list[Array] = []
    n_stored = 0
    with path.open("rb") as file:
        within, own = _TensorIndex(FileBytes(file)), path.resolve()
        for name, array in constants.items():
            if array.nbytes > SMALL_BYTES and (mapped := mapped_range(array)) is not None:
                number = 0 if mapped[0] == own else external.setdefault(mapped[0], len(external) + 1)
                ranges[name] = FileRange(number, mapped[1], array.nbytes)
                continue
            content = np.ascontiguousarray(array).reshape(-1).view("uint8")
            at = within.find(content) if array.nbytes > SMALL_BYTES else None
            if at is None:
                ranges[name] = FileRange(STORED, n_stored, array.nbytes)
                stored.append(content)
                n_stored += array.nbytes
            else:
                ranges[name] = FileRange(0, at, array.nbytes)
    return ranges, tuple(external), tuple(stored)


class _TensorIndex:
    """The tensors in an ONNX file by their content."""

    def __init__(self, model: FileBytes) -> None:
        self._model = model

    @cached_property
    def _begins(self) -> dict[tuple[int, bytes], list[int]]:
        """The offsets of tensors by their lengths and first bytes."""
        from autosched.graph.onnx.tensor_ranges import tensor_ranges

        begins: dict[tuple[int, bytes], list[int]] = {}
        for begin, end in tensor_ranges(self._model):
            if end - begin > SMALL_BYTES:
                begins.setdefault((end - begin, self._model[begin : begin + _HEAD_BYTES]), []).append(begin)
        return begins

    def find(self, content: Array) -> int | None:
        """Return the offset in the file of a tensor with these bytes; None if there is none."""
        for begin in self._begins.get((content.nbytes, content[:_HEAD_BYTES].tobytes()), ()):
            if self._model[begin : begin + content.nbytes] == content.data:
                return begin
        return None


class FileConstants:
    """Constants in files. `descriptors`: the open files, the ONNX file first. `stored`: the bytes of the others.

    Raises ValueError for a range beyond the end of its file, and OSError.
    """

    def __init__(self, ranges: Mapping[str, FileRange], descriptors: Sequence[int], stored: memoryview) -> None:
        self._ranges, self._descriptors, self._stored = ranges, descriptors, stored
        self._memory = aligned_empty((0,), "uint8")  # of `arrays`, which the next call reuses

    def arrays(self, names: Sequence[str]) -> list[Array]:
        sizes = [self._ranges[name].nbytes for name in names]
        ends = list(accumulate(-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in sizes))
        if ends and ends[-1] > self._memory.nbytes:
            self._memory = aligned_empty((ends[-1],), "uint8")
        views = [self._memory[at : at + nbytes] for at, nbytes in zip([0, *ends], sizes, strict=False)]
        for name, view in zip(names, views, strict=True):
            self.copy(name, view)
        return views

    def copy(self, name: str, memory: Array) -> None:
        constant = self._ranges[name]
        if constant.nbytes > memory.nbytes:
            raise ValueError(f"the constant {name} has {constant.nbytes} bytes, and the memory for it {memory.nbytes}")
        if constant.file == STORED:
            memory[: constant.nbytes] = np.frombuffer(self._stored, np.uint8, constant.nbytes, constant.at)
        else:
            _read(self._descriptors[constant.file], constant.at, memory[: constant.nbytes].data)


def _read(descriptor: int, at: int, memory: memoryview) -> None:
    while len(memory):
        n = os.preadv(descriptor, [memory], at)
        if n == 0:
            raise ValueError("a file is shorter than it was")
        memory, at = memory[n:], at + n
