"""Byte ranges of tensors in ONNX files, by the wire format of protocol buffers; the package onnx is not needed.

`without_elements` makes a small model of a large one, whose weights stay in the file.

A message is a list of fields: a varint with the number of the field and a wire type, then a varint, 8 bytes, 4 bytes,
or a length and that many bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Messages that contain tensors: the numbers of their fields that are messages -> which. A tensor's fields are its data
# as little-endian bytes: float_data, raw_data, double_data.
_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR = "model", "graph", "node", "attribute", "tensor"
_INNER: Mapping[str, Mapping[int, str]] = {
    _MODEL: {7: _GRAPH},
    _GRAPH: {1: _NODE, 5: _TENSOR},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH},
}
_DATA = (4, 9, 10)
_RAW_DATA = 9
_GRAPH_OF_MODEL, _INITIALIZER = 7, 5
_BLOCK = 4096  # bytes that are read at a time


class FileBytes:
    """The bytes of an open file, of which a few are in memory: a mapping would have large ranges around them there."""

    def __init__(self, file: BinaryIO) -> None:
        self._descriptor = file.fileno()
        self._size = os.fstat(self._descriptor).st_size
        self._at, self._block = 0, b""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        begin, end = span.start, min(span.stop, self._size)
        if not self._at <= begin <= end <= self._at + len(self._block):
            self._at, self._block = begin, os.pread(self._descriptor, max(end - begin, _BLOCK), begin)
        return self._block[begin - self._at : end - self._at]


Bytes = bytes | FileBytes


def tensor_ranges(model: Bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the elements of each tensor in a model. Raises ValueError for bytes that are no model."""
    messages = [(_MODEL, 0, len(model))]
    while messages:
        message, begin, end = messages.pop()
        for number, _, first, last in _byte_fields(model, begin, end):
            if message == _TENSOR:
                if number in _DATA:
                    yield first, last
            elif (inner := _INNER[message].get(number)) is not None:
                messages.append((inner, first, last))


def without_elements(model: Bytes, min_bytes: int) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """Return a model without the elements of initializers that have `min_bytes` of `raw_data` at least, and the ranges
    of these in `model`, by the initializer's number. Raises ValueError for bytes that are no model."""
    ranges: dict[int, tuple[int, int]] = {}
    n_initializers = 0

    def change_tensor(number: int, begin: int, end: int) -> bytes | None:
        nonlocal n_initializers
        if number != _INITIALIZER:
            return None
        n_initializers += 1
        elements = [(first, last) for n, _, first, last in _byte_fields(model, begin, end) if n == _RAW_DATA]
        if len(elements) != 1 or elements[0][1] - elements[0][0] < min_bytes:
            return None
        ranges[n_initializers - 1] = elements[0]
        return _changed(model, begin, end, lambda n, *_: b"" if n == _RAW_DATA else None)

    def change_graph(number: int, begin: int, end: int) -> bytes | None:
        return _changed(model, begin, end, change_tensor) if number == _GRAPH_OF_MODEL else None

    return _changed(model, 0, len(model), change_graph), ranges


def _changed(data: Bytes, begin: int, end: int, change: Callable[[int, int, int], bytes | None]) -> bytes:
    """Return a message with other contents of fields. `change` returns the contents for number, begin and end of a
    field that is bytes; None leaves it as it is."""
    parts, at = list[bytes](), begin
    for number, start, first, last in _byte_fields(data, begin, end):
        if (contents := change(number, first, last)) is not None:
            parts += [data[at:start], _encoded(number << 3 | _BYTES), _encoded(len(contents)), contents]
            at = last
    return b"".join([*parts, data[at:end]])


def _encoded(value: int) -> bytes:
    """Return the varint of a value."""
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def _byte_fields(data: Bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, begin, and begin and end of the contents of the fields of a message that are bytes."""
    while at < end:
        start = at
        tag, at = _varint(data, at)
        wire_type = tag & 7
        if wire_type == _BYTES:
            length, at = _varint(data, at)
            if at + length > end:
                raise ValueError("a field ends after its message")
            yield tag >> 3, start, at, at + length
            at += length
        elif wire_type == _VARINT:
            _, at = _varint(data, at)
        elif wire_type in (_FIXED32, _FIXED64):
            at += 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"a field of wire type {wire_type}")


def _varint(data: Bytes, at: int) -> tuple[int, int]:
    """Return a varint of up to 10 bytes and the offset after it."""
    value = 0
    for n, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return value, at + n + 1
    raise ValueError("a number that does not end")
