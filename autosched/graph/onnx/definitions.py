"""Operators defined as functions of others: the model's own functions, and function bodies of the standard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto, helper

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.onnx.files import STANDARD, opsets_of
from autosched.graph.onnx.schemas import schema_of
from autosched.ir.dtype import DTYPES
from autosched.ir.size import has_size


@dataclass(frozen=True)
class OperatorDefinition:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    opsets: Mapping[str, int]
    defaults: tuple[AttributeProto, ...]

    def nodes_reading(self, given: Collection[str]) -> list[NodeProto]:
        """Return the nodes, without inputs that are not among `given`."""
        absent = {name for name in self.inputs if name not in given}
        nodes = []
        for node in self.nodes:
            if absent.intersection(node.input):
                copy = NodeProto()
                copy.CopyFrom(node)
                copy.input[:] = ["" if name in absent else name for name in node.input]
                node = copy
            nodes.append(node)
        return nodes


def local_definitions(model: ModelProto) -> dict[tuple[str, str], OperatorDefinition]:
    """Return the functions of a model by domain and name."""
    return {
        ("" if f.domain in STANDARD else f.domain, f.name): _of_function(f, tuple(f.attribute_proto))
        for f in model.functions
    }


def has_definition(node: NodeProto, opsets: Mapping[str, int]) -> bool:
    """Whether the standard defines the operator of a node as a function of others."""
    schema: Any = schema_of(node, opsets)  # its types lack these
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def definition_of(
    node: NodeProto, attributes: Mapping[str, Any], opsets: Mapping[str, int], operands: Sequence[Value | None]
) -> OperatorDefinition:
    """Return the standard's definition of a node, which may depend on the types of its operands."""
    schema: Any = schema_of(node, opsets)
    defaults = tuple(a.default_value for a in schema.attributes.values() if a.default_value.type)
    latest = opsets[""]
    if versions := [v for v in schema.function_opset_versions if v <= latest]:
        data = schema.get_function_with_opset_version(max(versions))
    elif versions := [v for v in schema.context_dependent_function_opset_versions if v <= latest]:
        whole = NodeProto(op_type=node.op_type, domain=node.domain, input=node.input, output=node.output)
        whole.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        whole.attribute.extend(a for a in defaults if a.name not in attributes)
        data = b""
        for has_numbers in (False, True):  # a definition that needs the sizes of a trace is for their numbers alone
            types = [_type_of(value, has_numbers).SerializeToString() for value in operands]
            data = data or schema.get_context_dependent_function_with_opset_version(
                max(versions), whole.SerializeToString(), types
            )
    else:
        data = b""
    function = FunctionProto.FromString(data)
    if not len(function.node):
        raise GraphError("the standard has no definition of it by other operators for what it is given")
    return _of_function(function, defaults)


def _of_function(function: FunctionProto, defaults: tuple[AttributeProto, ...]) -> OperatorDefinition:
    return OperatorDefinition(
        tuple(function.input), tuple(function.output), tuple(function.node), opsets_of(function), defaults
    )


def _type_of(value: Value | None, has_numbers: bool) -> TypeProto:
    """Return the type of a value. `has_numbers`: with numbers for sizes of a trace, which are left out otherwise."""
    if value is None:
        return TypeProto()
    kind = helper.np_dtype_to_tensor_dtype(DTYPES[value.dtype].numpy_dtype)
    sizes = [None if has_size((n,)) and not has_numbers else int(n) for n in value.shape]
    return helper.make_tensor_type_proto(kind, sizes)
