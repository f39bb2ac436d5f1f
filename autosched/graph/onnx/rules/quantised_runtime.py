"""Rules of quantised operators of ONNX Runtime's domain, which the standard lacks."""

from __future__ import annotations

from collections.abc import Sequence

from autosched.graph.onnx.rules.microsoft import DOMAIN
from autosched.graph.onnx.rules.quantised import dynamically_quantised, integer_product, requantised
from autosched.graph.onnx.rules.windows import window_of
from autosched.graph.onnx.site import Results, Site, refuse, rule


def floats(site: Site, n: int) -> str:
    """Dequantise input `n`, whose scale and zero are the next inputs."""
    return site.emit("dequantize", site.input(n), site.input(n + 1), site.optional(n + 2), axis=0)


def bytes_of(site: Site, x: str, n: int, dtype: str) -> str:
    """Quantise with the scale and zero that are inputs `n` and `n + 1`; without a zero to the type `dtype`."""
    zero = site.optional(n + 1)
    return site.emit("quantize", x, site.input(n), zero, axis=0, dtype=dtype if zero is None else site.dtype(zero))


@rule("QLinearAdd", "QLinearMul", domain=DOMAIN)
def arithmetic(site: Site) -> Results:
    y = site.emit(site.operator.removeprefix("QLinear").lower(), floats(site, 0), floats(site, 3))
    return bytes_of(site, y, 6, site.dtype(site.input(0)))


@rule("QLinearWhere", domain=DOMAIN)
def where(site: Site) -> Results:
    y = site.emit("where", site.input(0), floats(site, 1), floats(site, 4))
    return bytes_of(site, y, 7, site.dtype(site.input(1)))


def of_one(site: Site, operator: str, **attributes: float | tuple[int, ...] | bool) -> Results:
    """Apply an operator between dequantisation and quantisation."""
    return bytes_of(site, site.emit(operator, floats(site, 0), **attributes), 3, site.dtype(site.input(0)))


@rule("QLinearSigmoid", domain=DOMAIN)
def sigmoid(site: Site) -> Results:
    return of_one(site, "sigmoid")


@rule("QLinearLeakyRelu", domain=DOMAIN)
def leaky_relu(site: Site) -> Results:
    return of_one(site, "leaky_relu", alpha=site.attribute("alpha", 0.01))


@rule("QLinearSoftmax", domain=DOMAIN)
def softmax(site: Site) -> Results:
    """Up to opset 12 of all axes from one on."""
    rank = site.rank(site.input(0))
    axis = site.axis(site.attribute("axis", -1), rank)
    refuse(site.attribute("opset", 13) < 13 and axis != rank - 1, f"the softmax of all axes from {axis} on")
    return of_one(site, "softmax", axis=axis)


@rule("QLinearReduceMean", domain=DOMAIN)
def reduce_mean(site: Site) -> Results:
    rank = site.rank(site.input(0))
    axes = site.axes(site.attribute("axes") or range(rank), rank)
    return of_one(site, "reduce_mean", axes=tuple(sorted(axes)), keepdims=bool(site.attribute("keepdims", 1)))


@rule("QLinearGlobalAveragePool", domain=DOMAIN)
def global_average_pool(site: Site) -> Results:
    first = 1 if site.attribute("channels_last", 0) else 2
    count = site.rank(site.input(0)) - 2
    return of_one(site, "reduce_mean", axes=tuple(range(first, first + count)), keepdims=True)


@rule("QLinearAveragePool", domain=DOMAIN)
def average_pool(site: Site) -> Results:
    refuse(bool(site.attribute("channels_last", 0)), "an image with its channels last")
    window = window_of(site, site.input(0), site.attribute("kernel_shape"))
    flags = {name: bool(site.attribute(name, 0)) for name in ("ceil_mode", "count_include_pad")}
    return of_one(site, "avg_pool", **vars(window), **flags)


@rule("QLinearConcat", domain=DOMAIN)
def concat(site: Site) -> Results:
    """Scale and zero of the result first, then the parts with theirs."""
    parts = [floats(site, n) for n in range(2, len(site.inputs), 3)]
    axis = site.axis(site.attribute("axis"), site.rank(parts[0]))
    joined = parts[0] if len(parts) == 1 else site.emit("concat", *parts, axis=axis)
    return bytes_of(site, joined, 0, site.dtype(site.input(2)))


@rule("QGemm", domain=DOMAIN)
def gemm(site: Site) -> Results:
    """Bytes a and b with scales and zeros, and c in steps of both scales; bytes, or floats where no scale is given."""
    a, b = (turned(site, site.input(n), f"trans{side}") for n, side in ((0, "A"), (3, "B")))
    sums, added = site.emit("matmul_integer", a, b, site.input(2), site.input(5)), site.optional(6)
    scale, alpha = site.emit("mul", site.input(1), site.input(4)), site.attribute("alpha", 1.0)
    if alpha != 1.0:
        scale = site.emit("mul", scale, site.constant(alpha, site.dtype(scale)))
    sums = sums if added is None else site.emit("add", sums, added)
    if site.optional(7) is None:
        return site.emit("mul", site.cast(sums, site.dtype(scale)), scale)
    return requantised(site, sums, scale, site.input(7), site.input(8))


def turned(site: Site, x: str, attribute: str) -> str:
    return site.emit("transpose", x, perm=(1, 0)) if site.attribute(attribute, 0) else x


@rule("MatMulIntegerToFloat", domain=DOMAIN)
def matmul_to_float(site: Site) -> Results:
    """a, b, their scales, their zeros, a bias."""
    sums = integer_product(site, site.input(0), site.input(1), site.optional(4), site.optional(5))
    return with_scale(site, sums, [site.input(2), site.input(3)], site.optional(6))


@rule("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_matmul(site: Site) -> Results:
    """Operands: a as floats, which is quantised dynamically; b with its scale and zero; a bias."""
    bytes_, scale, own = dynamically_quantised(site, site.input(0))
    sums = integer_product(site, bytes_, site.input(1), own, site.optional(3))
    return with_scale(site, sums, [scale, site.input(2)], site.optional(4))


def with_scale(site: Site, sums: str, scales: Sequence[str], bias: str | None) -> str:
    """Scale sums of 32 bits by both scales and add a bias."""
    result = site.emit("mul", site.cast(sums, site.dtype(scales[0])), site.emit("mul", *scales))
    return result if bias is None else site.emit("add", result, bias)
