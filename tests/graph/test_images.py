"""Operators on images with channels last: what they make is that of images with channels first, moved."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import results_of
from tests.graph.test_operator_kernels import kernel_values
from tests.graph.test_operators import computed, some

# An operator, the shape of its image with channels first, those of its other operands, attributes.
CASES = [
    ("conv", (2, 3, 9), [(5, 3, 3), (5,)], {"strides": (2,), "pads": ((1, 0),)}),
    ("conv", (1, 4, 7, 5), [(6, 2, 3, 2)], {"groups": 2, "pads": ((1, 1), (0, 2)), "dilations": (2, 1)}),
    ("conv", (2, 6, 5, 5), [(6, 1, 3, 3), (6,)], {"groups": 6, "pads": ((1, 1), (1, 1))}),
    ("conv", (1, 1, 1, 1), [(1, 1, 1, 1), (1,)], {}),
    ("conv", (1, 2, 3, 5, 4), [(3, 2, 2, 3, 1), (3,)], {"strides": (1, 2, 1), "pads": ((1, 0), (1, 1), (0, 0))}),
    ("conv_transpose", (2, 3, 5), [(3, 4, 3), (4,)], {"strides": (2,), "pads": ((1, 1),), "output_padding": (1,)}),
    ("conv_transpose", (1, 4, 3, 5), [(4, 3, 2, 3)], {"strides": (2, 3), "groups": 2}),
    ("conv_transpose", (1, 2, 3, 2, 3), [(2, 3, 2, 2, 2), (3,)], {"strides": (2, 2, 1), "dilations": (1, 1, 2)}),
    ("max_pool", (2, 3, 7, 5), [], {"kernel": (3, 2), "strides": (2, 1), "pads": ((1, 1), (0, 1)), "ceil_mode": True}),
    ("max_pool", (1, 3, 9), [], {"kernel": (3,), "dilations": (2,)}),
    ("avg_pool", (1, 5, 7, 7), [], {"kernel": (3, 3), "strides": (2, 2), "pads": ((1, 1), (1, 1))}),
    ("avg_pool", (2, 1, 3, 4, 5), [], {"kernel": (2, 2, 3), "count_include_pad": True}),
    ("lp_pool", (1, 3, 6, 1), [], {"kernel": (2, 1), "p": 3}),
    ("adaptive_avg_pool", (2, 3, 7, 5), [], {"sizes": (3, 5)}),
    ("adaptive_avg_pool", (1, 4, 8), [], {"sizes": (1,)}),
    ("batch_norm", (2, 3, 4, 5), [(3,)] * 4, {}),
    ("group_norm", (2, 6, 3, 5), [(6,), (6,)], {"groups": 3}),
    ("group_norm", (1, 4, 7), [], {"groups": 1}),
    ("instance_norm", (2, 3, 2, 3, 4), [(3,), (3,)], {}),
    ("lrn", (2, 7, 3, 2), [], {"size": 4, "alpha": 0.3}),
    ("depth_to_space", (1, 12, 2, 3), [], {"block": 2}),
    ("depth_to_space", (2, 9, 1, 2), [], {"block": 3, "mode": "CRD"}),
    ("space_to_depth", (2, 3, 4, 6), [], {"block": 2}),
]


@pytest.mark.parametrize(("operator", "shape", "others", "attributes"), CASES)
def test_channels_last(operator, shape, others, attributes):
    x, rest = some(*shape), [abs(some(*s)) for s in others]
    expected = np.moveaxis(computed(operator, x, *rest, **attributes), 1, -1)
    made = computed(operator, np.moveaxis(x, 1, -1), *rest, **attributes, channels_last=True)
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("whole", [False, True])
def test_places_of_maxima_are_those_with_channels_first(whole):
    x, attributes = some(2, 3, 5, 7), {"kernel": (2, 3), "pads": ((1, 0), (1, 1)), "whole": whole}

    def run(image, **more):
        node = Node("max_pool_indices", ("x",), ("y", "place"), {**attributes, **more})
        values = {"x": Value("x", image.shape, "float32")}
        values |= {v.name: v for v in results_of(node, values)}
        return interpret(Graph(("x",), ("y", "place"), (node,), values), {"x": image})

    first, last = run(x), run(np.ascontiguousarray(np.moveaxis(x, 1, -1)), channels_last=True)
    for name in ("y", "place"):
        np.testing.assert_array_equal(last[name], np.moveaxis(first[name], 1, -1))


def test_integer_convolution_with_channels_last():
    x, w = some(2, 4, 5, 3), some(6, 2, 2, 3)
    bytes_of = [(40 * a).astype("int8") for a in (x, w)]
    zeros = [np.array(3, "int8"), np.arange(6).astype("int8")]
    attributes = {"groups": 2, "pads": ((1, 0), (1, 1))}
    expected = computed("conv_integer", *bytes_of, *zeros, **attributes)
    moved = np.moveaxis(bytes_of[0], 1, -1)
    made = computed("conv_integer", moved, bytes_of[1], *zeros, **attributes, channels_last=True)
    np.testing.assert_array_equal(made, np.moveaxis(expected, 1, -1))


@pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
def test_kernel(operator):
    kernel_values(operator, some(1, 5, 3, 4), some(4, 4, 3, 3), strides=(2, 1), channels_last=True)


def test_messages_say_where_channels_are():
    with pytest.raises(GraphError, match=r"an image of 5 channels does not fit 4 filters of 3 channels"):
        computed("conv", some(1, 3, 5), some(4, 3, 1), channels_last=True)
    with pytest.raises(GraphError, match=r"an image \[N, \.\.\., C\] and weights of as many dimensions"):
        computed("conv", some(1, 3, 5), some(4, 3, 1, 1), channels_last=True)
