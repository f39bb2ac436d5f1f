"""Inverted bottlenecks as graphs of tensors: a pointwise convolution that expands, a depthwise one, one that projects."""

from __future__ import annotations

from dataclasses import dataclass

from autosched import te
from autosched.te import ComputeDAG, Tensor

WEIGHTS = ("W1", "B1", "W2", "B2", "W3")


@dataclass(frozen=True)
class Sizes:
    """Images, their rows and columns, channels outside and inside; of the windows the taps, stride and zeros around."""

    n: int
    rows: int
    columns: int
    outside: int
    inside: int
    taps: int = 3
    stride: int = 1
    pad: int = 1


def expanded(s: Sizes, dtype: str = "float32") -> Tensor:
    """The activated results of the first convolution, with channels last."""
    x = te.placeholder((s.n, s.rows, s.columns, s.outside), dtype, name="X")
    w, b = te.placeholder((s.inside, s.outside), dtype, name="W1"), te.placeholder((s.inside,), dtype, name="B1")
    k = te.reduce_axis(s.outside, name="k1")
    shape = (s.n, s.rows, s.columns, s.inside)
    e = te.compute(shape, lambda n, i, j, c: te.sum(x[n, i, j, k] * w[c, k], axis=k), name="E")
    return te.compute(shape, lambda n, i, j, c: te.max(e[n, i, j, c] + b[c], 0.0), name="EA")


def windowed(s: Sizes, x: Tensor, dtype: str = "float32") -> Tensor:
    """The activated results of the depthwise convolution of `x`."""
    w = te.placeholder((s.inside, s.taps, s.taps), dtype, name="W2")
    b = te.placeholder((s.inside,), dtype, name="B2")
    rows, columns = ((e + 2 * s.pad - s.taps) // s.stride + 1 for e in (s.rows, s.columns))
    padded = te.compute(
        (s.n, s.rows + 2 * s.pad, s.columns + 2 * s.pad, s.inside),
        lambda n, i, j, c: te.select(
            te.all(i >= s.pad, i < s.rows + s.pad, j >= s.pad, j < s.columns + s.pad),
            x[n, i - s.pad, j - s.pad, c],
            te.const(0, dtype),
        ),
        name="P",
    )
    p, q = te.reduce_axis(s.taps, name="p"), te.reduce_axis(s.taps, name="q")
    shape = (s.n, rows, columns, s.inside)
    d = te.compute(
        shape,
        lambda n, i, j, c: te.sum(padded[n, i * s.stride + p, j * s.stride + q, c] * w[c, p, q], axis=(p, q)),
        name="D",
    )
    return te.compute(shape, lambda n, i, j, c: te.min(te.max(d[n, i, j, c] + b[c], 0.0), 6.0), name="DA")


def projected(s: Sizes, x: Tensor, dtype: str = "float32") -> Tensor:
    """The results of the last convolution, with what comes in added where it has the shape."""
    w = te.placeholder((s.outside, s.inside), dtype, name="W3")
    k = te.reduce_axis(s.inside, name="k3")
    shape = (*x.shape[:-1], s.outside)
    y = te.compute(shape, lambda n, i, j, c: te.sum(x[n, i, j, k] * w[c, k], axis=k), name="Y")
    r = te.placeholder(shape, dtype, name="R")
    return te.compute(shape, lambda n, i, j, c: y[n, i, j, c] + r[n, i, j, c], name="Z")


def bottleneck(s: Sizes, dtype: str = "float32") -> ComputeDAG:
    return ComputeDAG(projected(s, windowed(s, expanded(s, dtype), dtype), dtype)).with_weights(WEIGHTS)


def perceptron(rows: int, outside: int, inside: int, dtype: str = "float32") -> ComputeDAG:
    """Two products and an activation between them."""
    x = te.placeholder((rows, outside), dtype, name="X")
    v, w = te.placeholder((outside, inside), dtype, name="V"), te.placeholder((inside, outside), dtype, name="W")
    k, m = te.reduce_axis(outside, name="k"), te.reduce_axis(inside, name="m")
    h = te.compute((rows, inside), lambda i, j: te.sum(x[i, k] * v[k, j], axis=k), name="H")
    a = te.compute((rows, inside), lambda i, j: h[i, j] * te.sigmoid(h[i, j]), name="A")
    y = te.compute((rows, outside), lambda i, j: te.sum(a[i, m] * w[m, j], axis=m), name="Y")
    return ComputeDAG(y).with_weights(("V", "W"))
