"""Reading of ONNX files: the model, and the arrays of its tensors.

The elements of large tensors, in the model's file or beside it, are mapped into memory, not read. A file beside the
model must lie in its folder: a file that is loaded must not make us read another one of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto

from autosched.errors import GraphError
from autosched.graph.file_formats import ACCEPTED, describe_format
from autosched.graph.graph import Array
from autosched.graph.mapped_arrays import map_bytes, map_file
from autosched.graph.onnx.held_types import BITS, HELD_IN
from autosched.graph.onnx.tensor_ranges import FileBytes, without_elements
from autosched.ir.dtype import DTYPES

OPSETS = range(7, onnx.defs.onnx_opset_version() + 1)  # of the standard's own operators
STANDARD = ("", "ai.onnx")  # names of their domain
FEW_BITS = {**BITS, "float4_e2m1fn": 4}  # types with several elements in a byte


Elements = Mapping[int, Array]  # bytes of initializers by their numbers in a graph
NO_ELEMENTS: Elements = MappingProxyType({})
MIN_MAPPED_BYTES = 1024  # of initializers; those of less are in the model


def read_model(path: Path) -> tuple[ModelProto, Elements]:
    """Return the model in a file without external data, and the elements of large initializers, which the model is
    without; they are mapped from the file. Raises GraphError."""
    try:
        with path.open("rb") as file:
            data = map_file(file)
            text, ranges = _without_elements(FileBytes(file))
    except IsADirectoryError as error:
        raise GraphError(f"{path} is {describe_format(path)}; {ACCEPTED}") from error
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}") from error
    if what := describe_format(path):
        raise GraphError(f"{path} is {what}; {ACCEPTED}")
    try:
        model = onnx.load_model_from_string(text)
    except Exception as error:  # protobuf's; it has one class of them for each of its implementations
        raise GraphError(f"{path} is not an ONNX model, or is truncated ({len(data)} bytes)") from error
    if not model.HasField("graph"):
        raise GraphError(f"{path} holds no graph: it is not an ONNX model, or is truncated ({len(data)} bytes)")
    _check_text(model, path)
    return model, {n: data[begin:end] for n, (begin, end) in ranges.items()}


def _without_elements(data: FileBytes) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """Return what `without_elements` does; the data as they are if they are no model, which protobuf refuses."""
    try:
        return without_elements(data, MIN_MAPPED_BYTES)
    except ValueError:
        return data[0 : len(data)], {}


def _check_text(message: Any, path: Path) -> None:
    """Raise GraphError for names that are not UTF-8, which protobuf returns as bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            texts = (value,) if isinstance(value, (str, bytes)) else value
            if wrong := next((text for text in texts if isinstance(text, bytes)), None):
                raise GraphError(f"{path} is damaged: it has the name {wrong[:40]!r}, which is not UTF-8")
        elif field.type == field.TYPE_MESSAGE:
            for part in (value,) if hasattr(value, "ListFields") else value:
                _check_text(part, path)


def opsets_of(model: ModelProto | FunctionProto) -> dict[str, int]:
    """Return the opset version of each domain that a model uses; the standard's domain is ''."""
    versions = {"" if o.domain in STANDARD else o.domain: o.version for o in model.opset_import}
    version = versions.get("")
    if version is not None and version not in OPSETS:
        raise GraphError(f"the model is of opset {version}; supported are {OPSETS.start} to {OPSETS.stop - 1}")
    return versions


def type_named(number: int) -> str | None:
    """Return the name of a type of ours, or of one that is held in one, for a type number of ONNX; None for others."""
    if not _has_elements(number):
        return None
    name = onnx.helper.tensor_dtype_to_np_dtype(number).name
    return name if name in DTYPES or name in HELD_IN else None


def type_label(number: int) -> str:
    """Return ONNX's name of a type number, or the number if it has none."""
    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number) if known else str(number)


def _has_elements(number: int) -> bool:
    """Whether a type of ONNX's is one of numbers."""
    return number in TensorProto.DataType.values() and number not in (TensorProto.UNDEFINED, TensorProto.STRING)


def initializers(graph: GraphProto, folder: Path | None, elements: Elements = NO_ELEMENTS) -> dict[str, Array]:
    """Return the arrays of a graph's initializers. `elements`: the bytes of those that the graph is without."""
    if len(graph.sparse_initializer):
        raise GraphError("the model has sparse initializers, which are not supported")
    return {tensor.name: array_of(tensor, folder, elements.get(n)) for n, tensor in enumerate(graph.initializer)}


def array_of(tensor: TensorProto, folder: Path | None, elements: Array | None = None) -> Array:
    """Return the array of a tensor, read only, whose elements may lie anywhere in memory. `folder`: that of external
    data. `elements`: the bytes of a tensor that is without them."""
    where = f"the tensor {tensor.name or '(without name)'}"
    if not _has_elements(tensor.data_type):
        raise GraphError(f"{where} is of type {type_label(tensor.data_type)}, which is not supported")
    if any(size < 0 for size in tensor.dims):
        raise GraphError(f"{where} has the shape {list(tensor.dims)}, with a negative size")
    if tensor.data_location == TensorProto.EXTERNAL:
        return mapped(tensor, folder, where)
    if elements is not None:
        if elements.nbytes != _n_bytes(tensor):
            raise GraphError(
                f"{where} has data that do not fit its shape {list(tensor.dims)}: {elements.nbytes} bytes, "
                f"not {_n_bytes(tensor)}"
            )
        return _from_bytes(tensor, elements)
    try:
        array: Array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise GraphError(f"{where} has data that do not fit its shape {list(tensor.dims)}: {error}") from error
    return array


def mapped(tensor: TensorProto, folder: Path | None, where: str) -> Array:
    """Return the array of a tensor with external data in a file of `folder`."""
    facts = {entry.key: entry.value for entry in tensor.external_data}
    location = facts.get("location", "")
    if folder is None:
        raise GraphError(f"{where} has its data in the file {location}, but the model comes from no folder")
    try:
        file, home = (folder / location).resolve(), folder.resolve()
        is_file = file.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a byte 0, links in a circle
        raise GraphError(f"{where} has its data in {location[:99]!r}, which is no place of a file: {error}") from error
    if not location or not file.is_relative_to(home):
        raise GraphError(f"{where} has its data in {location!r}, which is outside of the model's folder {folder}")
    if not is_file:
        raise GraphError(f"{where} has its data in {location}, and there is no such file in {folder}")
    try:
        offset, size = int(facts.get("offset", 0)), _n_bytes(tensor)
        length = int(facts.get("length", size))
    except ValueError as error:
        raise GraphError(f"{where} has an offset or length of its data that is no number") from error
    there = file.stat().st_size
    if offset < 0 or length != size or offset + size > there:
        raise GraphError(
            f"{where} needs {size} bytes of {location} from {offset} on; it says {length}, the file has {there}"
        )
    return _from_bytes(tensor, map_bytes(file, offset, size))


def _n_bytes(tensor: TensorProto) -> int:
    """Return the bytes of the elements of a tensor."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    bits = math.prod(map(int, tensor.dims)) * FEW_BITS.get(dtype.name, 8 * int(dtype.itemsize))
    return -(-bits // 8)


def _from_bytes(tensor: TensorProto, data: Array) -> Array:
    """Return the array of a tensor with these bytes."""
    dtype, shape = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
    if not data.size:
        return np.zeros(shape, dtype)
    if dtype.name in FEW_BITS:  # as a tensor within the model, which is unpacked
        return array_of(TensorProto(data_type=tensor.data_type, dims=shape, raw_data=data.tobytes()), None)
    array: Array = data.view(dtype).reshape(shape)
    return array
