"""Operator schemas of the standard: the check of a node's inputs and attributes."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import AttributeProto, NodeProto, defs

from autosched.errors import GraphError
from autosched.graph.onnx.files import STANDARD


def domain_of(node: NodeProto) -> str:
    return "" if node.domain in STANDARD else str(node.domain)


def schema_of(node: NodeProto, opsets: Mapping[str, int]) -> defs.OpSchema | None:
    """Return the schema of a node's operator at the opset of the model; None if the standard has none."""
    domain = domain_of(node)
    if domain not in opsets or not defs.has(node.op_type, domain):
        return None
    try:
        return defs.get_schema(node.op_type, opsets[domain], domain)
    except defs.SchemaError:
        return None


def check_node(node: NodeProto, opsets: Mapping[str, int]) -> None:
    """Raise GraphError if a node's inputs or attributes do not match its operator's schema."""
    schema = schema_of(node, opsets)
    if schema is None:
        if defs.has(node.op_type, domain_of(node)):
            raise GraphError(f"opset {opsets.get(domain_of(node), '(none given)')} has no such operator")
        return
    least, most = schema.min_input, schema.max_input
    if not least <= len(node.input) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise GraphError(f"it has {len(node.input)} inputs, and takes {wanted}")
    names = [a.name for a in node.attribute]
    if strangers := [name for name in names if name not in schema.attributes]:
        raise GraphError(f"it has no attribute {strangers[0]} in opset {opsets[domain_of(node)]}")
    if missing := [name for name, a in schema.attributes.items() if a.required and name not in names]:
        raise GraphError(f"it lacks the attribute {missing[0]}")
    for a in node.attribute:
        kind, wanted = AttributeProto.AttributeType.Name(a.type), str(schema.attributes[a.name].type).rpartition(".")[2]
        if kind != wanted:
            raise GraphError(f"its attribute {a.name} is {kind}, not {wanted}")
