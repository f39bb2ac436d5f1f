"""Operators as generated code: within the bound of the reference."""

from __future__ import annotations

import numpy as np
import pytest

import autosched
from autosched.graph.graph import Node
from autosched.graph.operators import build
from autosched.te import ComputeDAG, placeholder
from autosched.te.reference.evaluate import evaluate, within

F, B = "float32", "uint8"
CASES = {
    "matmul": ([((2, 1, 3, 5), F), ((4, 5, 7), F)], {}),
    "gemm": ([((5, 3), F), ((7, 5), F), ((7,), F)], {"trans_a": True, "trans_b": True, "alpha": 0.5}),
    "einsum": ([((2, 3, 4, 5), F), ((2, 6, 4, 5), F)], {"equation": "bihd,bjhd->bhij"}),
    "conv": ([((1, 8, 9, 7), F), ((12, 4, 3, 3), F), ((12,), F)], {"pads": ((1, 0), (0, 2)), "groups": 2}),
    "conv_transpose": ([((1, 6, 5, 4), F), ((6, 4, 3, 3), F), ((8,), F)], {"strides": (2, 2), "groups": 2}),
    "max_pool_indices": ([((1, 3, 9, 8), F)], {"kernel": (3, 3), "strides": (2, 2), "pads": ((1, 1), (1, 1))}),
    "avg_pool": ([((1, 3, 9, 8), F)], {"kernel": (3, 2), "strides": (2, 2), "pads": ((1, 1), (1, 1))}),
    "adaptive_avg_pool": ([((1, 3, 7, 8), F)], {"sizes": (3, 2)}),
    "softmax": ([((3, 7, 5), F)], {"axis": 1}),
    "layer_norm": ([((3, 4, 5), F), ((4, 5), F), ((5,), F)], {"axes": 2}),
    "group_norm": ([((2, 6, 5, 3), F), ((6,), F), ((6,), F)], {"groups": 3}),
    "lrn": ([((1, 7, 5), F)], {"size": 5}),
    "attention": ([((1, 4, 5, 6), F), ((1, 2, 7, 6), F), ((1, 2, 7, 3), F), ((5, 7), "bool")], {"causal": True}),
    "quantize": ([((4, 37), F), ((37,), F), ((37,), B)], {"dtype": B}),
    "matmul_integer": ([((5, 40), B), ((40, 7), "int8"), ((), B), ((7,), "int8")], {}),
    "conv_integer": ([((1, 4, 6, 5), B), ((6, 2, 3, 3), "int8"), ((), B)], {"pads": ((1, 1), (1, 1)), "groups": 2}),
}


def data(shape, dtype, rng):
    if dtype == "bool":
        made = rng.integers(0, 2, shape).astype(bool)
        made[..., 0] = True  # of a mask no row is empty
        return made
    return (rng.normal(1, 2, shape) if dtype == F else rng.integers(0, 100, shape)).astype(dtype)


@pytest.mark.parametrize("name", CASES)
def test_generated_code_computes_what_the_reference_does(name):
    given, attributes = CASES[name]
    tensors = [placeholder(shape, dtype, f"x{n}") for n, (shape, dtype) in enumerate(given)]
    outputs = ("y", "i") if name == "max_pool_indices" else ("y",)
    results = build(Node(name, tuple(t.name for t in tensors), outputs, attributes), tensors)
    rng = np.random.default_rng(3)
    arrays = [data(shape, dtype, rng) for shape, dtype in given]
    dag = ComputeDAG(results)
    expected = evaluate(dag, {t.name: array for t, array in zip(tensors, arrays, strict=True)})
    kernel = autosched.compile(lambda: results, threads=1)
    made = kernel(*arrays)
    for reference, got in zip(expected, made if isinstance(made, tuple) else (made,), strict=True):
        assert within(reference, got).all()
