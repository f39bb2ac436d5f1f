"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from autosched.graph.graph import Graph
from autosched.graph.onnx.importer import import_model


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    **more: Any,
) -> ModelProto:
    """A model of float32 inputs of these shapes; constants are arrays, or numbers and lists of int64."""
    tables = [numpy_helper.from_array(as_array(v), name) for name, v in (constants or {}).items()]
    ins = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    outs = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "test", ins, outs, tables)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in more.pop("domains", ()))]
    return helper.make_model(graph, opset_imports=opsets, **more)


def as_array(value: Any) -> np.ndarray[Any, Any]:
    return value if isinstance(value, np.ndarray) else np.asarray(value, np.int64)


def graph_of(*args: Any, sizes: Mapping[str, int] | None = None, **more: Any) -> Graph:
    return import_model(model(*args, **more), sizes or {}, {})


node = helper.make_node
