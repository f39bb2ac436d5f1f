"""Fourier transforms against NumPy's, and images at places of a grid against sums written out."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from autosched.errors import GraphError
from autosched.executor.compile_graph import compile_graph
from autosched.graph.interpret import interpret
from tests.graph.onnx.models import graph_of, node

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def computed(graph, *arrays):
    """By the reference, which kernels agree with."""
    given = dict(zip(graph.inputs, arrays, strict=True))
    (result,) = interpret(graph, given).values()
    np.testing.assert_allclose(compile_graph(graph, threads=2)(**given), result, rtol=2e-4, atol=2e-5)
    return result


def complex_of(array):
    return array[..., 0] + 1j * array[..., 1]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("axis", "length"), [(1, None), (0, 5), (-2, 17), (1, 1)])
def test_transforms(parts, axis, length):
    x = normal(3, 7, 2, parts)
    constants = {"axis": np.array(axis), **({} if length is None else {"n": np.array(length)})}
    one = node("DFT", ["x", "n" if length else "", "axis"], ["y"])
    y = computed(graph_of([one], {"x": x.shape}, constants=constants, opset=20), x)
    values = complex_of(x) if parts == 2 else x[..., 0]
    np.testing.assert_allclose(complex_of(y), np.fft.fft(values, length, {-2: 2}.get(axis, axis)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_one_side_of_real_numbers_there_and_back(n):
    x = normal(2, n, 1)
    y = computed(graph_of([node("DFT", ["x"], ["y"], onesided=1, axis=1)], {"x": x.shape}), x)
    np.testing.assert_allclose(complex_of(y), np.fft.rfft(x[..., 0]), rtol=1e-5, atol=1e-5)
    back = node("DFT", ["x", "n"], ["y"], onesided=1, inverse=1, axis=1)
    np.testing.assert_allclose(
        computed(graph_of([back], {"x": y.shape}, constants={"n": n}), y), x, rtol=1e-5, atol=1e-5
    )


def test_inverse_of_complex_numbers():
    x = normal(2, 11, 2)
    y = computed(graph_of([node("DFT", ["x"], ["y"], inverse=1)], {"x": x.shape}), x)
    np.testing.assert_allclose(complex_of(y), np.fft.ifft(complex_of(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("one_sided", [0, 1])
def test_frames_of_a_signal(one_sided):
    x, window = normal(2, 23, 1), np.hanning(8).astype("float32")
    one = node("STFT", ["x", "step", "window", "length"], ["y"], onesided=one_sided)
    constants = {"step": np.array(3), "window": window, "length": np.array(8)}
    y = computed(graph_of([one], {"x": x.shape}, constants=constants), x)
    frames = np.stack([x[:, s : s + 8, 0] * window for s in range(0, 16, 3)], 1)
    want = np.fft.rfft(frames) if one_sided else np.fft.fft(frames)
    np.testing.assert_allclose(complex_of(y), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (node("DFT", ["x"], ["y"], axis=2), "its axis is the one of real and imaginary parts"),
        (node("STFT", ["x", "step"], ["y"]), "neither a window nor the length of one"),
        (node("STFT", ["x", "step", "", "long"], ["y"]), "no frame of 99 elements fits a signal of 5"),
    ],
)
def test_what_is_no_transform(one, message):
    with pytest.raises(GraphError, match=message):
        graph_of([one], {"x": (2, 5, 2)}, constants={"step": np.array(1), "long": np.array(99)})


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_images_at_places_of_a_grid(mode, padding, align):
    torch = pytest.importorskip("torch")
    x, grid = normal(2, 3, 5, 1 if align else 4), RNG.uniform(-1.6, 1.6, (2, 3, 7, 2)).astype("float32")
    one = node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=align)
    y = computed(graph_of([one], {"x": x.shape, "grid": grid.shape}, opset=16), x, grid)
    want = torch.nn.functional.grid_sample(
        torch.from_numpy(x).double(), torch.from_numpy(grid).double(), mode, padding, bool(align)
    )
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_a_grid_between_four_elements():
    x, grid = np.arange(6, dtype="float32").reshape(1, 1, 2, 3), np.array([[[[0.0, 0.0], [1.0, 1.0]]]], "float32")
    one = node("GridSample", ["x", "grid"], ["y"])
    y = computed(graph_of([one], {"x": x.shape, "grid": grid.shape}, opset=16), x, grid)
    np.testing.assert_allclose(y.reshape(-1), [2.5, 1.25])  # at the corner three of four lie outside


@pytest.mark.parametrize(
    ("sizes", "kernel", "more"),
    [
        ((5, 7), (2, 3), {}),
        ((5, 4), (3, 1), {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
        ((6,), (2,), {"dilations": [3]}),
    ],
)
def test_windows_are_added_up(sizes, kernel, more):
    """Against the windows that each element of the image is in."""
    rank = len(sizes)
    steps, gaps = more.get("strides", [1] * rank), more.get("dilations", [1] * rank)
    low, high = (lambda p: (p[:rank], p[rank:]))(more.get("pads", [0] * 2 * rank))
    counts = [
        (n + a + b - g * (k - 1) - 1) // s + 1
        for n, k, s, g, a, b in zip(sizes, kernel, steps, gaps, low, high, strict=True)
    ]
    x = normal(2, 3 * int(np.prod(kernel)), int(np.prod(counts)))
    parts, want = (
        x.reshape(2, 3, *kernel, *counts),
        np.zeros((2, 3, *(n + a + b for n, a, b in zip(sizes, low, high, strict=True)))),
    )
    for tap in np.ndindex(*kernel):
        for window in np.ndindex(*counts):
            place = [w * s + t * g for w, s, t, g in zip(window, steps, tap, gaps, strict=True)]
            want[(slice(None), slice(None), *place)] += parts[(slice(None), slice(None), *tap, *window)]
    inside = [slice(a, a + n) for n, a in zip(sizes, low, strict=True)]
    one = node("Col2Im", ["x", "sizes", "kernel"], ["y"], **more)
    y = computed(graph_of([one], {"x": x.shape}, constants={"sizes": list(sizes), "kernel": list(kernel)}, opset=18), x)
    np.testing.assert_allclose(y, want[(slice(None), slice(None), *inside)], rtol=1e-5, atol=1e-5)
