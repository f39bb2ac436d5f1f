"""The reference that outputs are compared with: ONNX Runtime, else the reference evaluator of the package onnx."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto

Array: TypeAlias = "npt.NDArray[Any]"


OPTIMISED = "ORT_ENABLE_ALL"
UNOPTIMISED = "ORT_DISABLE_ALL"  # it rounds where the model says so
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
