"""Byte ranges of tensors in ONNX files, by the wire format of protocol buffers; the package onnx is not needed.

A message is a list of fields: a varint with the number of the field and a wire type, then a varint, 8 bytes, 4 bytes,
or a length and that many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from mmap import mmap

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


def tensor_ranges(model: bytes | mmap) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the elements of each tensor in a model. Raises ValueError for bytes that are no model."""
    messages = [(_MODEL, 0, len(model))]
    while messages:
        message, begin, end = messages.pop()
        for number, first, last in _byte_fields(model, begin, end):
            if message == _TENSOR:
                if number in _DATA:
                    yield first, last
            elif (inner := _INNER[message].get(number)) is not None:
                messages.append((inner, first, last))


def _byte_fields(data: bytes | mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of the fields of a message that are bytes."""
    while at < end:
        tag, at = _varint(data, at)
        wire_type = tag & 7
        if wire_type == _BYTES:
            length, at = _varint(data, at)
            if at + length > end:
                raise ValueError("a field ends after its message")
            yield tag >> 3, at, at + length
            at += length
        elif wire_type == _VARINT:
            _, at = _varint(data, at)
        elif wire_type in (_FIXED32, _FIXED64):
            at += 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"a field of wire type {wire_type}")


def _varint(data: bytes | mmap, at: int) -> tuple[int, int]:
    """Return a varint of up to 10 bytes and the offset after it."""
    value = 0
    for n, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return value, at + n + 1
    raise ValueError("a number that does not end")
