"""Resizing: interpolation between elements along an axis.

The source position of an element of the result, (i + 1/2) n / m - 1/2 or a similar formula, is computed as a fraction
of integers, so that its floor is an exact index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.elementwise import narrowed
from autosched.graph.operators.index_maps import axis_of, check_length, replaced
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.window import stored, widen

_HALF = Fraction(1, 2)
_MAX_DENOMINATOR = 1 << 16  # scales are rounded to fractions of at most this denominator: 0.6 to 3/5


@dataclass(frozen=True)
class _Source:
    """The source positions along an axis: (numerator i + offset) / denominator in an operand of size `size`."""

    numerator: int
    offset: int
    denominator: int
    size: int
    sizes: int  # of the result

    def times(self, i: Any) -> Any:
        """Return the source position of i times the denominator."""
        return i * self.numerator + self.offset

    def within(self, place: Callable[[Any], Any], i: Expr) -> Any:
        """Return the index place(i), increasing in i, clamped to the operand where it could leave it."""
        index, last = place(i), self.size - 1
        index = te.max(index, 0) if place(0) < 0 else index
        return te.min(index, last) if place(self.sizes - 1) > last else index


def quotient(n: int, m: int) -> Fraction:
    """Return n / m, for all sizes alike where one is a multiple of the other."""
    if n != 0 and m % n == 0:
        return Fraction(1, int(m // n))
    return Fraction(int(n // m)) if n % m == 0 else Fraction(int(n), int(m))


def _half_pixel(n: int, m: int, step: Fraction) -> tuple[Fraction, Fraction]:
    return step, step * _HALF - _HALF


def _half_pixel_symmetric(n: int, m: int, step: Fraction) -> tuple[Fraction, Fraction]:
    """The middle stays in the middle where m is not n / step, which has no fraction."""
    slope, start = _half_pixel(n, m, step)
    return slope, start + (n - m * step) * _HALF


# The step between source positions and that of 0, for sizes n of the operand and m of the result, and the step n / m.
COORDINATES: Mapping[str, Callable[[int, int, Fraction], tuple[Fraction, Fraction]]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda n, m, step: _half_pixel(n, m, step) if m > 1 else (Fraction(0), Fraction(0)),
    "asymmetric": lambda n, m, step: (step, Fraction(0)),
    "half_pixel_symmetric": _half_pixel_symmetric,
    "tf_half_pixel_for_nn": lambda n, m, step: (step, step * _HALF),
    "align_corners": lambda n, m, step: (quotient(n - 1, max(m - 1, 1)), Fraction(0)),
}

# The element nearest to the position p / q.
_NEAREST: Mapping[str, Callable[[Any, int], Any]] = {
    "floor": lambda p, q: p // q,
    "ceil": lambda p, q: (p + (q - 1)) // q,
    "round_prefer_floor": lambda p, q: (p * 2 + (q - 1)) // (2 * q),
    "round_prefer_ceil": lambda p, q: (p * 2 + q) // (2 * q),
}


def _linear(t: Expr, cubic: float) -> list[Expr]:
    """Return the weights of the elements at 0 and 1 for the position t between them."""
    return [1.0 - t, t]


def cubic_weights(t: Expr, a: float) -> list[Expr]:
    """Return the weights of the elements at -1, 0, 1 and 2 (Keys, "Cubic convolution interpolation for digital image
    processing", IEEE Transactions on Acoustics, Speech, and Signal Processing, 1981)."""

    def near(d: Expr) -> Expr:
        return (d * (a + 2.0) - (a + 3.0)) * d * d + 1.0

    def far(d: Expr) -> Expr:
        return ((d - 5.0) * d + 8.0) * d * a - 4.0 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


# The first element with a weight, relative to the floor of the position, and all weights.
_WEIGHTS: Mapping[str, tuple[int, Callable[[Expr, float], list[Expr]]]] = {
    "linear": (0, _linear),
    "cubic": (-1, cubic_weights),
}


def _known(what: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise GraphError(f"{what} of resize is one of {', '.join(table)} but got {name!r}")
    return table[name]


@operator
def resize(
    x: Tensor,
    sizes: Sequence[int],
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    nearest: str = "round_prefer_floor",
    scales: Sequence[float] | None = None,
    cubic: float = -0.75,
) -> Tensor:
    """x with `sizes`, one for each dimension, by the nearest element or between the nearest two or four.

    `scales`: result / operand where that is not the quotient of the sizes; `cubic`: the parameter of cubic weights.
    """
    check_length("sizes", sizes, len(x.shape))
    form, index_of = _known("coordinates", coordinates, COORDINATES), _known("nearest", nearest, _NEAREST)
    _known("the mode", mode, {"nearest": None, **_WEIGHTS})
    if mode != "nearest" and not DTYPES[x.dtype].is_float:
        raise GraphError(f"resize by {mode} needs floats but got {x.dtype}")
    if 0 in sizes:
        nothing: Tensor = te.compute(tuple(sizes), lambda *index: x[(0,) * len(index)], name="resize")
        return nothing
    result = x
    for axis, (n, m) in enumerate(zip(x.shape, sizes, strict=True)):
        scale = None if scales is None else Fraction(scales[axis]).limit_denominator(_MAX_DENOMINATOR)
        step = quotient(n, m) if scale is None else 1 / scale
        if n == m and step == 1:
            continue
        slope, start = form(n, m, step)
        common = math.lcm(slope.denominator, start.denominator)
        source = _Source(int(slope * common), int(start * common), common, n, m)
        if mode == "nearest":
            result = _by_nearest(result, axis, source, index_of)
        else:
            result = _by_weights(result, axis, source, mode, cubic)
    if result.dtype == x.dtype:
        return result
    small: Tensor = te.compute(result.shape, lambda *index: narrowed(result[index], x), name="resize")
    return small


def _by_nearest(x: Tensor, axis: int, source: _Source, index_of: Callable[[Any, int], Any]) -> Tensor:
    def at(*index: Expr) -> Expr:
        place = source.within(lambda i: index_of(source.times(i), source.denominator), index[axis])
        return x[replaced(index, axis, place)]

    made: Tensor = te.compute(replaced(x.shape, axis, source.sizes), at, name="resize")
    return made


def _neighbour(source: _Source, shift: int, i: Expr) -> Expr:
    """Return the clamped index `shift` elements after the floor of the source position of `i`."""
    place: Expr = source.times(i) // source.denominator + shift
    return place


def _by_weights(x: Tensor, axis: int, source: _Source, mode: str, cubic: float) -> Tensor:
    """Return the weighted sum of neighbours; those beyond the border are the border element."""
    first, weights = _WEIGHTS[mode]

    def at(*index: Expr) -> Expr:
        rest = te.cast(te.mod(source.times(index[axis]), source.denominator), DTYPES[x.dtype].computes_in)
        total: Expr | None = None
        for shift, weight in enumerate(weights(rest * (1.0 / source.denominator), cubic), first):
            place = source.within(partial(_neighbour, source, shift), index[axis])
            term = x[replaced(index, axis, place)] * weight
            total = term if total is None else total + term
        assert total is not None
        return total

    made: Tensor = te.compute(replaced(x.shape, axis, source.sizes), at, name="resize")
    return made


@operator
def resample(x: Tensor, places: Tensor, weights: Tensor, axis: int) -> Tensor:
    """Return, for each i along `axis`, the sum over t of x at places[i, t] times weights[i, t]."""
    axis = axis_of(axis, len(x.shape))
    if len(places.shape) != 2 or places.shape != weights.shape:
        raise GraphError(
            f"places and weights are matrices of one shape but got {list(places.shape)} and {list(weights.shape)}"
        )
    t = te.reduce_axis(places.shape[1], name="t")

    def at(*index: Expr) -> Expr:
        row = index[axis]
        element = x[replaced(index, axis, te.cast(places[row, t], "int64"))]
        return te.sum(widen(element) * widen(weights[row, t]), axis=t)

    return stored(te.compute(replaced(x.shape, axis, places.shape[0]), at, name="resample"), x.dtype)
