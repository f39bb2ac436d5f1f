"""Operators of networks as machine code: what a plain loop nest of each computes is what the reference says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import build
from autosched.schedule import initial_state
from autosched.te import ComputeDAG, placeholder
from tests.codegen.running import HOST, check_outputs, run
from tests.codegen.running import build as compiled
from tests.graph.test_elementwise import UNARY


def kernel_values(operator: str, *arrays: np.ndarray[Any, Any], **attributes: Any) -> np.ndarray[Any, Any]:
    """The first result of an operator by a kernel, which is also compared with the reference."""
    tensors = [placeholder(a.shape, a.dtype.name, f"x{n}") for n, a in enumerate(arrays)]
    node = Node(operator, tuple(t.name for t in tensors), ("y",), attributes)
    dag = ComputeDAG(build(node, tensors))
    inputs = {t.name: a for t, a in zip(tensors, arrays, strict=True) if t.name in {i.name for i in dag.inputs}}
    outputs = run(compiled(initial_state(dag), HOST, 1), dag, inputs, HOST)
    check_outputs(dag, inputs, outputs, str(node))
    return outputs[0]


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 5e-7), ("float64", 2e-15)])
def test_functions_keep_their_digits(name, dtype, rtol):
    function, x = UNARY[name]
    x = x.astype(dtype)
    got = kernel_values(name, x)
    with np.errstate(all="ignore"):
        expected = np.asarray(function(x.astype("float64"))).astype(got.dtype)
    tiny = 1e-37 if name in ("exp", "reciprocal") else 0.0  # subnormal results may be taken for zero
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=tiny)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_powers_of_integers(dtype):
    """Exact, and by the last bits where there is no room."""
    for bases, exponents in (([-3, -1, 0, 1, 2, 7], [0, 1, 2, 5, 31, 40]), ([-1, 0, 1], [64, 99])):
        a, b = np.meshgrid(np.array(bases, dtype), np.array(exponents, dtype))
        np.testing.assert_array_equal(kernel_values("pow", a, b), a**b)


def test_a_result_may_be_the_operand():
    x = np.arange(12, dtype="float32").reshape(1, 1, 3, 4)
    values = {name: Value(name, x.shape, "float32") for name in "xy"}
    graph = Graph(("x",), ("y",), (Node("resize", ("x",), ("y",), {"sizes": x.shape}),), values)
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], x)
