"""Quantisation, q for (q - zero) * scale, and products of quantised operands.

Products of q - zero are expanded, so that the sums are over bytes, for which processors have dot-product instructions:

    sum (a - za) (b - zb) = sum a b - za sum b - zb sum a + K za zb

This is exact in 32-bit integers that wrap around. Sums over constant weights are computed once, at load time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.convolutions import convolution_windows, convolved, first_of_group
from autosched.graph.operators.elementwise import broadcast_shape, element
from autosched.graph.operators.images import Images
from autosched.graph.operators.products import product
from autosched.graph.operators.windows import Ints, Pads
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.window import stored, stretched

BYTES = ("int8", "uint8")
QUANTISED = (*BYTES, "int16", "uint16")
SUM = "int32"


@operator
def quantize(
    x: Tensor, scale: Tensor | None, zero: Tensor | None = None, axis: int = 1, dtype: str = "uint8", bits: int = 0
) -> Tensor:
    """x / scale, rounded half to even, plus zero, as the nearest number of `dtype`, or of its lowest `bits`. One scale
    and zero for all, or one for each index of `axis`; without a scale it is 1."""
    if dtype not in QUANTISED or (zero is not None and zero.dtype != dtype):
        zero_text = "" if zero is None else f" with a zero of {zero.dtype}"
        raise GraphError(f"quantised numbers are of {', '.join(QUANTISED)} but dtype is {dtype}{zero_text}")
    low, high = replace(DTYPES[dtype], bits=bits or DTYPES[dtype].bits).integer_range

    def at(*i: Expr) -> Expr:
        value = te.round(x[i] if scale is None else x[i] / _own(scale, x, i, axis))
        if zero is not None:
            value = value + _own(zero, x, i, axis).astype(value.dtype)
        return te.max(te.min(value, float(high)), float(low)).astype(dtype)

    made: Tensor = te.compute(x.shape, at, name="quantize")
    return made


@operator
def dequantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, axis: int = 1) -> Tensor:
    """(x - zero) * scale in the type of `scale`. One scale and zero for all, or one for each index of `axis`."""
    if DTYPES[x.dtype].kind == "b" or not DTYPES[scale.dtype].is_float:
        raise GraphError(f"quantised numbers are no bools and have a float as scale, not {x.dtype} and {scale.dtype}")

    def at(*i: Expr) -> Expr:
        value = x[i].astype(DTYPES[x.dtype].accumulates_in)
        if zero is not None:
            value = value - _own(zero, x, i, axis).astype(value.dtype)
        return value.astype(DTYPES[scale.dtype].computes_in) * _own(scale, x, i, axis)

    return stored(te.compute(x.shape, at, name="dequantize"), scale.dtype)


def _own(parameter: Tensor, x: Tensor, i: Sequence[Expr], axis: int) -> Expr:
    """The scale or zero of element `i` of `x`."""
    if math.prod(parameter.shape) == 1:
        return parameter[(0,) * len(parameter.shape)]
    if not -len(x.shape) <= axis < len(x.shape) or parameter.shape != (x.shape[axis],):
        raise GraphError(
            f"a scale or zero is one number, or one for each index of axis {axis} of {list(x.shape)}, but "
            f"{parameter.name} is {list(parameter.shape)}"
        )
    return parameter[i[axis]]


@operator
def matmul_integer(a: Tensor, b: Tensor, za: Tensor | None = None, zb: Tensor | None = None) -> Tensor:
    """(a - za) @ (b - zb) in int32. za is a number, or one for each row of `a`; zb, or one for each column of `b`."""
    _check_bytes(a, b, za, zb)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise GraphError(f"products of quantised numbers are of matrices but got {list(a.shape)} and {list(b.shape)}")
    sums, depth = product(a, b), a.shape[-1]
    k, r = te.reduce_axis(depth, name="k"), te.reduce_axis(depth, name="k")
    of_b = te.compute((*b.shape[:-2], b.shape[-1]), lambda *i: te.sum(b[(*i[:-1], k, i[-1])], axis=k), name="columns")
    of_a = te.compute(a.shape[:-1], lambda *i: te.sum(a[(*i, r)], axis=r), name="rows")

    def at(*i: Expr) -> Expr:
        column = of_b[(*stretched(b.shape[:-2], i[:-2]), i[-1])]
        row = of_a[(*stretched(a.shape[:-2], i[:-2]), i[-2])]
        zeros = (_of_side(za, sums, i, -2), _of_side(zb, sums, i, -1))
        return _moved(sums[i], zeros, (row, column), depth)

    return sums if za is None and zb is None else te.compute(sums.shape, at, name="moved")


def _of_side(zero: Tensor | None, result: Tensor, i: tuple[Expr, ...], dim: int) -> Expr | None:
    """The zero of a row or column, dimension `dim` of the result; of several products [..., M, 1] or [..., 1, N]."""
    if zero is None:
        return None
    if math.prod(zero.shape) == 1:
        return zero[(0,) * len(zero.shape)]
    if zero.shape == (result.shape[dim],):
        return zero[i[dim]]
    if len(zero.shape) < 2 or zero.shape[-3 - dim] != 1 or broadcast_shape(zero.shape, result.shape) != result.shape:
        what = "row" if dim == -2 else "column"
        raise GraphError(f"zeros of shape {list(zero.shape)} are not one for each {what} of {list(result.shape)}")
    zero_point: Expr = element(zero, i)
    return zero_point


@operator
def conv_integer(
    x: Tensor,
    w: Tensor,
    zx: Tensor | None = None,
    zw: Tensor | None = None,
    strides: Ints = (),
    pads: Pads = (),
    dilations: Ints = (),
    groups: int = 1,
    channels_last: bool = False,
) -> Tensor:
    """conv of x - zx and w - zw in int32, without a bias. zx is a number; zw, or one for each filter. What lies around
    the image is zx, which stands for 0."""
    _check_bytes(x, w, zx, zw)
    images = Images(channels_last)
    windows = convolution_windows(images, x, w, strides, pads, dilations, groups)
    if zx is not None and math.prod(zx.shape) != 1:
        raise GraphError(f"the zero of an image is one number but its shape is {list(zx.shape)}")
    zero = None if zx is None else zx[(0,) * len(zx.shape)]
    padded, (co, *inner) = windows.padded(x, 0 if zero is None else zero), w.shape
    sums = convolved(padded, w, windows, groups)
    channel, taps = te.reduce_axis(inner[0], name="ci"), windows.taps()
    k = [te.reduce_axis(size, name="k") for size in inner]

    def image(n: Expr, g: Expr, *position: Expr) -> Expr:
        value = windows.element(padded, n, g * inner[0] + channel, position, taps)
        return te.sum(value, axis=[channel, *taps])

    of_w = te.compute((co,), lambda o: te.sum(w[(o, *k)], axis=k), name="filters")
    of_x = te.compute(windows.shape(x.shape[0], groups), images.by(image), name="images")

    def at(*index: Expr) -> Expr:
        n, o, position = images.parts(index)
        zeros = (zero, None if zw is None else _own(zw, w, (o,), 0))
        group = first_of_group(o, co // groups, 1, groups)
        total = of_x[images.index(n, group, position)]
        return _moved(sums[index], zeros, (total, of_w[o]), math.prod(inner))

    return sums if zx is None and zw is None else te.compute(sums.shape, at, name="moved")


def _moved(value: Expr, zeros: tuple[Expr | None, Expr | None], sums: tuple[Expr, Expr], count: int) -> Expr:
    """The sum of (a - za) (b - zb) from `value`, that of a b, and the `sums` of a and b over `count` terms."""
    za, zb = (None if zero is None else zero.astype(SUM) for zero in zeros)
    if za is not None:
        value = value - za * sums[1]
    if zb is not None:
        value = value - zb * sums[0]
    return value if za is None or zb is None else value + za * zb * count


def _check_bytes(*operands: Tensor | None) -> None:
    wrong = [t.dtype for t in operands if t is not None and t.dtype not in BYTES]
    if wrong:
        raise GraphError(f"sums of products of quantised numbers are of {' and '.join(BYTES)}, not of {wrong[0]}")
