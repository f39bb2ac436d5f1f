"""Pad: several times around, below zero, and with a number that is known at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from autosched.errors import GraphError  # noqa: E402
from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx.importer import import_model  # noqa: E402

Array = np.ndarray[Any, Any]


def model_of(x: Array, pads: list[int], filler: Array | None = None, mode: str = "constant") -> onnx.ModelProto:
    """The number to pad with is an input."""
    given = {"x": x} | ({} if filler is None else {"v": filler})
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in given.items()}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Pad", ["x", "p", *(["v"] if filler is not None else [])], ["y"], mode=mode)],
        "test",
        [onnx.helper.make_tensor_value_info(name, kinds[name], a.shape) for name, a in given.items()],
        [onnx.helper.make_tensor_value_info("y", kinds["x"], None)],
        [onnx.numpy_helper.from_array(np.array(pads, np.int64), "p")],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])


def padded(x: Array, pads: list[int], filler: Array | None = None, mode: str = "constant") -> Array:
    graph = import_model(model_of(x, pads, filler, mode), {}, {})
    return interpret(graph, {"x": x} | ({} if filler is None else {"v": filler}))["y"]


@pytest.mark.parametrize(("low", "high"), [(3, 0), (4, 0), (0, 7), (10, 1), (5, 8), (-1, 5), (4, -2)])
@pytest.mark.parametrize("n", [3, 5])
def test_a_row_goes_several_times_around(n, low, high):
    x = np.arange(2 * n, dtype=np.float32).reshape(2, n)
    cut = x[:, max(-low, 0) : n - max(-high, 0)]
    expected = np.pad(cut, ((1, 3), (max(low, 0), max(high, 0))), mode="wrap")
    np.testing.assert_array_equal(padded(x, [1, low, 3, high], mode="wrap"), expected)


def test_kernels_go_several_times_around():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    graph = import_model(model_of(x, [3, 7, 0, 8], mode="wrap"), {}, {})
    np.testing.assert_array_equal(compile_graph(graph, threads=1)(x), np.pad(x, ((3, 0), (7, 8)), mode="wrap"))


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_number_to_pad_with_comes_at_run_time(dtype, shape):
    x, one = np.arange(6).reshape(2, 3).astype(dtype), np.ones(shape, dtype)
    expected = np.pad(x[:, 1:], ((1, 0), (0, 2)), constant_values=True)
    np.testing.assert_array_equal(padded(x, [1, -1, 0, 2], one), expected, strict=True)


def test_kernels_pad_with_a_number_of_run_time():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    graph = import_model(model_of(x, [1, 2, 0, 1], np.zeros((), np.float32)), {}, {})
    made = compile_graph(graph, threads=1)(x, np.asarray(2.5, np.float32))
    np.testing.assert_array_equal(made, np.pad(x, ((1, 0), (2, 1)), constant_values=2.5))


@pytest.mark.parametrize(("low", "high"), [(-4, 8), (8, -4), (-3, 1), (2, -3)])
@pytest.mark.parametrize("filler", [None, np.asarray(7, np.float32)])
def test_what_is_left_may_be_new_altogether(low, high, filler):
    expected = np.full(3 + low + high, 0 if filler is None else 7, np.float32)
    np.testing.assert_array_equal(padded(np.ones(3, np.float32), [low, high], filler), expected)


REFUSED = {
    "constant": ([-2, -2], r"Pad y: axis 0 of size 3 cannot lose more than that, but its pads are \[-2, -2\]$"),
    "edge": ([-4, 8], r"Pad y: pads \[-4, 8\] of axis 0 leave none of its 3 elements to pad by edge$"),
    "reflect": ([3, 0], r"pad by reflect of dimension 0, of size 3, reaches 2 but got \[3, 0\]$"),
}


@pytest.mark.parametrize("mode", REFUSED)
def test_pads_that_leave_nothing_are_refused(mode):
    pads, message = REFUSED[mode]
    with pytest.raises(GraphError, match=message):
        padded(np.ones(3, np.float32), pads, mode=mode)
