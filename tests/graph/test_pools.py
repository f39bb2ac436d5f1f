"""Pools against torch and NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import results_of
from tests.graph.test_operators import computed, some


def windows(x, kernel, strides, pads, dilations, ceil_mode=False):
    """(place in the result, list of (place in the image, whether it is in the image or its pads)) of each window."""
    counts = []
    for size, k, s, (low, high), d in zip(x.shape[2:], kernel, strides, pads, dilations, strict=True):
        room = size + low + high - d * (k - 1) - 1
        count = (-(-room // s) if ceil_mode else room // s) + 1
        counts.append(count - (ceil_mode and (count - 1) * s >= size + low))
    for place in itertools.product(*map(range, counts)):
        taps = [
            tuple(
                p * s - low + t * d for p, s, (low, _), t, d in zip(place, strides, pads, tap, dilations, strict=True)
            )
            for tap in itertools.product(*map(range, kernel))
        ]
        yield place, taps


def pooled(x, function, *given, **options):
    """`function` of the elements of each window that lie in the image, and of their number with those in the pads."""
    found = {}
    for place, taps in windows(x, *given, **options):
        inside = [t for t in taps if all(0 <= i < n for i, n in zip(t, x.shape[2:], strict=True))]
        pads = given[2]
        around = [
            t for t in taps if all(-low <= i < n + high for i, n, (low, high) in zip(t, x.shape[2:], pads, strict=True))
        ]
        elements = np.stack([x[(slice(None), slice(None), *t)] for t in inside]).astype("float64")
        found[place] = function(elements, len(around))
    made = np.empty((*x.shape[:2], *(n + 1 for n in max(found))))
    for place, value in found.items():
        made[(slice(None), slice(None), *place)] = value
    return made


CASES = [
    ((9,), (3,), (2,), ((1, 1),), (1,)),
    ((1,), (1,), (1,), ((0, 0),), (1,)),
    ((7, 5), (3, 2), (2, 1), ((1, 0), (0, 1)), (1, 1)),
    ((7, 8), (2, 3), (3, 2), ((0, 1), (1, 1)), (2, 2)),
    ((8, 8), (3, 3), (2, 2), ((0, 0), (0, 0)), (1, 1)),
    ((5, 4, 3), (2, 2, 3), (2, 1, 1), ((1, 0), (0, 0), (1, 1)), (1, 2, 1)),
]
POOLS = {
    "max_pool": (lambda e, _: e.max(0), {}),
    "avg_pool": (lambda e, _: e.mean(0), {}),
    "avg_pool with pads": (lambda e, count: e.sum(0) / count, {"count_include_pad": True}),
    "lp_pool": (lambda e, _: np.sqrt((e * e).sum(0)), {}),
    "lp_pool of 1": (lambda e, _: np.abs(e).sum(0), {"p": 1}),
    "lp_pool of 3": (lambda e, _: (np.abs(e) ** 3).sum(0) ** (1 / 3), {"p": 3}),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("sizes", "kernel", "strides", "pads", "dilations"), CASES)
def test_pools(name, ceil_mode, sizes, kernel, strides, pads, dilations):
    function, attributes = POOLS[name]
    x = some(2, 3, *sizes)
    expected = pooled(x, function, kernel, strides, pads, dilations, ceil_mode=ceil_mode)
    made = computed(
        name.split()[0], x, kernel=kernel, strides=strides, pads=pads, dilations=dilations, ceil_mode=ceil_mode,
        **attributes,
    )  # fmt: skip
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("with_pads", [False, True])
@pytest.mark.parametrize(("size", "k", "stride", "pad"), [(7, 3, 2, 1), (8, 3, 2, 1), (5, 2, 3, 1), (6, 3, 4, 0)])
def test_pools_as_torch(ceil_mode, with_pads, size, k, stride, pad):
    torch = pytest.importorskip("torch")
    x = some(2, 3, size, size + 1)
    pads = {"kernel": (k, k), "strides": (stride, stride), "pads": ((pad, pad),) * 2, "ceil_mode": ceil_mode}
    averages = torch.nn.functional.avg_pool2d(torch.tensor(x), k, stride, pad, ceil_mode, with_pads).numpy()
    np.testing.assert_allclose(
        computed("avg_pool", x, **pads, count_include_pad=with_pads), averages, rtol=1e-5, atol=1e-6
    )
    peaks = torch.nn.functional.max_pool2d(torch.tensor(x), k, stride, pad, 1, ceil_mode).numpy()
    np.testing.assert_array_equal(computed("max_pool", x, **pads), peaks)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64"])
def test_maxima_have_the_type_of_the_image(dtype):
    x = (some(1, 2, 7, 5) * 50).astype(dtype)
    made = computed("max_pool", x, kernel=(3, 3), strides=(2, 2), pads=((1, 1), (1, 1)))
    assert made.dtype == x.dtype
    np.testing.assert_array_equal(made, pooled(x, lambda e, _: e.max(0), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)))


def with_indices(x, **attributes):
    """Both results."""
    values = {"x": Value("x", x.shape, x.dtype.name)}
    node = Node("max_pool_indices", ("x",), ("y", "i"), attributes)
    made = {v.name: v for v in results_of(node, values)}
    found = interpret(Graph(("x",), ("y", "i"), (node,), {**values, **made}), {"x": x})
    return found["y"], found["i"]


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_places_of_maxima(pad, stride):
    torch = pytest.importorskip("torch")
    x = np.round(some(2, 3, 7, 8))  # with ties
    attributes = {"kernel": (3, 2), "strides": (stride, stride), "pads": ((pad, pad),) * 2}
    value, place = torch.nn.functional.max_pool2d(torch.tensor(x), (3, 2), stride, pad, return_indices=True)
    made = with_indices(x, **attributes)
    np.testing.assert_array_equal(made[0], value.numpy())
    np.testing.assert_array_equal(made[1], place.numpy())
    assert made[1].dtype == np.int64
    whole = with_indices(x, **attributes, whole=True)[1]
    np.testing.assert_array_equal(x.reshape(-1)[whole], made[0])


def test_places_of_the_smallest_numbers_are_in_the_image():
    x = np.full((1, 1, 3), -np.inf, "float32")
    np.testing.assert_array_equal(with_indices(x, kernel=(3,), pads=((1, 1),))[1], [[[0, 0, 1]]])


@pytest.mark.parametrize(("sizes", "to"), [((7,), (3,)), ((8, 6), (2, 3)), ((5, 7), (1, 5)), ((2, 3, 5), (3, 2, 5))])
def test_adaptive_means(sizes, to):
    torch = pytest.importorskip("torch")
    x = some(2, 3, *sizes)
    expected = getattr(torch.nn.functional, f"adaptive_avg_pool{len(to)}d")(torch.tensor(x), to).numpy()
    np.testing.assert_allclose(computed("adaptive_avg_pool", x, sizes=to), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("max_pool", {"kernel": (3,)}, "windows .3. are for images of 1 to 3 dimensions"),
        ("max_pool", {"kernel": (9, 9)}, "do not fit the image"),
        ("avg_pool", {"kernel": (2, 2), "strides": (2,)}, "must be 2 numbers each"),
        ("lp_pool", {"kernel": (2, 2), "p": 0}, "p >= 1 but p is 0"),
        ("adaptive_avg_pool", {"sizes": (3,)}, r"sizes \[3\] do not fit"),
    ],
)
def test_what_pools_refuse(operator, attributes, message):
    with pytest.raises(GraphError, match=message):
        computed(operator, some(1, 2, 7, 5), **attributes)
