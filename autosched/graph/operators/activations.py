"""Activation functions, as ONNX and torch define them."""

from __future__ import annotations

import math

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators.elementary import expm1_negative, log1p_unit
from autosched.graph.operators.elementwise import of_elements
from autosched.ir.expr import Expr

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@of_elements
def relu(x: Expr) -> Expr:
    """max(x, 0); NaN stays."""
    return te.max(x, 0)


@of_elements
def prelu(x: Expr, slope: Expr) -> Expr:
    """x, `slope` times that below 0."""
    return te.select(x < 0, slope * x, x)


@of_elements
def leaky_relu(x: Expr, alpha: float = 0.01) -> Expr:
    """x, `alpha` times that below 0."""
    return te.select(x < 0.0, x * alpha, x)


@of_elements
def thresholded_relu(x: Expr, alpha: float = 1.0) -> Expr:
    """x above `alpha`, else 0."""
    return te.select(x > alpha, x, 0)


@of_elements
def clip(x: Expr, low: float | None = None, high: float | None = None) -> Expr:
    """x, but at least `low` and at most `high`; NaN stays."""
    x = x if low is None else te.max(x, te.const(low, x.dtype))
    return x if high is None else te.min(x, te.const(high, x.dtype))


@of_elements
def silu(x: Expr) -> Expr:
    """x sigmoid(x)."""
    return x * te.sigmoid(x)


@of_elements
def gelu(x: Expr, approximate: str = "none") -> Expr:
    """x/2 (1 + erf(x / sqrt 2)), or what comes near it by tanh."""
    if approximate not in ("none", "tanh"):
        raise GraphError(f'approximate of gelu is "none" or "tanh" but got {approximate!r}')
    if approximate == "none":
        return x * 0.5 * (te.erf(x * math.sqrt(0.5)) + 1.0)
    return x * 0.5 * (te.tanh((x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)) + 1.0)


@of_elements
def softplus(x: Expr) -> Expr:
    """log(1 + exp(x))."""
    return te.max(x, 0.0) + log1p_unit(te.exp(-te.abs(x)))


@of_elements
def softsign(x: Expr) -> Expr:
    """x / (1 + |x|)."""
    return x / (te.abs(x) + 1.0)


@of_elements
def mish(x: Expr) -> Expr:
    """x tanh(softplus(x)) = x n / (n + 2) with n = e (e + 2), e = exp(x); both by exp(-2 x) where x is positive."""
    e = te.exp(-te.abs(x))
    positive = x >= 0.0
    part = te.select(positive, e * 2.0 + 1.0, e * (e + 2.0))
    return x * (part / (part + te.select(positive, e * e * 2.0, 2.0)))


def _ramp(x: Expr, alpha: float, beta: float) -> Expr:
    return te.max(te.min(x * alpha + beta, 1.0), 0.0)


@of_elements
def hard_sigmoid(x: Expr, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    """alpha x + beta within 0 .. 1."""
    return _ramp(x, alpha, beta)


@of_elements
def hard_swish(x: Expr) -> Expr:
    """x (x / 6 + 1/2 within 0 .. 1)."""
    return x * _ramp(x, 1.0 / 6.0, 0.5)


@of_elements
def elu(x: Expr, alpha: float = 1.0) -> Expr:
    """x, alpha (exp(x) - 1) below 0."""
    return te.select(x > 0.0, x, expm1_negative(x) * alpha)


@of_elements
def selu(x: Expr, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Expr:
    """gamma elu(x)."""
    return te.select(x > 0.0, x, expm1_negative(x) * alpha) * gamma


@of_elements
def celu(x: Expr, alpha: float = 1.0) -> Expr:
    """x, alpha (exp(x / alpha) - 1) below 0."""
    return te.select(x > 0.0, x, expm1_negative(x / alpha) * alpha)
