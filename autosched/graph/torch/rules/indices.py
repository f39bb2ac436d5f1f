"""Rules that read and write where other tensors say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.operators.elementwise import broadcast_shape
from autosched.graph.torch.builder import Operand, TraceBuilder, axis_of
from autosched.graph.torch.rules import rule


@rule("aten.embedding.default")
def embedding(b: TraceBuilder, weight: Value, indices: Value, *_: Any) -> Value:
    return b.emit("gather", weight, indices, axis=0)


@rule("aten.index_select.default")
def index_select(b: TraceBuilder, x: Value, dim: int, index: Value) -> Value:
    ids = b.reshape(index, (1,) if index.shape == () else index.shape)
    return b.reshape(b.emit("gather", x, ids, axis=axis_of(x, dim)), b.result.shape)


@rule("aten.gather.default")
def gather(b: TraceBuilder, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    return b.emit("gather_elements", x, index, axis=axis_of(x, dim))


def _coordinates(b: TraceBuilder, indices: Sequence[Value]) -> Value:
    """Indices of several dimensions as one tensor with a new last dimension."""
    shape = broadcast_shape(*(i.shape for i in indices))
    wide = [b.reshape(b.expand(b.cast(i, "int64"), shape), (*shape, 1)) for i in indices]
    return wide[0] if len(wide) == 1 else b.emit("concat", *wide, axis=len(shape))


def _places(b: TraceBuilder, x: Value, indices: Sequence[Value | None]) -> tuple[int, ...]:
    """The dimensions that are indexed: one after the other, so that the results' dimensions stay in their place."""
    found = tuple(n for n, index in enumerate(indices) if index is not None)
    if any(index is not None and index.dtype in ("bool", "uint8") for index in indices):
        raise GraphError(f"{b.origin}: the shape of what a mask chooses is known at run time only")
    if not found or found != tuple(range(found[0], found[-1] + 1)):
        raise GraphError(
            f"{b.origin}: indices of dimensions {found} of {len(x.shape)}, which are not next to each other"
        )
    return found


@rule("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(b: TraceBuilder, x: Value, indices: Sequence[Value | None]) -> Value:
    places = _places(b, x, indices)
    given = [i for i in indices if i is not None]
    first, count = places[0], len(places)
    if count == 1:
        return b.emit("gather", x, given[0], axis=first)
    rest = [axis for axis in range(len(x.shape)) if axis not in places]
    front = b.transpose(x, [*places, *rest])
    made = b.emit("gather_nd", front, _coordinates(b, given))
    n = len(made.shape) - len(rest)  # dimensions of the indices, which go to where the first of them was
    before = range(n, n + first)
    return b.transpose(made, [*before, *range(n), *range(n + first, len(made.shape))])


@rule("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    b: TraceBuilder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    places = _places(b, x, indices)
    ids = _coordinates(b, [i for i in indices if i is not None])
    first, n, rank = places[0], len(ids.shape) - 1, len(x.shape)
    rest = [axis for axis in range(rank) if axis not in places]
    written = (*x.shape[:first], *ids.shape[:-1], *x.shape[places[-1] + 1 :])  # as x[indices] is
    updates = b.expand(b.cast(values, x.dtype), written)
    updates = b.transpose(updates, [*range(first, first + n), *range(first), *range(first + n, len(written))])
    order = [*places, *rest]
    front = b.transpose(x, order)
    made = b.emit("scatter_nd", front, ids, updates, reduction="add" if accumulate else "none")
    return b.transpose(made, [order.index(axis) for axis in range(rank)])


def _along(b: TraceBuilder, index: Value, axis: int, shape: tuple[int, ...]) -> Value:
    """Indices of one dimension, the same for all others."""
    size = index.shape[0] if index.shape else 1
    return b.expand(b.reshape(index, (*(1,) * axis, size, *(1,) * (len(shape) - axis - 1))), shape)


@rule("aten.index_copy.default")
def index_copy(b: TraceBuilder, x: Value, dim: int, index: Value, source: Value) -> Value:
    axis = axis_of(x, dim)
    ids = _along(b, index, axis, source.shape)
    return b.emit("scatter_elements", x, ids, source, axis=axis, reduction="none")


@rule("aten.index_add.default")
def index_add(b: TraceBuilder, x: Value, dim: int, index: Value, source: Value, alpha: bool | int | float = 1) -> Value:
    if alpha != 1:
        source = b.emit("mul", source, b.operand(alpha, source.dtype))
    axis = axis_of(x, dim)
    return b.emit("scatter_elements", x, _along(b, index, axis, source.shape), source, axis=axis, reduction="add")


def _scattered(b: TraceBuilder, x: Value, dim: int, index: Value, source: Operand, reduction: str) -> Value:
    """torch reads as much of `source` as `index` has."""
    if isinstance(source, Value):
        for axis, size in enumerate(index.shape):
            source = b.slice(source, axis, 0, size)
    else:
        source = b.filled(index.shape, source, x.dtype)
    return b.emit("scatter_elements", x, index, source, axis=axis_of(x, dim), reduction=reduction)


@rule("aten.scatter.src", "aten.scatter.value")
def scatter(b: TraceBuilder, x: Value, dim: int, index: Value, source: Operand) -> Value:
    return _scattered(b, x, dim, index, source, "none")


@rule("aten.scatter_add.default")
def scatter_add(b: TraceBuilder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(b, x, dim, index, source, "add")
