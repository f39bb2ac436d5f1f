"""Rules of normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.torch.builder import TraceBuilder
from autosched.graph.torch.rules import rule
from autosched.ir.dtype import DTYPES


def _normalized(
    b: TraceBuilder,
    x: Value,
    scale_and_bias: Sequence[Value | None],
    mean: Value | None,
    var: Value | None,
    epsilon: float,
) -> Value:
    """By the statistics that a channel has; scale and bias are 1 and 0 where there are none."""
    if mean is None or var is None:
        raise GraphError(f"{b.origin} takes its statistics from the batch")
    filling = zip(scale_and_bias, (1, 0), strict=True)
    scale, bias = (b.filled(mean.shape, number, mean.dtype) if t is None else t for t, number in filling)
    return b.emit("batch_norm", x, scale, bias, mean, var, epsilon=epsilon)


@rule("aten.batch_norm.default", "aten.native_batch_norm.default", "aten._native_batch_norm_legit.default")
def batch_norm(b: TraceBuilder, x: Value, *arguments: Any) -> Value | tuple[Value, None, None]:
    weight, bias, mean, var, training, _, epsilon = arguments[:7]
    if training:
        raise GraphError(f"{b.origin} is in training mode: call eval() of the module")
    made = _normalized(b, x, (weight, bias), mean, var, epsilon)
    return made if len(b.expected) == 1 else (made, None, None)


@rule("aten._native_batch_norm_legit_no_training.default")
def batch_norm_of_statistics(b: TraceBuilder, x: Value, *arguments: Any) -> tuple[Value, None, None]:
    weight, bias, mean, var, _, epsilon = arguments
    return _normalized(b, x, (weight, bias), mean, var, epsilon), None, None


@rule("aten._native_batch_norm_legit.no_stats")
def batch_norm_of_one(b: TraceBuilder, x: Value, *arguments: Any) -> tuple[Value, None, None]:
    """Recognise torch's instance norm, a batch norm of one sample with samples and channels as its channels."""
    weight, bias, _, _, epsilon = arguments
    if x.shape[0] != 1:
        raise GraphError(f"{b.origin} is in training mode: call eval() of the module")
    return b.emit("group_norm", x, weight, bias, groups=x.shape[1], epsilon=epsilon), None, None


@rule("aten.instance_norm.default")
def instance_norm(b: TraceBuilder, x: Value, *arguments: Any) -> Value:
    weight, bias, mean, var, use_input_stats, _, epsilon, _ = arguments
    if not use_input_stats:
        return _normalized(b, x, (weight, bias), mean, var, epsilon)
    return b.emit("group_norm", x, weight, bias, groups=x.shape[1], epsilon=epsilon)


@rule("aten.layer_norm.default")
def layer_norm(
    b: TraceBuilder,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    return b.emit("layer_norm", x, weight, bias, axes=len(normalized_shape), epsilon=eps)


@rule("aten.native_layer_norm.default")
def native_layer_norm(
    b: TraceBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    made = layer_norm(b, x, normalized_shape, weight, bias, eps)
    rank = len(x.shape)
    return made, *_statistics(b, x, tuple(range(rank - len(normalized_shape), rank)), eps)


def _statistics(b: TraceBuilder, x: Value, axes: tuple[int, ...], epsilon: float) -> tuple[Value, Value]:
    """Mean and inverse of the standard deviation, of which training makes gradients."""
    wide = b.cast(x, DTYPES[x.dtype].computes_in)
    mean = b.emit("reduce_mean", wide, axes=axes, keepdims=True)
    away = b.emit("sub", wide, mean)
    var = b.emit("reduce_mean", b.emit("mul", away, away), axes=axes, keepdims=True)
    scale = b.emit("rsqrt", b.emit("add", var, b.operand(epsilon, var.dtype)))
    return _as_expected(b, mean, b.expected[1]), _as_expected(b, scale, b.expected[2])


def _as_expected(b: TraceBuilder, x: Value, expected: Value | None) -> Value:
    return x if expected is None else b.cast(b.reshape(x, expected.shape), expected.dtype)


@rule("aten.rms_norm.default")
def rms_norm(
    b: TraceBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    """Without an epsilon it is that of the type torch computes in: of float32, where x is narrower."""
    if eps is None:
        eps = torch.finfo(torch.promote_types(getattr(torch, x.dtype), torch.float32)).eps
    return b.emit("rms_norm", x, weight, axes=len(normalized_shape), epsilon=eps)


@rule("aten._fused_rms_norm.default")
def fused_rms_norm(
    b: TraceBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None
) -> tuple[Value, Value]:
    """The inverse of the root of the mean square too."""
    made = rms_norm(b, x, normalized_shape, weight, eps)
    wide = b.cast(x, DTYPES[x.dtype].computes_in)
    rank = len(x.shape)
    axes = tuple(range(rank - len(normalized_shape), rank))
    mean = b.emit("reduce_mean", b.emit("mul", wide, wide), axes=axes, keepdims=True)
    number = torch.finfo(getattr(torch, wide.dtype)).eps if eps is None else eps
    scale = b.emit("rsqrt", b.emit("add", mean, b.operand(number, mean.dtype)))
    return made, _as_expected(b, scale, b.expected[1])


@rule("aten.group_norm.default")
def group_norm(
    b: TraceBuilder,
    x: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    return b.emit("group_norm", x, weight, bias, groups=num_groups, epsilon=eps)


@rule("aten.native_group_norm.default")
def native_group_norm(b: TraceBuilder, x: Value, *arguments: Any) -> tuple[Value, Value, Value]:
    weight, bias, _, _, _, groups, epsilon = arguments  # sizes, which x has
    made = group_norm(b, x, groups, weight, bias, epsilon)
    rows = b.reshape(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    return made, *_statistics(b, rows, (2,), epsilon)
