"""Pooling over images in NHWC and NCHW."""

from __future__ import annotations

from autosched import te
from autosched.errors import UsageError
from autosched.ir.expr import Expr
from autosched.te.operators.window import NHWC, by_layout, check_layout, element_of, image, pad_spatial, window_extent
from autosched.te.reducers import smallest
from autosched.te.tensor import Tensor


def _check_window(what: str, k: int, pad: int) -> None:
    """Padding of more than half a window would make windows that see nothing of the image."""
    if 2 * pad > k:
        raise UsageError(f"{what}: pad may be at most half of the window, k={k} // 2 = {k // 2}, but is {pad}")


def max_pool2d(
    N: int = 1, H: int = 112, W: int = 112, C: int = 64, k: int = 3, stride: int = 2, pad: int = 1,
    layout: str = NHWC, dtype: str = "float32",
) -> Tensor:  # fmt: skip
    """The maximum of each k x k window; outside of the image lies -inf, or the least integer."""
    check_layout("max_pool2d", layout)
    _check_window("max_pool2d", k, pad)
    ho, wo = (window_extent("max_pool2d", size, k, stride, pad) for size in (H, W))
    x = te.placeholder(image(layout, N, H, W, C), dtype, name="X")
    padded = pad_spatial(x, pad, layout, smallest(dtype).value)
    rh, rw = te.reduce_axis(k, name="kh"), te.reduce_axis(k, name="kw")

    def at(n: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        return te.max(element_of(padded, layout, n, oh * stride + rh, ow * stride + rw, c), axis=[rh, rw])

    result: Tensor = te.compute(image(layout, N, ho, wo, C), by_layout(layout, at), name="max_pool")
    return result


def avg_pool2d(
    N: int = 1, H: int = 112, W: int = 112, C: int = 64, k: int = 3, stride: int = 2, pad: int = 1,
    count_include_pad: int = 1, layout: str = NHWC, dtype: str = "float32",
) -> Tensor:  # fmt: skip
    """The mean of each k x k window; with count_include_pad=0 only elements of the image count in the divisor."""
    check_layout("avg_pool2d", layout)
    _check_window("avg_pool2d", k, pad)
    ho, wo = (window_extent("avg_pool2d", size, k, stride, pad) for size in (H, W))
    padded = pad_spatial(te.placeholder(image(layout, N, H, W, C), dtype, name="X"), pad, layout)
    rh, rw = te.reduce_axis(k, name="kh"), te.reduce_axis(k, name="kw")

    def at(n: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        return te.sum(element_of(padded, layout, n, oh * stride + rh, ow * stride + rw, c), axis=[rh, rw])

    def inside(position: Expr, size: int) -> Expr:
        start = position * stride - pad
        return te.min(start + k, size) - te.max(start, 0)

    def mean(n: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        total = element_of(sums, layout, n, oh, ow, c)
        if count_include_pad or not pad:
            return total / float(k * k)
        return total / (inside(oh, H) * inside(ow, W)).astype(total.dtype)

    shape = image(layout, N, ho, wo, C)
    sums = te.compute(shape, by_layout(layout, at), name="sums")
    result: Tensor = te.compute(shape, by_layout(layout, mean), name="avg_pool")
    return result


def global_max_pool2d(
    N: int = 1, H: int = 7, W: int = 7, C: int = 512, layout: str = NHWC, dtype: str = "float32"
) -> Tensor:
    """The maximum of each channel's image -> [N,C]."""
    check_layout("global_max_pool2d", layout)
    x = te.placeholder(image(layout, N, H, W, C), dtype, name="X")
    rh, rw = te.reduce_axis(H, name="h"), te.reduce_axis(W, name="w")
    result: Tensor = te.compute(
        (N, C), lambda n, c: te.max(element_of(x, layout, n, rh, rw, c), axis=[rh, rw]), name="global_max"
    )
    return result


def global_avg_pool2d(
    N: int = 1, H: int = 7, W: int = 7, C: int = 512, layout: str = NHWC, dtype: str = "float32"
) -> Tensor:
    """The mean of each channel's image -> [N,C]."""
    check_layout("global_avg_pool2d", layout)
    x = te.placeholder(image(layout, N, H, W, C), dtype, name="X")
    rh, rw = te.reduce_axis(H, name="h"), te.reduce_axis(W, name="w")
    total = te.compute((N, C), lambda n, c: te.sum(element_of(x, layout, n, rh, rw, c), axis=[rh, rw]), name="total")
    result: Tensor = te.compute((N, C), lambda n, c: total[n, c] / (H * W), name="global_avg")
    return result
