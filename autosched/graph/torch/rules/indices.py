"""Rules of gathers and scatters. As in torch, negative indices count from the end only in x[i]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.operators.elementwise import broadcast_shape
from autosched.graph.operators.gathers import PLAIN
from autosched.graph.torch.builder import Operand, TraceBuilder, axis_of
from autosched.graph.torch.rules import rule
from autosched.ir.dtype import DTYPES


@rule("aten.embedding.default")
def embedding(b: TraceBuilder, weight: Value, indices: Value, *_: Any) -> Value:
    return b.emit("gather", weight, indices, axis=0, indexing=PLAIN)


@rule("aten.index_select.default")
def index_select(b: TraceBuilder, x: Value, dim: int, index: Value) -> Value:
    ids = b.reshape(index, (1,) if index.shape == () else index.shape)
    return b.reshape(b.emit("gather", x, ids, axis=axis_of(x, dim), indexing=PLAIN), b.result.shape)


@rule("aten.gather.default")
def gather(b: TraceBuilder, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    return b.emit("gather_elements", x, index, axis=axis_of(x, dim), indexing=PLAIN)


def _coordinates(b: TraceBuilder, indices: Sequence[Value]) -> Value:
    """Indices of several dimensions as one tensor with a new last dimension."""
    shape = broadcast_shape(*(i.shape for i in indices))
    wide = [b.reshape(b.expand(b.cast(i, "int64"), shape), (*shape, 1)) for i in indices]
    return wide[0] if len(wide) == 1 else b.emit("concat", *wide, axis=len(shape))


@dataclass(frozen=True)
class _Indexed:
    """x[indices]: `places` are the dimensions that are indexed, `rest` the others. Those of the result that come from
    indices stand from `at` on: where the first indexed one was if they are next to each other, else in front."""

    places: tuple[int, ...]
    rest: tuple[int, ...]
    at: int
    ids: Value  # with the coordinates in the last dimension

    @property
    def order(self) -> tuple[int, ...]:
        return (*self.places, *self.rest)

    @property
    def n(self) -> int:
        """Dimensions that come from indices."""
        return len(self.ids.shape) - 1


def _indexed(b: TraceBuilder, x: Value, indices: Sequence[Value | None]) -> _Indexed:
    given = [index for index in indices if index is not None]
    if any(index.dtype in ("bool", "uint8") for index in given):
        raise GraphError(f"{b.origin}: the shape of what a mask chooses is known at run time only")
    if not given:
        raise GraphError(f"{b.origin}: no dimension is indexed")
    places = tuple(n for n, index in enumerate(indices) if index is not None)
    rest = tuple(axis for axis in range(len(x.shape)) if axis not in places)
    at = places[0] if places == tuple(range(places[0], places[-1] + 1)) else 0
    return _Indexed(places, rest, at, _coordinates(b, given))


@rule("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(b: TraceBuilder, x: Value, indices: Sequence[Value | None]) -> Value:
    indexed = _indexed(b, x, indices)
    if len(indexed.places) == 1:
        only = next(i for i in indices if i is not None)
        return b.emit("gather", x, only, axis=indexed.at)
    made = b.emit("gather_nd", b.transpose(x, indexed.order), indexed.ids)
    at, n = indexed.at, indexed.n
    return b.transpose(made, [*range(n, n + at), *range(n), *range(n + at, len(made.shape))])


@rule("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    b: TraceBuilder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == "bool":
        return _put_where(b, x, indices[0], b.cast(values, x.dtype), accumulate)
    indexed = _indexed(b, x, indices)
    at, n = indexed.at, indexed.n
    sizes = [x.shape[axis] for axis in indexed.rest]
    written = (*sizes[:at], *indexed.ids.shape[:-1], *sizes[at:])  # as x[indices] is
    updates = b.expand(b.cast(values, x.dtype), written)
    updates = b.transpose(updates, [*range(at, at + n), *range(at), *range(at + n, len(written))])
    front = b.transpose(x, indexed.order)
    made = b.emit("scatter_nd", front, indexed.ids, updates, reduction="add" if accumulate else "none")
    return b.transpose(made, [indexed.order.index(axis) for axis in range(len(x.shape))])


def _put_where(b: TraceBuilder, x: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    """The same values at each place of the first dimensions that the mask chooses."""
    rest = len(x.shape) - len(mask.shape)
    if len(values.shape) > rest:
        if values.shape[: len(values.shape) - rest] != (1,) * (len(values.shape) - rest):
            raise GraphError(f"{b.origin}: how many values a mask chooses is known at run time only")
        values = b.reshape(values, values.shape[len(values.shape) - rest :])
    chosen = b.reshape(mask, (*mask.shape, *(1,) * rest))
    return b.emit("where", chosen, b.emit("add", x, values) if accumulate else values, x)


def _along(b: TraceBuilder, index: Value, axis: int, shape: tuple[int, ...]) -> Value:
    """Indices of one dimension, the same for all others."""
    size = index.shape[0] if index.shape else 1
    return b.expand(b.reshape(index, (*(1,) * axis, size, *(1,) * (len(shape) - axis - 1))), shape)


@rule("aten.index_copy.default")
def index_copy(b: TraceBuilder, x: Value, dim: int, index: Value, source: Value) -> Value:
    places = b.reshape(index, (index.shape[0] if index.shape else 1,))
    return b.emit("write_rows", x, places, source, axis=axis_of(x, dim), indexing=PLAIN)


@rule("aten.index_add.default")
def index_add(b: TraceBuilder, x: Value, dim: int, index: Value, source: Value, alpha: bool | int | float = 1) -> Value:
    if alpha != 1:
        source = b.emit("mul", source, b.operand(alpha, source.dtype))
    axis = axis_of(x, dim)
    ids = _along(b, index, axis, source.shape)
    return b.emit("scatter_elements", x, ids, source, axis=axis, reduction="add", indexing=PLAIN)


def _scattered(b: TraceBuilder, x: Value, dim: int, index: Value, source: Operand, reduction: str) -> Value:
    """torch reads as much of `source` as `index` has."""
    if isinstance(source, Value):
        for axis, size in enumerate(index.shape):
            source = b.slice(source, axis, 0, size)
    else:
        source = b.filled(index.shape, source, x.dtype)
    return b.emit("scatter_elements", x, index, source, axis=axis_of(x, dim), reduction=reduction, indexing=PLAIN)


@rule("aten.scatter.src", "aten.scatter.value")
def scatter(b: TraceBuilder, x: Value, dim: int, index: Value, source: Operand) -> Value:
    return _scattered(b, x, dim, index, source, "none")


@rule("aten.scatter_add.default")
def scatter_add(b: TraceBuilder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(b, x, dim, index, source, "add")


_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


@rule("aten.scatter_reduce.two")
def scatter_reduce(
    b: TraceBuilder, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True
) -> Value:
    """torch's names of the arguments. What was there and is left out becomes the number that changes nothing."""
    row = DTYPES[x.dtype]
    if reduce not in _REDUCTIONS or not x.shape or x.dtype == "bool" or (reduce == "mean" and not row.is_float):
        raise GraphError(f"{b.origin}: scattering {x.dtype}{list(x.shape)} with the reduction {reduce}")
    if not include_self:
        x = _scattered(b, x, dim, index, _neutral(reduce, x.dtype), "none")
    made = _scattered(b, x, dim, index, src, _REDUCTIONS[reduce])
    if reduce != "mean":
        return made
    count = _scattered(b, b.filled(x.shape, int(include_self), x.dtype), dim, index, 1, "add")
    return b.emit("div", made, count if include_self else b.emit("maximum", count, b.operand(1, x.dtype)))


def _neutral(reduction: str, dtype: str) -> int | float:
    """Return the neutral element of a reduction."""
    if reduction not in ("amax", "amin"):
        return int(reduction == "prod")
    if DTYPES[dtype].is_float:
        return -math.inf if reduction == "amax" else math.inf
    limits = np.iinfo(DTYPES[dtype].numpy_dtype)
    return int(limits.min if reduction == "amax" else limits.max)
