"""Reader of GGUF files: metadata and tensors, which are mapped and not read.

    4 bytes            "GGUF"
    uint32, 2 uint64   version, counts of tensors and metadata
    metadata           name, type, value
    tensors            name, dimensions (the fastest first), type, offset in the data
    data               each tensor at a multiple of the alignment

Files contain no code. One that is damaged or truncated is refused before any of its sizes is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from autosched.errors import GraphError
from autosched.graph.graph import Array
from autosched.graph.mapped_arrays import map_file
from autosched.ir.dtype import DTYPES
from autosched.te.operators.blocks import BLOCK_FORMATS

MetadataValue: TypeAlias = "bool | int | float | str | tuple[MetadataValue, ...]"

VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_NAME = 256  # characters
_ALIGNMENT_KEY, _ALIGNMENT = "general.alignment", 32
# The struct formats of scalars by the numbers of their types; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_PLAIN = {0: "F32", 1: "F16", 30: "BF16"}
_DTYPES = {dtype.abbreviation.upper(): dtype for dtype in DTYPES.values()}
_BLOCKS = {2: "Q4_0", 8: "Q8_0", 12: "Q4_K", 14: "Q6_K"}
_OTHERS = {3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 20: "IQ4_NL", 23: "IQ4_XS"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of `shape`, rows first. `array` has this shape, or for a format of blocks, `block`, rows of bytes."""

    shape: tuple[int, ...]
    array: Array
    block: str | None = None


@dataclass(frozen=True)
class GgufFile:
    """What a file holds, by name."""

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """Return the metadata and the tensors of a file, mapped. Raises GraphError for a file that cannot be read, is
    damaged, or has tensors of types that are not supported."""
    try:
        with path.open("rb") as file:
            data = map_file(file)
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return _read(path, data)
    except _Damaged as error:
        raise GraphError(f"{path} is no GGUF file, or is damaged: {error}") from error


class _Damaged(Exception):
    """What is wrong with a file."""


@dataclass
class _Cursor:
    """A place in the bytes of a file."""

    data: memoryview
    at: int = 0

    def take(self, code: str) -> int | float | bool:
        """Read a number of a struct format."""
        start = self._skip(struct.calcsize(f"<{code}"))
        (number,) = struct.unpack_from(f"<{code}", self.data, start)
        return number  # type: ignore[no-any-return]

    def count(self, code: str = "Q") -> int:
        return int(self.take(code))

    def text(self) -> str:
        length = self.count()
        start = self._skip(length)
        try:
            return str(self.data[start : start + length], "utf-8")
        except UnicodeDecodeError:
            return str(self.data[start : start + length], "utf-8", "replace")  # tokens may be parts of characters

    def name(self) -> str:
        """Read the name of something."""
        start, name = self.at, self.text()
        if not name.isprintable() or len(name) > MAX_NAME:
            raise _Damaged(f"the name at byte {start} is no text of at most {MAX_NAME} characters")
        return name

    def numbers(self, code: str, count: int) -> tuple[MetadataValue, ...]:
        start = self._skip(count * struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{count}{code}", self.data, start)

    def _skip(self, nbytes: int) -> int:
        """Return the place, and go on behind `nbytes` bytes."""
        start = self.at
        if nbytes > len(self.data) - start:
            raise _Damaged(f"it ends at byte {len(self.data)}, within what begins at byte {start}")
        self.at += nbytes
        return start


def _read(path: Path, data: Array) -> GgufFile:
    cursor = _Cursor(data.data)
    if bytes(cursor.data[:4]) != b"GGUF":
        raise _Damaged("it does not begin with GGUF")
    cursor.at = 4
    version = cursor.count("I")
    if version not in VERSIONS:
        is_swapped = version & 0xFFFF == 0 and version
        what = "its numbers are big-endian" if is_swapped else f"its version is {version}"
        raise GraphError(f"{path} cannot be read: {what}, where versions 2 and 3 in little-endian are supported")
    n_tensors, n_metadata = cursor.count(), cursor.count()
    metadata: dict[str, MetadataValue] = {}
    for _ in range(n_metadata):
        name = cursor.name()
        if name in metadata:
            raise _Damaged(f"it has the metadata {name} twice")
        metadata[name] = _value(cursor, cursor.count("I"), name)
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(n_tensors):
        name = cursor.name()
        if name in entries:
            raise _Damaged(f"it has the tensor {name} twice")
        entries[name] = _entry(cursor, name)
    alignment = metadata.get(_ALIGNMENT_KEY, _ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise _Damaged(f"its alignment is {alignment}, which is no power of two")
    start = -(-cursor.at // alignment) * alignment
    _refuse_types(path, entries)
    tensors = {name: _tensor(data, start, alignment, name, *entry) for name, entry in entries.items()}
    return GgufFile(path, metadata, tensors)


def _value(cursor: _Cursor, kind: int, name: str) -> MetadataValue:
    if kind in _SCALARS:
        return cursor.take(_SCALARS[kind])
    if kind == _STRING:
        return cursor.text()
    if kind != _ARRAY:
        raise _Damaged(f"the metadata {name} is of the unknown type {kind}")
    element, count = cursor.count("I"), cursor.count()
    if element in _SCALARS:
        return cursor.numbers(_SCALARS[element], count)
    if element == _STRING:
        return tuple(cursor.text() for _ in range(count))
    raise _Damaged(f"the metadata {name} is an array of the unknown type {element}")


def _entry(cursor: _Cursor, name: str) -> tuple[tuple[int, ...], int, int]:
    """Return shape, type and offset of a tensor."""
    rank = cursor.count("I")
    if rank > MAX_DIMENSIONS:
        raise _Damaged(f"the tensor {name} has {rank} dimensions, where {MAX_DIMENSIONS} are the most")
    shape = tuple(cursor.count() for _ in range(rank))[::-1]
    if 0 in shape:
        raise _Damaged(f"the tensor {name} has a dimension of size 0")
    return shape, cursor.count("I"), cursor.count()


def _refuse_types(path: Path, entries: Mapping[str, tuple[tuple[int, ...], int, int]]) -> None:
    """Raise GraphError with all types that are not supported."""
    unknown = {kind: name for name, (_, kind, _) in entries.items() if kind not in _PLAIN and kind not in _BLOCKS}
    if unknown:
        known = ", ".join([*_PLAIN.values(), *_BLOCKS.values()])
        found = ", ".join(f"{name} ({_OTHERS.get(kind, f'type {kind}')})" for kind, name in unknown.items())
        raise GraphError(f"{path} has tensors of types that are not supported: {found}; supported are {known}")


def _tensor(
    data: Array, start: int, alignment: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> StoredTensor:
    if offset % alignment:
        raise _Damaged(f"the tensor {name} begins at byte {offset}, which is no multiple of {alignment}")
    block, dtype = _BLOCKS.get(kind), _DTYPES[_PLAIN[kind]].numpy_dtype if kind in _PLAIN else None
    stored = shape
    if block is not None:
        layout = BLOCK_FORMATS[block]
        if not shape or shape[-1] % layout.elements:
            raise _Damaged(f"the tensor {name} of shape {list(shape)} has no whole blocks of {layout.elements}")
        stored = (*shape[:-1], shape[-1] // layout.elements * layout.nbytes)
    nbytes = math.prod(stored) * (1 if dtype is None else dtype.itemsize)
    if start + offset + nbytes > len(data):
        raise _Damaged(f"the tensor {name} ends at byte {start + offset + nbytes} of {len(data)}")
    part = data[start + offset : start + offset + nbytes]
    return StoredTensor(shape, (part if dtype is None else part.view(dtype)).reshape(stored), block)
