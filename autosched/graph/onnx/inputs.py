"""The inputs of a model as values of a graph: types, and sizes for symbolic dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ValueInfoProto, helper

from autosched.errors import GraphError
from autosched.graph.graph import Array, Value
from autosched.graph.onnx.files import type_label, type_named
from autosched.ir.dtype import DTYPES


def inputs_of(graph: GraphProto, sizes: Mapping[str, int], fixed: Collection[str]) -> list[Value]:
    """The inputs of the network, with `sizes` for symbolic dimensions; those that are `fixed` are constants."""
    constants = {*(tensor.name for tensor in graph.initializer), *fixed}
    unbound: dict[str, str] = {}  # the input that has it first
    known: set[str] = set()
    values = []
    for info in graph.input:
        if info.name in constants:
            continue
        shape = []
        for name, size in dimensions(info):
            known |= {name} if size is None else set()
            if size is None and name not in sizes:
                unbound.setdefault(name, info.name)
            shape.append(size if size is not None else int(sizes.get(name, 1)))
        if min(shape, default=1) < 1:
            raise GraphError(f"the input {info.name} has the shape {shape}; sizes of 0 and less are not supported")
        values.append(Value(info.name, tuple(shape), dtype_of(info)))
    if unbound:
        which = ", ".join(f"{name} (of {value})" for name, value in unbound.items())
        raise GraphError(f"the model has dimensions whose sizes must be given: {which}")
    if strangers := [name for name in sizes if name not in known]:
        names = ", ".join(sorted(known)) or "none"
        raise GraphError(f"the model has no dimension {strangers[0]} to give a size to; it has: {names}")
    return values


def symbolic_dimensions(graph: GraphProto) -> dict[str, tuple[str, int]]:
    """By name, each with the input that has it first, and its place there."""
    constants = {tensor.name for tensor in graph.initializer}
    found: dict[str, tuple[str, int]] = {}
    for info in graph.input:
        for place, (name, size) in enumerate(dimensions(info) if info.name not in constants else ()):
            if size is None:
                found.setdefault(name, (info.name, place))
    return found


def fixed_inputs(graph: GraphProto, fixed: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """The values of inputs that are constants, as arrays of their types."""
    infos = {info.name: info for info in graph.input}
    arrays = {}
    for name, value in fixed.items():
        if name not in infos or any(tensor.name == name for tensor in graph.initializer):
            raise GraphError(f"{name} is given a value, but is no input of the model")
        sizes = [size for _, size in dimensions(infos[name])]
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(infos[name].type.tensor_type.elem_type))
        if len(sizes) != array.ndim or any(s not in (None, n) for s, n in zip(sizes, array.shape, strict=True)):
            raise GraphError(f"the input {name} is given a value of the shape {list(array.shape)}, not {sizes}")
        arrays[name] = array
    return arrays


def dimensions(info: ValueInfoProto) -> Iterable[tuple[str, int | None]]:
    """(name, size) of each dimension; the size is None for a symbolic one, for which some exporters write -1."""
    if info.type.WhichOneof("value") != "tensor_type":
        raise GraphError(f"the input {info.name} is no tensor: sequences, maps and optional values are not supported")
    if not info.type.tensor_type.HasField("shape"):
        raise GraphError(f"the input {info.name} says no shape, not even how many dimensions it has")
    for n, dimension in enumerate(info.type.tensor_type.shape.dim):
        place = f"{info.name}[{n}]"
        known = dimension.HasField("dim_value") and dimension.dim_value >= 0
        yield dimension.dim_param or place, dimension.dim_value if known else None


def dtype_of(info: ValueInfoProto) -> str:
    number = info.type.tensor_type.elem_type
    found = type_named(number)
    if found is None:
        name, ours = type_label(number), ", ".join(DTYPES)
        raise GraphError(f"the input {info.name} is of type {name}, which is not supported; {ours} are")
    return found
