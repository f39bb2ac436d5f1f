"""ONNX models with sizes of 0, compared with ONNX Runtime: the reference and compiled networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from autosched.executor.compile_graph import compile_graph
from autosched.graph.interpret import interpret
from autosched.graph.onnx.importer import import_model

node = helper.make_node
EMPTY = np.zeros((0,), np.int64)

# By a name: nodes, shapes of the inputs (of float32), outputs, constants.
MODELS: Mapping[str, tuple[list[Any], Mapping[str, tuple[int, ...]], list[str], Mapping[str, Any]]] = {
    "perceptron": (
        [node("Gemm", ["x", "w", "b"], ["h"], transB=1), node("Relu", ["h"], ["y"])],
        {"x": (0, 3)}, ["y"], {"w": np.ones((4, 3), np.float32), "b": np.ones(4, np.float32)},
    ),
    "no features": (
        [node("Gemm", ["x", "w", "b"], ["y"], beta=0.5)],
        {"x": (2, 0), "w": (0, 4)}, ["y"], {"b": np.arange(4, dtype=np.float32)},
    ),
    "product": ([node("MatMul", ["x", "w"], ["y"])], {"x": (3, 2, 0), "w": (0, 4)}, ["y"], {}),
    "convolution": (
        [node("Conv", ["x", "w", "b"], ["h"]), node("MaxPool", ["h"], ["y"], kernel_shape=[2, 2])],
        {"x": (0, 2, 6, 6)}, ["y"], {"w": np.ones((3, 2, 3, 3), np.float32), "b": np.ones(3, np.float32)},
    ),
    "concatenation": (
        [node("Concat", ["past", "x"], ["k"], axis=1), node("Softmax", ["k"], ["y"])],
        {"past": (2, 0, 4), "x": (2, 3, 4)}, ["k", "y"], {},
    ),
    "sums": (
        [node("ReduceSum", ["x", "axes"], ["s"]), node("ReduceProd", ["x"], ["p"], axes=[1], keepdims=0)],
        {"x": (2, 0)}, ["s", "p"], {"axes": np.array([1])},
    ),
    "slices": (
        [node("Slice", ["x", "a", "a"], ["e"]), node("Split", ["x", "sizes"], ["p", "q", "r"], axis=0)],
        {"x": (3, 4)}, ["e", "p", "q", "r"], {"a": np.array([2]), "sizes": np.array([1, 0, 2])},
    ),
    "gather": (
        [node("Gather", ["x", "ids"], ["g"]), node("Cast", ["g"], ["c"], to=7), node("Add", ["c", "c"], ["y"])],
        {"x": (3, 4)}, ["g", "y"], {"ids": EMPTY},
    ),
    "pad": (
        [node("Pad", ["x", "pads", "value"], ["y"])],
        {"x": (2, 0)}, ["y"], {"pads": np.array([0, 1, 1, 2]), "value": np.float32(3)},
    ),
    "tile": ([node("Tile", ["x", "n"], ["y"])], {"x": (2, 3)}, ["y"], {"n": np.array([2, 0])}),
    "expand": ([node("Expand", ["x", "n"], ["y"])], {"x": (1, 3)}, ["y"], {"n": np.array([0, 3])}),
    "reshape": (
        [node("Reshape", ["x", "n"], ["h"], allowzero=1), node("Transpose", ["h"], ["y"], perm=[1, 0])],
        {"x": (0, 3, 2)}, ["y"], {"n": np.array([6, 0])},
    ),
    "scatter": (
        [node("ScatterND", ["x", "ids", "rows"], ["s"]), node("Neg", ["s"], ["y"])],
        {"x": (3, 4), "rows": (0, 4)}, ["y"], {"ids": np.zeros((0, 1), np.int64)},
    ),
    "layer norm": (
        [node("LayerNormalization", ["x", "w"], ["y"])], {"x": (0, 4)}, ["y"], {"w": np.ones(4, np.float32)},
    ),
    "no greatest": ([node("TopK", ["x", "k"], ["v", "i"])], {"x": (2, 3)}, ["v", "i"], {"k": np.array([0])}),
    "running sums": ([node("CumSum", ["x", "axis"], ["y"])], {"x": (2, 0)}, ["y"], {"axis": np.array(1)}),
    "einsum": (
        [node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ik")], {"x": (2, 0), "w": (0, 3)}, ["y"], {},
    ),
    "shapes": (
        [node("Shape", ["x"], ["n"]), node("ConstantOfShape", ["n"], ["z"]), node("Add", ["x", "z"], ["y"])],
        {"x": (3, 0)}, ["y"], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_as_onnxruntime_computes_it(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    nodes, shapes, outputs, constants = MODELS[name]
    graph = helper.make_graph(
        nodes,
        "empty",
        [helper.make_tensor_value_info(x, 1, shape) for x, shape in shapes.items()],
        [helper.make_empty_tensor_value_info(y) for y in outputs],
        [numpy_helper.from_array(np.asarray(array), x) for x, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inputs = {x: np.random.default_rng(0).normal(size=shape).astype(np.float32) for x, shape in shapes.items()}
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, inputs)
    ours = import_model(model, {}, {})
    results = compile_graph(ours)(*inputs.values())
    compiled = results if isinstance(results, tuple) else (results,)
    for one, other, array in zip(interpret(ours, inputs).values(), compiled, wanted, strict=True):
        assert one.shape == other.shape == array.shape
        assert one.dtype == other.dtype == array.dtype
        np.testing.assert_allclose(one, array, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(other, array, rtol=1e-5, atol=1e-6)


def test_a_loop_without_steps_has_rows_of_no_elements() -> None:
    body = helper.make_graph(
        [node("Add", ["state", "x"], ["next"]), node("Identity", ["next"], ["row"]), node("Identity", ["c"], ["go"])],
        "body",
        [
            helper.make_tensor_value_info("n", 7, ()),
            helper.make_tensor_value_info("c", 9, ()),
            helper.make_tensor_value_info("state", 1, (2, 3)),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("go", "next", "row")],
    )
    graph = helper.make_graph(
        [node("Loop", ["most", "", "x"], ["last", "rows"], body=body)],
        "loop",
        [helper.make_tensor_value_info("x", 1, (2, 3))],
        [helper.make_empty_tensor_value_info(name) for name in ("last", "rows")],
        [numpy_helper.from_array(np.array(0), "most")],
    )
    x = np.ones((2, 3), np.float32)
    ours = import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), {}, {})
    results = interpret(ours, {"x": x})
    np.testing.assert_array_equal(results["last"], x)
    assert results["rows"].shape == (0, 2, 3)
