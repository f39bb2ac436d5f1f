"""Rules of Fourier transforms, as products with matrices, of grid sampling and of col2im."""

from __future__ import annotations

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array
from autosched.graph.onnx.rules.windows import explicit_pads
from autosched.graph.onnx.site import Results, Site, refuse, rule

LARGEST = 1 << 24  # elements of a matrix of a transform


def transform(n: int, bins: int, parts: int, inverse: bool) -> Array:
    """[n * parts, bins * 2]: n numbers, complex ones of two `parts`, times this are the first bins of their transform,
    real and imaginary part side by side."""
    waves = waves_of(n, bins, inverse) / (n if inverse else 1)
    rows = [np.stack([waves.real, waves.imag], -1), np.stack([-waves.imag, waves.real], -1)][:parts]
    matrix: Array = np.stack(rows, 1).reshape(n * parts, bins * 2)
    return matrix


def real_inverse(n: int, bins: int) -> Array:
    """[bins * 2, n]: the first bins of the transform of n real numbers, times this are the numbers. Each bin stands for
    its mirror image too, but for those that are their own."""
    n, bins = int(n), int(bins)
    weights = np.where((np.arange(bins) * 2) % n == 0, 1.0, 2.0)[:, None] / n
    waves = waves_of(n, n, inverse=True)[:bins] * weights
    matrix: Array = np.stack([waves.real, -waves.imag], 1).reshape(bins * 2, n)
    return matrix


def waves_of(n: int, bins: int, inverse: bool) -> Array:
    n, bins = int(n), int(bins)  # which a matrix has
    if n * bins > LARGEST:
        raise GraphError(f"a Fourier transform of {n} elements is not supported: it would be a product with a matrix")
    turns = np.outer(np.arange(n), np.arange(bins)) % n / n
    waves: Array = np.exp((2j if inverse else -2j) * np.pi * turns)
    return waves


def transformed(site: Site, x: str, matrix: Array, parts: int) -> str:
    """Multiply x[..., n, parts] by a matrix; `parts` is 1 for real and 2 for complex numbers."""
    *lead, n, given = site.shape(x)
    y = site.emit("matmul", site.reshape(x, (*lead, n * given)), site.constant(matrix, site.dtype(x)))
    return site.reshape(y, (*lead, matrix.shape[1] // parts, parts))


def parts_of(site: Site, x: str) -> int:
    parts = site.shape(x)[-1]
    if parts not in (1, 2):
        raise GraphError(f"its last axis of size {parts} is neither real nor complex")
    return parts


@rule("DFT")
def dft(site: Site) -> Results:
    x, length, last = site.input(0), site.array(1), site.array(2) if site.opset >= 20 else None
    inverse, one_sided = bool(site.attribute("inverse", 0)), bool(site.attribute("onesided", 0))
    default = site.attribute("axis", 1) if site.opset < 20 else -2
    rank = site.rank(x)
    axis = site.axis(default if last is None else int(last.item()), rank)
    if axis == rank - 1:
        raise GraphError("its axis is the one of real and imaginary parts")
    order = (*(d for d in range(rank - 1) if d != axis), axis, rank - 1)
    x = x if order == tuple(range(rank)) else site.emit("transpose", x, perm=order)
    real, size, parts = inverse and one_sided, site.shape(x)[-2], parts_of(site, x)
    n = int(length.item()) if length is not None else 2 * (size - 1) if real else size
    x = of_length(site, x, n // 2 + 1 if real else n)
    refuse(real and parts == 1, "the inverse of one side of real numbers")
    matrix = real_inverse(n, n // 2 + 1) if real else transform(n, n // 2 + 1 if one_sided else n, parts, inverse)
    y = transformed(site, x, matrix, 1 if real else 2)
    back = tuple(order.index(d) for d in range(rank))
    return y if back == tuple(range(rank)) else site.emit("transpose", y, perm=back)


def of_length(site: Site, x: str, n: int) -> str:
    """Truncate the last axis but one, or pad it with zeros."""
    rank, size = site.rank(x), site.shape(x)[-2]
    if n <= size:
        return site.part(x, rank - 2, 0, n)
    more = tuple((0, n - size if d == rank - 2 else 0) for d in range(rank))
    return site.emit("pad", x, pads=more, mode="constant", value=0.0)


@rule("STFT")
def stft(site: Site) -> Results:
    """Transform the windowed frames of a signal [batch, length, parts]."""
    x, step, window, length = site.input(0), site.array(1), site.optional(2), site.array(3)
    assert step is not None, "its schema asks for two inputs"
    if site.rank(x) == 2:
        x = site.reshape(x, (*site.shape(x), 1))
    if length is None and window is None:
        raise GraphError("it has neither a window nor the length of one")
    size = int(length.item()) if length is not None else site.shape(window or "")[0]
    starts = range(0, site.shape(x)[1] - size + 1, int(step.item()))
    if not starts:
        raise GraphError(f"no frame of {size} elements fits a signal of {site.shape(x)[1]}")
    places = np.add.outer(np.asarray(starts), np.arange(size))
    frames = site.emit("gather", x, site.constant(places, "int64"), axis=1)
    if window is not None:
        frames = site.emit("mul", frames, site.reshape(window, (size, 1)))
    parts = parts_of(site, x)
    one_sided = bool(site.attribute("onesided", 1)) and parts == 1
    return transformed(site, frames, transform(size, size // 2 + 1 if one_sided else size, parts, inverse=False), 2)


@rule("GridSample")
def grid_sample(site: Site) -> Results:
    """Modes were called bilinear and bicubic before opset 20."""
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = site.attribute("mode", "linear")
    padding, align = site.attribute("padding_mode", "zeros"), bool(site.attribute("align_corners", 0))
    given = {"mode": names.get(mode, mode), "padding": padding, "align_corners": align}
    return site.emit("grid_sample", site.input(0), site.input(1), **given)


@rule("Col2Im")
def col2im(site: Site) -> Results:
    sizes, kernel = site.array(1), site.array(2)
    assert sizes is not None, "its schema asks for three inputs"
    assert kernel is not None, "its schema asks for three inputs"
    shape = tuple(int(size) for size in sizes)
    ones = (1,) * len(shape)
    window = {"strides": site.attribute("strides", ones), "dilations": site.attribute("dilations", ones)}
    taps = tuple(int(size) for size in kernel)
    pads = explicit_pads(site, len(shape))
    return site.emit("col2im", site.input(0), sizes=shape, kernel=taps, pads=pads, **window)
