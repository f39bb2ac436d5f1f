"""Rules of backward operators, which only training has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.operators.gathers import UNCHECKED
from autosched.graph.torch.builder import TraceBuilder
from autosched.graph.torch.rules import enter_all, rule

Ints = tuple[int, ...]


def _numbers(given: Sequence[int], rank: int) -> Ints:
    return tuple(given) * rank if len(given) == 1 else tuple(given)


def _around(padding: Ints) -> tuple[tuple[int, int], ...]:
    return tuple((p, p) for p in padding)


@rule("aten.convolution_backward.default")
def convolution_backward(
    b: TraceBuilder, gradient: Value, x: Value, weight: Value, *numbers: Any
) -> tuple[Value | None, Value | None, Value | None]:
    """Return the requested gradients of input, weight and bias."""
    _, stride, padding, dilation, transposed, _, groups, wanted = numbers
    rank = len(x.shape) - 2
    strides, pads, dilations = (_numbers(n, rank) for n in (stride, padding, dilation))
    words: dict[str, Any] = {"strides": strides, "pads": _around(pads), "dilations": dilations, "groups": groups}
    of_input = of_weight = of_bias = None
    if wanted[0] and transposed:
        of_input = b.emit("conv", gradient, weight, None, **words)
    elif wanted[0]:
        made = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(gradient.shape[2:], strides, pads, dilations, weight.shape[2:], strict=True)
        ]
        missing = tuple(n - m for n, m in zip(x.shape[2:], made, strict=True))
        of_input = b.emit("conv_transpose", gradient, weight, None, output_padding=missing, **words)
    if wanted[1]:
        image, moved = (gradient, x) if transposed else (x, gradient)
        of_weight = _of_weight(b, image, moved, weight.shape, groups, (strides, pads, dilations))
    if wanted[2]:
        axes = (0, *range(2, rank + 2))
        of_bias = b.emit("reduce_sum", gradient, axes=axes, keepdims=False)
    return of_input, of_weight, of_bias


def _of_weight(
    b: TraceBuilder, image: Value, moved: Value, shape: Ints, groups: int, numbers: tuple[Ints, Ints, Ints]
) -> Value:
    """What `moved`, as large as the result of a convolution, says of the weight that it was computed with from
    `image`: a convolution over samples, in which strides and dilations change places."""
    strides, pads, dilations = numbers
    n, space = image.shape[0], image.shape[2:]
    channels = image.shape[1] // groups
    parts = b.reshape(image, (n, groups, channels, *space))
    rows = b.transpose(parts, (2, 1, 0, *range(3, 3 + len(space))))
    rows = b.reshape(rows, (channels, groups * n, *space))
    window = b.transpose(moved, (1, 0, *range(2, 2 + len(space))))
    words: dict[str, Any] = {"strides": dilations, "pads": _around(pads), "dilations": strides, "groups": groups}
    made = b.emit("conv", rows, window, None, **words)
    for axis, size in enumerate(shape[2:], 2):  # strides that do not divide give further taps
        made = b.slice(made, axis, 0, size)
    return b.transpose(made, (1, 0, *range(2, 2 + len(space))))


def max_pool_backward_of(rank: int) -> Callable[..., Value]:
    def backward(b: TraceBuilder, gradient: Value, x: Value, *numbers: Any) -> Value:
        """Each element goes to where its maximum was, which max_pool has found."""
        places = numbers[-1]
        rows, length = math.prod(x.shape[:-rank]), math.prod(x.shape[-rank:])
        count = math.prod(gradient.shape[-rank:])
        flat, ids = (b.reshape(value, (rows, count)) for value in (gradient, places))
        zero = b.filled((rows, length), 0, gradient.dtype)
        made = b.emit("scatter_elements", zero, ids, flat, axis=1, reduction="add", indexing=UNCHECKED)
        return b.reshape(made, x.shape)

    return backward


enter_all({f"aten.max_pool{n}d_with_indices_backward.default": max_pool_backward_of(n) for n in (2, 3)})


@rule("aten.avg_pool2d_backward.default")
def avg_pool_backward(b: TraceBuilder, gradient: Value, x: Value, *numbers: Any) -> Value:
    """A transposed convolution of each channel with a window of equal numbers."""
    kernel, stride, padding, ceil_mode, count_include_pad, divisor = numbers
    rank = 2
    sizes, pads = _numbers(kernel, rank), _numbers(padding, rank)
    strides = _numbers(stride, rank) if stride else sizes
    if ceil_mode or divisor is not None or (any(pads) and not count_include_pad):
        raise GraphError(f"{b.origin}: windows that are divided by different numbers")
    planes = math.prod(x.shape[:-rank])
    made = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(gradient.shape[-rank:], strides, pads, sizes, strict=True)]
    missing = tuple(n - m for n, m in zip(x.shape[-rank:], made, strict=True))
    weight = b.filled((1, 1, *sizes), 1.0 / math.prod(sizes), gradient.dtype)
    image = b.reshape(gradient, (planes, 1, *gradient.shape[-rank:]))
    words: dict[str, Any] = {"strides": strides, "pads": _around(pads), "dilations": (1,) * rank, "groups": 1}
    spread = b.emit("conv_transpose", image, weight, None, output_padding=missing, **words)
    return b.reshape(spread, x.shape)


@rule("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward(
    b: TraceBuilder, gradient: Value, query: Value, key: Value, value: Value, *numbers: Any, **options: Any
) -> tuple[Value, Value, Value]:
    """By the logarithms of the sums of exponentials, which the forward pass keeps."""
    result, sums, dropout_p, is_causal = numbers
    if dropout_p != 0.0:
        raise GraphError(f"{b.origin} has dropout {dropout_p}: call eval() of the module")
    mask, heads = options.get("attn_mask"), key.shape[1]
    key, value = (with_heads(b, x, query.shape[1]) for x in (key, value))
    scores, scale = attention_scores(b, query, key, is_causal, mask, options.get("scale"))
    shares = b.emit("exp", b.emit("sub", scores, b.reshape(b.cast(sums, scores.dtype), (*sums.shape, 1))))
    of_value = b.emit("matmul", _turned(b, shares), gradient)
    of_shares = b.emit("matmul", gradient, _turned(b, value))
    total = b.emit("reduce_sum", b.emit("mul", gradient, result), axes=(len(result.shape) - 1,), keepdims=True)
    of_scores = b.emit("mul", shares, b.emit("sub", of_shares, total))
    of_scores = b.emit("mul", of_scores, b.operand(scale, of_scores.dtype))
    of_key = b.emit("matmul", _turned(b, of_scores), query)
    return b.emit("matmul", of_scores, key), _of_heads(b, of_key, heads), _of_heads(b, of_value, heads)


def with_heads(b: TraceBuilder, x: Value, heads: int) -> Value:
    """Keys or values that several heads share, once for each of them."""
    n, own, *rest = x.shape
    if own == heads:
        return x
    wide = b.expand(b.reshape(x, (n, own, 1, *rest)), (n, own, heads // own, *rest))
    return b.reshape(wide, (n, heads, *rest))


def _of_heads(b: TraceBuilder, gradient: Value, own: int) -> Value:
    """Summed over the heads that share keys or values."""
    n, heads, *rest = gradient.shape
    if own == heads:
        return gradient
    return b.emit("reduce_sum", b.reshape(gradient, (n, own, heads // own, *rest)), axes=(2,), keepdims=False)


def attention_scores(
    b: TraceBuilder, query: Value, key: Value, is_causal: bool, mask: Value | None, scale: float | None
) -> tuple[Value, float]:
    """Return the operand of attention's softmax, and the scale in it."""
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    scores = b.emit("matmul", query, _turned(b, key))
    scores = b.emit("mul", scores, b.operand(factor, scores.dtype))
    nothing = b.operand(-math.inf, scores.dtype)
    if mask is not None and mask.dtype == "bool":
        scores = b.emit("where", mask, scores, nothing)
    elif mask is not None:
        scores = b.emit("add", scores, b.cast(mask, scores.dtype))
    if is_causal:
        allowed = b.emit("trilu", b.filled(scores.shape[-2:], 1, "bool"), k=0, upper=False)
        scores = b.emit("where", allowed, scores, nothing)
    return scores, factor


def _turned(b: TraceBuilder, x: Value) -> Value:
    rank = len(x.shape)
    return b.transpose(x, (*range(rank - 2), rank - 1, rank - 2))
