"""Reductions over axes, argmax and argmin, and cumulative sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.elementwise import counted, truncating
from autosched.graph.operators.index_maps import axes_of, axis_of, replaced
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import Tensor

# An element and the axes that it depends on -> their reduction.
Reduction = Callable[[Expr, Sequence[Any]], Expr]


def reduced(x: Tensor, axes: Sequence[int] | None, keepdims: bool, reduction: Reduction, name: str) -> Tensor:
    """`reduction` of the elements over `axes`, which are all where it is None; the result has the type of x."""
    rank = len(x.shape)
    over = {d: te.reduce_axis(x.shape[d], f"k{d}") for d in axes_of(range(rank) if axes is None else axes, rank)}
    kept = [d for d in range(rank) if keepdims or d not in over]
    shape = tuple(1 if d in over else x.shape[d] for d in kept)

    def at(*index: Expr) -> Expr:
        known = dict(zip(kept, index, strict=True))
        value = x[tuple(over[d] if d in over else known[d] for d in range(rank))]
        return te.cast(reduction(value, tuple(over.values()) or (te.reduce_axis(1, "k"),)), x.dtype)

    made: Tensor = te.compute(shape, at, name=name)
    return made


def _mean(x: Expr, over: Sequence[Any]) -> Expr:
    total, count = te.sum(x, axis=over), math.prod(k.extent for k in over)
    return total / counted(count) if DTYPES[x.dtype].is_float else truncating(total, te.const(count, total.dtype))


def _log_sum_exp(x: Expr, over: Sequence[Any]) -> Expr:
    """Subtract the maximum before exp, so that it does not overflow; an infinite maximum is not subtracted."""
    largest = te.max(x, axis=over)
    finite = te.select(te.equal(te.abs(largest), math.inf), 0.0, largest)
    return te.log(te.sum(te.exp(x - finite), axis=over)) + finite


_REDUCTIONS: Mapping[str, Reduction] = {
    "reduce_sum": lambda x, over: te.sum(x, axis=over),
    "reduce_mean": _mean,
    "reduce_max": lambda x, over: te.max(x, axis=over),
    "reduce_min": lambda x, over: te.min(x, axis=over),
    "reduce_prod": lambda x, over: te.prod(x, axis=over),
    "reduce_l1": lambda x, over: te.sum(te.abs(x), axis=over),
    "reduce_l2": lambda x, over: te.sqrt(te.sum(x * x, axis=over)),
    "reduce_log_sum": lambda x, over: te.log(te.sum(x, axis=over)),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_sum_square": lambda x, over: te.sum(x * x, axis=over),
    "reduce_any": lambda x, over: te.any(x, axis=over),
    "reduce_all": lambda x, over: te.all(x, axis=over),
}


def _reducing(name: str, reduction: Reduction) -> None:
    """Register a reduction as the operator of that name."""

    def over_axes(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
        return reduced(x, axes, keepdims, reduction, name)

    over_axes.__name__ = name
    operator(over_axes)


for _name, _reduction in _REDUCTIONS.items():
    _reducing(_name, _reduction)


def _place_of(best: Callable[..., Any], x: Tensor, axis: int, keepdims: bool, last: bool) -> Tensor:
    axis = axis_of(axis, len(x.shape))
    size = x.shape[axis]
    if not size and math.prod(replaced(x.shape, axis, 1)):
        raise GraphError(f"axis {axis} of {list(x.shape)} has no element whose place could be the result")

    def at(*index: Expr) -> Expr:
        k = te.reduce_axis(size, "k")
        place = replaced(index, axis, k) if keepdims else (*index[:axis], k, *index[axis:])
        position: Expr = best((size - 1 - k if last else k, x[place]), axis=k)[0]
        return size - 1 - position if last else position

    shape = replaced(x.shape, axis, 1) if keepdims else (*x.shape[:axis], *x.shape[axis + 1 :])
    made: Tensor = te.compute(shape, at, name="place")
    return made


@operator
def argmax(x: Tensor, axis: int, keepdims: bool = True, last: bool = False) -> Tensor:
    """Return the index of the maximum along `axis`, the first or the last of equal ones; NaN is the greatest."""
    return _place_of(te.argmax, x, axis, keepdims, last)


@operator
def argmin(x: Tensor, axis: int, keepdims: bool = True, last: bool = False) -> Tensor:
    """Return the index of the minimum along `axis`, the first or the last of equal ones; NaN is the smallest."""
    return _place_of(te.argmin, x, axis, keepdims, last)


@operator
def cumsum(x: Tensor, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Along `axis` the sum of all elements up to each one, without itself (`exclusive`), or from each one on
    (`reverse`)."""
    return _running(x, axis, exclusive, reverse, te.sum, 0)


@operator
def cumprod(x: Tensor, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Products instead of the sums of `cumsum`."""
    return _running(x, axis, exclusive, reverse, te.prod, 1)


def _running(
    x: Tensor, axis: int, exclusive: bool, reverse: bool, reduction: Callable[..., Expr], neutral: int
) -> Tensor:
    axis = axis_of(axis, len(x.shape))

    def at(*index: Expr) -> Expr:
        k, i = te.reduce_axis(x.shape[axis], "k"), index[axis]
        counts = (k > i if exclusive else k >= i) if reverse else (k < i if exclusive else k <= i)
        terms = te.select(counts, x[replaced(index, axis, k)], te.const(neutral, x.dtype))
        return te.cast(reduction(terms, axis=k), x.dtype)

    made: Tensor = te.compute(x.shape, at, name="running")
    return made
