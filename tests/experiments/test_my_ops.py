"""The example operators: they load from their file, and mean what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate
from autosched.te.reference.inputs import make_inputs
from experiments import my_ops

FILE = Path(my_ops.__file__)


@pytest.mark.parametrize("name", ["rms_norm", "gelu_matmul", "int4_matmul", "running_sum"])
def test_loads_with_its_defaults(name):
    dag, spec = build(f"{FILE}:{name}")
    assert spec["args"]["M"] == 512
    assert dag.outputs[0].name == name


def test_rms_norm():
    dag, _ = build(f"{FILE}:rms_norm", settings={"M": 3, "N": 8})
    inputs = make_inputs(dag, 0)
    x, gamma = (a.astype(np.float64) for a in inputs.values())
    (found,) = evaluate(dag, inputs)
    np.testing.assert_allclose(found.value, x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * gamma, rtol=1e-6)


def test_gelu_matmul():
    from math import erf

    dag, _ = build(f"{FILE}:gelu_matmul", settings={"M": 3, "N": 4, "K": 5})
    inputs = make_inputs(dag, 0)
    a, b, bias = (inputs[name].astype(np.float64) for name in ("A", "B", "bias"))
    y = a @ b + bias
    (found,) = evaluate(dag, inputs)
    expected = 0.5 * y * (1.0 + np.vectorize(erf)(y / np.sqrt(2.0)))
    np.testing.assert_allclose(found.value, expected, rtol=1e-6, atol=1e-6)


def test_int4_matmul():
    dag, _ = build(f"{FILE}:int4_matmul", settings={"M": 3, "N": 4, "K": 12, "group": 6})
    inputs = make_inputs(dag, 0)
    packed = inputs["W"]
    bits = np.stack([packed & 15, packed >> 4], axis=-1).reshape(4, 12).astype(np.float64)
    scale, zero = (np.repeat(inputs[name].astype(np.float64), 6, axis=1) for name in ("scale", "zero"))
    (found,) = evaluate(dag, inputs)
    expected = inputs["X"].astype(np.float64) @ ((bits - zero) * scale).T
    np.testing.assert_allclose(found.value, expected, rtol=1e-6, atol=1e-6)


def test_running_sum():
    dag, _ = build(f"{FILE}:running_sum", settings={"M": 3, "N": 37})
    inputs = make_inputs(dag, 0)
    (found,) = evaluate(dag, inputs)
    np.testing.assert_allclose(found.value, np.cumsum(inputs["X"].astype(np.float64), axis=1), rtol=1e-6, atol=1e-6)
