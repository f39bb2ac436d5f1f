"""The reference that outputs are compared with: ONNX Runtime, else the reference evaluator of the package onnx."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, helper, numpy_helper

Array: TypeAlias = "npt.NDArray[Any]"


OPTIMISED = "ORT_ENABLE_ALL"
UNOPTIMISED = "ORT_DISABLE_ALL"
Run: TypeAlias = Callable[[None, dict[str, Array]], list[Any]]


class Peer:
    """A model as `name` computes it, with one of ONNX Runtime's levels of optimisation. Raises ValueError where neither
    peer takes the model."""

    def __init__(self, model: ModelProto, level: str = OPTIMISED) -> None:
        self.outputs = [info.name for info in model.graph.output]
        try:
            self.name, self.run = "onnxruntime", runtime(model, level)
        except ValueError:
            self.name, self.run = "onnx", evaluator(model)

    def __call__(self, feed: Mapping[str, Array]) -> list[Array]:
        """The outputs in the model's order."""
        with np.errstate(all="ignore"):
            return [np.asarray(result) for result in self.run(None, dict(feed))]


def runtime(model: ModelProto, level: str) -> Run:
    """ONNX Runtime on one thread, with a level of optimisation. Raises ValueError where it does not take the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes of exceptions have no common base but this one
        raise ValueError(f"onnxruntime does not take the model: {error}") from error
    run: Run = session.run
    return run


def evaluator(model: ModelProto) -> Run:
    """The reference evaluator. Raises ValueError where it does not take the model."""
    from onnx.reference import ReferenceEvaluator

    try:
        run: Run = ReferenceEvaluator(model).run
    except Exception as error:
        raise ValueError(f"the evaluator of onnx {onnx.__version__} does not take the model: {error}") from error
    return run


def node_by_node(model: ModelProto) -> Run:
    """A peer for each node, so that each value is rounded to its type: within one session ONNX Runtime keeps float16 in
    float32 from one operator to the next, in which nothing overflows. Raises ValueError where a node has a body of its
    own, and when it runs where neither peer takes a node."""
    if any(a.HasField("g") for node in model.graph.node for a in node.attribute):
        raise ValueError("a node has a body, whose values are those of the model")

    def run(names: None, feed: dict[str, Array]) -> list[Any]:
        values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | feed
        for node in model.graph.node:
            given = {name: np.asarray(values[name]) for name in dict.fromkeys(node.input) if name}
            made = [name for name in node.output if name]
            inputs = [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in given.items()
            ]
            graph = helper.make_graph([node], "node", inputs, [onnx.ValueInfoProto(name=name) for name in made])
            single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
            values |= dict(zip(made, Peer(single, UNOPTIMISED).run(None, given), strict=True))
        return [values[info.name] for info in model.graph.output]

    return run
