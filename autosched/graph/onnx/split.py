"""ModelSplit of a model at nodes that are refused: what is imported, what another engine runs, and what follows it.

head      the nodes that read no result of a refused node: a graph of ours
refused   the nodes without a rule for what they read, as one model for another engine
rest      the nodes that read their results, whose shapes may depend on data: to be imported, or split, again
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from autosched.graph.graph import Array, Graph
from autosched.graph.onnx.order import reads


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


def tensor_type(array: Array | list[Array]) -> TypeProto:
    """Return ONNX's type of an array, or of a sequence of arrays."""
    if isinstance(array, list):
        kind = helper.np_dtype_to_tensor_dtype(array[0].dtype) if array else TensorProto.FLOAT
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind, None))
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
