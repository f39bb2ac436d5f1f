"""The first elements of rows: both ways of finding them, ties, NaN, and generated code."""

from __future__ import annotations

import numpy as np
import pytest

import autosched
from autosched.errors import GraphError
from autosched.graph.graph import Node
from autosched.graph.operators import build
from autosched.graph.operators.ranking import ROUNDS
from autosched.te import ComputeDAG, placeholder
from autosched.te.reference.evaluate import evaluate

KINDS = ["float32", "int32", "uint8"]


def first(x, k, axis, largest=True):
    """What NumPy's stable sort says: values and places."""
    key = np.moveaxis(x.astype(np.float64), axis, -1)
    order = np.lexsort((-key if largest else key, ~np.isnan(key)), axis=-1)
    places = np.moveaxis(order[..., :k], -1, axis)
    return np.take_along_axis(x, places, axis), places


def stages(x, **attributes):
    return build(Node("top_k", ("x",), ("v", "p"), attributes), [placeholder(x.shape, x.dtype.name, "x")])


def found(x, **attributes):
    return tuple(r.value for r in evaluate(ComputeDAG(stages(x, **attributes)), {"x": x}))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "axis", "k"), [((3, 7), 1, 3), ((1,), 0, 1), ((5, 2, 3), 0, 5), ((29, 2), 0, 20)])
def test_values_and_places(shape, axis, k, largest, dtype):
    """Few different numbers, so that there are ties."""
    x = np.random.default_rng(k).integers(0, 6, shape).astype(dtype)
    for got, expected in zip(found(x, k=k, axis=axis, largest=largest), first(x, k, axis, largest), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("k", [4, ROUNDS + 1])
@pytest.mark.parametrize("largest", [True, False])
def test_nan_comes_first_and_infinities_are_numbers(k, largest):
    x = np.float32([[1, np.nan, -np.inf, np.inf, 1, np.nan, -np.inf, np.inf] * 3, [-np.inf] * 24])
    for got, expected in zip(found(x, k=k, largest=largest), first(x, k, 1, largest), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_there_are_not_so_many():
    with pytest.raises(GraphError, match=r"the first 4 of 3 elements along axis 0 of \[3\] do not exist"):
        found(np.zeros(3, np.float32), k=4)


@pytest.mark.parametrize(("shape", "axis", "k"), [((5, 33), 1, 4), ((2, 37, 3), 1, ROUNDS + 5)])
def test_generated_code(shape, axis, k):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32).round(1)
    kernel = autosched.compile(lambda: stages(x, k=k, axis=axis), threads=1)
    for got, expected in zip(kernel(x), first(x, k, axis), strict=True):
        np.testing.assert_array_equal(got, expected)
