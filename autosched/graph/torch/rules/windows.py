"""Rules of convolutions, pooling and resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.operators.resize import quotient
from autosched.graph.torch.builder import TraceBuilder
from autosched.graph.torch.rules import enter_all, rule

Sizes = int | Sequence[int]
Pads = tuple[tuple[int, int], ...]


def _each(rank: int, sizes: Sizes) -> tuple[int, ...]:
    """One number for each dimension of space; torch gives one for all, or all."""
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return given * rank if len(given) == 1 else given


def _around(rank: int, padding: Sizes) -> Pads:
    return tuple((p, p) for p in _each(rank, padding))


def _batched(b: TraceBuilder, x: Value, rank: int) -> Value:
    """torch takes one image without its batch."""
    return b.reshape(x, (1, *x.shape)) if len(x.shape) == rank + 1 else x


def _same_pads(weight: Value, dilation: Sizes) -> Pads:
    """So that the size stays; an odd one is added at the end, as torch does."""
    totals = [d * (k - 1) for d, k in zip(_each(len(weight.shape) - 2, dilation), weight.shape[2:], strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)


def conv_of(rank: int) -> Callable[..., Value]:
    def conv(b: TraceBuilder, x: Value, weight: Value, bias: Value | None, *numbers: Any) -> Value:
        stride, padding, dilation, groups = numbers
        image = _batched(b, x, rank)
        if padding == "same":
            pads = _same_pads(weight, dilation)
        else:
            pads = _around(rank, 0 if padding == "valid" else padding)
        made = b.emit(
            "conv",
            *(image, weight, bias),
            strides=_each(rank, stride),
            pads=pads,
            dilations=_each(rank, dilation),
            groups=groups,
        )
        return b.reshape(made, b.result.shape)

    return conv


def conv_transpose_of(rank: int) -> Callable[..., Value]:
    def conv(b: TraceBuilder, x: Value, weight: Value, bias: Value | None, *numbers: Any) -> Value:
        stride, padding, output_padding, groups, dilation = numbers
        image = _batched(b, x, rank)
        made = b.emit(
            "conv_transpose",
            *(image, weight, bias),
            strides=_each(rank, stride),
            pads=_around(rank, padding),
            dilations=_each(rank, dilation),
            groups=groups,
            output_padding=_each(rank, output_padding),
        )
        return b.reshape(made, b.result.shape)

    return conv


enter_all({f"aten.conv{n}d.{kind}": conv_of(n) for n in (1, 2, 3) for kind in ("default", "padding")})
enter_all(
    {
        "aten.conv_transpose1d.default": conv_transpose_of(1),
        "aten.conv_transpose2d.input": conv_transpose_of(2),
        "aten.conv_transpose3d.input": conv_transpose_of(3),
    }
)


@rule("aten.convolution.default")
def convolution(b: TraceBuilder, x: Value, weight: Value, bias: Value | None, *numbers: Any) -> Value:
    """All convolutions, as torch.compile gives them."""
    stride, padding, dilation, transposed, output_padding, groups = numbers
    rank = len(weight.shape) - 2
    if transposed:
        return conv_transpose_of(rank)(b, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv_of(rank)(b, x, weight, bias, stride, padding, dilation, groups)


def max_pool_words(rank: int, kernel_size: Sizes, *numbers: Any) -> dict[str, Any]:
    stride, padding, dilation, ceil_mode = numbers
    kernel = _each(rank, kernel_size)
    return {
        "kernel": kernel,
        "strides": _each(rank, stride) or kernel,
        "pads": _around(rank, padding),
        "dilations": _each(rank, dilation),
        "ceil_mode": ceil_mode,
    }


def max_pool_of(rank: int) -> Callable[..., Value]:
    def max_pool(b: TraceBuilder, x: Value, *numbers: Any) -> Value:
        made = b.emit("max_pool", _batched(b, x, rank), **max_pool_words(rank, *numbers))
        return b.reshape(made, b.result.shape)

    return max_pool


def max_pool_with_indices_of(rank: int) -> Callable[..., tuple[Value, Value]]:
    """The values, and where each is in its image: training asks for that, inference does not."""

    def max_pool(b: TraceBuilder, x: Value, *numbers: Any) -> tuple[Value, Value]:
        values = b.emit("max_pool", _batched(b, x, rank), **max_pool_words(rank, *numbers))
        _, places = b.emit_many("max_pool_indices", (_batched(b, x, rank),), 2, **max_pool_words(rank, *numbers))
        return b.reshape(values, b.result.shape), b.reshape(places, b.result.shape)

    return max_pool


def avg_pool_of(rank: int) -> Callable[..., Value]:
    def avg_pool(b: TraceBuilder, x: Value, kernel_size: Sizes, *numbers: Any) -> Value:
        stride, padding, ceil_mode, count_include_pad, *divisor = numbers  # the last one not in one dimension
        own = next((n for n in divisor if n is not None), None)
        if own is not None and ceil_mode:
            raise GraphError(f"{b.origin}: avg_pool with the divisor {own} and windows over the end of the image")
        image = _batched(b, x, rank)
        kernel = _each(rank, kernel_size)
        made = b.emit(
            "avg_pool",
            image,
            kernel=kernel,
            strides=_each(rank, stride) or kernel,
            pads=_around(rank, padding),
            dilations=(1,) * rank,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad or own is not None,
        )
        if own is not None:
            made = b.emit("mul", made, b.operand(math.prod(kernel) / own, made.dtype))
        return b.reshape(made, b.result.shape)

    return avg_pool


enter_all({f"aten.max_pool{n}d.default": max_pool_of(n) for n in (1, 2, 3)})
enter_all({f"aten.max_pool{n}d_with_indices.default": max_pool_with_indices_of(n) for n in (1, 2, 3)})
enter_all({f"aten.avg_pool{n}d.default": avg_pool_of(n) for n in (1, 2, 3)})


def adaptive_of(operator: str, reduction: str) -> Callable[..., Value]:
    def adaptive(b: TraceBuilder, x: Value, output_size: Sizes) -> Value:
        rank = 1 if isinstance(output_size, int) else len(output_size)
        sizes = b.result.shape[-rank:]
        if set(sizes) == {1}:
            axes = tuple(range(len(x.shape) - rank, len(x.shape)))
            return b.emit(reduction, x, axes=axes, keepdims=True)
        if operator == "":
            return _greatest_of_windows(b, x, sizes)
        return b.reshape(b.emit(operator, _batched(b, x, rank), sizes=sizes), b.result.shape)

    return adaptive


_mean_pool = adaptive_of("adaptive_avg_pool", "reduce_mean")
enter_all({f"aten.adaptive_avg_pool{n}d.default": _mean_pool for n in (1, 2, 3)})
enter_all({f"aten._adaptive_avg_pool{n}d.default": _mean_pool for n in (2, 3)})


def _greatest_of_windows(b: TraceBuilder, x: Value, sizes: Sequence[int]) -> Value:
    """Adaptive pooling over windows as equal as possible, axis by axis; short windows repeat their last element."""
    for axis, parts in enumerate(sizes, len(x.shape) - len(sizes)):
        size, window = x.shape[axis], np.arange(parts)
        ends = ((window + 1) * size + parts - 1) // parts
        starts = window * size // parts
        taps = starts[:, None] + np.arange((ends - starts).max())
        gathered = b.emit("gather", x, b.constant(np.minimum(taps, ends[:, None] - 1)), axis=axis)
        x = b.emit("reduce_max", gathered, axes=(axis + 1,), keepdims=False)
    return x


def adaptive_max(b: TraceBuilder, x: Value, output_size: Sizes) -> tuple[Value, None]:
    return adaptive_of("", "reduce_max")(b, x, output_size), None


enter_all({f"aten.adaptive_max_pool{n}d.default": adaptive_max for n in (1, 2, 3)})


def resized(b: TraceBuilder, x: Value, mode: str, coordinates: str, scales: Sequence[float | None]) -> Value:
    """To the shape that torch found. Scales that a user gave, not the ratio of sizes, say where a result reads, but for
    the sizes that torch takes the ratio of."""
    sizes = b.result.shape
    by_ratio = {"nearest": (1, 2), "linear": (1,)}.get(mode, ())
    factors: tuple[float, ...] | None = None
    if any(scale is not None for scale in scales):
        factors = (1.0, 1.0)
        for scale, new, old in zip(scales, sizes[2:], x.shape[2:], strict=True):
            is_given = scale is not None and all(new != times * old for times in by_ratio)
            factors = (*factors, float(scale or 0) if is_given else float(quotient(new, old)))
    return b.emit("resize", x, sizes=sizes, mode=mode, coordinates=coordinates, nearest="floor", scales=factors)


def resize_of(mode: str, scales_of: Callable[..., Sequence[float | None]]) -> Callable[..., Value]:
    """`scales_of` has the last arguments: a list that may be None, or one number for each dimension."""

    def nearest(b: TraceBuilder, x: Value, output_size: Any, *scales: Any) -> Value:
        return resized(b, x, mode, "asymmetric", scales_of(*scales))

    def smooth(b: TraceBuilder, x: Value, output_size: Any, align_corners: bool, *scales: Any) -> Value:
        return resized(b, x, mode, "align_corners" if align_corners else "half_pixel", scales_of(*scales))

    return nearest if mode == "nearest" else smooth


_RESIZES = (
    *(("nearest1d", "nearest"), ("nearest2d", "nearest"), ("nearest3d", "nearest"), ("linear1d", "linear")),
    *(("bilinear2d", "linear"), ("trilinear3d", "linear"), ("bicubic2d", "cubic")),
)
enter_all({f"aten.upsample_{name}.vec": resize_of(mode, lambda scales: scales or ()) for name, mode in _RESIZES})
enter_all({f"aten.upsample_{name}.default": resize_of(mode, lambda *scales: scales) for name, mode in _RESIZES})


@rule("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(
    b: TraceBuilder, x: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    mode = ("linear", "nearest", "cubic")[interpolation_mode]
    padding = ("zeros", "border", "reflection")[padding_mode]
    return b.emit("grid_sample", x, grid, mode=mode, padding=padding, align_corners=align_corners)


@rule("aten.col2im.default")
def fold(
    b: TraceBuilder, x: Value, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Value:
    columns = b.reshape(x, (1, *x.shape)) if len(x.shape) == 2 else x
    summed = b.emit(
        "col2im", columns, sizes=_each(2, output_size), kernel=_each(2, kernel_size), strides=_each(2, stride),
        pads=_around(2, padding), dilations=_each(2, dilation),
    )  # fmt: skip
    return b.reshape(summed, b.result.shape)
