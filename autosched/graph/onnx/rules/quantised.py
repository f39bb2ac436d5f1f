"""Rules of quantised operators of the standard."""

from __future__ import annotations

from dataclasses import replace

from autosched.errors import GraphError
from autosched.graph.onnx.files import type_label, type_named
from autosched.graph.onnx.held_types import BITS, HELD_IN
from autosched.graph.onnx.rules.convolutions import kernel_of
from autosched.graph.onnx.rules.elementwise import cast_to
from autosched.graph.onnx.rules.windows import window_of
from autosched.graph.onnx.site import Results, Site, refuse, rule
from autosched.ir.dtype import DTYPES


@rule("QuantizeLinear")
def quantize(site: Site) -> Results:
    saturate = bool(site.attribute("saturate", 1))
    refuse(site.attribute("precision", 0) not in (0, 1), "another precision than float32")
    x, scale, zero, to = site.input(0), site.input(1), site.optional(2), site.attribute("output_dtype", 0)
    name = type_named(to) if to else "uint8" if zero is None else site.type_of(zero)
    if name is None:
        raise GraphError(f"quantising to the type {type_label(to)} is not supported")
    dtype, bits, block = HELD_IN.get(name, name), BITS.get(name, 0), site.attribute("block_size", 0)
    if not block and DTYPES[dtype].is_integer:
        narrow = {"bits": bits} if bits else {}
        axis = quantised_axis(site, x, scale)
        return site.typed(site.emit("quantize", x, scale, zero, axis=axis, dtype=dtype, **narrow), name)
    axis = site.axis(site.attribute("axis", 1), site.rank(x)) if block else quantised_axis(site, x, scale)

    def spread(parameter: str) -> str:
        return of_blocks(site, parameter, x, axis, block) if block else of_axis(site, parameter, x, axis)

    value = site.emit("div", x, spread(scale))
    if DTYPES[dtype].is_float:  # whose zero is 0
        return cast_to(site, value, name, saturate)
    value = site.emit("round", value)
    if zero is not None:
        value = site.emit("add", value, spread(site.cast(zero, site.dtype(x))))
    low, high = replace(DTYPES[dtype], bits=bits or DTYPES[dtype].bits).integer_range
    return site.typed(site.cast(site.emit("clip", value, low=float(low), high=float(high)), dtype), name)


def of_axis(site: Site, parameter: str, x: str, axis: int) -> str:
    """Return one number, or one for each index of an axis of `x`, in a shape that broadcasts to that of `x`."""
    if site.shape(parameter) in ((), (1,)):
        return site.reshape(parameter, ())
    return site.reshape(parameter, (site.shape(x)[axis], *(1,) * (site.rank(x) - axis - 1)))


@rule("DequantizeLinear")
def dequantize(site: Site) -> Results:
    x, scale, zero, block = site.input(0), site.input(1), site.optional(2), site.attribute("block_size", 0)
    if to := site.attribute("output_dtype", 0):
        name = type_named(to)
        if name is None or name in HELD_IN or not DTYPES[name].is_float:
            raise GraphError(f"numbers are dequantised to floats, but output_dtype is {type_label(to)}")
        scale = site.cast(scale, name)
    if not block:
        return site.emit("dequantize", x, scale, zero, axis=quantised_axis(site, x, scale))
    axis = site.axis(site.attribute("axis", 1), site.rank(x))
    value = site.cast(x, site.dtype(scale))
    if zero is not None:
        value = site.emit("sub", value, of_blocks(site, site.cast(zero, site.dtype(scale)), x, axis, block))
    return site.emit("mul", value, of_blocks(site, scale, x, axis, block))


def of_blocks(site: Site, name: str, x: str, axis: int, block: int) -> str:
    """Repeat a value per block along an axis of `x` for each element."""
    shape, wanted = site.shape(name), site.shape(x)
    blocks = -(-wanted[axis] // block)
    if shape != (*wanted[:axis], blocks, *wanted[axis + 1 :]):
        raise GraphError(f"{list(shape)} is not one for each block of {block} along axis {axis} of {list(wanted)}")
    each = site.reshape(name, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = site.emit("expand", each, shape=(*shape[: axis + 1], block, *shape[axis + 1 :]))
    return site.part(site.reshape(wide, (*shape[:axis], blocks * block, *shape[axis + 1 :])), axis, 0, wanted[axis])


def quantised_axis(site: Site, x: str, scale: str) -> int:
    """Return the axis with a scale per index; any axis if there is one scale."""
    axis = site.attribute("axis", 1)
    return site.axis(axis, site.rank(x)) if site.shape(scale) not in ((), (1,)) else 0


@rule("DynamicQuantizeLinear")
def quantize_dynamically(site: Site) -> Results:
    return dynamically_quantised(site, site.input(0))


def dynamically_quantised(site: Site, x: str) -> tuple[str, str, str]:
    """x in bytes, the scale that its numbers and 0 need, and the byte that stands for 0. The scale of zeros is 1, as in
    ONNX Runtime, where the standard's definition divides by 0."""
    axes, number = tuple(range(site.rank(x))), site.dtype(x)
    zero = site.constant(0, number)
    high = site.emit("maximum", site.emit("reduce_max", x, axes=axes, keepdims=False), zero)
    low = site.emit("minimum", site.emit("reduce_min", x, axes=axes, keepdims=False), zero)
    step = site.emit("div", site.emit("sub", high, low), site.constant(255, number))
    scale = site.emit("where", site.emit("equal", high, low), site.constant(1, number), step)
    shift = site.emit("round", site.emit("div", site.emit("neg", low), scale))
    own = site.cast(site.emit("clip", shift, low=0.0, high=255.0), "uint8")
    return site.emit("quantize", x, scale, own, axis=0, dtype="uint8"), scale, own


@rule("MatMulInteger")
def matmul_integer(site: Site) -> Results:
    return integer_product(site, site.input(0), site.input(1), site.optional(2), site.optional(3))


def integer_product(site: Site, a: str, b: str, za: str | None, zb: str | None) -> str:
    """(a - za) @ (b - zb) in 32 bits; a vector is a matrix of one row, or of one column."""
    row, column = site.rank(a) == 1, site.rank(b) == 1
    left = site.reshape(a, (1, *site.shape(a))) if row else a
    right = site.reshape(b, (*site.shape(b), 1)) if column else b
    sums = site.emit("matmul_integer", left, right, za, zb)
    *lead, m, n = site.shape(sums)
    return site.reshape(sums, (*lead, *(() if row else (m,)), *(() if column else (n,))))


@rule("QLinearMatMul")
def linear_matmul(site: Site) -> Results:
    """a, its scale and zero, b, its scale and zero, those of the result."""
    a, sa, za, b, sb, zb, sy, zy = (site.input(n) for n in range(8))
    sums = integer_product(site, a, b, za, zb)
    return requantised(site, sums, site.emit("mul", sa, sb), sy, zy)


def requantised(site: Site, sums: str, scale: str, result_scale: str, result_zero: str) -> str:
    """Sums of 32 bits as integers of the result."""
    floats = site.emit("mul", site.cast(sums, site.dtype(scale)), scale)
    return site.emit("quantize", floats, result_scale, result_zero, axis=0, dtype=site.dtype(result_zero))


def convolved(site: Site, x: str, w: str, zx: str | None, zw: str | None) -> str:
    window = window_of(site, x, kernel_of(site, w))
    groups = site.attribute("group", 1)
    return site.emit("conv_integer", x, w, zx, zw, groups=groups, **window.strides_pads_dilations)


@rule("ConvInteger")
def conv_integer(site: Site) -> Results:
    return convolved(site, site.input(0), site.input(1), site.optional(2), site.optional(3))


@rule("QLinearConv")
def linear_conv(site: Site) -> Results:
    """x, its scale and zero, w, its scale and zero, those of the result, the bias."""
    x, sx, zx, w, sw, zw, sy, zy = (site.input(n) for n in range(8))
    sums, bias = convolved(site, x, w, zx, zw), site.optional(8)
    channel = (-1,) + (1,) * (site.rank(x) - 2)
    if bias is not None:
        sums = site.emit("add", sums, site.reshape(bias, (site.shape(bias)[0], *channel[1:])))
    if site.rank(sw) == 1 and site.shape(sw)[0] > 1:
        sw = site.reshape(sw, (site.shape(sw)[0], *channel[1:]))
    return requantised(site, sums, site.emit("mul", sx, sw), sy, zy)
