"""ModelSplit of a model at nodes that are refused: what is imported, what another engine runs, and what follows it.

head      the nodes that read no result of a refused node: a graph of ours
refused   the nodes without a rule for what they read, as one model for another engine
rest      the nodes that read their results, whose shapes may depend on data: to be imported, or split, again
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph
from autosched.graph.onnx.files import initializers
from autosched.graph.onnx.order import label, reads
from autosched.graph.onnx.schemas import domain_of

BRANCHES = ("else_branch", "then_branch")  # graphs of an If, by its condition
CONTROL = ("If", "Loop")


@dataclass(frozen=True)
class ModelPart:
    """Nodes of the model `source`, in topological order, which make the values `outputs`.

    `constants`: arrays by the names of the values. `folder`: that of external data.
    """

    source: ModelProto
    nodes: tuple[NodeProto, ...]
    constants: Mapping[str, Array]
    outputs: tuple[str, ...]
    folder: Path | None = None

    @cached_property
    def made(self) -> frozenset[str]:
        """The values that the nodes make."""
        return frozenset(name for node in self.nodes for name in node.output)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The values that are neither constants nor made by the nodes."""
        read = dict.fromkeys([*(name for node in self.nodes for name in reads(node)), *self.outputs])
        return tuple(name for name in read if name not in self.made and name not in self.constants)

    def model(self, inputs: Mapping[str, TypeProto]) -> ModelProto:
        """Return the part as a model of inputs of these types."""
        source = self.source
        whole = ModelProto(ir_version=source.ir_version, opset_import=source.opset_import, functions=source.functions)
        graph = whole.graph
        graph.name = source.graph.name or "network"
        graph.node.extend(self.nodes)
        for name in self.inputs:
            graph.input.add(name=name, type=inputs[name])
        for name in self.outputs:
            graph.output.add(name=name)
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in self.constants.items())
        return whole


@dataclass(frozen=True)
class ModelSplit:
    """A model of inputs of these `types` in three parts.

    `head` is None where no node is imported, `rest` where nothing reads results of refused nodes.
    """

    types: Mapping[str, TypeProto]
    outputs: tuple[str, ...]
    head: Graph | None
    refused: ModelPart
    rest: ModelPart | None


def graph_attribute(node: NodeProto, name: str) -> GraphProto:
    """Return a graph that is an attribute of a node. Raises GraphError if there is none."""
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute.g
    raise GraphError(f"{node.op_type} {label(node)} has no graph {name}")


def is_control(node: NodeProto) -> bool:
    """Whether a node is control flow, whose graphs are parts of their own."""
    return domain_of(node) == "" and node.op_type in CONTROL


def body_of(part: ModelPart, graph: GraphProto) -> ModelPart:
    """Return a graph of a node of the part as a part: its inputs are those of the graph, and values around it."""
    outer = {name: array for name, array in part.constants.items() if name not in {info.name for info in graph.input}}
    whole = ModelPart(part.source, tuple(graph.node), outer, tuple(o.name for o in graph.output), part.folder)
    read = {*whole.outputs, *(name for node in whole.nodes for name in reads(node))}
    constants = {name: array for name, array in outer.items() if name in read}
    return replace(whole, constants={**constants, **initializers(graph, part.folder)})


def groups_of(part: ModelPart) -> list[ModelPart]:
    """Return the nodes of a part as parts in their order, each of which is one node of control flow, or has none."""
    groups: list[list[NodeProto]] = []
    for node in part.nodes:
        if not groups or is_control(node) or is_control(groups[-1][0]):
            groups.append([])
        groups[-1].append(node)
    later, parts = set(part.outputs), list[ModelPart]()
    for nodes in reversed(groups):
        read = {name for node in nodes for name in reads(node)}
        constants = {name: array for name, array in part.constants.items() if name in read}
        outputs = tuple(name for node in nodes for name in node.output if name in later)
        parts.append(ModelPart(part.source, tuple(nodes), constants, outputs, part.folder))
        later |= read
    return parts[::-1]


def split_nodes(nodes: Iterable[NodeProto], failed: Collection[int]) -> tuple[list[NodeProto], list[NodeProto]]:
    """Return the nodes that are refused, `failed` by identity, and those that read their results, both in order.

    A failed node that reads results of both kinds follows the second ones.
    """
    refused, rest = list[NodeProto](), list[NodeProto]()
    made, lost = set[str](), set[str]()  # by the first ones, and by the second ones
    for node in nodes:
        read = set(reads(node))
        if id(node) in failed and not read & lost:
            refused.append(node)
            made.update(node.output)
        elif id(node) in failed or read & (made | lost):
            rest.append(node)
            lost.update(node.output)
    return refused, rest


def type_of(array: Array | list[Array]) -> TypeProto:
    """Return ONNX's type of an array, or of a sequence of arrays."""
    if isinstance(array, list):
        kind = helper.np_dtype_to_tensor_dtype(array[0].dtype) if array else TensorProto.FLOAT
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind, None))
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
