"""Convolutions: 1, 2 and 3 spatial dimensions, dilated, grouped, depthwise and capsule ones.

Shapes follow the benchmark literature: images have channels last, weights are [k, ..., CI, CO]. A pad
stage exists only when there is padding. Integers of one byte accumulate in int32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autosched import te
from autosched.ir.expr import Expr
from autosched.te.operators.window import (
    NHWC,
    by_layout,
    check_divides,
    check_layout,
    element_of,
    image,
    pad_spatial,
    widen,
    window_extent,
)
from autosched.te.tensor import Tensor

_Position = Callable[[Expr, tuple[Expr, ...], Expr], Expr]


def _named(rank: int, at: _Position) -> Callable[..., Expr]:
    """`at(n, spatial, co)` as a function whose argument names become the names of the loops."""
    if rank == 1:
        return lambda n, ol, co: at(n, (ol,), co)
    if rank == 2:
        return lambda n, oh, ow, co: at(n, (oh, ow), co)
    return lambda n, od, oh, ow, co: at(n, (od, oh, ow), co)


def conv_channels_last(what: str, x: Tensor, w: Tensor, stride: int = 1, pad: int = 0, dilation: int = 1) -> Tensor:
    """Convolution of x[N, spatial..., CI] with w[taps..., CI, CO], giving [N, spatial..., CO]."""
    n, *size, ci = x.shape
    *taps, _, co = w.shape
    out = [window_extent(what, s, k, stride, pad, dilation) for s, k in zip(size, taps, strict=True)]
    padded = pad_spatial(x, pad)
    k = [te.reduce_axis(extent, name=f"k{d}") for extent, d in zip(taps, "dhw"[3 - len(taps) :], strict=True)]
    rc = te.reduce_axis(ci, name="ci")

    def at(b: Expr, position: tuple[Expr, ...], o: Expr) -> Expr:
        window = tuple(p * stride + t * dilation for p, t in zip(position, k, strict=True))
        return te.sum(widen(padded[(b, *window, rc)]) * widen(w[(*k, rc, o)]), axis=[*k, rc])

    result: Tensor = te.compute((n, *out, co), _named(len(out), at), name="conv")
    return result


def c1d(N: int, L: int, CI: int, CO: int, k: int, stride: int, pad: int, dtype: str = "float32") -> Tensor:
    """X[N,L,CI] * W[k,CI,CO] -> [N,LO,CO]."""
    x = te.placeholder((N, L, CI), dtype, name="X")
    w = te.placeholder((k, CI, CO), dtype, name="W")
    return conv_channels_last("c1d", x, w, stride, pad)


def c2d(N: int, H: int, W: int, CI: int, CO: int, k: int, stride: int, pad: int, dtype: str = "float32") -> Tensor:
    """X[N,H,W,CI] * W[k,k,CI,CO] -> [N,HO,WO,CO]."""
    x = te.placeholder((N, H, W, CI), dtype, name="X")
    w = te.placeholder((k, k, CI, CO), dtype, name="W")
    return conv_channels_last("c2d", x, w, stride, pad)


def c3d(
    N: int, D: int, H: int, W: int, CI: int, CO: int, k: int, stride: int, pad: int, dtype: str = "float32"
) -> Tensor:
    """X[N,D,H,W,CI] * W[k,k,k,CI,CO] -> [N,DO,HO,WO,CO]."""
    x = te.placeholder((N, D, H, W, CI), dtype, name="X")
    w = te.placeholder((k, k, k, CI, CO), dtype, name="W")
    return conv_channels_last("c3d", x, w, stride, pad)


def dil(
    N: int, H: int, W: int, CI: int, CO: int, k: int, stride: int, pad: int, dilation: int, dtype: str = "float32"
) -> Tensor:
    """c2d with `dilation` between the taps."""
    x = te.placeholder((N, H, W, CI), dtype, name="X")
    w = te.placeholder((k, k, CI, CO), dtype, name="W")
    return conv_channels_last("dil", x, w, stride, pad, dilation)


def cbr(N: int, H: int, W: int, CI: int, CO: int, k: int, stride: int, pad: int, dtype: str = "float32") -> Tensor:
    """relu((c2d + bias[CO]) * bn_scale[CO] + bn_offset[CO])."""
    x = te.placeholder((N, H, W, CI), dtype, name="X")
    w = te.placeholder((k, k, CI, CO), dtype, name="W")
    bias, scale, offset = (te.placeholder((CO,), dtype, name=name) for name in ("bias", "bn_scale", "bn_offset"))
    conv = conv_channels_last("cbr", x, w, stride, pad)
    biased = te.compute(conv.shape, lambda n, oh, ow, co: conv[n, oh, ow, co] + bias[co], name="biased")
    scaled = te.compute(conv.shape, lambda n, oh, ow, co: biased[n, oh, ow, co] * scale[co], name="scaled")
    normed = te.compute(conv.shape, lambda n, oh, ow, co: scaled[n, oh, ow, co] + offset[co], name="normed")
    zero = te.const(0, dtype)
    relu: Tensor = te.compute(conv.shape, lambda n, oh, ow, co: te.max(normed[n, oh, ow, co], zero), name="relu")
    return relu


def grouped_channels_last(what: str, x: Tensor, w: Tensor, stride: int, pad: int, dilation: int, groups: int) -> Tensor:
    """x[N,H,W,CI] * w[k,k,CI/groups,CO]: computed as [N,HO,WO,groups,CO/groups], seen as [N,HO,WO,CO]."""
    n, h, wd, ci = x.shape
    kh, kw, per_group, co = w.shape
    check_divides(what, groups, CI=ci, CO=co)
    ho = window_extent(what, h, kh, stride, pad, dilation)
    wo = window_extent(what, wd, kw, stride, pad, dilation)
    out = co // groups
    padded = pad_spatial(x, pad)
    rh, rw, rc = te.reduce_axis(kh, name="kh"), te.reduce_axis(kw, name="kw"), te.reduce_axis(per_group, name="ci")

    def body(n: Expr, oh: Expr, ow: Expr, g: Expr, co: Expr) -> Expr:
        element = padded[n, oh * stride + rh * dilation, ow * stride + rw * dilation, g * per_group + rc]
        return te.sum(widen(element) * widen(w[rh, rw, rc, g * out + co]), axis=[rh, rw, rc])

    conv = te.compute((n, ho, wo, groups, out), body, name="conv")
    return te.view(conv, (n, ho, wo, co))


def grp(
    N: int, H: int, W: int, CI: int, CO: int, k: int, stride: int, pad: int, dilation: int, groups: int,
    dtype: str = "float32",
) -> Tensor:  # fmt: skip
    """Grouped convolution: X[N,H,W,CI] * W[k,k,CI/groups,CO] -> [N,HO,WO,CO]."""
    check_divides("grp", groups, CI=CI, CO=CO)
    x = te.placeholder((N, H, W, CI), dtype, name="X")
    w = te.placeholder((k, k, CI // groups, CO), dtype, name="W")
    return grouped_channels_last("grp", x, w, stride, pad, dilation, groups)


def channels_first_sum(
    padded: Tensor, w: Tensor, strides: Sequence[int], dilations: Sequence[int]
) -> Callable[[Expr, Expr | int, Sequence[Expr], Expr], Expr]:
    """at(n, c, position, o): the sum of image n times filter o of w[CO,CI,taps...], with channels from c on."""
    _, channels, *taps = w.shape
    rc = te.reduce_axis(channels, name="ci")
    k = [te.reduce_axis(extent, name=f"k{d}") for extent, d in zip(taps, "dhw"[3 - len(taps) :], strict=True)]

    def at(n: Expr, c: Expr | int, position: Sequence[Expr], o: Expr) -> Expr:
        window = (p * s + t * d for p, t, s, d in zip(position, k, strides, dilations, strict=True))
        return te.sum(widen(padded[(n, c + rc, *window)]) * widen(w[(o, rc, *k)]), axis=[rc, *k])

    return at


def conv_channels_first(what: str, x: Tensor, w: Tensor, stride: int, pad: int, dilation: int, groups: int) -> Tensor:
    """x[N,CI,H,W] * w[CO,CI/groups,k,k] -> [N,CO,HO,WO]."""
    n, ci, h, wd = x.shape
    co, per_group, kh, kw = w.shape
    check_divides(what, groups, CI=ci, CO=co)
    ho = window_extent(what, h, kh, stride, pad, dilation)
    wo = window_extent(what, wd, kw, stride, pad, dilation)
    out = co // groups
    term = channels_first_sum(pad_spatial(x, pad, "NCHW"), w, (stride, stride), (dilation, dilation))
    if groups == 1:
        dense: Tensor = te.compute((n, co, ho, wo), lambda n, co, oh, ow: term(n, 0, (oh, ow), co), name="conv")
        return dense
    conv = te.compute(
        (n, groups, out, ho, wo), lambda n, g, co, oh, ow: term(n, g * per_group, (oh, ow), g * out + co), name="conv"
    )
    return te.view(conv, (n, co, ho, wo))


def conv2d(
    N: int = 1, H: int = 56, W: int = 56, CI: int = 64, CO: int = 64, k: int = 3, stride: int = 1, pad: int = 1,
    dilation: int = 1, groups: int = 1, layout: str = NHWC, dtype: str = "float32", w_dtype: str = "",
) -> Tensor:  # fmt: skip
    """NHWC: X[N,H,W,CI] * W[k,k,CI/groups,CO]; NCHW: X[N,CI,H,W] * W[CO,CI/groups,k,k]; W of `w_dtype` if given."""
    check_layout("conv2d", layout)
    check_divides("conv2d", groups, CI=CI, CO=CO)
    if layout == NHWC:
        x = te.placeholder((N, H, W, CI), dtype, name="X")
        w = te.placeholder((k, k, CI // groups, CO), w_dtype or dtype, name="W")
        if groups == 1:
            return conv_channels_last("conv2d", x, w, stride, pad, dilation)
        return grouped_channels_last("conv2d", x, w, stride, pad, dilation, groups)
    x = te.placeholder((N, CI, H, W), dtype, name="X")
    w = te.placeholder((CO, CI // groups, k, k), w_dtype or dtype, name="W")
    return conv_channels_first("conv2d", x, w, stride, pad, dilation, groups)


def depthwise(
    N: int = 1, H: int = 112, W: int = 112, C: int = 32, k: int = 3, stride: int = 1, pad: int = 1,
    dilation: int = 1, layout: str = NHWC, dtype: str = "float32",
) -> Tensor:  # fmt: skip
    """One filter per channel. NHWC: X[N,H,W,C] * W[k,k,C]; NCHW: X[N,C,H,W] * W[C,k,k]."""
    check_layout("depthwise", layout)
    ho = window_extent("depthwise", H, k, stride, pad, dilation)
    wo = window_extent("depthwise", W, k, stride, pad, dilation)
    rh, rw = te.reduce_axis(k, name="kh"), te.reduce_axis(k, name="kw")
    x = te.placeholder(image(layout, N, H, W, C), dtype, name="X")
    w = te.placeholder((k, k, C) if layout == NHWC else (C, k, k), dtype, name="W")
    padded = pad_spatial(x, pad, layout)

    def at(n: Expr, oh: Expr, ow: Expr, c: Expr) -> Expr:
        tap = element_of(padded, layout, n, oh * stride + rh * dilation, ow * stride + rw * dilation, c)
        weight = w[rh, rw, c] if layout == NHWC else w[c, rh, rw]
        return te.sum(widen(tap) * widen(weight), axis=[rh, rw])

    result: Tensor = te.compute(image(layout, N, ho, wo, C), by_layout(layout, at), name="depthwise")
    return result


def dep(N: int, H: int, W: int, C: int, k: int, stride: int, pad: int, dtype: str = "float32") -> Tensor:
    """X[N,H,W,C] * W[k,k,C] -> [N,HO,WO,C]."""
    return depthwise(N, H, W, C, k, stride, pad, 1, NHWC, dtype)


def cap(N: int, H: int, W: int, CI: int, CO: int, k: int, stride: int, pad: int, dtype: str = "float32") -> Tensor:
    """Capsule convolution, each tap a 4x4 matrix product: X[N,H,W,4,4,CI] * W[k,k,4,4,CI,CO] -> [N,HO,WO,4,4,CO]."""
    x = te.placeholder((N, H, W, 4, 4, CI), dtype, name="X")
    w = te.placeholder((k, k, 4, 4, CI, CO), dtype, name="W")
    ho, wo = window_extent("cap", H, k, stride, pad), window_extent("cap", W, k, stride, pad)
    padded = pad_spatial(x, pad, rank=2)
    rh, rw = te.reduce_axis(k, name="kh"), te.reduce_axis(k, name="kw")
    rq, rc = te.reduce_axis(4, name="q"), te.reduce_axis(CI, name="ci")

    def body(n: Expr, oh: Expr, ow: Expr, i: Expr, j: Expr, co: Expr) -> Expr:
        element = padded[n, oh * stride + rh, ow * stride + rw, i, rq, rc]
        return te.sum(widen(element) * widen(w[rh, rw, rq, j, rc, co]), axis=[rh, rw, rq, rc])

    result: Tensor = te.compute((N, ho, wo, 4, 4, CO), body, name="capsule")
    return result
