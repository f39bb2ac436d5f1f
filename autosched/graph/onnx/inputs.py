"""Inputs of a model as values of a graph, with sizes for symbolic dimensions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy.typing as npt
from onnx import GraphProto, TypeProto, ValueInfoProto, helper

from autosched.errors import GraphError, UnknownSizes
from autosched.graph.fixed_inputs import fixed_array, unknown_input
from autosched.graph.graph import Array, Value
from autosched.graph.onnx.files import type_label, type_named
from autosched.graph.onnx.held_types import HELD_IN
from autosched.ir.dtype import DTYPES
from autosched.ir.size import has_size, value_of

# Names that exporters write for an unnamed dimension; tf2onnx numbers them.
ANONYMOUS = re.compile(r"\s*(\?|\*|None|-1|unk__\d+|)\s*")


@dataclass(frozen=True)
class InputDimension:
    """A dimension of an input. `name`: its symbol, or its position as x[0] if it has none; `written`: the text in the
    file; `size`: None for a symbolic one."""

    name: str
    written: str
    size: int | None

    def size_from(self, sizes: Mapping[str, int]) -> int | None:
        return self.size if self.size is not None else sizes.get(self.name, sizes.get(self.written))


def input_types(graph: GraphProto, sizes: Mapping[str, int], fixed: Collection[str]) -> dict[str, TypeProto]:
    """Return the types of the inputs that a call passes, with `sizes` for the symbolic dimensions of tensors.

    Raises UnknownSizes for sizes that are missing, GraphError for negative ones.
    """
    unbound: dict[str, str] = {}  # the input that has it first
    types = {}
    for info in call_inputs(graph, fixed):
        types[info.name] = info.type
        if not _content(info).tensor_type.HasField("shape"):
            continue  # not a tensor: `values_of` says so
        shape = []
        for dimension in dimensions(info):
            size = dimension.size_from(sizes)
            if size is None:
                unbound.setdefault(dimension.name, info.name)
            shape.append(1 if size is None else int(value_of(size)))
        if min(shape, default=0) < 0:
            raise GraphError(f"the input {info.name} has the shape {shape}, but sizes are at least 0")
        types[info.name] = helper.make_tensor_type_proto(_content(info).tensor_type.elem_type, shape)
    if unbound:
        which = ", ".join(f"{name} (of {value})" for name, value in unbound.items())
        how = 'with --size NAME=N, in Python sizes={"NAME": N}'
        raise UnknownSizes(f"the model has dimensions whose sizes must be given: {which}; {how}")
    return types


def known_sizes(graph: GraphProto, sizes: Mapping[str, int], fixed: Mapping[str, Array]) -> dict[str, int]:
    """Return `sizes` with those of the symbolic dimensions of `fixed` inputs, which are constants.

    Raises GraphError for sizes of unknown dimensions, and for other sizes than those of the constants.
    """
    constants = [info for info in graph.input if info.name in fixed]
    infos = [*constants, *(i for i in call_inputs(graph, fixed) if _content(i).tensor_type.HasField("shape"))]
    names = set[str]().union(*(_names(dimension) for info in infos for dimension in dimensions(info)))
    if strangers := [name for name in sizes if name not in names]:
        known = ", ".join(sorted(names)) or "none"
        raise GraphError(f"the model has no dimension {strangers[0]} to give a size to; it has: {known}")
    sizes = dict(sizes)
    for info in constants:
        for dimension, size in zip(dimensions(info), fixed[info.name].shape, strict=True):
            if dimension.size is None and sizes.setdefault(dimension.name, size) != size:
                raise GraphError(
                    f"{dimension.name} is {sizes[dimension.name]}, but the value that the input {info.name} is fixed "
                    f"to has {size} there"
                )
    return sizes


def symbolic_shapes(graph: GraphProto, sizes: Mapping[str, int], fixed: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of those inputs of a call in which `sizes` are symbols."""
    shapes = {}
    for info in call_inputs(graph, fixed) if has_size(tuple(sizes.values())) else ():
        found = tuple(dimension.size_from(sizes) for dimension in dimensions(info))
        if has_size(found):
            shapes[info.name] = tuple(size for size in found if size is not None)
    return shapes


def values_of(types: Mapping[str, TypeProto]) -> tuple[list[Value], dict[str, GraphError]]:
    """Return the values of inputs without symbolic dimensions, and errors by the names of inputs that are no tensors of
    our types."""
    values, refused = list[Value](), dict[str, GraphError]()
    for name, given in types.items():
        info = ValueInfoProto(name=name, type=given)
        try:
            shape = tuple(-1 if d.size is None else d.size for d in dimensions(info))
            if -1 in shape:
                raise GraphError(f"the input {name} has sizes that are not known")
            values.append(Value(name, shape, dtype_of(info)))
        except GraphError as error:
            refused[name] = error
    return values, refused


def _names(dimension: InputDimension) -> set[str]:
    return {dimension.name, dimension.written} - {""} if dimension.size is None else set()


def call_inputs(graph: GraphProto, fixed: Collection[str] = ()) -> list[ValueInfoProto]:
    """Return the inputs that a call passes: those without a value in the file that are not `fixed`."""
    constants = {*(tensor.name for tensor in graph.initializer), *fixed}
    return [info for info in graph.input if info.name not in constants]


def symbolic_dimensions(
    graph: GraphProto, fixed: Collection[str] = (), sizes: Mapping[str, int] = MappingProxyType({})
) -> dict[str, tuple[str, int]]:
    """Return the symbolic dimensions without a size by name, each with the first input that has it and its axis."""
    axis_of: dict[str, tuple[str, int]] = {}
    for info in call_inputs(graph, fixed):
        for place, dimension in enumerate(dimensions(info)):
            if dimension.size_from(sizes) is None:
                axis_of.setdefault(dimension.name, (info.name, place))
    return axis_of


def described_inputs(graph: GraphProto) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    """Return type and shape of the inputs that a call passes, by name, with names for symbolic dimensions."""
    described = {}
    for info in call_inputs(graph):
        number = _tensor_type(info).elem_type
        shape = tuple(d.name if d.size is None else d.size for d in dimensions(info))
        described[info.name] = (type_named(number) or type_label(number).lower(), shape)
    return described


def fixed_inputs(graph: GraphProto, fixed: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """Return the values of fixed inputs as arrays of their types. Raises GraphError."""
    infos = {info.name: info for info in call_inputs(graph)}
    arrays = {}
    for name, value in fixed.items():
        if name not in infos:
            raise unknown_input(name, list(infos))
        sizes = [d.name if d.size is None else d.size for d in dimensions(infos[name])]
        dtype = helper.tensor_dtype_to_np_dtype(_tensor_type(infos[name]).elem_type)
        arrays[name] = fixed_array(name, value, dtype, sizes)
    return arrays


def _content(info: ValueInfoProto) -> TypeProto:
    """Return the type of what a call passes: of an optional input that of its content."""
    return info.type.optional_type.elem_type if info.type.HasField("optional_type") else info.type


def _tensor_type(info: ValueInfoProto) -> Any:
    """Return the type of an input as a tensor. Raises GraphError for other inputs."""
    if not _content(info).HasField("tensor_type"):
        raise GraphError(f"the input {info.name} is no tensor: sequences and maps are not supported")
    return _content(info).tensor_type


def dimensions(info: ValueInfoProto) -> Iterable[InputDimension]:
    """The dimensions of an input. Some exporters write a size of -1 for a symbolic one; names that stand for no name,
    as ?, are of as many dimensions as have them."""
    tensor_type = _tensor_type(info)
    if not tensor_type.HasField("shape"):
        raise GraphError(f"the input {info.name} says no shape, not even how many dimensions it has")
    for n, dimension in enumerate(tensor_type.shape.dim):
        written = dimension.dim_param
        name = f"{info.name}[{n}]" if ANONYMOUS.fullmatch(written) else written
        known = dimension.HasField("dim_value") and dimension.dim_value >= 0
        yield InputDimension(name, written, dimension.dim_value if known else None)


def dtype_of(info: ValueInfoProto) -> str:
    """Return our type of an input, or the one that holds its numbers. Raises GraphError."""
    number = _tensor_type(info).elem_type
    dtype = type_named(number)
    if dtype is None:
        name, ours = type_label(number), ", ".join(DTYPES)
        raise GraphError(f"the input {info.name} is of type {name}, which is not supported; {ours} are")
    return HELD_IN.get(dtype, dtype)
