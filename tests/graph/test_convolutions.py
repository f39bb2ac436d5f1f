"""Convolutions against torch."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.operators import operators
from autosched.ir.expr import Binary
from autosched.te import ComputeDAG, placeholder
from autosched.te.rewrites.collapse import collapse
from autosched.te.rewrites.winograd import match_stage
from autosched.te.tensor import postorder
from tests.graph.test_operators import computed, some

CONV = {1: "conv1d", 2: "conv2d", 3: "conv3d"}


def by_torch(x, w, b, strides, pads, dilations, groups):
    """torch pads on both sides alike: the image is padded before."""
    torch = pytest.importorskip("torch")
    padded = np.pad(x, ((0, 0), (0, 0), *pads)).astype("float64")
    function = getattr(torch.nn.functional, CONV[len(pads)])
    bias = None if b is None else torch.tensor(b, dtype=torch.float64)
    return function(
        torch.tensor(padded), torch.tensor(w, dtype=torch.float64), bias, stride=strides, dilation=dilations,
        groups=groups,
    ).numpy()  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "channels", "kernel", "strides", "pads", "dilations", "groups"),
    [
        ((9,), (3, 5), (3,), (1,), ((1, 1),), (1,), 1),
        ((11,), (4, 6), (3,), (2,), ((2, 0),), (2,), 2),
        ((1,), (1, 1), (1,), (1,), ((0, 0),), (1,), 1),
        ((7, 5), (3, 4), (3, 2), (1, 2), ((1, 0), (0, 3)), (1, 1), 1),
        ((7, 7), (6, 6), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 6),
        ((7, 7), (3, 6), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 3),
        ((9, 8), (4, 6), (3, 3), (3, 1), ((0, 2), (1, 1)), (2, 3), 2),
        ((13, 5), (2, 3), (1, 1), (2, 1), ((0, 0), (0, 0)), (1, 1), 1),
        ((5, 3), (2, 3), (5, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
        ((3, 5, 4), (2, 4), (2, 3, 2), (1, 2, 1), ((1, 0), (1, 1), (0, 1)), (1, 1, 2), 2),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_conv(sizes, channels, kernel, strides, pads, dilations, groups, biased):
    (ci, co) = channels
    x, w = some(2, ci, *sizes), some(co, ci // groups, *kernel)
    b = some(co) if biased else None
    expected = by_torch(x, w, b, strides, pads, dilations, groups)
    made = computed("conv", x, w, b, strides=strides, pads=pads, dilations=dilations, groups=groups)
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


def test_conv_without_attributes():
    x, w = some(1, 3, 5, 5), some(2, 3, 3, 3)
    expected = by_torch(x, w, None, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    np.testing.assert_allclose(computed("conv", x, w), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_conv_has_the_type_of_its_operands(dtype):
    x, w = (np.arange(-5, 4).reshape(shape).astype(dtype) for shape in ((1, 1, 9), (1, 3, 3)))
    made = computed("conv", np.repeat(x, 3, 1), w)
    assert made.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(made, by_torch(np.repeat(x, 3, 1), w, None, (1,), ((0, 0),), (1,), 1))


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        ((1, 3, 5), (2, 4, 3), {}, "3 channels does not fit 2 filters of 4 channels in 1 groups"),
        ((1, 4, 5), (3, 2, 3), {"groups": 2}, "does not fit 3 filters"),
        ((1, 3, 5), (2, 3, 3, 3), {}, "weights of as many dimensions"),
        ((1, 3, 5), (2, 3, 7), {}, "do not fit the image"),
        ((1, 3, 5), (2, 3, 3), {"strides": (0,)}, "all but pads at least 1"),
        ((1, 3, 5), (2, 3, 3), {"pads": ((1, 1), (1, 1))}, "must be 1 numbers each"),
        ((1, 3, 5), (2, 3, 3), {"pads": ((-1, 1),)}, "must not be negative"),
    ],
)
def test_what_conv_refuses(x, w, attributes, message):
    with pytest.raises(GraphError, match=message):
        computed("conv", some(*x), some(*w), **attributes)


@pytest.mark.parametrize(
    ("sizes", "channels", "kernel", "strides", "pads", "dilations", "groups", "more"),
    [
        ((5,), (3, 4), (4,), (2,), (1,), (1,), 1, (0,)),
        ((5,), (4, 6), (3,), (3,), (1,), (2,), 2, (2,)),
        ((1,), (1, 1), (1,), (1,), (0,), (1,), 1, (0,)),
        ((4, 3), (3, 2), (4, 4), (2, 2), (1, 1), (1, 1), 1, (0, 0)),
        ((4, 5), (2, 3), (3, 3), (1, 1), (1, 2), (1, 1), 1, (0, 0)),
        ((3, 5), (4, 4), (3, 2), (2, 1), (1, 0), (1, 2), 4, (1, 0)),
        ((3, 4), (2, 4), (2, 5), (4, 2), (0, 2), (1, 1), 2, (1, 1)),
        ((3, 4), (2, 2), (3, 3), (2, 2), (0, 0), (2, 4), 1, (0, 1)),
        ((2, 3, 2), (2, 4), (2, 3, 3), (2, 1, 2), (0, 1, 1), (1, 1, 1), 2, (1, 0, 1)),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_conv_transpose(sizes, channels, kernel, strides, pads, dilations, groups, more, biased):
    torch = pytest.importorskip("torch")
    (ci, co) = channels
    x, w, b = some(2, ci, *sizes), some(ci, co // groups, *kernel), some(co) if biased else None
    function = getattr(torch.nn.functional, CONV[len(sizes)].replace("conv", "conv_transpose"))
    given = [None if a is None else torch.tensor(a, dtype=torch.float64) for a in (x, w, b)]
    expected = function(*given, strides, pads, more, groups, dilations).numpy()
    made = computed(
        "conv_transpose", x, w, b, strides=strides, pads=tuple((p, p) for p in pads), dilations=dilations,
        groups=groups, output_padding=more,
    )  # fmt: skip
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


def test_conv_transpose_with_unequal_pads():
    x, w = some(1, 2, 5), some(2, 3, 4)
    whole = computed("conv_transpose", x, w, strides=(2,))
    np.testing.assert_array_equal(computed("conv_transpose", x, w, strides=(2,), pads=((3, 1),)), whole[:, :, 3:-1])


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        ((1, 3, 5), (2, 4, 3), {}, "3 channels does not fit weights of 2 channels"),
        ((1, 3, 5), (3, 4, 3), {"groups": 2}, "does not fit"),
        ((1, 3, 5), (3, 4, 3, 3), {}, "weights of as many dimensions"),
        ((1, 3, 1), (3, 4, 3), {"pads": ((2, 2),)}, "leave nothing of the image"),
        ((1, 3, 5), (3, 4, 3), {"strides": (1, 1)}, "must be 1 numbers each"),
    ],
)
def test_what_conv_transpose_refuses(x, w, attributes, message):
    with pytest.raises(GraphError, match=message):
        computed("conv_transpose", some(*x), some(*w), **attributes)


def as_rewritten(operator, x, w, **attributes):
    """The reduction that the rewrites leave of a convolution, and the extents of its axes."""
    dag = collapse(ComputeDAG(operators()[operator](placeholder(x), placeholder(w), **attributes)))
    (stage,) = (s for s in dag.stages if s.reducer)
    return stage, [a.extent for a in stage.axes], [a.extent for a in stage.reduce_axes]


def test_the_rewrites_know_convolutions():
    _, axes, terms = as_rewritten("conv", (1, 64, 14, 14), (32, 64, 1, 1))
    assert (axes, terms) == ([32, 196], [64])  # a matrix product
    stage, _, _ = as_rewritten("conv", (1, 64, 14, 14), (32, 64, 3, 3), pads=((1, 1), (1, 1)))
    assert match_stage(stage)
    _, axes, terms = as_rewritten("conv", (1, 64, 14, 14), (32, 16, 3, 3), groups=4)
    assert (axes, terms) == ([4, 8, 12, 12], [16, 3, 3])
    _, axes, terms = as_rewritten("conv", (1, 64, 14, 14), (64, 1, 3, 3), groups=64)
    assert (axes, terms) == ([64, 12, 12], [3, 3])


def test_transposed_convolutions_do_not_multiply_zeros():
    attributes = {"strides": (2, 2), "pads": ((1, 1), (1, 1)), "groups": 4}
    stage, axes, terms = as_rewritten("conv_transpose", (1, 64, 14, 14), (64, 8, 4, 4), **attributes)
    assert (axes, terms) == ([2, 2, 4, 8, 15, 15], [16, 2, 2])
    assert not any(isinstance(e, Binary) and e.op in ("mod", "floordiv") for e in postorder(stage.body))
