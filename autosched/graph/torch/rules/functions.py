"""Rules of elementwise functions and activations. Integers are converted to floats first, as in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.torch.builder import Operand, TraceBuilder
from autosched.graph.torch.rules import enter_all, rule
from autosched.graph.torch.rules.arithmetic import scaled
from autosched.ir.dtype import DTYPES


def in_result_type(operator: str, **attributes: Any) -> Callable[..., Value]:
    def apply(b: TraceBuilder, x: Value) -> Value:
        return b.emit(operator, b.cast(x, b.result.dtype), **attributes)

    return apply


_SAME_NAME = (
    *("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan", "sinh"),
    *("cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid", "relu", "floor", "ceil", "round"),
    *("bitwise_not", "silu", "mish", "log1p", "expm1"),
)
enter_all({f"aten.{name}.default": in_result_type(name) for name in _SAME_NAME})
enter_all(
    {
        "aten.hardsigmoid.default": in_result_type("hard_sigmoid", alpha=1.0 / 6.0, beta=0.5),
        "aten.hardswish.default": in_result_type("hard_swish"),
        "aten.relu6.default": in_result_type("clip", low=0.0, high=6.0),
        "aten.sign.default": in_result_type("sign", keeps_nan=False),
        "aten.square.default": lambda b, x: b.emit("mul", x, x),
        "aten.logical_not.default": lambda b, x: b.emit("logical_not", b.cast(x, "bool")),
        "aten.isnan.default": lambda b, x: b.emit("isnan", x),
        "aten.isinf.default": lambda b, x: b.emit("isinf", x),
        "aten.exp2.default": lambda b, x: b.emit("exp", scaled(b, x, math.log(2.0))),
        "aten.log2.default": lambda b, x: scaled(b, in_result_type("log")(b, x), 1.0 / math.log(2.0)),
        "aten.log10.default": lambda b, x: scaled(b, in_result_type("log")(b, x), 1.0 / math.log(10.0)),
    }
)


@rule("aten.trunc.default", "aten.fix.default")
def trunc(b: TraceBuilder, x: Value) -> Value:
    """Rounded to zero."""
    below = b.emit("less", x, b.operand(0, x.dtype))
    return b.emit("where", below, b.emit("ceil", x), b.emit("floor", x)) if DTYPES[x.dtype].is_float else x


@rule("aten.frac.default")
def frac(b: TraceBuilder, x: Value) -> Value:
    return b.emit("sub", x, trunc(b, x))


@rule("aten.gelu.default")
def gelu(b: TraceBuilder, x: Value, approximate: str = "none") -> Value:
    return b.emit("gelu", x, approximate=approximate)


@rule("aten.leaky_relu.default")
def leaky_relu(b: TraceBuilder, x: Value, negative_slope: float = 0.01) -> Value:
    return b.emit("leaky_relu", x, alpha=float(negative_slope))


@rule("aten.elu.default")
def elu(b: TraceBuilder, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    """scale * (x, or alpha * (exp(input_scale * x) - 1) below 0)."""
    if input_scale == 1.0:
        return scaled(b, b.emit("elu", x, alpha=float(alpha)), scale)
    if math.isclose(alpha * input_scale, 1.0):
        return scaled(b, b.emit("celu", x, alpha=float(alpha)), scale)
    raise GraphError(f"{b.origin}: elu with alpha {alpha} and input_scale {input_scale} has no operator")


@rule("aten.celu.default")
def celu(b: TraceBuilder, x: Value, alpha: float = 1.0) -> Value:
    return b.emit("celu", x, alpha=float(alpha))


@rule("aten.selu.default")
def selu(b: TraceBuilder, x: Value) -> Value:
    return elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@rule("aten.softplus.default")
def softplus(b: TraceBuilder, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """torch goes over to x itself where beta * x is above the threshold; at 20 the difference is below rounding."""
    if threshold < 20:
        raise GraphError(f"{b.origin}: softplus with the threshold {threshold}, which is below 20")
    return scaled(b, b.emit("softplus", scaled(b, x, beta)), 1.0 / beta)


@rule("aten.threshold.default")
def threshold(b: TraceBuilder, x: Value, threshold: float, value: float) -> Value:
    kind = x.dtype
    return b.emit("where", b.emit("greater", x, b.operand(threshold, kind)), x, b.operand(value, kind))


@rule("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(b: TraceBuilder, x: Value, weight: Value) -> Value:
    """One slope for each channel, which is the second dimension."""
    if len(weight.shape) == 1 and len(x.shape) > 1:
        weight = b.reshape(weight, (*weight.shape, *(1,) * (len(x.shape) - 2)))
    return b.emit("prelu", x, weight)


@rule("aten.hardtanh.default")
def hardtanh(b: TraceBuilder, x: Value, min_val: float = -1, max_val: float = 1) -> Value:
    return clamp(b, x, min_val, max_val)


@rule("aten.clamp.default", "aten.clamp.Tensor")
def clamp(b: TraceBuilder, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    """torch's names of the arguments."""
    made = b.cast(x, b.result.dtype)
    if not isinstance(min, Value) and not isinstance(max, Value):
        return b.emit("clip", made, low=min, high=max)
    if min is not None:
        made = b.emit("maximum", made, b.operand(min, made.dtype))
    return made if max is None else b.emit("minimum", made, b.operand(max, made.dtype))


@rule("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(b: TraceBuilder, x: Value, min: Operand) -> Value:
    return clamp(b, x, min)


@rule("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(b: TraceBuilder, x: Value, max: Operand) -> Value:
    return clamp(b, x, None, max)
