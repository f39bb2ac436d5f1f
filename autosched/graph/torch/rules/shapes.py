"""Rules of data movement: views, slices, concatenations, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.operators.index_maps import selection
from autosched.graph.torch.builder import Operand, TraceBuilder, axes_of, axis_of
from autosched.graph.torch.rules import rule


@rule(
    *("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints"),
    *("aten.unflatten.int", "aten.unsqueeze.default", "aten._reshape_alias.default", "aten._reshape_copy.default"),
    *("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.view_as.default"),
    "aten.reshape_as.default",
)
def reshape(b: TraceBuilder, x: Value, *_: Any) -> Value:
    """In the order of memory, to the shape that torch found."""
    return b.reshape(x, b.result.shape)


@rule("aten.view.dtype")
def view_bits(b: TraceBuilder, x: Value, *_: Any) -> Value:
    return b.emit("bitcast", x, dtype=b.result.dtype)


@rule("aten.permute.default")
def permute(b: TraceBuilder, x: Value, dims: Sequence[int]) -> Value:
    return b.transpose(x, dims)


@rule("aten.transpose.int")
def transpose(b: TraceBuilder, x: Value, dim0: int, dim1: int) -> Value:
    perm = list(range(len(x.shape)))
    i, j = axis_of(x, dim0), axis_of(x, dim1)
    if perm:
        perm[i], perm[j] = perm[j], perm[i]
    return b.transpose(x, perm)


@rule("aten.t.default", "aten.numpy_T.default", "aten.mT.default")
def transposed(b: TraceBuilder, x: Value) -> Value:
    return x if len(x.shape) < 2 else transpose(b, x, -2, -1)


@rule("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def expand(b: TraceBuilder, x: Value, *_: Any, **__: Any) -> Value:
    return b.expand(x, b.result.shape)


@rule("aten.repeat.default")
def repeat(b: TraceBuilder, x: Value, repeats: Sequence[int]) -> Value:
    wide = b.reshape(x, (1,) * (len(repeats) - len(x.shape)) + x.shape)
    return wide if set(repeats) <= {1} else b.emit("tile", wide, repeats=tuple(repeats))


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return begin and end of a slice, clamped to the axis."""
    chosen = selection(size, start, end, 1)
    return chosen.start, chosen.stop


@rule("aten.slice.Tensor")
def slice_(
    b: TraceBuilder, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    axis = axis_of(x, dim)
    return b.slice(x, axis, *_bounds(x.shape[axis], start, end), step)


@rule("aten.narrow.default")
def narrow(b: TraceBuilder, x: Value, dim: int, start: int, length: int) -> Value:
    first = start % x.shape[axis_of(x, dim)]
    return slice_(b, x, dim, first, first + length)


@rule("aten.select.int")
def select(b: TraceBuilder, x: Value, dim: int, index: int) -> Value:
    axis = axis_of(x, dim)
    place = index % x.shape[axis]
    return b.reshape(b.slice(x, axis, place, place + 1), b.result.shape)


@rule("aten.slice_scatter.default")
def slice_scatter(
    b: TraceBuilder, x: Value, src: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    """x with x[start:end] replaced along a dimension."""
    axis = axis_of(x, dim)
    size = x.shape[axis]
    first, last = _bounds(size, start, end)
    if step != 1:
        places = np.arange(size) - first
        written = (places >= 0) & (np.arange(size) < last) & (places % step == 0)
        shape = (size, *(1,) * (len(x.shape) - axis - 1))
        spread = b.emit("gather", b.cast(src, x.dtype), b.constant(np.where(written, places // step, 0)), axis=axis)
        return b.emit("where", b.constant(written.reshape(shape)), spread, x)
    if (first, last) == (0, size):
        return b.cast(src, x.dtype)
    parts = [b.slice(x, axis, 0, first)] if first > 0 else []
    parts.append(b.cast(src, x.dtype))
    parts += [b.slice(x, axis, last, size)] if last < size else []
    return b.emit("concat", *parts, axis=axis)


@rule("aten.diagonal.default")
def diagonal(b: TraceBuilder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    rows, columns = axis_of(x, dim1), axis_of(x, dim2)
    rest = [axis for axis in range(len(x.shape)) if axis not in (rows, columns)]
    count, width = x.shape[rows], x.shape[columns]
    lines = b.reshape(b.transpose(x, [*rest, rows, columns]), (*(x.shape[axis] for axis in rest), count * width))
    first = max(-offset, 0) * width + max(offset, 0)
    return b.emit("gather", lines, b.constant(first + np.arange(b.result.shape[-1]) * (width + 1)), axis=len(rest))


@rule("aten.select_scatter.default")
def select_scatter(b: TraceBuilder, x: Value, src: Value, dim: int, index: int) -> Value:
    axis = axis_of(x, dim)
    place = index % x.shape[axis]
    row = b.reshape(src, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return slice_scatter(b, x, row, axis, place, place + 1)


@rule("aten.cat.default")
def cat(b: TraceBuilder, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [b.cast(x, b.result.dtype) for x in tensors]
    return parts[0] if len(parts) == 1 else b.emit("concat", *parts, axis=axis_of(parts[0], dim))


@rule("aten.stack.default")
def stack(b: TraceBuilder, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % len(b.result.shape)
    shape = (*b.result.shape[:axis], 1, *b.result.shape[axis + 1 :])
    return cat(b, [b.reshape(x, shape) for x in tensors], axis)


@rule(
    *("aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes", "aten.chunk.default"),
    *("aten.tensor_split.sections", "aten.tensor_split.indices", "aten.split_with_sizes_copy.default"),
)
def split(b: TraceBuilder, x: Value, _: Any, dim: int = 0) -> tuple[Value, ...]:
    """The sizes are those of the results that torch found; one that is not expected has no elements."""
    axis = axis_of(x, dim)
    sizes = tuple(0 if part is None else part.shape[axis] for part in b.expected)
    return (x,) if len(sizes) == 1 else b.emit_many("split", (x,), len(sizes), sizes=sizes, axis=axis)


@rule("aten.unbind.int")
def unbind(b: TraceBuilder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(x, dim)
    size = x.shape[axis]
    if not size:
        return ()
    parts = (x,) if size == 1 else b.emit_many("split", (x,), size, sizes=(1,) * size, axis=axis)
    return tuple(b.reshape(part, b.result.shape) for part in parts)


@rule("aten.unfold.default")
def unfold(b: TraceBuilder, x: Value, dimension: int, size: int, step: int) -> Value:
    """Windows along a dimension, whose elements are a new last one."""
    axis = axis_of(x, dimension)
    if not x.shape:
        return b.reshape(x, b.result.shape)
    starts = np.arange(b.result.shape[axis]) * step
    made = b.emit("gather", x, b.constant(starts[:, None] + np.arange(size)), axis=axis)
    return b.transpose(made, [d for d in range(len(made.shape)) if d != axis + 1] + [axis + 1])


@rule("aten.flip.default")
def flip(b: TraceBuilder, x: Value, dims: Sequence[int]) -> Value:
    return b.emit("flip", x, axes=axes_of(x, dims)) if dims else x


@rule("aten.roll.default")
def roll(b: TraceBuilder, x: Value, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Value:
    """Without dimensions all elements in the order of memory."""
    steps = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    places = (dims,) if isinstance(dims, int) else tuple(dims)
    if places:
        return b.emit("roll", x, shifts=steps, axes=tuple(axis_of(x, d) for d in places))
    line = b.emit("roll", b.reshape(x, (math.prod(x.shape),)), shifts=steps, axes=(0,))
    return b.reshape(line, x.shape)


@rule("aten.tril.default")
def tril(b: TraceBuilder, x: Value, diagonal: int = 0) -> Value:
    return b.emit("trilu", x, k=diagonal, upper=False)


@rule("aten.triu.default")
def triu(b: TraceBuilder, x: Value, diagonal: int = 0) -> Value:
    return b.emit("trilu", x, k=diagonal, upper=True)


@rule("aten.pixel_shuffle.default")
def pixel_shuffle(b: TraceBuilder, x: Value, upscale_factor: int) -> Value:
    if len(x.shape) != 4:
        raise GraphError(f"{b.origin}: pixel_shuffle of {len(x.shape)} dimensions instead of 4")
    return b.emit("depth_to_space", x, block=upscale_factor, mode="CRD")


def padded(b: TraceBuilder, x: Value, pad: Sequence[int], mode: str, value: float = 0.0) -> Value:
    """`pad` is (low, high) of the last dimension, then of the one before; what is negative is cut off."""
    made, rank = x, len(x.shape)
    pairs = [(0, 0)] * rank
    for n in range(len(pad) // 2):
        axis, low, high = rank - 1 - n, pad[2 * n], pad[2 * n + 1]
        pairs[axis] = (max(low, 0), max(high, 0))
        made = b.slice(made, axis, max(-low, 0), made.shape[axis] - max(-high, 0))
    if not any(low or high for low, high in pairs):
        return made
    return b.emit("pad", made, pads=tuple(pairs), mode=mode, value=value)


@rule("aten.constant_pad_nd.default")
def constant_pad(b: TraceBuilder, x: Value, pad: Sequence[int], value: bool | int | float = 0) -> Value:
    return padded(b, x, pad, "constant", value)


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@rule("aten.pad.default")
def pad(b: TraceBuilder, x: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Value:
    return padded(b, x, pad, _MODES[mode], value or 0.0)


@rule(*(f"aten.reflection_pad{n}d.default" for n in (1, 2, 3)))
def reflection_pad(b: TraceBuilder, x: Value, padding: Sequence[int]) -> Value:
    return padded(b, x, padding, "reflect")


@rule(*(f"aten.replication_pad{n}d.default" for n in (1, 2, 3)))
def replication_pad(b: TraceBuilder, x: Value, padding: Sequence[int]) -> Value:
    return padded(b, x, padding, "edge")


@rule("aten.full_like.default")
def full_like(b: TraceBuilder, _: Value, fill_value: bool | int | float, **__: Any) -> Value:
    return b.filled(b.result.shape, fill_value, b.result.dtype)


@rule("aten.zeros_like.default", "aten.new_zeros.default")
def zeros_like(b: TraceBuilder, _: Value, *__: Any, **___: Any) -> Value:
    return b.filled(b.result.shape, 0, b.result.dtype)


@rule("aten.ones_like.default", "aten.new_ones.default")
def ones_like(b: TraceBuilder, _: Value, *__: Any, **___: Any) -> Value:
    return b.filled(b.result.shape, 1, b.result.dtype)


@rule("aten.new_full.default")
def new_full(b: TraceBuilder, _: Value, size: Any, fill_value: bool | int | float, **__: Any) -> Value:
    return b.filled(b.result.shape, fill_value, b.result.dtype)


@rule("aten.fill.Scalar", "aten.fill.Tensor")
def fill(b: TraceBuilder, _: Value, value: Operand) -> Value:
    if isinstance(value, Value):
        return b.expand(b.cast(value, b.result.dtype), b.result.shape)
    return b.filled(b.result.shape, value, b.result.dtype)


@rule("aten.copy.default")
def copy(b: TraceBuilder, _: Value, src: Value, non_blocking: bool = False) -> Value:
    return b.expand(b.cast(src, b.result.dtype), b.result.shape)
