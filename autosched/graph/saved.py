"""Saved graphs: safetensors files whose tensors are the constants and whose metadata is the graph.

    8 bytes              length of the header, little-endian
    header               JSON: {"NAME": {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}, ...,
                                "__metadata__": {"graph": JSON, ...}}
    constants            their bytes, one after the other, those of the widest elements first

The metadata begin with a digest of the whole file, which is checked at load. Constants are mapped from the file, not
read. Files contain no code; inconsistent files are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph, Node, Value
from autosched.graph.group_description import attribute_data, attribute_of
from autosched.graph.mapped_arrays import check_mapped, map_bytes
from autosched.graph.verify import verify
from autosched.ir.dtype import DTYPES

ALIGNMENT = 64
MAX_HEADER = 100 << 20  # bytes; the format's own limit
DIGEST = "digest"  # the name of the first of the metadata
_DIGEST_PREFIX = b'{"__metadata__": {"digest": "'  # of the header
_DIGEST_AT, _DIGEST_LENGTH = 8 + len(_DIGEST_PREFIX), 64
_BLOCK = 1 << 20  # bytes per sum in the digest
_TYPES = {dtype.abbreviation.upper(): name for name, dtype in DTYPES.items()}  # by their safetensors names


def save_graph(path: Path, graph: Graph, facts: Mapping[str, str]) -> None:
    """Write a graph and further metadata `facts`. An existing file is replaced when the new one is complete.

    Raises GraphError where a constant cannot be read any more.
    """
    check_mapped(graph.constants)
    entries: dict[str, Any] = {}
    at = 0
    constants = dict(sorted(graph.constants.items(), key=lambda pair: -pair[1].dtype.itemsize))
    for name, array in constants.items():
        entries[name] = {
            "dtype": DTYPES[graph.values[name].dtype].abbreviation.upper(),
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    header = header_of(
        entries, {DIGEST: "0" * _DIGEST_LENGTH, **facts, "graph": json.dumps(_data(graph), sort_keys=True)}
    )
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            file.write(header)
            for array in constants.values():
                file.write(np.ascontiguousarray(array).reshape(-1).view("uint8").data)
            digest = _digest(file)
            file.seek(_DIGEST_AT)
            file.write(digest.encode())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def header_of(tensors: Mapping[str, Mapping[str, Any]], facts: Mapping[str, str]) -> bytes:
    """Return the header of a safetensors file with its length; the metadata `facts` come before the tensors.

    It is padded to a multiple of ALIGNMENT bytes.
    """
    header = json.dumps({"__metadata__": facts, **tensors}).encode()
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    return len(header).to_bytes(8, "little") + header


def load_saved(path: Path) -> tuple[Graph, dict[str, str]]:
    """Return the graph of a file and its other metadata, with the digest if there is one.

    Raises GraphError for a file of another format, or one that was changed since it was written.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise GraphError(f"{path} is not a saved network, or is truncated ({size} bytes)")
            header = file.read(length)
            _check_digest(path, file, header)
        entries = json.loads(header)
        facts = entries.pop("__metadata__")
        graph = _graph(json.loads(facts.pop("graph")), _constants(path, entries, 8 + length, size))
        verify(graph)
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GraphError(f"{path} is not a saved network, or is damaged: {error}") from error
    return graph, {str(name): str(text) for name, text in facts.items()}


def _check_digest(path: Path, file: BinaryIO, header: bytes) -> None:
    if not header.startswith(_DIGEST_PREFIX):
        return
    end = len(_DIGEST_PREFIX) + _DIGEST_LENGTH
    if header[len(_DIGEST_PREFIX) : end] != _digest(file).encode():
        raise GraphError(f"{path} is damaged: it is not as it was written, by its digest; save the network again")


def _digest(file: BinaryIO) -> str:
    """Return the digest of a file, computed with zeros in the place of the digest.

    It is SHA-256 of one sum for each block, of its 64-bit words times different odd numbers. Any changed word changes
    the sum; SHA-256 of all bytes takes 4 times as long.
    """
    factors, block = 2 * np.arange(_BLOCK // 8, dtype="<u8") + 1, bytearray(_BLOCK)
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while length := _fill(file, block):
        if size == 0:
            block[_DIGEST_AT : _DIGEST_AT + _DIGEST_LENGTH] = b"0" * _DIGEST_LENGTH
        digest.update(int(np.dot(np.frombuffer(block, "<u8"), factors)).to_bytes(8, "little"))
        size += length
    digest.update(size.to_bytes(8, "little"))
    return digest.hexdigest()


def _fill(file: BinaryIO, block: bytearray) -> int:
    """Read a block, with zeros after the end of the file, and return the number of bytes read."""
    data = file.read(len(block))
    block[:] = data.ljust(len(block), b"\0")
    return len(data)


def _data(graph: Graph) -> dict[str, Any]:
    nodes = [
        [
            *(n.operator, n.inputs, n.outputs, {k: attribute_data(v) for k, v in n.attributes.items()}, n.origin),
            *(() if n.body is None else (_data(n.body),)),
        ]
        for n in graph.nodes
    ]
    values = [[v.name, v.shape, v.dtype] for v in graph.values.values()]
    accepted = {"winograd": True} if graph.winograd else {}
    ends = {"inputs": graph.inputs, "outputs": graph.outputs}
    return {**accepted, **ends, "name": graph.name, "values": values, "nodes": nodes}


def _graph(data: Any, constants: Mapping[str, Array]) -> Graph:
    values = {}
    for name, shape, dtype in data["values"]:
        if dtype not in DTYPES or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError(f"a value of {dtype}{shape}")
        values[str(name)] = Value(str(name), tuple(shape), dtype)
    nodes = []
    for operator, used, results, attributes, origin, *inner in data["nodes"]:
        operands = tuple(None if name is None else str(name) for name in used)
        parsed = {str(k): attribute_of(v) for k, v in attributes.items()}
        body = _graph(inner[0], {}) if inner else None
        nodes.append(Node(str(operator), operands, tuple(map(str, results)), parsed, str(origin), body))
    inputs, outputs = (tuple(map(str, data[ends])) for ends in ("inputs", "outputs"))
    winograd = data.get("winograd") is True
    return Graph(inputs, outputs, tuple(nodes), values, constants, str(data["name"]), winograd)


def _constants(path: Path, entries: Mapping[str, Any], start: int, size: int) -> dict[str, Array]:
    constants: dict[str, Array] = {}
    for name, entry in entries.items():
        shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
        dtype = DTYPES[_TYPES[entry["dtype"]]].numpy_dtype
        if not 0 <= begin <= end <= size - start or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"the constant {name} lies from byte {begin} to {end} of {size - start}")
        constants[name] = map_bytes(path, start + begin, end - begin).view(dtype).reshape(shape)
    return constants
