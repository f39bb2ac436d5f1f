"""Quantised numbers against NumPy, in which integers of 64 bits hold every sum."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.graph import Node
from autosched.graph.operators import build
from autosched.te import ComputeDAG, placeholder
from tests.graph.drafts import Draft
from tests.graph.test_operators import computed, some


def integers(*shape, dtype="int8"):
    limits = np.iinfo(dtype)
    return np.random.default_rng(sum(shape)).integers(limits.min, limits.max + 1, shape).astype(dtype)


def aligned(parameter, rank, axis):
    """One number for each index of `axis`, for broadcasting."""
    if parameter is None or parameter.size == 1:
        return 0 if parameter is None else parameter.reshape(())
    return parameter.reshape([-1 if d == axis % rank else 1 for d in range(rank)])


PARAMETERS = [((), 0), ((1,), 1), ((3,), 1), ((5,), -1), ((2,), 0)]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("shape", "axis"), PARAMETERS)
@pytest.mark.parametrize("zeroed", [False, True])
def test_quantize(dtype, shape, axis, zeroed):
    x = some(2, 3, 5) * 100
    scale = (2.0 ** np.arange(-1, np.prod(shape, dtype=int) - 1).reshape(shape)).astype("float32")
    zero = integers(*shape, dtype=dtype) if zeroed else None
    limits, by = np.iinfo(dtype), aligned(scale, 3, axis)
    expected = np.rint(x / by) + (0 if zero is None else aligned(zero, 3, axis).astype("int64"))
    made = computed("quantize", x, scale, zero, axis=axis, dtype=dtype)
    assert made.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(made, np.clip(expected, limits.min, limits.max))


def test_halves_are_rounded_to_even():
    x = np.array([-1.5, -0.5, 0.5, 1.5, 2.5], "float32")
    made = computed("quantize", x, np.float32(1).reshape(()), axis=0, dtype="int8")
    np.testing.assert_array_equal(made, [-2, 0, 0, 2, 2])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("floats", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), PARAMETERS)
@pytest.mark.parametrize("zeroed", [False, True])
def test_dequantize(dtype, floats, shape, axis, zeroed):
    x = integers(2, 3, 5, dtype="uint8" if dtype == "uint8" else "int8").astype(dtype)
    scale = (1 + np.arange(np.prod(shape, dtype=int)).reshape(shape) / 8).astype(floats)
    zero = integers(*shape).astype(dtype) if zeroed else None
    expected = (x.astype("int64") - aligned(zero, 3, axis)) * aligned(scale, 3, axis).astype("float64")
    made = computed("dequantize", x, scale, zero, axis=axis)
    assert made.dtype == np.dtype(floats)
    np.testing.assert_allclose(made, expected.astype(floats), rtol=1e-6)


@pytest.mark.parametrize("types", [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("shapes", [((3, 5), (5, 7)), ((2, 1, 3, 5), (4, 5, 7)), ((1, 1), (1, 1))])
@pytest.mark.parametrize("zeros", ["", "a", "b", "a b", "each a", "each b", "each a b", "whole a b"])
def test_matmul_integer(types, shapes, zeros):
    a, b = (integers(*shape, dtype=dtype) for shape, dtype in zip(shapes, types, strict=True))
    rows, columns = a.shape[-2], b.shape[-1]
    size = {"each": ((rows,), (columns,)), "whole": ((rows, 1), (1, columns))}.get(zeros.partition(" ")[0], ((), (1,)))
    za = integers(*size[0], dtype=types[0]) if "a" in zeros.split() else None
    zb = integers(*size[1], dtype=types[1]) if "b" in zeros.split() else None
    left = a.astype("int64") - (0 if za is None else za.reshape(-1, 1))
    expected = left @ (b.astype("int64") - (0 if zb is None else zb.reshape(1, -1)))
    made = computed("matmul_integer", a, b, za, zb)
    assert made.dtype == np.int32
    np.testing.assert_array_equal(made, expected)


def test_the_sums_stay_products_of_bytes():
    tensors = [placeholder((3, 5), "uint8"), placeholder((5, 7), "int8"), placeholder((), "uint8"), None]
    dag = ComputeDAG(build(Node("matmul_integer", ("a", "b", "z", None), ("y",)), tensors))
    assert [s.name for s in dag.stages] == ["matmul", "columns", "moved"]  # nothing of rows, which no zero asks for


def by_definition(x, w, strides, pads, dilations, groups):
    """The convolution of integers with zeros around, summed tap by tap."""
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    co, per_group, *kernel = w.shape
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)]
    made = np.zeros((x.shape[0], co, *out), "int64")
    for tap in np.ndindex(*kernel):
        places = (
            slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, dilations, out, strides, strict=True)
        )
        seen = x[(slice(None), slice(None), *places)]
        for o in range(co):
            first = o // (co // groups) * per_group
            taken = seen[:, first : first + per_group]
            made[:, o] += np.einsum("nc...,c->n...", taken, w[(o, slice(None), *tap)])
    return made


@pytest.mark.parametrize("types", [("int8", "int8"), ("uint8", "int8")])
@pytest.mark.parametrize(
    ("sizes", "channels", "kernel", "strides", "pads", "dilations", "groups"),
    [
        ((9,), (4, 6), (3,), (2,), ((2, 1),), (2,), 2),
        ((5, 4), (3, 2), (3, 2), (1, 2), ((1, 0), (0, 3)), (1, 1), 1),
        ((5, 5), (3, 3), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 3),
        ((1, 1), (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    ],
)
@pytest.mark.parametrize("zeros", ["", "x", "w", "x w", "x, each w"])
def test_conv_integer(types, sizes, channels, kernel, strides, pads, dilations, groups, zeros):
    ci, co = channels
    x, w = integers(2, ci, *sizes, dtype=types[0]), integers(co, ci // groups, *kernel, dtype=types[1])
    zx = integers(1, dtype=types[0]).reshape(()) if "x" in zeros else None
    zw = integers(*((co,) if "each" in zeros else ()), dtype=types[1]) if "w" in zeros else None
    expected = by_definition(
        x.astype("int64") - (0 if zx is None else zx), w.astype("int64") - aligned(zw, w.ndim, 0), strides, pads,
        dilations, groups,
    )  # fmt: skip
    attributes = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    made = computed("conv_integer", x, w, zx, zw, **attributes)
    assert made.dtype == np.int32
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(
    ("operator", "arrays", "attributes", "message"),
    [
        ("quantize", [some(2, 3), some(1)], {"dtype": "int32"}, "int16, uint16 but dtype is int32"),
        ("quantize", [some(2, 3), some(1), integers(1)], {"dtype": "uint8"}, "uint8 with a zero of int8"),
        ("quantize", [some(2, 3), some(2)], {"axis": 1}, r"each index of axis 1 of \[2, 3\], but x1 is \[2\]"),
        ("quantize", [some(2, 3), some(2)], {"axis": 2}, "each index of axis 2"),
        ("dequantize", [some(2, 3) > 0, some(1)], {}, "no bools and have a float as scale, not bool and float32"),
        ("matmul_integer", [some(2, 3), some(3, 2)], {}, "of int8 and uint8, not of float32"),
        ("matmul_integer", [integers(3), integers(3, 2)], {}, "are of matrices"),
        ("matmul_integer", [integers(2, 3), integers(3, 4), integers(4)], {}, "are not one for each row"),
        ("matmul_integer", [integers(2, 3), integers(3, 4), None, integers(2, 1)], {}, "are not one for each column"),
        ("conv_integer", [integers(1, 2, 5), integers(3, 2, 3), integers(2)], {}, "the zero of an image is one number"),
    ],
)
def test_what_is_refused(operator, arrays, attributes, message):
    with pytest.raises(GraphError, match=message):
        computed(operator, *arrays, **attributes)


def test_networks_that_round_to_bytes_are_told():
    d = Draft()
    x, scale = d.input(3, 7), d.constant(0.1)
    weights = d.dequantize(d.quantize(d.random(7, 5), scale, dtype="int8"), scale)
    y = d.matmul(x, weights)
    assert not d.graph(y).rounds_to_bytes  # what is computed of constants alone is exact everywhere
    assert d.graph(d.dequantize(d.quantize(y, scale), scale)).rounds_to_bytes
